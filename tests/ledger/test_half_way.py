"""What was interrupted between two transactions is taken up by upkeep."""

from __future__ import annotations

import asyncio
import sqlite3

import pytest

from shoal.ledger import upkeep
from shoal.ledger.postgres import upkeep as postgres_upkeep
from shoal.ledger.postgres.ledger import PostgresLedger
from shoal.ledger.sqlite import upkeep as sqlite_upkeep
from shoal.ledger.sqlite.bulk import cancel_open_items
from shoal.ledger.sqlite.database import STALL_SECONDS
from shoal.ledger.sqlite.ledger import SqliteLedger
from shoal.model.views import ItemFilter
from shoal.testing.lab import Lab, dead, done


@pytest.fixture
def lab(either_lab: Lab) -> Lab:
    return either_lab


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


@pytest.mark.parametrize("place", ["postgres"], indirect=True)
async def test_a_pause_cut_short(lab: Lab) -> None:
    """The paused run must not keep its place in a lane that another run waits for. (One transaction on SQLite.)"""
    first, second = await lab.run(), await lab.run()
    await lab.put(first, "a", lane="host")
    await lab.put(second, "b", lane="host")
    await set_state(lab, first.no, "paused")
    await lab.jump(61)
    await lab.ledger.upkeep.tend()
    worker = await lab.worker(lease_seconds=3600)
    assert await lab.claim_keys(worker) == ["b"]
    await lab.check()


async def test_a_late_clean_up_leaves_a_resumed_run_alone(lab: Lab) -> None:
    run = await lab.run()
    await lab.ledger.runs.cancel(run.id)
    await lab.ledger.runs.resume(run.id)
    await lab.put(run, "new")
    if isinstance(lab.ledger, SqliteLedger):
        ended, _ = await lab.ledger.db.write(lambda tx: cancel_open_items(tx, run.no, "late"))
    else:
        assert isinstance(lab.ledger, PostgresLedger)
        ended = await lab.ledger.db.value("select ended from shoal.cancel_open_items($1, 'late', 100, null)", run.no)
    assert ended == 0
    assert await lab.state(run, "new") == "ready"


async def test_a_removed_run_cannot_be_brought_back_item_by_item(lab: Lab) -> None:
    doomed, kept = await lab.run(), await lab.run()
    await lab.put(doomed, "a", lane="host")
    await lab.put(kept, "b", lane="host")
    worker = await lab.worker(lease_seconds=3600)
    (a,) = await lab.claim(worker)
    await lab.commit(worker, dead(a))
    other = await lab.another()
    assert (await other.reads.stats(doomed.id)).dead == 1
    await set_state(lab, doomed.no, "removed")
    assert isinstance(other, SqliteLedger | PostgresLedger)
    assert await other.steering.retry(doomed.id, ItemFilter()) == 0
    await lab.check()


async def test_two_purges_at_once_leave_nothing_behind(lab: Lab) -> None:
    doomed, _ = await lab.run(), await lab.run()
    await lab.put(doomed, *(f"k{n}" for n in range(10)))
    worker = await lab.worker(lease_seconds=3600)
    for item in await lab.claim(worker):
        await lab.commit(worker, done(item, *('{"n":1}' for _ in range(10))))
    await set_state(lab, doomed.no, "removed")

    async def purge() -> None:
        if isinstance(lab.ledger, PostgresLedger):
            place = None
            while place := await lab.ledger.db.value("select shoal.purge($1, 7, $2)", doomed.no, place):
                pass
        else:
            await lab.ledger.upkeep.tend()

    await lab.jump(61)
    await asyncio.gather(*(purge() for _ in range(4)))
    await lab.check()
    assert isinstance(lab.ledger, SqliteLedger | PostgresLedger)
    table = "result" if isinstance(lab.ledger, SqliteLedger) else "shoal.result"
    assert await lab.ledger.db.value(f"select count(*) from {table}") == 0


@pytest.mark.parametrize("place", ["postgres"], indirect=True)
async def test_a_clock_set_back_does_not_give_the_dead_a_longer_life(lab: Lab) -> None:
    """The clock of a SQLite ledger does not follow the wall clock."""
    run = await lab.run()
    await lab.put(run, "a")
    dead_worker, live = await lab.worker(lease_seconds=30), await lab.worker(lease_seconds=86_400)
    await lab.claim(dead_worker)
    await lab.jump(-3600)
    await lab.ledger.upkeep.tend()
    await lab.jump(31)
    tending = await lab.ledger.upkeep.tend()
    assert tending.lost_workers == (dead_worker,)
    assert await lab.claim_keys(live) == ["a"]


async def test_lanes_that_were_not_asked_are_found_step_by_step(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """A round that runs out of time leaves the rest to the next, of whatever process."""
    for module in (postgres_upkeep, sqlite_upkeep):
        monkeypatch.setattr(module, "SWEEP_AT_ONCE", 2)
    run = await lab.run()
    for number in range(5):
        await lab.put(run, f"a{number}", f"b{number}", lane=f"host-{number}")
    worker = await lab.worker(lease_seconds=3600)
    assert len(await lab.claim(worker)) == 5
    assert isinstance(lab.ledger, SqliteLedger | PostgresLedger)
    table = "lane" if isinstance(lab.ledger, SqliteLedger) else "shoal.lane"
    await lab.ledger.upkeep.tend()
    await lab.ledger.db.fetch(f"update {table} set max_active = 2")
    assert await lab.claim(worker) == []
    monkeypatch.setattr(upkeep, "ROUND_SECONDS", 0.0)
    await lab.jump(6)
    found = []
    for ledger in (lab.ledger, await lab.another(), lab.ledger):
        # Another process goes on at its turn, the same one at once.
        await lab.jump(6)
        await ledger.upkeep.tend()
        found.append(len(await lab.claim(worker)))
    assert found == [2, 2, 1]
    await lab.check()


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
async def test_nobody_is_lost_because_the_file_was_locked(lab: Lab) -> None:
    """While somebody holds the write lock no heartbeat gets through; when it is free, heartbeats come first."""
    run = await lab.run()
    await lab.put(run, "a")
    silent = await lab.worker(lease_seconds=30)
    await lab.claim(silent)
    await lab.jump(31)
    assert isinstance(lab.ledger, SqliteLedger)
    person = sqlite3.connect(lab.ledger.db.path, isolation_level=None)
    person.execute("begin immediate")
    tending = asyncio.create_task(lab.ledger.upkeep.tend())
    await asyncio.sleep(STALL_SECONDS + 0.2)
    person.execute("rollback")
    person.close()
    assert (await tending).lost_workers == ()
    await asyncio.sleep(STALL_SECONDS)
    await lab.jump(2)
    assert (await lab.ledger.upkeep.tend()).lost_workers == (silent,)
