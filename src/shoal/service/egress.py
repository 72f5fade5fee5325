"""Egress for operators: the exits of the ledger's pools, what they are set to, and whether they work from here."""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from shoal.errors import AttemptEnded, ExitFailed, LedgerError, NotFound, UsageError
from shoal.fetch.page import Request
from shoal.model.egress import BAD_TOKEN, BudgetView, ExitState, ExitView, PoolKind, PoolView, exit_key
from shoal.model.views import CursorPage
from shoal.model.worker import FixedPart
from shoal.observe.doctor import Check
from shoal.observe.egress import count_text, pool_text
from shoal.observe.formatting import pluralize

if TYPE_CHECKING:
    from shoal.config import Settings
    from shoal.config.egress import EgressConfig
    from shoal.define.scraper import Scraper
    from shoal.fetch.page import Fetcher
    from shoal.ledger.protocols import Ledger
    from shoal.model.egress import Exit
    from shoal.model.log import Log
    from shoal.model.worker import WorkerView

PAGE = 1_000
MAX_EXITS = 100_000
CHECKS_AT_ONCE = 20
CHECK_SECONDS = 20.0
LOG_SECONDS = 5.0
HOLDER_POLL_SECONDS = 0.25
MAX_ADDRESS_PAGE = 100_000
MAX_BAD_LINES = 5
# By RFC 6761 this name never exists, so that a proxy answers at once, and no site is visited.
NO_SITE = "https://shoal.invalid/"


class ExitCheck(msgspec.Struct, frozen=True, kw_only=True):
    """Whether an exit works from this machine. `text`: what was found; `seconds`: how long it took."""

    pool: str
    exit: str
    label: str
    ok: bool
    text: str
    seconds: float = 0.0


class PlannedExits(msgspec.Struct, frozen=True, kw_only=True):
    """The exits of a pool that a fleet of workers will have. `split`: each worker has its own part; `fixed`: always
    the same.
    """

    pool: str
    kind: PoolKind
    exits: int
    workers: int
    split: bool
    fixed: bool = False

    def part(self, worker: int) -> int:
        """How many exits the worker of this number (from 0) has; a share of one counts as one."""
        if not self.split or not self.exits:
            return self.exits
        return max(1, self.exits // self.workers + (worker < self.exits % self.workers))


async def plan_exits(settings: Settings, pools: Collection[str], workers: int) -> tuple[PlannedExits, ...]:
    """How many exits of these pools each of so many workers gets."""
    from shoal.egress.lists import ListSource

    planned = []
    for name in sorted(pools):
        config = settings.egress[name]
        match config.kind:
            case "proxies":
                exits = len((await ListSource(config).read()).exits)
            case "tokens":
                exits = len(set(config.given.values()))
            case "tor":
                exits = config.circuits
        split = config.kind != "tor" and config.share != "shared"
        fixed = config.share == "fixed"
        planned.append(
            PlannedExits(pool=name, kind=config.kind, exits=exits, workers=workers, split=split, fixed=fixed)
        )
    return tuple(planned)


def fixed_parts(scraper: Scraper, settings: Settings) -> tuple[FixedPart, ...]:
    """The fixed parts that a worker with these settings has, by the number that it was given."""
    used = {stage.egress for stage in scraper.stages.values()}
    return tuple(
        FixedPart(config.name, *config.place)
        for config in settings.egress.values()
        if config.name in used and config.share == "fixed" and config.place is not None
    )


async def check_parts_are_free(
    ledger: Ledger,
    settings: Settings,
    parts: Collection[FixedPart],
    *,
    own: Collection[int] = (),
    notice: Callable[[str], None],
) -> None:
    """Raises UsageError when a live worker of another pool has exits of these parts.

    One that is silent may be dead: it is waited for until it gives a sign of life or its lease ends. `own`: the
    processes of this pool.
    """
    began, waited, announced = time.monotonic(), 0.0, False
    while holders := await _holders(ledger, settings, parts, own):
        for worker, pool in holders:
            if worker.silent_seconds < waited:
                raise UsageError(
                    f"Worker {worker.id} of another pool has proxies of {pool} that this pool would use too.",
                    remedy='Let all workers on all machines divide them: share = "split"; or wait until it has ended.',
                )
        if not announced:
            announced = True
            worker, pool = holders[0]
            notice(f"Waiting for worker {worker.id}, which has proxies of {pool} and may be dead.")
        await asyncio.sleep(HOLDER_POLL_SECONDS)
        waited = time.monotonic() - began  # before the ledger is asked: who was silent so long has given no sign since


async def _holders(
    ledger: Ledger, settings: Settings, parts: Collection[FixedPart], own: Collection[int]
) -> list[tuple[WorkerView, str]]:
    """Live workers that have exits of these parts, each with the pool of the exits."""
    from shoal.egress.lists import ListSource
    from shoal.egress.sharing import fixed_part

    node, found = socket.gethostname(), []
    present = [worker for worker in await ledger.workers.list() if worker.alive and worker.scope.parts]
    others = [worker for worker in present if worker.node != node or worker.pid not in own]
    for pool in sorted({part.pool for part in parts} if others else ()):
        keys = [exit_.key for exit_ in (await ListSource(settings.egress[pool]).read()).exits]
        needed = {key for part in parts if part.pool == pool for key in fixed_part(part.number, part.workers, keys)}
        holders = [
            worker
            for worker in others
            for part in worker.scope.parts
            if part.pool == pool and not needed.isdisjoint(fixed_part(part.number, part.workers, keys))
        ]
        listed = {each.key async for each in _exits_of(ledger, pool)} if holders else set()
        if not listed or not listed.isdisjoint(keys):  # else each machine has a list of its own
            found += [(worker, pool) for worker in holders]
    return found


async def list_pools(ledger: Ledger) -> list[PoolView]:
    """Every pool that workers have used, by name."""
    return await ledger.exits.pools()


async def find_pool(ledger: Ledger, pool: str) -> PoolView:
    """A pool that workers have used. Raises NotFound."""
    pools = await ledger.exits.pools()
    found = next((view for view in pools if view.pool == pool), None)
    if found is None:
        raise _unknown_pool(pool, pools)
    return found


def _unknown_pool(pool: str, pools: Iterable[PoolView]) -> NotFound:
    known = ", ".join(view.pool for view in pools) or "none"
    return NotFound(
        f"The ledger knows no pool {pool!r} (it knows: {known}).",
        remedy="A pool is known from the first worker on that uses it; check the name.",
    )


async def list_exits(
    ledger: Ledger,
    kinds: tuple[PoolKind, ...],
    *,
    pool: str | None = None,
    state: str | None = None,
    details: bool = False,
) -> AsyncIterator[ExitView]:
    """The exits of these kinds of pools, by pool and label; `details`: with their budgets and hosts.

    Raises NotFound for a pool that nobody has used.
    """
    pools = [view for view in await ledger.exits.pools() if view.kind in kinds]
    if pool is not None and pool not in {view.pool for view in pools}:
        raise _unknown_pool(pool, pools)
    for view in pools:
        if pool in (None, view.pool):
            async for each in _exits_of(ledger, view.pool, state):
                yield await ledger.exits.get(each.pool, each.key) if details else each


async def list_exit_page(
    ledger: Ledger, pool: PoolView, *, state: str | None = None, cursor: str | None = None, limit: int = 50
) -> CursorPage[ExitView]:
    """A page of a pool's exits by label, without their hosts; tokens with their budgets."""
    page = await ledger.exits.list(pool.pool, state=state, cursor=cursor, limit=limit)
    if pool.kind != "tokens":
        return page
    budgets: dict[str, list[BudgetView]] = {}
    for key, budget in await ledger.budgets.list(pool.pool):
        budgets.setdefault(key, []).append(budget)
    rows = [msgspec.structs.replace(each, budgets=tuple(budgets.get(each.key, ()))) for each in page.rows]
    return CursorPage(tuple(rows), page.cursor)


async def _exits_of(ledger: Ledger, pool: str, state: str | None = None) -> AsyncIterator[ExitView]:
    cursor, seen = None, 0
    while seen < MAX_EXITS:
        page = await ledger.exits.list(pool, state=state, cursor=cursor, limit=PAGE)
        for each in page.rows:
            yield each
        seen += len(page.rows)
        cursor = page.cursor
        if cursor is None:
            return


def _names(view: ExitView) -> tuple[str, ...]:
    """What an operator may call an exit: its key, its label, and this without the scheme and the user's name."""
    return view.key, view.label, view.label.rpartition("://")[2].rpartition("@")[2]


async def find_exit(ledger: Ledger, name: str, kinds: tuple[PoolKind, ...]) -> ExitView:
    """The exit of this key, label, host:port or POOL/KEY, with its hosts and budgets.

    Raises NotFound, or UsageError for two.
    """
    pool, slash, rest = name.partition("/")
    found = [
        view
        async for view in list_exits(ledger, kinds)
        if name in _names(view) or (slash and view.pool == pool and rest in _names(view))
    ]
    if not found:
        raise NotFound(
            f"The ledger knows no exit {name!r}.", remedy="`shoal proxies ls` and `shoal tokens ls` list them."
        )
    if len(found) > 1:
        choices = ", ".join(f"{view.pool}/{view.key}" for view in found[:5])
        raise UsageError(f"{name!r} names {len(found)} exits.", remedy=f"Write one of: {choices}.")
    return await ledger.exits.get(found[0].pool, found[0].key)


async def rest_exit(
    ledger: Ledger, name: str, kinds: tuple[PoolKind, ...], *, seconds: float | None, by: str = ""
) -> ExitView:
    """Keep an exit from use for so many seconds, or until it is freed."""
    found = await find_exit(ledger, name, kinds)
    return await ledger.exits.rest(found.pool, found.key, seconds, by=by)


async def ban_exit(
    ledger: Ledger, name: str, kinds: tuple[PoolKind, ...], *, seconds: float | None, why: str, by: str = ""
) -> ExitView:
    """Ban an exit for so many seconds, or until it is freed; it is tried with one request before it is used again."""
    found = await find_exit(ledger, name, kinds)
    return await ledger.exits.ban(found.pool, found.key, seconds, why, by=by)


async def free_exit(ledger: Ledger, name: str, kinds: tuple[PoolKind, ...], *, by: str = "") -> ExitView:
    """Make an exit good at once, at every host."""
    found = await find_exit(ledger, name, kinds)
    return await ledger.exits.free(found.pool, found.key, by=by)


async def free_pool(
    ledger: Ledger, name: str, kinds: tuple[PoolKind, ...], *, by: str = ""
) -> tuple[PoolView, list[ExitView]] | None:
    """Make all exits of a pool good at once: the pool and those that were not. None when no pool has this name."""
    pool = next((view for view in await list_pools(ledger) if view.kind in kinds and view.pool == name), None)
    if pool is None:
        return None
    views = [view async for view in list_exits(ledger, kinds, pool=name) if view.state is not ExitState.GOOD]
    return pool, [await ledger.exits.free(view.pool, view.key, by=by) for view in views]


class ExitLog:
    """Logs how the exits of pools change, and how each pool stands after a change."""

    def __init__(self, ledger: Ledger, pools: Collection[str], log: Log) -> None:
        self._logs = [_PoolLog(ledger, pool, log.bind(egress=pool)) for pool in sorted(pools)]

    async def run(self, every: float = LOG_SECONDS) -> None:
        """Read the pools again and again, until cancelled."""
        while True:
            await self.read()
            await asyncio.sleep(every)

    async def read(self) -> None:
        for each in self._logs:
            with suppress(LedgerError):  # an outage is reported elsewhere
                await each.read()


class _PoolLog:
    """Logs what changed in one pool since the last reading; changes that are read twice are logged once."""

    def __init__(self, ledger: Ledger, pool: str, log: Log) -> None:
        self._ledger = ledger
        self._pool = pool
        self._log = log
        self._since: float | None = None
        self._labels: dict[str, str] = {}
        self._states: dict[str, ExitState] = {}
        self._blocked: set[tuple[str, str]] = set()
        self._shown = ""

    async def read(self) -> None:
        changes = await self._ledger.exits.changes("", self._pool, self._since)
        self._since = changes.at or None
        keys = {exit_.key for exit_ in changes.exits} | {block.key for block in changes.blocks}
        if not keys <= self._labels.keys():
            self._labels = {view.key: view.label async for view in _exits_of(self._ledger, self._pool)}
        for exit_ in changes.exits:
            if self._states.get(exit_.key, ExitState.GOOD) is not exit_.state:
                self._states[exit_.key] = exit_.state
                until = None if exit_.until is None else round(exit_.until)
                label = self._labels.get(exit_.key, exit_.key)
                self._log.info("exit changed", exit=label, state=exit_.state.value, seconds=until, why=exit_.why)
        for block in changes.blocks:
            place = block.key, block.host
            if block.seconds and place not in self._blocked:
                self._blocked.add(place)
                label = self._labels.get(block.key, block.key)
                self._log.info("exit blocked by a host", exit=label, host=block.host, seconds=round(block.seconds))
            elif not block.seconds:
                self._blocked.discard(place)
        for view in await self._ledger.exits.pools():
            shown = f"{view.good} of {view.exits} good, {view.banned} banned, {view.resting} resting"
            if view.pool == self._pool and shown != self._shown:
                self._shown = shown
                self._log.info(
                    "pool of exits", good=view.good, exits=view.exits, banned=view.banned, text=pool_text(view)
                )


async def check_proxies(
    settings: Settings,
    *,
    pool: str | None = None,
    url: str | None = None,
    on_check: Callable[[ExitCheck], object] = type,
    on_problem: Callable[[str], object] = type,
) -> list[ExitCheck]:
    """Check every proxy of the configured pools from this machine, a few at once. `on_problem`: lines that are none.

    With `url` a page is fetched through each. Without, only the proxy itself is asked whether it accepts the connection
    and the credentials: an HTTP proxy by a request for a site that does not exist. Nothing is reported to the ledger.
    """
    pools = [config for config in settings.egress.values() if config.kind == "proxies"]
    if pool is not None:
        pools = [config for config in pools if config.name == pool]
        if not pools:
            raise NotFound(
                f"shoal.toml has no pool of proxies {pool!r}.",
                remedy=f"Add [egress.{pool}], or check the name.",
            )
    checks: list[ExitCheck] = []
    for config in pools:
        for problem in await list_problems(config):
            on_problem(problem)
        checks += await _check_pool(settings, config, url, on_check)
    return checks


async def list_problems(config: EgressConfig) -> list[str]:
    """The lines of a list that are no proxies, by their numbers and without what they say. Raises ListFailed."""
    from shoal.egress.lists import ListSource

    source = ListSource(config)
    bad = (await source.read()).bad
    found = [f"line {each.line} of {source.where} is no proxy: {each.why}" for each in bad[:MAX_BAD_LINES]]
    if len(bad) > MAX_BAD_LINES:
        found.append(f"and {pluralize(len(bad) - MAX_BAD_LINES, 'more line')}")
    return found


async def check_exit(settings: Settings, view: ExitView, *, url: str | None = None) -> ExitCheck:
    """Check one proxy of a configured pool from this machine, as `check_proxies` does.

    Raises NotFound when the configuration here does not have it, UsageError for what is no proxy.
    """
    config = settings.egress.get(view.pool)
    if view.kind != "proxies":
        raise UsageError(f"{view.label} is one of {view.kind}.", remedy="Only proxies can be tested from here.")
    if config is None or config.kind != "proxies":
        raise NotFound(
            f"The configuration of this machine has no pool of proxies {view.pool!r}.",
            remedy=f"Add [egress.{view.pool}] here, or test it on a machine that has it.",
        )
    checks = await _check_pool(settings, config, url, lambda _: None, key=view.key)
    if not checks:
        raise NotFound(
            f"The list of {view.pool} on this machine does not have {view.label}.",
            remedy="Test it on a machine whose workers use it.",
        )
    return checks[0]


async def _check_pool(
    settings: Settings,
    config: EgressConfig,
    url: str | None,
    on_check: Callable[[ExitCheck], object],
    *,
    key: str | None = None,
) -> list[ExitCheck]:
    from shoal.egress.lists import ListSource
    from shoal.wiring import build_fetcher

    limit = asyncio.Semaphore(CHECKS_AT_ONCE)
    fetcher = build_fetcher(settings)

    async def check(exit_: Exit) -> ExitCheck:
        async with limit:
            began = time.monotonic()
            ok, text = await _try_exit(exit_)
            found = ExitCheck(
                pool=config.name,
                exit=exit_.key,
                label=exit_.label,
                ok=ok,
                text=text,
                seconds=round(time.monotonic() - began, 3),
            )
        on_check(found)
        return found

    async def _try_exit(exit_: Exit) -> tuple[bool, str]:
        from shoal.fetch.proxy import check_socks

        assert exit_.proxy is not None
        try:
            async with asyncio.timeout(CHECK_SECONDS):
                if url is None and exit_.proxy.is_socks:
                    await check_socks(exit_.proxy, CHECK_SECONDS)
                    return True, "accepts the connection"
                page = await fetcher.fetch(Request(url=url or NO_SITE), identity=_OneExit(exit_))
        except TimeoutError:
            return False, f"no answer within {CHECK_SECONDS:g} s"
        except ExitFailed as failed:
            return False, failed.message
        except AttemptEnded as ended:
            return (False, ended.message) if url is not None else (True, "accepts the connection")
        return page.status < 400, f"the site answered {page.status}"

    try:
        exits = [exit_ for exit_ in (await ListSource(config).read()).exits if key in (None, exit_.key)]
        return list(await asyncio.gather(*(check(exit_) for exit_ in exits)))
    finally:
        await fetcher.close()


async def refused_tokens(ledger: Ledger) -> frozenset[str]:
    """The keys of the tokens that are banned because the site answered 401."""
    banned = list_exits(ledger, ("tokens",), state="banned")
    return frozenset([view.key async for view in banned if BAD_TOKEN in view.why])


async def check_egress(
    settings: Settings,
    pools: Collection[str] | None = None,
    *,
    workers: int = 0,
    browser: bool = False,
    refused: Collection[str] = (),
    on_notice: Callable[[str], None] = lambda _: None,
) -> list[Check]:
    """Check the configured pools, each with its remedy, and with `browser` the browser.

    `pools`: only those of these names. `workers`: how many will share them; fewer proxies than workers is a warning.
    `refused`: the keys of tokens that the site has refused. `on_notice` gets a sentence before a check that may take
    minutes.
    """
    checks: list[Check] = []
    for config in settings.egress.values():
        if pools is not None and config.name not in pools:
            continue
        match config.kind:
            case "proxies":
                checks += await _proxies_checks(settings, config, workers)
            case "tokens":
                checks += _tokens_checks(config, workers, refused)
            case "tor":
                checks.append(await _tor_check(settings, config))
        if config.address_url is not None and checks[-1].ok:
            if config.kind == "tor" and config.socks is None:
                on_notice(
                    f"egress.{config.name}: starting tor, to see which address sites see; it may take two minutes"
                )
            checks.append(await _address_check(settings, config, config.address_url))
    if browser:
        checks.append(await _browser_check(settings))
    return checks


async def _proxies_checks(settings: Settings, config: EgressConfig, workers: int) -> list[Check]:
    from shoal.egress.lists import ListFailed, others_can_read

    name = f"egress.{config.name}"
    try:
        found = await _check_pool(settings, config, None, lambda _: None)
    except ListFailed as error:
        return [Check(name=name, ok=False, text=error.message.removeprefix(f"{name}: "), fix=error.remedy)]
    failed = [check for check in found if not check.ok]
    text = f"{len(found) - len(failed)} of {count_text('proxies', len(found))} accept connections from here"
    fix = ""
    if failed:
        text += f"; {failed[0].label}: {failed[0].text}"
        fix = f"See all with `shoal proxies test --pool {config.name}`; remove dead ones from the list."
    # Workers go on with the others, and ban these.
    checks = [Check(name=name, ok=len(failed) < len(found), warning=0 < len(failed) < len(found), text=text, fix=fix)]
    if 0 < len(found) < workers:
        checks.append(_too_few(config, len(found), workers))
    if bad := await list_problems(config):
        checks.append(Check(name=name, ok=True, warning=True, text="; ".join(bad), fix=ListFailed.remedy))
    if (problem := others_can_read(config)) is not None:
        what, _, remedy = problem.partition(": ")
        checks.append(Check(name=name, ok=True, warning=True, text=what, fix=f"Run `{remedy}`."))
    return checks


def _tokens_checks(config: EgressConfig, workers: int, refused: Collection[str]) -> list[Check]:
    name, count = f"egress.{config.name}", len(set(config.given.values()))
    if not count:
        variables = " or ".join(config.missing)
        return [
            Check(
                name=name,
                ok=False,
                text=f"no token: no variable {variables} is set",
                fix=f"Set {variables} in the environment or in .env.",
            )
        ]
    checks = [Check(name=name, ok=True, text=f"{count_text('tokens', count)}: {', '.join(config.given)}")]
    if bad := [label for label, value in config.given.items() if exit_key("token", value.strip()) in refused]:
        are_all = len(bad) == len(config.given)
        text = f"{', '.join(bad)} {'is' if len(bad) == 1 else 'are'} refused by the site ({BAD_TOKEN})"
        fix = f"Correct {' and '.join(bad)} in .env or the environment, and start the workers again."
        checks.append(Check(name=name, ok=not are_all, warning=not are_all, text=text, fix=fix))
    if config.share != "shared" and count < workers:
        checks.append(_too_few(config, count, workers))
    return checks


def _too_few(config: EgressConfig, exits: int, workers: int) -> Check:
    what = count_text(config.kind, exits)
    return Check(
        name=f"egress.{config.name}",
        ok=True,
        warning=True,
        text=f"{what} for {workers} workers: some workers share one",
        fix="Add more, or start fewer workers.",
    )


async def _tor_check(settings: Settings, config: EgressConfig) -> Check:
    from shoal.egress.tor_process import bootstrap_problem, find_tor, socks_problem

    name = f"egress.{config.name}"
    if config.socks is None:
        try:
            return Check(name=name, ok=True, text=f"{find_tor(settings.tor)} will be started by each worker")
        except UsageError as error:
            return Check(name=name, ok=False, text=error.message, fix=error.remedy)
    host, _, port = config.socks.rpartition(":")
    if (problem := await socks_problem(host.strip("[]"), int(port))) is not None:
        return Check(
            name=name, ok=False, text=f"tor at {config.socks}: {problem}", fix="Start tor there, or correct `socks`."
        )
    if config.control is not None:
        host, _, port = config.control.rpartition(":")
        if (phase := await bootstrap_problem(host.strip("[]"), int(port))) is not None:
            text = f"tor at {config.socks} {phase}"
            return Check(name=name, ok=True, warning=True, text=text, fix="Workers wait until it has ended.")
    return Check(name=name, ok=True, text=f"tor answers at {config.socks}")


async def _address_check(settings: Settings, config: EgressConfig, url: str) -> Check:
    """Whether sites see another address through the pool than that of this machine: `url` answers with it."""
    from shoal.wiring import build_fetcher

    name, fetcher = f"egress.{config.name}.address", build_fetcher(settings)
    try:
        direct, unreached = await _address_seen(fetcher, url, None)
        seen = await _exit_addresses(settings, config, fetcher, url)
    finally:
        await fetcher.close()
    failed = [(label, why) for label, address, why in seen if address is None]
    same = [label for label, address, _ in seen if address is not None and address == direct]
    if same:
        text = f"{same[0]} goes out with the address of this machine ({direct})"
        return Check(name=name, ok=False, text=text, fix="Nothing is hidden by it: remove it, or correct its settings.")
    if len(failed) == len(seen):
        label, why = failed[0] if failed else (config.name, "there is no exit")
        return Check(name=name, ok=False, text=f"{label}: {why}", fix=f"Check that {url} can be reached through it.")
    found = sorted({address for _, address, _ in seen if address is not None})
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    text = f"sites see {found[0]}{more}"
    if direct is None:
        return Check(
            name=name,
            ok=True,
            warning=True,
            text=f"{text}; that this machine has another is not proven, asked directly: {unreached}",
            fix="Compare the two yourself, or set address_url to a page that this machine also reaches.",
        )
    return Check(name=name, ok=True, warning=bool(failed), text=f"{text}; this machine is {direct}")


async def _exit_addresses(
    settings: Settings, config: EgressConfig, fetcher: Fetcher, url: str
) -> list[tuple[str, str | None, str]]:
    """The label of each proxy, or of one circuit, with the address that the page saw, or else why there is none."""
    from shoal.observe.logs import open_logs
    from shoal.wiring import build_pool

    if config.kind == "proxies":
        from shoal.egress.lists import ListSource

        limit = asyncio.Semaphore(CHECKS_AT_ONCE)

        async def ask(exit_: Exit) -> tuple[str, str | None, str]:
            async with limit:
                return exit_.label, *await _address_seen(fetcher, url, _OneExit(exit_))

        return list(await asyncio.gather(*(ask(exit_) for exit_ in (await ListSource(config).read()).exits)))
    log = open_logs(format="console", level="error", file=None, stream=None).log
    pool = build_pool(settings, config.name, "", log=log, alone=True)
    await pool.start()
    try:
        identity = pool.choose(urlsplit(url).netloc)
        return [("tor", *await _address_seen(fetcher, url, identity))]
    except AttemptEnded as ended:
        return [("tor", None, ended.message)]
    finally:
        await pool.close()


async def _address_seen(fetcher: Fetcher, url: str, identity: Any) -> tuple[str | None, str]:
    """The address in the answer of the page, or None and why there is none."""
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            page = await fetcher.fetch(Request(url=url), identity=identity)
    except TimeoutError:
        return None, f"no answer within {CHECK_SECONDS:g} s"
    except AttemptEnded as ended:
        return None, ended.message
    if page.status >= 400:
        return None, f"{url} answered {page.status}"
    for word in re.findall(r"[0-9A-Fa-f.:]+", page.body.decode(errors="replace")[:MAX_ADDRESS_PAGE]):
        with suppress(ValueError):
            return str(ipaddress.ip_address(word)), ""
    return None, f"{url} answered without an address"


async def _browser_check(settings: Settings) -> Check:
    from shoal.fetch.chromium import find_browser

    try:
        found = await find_browser(settings.chromium)
    except UsageError as error:
        return Check(name="browser", ok=False, text=error.message, fix=error.remedy)
    return Check(name="browser", ok=True, text=found)


class _OneExit:
    """An identity that is one exit, without health."""

    def __init__(self, exit_: Exit) -> None:
        self.key = exit_.key
        self.proxy = exit_.proxy

    async def before_request(self, url: str, hop: int) -> dict[str, str]:
        return {}

    def on_response(self, url: str, status: int, headers: object) -> None:
        """Nothing is kept."""
