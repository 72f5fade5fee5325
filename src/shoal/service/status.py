"""How runs stand: progress, rate, bottleneck, alert conditions, workers, failures and version skew."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from shoal.model.latency import LatencySummary, sum_histograms
from shoal.notify.conditions import AlertCondition, alert_rules
from shoal.notify.watch import ledger_now, read_conditions
from shoal.observe.failures import Failures, read_failures
from shoal.observe.meter import Meter, Reading, recent_rate
from shoal.observe.sinks import SinkStatus, read_sinks
from shoal.observe.snapshot import VersionSkew, live_workers, take_snapshot, version_skew
from shoal.service.failures import group_dead_items
from shoal.service.history import explain_progress, until_last_lane
from shoal.service.lookup import MAX_RUNS_READ, find_run, is_collection_member

if TYPE_CHECKING:
    from shoal.config import Settings
    from shoal.ledger.protocols import Ledger
    from shoal.model.run import Run
    from shoal.model.views import WaitReason, WorkerProgress

NEWEST = 10
MAX_FAILURES_READ = 2_000
WORKER_MINUTES = 60
LATENCY_MINUTES = 15


class RunStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How a run stands: a reading of its progress, the alert conditions that hold now, and the sinks of its scraper.

    What the sinks are behind is counted for this run. `critical_lane`: the lane that will end last, if that is known.
    """

    reading: Reading
    conditions: tuple[AlertCondition, ...]
    sinks: tuple[SinkStatus, ...] = ()
    critical_lane: str | None = None


class RunStatusDetail(msgspec.Struct, frozen=True, kw_only=True):
    """A run's status with its workers of the last hour, its failures and the versions that work on it.

    `worker_states`: the state of each registered worker by its id; a worker that is not in it is gone. `wait`, `work`:
    of attempts that ended in the last `LATENCY_MINUTES`, or in the last ones before the run ended: from the time an
    item became claimable until its attempt began, and from there until it ended.
    """

    reading: Reading
    conditions: tuple[AlertCondition, ...]
    workers: tuple[WorkerProgress, ...]
    failures: Failures
    skew: VersionSkew
    worker_states: dict[str, str]
    wait: LatencySummary
    work: LatencySummary
    sinks: tuple[SinkStatus, ...] = ()
    critical_lane: str | None = None

    def worker_state(self, worker: str) -> str:
        """The state of a worker: that of its row, `dead`, or `gone` when it has none."""
        return self.worker_states.get(worker, "gone")


async def newest_runs_status(ledger: Ledger, settings: Settings, *, limit: int = NEWEST) -> list[RunStatus]:
    """Return the status of the newest runs, newest first; members of collections are left out."""
    runs = [run for run in (await ledger.runs.list(limit=MAX_RUNS_READ)).rows if not is_collection_member(run)]
    return [await _status(ledger, settings, run) for run in runs[:limit]]


async def read_run_status(ledger: Ledger, settings: Settings, run: str) -> RunStatusDetail:
    """Return everything about how one run stands; `run` is a name as for `lookup.find_run`."""
    found = await find_run(ledger, run)
    status = await _status(ledger, settings, found)
    present = await ledger.workers.list()
    await group_dead_items(ledger, found.id)
    recent = await ledger.reads.history(found.id, seconds=LATENCY_MINUTES * 60, step=60, until=found.finished_at)
    return RunStatusDetail(
        reading=status.reading,
        conditions=status.conditions,
        workers=tuple(await ledger.reads.workers(found.id, minutes=WORKER_MINUTES)),
        failures=await read_failures(ledger, found.id, limit=MAX_FAILURES_READ),
        skew=version_skew(live_workers(present, found)),
        worker_states={worker.id: worker.state.value if worker.alive else "dead" for worker in present},
        wait=sum_histograms(point.wait for point in recent).summary,
        work=sum_histograms(point.work for point in recent).summary,
        sinks=status.sinks,
        critical_lane=status.critical_lane,
    )


async def _status(ledger: Ledger, settings: Settings, run: Run) -> RunStatus:
    snapshot = await take_snapshot(ledger, run.id)
    reading, lane = Meter(await recent_rate(ledger, snapshot)).read(snapshot, time.monotonic()), None
    if not snapshot.ended:
        outlook = await explain_progress(ledger, run.id, snapshot=snapshot)
        lane, reading = outlook.critical_lane, until_last_lane(reading, outlook)
    sinks = [sink for sink in await read_sinks(ledger, settings, run_id=run.id) if sink.gets(run.scraper)]
    conditions = await read_run_conditions(ledger, settings, run, snapshot.gates)
    return RunStatus(reading=reading, conditions=tuple(conditions), sinks=tuple(sinks), critical_lane=lane)


async def read_run_conditions(
    ledger: Ledger, settings: Settings, run: Run, gates: Sequence[WaitReason] | None = None
) -> list[AlertCondition]:
    """The alert conditions of a run that goes on. How a run ended is shown by its state. `gates`: if they are known."""
    if run.finished_at is not None:
        return []
    rules = alert_rules(settings.with_scraper_table(run.scraper))
    return await read_conditions(ledger, run, await ledger_now(ledger), rules, gates=gates)
