"""One scraper of the project as a job: a pool of this machine, its queue, its settings and its log.

What the paths `/jobs/...` of the server show and do (docs/howto/jobs-api.md). A worker of such a pool has one item at a
time, so that the number of workers is the number of items at once. All numbers are read from the ledger; with the
setting `jobs_stage` those of items are of that stage.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import os
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from shoal.config import Settings
from shoal.config.settings import ENV_PREFIX
from shoal.errors import LedgerError, NotFound, UnknownStage, UsageError, WrongState
from shoal.fleet.autoscale import set_desired_size
from shoal.ledger.protocols import Ledger
from shoal.model.run import Run, RunState
from shoal.model.views import Counts, ItemView
from shoal.model.worker import WorkerState, WorkerView, new_worker_id
from shoal.observe.meter import Meter, recent_rate
from shoal.observe.progress import GateCache
from shoal.observe.snapshot import live_workers, take_snapshot
from shoal.service.begin import check_stages
from shoal.service.local_pools import (
    STOP_SECONDS,
    LocalPools,
    PoolStatus,
    RecoveredItems,
    find_target,
    project_scrapers,
)
from shoal.service.lookup import find_item, ledger_now, load_configured
from shoal.service.stored_settings import change_stored
from shoal.service.work_logs import LogLine, is_log_of, read_logs
from shoal.worker.operator_settings import scraper_scope

MAX_WORKERS, MAX_RETRIES, MAX_BACKOFF = 20, 10, 10.0
DEFAULT_WORKERS = 5
DEFAULT_OUTPUT = "./subtitles"
UNFINISHED = (RunState.ACTIVE, RunState.PAUSED)
MAX_ERRORS = 20
MAX_SHOWN = 200
# Leases that are read to find out who has what. A pool of ours has 20 at most; others may work on its run too.
MAX_HELD = 5_000
MAX_ERROR_CHARS = 4_000
RECENT_MINUTES = 2
WORKER_MINUTES = 10
START_LOCK_SECONDS = 90.0
RECOVERY_PAUSE_SECONDS = 2.0
CLEANUP_WAIT_SECONDS = 5.0
POOLS_READ = 100
MAX_REMOVED = 1_000
# What is stored under `scraper:NAME`, by the names that these paths have for it.
_STORED = {
    "max_workers": "workers",
    "max_retries": "retries",
    "backoff_factor": "backoff_factor",
    "output_dir": "output_dir",
}
_BOUNDS: dict[str, tuple[type, float, float]] = {
    "max_workers": (int, 1, MAX_WORKERS),
    "max_retries": (int, 0, MAX_RETRIES),
    "backoff_factor": (float, 1, MAX_BACKOFF),
}


class JobSettings(msgspec.Struct, frozen=True, kw_only=True):
    """S4.2. `max_retries`: tries after the first. `output_dir`: where files go that are downloaded."""

    max_workers: int = DEFAULT_WORKERS
    max_retries: int = 3
    backoff_factor: float = 2.0
    output_dir: str = DEFAULT_OUTPUT


class QueueStats(msgspec.Struct, frozen=True, kw_only=True):
    """Items of the job by what happens to them. `pending` contains `delayed`: those that wait for a retry."""

    run_id: str | None = None
    pending: int = 0
    delayed: int = 0
    processing: int = 0
    completed: int = 0
    failed: int = 0
    skipped: int = 0
    cancelled: int = 0
    remaining: int = 0
    total: int = 0


class ActiveItem(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker has: the item it has had longest, and since when."""

    item: str
    started_at: dt.datetime


class JobError(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt that failed; WARN when its item is tried again, ERROR when not."""

    at: dt.datetime
    level: str
    item: str
    worker: str | None
    message: str


class JobFrame(msgspec.Struct, frozen=True, kw_only=True):
    """What `WS /jobs/status` sends each second."""

    at: dt.datetime
    status: str
    run_id: str | None
    active_workers: int
    num_workers: int
    counts: QueueStats
    throughput_per_min: float
    workers: dict[str, ActiveItem]
    recent_errors: list[JobError]


class WorkerStatusBlock(msgspec.Struct, frozen=True, kw_only=True):
    """S4.16. `total_processed`: items that ended by an attempt; `total_failed`: those of them that are dead."""

    running: bool
    num_workers: int
    active_workers: int
    total_processed: int
    total_failed: int
    startup_recovery_done: bool


class PerformanceBlock(msgspec.Struct, frozen=True, kw_only=True):
    """S4.16. The rate is that of all workers, in the last five minutes at most; of an ended run, in all of its time.

    `success_rate`: done items of done and dead ones."""

    processing_rate_per_hour: float
    success_rate: float | None
    estimated_completion_time: str | None


class StartupRecovery(msgspec.Struct, frozen=True, kw_only=True):
    """What the server gave back when it started."""

    done: bool = False
    at: dt.datetime | None = None
    items: int = 0
    workers: int = 0


class JobStatus(msgspec.Struct, frozen=True, kw_only=True):
    status: str
    scraper: str
    run_id: str | None
    pool_id: str | None
    pool: str | None
    worker_status: WorkerStatusBlock
    performance_metrics: PerformanceBlock
    startup_recovery: StartupRecovery


class WorkerPerformance(msgspec.Struct, frozen=True, kw_only=True):
    """One worker: what it does, and what it did in the last 10 minutes."""

    name: str
    status: str
    item: str | None
    started_at: dt.datetime | None
    processed: int
    failed: int
    attempts: int
    average_runtime_seconds: float | None


class JobPerformance(msgspec.Struct, frozen=True, kw_only=True):
    """S4.17."""

    items_per_hour: float
    throughput_per_min: float
    success_rate: float | None
    average_runtime_seconds: float | None
    estimated_completion_time: str | None
    eta_seconds: tuple[float, float] | None
    queue: QueueStats
    workers: list[WorkerPerformance]


class Cleanup(msgspec.Struct, frozen=True, kw_only=True):
    """What a clean-up removes, or would remove. `complete`: False while a large run is still being deleted."""

    days: int
    runs: list[str]
    items: int
    log_files: int
    complete: bool = True


def find_job_scraper(settings: Settings, given: str) -> str:
    """The name of the project's scraper that a name or a file means. Raises NotFound."""
    by_target = {os.path.normpath(target): name for name, target in project_scrapers(settings).items()}
    name = by_target.get(os.path.normpath(given), given)
    find_target(settings, name)
    return name


def configured_settings(settings: Settings, scraper: str) -> JobSettings:
    """What the configuration says, else S4's defaults. It may be out of S4's bounds: see `out_of_bounds`."""
    config = settings.with_scraper_table(scraper)
    has_files = "files" in config.origins and config.origins["files"].kind != "default"
    return JobSettings(
        max_workers=config.workers or DEFAULT_WORKERS,
        max_retries=config.retries,
        backoff_factor=config.backoff_factor,
        output_dir=config.files if has_files else DEFAULT_OUTPUT,
    )


def out_of_bounds(settings: Settings, scraper: str) -> list[str]:
    """A sentence for each number of the configuration that `POST /settings` would refuse."""
    configured = configured_settings(settings, scraper)
    problems = []
    for name, (_, low, high) in _BOUNDS.items():
        if not low <= (value := getattr(configured, name)) <= high:
            problems.append(
                f"{name} of {scraper} is configured as {value:g}; under /jobs it must be from {low:g} to {high:g}."
            )
    return problems


class Jobs:
    """The job of a server: one scraper of the project. `ledger` and `pools` as in `LocalPools`.

    `scraper`: its name or its file; without it the only one of the project.
    """

    def __init__(
        self, ledger: Callable[[], Ledger], settings: Settings, pools: LocalPools, scraper: str | None = None
    ) -> None:
        self._current_ledger = ledger
        self._project = settings
        self._pools = pools
        self._given = scraper
        self._name: str | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._steering = asyncio.Lock()
        self._gates: tuple[str, Ledger, GateCache] | None = None
        self.recovery = StartupRecovery()

    @property
    def _ledger(self) -> Ledger:
        return self._current_ledger()

    @property
    def scraper(self) -> str:
        """The name of the scraper. Raises WrongState when it is not clear which one is meant."""
        if self._name is not None:
            return self._name
        if self._given is not None:
            self._name = find_job_scraper(self._project, self._given)
            return self._name
        known = project_scrapers(self._project)
        if len(known) == 1:
            self._name = next(iter(known))
            return self._name
        what = "no scraper" if not known else f"{len(known)} scrapers ({', '.join(sorted(known)[:10])})"
        raise WrongState(
            f"This project has {what}, so it is not clear what /jobs means.",
            remedy="Start the server with --jobs SCRAPER.",
        )

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def recover_at_start(self) -> None:
        """S4.10: give back what dead workers of this machine hold; while the ledger is away, try again."""
        while not self.recovery.done:
            try:
                found = await self._pools.recover()
                at = await ledger_now(self._ledger)
            except (LedgerError, TimeoutError):
                await asyncio.sleep(RECOVERY_PAUSE_SECONDS)
                continue
            self.recovery = StartupRecovery(done=True, at=at, items=found.items, workers=len(found.workers))

    # Reads

    async def status(self) -> JobStatus:
        run, pool = await self._run(), await self._pool()
        counts, workers = await self._counts(run), await self._live(run)
        active = await self._active(run, workers)
        reading = None if run is None else await self._reading(run)
        rate = 0.0 if reading is None or reading[0] is None else reading[0] * 60
        return JobStatus(
            status=await self._state(run, counts, is_running=bool(workers) or _is_running(pool)),
            scraper=self.scraper,
            run_id=None if run is None else run.id,
            pool_id=None if pool is None else pool.pool.id,
            pool=None if pool is None else pool.state,
            worker_status=WorkerStatusBlock(
                running=_is_running(pool) or bool(workers),
                num_workers=pool.pool.wanted if pool is not None and pool.is_running else len(workers),
                active_workers=len(active),
                total_processed=counts.ended,
                total_failed=counts.dead,
                startup_recovery_done=self.recovery.done,
            ),
            performance_metrics=PerformanceBlock(
                processing_rate_per_hour=round(rate, 1),
                success_rate=_success_rate(counts),
                estimated_completion_time=None if reading is None else format_eta(reading[1]),
            ),
            startup_recovery=self.recovery,
        )

    async def performance(self) -> JobPerformance:
        run = await self._run()
        counts, workers = await self._counts(run), await self._live(run)
        rate, eta = (None, None) if run is None else await self._reading(run)
        done = [] if run is None else await self._ledger.reads.workers(run.id, minutes=WORKER_MINUTES)
        by_worker = {progress.worker: progress for progress in done}
        active = await self._active(run, workers)
        rows = []
        for worker in workers:
            progress, has = by_worker.get(worker.id), active.get(worker.id)
            draining = worker.state is WorkerState.DRAINING
            rows.append(
                WorkerPerformance(
                    name=worker.id,
                    status="draining" if draining else "idle" if has is None else "processing",
                    item=None if has is None else has.item,
                    started_at=None if has is None else has.started_at,
                    processed=0 if progress is None else progress.done + progress.dead + progress.skipped,
                    failed=0 if progress is None else progress.dead,
                    attempts=0 if progress is None else progress.attempts,
                    average_runtime_seconds=_average(progress.seconds, progress.attempts) if progress else None,
                )
            )
        return JobPerformance(
            items_per_hour=round((rate or 0.0) * 60, 1),
            throughput_per_min=await self._throughput(run),
            success_rate=_success_rate(counts),
            average_runtime_seconds=_average(sum(row.seconds for row in done), sum(row.attempts for row in done)),
            estimated_completion_time=format_eta(eta),
            eta_seconds=None if eta is None else (round(eta[0], 1), round(eta[1], 1)),
            queue=_queue(run, counts),
            workers=rows,
        )

    async def queue(self) -> QueueStats:
        run = await self._run()
        return _queue(run, await self._counts(run))

    async def frame(self) -> JobFrame:
        run, pool = await self._run(), await self._pool()
        counts, workers = await self._counts(run), await self._live(run)
        active = await self._active(run, workers)
        return JobFrame(
            at=await ledger_now(self._ledger),
            status=await self._state(run, counts, is_running=bool(workers) or _is_running(pool)),
            run_id=None if run is None else run.id,
            active_workers=len(active),
            num_workers=pool.pool.wanted if pool is not None and pool.is_running else len(workers),
            counts=_queue(run, counts),
            throughput_per_min=await self._throughput(run),
            workers=dict(list(active.items())[:MAX_SHOWN]),
            recent_errors=await self._errors(run, MAX_ERRORS),
        )

    async def settings(self) -> JobSettings:
        """What is stored, else what the configuration says, else S4's defaults."""
        found = await self._ledger.settings.get(scraper_scope(self.scraper))
        stored = {} if found is None else found[1]
        known = {name: stored[key] for name, key in _STORED.items() if stored.get(key) is not None}
        return msgspec.structs.replace(configured_settings(self._project, self.scraper), **known)

    async def wanted_workers(self, given: int | None = None) -> int:
        """How many workers a start means: those given, else the setting. Raises UsageError for too many."""
        if given is not None:
            _check_workers(given)
            return given
        found = await self._ledger.settings.get(scraper_scope(self.scraper))
        stored = None if found is None else found[1].get(_STORED["max_workers"])
        configured = self._project.with_scraper_table(self.scraper).workers
        if stored is None and configured > MAX_WORKERS:
            raise UsageError(
                f"The project is configured for {configured} workers; it must be from 1 to {MAX_WORKERS} here.",
                remedy="Change `workers` of the scraper (in some projects MAX_WORKERS in .env), or `POST /settings`.",
            )
        return (await self.settings()).max_workers

    async def preview_settings(self, given: Mapping[str, Any]) -> JobSettings:
        """The settings as they would be. Raises UsageError."""
        _check_settings(given)
        return msgspec.structs.replace(await self.settings(), **given)

    async def put_settings(self, given: Mapping[str, Any], *, by: str) -> JobSettings:
        """Store these values; the others stay. A running pool follows: its size at once, retries with new attempts.

        `output_dir` holds from the next start or restart of the workers. Raises UsageError.
        """
        _check_settings(given)
        changed = {_STORED[name]: given[name] for name in given}
        await change_stored(self._ledger, scraper_scope(self.scraper), lambda before: {**before, **changed}, by=by)
        pool = await self._pool()
        if "max_workers" in given and pool is not None and pool.is_running:
            await set_desired_size(self._ledger, self.scraper, given["max_workers"], by=by)
        return await self.settings()

    async def logs(self, *, limit: int = 100, level: str | None = None, item: str | None = None) -> list[LogLine]:
        """Newest first: failed attempts from the ledger, and what the processes of this machine logged.

        `level`: this one and above. `item`: an id, a key or a URL.
        """
        run, name = await self._run(), self.scraper
        names, found = None, list[LogLine]()
        if item is not None and run is not None:
            with suppress(NotFound):
                view = await self._item(run, item)
                names = {str(view.id), view.key, view.url} - {None}
                found = [
                    LogLine(
                        at=attempt.ended_at,
                        level=_level(attempt.outcome, final=attempt.epoch == view.epoch and view.state == "dead"),
                        item=view.url or view.key,
                        worker=attempt.worker,
                        message=(attempt.error or attempt.outcome)[:MAX_ERROR_CHARS],
                    )
                    for attempt in await self._ledger.reads.attempts(run.id, view.id)
                ]
        elif item is None:
            found = [
                LogLine(at=error.at, level=error.level, item=error.item, worker=error.worker, message=error.message)
                for error in await self._errors(run, limit, final=level == "ERROR")
            ]
        names = {item} if item is not None and names is None else names
        files = self._project.with_scraper_table(name).log_names(name)
        found += await asyncio.to_thread(
            read_logs, self._pools.log_folder, files, limit=limit, level=level, items=names
        )
        wanted = [line for line in found if level is None or LEVELS.index(line.level) >= LEVELS.index(level)]
        return sorted(wanted, key=lambda line: line.at, reverse=True)[:limit]

    # Changes

    async def start(self, *, by: str, workers: int | None = None) -> JobStatus:
        """Start the workers, on the unfinished run or a new one; a pool that runs gets that many, a paused run goes on.

        A scraper without start items continues its last run, which stays open: its workers wait for items.
        """
        wanted = await self.wanted_workers(workers)
        async with self._steering:
            run = await self._run()
            if run is not None and run.state is RunState.PAUSED:
                await self._ledger.runs.resume(run.id, by=by)
            if not await self._scale(wanted, by):
                await self._start_pool(wanted, by)
        return await self.status()

    async def stop(self, *, by: str, drain: float = STOP_SECONDS) -> JobStatus:
        """Stop the workers: running items get `drain` seconds, then they go back to the queue, uncharged."""
        pool = await self._pool()
        if pool is None or not pool.is_running:
            raise WrongState("No workers of this server are running.", remedy="`POST /jobs/workers/start` starts some.")
        await self._pools.stop(pool.pool.id, by=by, drain=drain, wait=drain + STOP_SECONDS)
        return await self.status()

    async def restart(self, *, by: str, workers: int | None = None, drain: float = STOP_SECONDS) -> JobStatus:
        """Stop the workers and start them with the settings and the code of now; start them when none run."""
        wanted = await self.wanted_workers(workers)
        pool = await self._pool()
        if pool is None or not pool.is_running:
            return await self.start(by=by, workers=wanted)
        async with self._steering:
            await self._pools.restart(
                pool.pool.id, by=by, workers=wanted, drain=drain, name=self.scraper, variables=await self._variables()
            )
        return await self.status()

    async def pause(self, *, by: str) -> JobStatus:
        """No further item starts, within a second; items that run may end."""
        run = await self._run()
        if run is None or run.state not in UNFINISHED:
            raise WrongState("There is nothing to pause.", remedy="`POST /jobs/start` begins a run.")
        await self._ledger.runs.pause(run.id, by=by)
        return await self.status()

    async def resume(self, *, by: str) -> JobStatus:
        """Go on after a pause; workers are started when none run."""
        run = await self._run()
        if run is None or run.state not in UNFINISHED:
            raise WrongState("There is nothing to resume.", remedy="`POST /jobs/start` begins a run.")
        if not _is_running(await self._pool()) and not await self._live(run):
            return await self.start(by=by)  # which resumes it
        await self._ledger.runs.resume(run.id, by=by)
        return await self.status()

    async def reconcile(self, *, by: str) -> RecoveredItems:
        """Give back now what dead workers of this machine hold; live workers are not touched."""
        found = await self._pools.recover()
        run = await self._run()
        if run is not None:
            detail = {"items": found.items, "workers": list(found.workers)}
            await self._ledger.runs.record_event(run.id, "reconciled", self.scraper, detail, by=by)
        return found

    async def preview_cleanup(self, days: int) -> Cleanup:
        runs = await self._old_runs(days)
        items = sum([(await self._ledger.reads.stats(run.id)).total for run in runs])
        files = await asyncio.to_thread(self._old_logs, days)
        return Cleanup(days=days, runs=[run.id for run in runs], items=items, log_files=len(files))

    async def cleanup(self, days: int, *, by: str) -> Cleanup:
        """Remove the runs that ended more than so many days ago, with their records, and the log files of that age.

        The newest run stays.
        """
        plan = await self.preview_cleanup(days)
        for file in await asyncio.to_thread(self._old_logs, days):
            with suppress(OSError):
                file.unlink()

        async def remove() -> None:
            for run_id in plan.runs:
                with suppress(NotFound):
                    await self._ledger.runs.remove(run_id, by=by)

        task = asyncio.create_task(remove())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        done, _ = await asyncio.wait((task,), timeout=CLEANUP_WAIT_SECONDS)
        for each in done:
            each.result()
        if not done:
            # Should the ledger be lost meanwhile, the next clean-up removes the rest.
            task.add_done_callback(lambda ended: None if ended.cancelled() else ended.exception())
        return msgspec.structs.replace(plan, complete=bool(done))

    # Parts

    async def _run(self) -> Run | None:
        return await self._ledger.runs.latest(self.scraper)

    @property
    def _stage(self) -> str | None:
        """The stage whose items are counted; None: all."""
        return self._project.with_scraper_table(self.scraper).jobs_stage or None

    async def _counts(self, run: Run | None) -> Counts:
        if run is None:
            return Counts()
        try:
            return await self._ledger.reads.stats(run.id, stage=self._stage)
        except UnknownStage as error:
            raise WrongState(error.message, remedy="Name one of them in the setting `jobs_stage`.") from None

    async def _state(self, run: Run | None, counts: Counts, *, is_running: bool) -> str:
        """The status: that of the whole run, as the view `jobs` of the ledger has it."""
        if run is not None and run.state is RunState.FINISHED and self._stage is not None:
            counts = await self._ledger.reads.stats(run.id)
        return job_status(run, counts, is_running=is_running)

    async def _live(self, run: Run | None) -> list[WorkerView]:
        """The workers that serve the run."""
        return [] if run is None else live_workers(await self._ledger.workers.list(), run)

    async def _active(self, run: Run | None, workers: list[WorkerView]) -> dict[str, ActiveItem]:
        """S4.12: the workers that have an item, with the one they have had longest."""
        if run is None or not any(worker.leased for worker in workers):
            return {}
        alive = {worker.id for worker in workers}
        held = await self._ledger.reads.oldest_leases(run.id, limit=MAX_HELD)
        return {each.worker: ActiveItem(item=each.name, started_at=each.since) for each in held if each.worker in alive}

    async def _errors(self, run: Run | None, limit: int, *, final: bool = False) -> list[JobError]:
        return [
            JobError(
                at=error.at,
                level="ERROR" if error.final else "WARN",
                item=error.name,
                worker=error.worker,
                message=(error.error or error.outcome)[:MAX_ERROR_CHARS],
            )
            for error in ([] if run is None else await self._ledger.reads.errors(run.id, limit=limit, final=final))
        ]

    async def _throughput(self, run: Run | None) -> float:
        """Items that ended per minute: in this minute and the one before."""
        if run is None:
            return 0.0
        recent = await self._ledger.reads.recent(run.id, minutes=RECENT_MINUTES, stage=self._stage)
        clock = await ledger_now(self._ledger)
        covered = (RECENT_MINUTES - 1) * 60 + clock.second + clock.microsecond / 1e6
        seconds = max(1.0, min(covered, (clock - run.created_at).total_seconds()))
        return round((recent.done + recent.dead + recent.skipped) * 60 / seconds, 2)

    async def _reading(self, run: Run) -> tuple[float | None, tuple[float, float] | None]:
        """Items per minute as of `recent_rate`, and the seconds to the end, from and to: None when it has ended."""
        if self._gates is None or self._gates[:2] != (run.id, self._ledger):
            self._gates = run.id, self._ledger, GateCache(self._ledger, run.id)
        whole = await take_snapshot(self._ledger, run.id, gates=await self._gates[2].gates())
        snapshot = whole if self._stage is None else whole.of_stage(self._stage)
        rate = await recent_rate(self._ledger, snapshot, stage=self._stage)
        reading = Meter(rate).read(snapshot, time.monotonic())
        # Without open items of the stage others of the run may still find some.
        is_known = not reading.ended and (snapshot.counts.remaining > 0 or whole.counts.remaining == 0)
        return rate, reading.eta if is_known else None

    async def _pool(self) -> PoolStatus | None:
        """The newest pool of the scraper on this machine that runs, else its last one."""
        for ended in (False, True):  # those that ended since may be many
            pools = await self._pools.list(scraper=self.scraper, ended=ended, limit=POOLS_READ)
            here = [pool for pool in pools if pool.pool.node == socket.gethostname()]
            found = next((pool for pool in here if pool.steerable), here[0] if here and ended else None)
            if found is not None:
                return found
        return None

    async def _item(self, run: Run, name: str) -> ItemView:
        if name.isdecimal():
            with suppress(NotFound):
                return await find_item(self._ledger, run, id=int(name))
        return await find_item(self._ledger, run, key=name)

    async def _scale(self, workers: int, by: str) -> bool:
        """Let the running pool have so many workers. False: none runs."""
        pool = await self._pool()
        if pool is None or pool.state != "running":
            return False
        if pool.pool.wanted != workers:
            await self._pools.scale(pool.pool.id, workers, by=by)
        return True

    async def _start_pool(self, workers: int, by: str) -> None:
        """Of several servers of this machine that start at once, one does."""
        lock, owner = f"jobs:{socket.gethostname()}:{self.scraper}", new_worker_id()
        if not await self._ledger.locks.acquire(lock, owner, START_LOCK_SECONDS):
            raise WrongState(
                f"Another server is starting the workers of {self.scraper}.", remedy="Look at /jobs/workers/status."
            )
        try:
            if await self._scale(workers, by):  # another server has just started it
                return
            run_id, variables = await self._run_to_work_on(by), await self._variables()
            await self._pools.start(self.scraper, workers=workers, by=by, run_id=run_id, variables=variables)
        finally:
            with suppress(LedgerError):
                await self._ledger.locks.release(lock, owner)

    async def _run_to_work_on(self, by: str) -> str | None:
        """The unfinished run, or None: the pool makes one.

        Of a scraper without start items the last run, reopened if it has ended: a new one would be empty, and whatever
        reads the latest run would show nothing.
        """
        latest = await self._run()
        unfinished = latest is not None and latest.state in UNFINISHED
        if latest is not None and unfinished and latest.sealed:
            return latest.id
        target = find_target(self._project, self.scraper)
        scraper, _ = await asyncio.to_thread(load_configured, target, self._project)
        if scraper.has_sources:
            return None  # the pool stores the start items, or the rest of them
        if latest is None:
            return (await self._ledger.runs.create(scraper.run_spec())).id
        if not unfinished:
            check_stages(scraper, latest)
            await self._ledger.runs.resume(latest.id, by=by)
        return latest.id

    async def _variables(self) -> dict[str, str]:
        """The environment of a pool: one item per worker, logs that can be read back, the folder for files."""
        settings = await self.settings()
        return {
            f"{ENV_PREFIX}CONCURRENCY": "1",
            f"{ENV_PREFIX}LOG_FORMAT": "json",
            f"{ENV_PREFIX}FILES": self._project.in_project(settings.output_dir),
        }

    async def _old_runs(self, days: int) -> list[Run]:
        before = (await ledger_now(self._ledger)) - dt.timedelta(days=days)
        found: list[Run] = []
        newest = await self._run()
        cursor = None
        while len(found) < MAX_REMOVED:
            page = await self._ledger.runs.list(scraper=self.scraper, cursor=cursor, limit=200)
            for run in page.rows:
                if newest is not None and run.id != newest.id and run.finished_at and run.finished_at < before:
                    found.append(run)
            cursor = page.cursor
            if cursor is None:
                break
        return found[:MAX_REMOVED]

    def _old_logs(self, days: int) -> list[Path]:
        before = time.time() - days * 86_400
        try:
            names = self._project.with_scraper_table(self.scraper).log_names(self.scraper)
            files = [file for file in self._pools.log_folder.iterdir() if is_log_of(file, names)]
            return [file for file in files if file.is_file() and file.stat().st_mtime < before]
        except OSError:
            return []


LEVELS = ("INFO", "WARN", "ERROR")


def job_status(run: Run | None, counts: Counts, *, is_running: bool) -> str:
    """idle, running, paused, completed or failed; the view `jobs` of the ledger says the same.

    Failed: the run has ended, and as many of its items are dead as done.
    """
    if run is None or run.state is RunState.CANCELLED:
        return "idle"
    if run.state is RunState.PAUSED:
        return "paused"
    if run.state is RunState.FINISHED:
        return "failed" if counts.dead and counts.dead >= counts.done else "completed"
    return "running" if is_running else "idle"


def format_eta(eta: tuple[float, float] | None) -> str | None:
    """`~2h 15m`: the middle of the range; None when it is unknown."""
    if eta is None:
        return None
    seconds = round(sum(eta) / 2)
    hours, minutes = divmod(round(seconds / 60), 60)
    if seconds < 60:
        return f"~{seconds}s"
    return f"~{hours}h {minutes}m" if hours else f"~{minutes}m"


def _is_running(pool: PoolStatus | None) -> bool:
    return pool is not None and pool.is_running


def _queue(run: Run | None, counts: Counts) -> QueueStats:
    return QueueStats(
        run_id=None if run is None else run.id,
        pending=counts.pending,
        delayed=counts.delayed,
        processing=counts.leased,
        completed=counts.done,
        failed=counts.dead,
        skipped=counts.skipped,
        cancelled=counts.cancelled,
        remaining=counts.remaining,
        total=counts.total,
    )


def _success_rate(counts: Counts) -> float | None:
    judged = counts.done + counts.dead
    return round(counts.done / judged, 4) if judged else None


def _average(seconds: float, attempts: int) -> float | None:
    return round(seconds / attempts, 3) if attempts else None


def _level(outcome: str, *, final: bool) -> str:
    return "INFO" if outcome == "done" else "ERROR" if final else "WARN"


def _check_workers(workers: int) -> None:
    if not 1 <= workers <= MAX_WORKERS:
        raise UsageError(f"{workers} workers: it must be from 1 to {MAX_WORKERS}.")


def _check_settings(given: Mapping[str, Any]) -> None:
    """S4.2: the bounds; a folder must stay in the project, because it may come from the network."""
    if not given:
        raise UsageError("Nothing to change.", remedy=f"Give one or more of {', '.join(_STORED)}.")
    for name, value in given.items():
        if name in _BOUNDS:
            kind, low, high = _BOUNDS[name]
            is_number = isinstance(value, int if kind is int else int | float) and not isinstance(value, bool)
            if not is_number or not low <= value <= high:
                raise UsageError(f"{name} is {value!r}; it must be from {low:g} to {high:g}.")
        elif name == "output_dir":
            path = os.path.normpath(value) if isinstance(value, str) and value.isprintable() else "."
            # Sites name files: none of them may lie beside the project's code, or where Python or Git look for theirs.
            is_hidden = any(part.startswith(".") for part in path.split(os.sep))
            if is_hidden or "://" in value or os.path.isabs(path):
                raise UsageError(
                    f"output_dir is {value!r}; it must be a folder of its own in the project, such as {DEFAULT_OUTPUT}."
                )
        else:
            raise UsageError(f"There is no setting {name!r}; there are {', '.join(_STORED)}.")
