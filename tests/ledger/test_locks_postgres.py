"""Who waits for whom on PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest

from shoal.model.lane import LanePolicy, StartWish
from shoal.model.worker import WorkerState
from shoal.testing.lab import Lab, done
from tests.support.ledgers import postgres_lab


@pytest.fixture
async def lab(postgres_url: str) -> AsyncIterator[Lab]:
    async with postgres_lab(postgres_url) as lab:
        yield lab


async def test_a_claimer_does_not_wait_for_rows_that_another_holds(
    lab: Lab, person: asyncpg.Connection
) -> None:  # S0.2
    run = await lab.run()
    await lab.put(run, *"abcdef")
    worker = await lab.worker()
    async with person.transaction():
        held = await person.fetch("select item from shoal.ready order by item limit 3 for update")
        assert len(held) == 3
        claimed = await asyncio.wait_for(lab.claim_keys(worker), 5)
    assert claimed == ["d", "e", "f"]


async def test_a_claimer_does_not_wait_for_a_lane(lab: Lab, person: asyncpg.Connection) -> None:
    run = await lab.run()
    await lab.put(run, "a", "b", lane="host")
    worker = await lab.worker()
    async with person.transaction():
        await person.fetch("select id from shoal.lane for update")
        assert await asyncio.wait_for(lab.claim_keys(worker), 5) == ["a"]


async def test_nor_for_a_lane_that_keeps_a_distance(lab: Lab, person: asyncpg.Connection) -> None:
    """Whoever holds the lane may be reserving a start: the claimer reserves its own afterwards, at a distance."""
    run = await lab.run(lane=LanePolicy(limit=2, delay_min=10, delay_max=10))
    await lab.put(run, "a", "b", lane="host")
    worker = await lab.worker()
    async with person.transaction():
        await person.fetch("select * from shoal.reserve(0, 'host', 0, '{}', '{}', 1, null, 0, 0)")
        (a,) = await asyncio.wait_for(lab.claim(worker), 5)
        asked = asyncio.create_task(lab.ledger.lanes.reserve(worker, "host", StartWish(leases=(a.lease,))))
        while not (asked.done() or await person.fetchval("select count(*) from pg_locks where not granted")):
            await person.execute("select pg_sleep(0.01)")
    (wait,) = (await asyncio.wait_for(asked, 5)).waits
    assert 9 < wait <= 10
    await lab.check()


async def test_no_transaction_is_open_while_a_worker_works(lab: Lab, person: asyncpg.Connection) -> None:  # S4.11
    run = await lab.run()
    await lab.put(run, *"abc", lane="host")
    worker = await lab.worker()
    held = await lab.claim(worker)
    busy = await person.fetchval(
        "select count(*) from pg_stat_activity where datname = current_database() and state like '%in transaction%'"
    )
    locks = await person.fetchval(
        "select count(*) from pg_locks l join pg_database d on d.oid = l.database "
        "where d.datname = current_database() and l.pid <> pg_backend_pid()"
    )
    assert (busy, locks) == (0, 0)
    assert (await lab.commit(worker, *(done(item) for item in held))).committed == 1


async def test_a_snapshot_left_open_does_not_stop_the_work(lab: Lab, person: asyncpg.Connection) -> None:
    """Somebody's report runs for hours: claims and commits go on, and the report sees its own moment."""
    run = await lab.run()
    await lab.put(run, *(f"k{n}" for n in range(200)))
    worker = await lab.worker()
    async with person.transaction(isolation="repeatable_read"):
        before = await person.fetchval("select count(*) from shoal.ready")
        while claimed := await lab.claim(worker, 50):
            await lab.finish(worker, claimed)
        assert await person.fetchval("select count(*) from shoal.ready") == before == 200
    assert (await lab.ledger.reads.stats(run.id)).done == 200
    await lab.check()


async def test_due_items_of_other_lanes_do_not_wait_for_a_lane_that_somebody_holds(
    lab: Lab, person: asyncpg.Connection
) -> None:
    """Neither a claim nor the upkeep is held up; the item of that lane comes when it is free."""
    run = await lab.run()
    await lab.put(run, "held", lane="held", delay=5.0)
    await lab.put(run, "free", lane="free", delay=5.0)
    await lab.put(run, "plain", delay=5.0)
    worker = await lab.worker()
    await lab.jump(6)
    async with person.transaction():
        await person.fetch("select id from shoal.lane where key = 'held' for update")
        assert await asyncio.wait_for(lab.claim_keys(worker), 5) == ["free", "plain"]
        assert (await asyncio.wait_for(lab.ledger.upkeep.tend(), 20)).woken == 0
    await lab.ledger.upkeep.tend()
    assert await lab.claim_keys(worker) == ["held"]
    await lab.check()


async def test_a_heartbeat_does_not_wait_for_a_claim(lab: Lab, person: asyncpg.Connection) -> None:
    """A claim that is held up by somebody's lock keeps its worker alive, and stopping that worker waits for it."""
    run = await lab.run()
    await lab.put(run, "a")
    worker = await lab.worker()
    async with person.transaction():
        await person.execute("lock table shoal.lease in share mode")
        claiming = asyncio.create_task(lab.claim(worker))
        while not await person.fetchval("select count(*) from pg_locks where not granted"):
            await person.execute("select pg_sleep(0.01)")
        orders = await asyncio.wait_for(lab.ledger.workers.beat(worker), 5)
        assert orders.state is WorkerState.LIVE
        other = await lab.another()
        stopping = asyncio.create_task(other.workers.stop(worker))
        await asyncio.sleep(0.1)
        assert not stopping.done()
    assert len(await claiming) == 1
    assert await stopping == 1
    assert await lab.state(run, "a") == "ready"
    await lab.check()
