"""Records that are read again and again while somebody watches: the overview, a run, the fleet, egress.

A reader keeps what changes seldom and what is expensive, and shares what others read too: `SharedReads`. `live.py`
reads them for subscribers.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar
from weakref import WeakValueDictionary

import msgspec

from shoal.config import Settings
from shoal.errors import NotFound
from shoal.ledger.protocols import Ledger
from shoal.model.egress import PoolView
from shoal.model.run import Run, RunState
from shoal.model.views import AuditEvent, WaitReason, WorkerProgress, sum_counts
from shoal.model.worker import WorkerState, WorkerView
from shoal.notify.watch import list_alerts
from shoal.observe.egress import pool_text
from shoal.observe.meter import Meter, recent_rate
from shoal.observe.progress import GateCache
from shoal.observe.sinks import read_sinks
from shoal.observe.snapshot import ENDED, Snapshot, VersionSkew, live_workers, version_skew
from shoal.service.history import RunOutlook, explain_progress, until_last_lane
from shoal.service.inspect import MAX_EVENTS
from shoal.service.lookup import MAX_RUNS_READ, find_run, is_collection_member
from shoal.service.records import Record, alert_record, counts_fields, reason_records, status_record
from shoal.service.status import RunStatus, read_run_conditions

T = TypeVar("T")
MAX_RUNS_SHOWN = 20
MAX_ALERTS_SHOWN = 5
MAX_WORKERS_SHOWN = 500
# A thousand workers have three thousand rows a minute: an hour of them would take too long for a page.
WORKER_MINUTES = 10
MAX_PROGRESS_SHOWN = 50
MAX_NODES_SHOWN = 200
# For how many intervals values are kept: what all topics share, lists, what is slow, and runs that have ended.
SHARED, LISTS, SLOW, ENDED_RUN = 0.9, 2.0, 5.0, 10.0
# A heartbeat is shown as newer only when it is newer by this much, so that not every worker changes in every frame.
HEARTBEAT_STEP = dt.timedelta(seconds=5)


class Kept(Generic[T]):
    """A value that is read again when it is older than `seconds`; callers that come meanwhile wait for one read."""

    def __init__(self, read: Callable[[], Awaitable[T]], seconds: float) -> None:
        self._read = read
        self._seconds = seconds
        self._lock = asyncio.Lock()
        self._value: T | None = None
        self._until = -1.0

    async def get(self) -> T:
        async with self._lock:
            if self._value is None or time.monotonic() >= self._until:
                self._value = await self._read()
                self._until = time.monotonic() + self._seconds
            return self._value


class SharedReads:
    """Reads that several readers of one process need, each at most about once per `interval` seconds."""

    def __init__(self, ledger: Ledger, settings: Settings, interval: float = 1.0) -> None:
        self.ledger = ledger
        self.settings = settings
        self.interval = interval
        self.workers: Kept[list[WorkerView]] = Kept(ledger.workers.list, interval * SHARED)
        self.pools: Kept[list[PoolView]] = Kept(ledger.exits.pools, interval * SHARED)
        self.runs: Kept[tuple[Run, ...]] = Kept(self._newest_runs, interval * LISTS)
        self.alerts: Kept[list[Record]] = Kept(self._raised_alerts, interval * SLOW)
        self.size: Kept[int] = Kept(ledger.health.size_bytes, interval * SLOW)
        self._clock: Kept[tuple[float, float]] = Kept(self._read_clock, interval * LISTS)
        self._run_readers: WeakValueDictionary[str, RunReader] = WeakValueDictionary()

    def run_reader(self, run_id: str) -> RunReader:
        """The reader of a run, the same for all who read it at this time."""
        reader = self._run_readers.get(run_id)
        if reader is None:
            reader = self._run_readers[run_id] = RunReader(self, run_id)
        return reader

    async def _newest_runs(self) -> tuple[Run, ...]:
        return (await self.ledger.runs.list(limit=MAX_RUNS_READ)).rows

    async def _raised_alerts(self) -> list[Record]:
        return [alert_record(raised) for raised in await list_alerts(self.ledger, limit=MAX_ALERTS_SHOWN)]

    async def latency(self) -> float:
        """The seconds that the ledger took for a short answer."""
        return (await self._clock.get())[0]

    async def now(self) -> dt.datetime:
        """The ledger's time, whatever this machine's clock says: read now and then, and counted on in between."""
        return dt.datetime.fromtimestamp((await self._clock.get())[1] + time.monotonic(), dt.UTC)

    async def _read_clock(self) -> tuple[float, float]:
        """How long it took, and by how much it is ahead of this process's clock without jumps."""
        began = time.monotonic()
        clock = await self.ledger.lanes.clock()
        ended = time.monotonic()
        return ended - began, clock - (began + ended) / 2


class RunReader:
    """Reads how one run stands. Each read costs a few short queries; gates, alert conditions and sinks are kept."""

    def __init__(self, shared: SharedReads, run_id: str) -> None:
        self._shared = shared
        self._ledger = shared.ledger
        self._run_id = run_id
        self._gates = GateCache(shared.ledger, run_id, workers=shared.workers.get)
        self._meter: Meter | None = None
        self._slow: Kept[dict[str, Any]] = Kept(self._read_slow, shared.interval * SLOW)
        self._outlook: Kept[RunOutlook] = Kept(self._read_outlook, shared.interval * SLOW)
        self._run: Run | None = None
        self._snapshot: Snapshot | None = None
        self._kept: tuple[float, Run, RunStatus] | None = None
        self._lock = asyncio.Lock()

    async def read(self, run: Run) -> RunStatus:
        """The status now; `run` as just read. Raises NotFound."""
        async with self._lock:
            if self._kept is None or self._kept[1] != run or time.monotonic() >= self._kept[0]:
                status = await self._read(run)
                intervals = ENDED_RUN if run.state in ENDED else SHARED
                self._kept = time.monotonic() + intervals * self._shared.interval, run, status
            return self._kept[2]

    async def outlook(self, run: Run) -> RunOutlook:
        """What limits the run, and when it may end; `run` as just read. It may be some seconds old, unless the run
        changed."""
        kept = await self._outlook.get()
        if kept.run != run:
            self._outlook = Kept(self._read_outlook, self._shared.interval * SLOW)
            kept = await self._outlook.get()
        return kept

    async def _read(self, run: Run) -> RunStatus:
        self._run, ended = run, run.state in ENDED
        partitions = tuple(await self._ledger.reads.partitions(run.id))
        # The kept gates describe the run before its end.
        if ended:
            workers = await self._shared.workers.get()
            gates: Sequence[WaitReason] = await self._ledger.reads.why_run(run.id, workers=workers)
        else:
            gates = await self._gates.gates()
        pools = () if ended else tuple(pool for pool in await self._shared.pools.get() if pool.members)
        snapshot = Snapshot(
            at=await self._shared.now(),
            run=run,
            counts=sum_counts(part.counts for part in partitions),
            partitions=partitions,
            gates=tuple(gates),
            egress=pools,
        )
        if self._meter is None or ended:
            self._meter = Meter(await recent_rate(self._ledger, snapshot))
        reading = self._meter.read(snapshot, time.monotonic())
        lane = None
        if not ended:
            self._snapshot = snapshot
            outlook = await self.outlook(run)
            self._snapshot = None
            lane, reading = outlook.critical_lane, until_last_lane(reading, outlook)
        return RunStatus(reading=reading, critical_lane=lane, **await self._slow.get())

    async def _read_outlook(self) -> RunOutlook:
        snapshot, self._snapshot = self._snapshot, None  # an older one would be of another time
        return await explain_progress(self._ledger, self._run_id, snapshot=snapshot)

    async def _read_slow(self) -> dict[str, Any]:
        assert self._run is not None
        run, settings = self._run, self._shared.settings
        sinks = [sink for sink in await read_sinks(self._ledger, settings, run_id=run.id) if sink.gets(run.scraper)]
        gates = None if run.finished_at is not None else await self._gates.gates()
        conditions = await read_run_conditions(self._ledger, settings, run, gates)
        return {"sinks": tuple(sinks), "conditions": tuple(conditions)}


class RunTopicReader:
    """The record of one run for those who watch it; `name` as for `lookup.find_run`."""

    def __init__(self, shared: SharedReads, name: str) -> None:
        self._shared = shared
        self._name = name
        self._reader: tuple[str, RunReader] | None = None

    async def read(self) -> Record:
        """Raises NotFound."""
        run = await find_run(self._shared.ledger, self._name)
        if self._reader is None or self._reader[0] != run.id:
            self._reader = run.id, self._shared.run_reader(run.id)
        status = await self._reader[1].read(run)
        snapshot = status.reading.snapshot
        workers = [] if snapshot.ended else await self._shared.workers.get()
        mine = [worker for worker in workers if worker.scope.includes_run(run.id, run.scraper)]
        return {
            **status_record(status),
            "why": reason_records(snapshot.gates),
            "stage_counts": {stage: counts_fields(counts) for stage, counts in snapshot.stages.items()},
            "workers": run_worker_counts(run, mine),
        }


class RunPage(msgspec.Struct, frozen=True, kw_only=True):
    """A run's status with its newest events, its present workers, and what workers did lately."""

    run: Run
    status: RunStatus
    events: tuple[AuditEvent, ...]
    workers: tuple[WorkerView, ...]
    progress: tuple[WorkerProgress, ...]
    skew: VersionSkew

    @property
    def worker_counts(self) -> dict[str, int]:
        """Workers that are live, draining and lost, the attempts of this run that they run, and how many are idle."""
        return run_worker_counts(self.run, self.workers)

    def worker_state(self, worker: str) -> str:
        """The state of a worker, `dead` without a heartbeat, or `gone` when it is not registered any more."""
        found = next((view for view in self.workers if view.id == worker), None)
        return "gone" if found is None else found.state.value if found.alive else "dead"


async def read_run_page(shared: SharedReads, run: str) -> RunPage:
    """Everything about one run; `run` is a name as for `lookup.find_run`."""
    ledger = shared.ledger
    found = await find_run(ledger, run)
    mine = tuple(worker for worker in await shared.workers.get() if worker.scope.includes_run(found.id, found.scraper))
    progress = await ledger.reads.workers(found.id, minutes=WORKER_MINUTES)
    return RunPage(
        run=found,
        status=await shared.run_reader(found.id).read(found),
        events=(await ledger.reads.events(run_id=found.id, limit=MAX_EVENTS)).rows,
        workers=mine,
        progress=tuple(progress[:MAX_PROGRESS_SHOWN]),
        skew=version_skew(live_workers(mine, found)),
    )


class OverviewReader:
    """The overview: runs that go on, then the newest ones; workers, egress, alerts and the ledger."""

    def __init__(self, shared: SharedReads) -> None:
        self._shared = shared
        self._readers: dict[str, RunReader] = {}

    async def read(self) -> Record:
        shared = self._shared
        found = await shared.runs.get()
        runs = shown_runs(found)
        self._readers = {run.id: shared.run_reader(run.id) for run in runs}
        records = []
        for run in runs:
            with suppress(NotFound):  # it was removed meanwhile
                records.append(status_record(await self._readers[run.id].read(run)))
        workers = await shared.workers.get()
        return {
            "runs": records,
            "workers": {**worker_states(workers), "nodes": len({worker.node for worker in workers})},
            "egress": pool_records(await shared.pools.get()),
            "alerts": await shared.alerts.get(),
            "ledger": {
                "ok": True,
                "text": "",
                "size_bytes": await shared.size.get(),
                # Rounded, so that it changes only when it says something.
                "latency_seconds": float(f"{await shared.latency():.1g}"),
            },
            "empty": not found,
        }


class FleetReader:
    """Who works: nodes and workers."""

    def __init__(self, shared: SharedReads) -> None:
        self._shared = shared
        self._heartbeats: dict[str, dt.datetime] = {}

    async def read(self) -> Record:
        workers = await self._shared.workers.get()
        by_node: dict[str, list[WorkerView]] = {}
        for worker in workers:
            by_node.setdefault(worker.node, []).append(worker)
        now = await self._shared.now()
        shown = workers[:MAX_WORKERS_SHOWN]
        self._heartbeats = {worker.id: self._heartbeat(worker, now) for worker in shown}
        return {
            "workers": {**worker_states(workers), "nodes": len(by_node)},
            "nodes": [node_record(node, by_node[node]) for node in sorted(by_node)[:MAX_NODES_SHOWN]],
            "by_worker": {worker.id: self._record(worker) for worker in shown},
            "more": len(workers) > len(shown) or len(by_node) > MAX_NODES_SHOWN,
        }

    def _heartbeat(self, worker: WorkerView, now: dt.datetime) -> dt.datetime:
        at = now - dt.timedelta(seconds=worker.silent_seconds)
        before = self._heartbeats.get(worker.id)
        return at if before is None or at - before >= HEARTBEAT_STEP else before

    def _record(self, worker: WorkerView) -> Record:
        report = worker.report
        return {
            "node": worker.node,
            "pid": worker.pid,
            "state": worker.state,
            "alive": worker.alive,
            "heartbeat_at": self._heartbeats[worker.id].replace(microsecond=0),
            "leased": worker.leased,
            "running": running_items(worker),
            "unstored": report.unstored if report else 0,
            "trouble": report.trouble if report else None,
        }


class EgressReader:
    """Every pool of exits."""

    def __init__(self, shared: SharedReads) -> None:
        self._shared = shared

    async def read(self) -> Record:
        return {"pools": pool_records(await self._shared.pools.get())}


def shown_runs(runs: Iterable[Run], limit: int = MAX_RUNS_SHOWN) -> list[Run]:
    """Those that go on, then those that are paused, then the others, the newest first; no members of collections."""
    order = {RunState.ACTIVE: 0, RunState.PAUSED: 1}
    own = [run for run in runs if not is_collection_member(run)]
    return sorted(own, key=lambda run: (order.get(run.state, 2), -run.no))[:limit]


def worker_states(workers: Sequence[WorkerView]) -> dict[str, int]:
    """How many workers are live, draining, or lost: silent for longer than their lease."""
    states = Counter(worker.state.value if worker.alive else "lost" for worker in workers)
    return {state: states[state] for state in (WorkerState.LIVE.value, WorkerState.DRAINING.value, "lost")}


def run_worker_counts(run: Run, workers: Sequence[WorkerView]) -> dict[str, int]:
    """Of workers that take items of a run: how many are in which state, their attempts of it, and who runs nothing."""
    alive = [worker for worker in workers if worker.alive]
    return {
        **worker_states(workers),
        "running": sum(worker.report.running.get(run.no, 0) for worker in alive if worker.report is not None),
        "idle": sum(worker.report is not None and not running_items(worker) for worker in alive),
    }


def running_items(worker: WorkerView) -> int:
    return sum(worker.report.running.values()) if worker.report is not None else 0


def node_record(node: str, workers: Sequence[WorkerView]) -> Record:
    return {
        "node": node,
        "workers": len(workers),
        **worker_states(workers),
        "running": sum(running_items(worker) for worker in workers if worker.alive),
        "leased": sum(worker.leased for worker in workers),
        "versions": sorted({worker.version for worker in workers if worker.version}),
    }


def pool_records(pools: Iterable[PoolView]) -> list[Record]:
    return [{**msgspec.to_builtins(pool), "text": pool_text(pool)} for pool in pools]
