"""Which run a process works on, and what becomes of the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shoal import Page, Scraper
from shoal.config import Settings
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
