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
from shoal.service.begin import pause_abandoned_runs
from shoal.wiring import ledger_context


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
