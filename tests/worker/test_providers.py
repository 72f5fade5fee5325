"""Providers at work: set up by type, shared or for one attempt, torn down however the attempt or the worker ends."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from shoal import Http, Item, Log, Page, Permanent, Run, Scraper
from shoal.config import Settings
from shoal.define import providers as define_providers
from shoal.define.providers import Provider
from shoal.errors import InvalidScraper
from shoal.ledger.protocols import Ledger
from shoal.model.item import ItemState
from shoal.model.views import ItemView
from shoal.model.worker import Scope
from shoal.observe.logs import open_logs
from shoal.wiring import build_fetcher, build_worker, ledger_context
from shoal.worker import providers as providers_module
from shoal.worker.hooks import call_finish_hooks, call_start_hooks
from shoal.worker.state import StopReason, WorkerOptions, WorkSummary
from shoal.worker.worker import Worker
from tests.support.site import Site

LOG = open_logs(format="console", level="error", file=None, stream=None).log


@dataclass
class Api:
    base: str = "api"


class Database:
    def __init__(self, name: str = "") -> None:
        self.name = name


class Session:
    def __init__(self, database: Database, key: str) -> None:
        self.database = database
        self.key = key


class Shop:
    """A scraper with a journal of what its providers and handlers did, and a worker for it."""

    def __init__(self, ledger: Ledger, settings: Settings) -> None:
        self.ledger = ledger
        self.settings = settings
        self.scraper = Scraper("shop", settings=Api)
        self.scraper.configure(settings={}, stages={})
        self.journal: list[str] = []
        self.run_id = ""

    async def fill(self, count: int, **item: Any) -> Run:
        stage = self.scraper.check().first_stage
        run = await self.ledger.runs.create(self.scraper.run_spec())
        await self.ledger.intake.enqueue(run.id, [stage.item(key=str(n), **item) for n in range(count)])
        await self.ledger.runs.seal(run.id, by="test")
        self.run_id = run.id
        return run

    @asynccontextmanager
    async def working(self, **options: Any) -> AsyncIterator[tuple[Worker, "asyncio.Task[WorkSummary]"]]:
        fetcher = build_fetcher(self.settings)
        chosen = WorkerOptions(scope=Scope(scraper="shop"), **{"concurrency": 4, **options})
        worker = build_worker(self.scraper, self.settings, self.ledger, fetcher, chosen, log=LOG)
        task = asyncio.create_task(worker.work())
        try:
            async with asyncio.timeout(30):
                yield worker, task
                await task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await fetcher.close()

    async def work(self, **options: Any) -> WorkSummary:
        async with self.working(**options) as (_, task):
            pass
        return task.result()

    async def until(self, line: str) -> None:
        while line not in self.journal:  # noqa: ASYNC110 - handlers write it
            await asyncio.sleep(0.005)

    async def items(self) -> tuple[ItemView, ...]:
        return (await self.ledger.reads.items(self.run_id, limit=100)).rows


@pytest.fixture
async def shop(sqlite_path: Path) -> AsyncIterator[Shop]:
    settings = Settings(ledger=str(sqlite_path), robots=False)
    async with ledger_context(settings, migrate=True) as ledger:
        yield Shop(ledger, settings)


def give_database(shop: Shop) -> None:
    @shop.scraper.provide
    async def database(api: Api, log: Log) -> AsyncIterator[Database]:
        shop.journal.append("connect")
        yield Database(api.base)
        shop.journal.append("disconnect")


def give_session(shop: Shop) -> None:
    @shop.scraper.provide(scope="attempt")
    async def session(database: Database, item: Item) -> AsyncIterator[Session]:
        shop.journal.append(f"open {item.key}")
        yield Session(database, item.key)
        shop.journal.append(f"close {item.key}")


async def test_a_worker_sets_its_values_up_once_and_an_attempt_its_own(shop: Shop) -> None:
    give_database(shop)
    give_session(shop)
    seen: set[int] = set()

    @shop.scraper.stage(lane=None)
    async def handle(item: Item, session: Session, database: Database) -> AsyncIterator[dict[str, str]]:
        assert session.database is database
        assert (session.key, database.name) == (item.key, "api")
        seen.add(id(database))
        shop.journal.append(f"handle {item.key}")
        yield {"key": item.key}

    await shop.fill(8)
    assert (await shop.work()).done == 8
    assert len(seen) == 1
    assert (shop.journal[0], shop.journal[-1]) == ("connect", "disconnect")
    assert shop.journal.count("connect") == shop.journal.count("disconnect") == 1
    for key in map(str, range(8)):
        steps = [line.split()[0] for line in shop.journal if line.split()[-1] == key]
        assert steps == ["open", "handle", "close"]


async def test_values_are_torn_down_in_the_reverse_order(shop: Shop) -> None:
    @shop.scraper.provide
    def session(database: Database) -> Iterator[Session]:
        shop.journal.append("open")
        yield Session(database, "")
        shop.journal.append("close")

    give_database(shop)

    @shop.scraper.stage(lane=None)
    async def handle(session: Session) -> None: ...

    await shop.fill(2)
    assert (await shop.work()).done == 2
    assert shop.journal == ["connect", "open", "close", "disconnect"]


async def test_functions_that_block_run_in_threads(shop: Shop) -> None:
    threads: list[str] = []

    @shop.scraper.provide
    def database() -> Iterator[Database]:
        threads.append(threading.current_thread().name)
        yield Database()
        threads.append(threading.current_thread().name)

    @shop.scraper.provide(scope="attempt")
    def session(database: Database) -> Session:
        threads.append(threading.current_thread().name)
        return Session(database, "")

    @shop.scraper.stage(lane=None)
    def handle(session: Session) -> None:
        threads.append(threading.current_thread().name)

    await shop.fill(1)
    assert (await shop.work()).done == 1
    assert len(threads) == 4
    assert all(name.startswith("shoal-handler-") for name in threads)


async def test_a_session_may_ask_for_the_page_and_make_requests(shop: Shop) -> None:
    @shop.scraper.provide(scope="attempt")
    async def session(page: Page, http: Http) -> Session:
        answer = await http.get(page.join("/page/2"))
        return Session(Database(), f"{page.status} {answer.status}")

    @shop.scraper.stage
    async def handle(session: Session) -> dict[str, str]:
        return {"session": session.key}

    with Site(pages=3) as site:
        await shop.fill(1, target=f"{site.url}/page/1")
        assert (await shop.work()).done == 1
        assert [visit.path for visit in site.visits()] == ["/page/1", "/page/2"]


# Errors


async def test_a_set_up_that_fails_is_a_failed_attempt_and_is_repeated(shop: Shop) -> None:
    @shop.scraper.provide
    async def database() -> AsyncIterator[Database]:
        shop.journal.append("connect")
        if len(shop.journal) == 1:
            raise ConnectionError("refused")
        yield Database()
        shop.journal.append("disconnect")

    @shop.scraper.stage(lane=None, retries=3, backoff_factor=1.0, backoff_cap=0.01, backoff_jitter=0)
    async def handle(item: Item, database: Database) -> dict[str, str]:
        return {"key": item.key}

    run = await shop.fill(1)
    report = await shop.work()
    assert (report.done, report.retried) == (1, 1)
    assert shop.journal == ["connect", "connect", "disconnect"]
    (item,) = await shop.items()
    first, second = await shop.ledger.reads.attempts(run.id, item.id)
    assert first.error is not None
    assert first.error.startswith("the set-up of database() (test_providers.py:")
    assert "failed: ConnectionError: refused (test_providers.py:" in first.error
    assert (first.outcome, second.outcome) == ("transient", "done")


async def test_a_set_up_may_say_how_the_attempt_ends(shop: Shop) -> None:
    @shop.scraper.provide(scope="attempt")
    def session(item: Item) -> Session:
        raise Permanent(f"no account for {item.key}")

    @shop.scraper.stage(lane=None)
    async def handle(session: Session) -> None: ...

    await shop.fill(1)
    assert (await shop.work()).dead == 1
    (item,) = await shop.items()
    assert (item.state, item.error) == (ItemState.DEAD, "no account for 0")


async def test_a_set_up_that_always_fails_stops_the_worker(shop: Shop) -> None:
    @shop.scraper.provide
    async def database() -> Database:
        raise ConnectionError("refused")

    @shop.scraper.stage(lane=None, retries=0)
    async def handle(database: Database) -> None: ...

    await shop.fill(40)
    assert (await shop.work()).stop_reason is StopReason.BROKEN


async def test_a_tear_down_that_fails_is_logged_and_changes_nothing(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_database(shop)

    @shop.scraper.provide(scope="attempt")
    async def session(database: Database) -> AsyncIterator[Session]:
        yield Session(database, "")
        raise ValueError("cannot close")

    @shop.scraper.stage(lane=None)
    async def handle(session: Session) -> dict[str, int]:
        return {"n": 1}

    logged: list[str] = []
    monkeypatch.setattr(LOG, "error", lambda event, **fields: logged.append(f"{event}: {fields['error']}"))
    await shop.fill(1)
    assert (await shop.work()).done == 1
    (line,) = logged
    assert line.startswith("provider teardown failed: ValueError: cannot close (test_providers.py:")
    assert shop.journal == ["connect", "disconnect"]


# Tear-down happens


@pytest.mark.parametrize("end", ["error", "timeout", "stop", "drain"])
async def test_values_are_torn_down_however_the_attempt_ends(shop: Shop, end: str) -> None:
    give_database(shop)
    give_session(shop)

    @shop.scraper.stage(lane=None, retries=0, timeout=2.0 if end == "timeout" else 20.0)
    async def handle(session: Session) -> None:
        shop.journal.append("began")
        if end == "error":
            raise ValueError("no")
        await asyncio.sleep(0.3 if end == "drain" else 60)

    await shop.fill(1)
    async with shop.working() as (worker, task):
        await shop.until("began")
        if end == "drain":
            worker.drain()
        elif end == "stop":
            worker.stop_now()
    assert shop.journal == ["connect", "open 0", "began", "close 0", "disconnect"]
    assert (task.result().done, task.result().dead) == {"drain": (1, 0), "stop": (0, 0)}.get(end, (0, 1))


async def test_a_tear_down_that_hangs_keeps_nothing_waiting(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(providers_module, "TEAR_DOWN_SECONDS", 0.1)

    @shop.scraper.provide
    async def database() -> AsyncIterator[Database]:
        yield Database()
        await asyncio.sleep(60)

    @shop.scraper.stage(lane=None)
    async def handle(database: Database) -> None: ...

    await shop.fill(1)
    began = time.monotonic()
    assert (await shop.work()).done == 1
    assert time.monotonic() - began < 20


async def test_a_set_up_that_hangs_times_the_attempts_out_and_is_cancelled(shop: Shop) -> None:
    @shop.scraper.provide
    async def database() -> Database:
        shop.journal.append("connect")
        try:
            await asyncio.sleep(60)
        finally:
            shop.journal.append("cancelled")
        return Database()

    @shop.scraper.stage(lane=None, retries=0, timeout=0.2)
    async def handle(database: Database) -> None: ...

    await shop.fill(2)
    assert (await shop.work()).dead == 2
    assert {item.error for item in await shop.items()} == {"timed out after 0.2 s while its providers were set up"}
    assert shop.journal == ["connect", "cancelled"]


async def test_an_attempt_that_times_out_does_not_cancel_the_set_up_of_another(shop: Shop) -> None:
    ready = asyncio.Event()

    @shop.scraper.provide
    async def database() -> Database:
        shop.journal.append("connect")
        await ready.wait()
        return Database()

    @shop.scraper.stage(lane=None, retries=0, timeout=0.2)
    async def quick(database: Database) -> None: ...

    @shop.scraper.stage(lane=None, retries=0, timeout=20.0)
    async def slow(database: Database) -> None: ...

    run = await shop.ledger.runs.create(shop.scraper.check().run_spec())
    await shop.ledger.intake.enqueue(run.id, [quick.item(key="q"), slow.item(key="s")])
    await shop.ledger.runs.seal(run.id, by="test")
    async with shop.working() as (_, task):
        while (await shop.ledger.reads.stats(run.id)).dead == 0:  # noqa: ASYNC110 - the ledger is asked
            await asyncio.sleep(0.01)
        ready.set()
    assert (task.result().done, task.result().dead, shop.journal) == (1, 1, ["connect"])


async def test_a_blocking_set_up_that_ends_after_the_timeout_is_torn_down(shop: Shop) -> None:
    proceed = threading.Event()

    @shop.scraper.provide(scope="attempt")
    def session() -> Iterator[Session]:
        shop.journal.append("open")
        proceed.wait(10)
        yield Session(Database(), "")
        shop.journal.append("close")

    @shop.scraper.stage(lane=None, retries=0, timeout=2)
    async def handle(session: Session) -> None: ...

    await shop.fill(1)
    assert (await shop.work()).dead == 1
    proceed.set()
    async with asyncio.timeout(10):
        await shop.until("close")


# Hooks


async def test_a_hook_gets_values_of_its_own(shop: Shop) -> None:
    give_database(shop)

    @shop.scraper.stage(lane=None)
    async def handle(item: Item) -> None: ...

    @shop.scraper.on_start
    async def begin(run: Run, database: Database) -> None:
        shop.journal.append(f"begin with {database.name}")

    @shop.scraper.on_finish
    def end(database: Database) -> None:
        shop.journal.append("end")

    run = await shop.fill(1)
    await call_start_hooks(shop.scraper, shop.ledger, run, LOG)
    assert shop.journal == ["connect", "begin with api", "disconnect"]
    await shop.work()
    assert await call_finish_hooks(shop.scraper, shop.ledger, run.id, LOG)
    assert shop.journal[3:] == ["connect", "end", "disconnect"]


# Built-in providers with a set-up of their own


class Window:
    """A value that Shoal itself sets up for each attempt."""

    def __init__(self, key: str) -> None:
        self.key = key


def build_in_windows(monkeypatch: pytest.MonkeyPatch, journal: list[str], *, fails: Exception | None = None) -> None:
    @asynccontextmanager
    async def open_window(attempt: Any) -> AsyncIterator[Window]:
        await asyncio.sleep(0)
        if fails is not None:
            raise fails
        journal.append(f"open {attempt.item.key}")
        yield Window(attempt.item.key)
        journal.append(f"close {attempt.item.key}")

    window = Provider(f"{__name__}.Window", "Window", "client", open=open_window)
    monkeypatch.setattr(define_providers, "BUILT_IN_PROVIDERS", (*define_providers.BUILT_IN_PROVIDERS, window))


@pytest.mark.parametrize("end", ["done", "error", "timeout", "stop"])
async def test_a_built_in_value_is_set_up_and_torn_down_for_each_attempt(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    build_in_windows(monkeypatch, shop.journal)
    shop.scraper = Scraper("shop", settings=Api)
    shop.scraper.configure(settings={}, stages={})

    @shop.scraper.provide(scope="attempt")
    async def session(window: Window) -> Session:
        return Session(Database(), window.key)

    @shop.scraper.on_record
    async def note(record: dict[str, str], window: Window) -> None:
        shop.journal.append(f"hook {window.key}")

    @shop.scraper.stage(lane=None, retries=0, timeout=2.0 if end == "timeout" else 20.0)
    async def handle(item: Item, window: Window, session: Session) -> dict[str, str]:
        assert window.key == session.key == item.key
        shop.journal.append("began")
        if end == "error":
            raise ValueError("no")
        await asyncio.sleep(0 if end == "done" else 60)
        return {"key": item.key}

    await shop.fill(1)
    async with shop.working() as (worker, _):
        await shop.until("began")
        if end == "stop":
            worker.stop_now()
    assert shop.journal == ["open 0", "began", *(["hook 0"] if end == "done" else []), "close 0"]


async def test_a_built_in_set_up_may_say_how_the_attempt_ends(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    build_in_windows(monkeypatch, shop.journal, fails=Permanent("no window"))
    shop.scraper = Scraper("shop")

    @shop.scraper.stage(lane=None)
    async def handle(window: Window) -> None: ...

    await shop.fill(1)
    assert (await shop.work()).dead == 1
    (item,) = await shop.items()
    assert item.error == "no window"


def test_a_built_in_value_that_sends_requests_needs_async_code(monkeypatch: pytest.MonkeyPatch) -> None:
    build_in_windows(monkeypatch, [])
    shop = Scraper("shop")

    @shop.stage
    def handle(window: Window) -> None: ...

    with pytest.raises(InvalidScraper, match="parameter of type Window, which needs an `async def` function"):
        shop.check()
    del shop.stages["handle"]

    @shop.stage
    async def listing(page: Page) -> None: ...

    @listing.on_error
    async def give_up(window: Window) -> None: ...

    with pytest.raises(InvalidScraper, match="asks for Window, but an item that died sends no more requests"):
        shop.check()
