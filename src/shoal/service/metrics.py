"""What `/metrics` says about the ledger: runs, workers, egress, sinks, the ledger itself."""

from __future__ import annotations

import datetime as dt
import time
from collections import Counter
from collections.abc import Callable

from shoal import __version__
from shoal.errors import LedgerError, NotFound
from shoal.ledger.history import count_causes
from shoal.ledger.protocols import Ledger
from shoal.model.history import MINUTE_SECONDS
from shoal.model.latency import add_buckets
from shoal.model.run import Run, RunState
from shoal.observe.exposition import HistogramValue, Samples, estimated_seconds, single
from shoal.observe.sinks import read_sinks
from shoal.service.inspect import RUN_STATES
from shoal.service.overview import SharedReads, running_items, worker_states
from shoal.service.records import ENDED_ATTEMPTS, state_counts

# The newest open runs are exported, and those that ended lately, so that their last attempts are counted.
MAX_RUNS_EXPORTED = 30
ENDED_RUN_EXPORTED = dt.timedelta(minutes=10)
OPEN_STATES = (RunState.ACTIVE, RunState.PAUSED)
# A minute of the ledger's history is complete when it is so old.
COMPLETE_SECONDS = 180.0
MAX_GAP_SECONDS = 4 * 3_600.0


class RunCounters:
    """Counters of a run that only grow, added up from the minutes of its history; they begin at `since`."""

    def __init__(self, since: dt.datetime) -> None:
        self._complete_until = since.replace(second=0, microsecond=0)
        self._attempts: Counter[str] = Counter()
        self._records = 0
        self._seconds = 0.0
        self._wait: list[int] = []
        self._work: list[int] = []

    async def read(self, ledger: Ledger, run: Run, now: dt.datetime) -> Samples:
        """The counters now."""
        # Not less than nothing: the ledger's clock may have been set back.
        gap = min(max(0.0, (now - self._complete_until).total_seconds()) + MINUTE_SECONDS, MAX_GAP_SECONDS)
        points = await ledger.reads.history(run.id, seconds=gap, step=MINUTE_SECONDS)
        points = [point for point in points if point.at >= self._complete_until]
        complete = now - dt.timedelta(seconds=COMPLETE_SECONDS)
        attempts, records, seconds = self._attempts.copy(), self._records, self._seconds
        wait, work = self._wait, self._work
        for point in points:
            attempts.update({name: getattr(point, name) for name in ENDED_ATTEMPTS})
            records += point.records
            seconds += point.seconds
            wait, work = add_buckets(wait, point.wait.counts), add_buckets(work, point.work.counts)
            if point.at <= complete:
                self._complete_until = point.at + dt.timedelta(seconds=MINUTE_SECONDS)
                self._attempts, self._records, self._seconds = attempts.copy(), records, seconds
                self._wait, self._work = wait, work
        labels = (run.id, run.scraper)
        return {
            "shoal_attempts_total": [((*labels, name), attempts[name]) for name in ENDED_ATTEMPTS],
            "shoal_records_total": [(labels, records)],
            "shoal_item_wait_seconds": [(labels, HistogramValue(wait, estimated_seconds(wait)))],
            "shoal_item_work_seconds": [(labels, HistogramValue(work, seconds))],
        }


class MetricsReader:
    """Reads what is exported. One per server: it keeps the counters of runs.

    `find_shared` returns the reads of the ledger that is open now, or raises LedgerError. `started`: when the server
    started, by `time.monotonic`; without it now. Counters begin then, whenever they are read first.
    """

    def __init__(self, find_shared: Callable[[], SharedReads], *, started: float | None = None) -> None:
        self._find_shared = find_shared
        self._started = time.monotonic() if started is None else started
        self._counters: dict[str, RunCounters] = {}
        self._began: dt.datetime | None = None

    async def read(self) -> Samples:
        """All metrics; when the ledger is away only that it is."""
        samples: Samples = {"shoal_build_info": [((__version__,), 1)]}
        try:
            found = await self._read_ledger(self._find_shared())
        except (LedgerError, TimeoutError):
            return samples | {"shoal_ledger_up": [((), 0)]}
        return samples | found

    async def _read_ledger(self, shared: SharedReads) -> Samples:
        samples, ledger = Samples(), shared.ledger
        began = time.perf_counter()
        now = dt.datetime.fromtimestamp(await ledger.lanes.clock(), dt.UTC)
        latency = time.perf_counter() - began
        self._began = self._began or now - dt.timedelta(seconds=time.monotonic() - self._started)
        runs = await shared.runs.get()
        exported, left_out = _runs_to_export(runs, now)
        single(
            samples,
            {
                "shoal_ledger_up": 1,
                "shoal_ledger_schema_version": await ledger.schema.version(),
                "shoal_ledger_size_bytes": await shared.size.get(),
                "shoal_ledger_latency_seconds": latency,
                "shoal_runs_left_out": left_out,
            },
        )
        states = Counter(run.state.value for run in runs)
        samples["shoal_runs"] = [((state,), states[state]) for state in RUN_STATES]
        self._counters = {
            run.id: self._counters.get(run.id) or RunCounters(max(self._began, run.created_at)) for run in exported
        }
        for run in exported:
            try:
                for name, values in (await self._read_run(shared, run, now)).items():
                    samples.setdefault(name, []).extend(values)
            except NotFound:  # it was removed meanwhile
                continue
        await _read_workers(shared, samples)
        await _read_egress(shared, samples)
        await _read_sinks(shared, samples)
        return samples

    async def _read_run(self, shared: SharedReads, run: Run, now: dt.datetime) -> Samples:
        labels = (run.id, run.scraper)
        status = await shared.run_reader(run.id).read(run)
        reading = status.reading
        counts = reading.snapshot.counts
        causes = await count_causes(shared.ledger.reads, run.id, counts, reading.snapshot.gates)
        samples: Samples = {
            "shoal_items": [((*labels, state), n) for state, n in state_counts(counts).items()],
            "shoal_items_waiting_for": [((*labels, cause), items) for cause, items in causes.items()],
            "shoal_run_alert": [((*labels, condition.kind.value), 1) for condition in status.conditions],
            "shoal_counted_total": [
                ((*labels, name), number) for name, number in (await shared.ledger.reads.author_counts(run.id)).items()
            ],
        }
        if run.state is RunState.ACTIVE:
            recent = await shared.ledger.reads.recent(run.id)
            samples["shoal_run_quiet_seconds"] = [(labels, max(0.0, (now - recent.quiet_since).total_seconds()))]
            if reading.rate is not None:
                samples["shoal_run_items_per_minute"] = [(labels, reading.rate)]
            if reading.eta is not None:
                bounds = zip(("low", "high"), reading.eta, strict=True)
                samples["shoal_run_eta_seconds"] = [((*labels, bound), seconds) for bound, seconds in bounds]
        return samples | await self._counters[run.id].read(shared.ledger, run, now)


async def _read_workers(shared: SharedReads, samples: Samples) -> None:
    workers = await shared.workers.get()
    samples["shoal_workers"] = [((state,), count) for state, count in worker_states(workers).items()]
    single(
        samples,
        {
            "shoal_nodes": len({worker.node for worker in workers}),
            "shoal_running_items": sum(running_items(worker) for worker in workers if worker.alive),
            "shoal_unstored_items": sum(worker.report.unstored for worker in workers if worker.report),
        },
    )


async def _read_egress(shared: SharedReads, samples: Samples) -> None:
    for pool in await shared.pools.get():
        name, kind = pool.pool, str(pool.kind)
        for state in ("good", "banned", "resting", "trial"):
            samples.setdefault("shoal_egress_exits", []).append(((name, kind, state), getattr(pool, state)))
        samples.setdefault("shoal_egress_members", []).append(((name, kind), pool.members))
        for budget in pool.budgets:
            values = {
                "shoal_egress_budget_calls": budget.capacity,
                "shoal_egress_budget_calls_left": budget.left,
                "shoal_egress_budget_reset_seconds": budget.reset_seconds or 0.0,
            }
            for metric, value in values.items():
                samples.setdefault(metric, []).append(((name, budget.resource), value))


async def _read_sinks(shared: SharedReads, samples: Samples) -> None:
    for sink in await read_sinks(shared.ledger, shared.settings):
        values = {
            "shoal_sink_behind_records": sink.behind,
            "shoal_sink_lag_seconds": sink.lag_seconds,
            "shoal_sink_failing": int(sink.error is not None),
            "shoal_sink_dead_letters": sink.dead_letters,
        }
        for metric, value in values.items():
            samples.setdefault(metric, []).append(((sink.name, sink.kind), value))


def _runs_to_export(runs: tuple[Run, ...], now: dt.datetime) -> tuple[list[Run], int]:
    """The newest open runs and those that have just ended, and how many open ones are left out."""
    open_runs = [run for run in runs if run.state in OPEN_STATES]
    ended = [run for run in runs if run.finished_at is not None and now - run.finished_at < ENDED_RUN_EXPORTED]
    exported = [*open_runs, *ended][:MAX_RUNS_EXPORTED]
    return exported, max(0, len(open_runs) - MAX_RUNS_EXPORTED)
