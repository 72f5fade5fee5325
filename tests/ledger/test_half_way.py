"""What was interrupted between two transactions is taken up by upkeep."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from shoal.ledger.postgres.ledger import PostgresLedger
from shoal.ledger.sqlite.ledger import SqliteLedger
from shoal.testing.lab import Lab
from tests.ledger.labs import postgres_lab, sqlite_lab


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, sqlite_path: Path) -> Path | str:
    return sqlite_path if request.param == "sqlite" else str(request.getfixturevalue("postgres_url"))


@pytest.fixture
async def lab(place: Path | str) -> AsyncIterator[Lab]:
    async with sqlite_lab(place) if isinstance(place, Path) else postgres_lab(place) as lab:
        yield lab


async def set_state(lab: Lab, run_no: int, state: str) -> None:
    """The first of an order's two steps; whoever gave it dies before the second."""
    assert isinstance(lab.ledger, SqliteLedger | PostgresLedger)
    table = "run" if isinstance(lab.ledger, SqliteLedger) else "shoal.run"
    await lab.ledger.db.fetch(f"update {table} set state = '{state}' where no = {run_no}")


async def test_a_cancel_cut_short(lab: Lab) -> None:
    run = await lab.run()
    await lab.put(run, "a", "b", lane="host")
    worker = await lab.worker(lease_seconds=3600)
    held = await lab.claim(worker)
    await set_state(lab, run.no, "cancelled")
    await lab.jump(61)
    await lab.ledger.upkeep.tend()
    counts = await lab.ledger.reads.stats(run.id)
    assert (counts.cancelled, counts.remaining) == (2, 0)
    assert (await lab.finish(worker, held)).committed == 0
    await lab.check()


async def test_a_removal_cut_short(lab: Lab) -> None:
    doomed, kept = await lab.run(), await lab.run()
    for run in (doomed, kept):
        await lab.put(run, "a", "b", "c")
    await lab.ledger.runs.cancel(doomed.id)
    await set_state(lab, doomed.no, "removed")
    await lab.check()
    await lab.jump(61)
    await lab.ledger.upkeep.tend()
    await lab.check()
    assert isinstance(lab.ledger, SqliteLedger | PostgresLedger)
    table = "item" if isinstance(lab.ledger, SqliteLedger) else "shoal.item"
    assert await lab.ledger.db.value(f"select count(*) from {table}") == 3
    assert [run.id for run in (await lab.ledger.runs.list()).rows] == [kept.id]
