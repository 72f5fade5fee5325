"""What was interrupted between two transactions is taken up by upkeep."""

from __future__ import annotations

import asyncio
import sqlite3

import pytest

from shoal.ledger import upkeep
from shoal.ledger.postgres import upkeep as postgres_upkeep
from shoal.ledger.postgres.ledger import PostgresLedger
from shoal.ledger.sqlite import upkeep as sqlite_upkeep
from shoal.ledger.sqlite.database import STALL_SECONDS
from shoal.ledger.sqlite.ledger import SqliteLedger
from shoal.ledger.sqlite.runs import cancel_open_items
from shoal.model.views import ItemFilter
from shoal.testing.harness import LedgerHarness, dead, done


@pytest.fixture
def harness(either_harness: LedgerHarness) -> LedgerHarness:
    return either_harness


async def set_state(harness: LedgerHarness, run_no: int, state: str) -> None:
    """The first of two steps; the caller dies before the second."""
    assert isinstance(harness.ledger, SqliteLedger | PostgresLedger)
    table = "run" if isinstance(harness.ledger, SqliteLedger) else "shoal.run"
    await harness.ledger.db.fetch(f"update {table} set state = '{state}' where no = {run_no}")


async def test_an_interrupted_cancel_is_completed(harness: LedgerHarness) -> None:
    run = await harness.run()
    await harness.put(run, "a", "b", lane="host")
    worker = await harness.worker(lease_seconds=3600)
    held = await harness.claim(worker)
    await set_state(harness, run.no, "cancelled")
    await harness.advance_clock(61)
    await harness.ledger.upkeep.run_once()
    counts = await harness.ledger.reads.stats(run.id)
    assert (counts.cancelled, counts.remaining) == (2, 0)
    assert (await harness.finish(worker, held)).committed == 0
    await harness.check()


async def test_an_interrupted_removal_is_completed(harness: LedgerHarness) -> None:
    doomed, kept = await harness.run(), await harness.run()
    for run in (doomed, kept):
        await harness.put(run, "a", "b", "c")
    await harness.ledger.runs.cancel(doomed.id)
    await set_state(harness, doomed.no, "removed")
    await harness.check()
    await harness.advance_clock(61)
    await harness.ledger.upkeep.run_once()
    await harness.check()
    assert isinstance(harness.ledger, SqliteLedger | PostgresLedger)
    table = "item" if isinstance(harness.ledger, SqliteLedger) else "shoal.item"
    assert await harness.ledger.db.value(f"select count(*) from {table}") == 3
    assert [run.id for run in (await harness.ledger.runs.list()).rows] == [kept.id]


@pytest.mark.parametrize("place", ["postgres"], indirect=True)
async def test_an_interrupted_pause_is_completed(harness: LedgerHarness) -> None:
    """The paused run must not keep its place in a lane that another run waits for. (One transaction on SQLite.)"""
    first, second = await harness.run(), await harness.run()
    await harness.put(first, "a", lane="host")
    await harness.put(second, "b", lane="host")
    await set_state(harness, first.no, "paused")
    await harness.advance_clock(61)
    await harness.ledger.upkeep.run_once()
    worker = await harness.worker(lease_seconds=3600)
    assert await harness.claim_keys(worker) == ["b"]
    await harness.check()


async def test_a_late_cancel_step_does_not_change_a_resumed_run(harness: LedgerHarness) -> None:
    run = await harness.run()
    await harness.ledger.runs.cancel(run.id)
    await harness.ledger.runs.resume(run.id)
    await harness.put(run, "new")
    if isinstance(harness.ledger, SqliteLedger):
        ended, _ = await harness.ledger.db.write(lambda tx: cancel_open_items(tx, run.no, "late"))
    else:
        assert isinstance(harness.ledger, PostgresLedger)
        ended = await harness.ledger.db.value(
            "select ended from shoal.cancel_open_items($1, 'late', 100, null)", run.no
        )
    assert ended == 0
    assert await harness.state(run, "new") == "ready"


async def test_items_of_a_removed_run_cannot_be_retried(harness: LedgerHarness) -> None:
    doomed, kept = await harness.run(), await harness.run()
    await harness.put(doomed, "a", lane="host")
    await harness.put(kept, "b", lane="host")
    worker = await harness.worker(lease_seconds=3600)
    (a,) = await harness.claim(worker)
    await harness.commit(worker, dead(a))
    other = await harness.open_again()
    assert (await other.reads.stats(doomed.id)).dead == 1
    await set_state(harness, doomed.no, "removed")
    assert isinstance(other, SqliteLedger | PostgresLedger)
    assert await other.steering.retry(doomed.id, ItemFilter()) == 0
    await harness.check()


async def test_two_concurrent_purges_delete_everything(harness: LedgerHarness) -> None:
    doomed, _ = await harness.run(), await harness.run()
    await harness.put(doomed, *(f"k{n}" for n in range(10)))
    worker = await harness.worker(lease_seconds=3600)
    for item in await harness.claim(worker):
        await harness.commit(worker, done(item, *('{"n":1}' for _ in range(10))))
    await set_state(harness, doomed.no, "removed")

    async def purge() -> None:
        if isinstance(harness.ledger, PostgresLedger):
            place = None
            while place := await harness.ledger.db.value("select shoal.purge($1, 7, $2)", doomed.no, place):
                pass
        else:
            await harness.ledger.upkeep.run_once()

    await harness.advance_clock(61)
    await asyncio.gather(*(purge() for _ in range(4)))
    await harness.check()
    assert isinstance(harness.ledger, SqliteLedger | PostgresLedger)
    table = "result" if isinstance(harness.ledger, SqliteLedger) else "shoal.result"
    assert await harness.ledger.db.value(f"select count(*) from {table}") == 0


@pytest.mark.parametrize("place", ["postgres"], indirect=True)
async def test_a_clock_set_back_does_not_make_a_dead_worker_look_alive(harness: LedgerHarness) -> None:
    """The clock of a SQLite ledger does not follow the wall clock."""
    run = await harness.run()
    await harness.put(run, "a")
    dead_worker, live = await harness.worker(lease_seconds=30), await harness.worker(lease_seconds=86_400)
    await harness.claim(dead_worker)
    await harness.advance_clock(-3600)
    await harness.ledger.upkeep.run_once()
    await harness.advance_clock(31)
    upkeep_report = await harness.ledger.upkeep.run_once()
    assert upkeep_report.lost_workers == (dead_worker,)
    assert await harness.claim_keys(live) == ["a"]


async def test_the_lane_sweep_finds_untouched_lanes_in_steps(
    harness: LedgerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round that runs out of time leaves the rest to the next, of whatever process."""
    for module in (postgres_upkeep, sqlite_upkeep):
        monkeypatch.setattr(module, "SWEEP_BATCH", 2)
    run = await harness.run()
    for number in range(5):
        await harness.put(run, f"a{number}", f"b{number}", lane=f"host-{number}")
    worker = await harness.worker(lease_seconds=3600)
    assert len(await harness.claim(worker)) == 5
    assert isinstance(harness.ledger, SqliteLedger | PostgresLedger)
    table = "lane" if isinstance(harness.ledger, SqliteLedger) else "shoal.lane"
    await harness.ledger.upkeep.run_once()
    await harness.ledger.db.fetch(f"update {table} set max_active = 2")
    assert await harness.claim(worker) == []
    monkeypatch.setattr(upkeep, "ROUND_SECONDS", 0.0)
    await harness.advance_clock(6)
    found = []
    for ledger in (harness.ledger, await harness.open_again(), harness.ledger):
        # Another process continues when the task is due, the same one at once.
        await harness.advance_clock(6)
        await ledger.upkeep.run_once()
        found.append(len(await harness.claim(worker)))
    assert found == [2, 2, 1]
    await harness.check()


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
async def test_no_worker_is_lost_because_the_file_was_locked(harness: LedgerHarness) -> None:
    """While another process holds the write lock no heartbeat succeeds; when it is free, heartbeats come first."""
    run = await harness.run()
    await harness.put(run, "a")
    silent = await harness.worker(lease_seconds=30)
    await harness.claim(silent)
    await harness.advance_clock(31)
    assert isinstance(harness.ledger, SqliteLedger)
    person = sqlite3.connect(harness.ledger.db.path, isolation_level=None)
    person.execute("begin immediate")
    upkeep_task = asyncio.create_task(harness.ledger.upkeep.run_once())
    await asyncio.sleep(STALL_SECONDS + 0.2)
    person.execute("rollback")
    person.close()
    assert (await upkeep_task).lost_workers == ()
    await asyncio.sleep(STALL_SECONDS)
    await harness.advance_clock(2)
    assert (await harness.ledger.upkeep.run_once()).lost_workers == (silent,)
