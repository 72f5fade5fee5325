"""The only module that chooses concrete backends. Each is imported when it is needed."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from shoal.config import Settings
from shoal.config.settings import BROWSER_AGENT
from shoal.errors import (
    InvalidSetting,
    LedgerCorrupt,
    LedgerNotMigrated,
    LedgerUnavailable,
    LedgerUnreachable,
    UsageError,
)
from shoal.ledger.protocols import Ledger
from shoal.model.ledger_url import ledger_address, postgres_address, redacted_address

if TYPE_CHECKING:
    from shoal.config.egress import EgressConfig
    from shoal.define.policy import Client
    from shoal.define.scraper import Scraper
    from shoal.egress.pool import ExitPool
    from shoal.fetch.browser import BrowserFetcher
    from shoal.fetch.download import Downloads
    from shoal.fetch.environment import EnvironmentProxies
    from shoal.fetch.http import HttpFetcher
    from shoal.fetch.page import Fetcher
    from shoal.model.log import Log
    from shoal.model.worker import Scope
    from shoal.notify.alert_thread import AlertThread
    from shoal.sinks.thread import SinkThread
    from shoal.worker.attempt_runner import AttemptRunner
    from shoal.worker.egress import Clients, WorkerEgress
    from shoal.worker.logins import Logins
    from shoal.worker.state import WorkerOptions
    from shoal.worker.watchdog import EndProcess
    from shoal.worker.worker import Worker

# The minimum time for a server that accepts the connection but does not answer.
MIN_CONNECT_SECONDS = 1.0
MIN_CONNECT_BACKOFF, MAX_CONNECT_BACKOFF = 0.1, 1.0

OnWaiting = Callable[[str], None]


async def connect_ledger(
    settings: Settings, *, create: bool = True, on_waiting: OnWaiting | None = None, readers: int = 1
) -> Ledger:
    """Connect without checking the schema. With `create=False` a SQLite file must exist; `readers` is for it too.

    With `on_waiting` the connection is retried for up to `patience` seconds, and it is called once with a message. It
    is also told about a SQLite ledger that may not be the expected one.
    """
    path = sqlite_path(settings.ledger)
    if path is None:
        return await _connect_postgres(settings, on_waiting)
    if not create and not path.exists():
        raise LedgerNotMigrated(
            f"There is no ledger at {path}.",
            remedy="Start a run with `shoal run`, or change to the project's folder.",
        )
    if on_waiting is not None and (notice := _ledger_notice(settings, path)):
        on_waiting(notice)
    from shoal.ledger.sqlite.ledger import open_sqlite

    return await open_sqlite(path, busy_timeout=settings.busy_timeout, readers=readers)


async def open_ledger(
    settings: Settings, *, migrate: bool | None = None, on_waiting: OnWaiting | None = None, readers: int = 1
) -> Ledger:
    """A ledger that is ready for work. `on_waiting` and `readers` as for `connect_ledger`.

    A SQLite ledger is created and migrated on first use; a PostgreSQL one, which others may be working on, must have
    been migrated by `shoal db migrate`. `migrate` overrides this for both. With `migrate=False` a SQLite file must
    exist. Raises LedgerNotMigrated or LedgerTooNew when the schema is not this code's.
    """
    if migrate is None:
        migrate = sqlite_path(settings.ledger) is not None
    ledger = await connect_ledger(settings, create=migrate, on_waiting=on_waiting, readers=readers)
    try:
        if migrate:
            await ledger.schema.migrate()
        await ledger.schema.require_current()
    except BaseException:
        await ledger.close()
        raise
    return ledger


@asynccontextmanager
async def ledger_context(
    settings: Settings, *, migrate: bool | None = None, on_waiting: OnWaiting | None = None
) -> AsyncIterator[Ledger]:
    """`open_ledger` as a context manager."""
    ledger = await open_ledger(settings, migrate=migrate, on_waiting=on_waiting)
    try:
        yield ledger
    finally:
        await ledger.close()


def event_loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """What makes the faster event loop; None where there is none, as on Windows."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def build_fetcher(
    settings: Settings,
    *,
    client: Client = "http",
    from_store: bool = False,
    environment: Mapping[str, str] = os.environ,
) -> Fetcher:
    """The fetcher: from the network, with the page store if there is one, or from the page store only.

    `client`: "http" or "chrome". `environment`: where HTTP_PROXY and its like are read.
    """
    store = None
    if settings.store:
        from shoal.fetch.store import FileStore

        store = FileStore(Path(settings.store).expanduser())
    if from_store:
        if store is None:
            raise UsageError("--from-store needs a store.", remedy="Name the folder with --store, or set `store`.")
        from shoal.fetch.store import StoreOnlyFetcher

        return StoreOnlyFetcher(store)
    from shoal.fetch.environment import environment_proxies

    fetcher = _client_class(client)(
        connections=settings.concurrency,
        user_agent=settings.agent,
        max_body=settings.max_body,
        deny_private=settings.deny_private,
        environment=environment_proxies(environment),
    )
    if store is None:
        return fetcher
    from shoal.fetch.store import StoringFetcher

    return StoringFetcher(fetcher, store)


def _client_class(client: Client) -> type[HttpFetcher]:
    """Raises UsageError when the library of the client is missing."""
    if client == "chrome":
        from shoal.fetch.impersonate import ImpersonatingFetcher

        return ImpersonatingFetcher
    from shoal.fetch.http import HttpFetcher

    return HttpFetcher


def check_environment() -> EnvironmentProxies | None:
    """The proxies that HTTP_PROXY and its like name. Raises UsageError for one that is not valid."""
    from shoal.fetch.environment import environment_proxies

    return environment_proxies(os.environ)


def _announce_proxies(log: Log) -> None:
    """Log once that the environment names proxies."""
    proxies = check_environment()
    if proxies is not None:
        log.info("requests go through the proxy of the environment, unless their stage has one", **proxies.named())


def build_clients(settings: Settings, fetcher: Fetcher) -> Clients:
    """The fetchers of stages by client; `fetcher` is that of plain HTTP."""
    from shoal.worker.egress import Clients

    def make(client: Client) -> Fetcher:
        if client == "chrome":
            return build_fetcher(settings, client=client)
        if client == "browser":
            return build_browser(settings, fetcher)
        raise UsageError(f"There is no client {client!r}.")

    return Clients(make, http=fetcher)


def build_browser(settings: Settings, http: Fetcher, *, log: Log | None = None) -> BrowserFetcher:
    """Pages in a real browser, which starts when the first one is opened. Raises UsageError without Playwright."""
    from shoal.fetch.browser import BrowserFetcher
    from shoal.fetch.environment import environment_proxies

    store = None
    if settings.store:
        from shoal.fetch.store import FileStore

        store = FileStore(Path(settings.store).expanduser())
    return BrowserFetcher(
        http,
        tabs=settings.browser_tabs,
        targets=settings.browser_targets,
        memory=settings.browser_memory,
        max_body=settings.max_body,
        user_agent=None if settings.user_agent in ("", BROWSER_AGENT) else settings.user_agent,
        chromium=settings.chromium,
        sandbox=settings.browser_sandbox,
        deny_private=settings.deny_private,
        environment=environment_proxies(os.environ),
        downloads=build_downloads(settings),
        store=store,
        log=log,
    )


def build_logins(scraper: Scraper, settings: Settings, *, log: Log, ledger: Ledger | None = None) -> Logins | None:
    """The logins of a scraper; None when it has none. Raises UsageError when shared sessions have no key."""
    if not scraper.logins:
        return None
    from shoal.worker.logins import Logins
    from shoal.worker.session_store import SessionFiles, SharedSessions, session_cipher

    shared = None
    if ledger is not None and any(login.shared for login in scraper.logins):
        shared = SharedSessions(ledger, scraper.name, session_cipher(scraper.find_secret))
    files = SessionFiles(Path(settings.sessions).expanduser(), scraper.name, log) if settings.sessions else None
    return Logins(scraper, log, files=files, shared=shared)


def build_egress(
    scraper: Scraper,
    settings: Settings,
    *,
    log: Log,
    alone: bool = False,
    logins: Logins | None = None,
) -> WorkerEgress | None:
    """The pools that the scraper's stages go out through, and its logins; None when there are neither.

    `alone`: no ledger is asked about bans and about other workers.

    Raises InvalidSetting for a pool that is not configured.
    """
    stages = {name: stage.egress for name, stage in scraper.stages.items()}
    if not any(stages.values()) and logins is None:
        return None
    from shoal.worker.egress import WorkerEgress

    pools = {
        name: build_pool(settings, name, used_by, log=log, alone=alone)
        for used_by, name in stages.items()
        if name is not None
    }
    return WorkerEgress(pools, stages, log, logins=logins)


def check_pools_exist(scraper: Scraper, settings: Settings) -> None:
    """Raises InvalidSetting for a stage whose pool is not configured."""
    for name, stage in scraper.stages.items():
        if stage.egress is not None:
            egress_config(settings, stage.egress, name)


async def check_ways_out(scraper: Scraper, settings: Settings) -> None:
    """Raises UsageError for what no worker could start with: a pool, list, token or program that is missing.

    Nothing is sent: a list behind a URL is not asked for.
    """
    check_pools_exist(scraper, settings)
    for name in dict.fromkeys(stage.egress for stage in scraper.stages.values()):
        config = None if name is None else settings.egress[name]
        if config is None:
            continue
        if config.kind == "proxies" and config.url is None:
            from shoal.egress.lists import ListSource

            await ListSource(config).read()
        elif config.kind == "tokens":
            from shoal.egress.tokens import tokens_of

            tokens_of(config)
        elif config.kind == "tor" and config.socks is None:
            from shoal.egress.tor_process import find_tor

            find_tor(settings.tor)
    if any(stage.client == "browser" for stage in scraper.stages.values()):
        from shoal.fetch.chromium import check_browser

        await check_browser(settings.chromium)


def egress_config(settings: Settings, name: str, stage: str) -> EgressConfig:
    """`[egress.NAME]`. Raises InvalidSetting when it is missing."""
    config = settings.egress.get(name)
    if config is None:
        known = ", ".join(settings.egress) or "none"
        raise InvalidSetting(
            f"The stage {stage} goes out through egress {name!r}, which is not configured (there is: {known}).",
            remedy=f"Correct the name, or add [egress.{name}] to shoal.toml.",
        )
    return config


def build_pool(settings: Settings, name: str, stage: str, *, log: Log, alone: bool = False) -> ExitPool:
    """A pool of exits. Raises InvalidSetting when `[egress.NAME]` is missing."""
    config = egress_config(settings, name, stage)
    if config.kind == "proxies":
        from shoal.egress.proxies import ProxyPool

        return ProxyPool(config, log=log, alone=alone)
    if config.kind == "tokens":
        from shoal.egress.tokens import TokenPool

        return TokenPool(config, log=log, alone=alone)
    from shoal.egress.tor import TorPool

    return TorPool(config, log=log, program=settings.tor, alone=alone)


def build_downloads(settings: Settings, *, offline: bool = False) -> Downloads | None:
    """Where downloads go; None if there is no place for them. `offline`: only earlier downloads are given out."""
    if not settings.files:
        return None
    from shoal.fetch.download import Downloads

    return Downloads(settings.files, offline=offline)


def build_attempts(
    scraper: Scraper,
    fetcher: Fetcher,
    settings: Settings,
    *,
    log: Log,
    from_store: bool = False,
) -> AttemptRunner:
    """Attempts without lanes, for a try or a replay. robots.txt is obeyed unless pages come from the store."""
    from shoal.fetch.robots import Robots
    from shoal.worker.attempt_resources import AttemptResources
    from shoal.worker.attempt_runner import AttemptRunner
    from shoal.worker.failure_log import FailureLog
    from shoal.worker.politeness import Politeness

    if not from_store:
        _announce_proxies(log)
    obeys_robots = scraper.obeys_robots(settings.robots) and not from_store
    robots = Robots(fetcher, settings.robots_agent, log=log) if obeys_robots else None
    logins = None if from_store else build_logins(scraper, settings, log=log)
    resources = AttemptResources(
        scraper,
        fetcher,
        Politeness(robots),
        log=log,
        downloads=build_downloads(settings, offline=from_store),
        clients=None if from_store else build_clients(settings, fetcher),
        egress=None if from_store else build_egress(scraper, settings, log=log, alone=True),
        logins=logins,
    )
    return AttemptRunner(resources, FailureLog(log))


def worker_options(scraper: Scraper, settings: Settings, scope: Scope, **chosen: Any) -> WorkerOptions:
    """A worker's options from the settings and from `chosen`."""
    from shoal import __version__
    from shoal.autoscale.rules import LoadLimits
    from shoal.worker.state import WorkerOptions

    return WorkerOptions(
        scope=scope,
        concurrency=settings.concurrency,
        limits=LoadLimits(cpu=settings.max_cpu / 100, memory=settings.max_memory / 100),
        batch_size=settings.batch_size,
        lease=settings.lease,
        drain=settings.drain,
        patience=settings.patience,
        version=__version__,
        code=scraper.code_version,
        **chosen,
    )


def build_worker(
    scraper: Scraper,
    settings: Settings,
    ledger: Ledger,
    fetcher: Fetcher,
    options: WorkerOptions,
    *,
    log: Log,
    from_store: bool = False,
    end_process: EndProcess | None = None,
) -> Worker:
    """A worker on this ledger. Its heartbeat opens the ledger a second time, in its own thread.

    `end_process` ends the process when the event loop hangs; without it, a hang is only logged.
    """
    from shoal.fetch.memory import MemoryBudget
    from shoal.fetch.robots import Robots
    from shoal.worker.attempt_resources import AttemptResources
    from shoal.worker.attempt_runner import AttemptRunner
    from shoal.worker.failure_log import FailureLog
    from shoal.worker.operator_settings import OperatorSettings
    from shoal.worker.politeness import ClosedLanes, Politeness
    from shoal.worker.record_limits import RecordLimit
    from shoal.worker.registration import Registration
    from shoal.worker.state import WorkerEvents, WorkerIdentity
    from shoal.worker.worker import Worker

    if not from_store:
        _announce_proxies(log)
    obeys_robots = scraper.obeys_robots(settings.robots) and not from_store
    robots = Robots(fetcher, settings.robots_agent, log=log) if obeys_robots else None
    identity = WorkerIdentity(WorkerEvents())
    registration = Registration(ledger, identity, options, log)
    logins = None if from_store else build_logins(scraper, settings, log=log, ledger=ledger)
    egress = None if from_store else build_egress(scraper, settings, log=log, logins=logins)
    closed_lanes = ClosedLanes(ledger.lanes)
    resources = AttemptResources(
        scraper,
        fetcher,
        Politeness(robots, ledger.lanes, identity, closed_lanes=closed_lanes),
        log=log,
        in_lanes=not from_store,
        memory=MemoryBudget(settings.memory_budget << 20),
        registration=registration,
        downloads=build_downloads(settings, offline=from_store),
        clients=None if from_store else build_clients(settings, fetcher),
        egress=egress,
        logins=logins,
    )
    # A heartbeat without an answer is retried on another connection before the lease expires.
    heartbeat_settings = msgspec.structs.replace(
        settings,
        pool_size=1,
        patience=options.lease / 5,
        command_timeout=min(settings.command_timeout, max(1.0, options.lease / 3)),
    )
    ledger.health.set_warning_handler(log.warning)
    longest = max(stage.policy.timeout for stage in scraper.stages.values())
    return Worker(
        ledger,
        registration,
        AttemptRunner(resources, FailureLog(log)),
        open_ledger=lambda: connect_ledger(heartbeat_settings, create=False),
        hang_timeout=longest + settings.lease,
        end_process=end_process,
        log=log,
        egress=egress,
        operator_settings=OperatorSettings(scraper, log),
        closed_lanes=closed_lanes,
        record_limits={
            name: RecordLimit(policy.max_records, of_scraper=policy.max_records_of == "scraper")
            for name, stage in scraper.stages.items()
            if (policy := stage.policy).max_records
        },
    )


def build_alert_thread(settings: Settings, log: Log) -> AlertThread:
    """The alert thread, which watches a ledger's runs. It opens the ledger itself, in its own thread."""
    from shoal.notify.alert_thread import AlertThread

    alone = msgspec.structs.replace(settings, pool_size=1)
    return AlertThread(lambda: connect_ledger(alone, create=False), settings, log=log)


def build_sink_thread(settings: Settings, log: Log, *, only: tuple[str, ...] = ()) -> SinkThread:
    """The thread that delivers to sinks. It opens the ledger itself, in its own thread."""
    from shoal.sinks.thread import SinkThread

    alone = msgspec.structs.replace(settings, pool_size=2)
    return SinkThread(lambda: connect_ledger(alone, create=False), settings, log=log, only=only)


def sqlite_path(ledger: str) -> Path | None:
    """The file of a SQLite ledger, None for a PostgreSQL one. Raises BadLedgerUrl for everything else."""
    found = ledger_address(ledger)
    return found if isinstance(found, Path) else None


def find_ledger_damage(ledger: str, *, seconds: float = 20.0) -> LedgerCorrupt | None:
    """The damage of a SQLite file as an error; None when none is found in so many seconds, or for PostgreSQL."""
    path = sqlite_path(ledger)
    if path is None or not path.exists():
        return None
    from shoal.ledger.sqlite.errors import corrupt_error
    from shoal.ledger.sqlite.integrity import find_damage

    finding = find_damage(path, seconds)
    return None if finding is None else corrupt_error(path, finding)


def _ledger_notice(settings: Settings, path: Path) -> str:
    """Which ledger is used, when it is not the one of the current folder, or another one is near."""
    if settings.ledger_above and not path.exists():
        return (
            f"A new ledger begins at {path}. Another one, {settings.ledger_above}, belongs to a folder above and is "
            "not used; --ledger or SHOAL_LEDGER would choose it."
        )
    if settings.project and path.is_relative_to(settings.project):
        return f"The ledger is {path}."
    return ""


async def _connect_postgres(settings: Settings, on_waiting: OnWaiting | None) -> Ledger:
    deadline = time.monotonic() + settings.patience
    pause, announced = MIN_CONNECT_BACKOFF, False
    while True:
        try:
            return await _connect_postgres_once(settings)
        except LedgerUnavailable as error:
            if on_waiting is None or time.monotonic() + pause > deadline:
                raise
            if not announced:
                on_waiting(f"{error.message} Waiting for it, up to {settings.patience:g} s.")
                announced = True
        await asyncio.sleep(pause * (0.5 + random.random()))
        pause = min(2 * pause, MAX_CONNECT_BACKOFF)


async def _connect_postgres_once(settings: Settings) -> Ledger:
    from shoal.ledger.postgres.ledger import open_postgres

    address = postgres_address(settings.ledger)
    # Pairs become a URL; a URL is left as it was written.
    url = settings.ledger if address is None or "://" in settings.ledger else address.url
    seconds = max(MIN_CONNECT_SECONDS, settings.patience)
    try:
        async with asyncio.timeout(seconds):
            return await open_postgres(
                url,
                pool_size=settings.pool_size,
                patience=settings.patience,
                command_timeout=settings.command_timeout,
            )
    except TimeoutError:
        raise LedgerUnreachable(f"{redacted_address(settings.ledger)} has not answered for {seconds:g} s.") from None
