"""Pools: check everything, plan which worker gets which partitions, run the workers, report.

`prepare_pool` makes the run and the plan, `run_pool` starts the workers; a caller may ask the operator in between.
`preview_pool` makes the same plan and changes nothing.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path

import msgspec

from shoal.autoscale.machine import Machine
from shoal.autoscale.rules import Bounds, LoadLimits
from shoal.autoscale.scaler import Autoscaler
from shoal.config import Settings
from shoal.config.settings import ENV_PREFIX
from shoal.define.scraper import Scraper
from shoal.errors import InvalidSetting, LedgerError, LedgerNotMigrated, NotFound, ShoalError, UsageError
from shoal.feeds.url_file import UrlFile
from shoal.fleet.autoscale import (
    AUTO,
    DELAYS,
    UNIT,
    PoolAutoscaler,
    read_desired_size,
    set_desired_size,
    watch_desired_size,
)
from shoal.fleet.partitions import PartitionAssignment
from shoal.fleet.plan import (
    PartitionAssigner,
    PartitionTotals,
    PlannedWorker,
    Workload,
    plan_workers,
    read_partition_totals,
    read_workload,
)
from shoal.fleet.pool import Pool, PoolOptions
from shoal.fleet.pool_workers import PoolSlot, PoolWorkers, SlotState, WorkerLauncher, WorkerTotals
from shoal.fleet.process import EXIT_SECONDS, child_environment, stop_on_signals
from shoal.ledger.protocols import Entry, Ledger
from shoal.model.item import NewItem
from shoal.model.log import Log
from shoal.model.run import Run, RunState
from shoal.notify.delivery import check_addresses
from shoal.observe.doctor import Check
from shoal.observe.formatting import pluralize
from shoal.observe.logs import Logs, open_logs
from shoal.service.begin import (
    FillProgress,
    RunChoice,
    RunPlan,
    check_has_start_items,
    check_list_is_complete,
    fill_run,
    open_run,
    plan_run,
    remove_empty,
)
from shoal.service.events import CheckFinished, Host
from shoal.service.run import RunReport, make_report, report_paused, report_refused
from shoal.service.work import alerts, free_local_ledger, progress_events, run_beside
from shoal.wiring import ledger_context, sqlite_path
from shoal.worker.hooks import call_finish_hooks, call_start_hooks
from shoal.worker.options import StopReason, WorkSummary
from shoal.worker.single_lock import hold_file_lock

BY = "shoal pool"
MAX_COUNTED = 100_000
FOLLOW_SECONDS = 0.5
LAST_PROGRESS_SECONDS = 1.0
PARTITION_POLL_SECONDS = 1.0


class PoolRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What to run, and with how many workers.

    `target`: the scraper as `shoal worker` finds it. `choice`, `run_id`: which run. `urls`: items besides those of the
    scraper. `workers`: how many; None leaves it to the assignment file, the setting `workers`, or the number of cores.
    `bounds`: the pool chooses within them. `assign`: the assignment file. `partitions`: those to assign, none for all.
    `only`: workers take nothing but their own partitions. `first`: start only so many workers of the plan.
    `overrides`: settings that flags gave; workers get them as variables. `reload`: reads the settings again.
    """

    target: str
    logs: Path
    choice: RunChoice = RunChoice.AUTO
    run_id: str | None = None
    urls: UrlFile | None = None
    workers: int | None = None
    bounds: Bounds | None = None
    assign: Path | None = None
    partitions: tuple[str, ...] = ()
    only: bool = False
    first: int | None = None
    stagger: tuple[float, float] = (2.0, 5.0)
    max_restarts: int = 5
    overrides: Mapping[str, str | None] = {}
    reload: Callable[[], Settings] | None = None


class PoolPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Which worker gets what. `run`: None when it would be a new one. `only`: workers keep to their own partitions."""

    run: Run | None
    workload: Workload
    assignment: PartitionAssignment
    only: bool
    bounds: Bounds | None = None

    @property
    def workers(self) -> list[PlannedWorker]:
        return plan_workers(self.workload, self.assignment, only=self.only)


class PreparedPool(msgspec.Struct, frozen=True, kw_only=True):
    """A run with its items, and the plan for it. `is_new`: the run was made for this pool."""

    scraper: Scraper
    settings: Settings
    request: PoolRequest
    ledger: Ledger
    run: Run
    is_new: bool
    plan: PoolPlan
    assigner: PartitionAssigner

    async def discard(self) -> None:
        """Remove a run that was made for this pool; one that was there before stays as it is."""
        if self.is_new:
            await self.ledger.runs.remove(self.run.id, by=BY)


class PoolWorkerReport(msgspec.Struct, frozen=True, kw_only=True):
    """What one worker did, in all its processes, and how it ended."""

    worker: int
    done: int
    dead: int
    restarts: int
    end: str


class PoolReport(msgspec.Struct, frozen=True, kw_only=True):
    """How a pool ended. `partitions`: totals of its partitions, if it takes no others. `stopped`: on request.

    `failed_workers`: how many were given up.
    """

    run: RunReport
    work: WorkSummary
    workers: tuple[PoolWorkerReport, ...]
    partitions: PartitionTotals | None
    stopped: bool
    failed_workers: int


@contextmanager
def run_check(name: str, host: Host) -> Iterator[Callable[[str], None]]:
    """Emit `CheckFinished` at the end of the block; what its function was given is the text.

    A ShoalError is emitted as a failed check, and raised.
    """
    texts: list[str] = []
    try:
        yield texts.append
    except ShoalError as error:
        host.on_event(CheckFinished(check=Check(name=name, ok=False, text=error.message, fix=error.remedy)))
        raise
    host.on_event(CheckFinished(check=Check(name=name, ok=True, text=" ".join(texts))))


async def preview_pool(scraper: Scraper, settings: Settings, request: PoolRequest, host: Host) -> PoolPlan:
    """The checks and the plan; the ledger is not changed."""
    await _check_alerts(settings, host)
    run: Run | None = None
    with run_check("ledger", host) as passed:
        try:
            async with ledger_context(settings, migrate=False) as ledger:
                run = (await _choose_run(ledger, scraper, request)).run
                workload = Workload(waiting={}) if run is None else await read_workload(ledger, run.id)
            passed("answers, its schema is this version's")
        except LedgerNotMigrated:
            if sqlite_path(settings.ledger) is None:
                raise
            passed("will be created")
    with run_check("run", host) as passed:
        if run is None:
            check_has_start_items(scraper, request.urls, RunPlan(run=None))
            workload = await _count_start_items(scraper, request.urls)
        _check_has_items(workload, run.id if run else "to be made")
        passed("a new one" if run is None else _describe_run(run, workload))

    async def read() -> Workload:
        return workload

    return await _make_plan(_assigner(scraper, settings, request, read), run, workload, request, host)


@asynccontextmanager
async def prepare_pool(
    scraper: Scraper, settings: Settings, request: PoolRequest, host: Host
) -> AsyncIterator[PreparedPool]:
    """Check everything, create or resume the run with its items, and plan; nothing is started.

    The ledger stays open, and a SQLite ledger locked for this scraper, until the block ends. Every check is a
    `CheckFinished` event; the first that fails raises its error.
    """
    await _check_alerts(settings, host)
    async with AsyncExitStack() as held:
        with run_check("ledger", host) as passed:
            ledger = await held.enter_async_context(ledger_context(settings, on_waiting=host.notice))
            passed("answers, its schema is this version's")
        with run_check("logs", host) as passed:
            _make_folder(request.logs)
            passed(str(request.logs))
        with run_check("run", host) as passed:
            if (file := sqlite_path(settings.ledger)) is not None:
                held.enter_context(hold_file_lock(scraper.name, file))
            run, is_new = await _open_run_with_items(ledger, scraper, settings, request, host)
            workload = await read_workload(ledger, run.id)
            _check_has_items(workload, run.id)
            passed(_describe_run(run, workload))
        assigner = _assigner(scraper, settings, request, partial(read_workload, ledger, run.id))
        plan = await _make_plan(assigner, run, workload, request, host)
        yield PreparedPool(
            scraper=scraper,
            settings=settings,
            request=request,
            ledger=ledger,
            run=run,
            is_new=is_new,
            plan=plan,
            assigner=assigner,
        )


async def run_pool(prepared: PreparedPool, host: Host) -> PoolReport:
    """Run the workers until the run has ended, nothing is left for them, or they are stopped."""
    ledger, run, settings, scraper = prepared.ledger, prepared.run, prepared.settings, prepared.scraper
    began = time.monotonic()
    pool_workers = PoolWorkers(ledger, run.id, since=(await ledger.health.check()).clock)
    logs = _open_pool_logs(scraper, settings, prepared.request)
    log = logs.log.bind(run=run.id)
    try:
        log.info("pool started", workers=len(prepared.plan.assignment))
        pool = _build_pool(prepared, pool_workers, log, host)
        async with alerts(settings, logs.log) as alert_thread:
            await _supervise(prepared, pool, _build_autoscaler(prepared, pool, pool_workers, log), host)
            if not pool.stopping:
                await ledger.upkeep.run_once()
                await alert_thread.close((run.id,))
        await ledger.upkeep.run_once()
        await call_finish_hooks(scraper, ledger, run.id, log)
        totals = await pool_workers.count_by_worker([(slot.number, pid) for slot in pool.slots for pid in slot.pids])
        log.info("pool stopped", workers={str(number): msgspec.to_builtins(each) for number, each in totals.items()})
    finally:
        logs.close()
    return await _make_report(prepared, pool, totals, time.monotonic() - began)


async def scale_pools(settings: Settings, scraper: str, workers: int | None, *, by: str) -> int:
    """Ask the running pools of a scraper for so many workers; None lets pools with bounds choose again.

    Returns how many workers of the scraper are running. Raises NotFound when there are none, so no pool.
    """
    async with ledger_context(settings, migrate=False) as ledger:
        present = sum(worker.alive and worker.scope.scraper == scraper for worker in await ledger.workers.list())
        if not present:
            raise NotFound(
                f"No worker of {scraper} is running, so there is no pool to scale.",
                remedy="Start one with `shoal pool`.",
            )
        await set_desired_size(ledger, scraper, AUTO if workers is None else workers, by=by)
        return present


async def _check_alerts(settings: Settings, host: Host) -> None:
    if settings.notify:
        with run_check("alerts", host) as passed:
            await check_addresses(settings)
            passed(f"go to {settings.notify}")


async def _choose_run(ledger: Ledger, scraper: Scraper, request: PoolRequest) -> RunPlan:
    if request.run_id is None:
        return await plan_run(ledger, scraper, request.choice)
    run = await ledger.runs.get(request.run_id)
    if run.scraper != scraper.name:
        raise UsageError(f"The run {run.id} belongs to {run.scraper}, not to {scraper.name}.")
    return RunPlan(run=run, remaining=(await ledger.reads.stats(run.id)).remaining)


async def _open_run_with_items(
    ledger: Ledger, scraper: Scraper, settings: Settings, request: PoolRequest, host: Host
) -> tuple[Run, bool]:
    """The run, and whether it was made for this pool."""
    plan = await _choose_run(ledger, scraper, request)
    if request.run_id is None:
        check_has_start_items(scraper, request.urls, plan)
        await check_list_is_complete(ledger, plan, request.urls)
    run = await open_run(ledger, scraper, plan, scraper.run_spec(), by=BY)
    report_paused(plan, host.on_event)
    await free_local_ledger(settings, ledger, run, host, by=BY)
    if request.run_id is None:
        logs = _open_pool_logs(scraper, settings, request)
        try:
            await call_start_hooks(scraper, ledger, run, logs.log.bind(run=run.id))
        finally:
            logs.close()
        await _fill(ledger, scraper, plan, run, request.urls, host)
    return run, plan.run is None


async def _fill(ledger: Ledger, scraper: Scraper, plan: RunPlan, run: Run, urls: UrlFile | None, host: Host) -> None:
    progress = FillProgress()
    try:
        await fill_run(ledger, run, scraper, urls, progress, by=BY)
    except UsageError:
        await remove_empty(ledger, plan, run, progress, by=BY)
        raise
    finally:
        report_refused(urls, progress, host.on_event)


async def _make_plan(
    assigner: PartitionAssigner, run: Run | None, workload: Workload, request: PoolRequest, host: Host
) -> PoolPlan:
    with run_check("partitions", host) as passed:
        assignment = await assigner.assign()
        if request.only and not any(assignment):
            raise UsageError("The items of the run have no partitions.", remedy="Leave --only out.")
        partitions = sum(1 for name in workload.waiting if name)
        passed(f"{pluralize(partitions, 'partition')}, {pluralize(len(assignment), 'worker')}")
        if assigner.unknown:
            passed(f"(no items of {', '.join(assigner.unknown)} in the run)")
    # A test of a run without partitions takes any item.
    only = request.only or (request.first is not None and any(assignment))
    return PoolPlan(run=run, workload=workload, assignment=assignment, only=only, bounds=request.bounds)


def _assigner(
    scraper: Scraper, settings: Settings, request: PoolRequest, read: Callable[[], Awaitable[Workload]]
) -> PartitionAssigner:
    def configured() -> int:
        """How many workers the settings ask for now; one per core when they do not say."""
        if request.reload is None:
            return settings.workers or _cores()
        return request.reload().for_scraper(scraper.name, mode=scraper.mode).workers or _cores()

    return PartitionAssigner(
        read,
        assignment=request.assign,
        workers=request.workers if request.bounds is None else request.bounds.least,
        configured=configured,
        partitions=request.partitions,
        first=request.first,
    )


async def _count_start_items(scraper: Scraper, urls: UrlFile | None) -> Workload:
    """What a new run would begin with; at most MAX_COUNTED items of each source are counted."""
    waiting: Counter[str] = Counter()
    sources: list[AsyncIterable[Entry]] = [scraper.seeds(), *([urls] if urls is not None else [])]
    for source in sources:
        async for entry in source:
            waiting[entry.partition if isinstance(entry, NewItem) else ""] += 1
            if waiting.total() >= MAX_COUNTED:
                break
    return Workload(waiting=waiting, total=waiting.total())


def _check_has_items(workload: Workload, run_id: str) -> None:
    if not workload.total:
        raise UsageError(f"The run {run_id} has no items.", remedy="Give it some: start(...), or --urls-file.")


def _describe_run(run: Run, workload: Workload) -> str:
    return f"{run.id}, {workload.done} of {pluralize(workload.total, 'item')} done"


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidSetting(
            f"The folder {folder} cannot be made: {error.strerror}.", remedy="Choose another with --log-dir."
        ) from None


def _open_pool_logs(scraper: Scraper, settings: Settings, request: PoolRequest) -> Logs:
    file = request.logs / f"{scraper.name}_pool.log"
    return open_logs(
        format=settings.log_format, level=settings.log_level, file=file, stream=None, secrets=settings.secrets()
    )


def _build_pool(prepared: PreparedPool, pool_workers: PoolWorkers, log: Log, host: Host) -> Pool:
    request, settings, only = prepared.request, prepared.settings, prepared.plan.only
    # The pool delivers alerts itself: it runs from before the first worker until after the last.
    environment = {**child_environment(request.overrides, ledger=settings.ledger), f"{ENV_PREFIX}NOTIFY": ""}
    launcher = WorkerLauncher(
        *(request.target, prepared.run.id, environment, request.logs, prepared.scraper.name),
        stop_timeout=settings.drain + EXIT_SECONDS,
        only=only,
    )
    options = PoolOptions(stagger=request.stagger, max_restarts=request.max_restarts, only=only)
    return Pool(launcher, pool_workers, prepared.assigner.assign, options, log=log, print_line=host.notice)


def _build_autoscaler(prepared: PreparedPool, pool: Pool, pool_workers: PoolWorkers, log: Log) -> PoolAutoscaler | None:
    settings, bounds = prepared.settings, prepared.request.bounds
    if bounds is None:
        return None
    limits = LoadLimits(cpu=settings.max_cpu / 100, memory=settings.max_memory / 100)
    scaler = Autoscaler(bounds, DELAYS, limits, what=UNIT, log=log, machine=Machine())
    return PoolAutoscaler(
        prepared.ledger, prepared.run, pool, pool_workers, scaler, items_per_worker=settings.concurrency
    )


async def _supervise(prepared: PreparedPool, pool: Pool, autoscaler: PoolAutoscaler | None, host: Host) -> None:
    """Run the pool while progress, desired size, autoscaler and own partitions are watched."""
    ledger, run = prepared.ledger, prepared.run

    async def apply_desired_size(workers: int) -> None:
        if autoscaler is not None:
            await autoscaler.apply_desired_size(workers)
        elif workers != AUTO:
            await pool.scale(workers)

    seen, _ = await read_desired_size(ledger, run.scraper)
    host.stop.attach(pool.stop, pool.stop)
    signals = stop_on_signals(host.stop.request, host.notice, _reloading(pool, host))
    others = [asyncio.create_task(watch_desired_size(ledger, run.scraper, apply_desired_size, seen))]
    if autoscaler is not None:
        others.append(asyncio.create_task(autoscaler.run()))
    if prepared.plan.only:
        others.append(asyncio.create_task(_finish_with_partitions(ledger, run, pool)))
    try:
        async with progress_events(ledger, run.id, host, every=FOLLOW_SECONDS) as following:
            following.add_done_callback(lambda task: None if task.cancelled() else pool.stop_starting())
            with signals if host.handles_signals else nullcontext():
                await run_beside(pool.run(prepared.plan.assignment), following, *others)
            await asyncio.wait((following,), timeout=LAST_PROGRESS_SECONDS)
    finally:
        for other in others:
            other.cancel()
        await asyncio.gather(*others, return_exceptions=True)


async def _finish_with_partitions(ledger: Ledger, run: Run, pool: Pool) -> None:
    """Stop a pool that takes only its own partitions when these are done, though the run may not be.

    While other items of the run are being worked on, they may still yield items of these partitions.
    """
    while True:
        await asyncio.sleep(PARTITION_POLL_SECONDS)
        with suppress(LedgerError, NotFound):  # an outage, or a run that was removed, is reported elsewhere
            totals = await read_partition_totals(ledger, run.id, pool.assignment)
            if not totals.remaining and not totals.busy and (await ledger.runs.get(run.id)).sealed:
                pool.finish()
                return


def _reloading(pool: Pool, host: Host) -> Callable[[], None]:
    tasks: set[asyncio.Task[None]] = set()

    async def reload() -> None:
        try:
            await pool.reload()
        except ShoalError as error:
            host.notice(f"Nothing was changed: {error.message} {error.remedy}")

    def start() -> None:
        task = asyncio.create_task(reload())
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    return start


async def _make_report(
    prepared: PreparedPool, pool: Pool, totals: Mapping[int, WorkerTotals], seconds: float
) -> PoolReport:
    ledger = prepared.ledger
    work = WorkSummary(
        stop_reason=StopReason.STOPPED if pool.stopping else StopReason.ORDERED,
        attempts=sum(each.done + each.dead for each in totals.values()),
        seconds=seconds,
    )
    run = await ledger.runs.get(prepared.run.id)
    own = await read_partition_totals(ledger, run.id, pool.assignment) if prepared.plan.only else None
    if run.state is RunState.FINISHED or (own is not None and not own.remaining and not pool.stopping):
        work.stop_reason = StopReason.NOTHING_LEFT
    failed = (SlotState.GAVE_UP, SlotState.HANDLER_FAILING)
    return PoolReport(
        run=await make_report(ledger, prepared.settings, run.id, work=work, resumed=not prepared.is_new),
        work=work,
        workers=tuple(_worker_reports(pool.slots, totals)),
        partitions=own,
        stopped=pool.stopping,
        failed_workers=sum(slot.state in failed for slot in pool.slots),
    )


def _worker_reports(slots: list[PoolSlot], totals: Mapping[int, WorkerTotals]) -> Iterator[PoolWorkerReport]:
    """One per number: a slot that was given up and started again counts together, with its last state."""
    last = {slot.number: slot for slot in slots}
    for number, slot in last.items():
        total = totals.get(number, WorkerTotals())
        restarts = sum(each.restarts for each in slots if each.number == number)
        yield PoolWorkerReport(worker=number, done=total.done, dead=total.dead, restarts=restarts, end=slot.state.value)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
