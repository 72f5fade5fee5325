"""Which run a process works on, and what becomes of the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import shoal
from shoal import Page, Scraper
from shoal.config import Settings
from shoal.errors import InvalidScraper, UsageError
from shoal.model.run import RunState
from shoal.service.begin import RunChoice, open_run, pause_abandoned_runs, plan_run
from shoal.service.events import CheckFinished, Event, Host, RunPaused
from shoal.service.pool import PoolRequest, prepare_pool
from shoal.service.run import RunRequest, run_scraper
from shoal.wiring import ledger_context


@pytest.fixture(params=["sqlite", "postgres"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SHOAL_LEDGER", raising=False)
    return str(request.getfixturevalue("sqlite_path" if request.param == "sqlite" else "migrated_postgres"))


def answers(*given: bool) -> Callable[[str], bool]:
    rest: Iterator[bool] = iter(given)
    return lambda _: next(rest)


@pytest.mark.parametrize(
    ("abandoned", "state"),
    [((True, True), RunState.PAUSED), ((False,), RunState.ACTIVE), ((True, False), RunState.ACTIVE)],
    ids=["nobody has it", "a process has it", "a process takes it meanwhile"],
)
async def test_a_run_that_nobody_serves_is_paused(
    sqlite_path: Path, abandoned: tuple[bool, ...], state: RunState
) -> None:
    scraper = Scraper("shop")

    @scraper.stage
    async def product(page: Page) -> None: ...

    async with ledger_context(Settings(ledger=str(sqlite_path))) as ledger:
        run = await ledger.runs.create(scraper.run_spec())
        paused = await pause_abandoned_runs(ledger, "another", answers(*abandoned), by="test")
        assert (await ledger.runs.get(run.id)).state is state
        assert [each.id for each in paused] == ([run.id] if state is RunState.PAUSED else [])


@pytest.mark.parametrize("failing", [False, True], ids=["gives nothing", "fails"])
async def test_a_run_without_items_leaves_nothing_behind(sqlite_path: Path, failing: bool) -> None:
    """Its idempotency key is free, so the same call works once the start has items."""
    scraper = Scraper("shop", start_remedy="Set PLACES.")
    places: list[str] = []

    @scraper.stage
    async def product(page: Page) -> None: ...

    def start_items() -> Iterator[str]:
        if failing and not places:
            raise OSError("no list")
        yield from places

    scraper.start(start_items)
    async with shoal.connect(str(sqlite_path)) as fleet:
        with pytest.raises(InvalidScraper if failing else UsageError, match="no list" if failing else "no items"):
            await fleet.enqueue(scraper, idempotency_key="first")
        assert (await fleet.runs()).rows == ()
        places.append("http://127.0.0.1:1/a")
        assert (await fleet.enqueue(scraper, idempotency_key="first")).enqueued == 1


async def test_a_list_is_something_to_start_with(sqlite_path: Path) -> None:
    scraper = Scraper("shop", start_remedy="Set PLACES.")

    @scraper.stage
    async def product(page: Page) -> None: ...

    scraper.start([])
    async with shoal.connect(str(sqlite_path)) as fleet:
        assert (await fleet.enqueue(scraper, ["http://127.0.0.1:1/b"])).enqueued == 1


class Shop:
    """A scraper whose start items are those of a file, which may be wrong."""

    def __init__(self, ledger: str) -> None:
        self.settings = Settings(ledger=ledger)
        self.events: list[Event] = []
        self.urls: list[str] = ["http://127.0.0.1:1/a"]
        self.hook_fails = False
        self.scraper = scraper = Scraper("shop", start_remedy="Set PLACES.")

        @scraper.stage(retries=0)
        async def product(page: Page) -> None: ...

        @scraper.on_start
        def check() -> None:
            if self.hook_fails:
                raise RuntimeError("not today")

        def start_items() -> Iterator[str]:
            for url in self.urls:
                if url == "broken":
                    raise UsageError("the file is broken")
                yield url

        scraper.start(start_items)

    def host(self) -> Host:
        return Host(on_event=self.events.append, handles_signals=False)

    async def begin(self, how: str, tmp_path: Path) -> None:
        """A new run, by each way there is to begin one."""
        if how == "enqueue":
            async with shoal.connect(self.settings.ledger, on_event=self.events.append) as fleet:
                await fleet.enqueue(self.scraper, fresh=True)
        elif how == "run":
            await run_scraper(self.scraper, self.settings, RunRequest(choice=RunChoice.FRESH), self.host())
        else:
            pool = PoolRequest(target="shop.py", logs=tmp_path / "logs", choice=RunChoice.FRESH, workers=1)
            async with prepare_pool(self.scraper, self.settings, pool, self.host()):
                pass

    @property
    def paused(self) -> list[str]:
        return [event.run_id for event in self.events if isinstance(event, RunPaused)]


@pytest.mark.parametrize("wrong", ["its source fails", "its source fails at the end", "nothing is valid", "its hook"])
@pytest.mark.parametrize("how", ["enqueue", "run", "pool"])
async def test_a_refused_new_run_changes_nothing(ledger: str, tmp_path: Path, how: str, wrong: str) -> None:
    """The run that works goes on, was never paused, and no other one is left; the same call does it once it can."""
    shop = Shop(ledger)
    async with shoal.connect(ledger) as fleet:
        working = (await fleet.enqueue(shop.scraper)).run_id
        good, shop.hook_fails = shop.urls, wrong == "its hook"
        shop.urls = {
            "its source fails": ["broken"],
            "its source fails at the end": [*good, "broken"],
            "nothing is valid": ["nonsense", "more nonsense"],
        }.get(wrong, good)
        with pytest.raises(UsageError):
            await shop.begin(how, tmp_path)
        (only,) = (await fleet.runs()).rows
        assert (only.run.id, only.run.state) == (working, RunState.ACTIVE)
        assert shop.paused == []
        async with ledger_context(shop.settings) as opened:
            assert await opened.reads.last_pause(only.run) is None, "not even for a moment"
        shop.urls, shop.hook_fails = good, False
        await shop.begin(how, tmp_path)
        rows = {summary.run.id: summary.run for summary in (await fleet.runs()).rows}
        assert len(rows) == 2
        assert rows[working].state is RunState.PAUSED
        assert shop.paused == [working]


async def test_a_pool_that_is_refused_after_its_items_were_stored_changes_nothing(ledger: str, tmp_path: Path) -> None:
    shop = Shop(ledger)
    async with shoal.connect(ledger) as fleet:
        working = (await fleet.enqueue(shop.scraper)).run_id
        request = PoolRequest(target="shop.py", logs=tmp_path / "logs", choice=RunChoice.FRESH, workers=1, only=True)
        with pytest.raises(UsageError, match="no partitions"):
            async with prepare_pool(shop.scraper, shop.settings, request, shop.host()):
                pass
        assert [(row.run.id, row.run.state) for row in (await fleet.runs()).rows] == [(working, RunState.ACTIVE)]


@pytest.mark.parametrize("again", [RunChoice.AUTO, RunChoice.FRESH])
async def test_a_replacement_that_was_killed_before_it_had_items_is_made_up_for(ledger: str, again: RunChoice) -> None:
    """The run that works goes on until the next call has items, and is paused then."""
    shop = Shop(ledger)
    async with shoal.connect(ledger, on_event=shop.events.append) as fleet:
        working = (await fleet.enqueue(shop.scraper)).run_id
        async with ledger_context(shop.settings) as opened:
            plan = await plan_run(opened, shop.scraper, RunChoice.FRESH)
            killed = await open_run(opened, shop.scraper, plan, shop.scraper.run_spec(), by="test")
        assert (await fleet.run(working)).run.state is RunState.ACTIVE
        newest = (await fleet.enqueue(shop.scraper, fresh=again is RunChoice.FRESH)).run_id
        replaced = {working} if newest == killed.id else {working, killed.id}
        assert (newest == killed.id) is (again is RunChoice.AUTO)
        assert set(shop.paused) == replaced
        for run in replaced:
            assert (await fleet.run(run)).run.state is RunState.PAUSED
        # What an operator resumes later stays so.
        await fleet.resume(working)
        await fleet.enqueue(shop.scraper)
        assert (await fleet.run(working)).run.state is RunState.ACTIVE


async def test_a_refused_call_leaves_a_paused_run_paused(ledger: str) -> None:
    shop = Shop(ledger)
    async with shoal.connect(ledger) as fleet:
        run = (await fleet.enqueue(shop.scraper, keep_open=True)).run_id
        await fleet.pause(run)
        shop.urls = ["broken"]
        with pytest.raises(UsageError, match="broken"):
            await fleet.enqueue(shop.scraper)
        assert (await fleet.run(run)).run.state is RunState.PAUSED


async def test_an_empty_list_is_refused(ledger: str, tmp_path: Path) -> None:
    scraper = Scraper("india")

    @scraper.stage
    async def product(page: Page) -> None: ...

    (tmp_path / "empty.txt").write_text("# none yet\n")
    (tmp_path / "bad.txt").write_text("not a url\n")
    async with shoal.connect(ledger) as fleet:
        with pytest.raises(UsageError, match=r"empty\.txt has no URLs\."):
            await fleet.enqueue(scraper, tmp_path / "empty.txt")
        with pytest.raises(UsageError, match=r"Correct .*bad\.txt; nothing was stored"):
            await fleet.enqueue(scraper, tmp_path / "bad.txt")
        assert (await fleet.runs()).rows == ()
        run = (await fleet.enqueue(scraper, tmp_path / "empty.txt", keep_open=True)).run_id
        assert (await fleet.run(run)).run.state is RunState.ACTIVE, "more will follow"


async def test_a_pool_says_why_it_has_fewer_workers(ledger: str, tmp_path: Path) -> None:
    shop = Shop(ledger)
    shop.settings = Settings(ledger=ledger, worker_limit=1)
    pool = PoolRequest(target="shop.py", logs=tmp_path / "logs", workers=3)
    async with prepare_pool(shop.scraper, shop.settings, pool, shop.host()) as prepared:
        assert len(prepared.plan.assignment) == 1
    texts = {event.check.name: event.check.text for event in shop.events if isinstance(event, CheckFinished)}
    assert texts["partitions"] == "0 partitions, 1 worker (3 wanted, worker_limit of shop is 1)"
