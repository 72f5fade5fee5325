"""Who waits for whom on PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest

from shoal.ledger.schema import SqlView
from shoal.model.lane import LanePolicy, StartRequest
from shoal.model.worker import WorkerState
from shoal.testing.harness import LedgerHarness, done
from tests.support.ledgers import postgres_harness


@pytest.fixture
async def harness(postgres_url: str) -> AsyncIterator[LedgerHarness]:
    async with postgres_harness(postgres_url) as harness:
        yield harness


async def test_a_claimer_does_not_wait_for_rows_that_another_holds(
    harness: LedgerHarness, person: asyncpg.Connection
) -> None:  # S0.2
    run = await harness.run()
    await harness.put(run, *"abcdef")
    worker = await harness.worker()
    async with person.transaction():
        held = await person.fetch("select item from shoal.ready order by item limit 3 for update")
        assert len(held) == 3
        claimed = await asyncio.wait_for(harness.claim_keys(worker), 5)
    assert claimed == ["d", "e", "f"]


async def test_a_claimer_does_not_wait_for_a_lane(harness: LedgerHarness, person: asyncpg.Connection) -> None:
    run = await harness.run()
    await harness.put(run, "a", "b", lane="host")
    worker = await harness.worker()
    async with person.transaction():
        await person.fetch("select id from shoal.lane for update")
        assert await asyncio.wait_for(harness.claim_keys(worker), 5) == ["a"]


async def test_a_claimer_does_not_wait_for_a_lane_with_a_delay(
    harness: LedgerHarness, person: asyncpg.Connection
) -> None:
    """The transaction that locks the lane may reserve a start: the claimer reserves its own later, with the delay."""
    run = await harness.run(lane=LanePolicy(limit=2, delay_min=10, delay_max=10))
    await harness.put(run, "a", "b", lane="host")
    worker = await harness.worker()
    async with person.transaction():
        await person.fetch("select * from shoal.reserve(0, 'host', 0, '{}', '{}', 1, null, 0, 0)")
        (a,) = await asyncio.wait_for(harness.claim(worker), 5)
        asked = asyncio.create_task(harness.ledger.lanes.reserve(worker, "host", StartRequest(leases=(a.lease,))))
        while not (asked.done() or await person.fetchval("select count(*) from pg_locks where not granted")):
            await person.execute("select pg_sleep(0.01)")
    (wait,) = (await asyncio.wait_for(asked, 5)).waits
    assert 5 < wait <= 10
    await harness.check()


async def test_views_of_a_scraper_and_runs_do_not_wait_for_each_other(
    harness: LedgerHarness, person: asyncpg.Connection
) -> None:
    """Replacing a view waits for a long select on it. The first run has the number 1."""
    run = await harness.run()
    await harness.put(run, "a", "b")
    async with person.transaction():
        await person.execute("select shoal.lock_run($1)", run.no)
        views = [SqlView("cheap", "select 1 as one")]
        assert await asyncio.wait_for(harness.ledger.schema.put_views(views), 30)
    async with person.transaction():
        await person.fetch("select * from cheap")
        views = [SqlView("cheap", "select 2 as two")]
        replacing = asyncio.create_task(harness.ledger.schema.put_views(views))
        while not await person.fetchval("select count(*) from pg_locks where not granted"):
            await person.execute("select pg_sleep(0.01)")
        assert await asyncio.wait_for(harness.claim_keys(await harness.worker()), 30) == ["a", "b"]
        assert not replacing.done()
    assert await asyncio.wait_for(replacing, 30)


async def test_no_transaction_is_open_while_a_worker_works(
    harness: LedgerHarness, person: asyncpg.Connection
) -> None:  # S4.11
    run = await harness.run()
    await harness.put(run, *"abc", lane="host")
    worker = await harness.worker()
    held = await harness.claim(worker)
    busy = await person.fetchval(
        "select count(*) from pg_stat_activity where datname = current_database() and state like '%in transaction%'"
    )
    locks = await person.fetchval(
        "select count(*) from pg_locks l join pg_database d on d.oid = l.database "
        "where d.datname = current_database() and l.pid <> pg_backend_pid()"
    )
    assert (busy, locks) == (0, 0)
    assert (await harness.commit(worker, *(done(item) for item in held))).committed == 1


async def test_a_snapshot_left_open_does_not_stop_the_work(harness: LedgerHarness, person: asyncpg.Connection) -> None:
    """Somebody's report runs for hours: claims and commits go on, and the report sees its own moment."""
    run = await harness.run()
    await harness.put(run, *(f"k{n}" for n in range(200)))
    worker = await harness.worker()
    async with person.transaction(isolation="repeatable_read"):
        before = await person.fetchval("select count(*) from shoal.ready")
        while claimed := await harness.claim(worker, 50):
            await harness.finish(worker, claimed)
        assert await person.fetchval("select count(*) from shoal.ready") == before == 200
    assert (await harness.ledger.reads.stats(run.id)).done == 200
    await harness.check()


async def test_due_items_do_not_wait_for_a_locked_lane_of_others(
    harness: LedgerHarness, person: asyncpg.Connection
) -> None:
    """Neither a claim nor the upkeep is held up; the item of that lane comes when it is free."""
    run = await harness.run()
    await harness.put(run, "held", lane="held", delay=5.0)
    await harness.put(run, "free", lane="free", delay=5.0)
    await harness.put(run, "plain", delay=5.0)
    worker = await harness.worker()
    await harness.advance_clock(6)
    async with person.transaction():
        await person.fetch("select id from shoal.lane where key = 'held' for update")
        assert await asyncio.wait_for(harness.claim_keys(worker), 5) == ["free", "plain"]
        assert (await asyncio.wait_for(harness.ledger.upkeep.run_once(), 20)).promoted == 0
    await harness.ledger.upkeep.run_once()
    assert await harness.claim_keys(worker) == ["held"]
    await harness.check()


async def test_a_heartbeat_does_not_wait_for_a_claim(harness: LedgerHarness, person: asyncpg.Connection) -> None:
    """A claim that waits for a lock keeps its worker alive, and stopping that worker waits for the claim."""
    run = await harness.run()
    await harness.put(run, "a")
    worker = await harness.worker()
    async with person.transaction():
        await person.execute("lock table shoal.lease in share mode")
        claiming = asyncio.create_task(harness.claim(worker))
        while not await person.fetchval("select count(*) from pg_locks where not granted"):
            await person.execute("select pg_sleep(0.01)")
        orders = await asyncio.wait_for(harness.ledger.workers.heartbeat(worker), 5)
        assert orders.state is WorkerState.LIVE
        other = await harness.open_again()
        stopping = asyncio.create_task(other.workers.stop(worker))
        await asyncio.sleep(0.1)
        assert not stopping.done()
    assert len(await claiming) == 1
    assert await stopping == 1
    assert await harness.state(run, "a") == "ready"
    await harness.check()
