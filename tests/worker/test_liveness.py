"""Heartbeats continue whatever maintenance has to do, and no part of a worker ends unnoticed."""

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import pytest

from shoal import Item
from shoal.config import Settings
from shoal.ledger import upkeep
from shoal.ledger.claims import BaseWorkers
from shoal.ledger.postgres.ledger import open_postgres
from shoal.model.item import NewItem
from shoal.model.run import RunState
from shoal.model.worker import WORKER_PLACE_PREFIX, HeartbeatReply, WorkerState
from shoal.wiring import ledger_context
from shoal.worker.commit import Committer
from shoal.worker.registration import Maintenance
from shoal.worker.slots import Slots
from shoal.worker.state import StopReason
from shoal.worker.worker_limit import WorkerPlace, hold_worker_place
from tests.support import LONG
from tests.worker.test_worker import ITEMS, Bench

# A busy machine lets no lease end; that heartbeats go on is seen by their number.
LEASE = 20.0
BEATS = 60 if LONG else 10
SECONDS = 1_800 if LONG else 60
DUE = 600_000 if LONG else 8_000
LANES = 400_000 if LONG else 3_000


@asynccontextmanager
async def bench_at(place: str) -> AsyncIterator[Bench]:
    settings = Settings(ledger=place, lease=2.0)
    async with ledger_context(settings, migrate=True) as ledger:
        bench = Bench(ledger, settings)
        bench.seconds = SECONDS
        yield bench


@pytest.fixture(params=["sqlite", "postgres"])
async def bench(request: pytest.FixtureRequest, sqlite_path: Path) -> AsyncIterator[Bench]:
    place = str(sqlite_path) if request.param == "sqlite" else str(request.getfixturevalue("postgres_url"))
    async with bench_at(place) as bench:
        yield bench


@pytest.fixture
async def server_bench(postgres_url: str) -> AsyncIterator[Bench]:
    async with bench_at(postgres_url) as bench:
        yield bench


@pytest.fixture(autouse=True)
def beats(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The worker of each heartbeat that the ledger has taken, in their order."""
    taken: list[str] = []
    beat = BaseWorkers.heartbeat

    async def note(self: BaseWorkers, worker: str, *about: Any) -> HeartbeatReply:
        reply = await beat(self, worker, *about)
        taken.append(worker)
        return reply

    monkeypatch.setattr(BaseWorkers, "heartbeat", note)
    return taken


async def lost_workers(bench: Bench) -> list[str]:
    return [worker.id for worker in await bench.ledger.workers.list(present=False) if worker.state is WorkerState.LOST]


async def until_reaped(person: asyncpg.Connection) -> None:
    """Wait until the reaper has run once more."""
    now = await person.fetchval("select clock_timestamp()")
    while await person.fetchval("select at from shoal.tick where name = 'reap'") < now:  # noqa: ASYNC110 - it is asked
        await asyncio.sleep(0.02)
    # The time is written just before the reaper runs.
    await asyncio.sleep(0.1)


# Maintenance that has to wait, or has much to do


@pytest.mark.parametrize("table", ["delayed", "lane"] if LONG else ["delayed"])
async def test_a_locked_table_stops_no_heartbeat(
    server_bench: Bench, person: asyncpg.Connection, beats: list[str], table: str
) -> None:
    """Claims, commits and maintenance wait; heartbeats do not, and no worker is declared lost."""
    bench = server_bench
    await bench.fill()
    async with bench.working(lease=LEASE) as (first, one), bench.working(lease=LEASE) as (second, two):
        await bench.until(lambda: len(bench.begun) == 8)
        ids = {first.id, second.id}
        # All slots are busy, so that no claim counts as a heartbeat.
        async with person.transaction():
            await person.execute(f"lock table shoal.{table}")
            before = Counter(beats)
            await bench.until(lambda: all(Counter(beats)[each] >= before[each] + BEATS for each in ids))
        await until_reaped(person)
        bench.gate.set()
        await asyncio.gather(one, two)
    assert await lost_workers(bench) == []
    assert {first.id, second.id} == ids
    assert len(bench.begun) == ITEMS, "items were started twice"
    await bench.check_all_stored_once()


async def test_many_items_due_at_once_on_a_slow_server(
    server_bench: Bench, person: asyncpg.Connection, beats: list[str]
) -> None:
    """Promoting them takes as long as many heartbeats; meanwhile heartbeats and all other maintenance continue."""
    if not LONG:  # slows each step down, as many more items would
        await person.execute(
            "create function shoal.slow() returns trigger language plpgsql as "
            "$$ begin perform pg_sleep(0.4); return null; end $$"
        )
        await person.execute(
            "create trigger slow after delete on shoal.delayed for each statement execute function shoal.slow()"
        )
    async with busy_while_items_are_due(server_bench, DUE, beats, least=4):
        await until_reaped(person)


async def test_many_items_due_at_once_in_a_file(sqlite_path: Path, beats: list[str]) -> None:
    """There is one write lock: the heartbeat gets it between two steps."""
    least = 4 if LONG else 0  # a few thousand are promoted before the next heartbeat is due
    async with bench_at(str(sqlite_path)) as bench, busy_while_items_are_due(bench, DUE, beats, least=least):
        pass


@asynccontextmanager
async def busy_while_items_are_due(bench: Bench, count: int, beats: list[str], *, least: int) -> AsyncIterator[None]:
    """The block begins when all are promoted, with at least so many heartbeats meanwhile; after it, none is lost."""
    bench.held_up = {"0", "1", "2", "3"}  # all slots are busy, so that no claim counts as a heartbeat
    run = await bench.fill(4)
    late = (NewItem(key=str(number), stage="work", delay=1.0) for number in range(4, count))
    await bench.ledger.intake.enqueue(run.id, late)
    async with bench.working(lease=LEASE) as (worker, _):
        before: int | None = None
        while delayed := (await bench.ledger.reads.stats(run.id)).delayed:
            if before is None and delayed < count - 4:
                before = len(beats)
            await asyncio.sleep(0.02)
        assert len(beats) >= (before or 0) + least, "a heartbeat waited until all were promoted"
        yield
        worker.drain()
        bench.gate.set()
    assert await lost_workers(bench) == []
    assert len(set(bench.begun)) == len(bench.begun), "items were started twice"


async def test_many_lanes_of_a_run_that_becomes_idle(server_bench: Bench, beats: list[str]) -> None:
    """No worker serves the run with many lanes any more; the only worker serves another run."""
    bench = server_bench
    other = await bench.ledger.runs.create(msgspec.structs.replace(bench.scraper.run_spec(), scraper="other"))
    await bench.ledger.intake.enqueue(other.id, (NewItem(key=str(n), lane=f"h{n}") for n in range(LANES)))
    await bench.fill()
    async with bench.working(lease=LEASE) as (_, task):
        await bench.until(lambda: len(bench.begun) == 4)
        before = len(beats)
        await bench.until(lambda: len(beats) >= before + BEATS)
        bench.gate.set()
    assert task.result().stop_reason is StopReason.NOTHING_LEFT
    assert await lost_workers(bench) == []
    assert len(bench.begun) == ITEMS


async def test_a_round_of_maintenance_ends_in_time_and_the_next_continues(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await bench.fill(1)
    late = (NewItem(key=str(number), stage="work", delay=0.001) for number in range(1, 2_501))
    await bench.ledger.intake.enqueue(run.id, late)
    await asyncio.sleep(0.01)
    monkeypatch.setattr(upkeep, "ROUND_SECONDS", 0.0)
    rounds = [await bench.ledger.upkeep.run_once() for _ in range(3)]
    assert [(done.promoted, done.more) for done in rounds] == [(1_000, True), (1_000, True), (500, False)]


# Places of workers


class BlockingBench(Bench):
    """Its items block the event loop until `block` returns."""

    def block(self) -> None:
        raise NotImplementedError

    def _handler(self) -> Callable[..., AsyncIterator[dict[str, str]]]:
        async def work(item: Item) -> AsyncIterator[dict[str, str]]:
            self.begun.append(item.key)
            self.block()
            yield {"key": item.key}

        return work


async def test_the_place_of_a_worker_stays_while_a_handler_blocks_the_loop(bench: Bench) -> None:
    """The heartbeat renews it as it renews the leases, so no other worker begins meanwhile."""
    blocking = BlockingBench(bench.ledger, bench.settings)
    renewed = 0

    async def until_renewed() -> None:
        nonlocal renewed
        async with ledger_context(bench.settings) as ledger, asyncio.timeout(40):
            (held,) = await ledger.locks.list(WORKER_PLACE_PREFIX)
            while renewed < 3:  # the first may be one that the loop has begun
                await asyncio.sleep(0.02)
                before, (held,) = held, await ledger.locks.list(WORKER_PLACE_PREFIX)
                renewed += held.until > before.until

    def block() -> None:
        thread = threading.Thread(target=lambda: asyncio.run(until_renewed()))
        thread.start()
        thread.join()

    blocking.block = block  # type: ignore[method-assign]
    await blocking.fill(1)
    async with (
        hold_worker_place(bench.ledger, "bench", 1, lease=LEASE, report=print) as place,
        blocking.working(forever=True) as (worker, _),
    ):
        worker.keep_place(place)
        await blocking.until(lambda: worker.summary.attempts == 1)
        assert renewed == 3
        assert worker.stop_reason is None
        worker.drain()
    assert await bench.ledger.locks.acquire(f"{WORKER_PLACE_PREFIX}bench/1", "another", 5.0), "it was not released"


async def test_a_worker_leaves_when_its_heartbeat_finds_that_another_has_its_place(bench: Bench) -> None:
    assert await bench.ledger.locks.acquire("place", "another", 600.0)
    await bench.fill()
    async with bench.working() as (worker, task):
        worker.keep_place(WorkerPlace("place", "this one", 600.0))
        await bench.until(lambda: worker.stop_reason is not None)
        bench.gate.set()
    assert task.result().stop_reason is StopReason.STOPPED


# Parts that fail


async def test_a_heartbeat_that_fails_ends_the_worker(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the failure is. Its leases are returned at once, so that others need not wait for them to expire."""
    run = await bench.fill()
    beat = BaseWorkers.heartbeat

    async def fail_once_it_works(self: BaseWorkers, *about: Any) -> HeartbeatReply:
        if bench.begun:
            raise ZeroDivisionError("no beat")
        return await beat(self, *about)

    monkeypatch.setattr(BaseWorkers, "heartbeat", fail_once_it_works)
    with pytest.raises(RuntimeError, match="heartbeat ended: ZeroDivisionError: no beat"):
        async with bench.working():
            pass
    counts = await bench.ledger.reads.stats(run.id)
    assert (counts.leased, counts.ready) == (0, ITEMS)


@pytest.mark.parametrize("part", [Committer, Maintenance, Slots])
@pytest.mark.parametrize("fails", [True, False])
async def test_a_part_that_ends_ends_the_worker(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, part: type, fails: bool
) -> None:
    run = await bench.fill()

    async def end(*_: Any) -> None:
        await bench.until(lambda: bool(bench.begun))
        if fails:
            raise RuntimeError("a part of this worker ended")

    monkeypatch.setattr(part, "replace_overdue_slots" if part is Slots else "run", end)
    with pytest.raises(RuntimeError, match="a part of this worker ended"):
        async with bench.working():
            pass
    counts = await bench.ledger.reads.stats(run.id)
    assert (counts.leased, counts.ready) == (0, ITEMS)


# Sharing


async def test_long_items_are_shared(bench: Bench) -> None:
    """Their duration is unknown: a worker claims for its free slots, and nothing ahead."""
    run = await bench.fill(8)
    async with bench.working() as (_, one), bench.working() as (_, two):
        await bench.until(lambda: len(bench.begun) == 8)
        bench.gate.set()
        await asyncio.gather(one, two)
    assert (one.result().done, two.result().done) == (4, 4)
    assert (await bench.ledger.runs.get(run.id)).state is RunState.FINISHED


async def test_items_claimed_ahead_are_returned_when_the_slots_are_stuck(bench: Bench) -> None:
    """Quick items made it claim ahead; a later worker gets the items that the first one cannot start."""
    bench.held_up = {str(number) for number in range(40, 48)}
    await bench.fill(48)
    async with bench.working() as (_, one):
        await bench.until(lambda: len(bench.begun) == 44)
        async with bench.working() as (_, two):
            await bench.until(lambda: len(bench.begun) == 48)
            bench.gate.set()
            await asyncio.gather(one, two)
    assert two.result().done >= 4
    assert len(bench.begun) == 48
    await bench.check_all_stored_once(48)


# Waiting


async def test_a_cancelled_wait_leaves_no_connection_that_does_not_listen(
    postgres_url: str, person: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_listener = asyncpg.Connection.add_listener
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def add_later(self: asyncpg.Connection, channel: str, callback: Any) -> None:
        asked.set()
        await go_on.wait()
        await add_listener(self, channel, callback)

    monkeypatch.setattr(asyncpg.Connection, "add_listener", add_later)
    ledger = await open_postgres(postgres_url)
    try:
        for _ in range(3):
            waiting = asyncio.create_task(ledger.upkeep.wait(20))
            await asked.wait()
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
        go_on.set()
        waiting = asyncio.create_task(ledger.upkeep.wait(20))
        async with asyncio.timeout(10):
            while not waiting.done():
                await person.execute("notify shoal_wake")
                await asyncio.sleep(0.05)
        backends = "select count(*) from pg_stat_activity where datname = current_database() and query ilike 'listen%'"
        assert await person.fetchval(backends) == 1
    finally:
        await ledger.close()
