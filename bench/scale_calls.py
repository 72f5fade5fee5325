"""What single calls of the ledger cost the database: claim, commit, counters, heartbeat; by size of the batch."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from bench import consumer
from bench.fleet_crew import Watcher
from bench.places import PostgresPlace, open_ledger
from bench.probe import Probe
from shoal.ledger.protocols import Ledger
from shoal.model.item import ClaimedItem, NewItem
from shoal.model.lane import LanePolicy
from shoal.model.outcome import DONE, FinishedAttempt
from shoal.model.worker import ALL_WORK, WorkerReport, WorkerSpec, new_worker_id

# (items of a batch, how many batches): enough of each that the processor time is more than the clock's ticks.
BATCHES = ((1, 1_500), (10, 400), (100, 80))
BEATS = 1_500
ROUNDS = 100
HOSTS = 3_000
RECORD = '{"url": "https://example.com/catalogue/page/1234567", "title": "Page 1234567", "price": 12.34, "stock": 7}'


@dataclass(frozen=True)
class CallCost:
    """One kind of call. `database`, `own`: processor seconds of the server and of the caller, `wal`: bytes, for one."""

    what: str
    batch: int
    database: float
    own: float
    wal: float


@dataclass(frozen=True)
class Calls:
    """`tables`: bytes of each table for each item that was done, with a record of `RECORD`."""

    costs: Sequence[CallCost]
    tables: Mapping[str, float]


def measure_calls(place: PostgresPlace, *, laned: bool, by: Callable[[str], str]) -> Calls:
    """Costs of calls, one after the other by one process. `by`: the address that it has for the ledger."""
    with place.fresh() as address, Watcher(address) as watcher, Probe(address) as probe:
        before = probe.table_bytes()
        costs = _Series(by(address), watcher, probe, laned=laned).measure()
        items = sum(batch * count for batch, count in BATCHES)
        return Calls(costs, {name: (size - before[name]) / items for name, size in probe.table_bytes().items()})


class _Series:
    def __init__(self, address: str, watcher: Watcher, probe: Probe, *, laned: bool) -> None:
        self._address, self._watcher, self._probe = address, watcher, probe
        self._laned = laned
        self._costs: list[CallCost] = []

    def measure(self) -> list[CallCost]:
        with asyncio.Runner() as runner:
            self._ledger: Ledger = runner.run(open_ledger(self._address))
            self._worker = new_worker_id("bench")
            items = sum(batch * count for batch, count in BATCHES)
            run_id = runner.run(self._begin())
            entries = self._entries(items)
            self._timed(runner, "enqueue", items, 1, lambda: self._ledger.intake.enqueue(run_id, entries))
            runner.run(self._ledger.upkeep.run_once())
            for batch, count in BATCHES:
                self._claim_and_commit(runner, batch, count)
            self._timed(runner, "heartbeat", 1, BEATS, self._beat)
            self._timed(runner, "maintenance with nothing to do", 1, ROUNDS, self._ledger.upkeep.run_once)
            runner.run(self._ledger.close())
        return self._costs

    async def _begin(self) -> str:
        spec = WorkerSpec(id=self._worker, node="bench", pid=1, lease_seconds=consumer.LEASE_SECONDS)
        await self._ledger.workers.register(spec)
        return await consumer.new_run(self._ledger, LanePolicy(limit=8))

    def _entries(self, items: int) -> Iterable[NewItem]:
        for number in range(items):
            host = f"host{number % HOSTS}.example.com"
            yield NewItem(url=f"https://{host}/page/{number}", lane=host if self._laned else None)

    def _claim_and_commit(self, runner: asyncio.Runner, batch: int, count: int) -> None:
        claimed: list[Sequence[ClaimedItem]] = []

        async def claim() -> None:
            claimed.append(await self._ledger.claims.claim(self._worker, ALL_WORK, batch))

        async def commit() -> None:
            finished = [
                FinishedAttempt(lease=item.lease, decision=DONE, records=(RECORD,), seconds=0.5)
                for item in claimed.pop()
            ]
            await self._ledger.commits.commit(self._worker, finished)

        self._timed(runner, "claim", batch, count, claim)
        if sum(map(len, claimed)) != batch * count:
            raise RuntimeError(f"{sum(map(len, claimed))} of {batch * count} items were claimed")
        self._timed(runner, "commit", batch, count, commit)
        # The counters that the commits left behind; a worker does this once a second.
        self._timed(runner, "counters", batch * count, 1, self._ledger.upkeep.run_once)

    async def _beat(self) -> None:
        await self._ledger.workers.heartbeat(self._worker, WorkerReport(running={1: 10}))

    def _timed(
        self, runner: asyncio.Runner, what: str, batch: int, count: int, call: Callable[[], Awaitable[object]]
    ) -> None:
        async def repeat() -> None:
            for _ in range(count):
                await call()

        database, own, wal = self._watcher.seconds_used(), time.process_time(), self._probe.wal_bytes()
        runner.run(repeat())
        own = time.process_time() - own
        database, wal = self._watcher.seconds_used() - database, self._probe.wal_bytes() - wal
        self._costs.append(CallCost(what, batch, database / count, own / count, wal / count))
