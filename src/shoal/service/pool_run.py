"""Runs the workers of a prepared pool until the run has ended, nothing is left for them, or they are stopped."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, nullcontext, suppress

import msgspec

from shoal.autoscale.machine import Machine
from shoal.autoscale.rules import LoadLimits
from shoal.autoscale.scaler import Autoscaler
from shoal.config.settings import ENV_PREFIX
from shoal.errors import LedgerError, LedgerTooNew, NotFound, ShoalError, UsageError
from shoal.fleet.autoscale import (
    AUTO,
    DELAYS,
    UNIT,
    PoolAutoscaler,
    read_desired_size,
    watch_desired_size,
)
from shoal.fleet.plan import (
    PartitionAssignment,
    PartitionTotals,
    read_partition_totals,
)
from shoal.fleet.pool import Pool, PoolOptions
from shoal.fleet.pool_workers import PoolSlot, PoolWorkers, SlotState, WorkerLauncher, WorkerTotals
from shoal.fleet.process import EXIT_SECONDS, child_environment, process_identity, stop_on_signals
from shoal.ledger.protocols import Ledger
from shoal.model.log import Log
from shoal.model.run import Run, RunState
from shoal.model.worker import POOL_REPORT_SECONDS, WorkerPoolSpec, new_worker_id
from shoal.service.egress import ExitLog, check_parts_are_free
from shoal.service.events import Host
from shoal.service.lookup import operator
from shoal.service.pool import PreparedPool, open_pool_log
from shoal.service.run import RunReport, make_report
from shoal.service.work import alerts, progress_events, run_beside
from shoal.worker.hooks import call_finish_hooks
from shoal.worker.state import StopReason, WorkSummary

FOLLOW_SECONDS = 0.5
LAST_PROGRESS_SECONDS = 1.0
PARTITION_POLL_SECONDS = 1.0
POOL_POLL_SECONDS = 0.25


class PoolWorkerReport(msgspec.Struct, frozen=True, kw_only=True):
    """What one worker did, in all its processes, and how it ended."""

    worker: int
    done: int
    dead: int
    skipped: int
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


async def run_pool(prepared: PreparedPool, host: Host) -> PoolReport:
    """Run the workers until the run has ended, nothing is left for them, or they are stopped.

    Raises LedgerTooNew, when they have finished their items, if the ledger was upgraded meanwhile.
    """
    ledger, run, settings, scraper = prepared.ledger, prepared.run, prepared.settings, prepared.scraper
    began = time.monotonic()
    pool_workers = PoolWorkers(ledger, run.id, since=(await ledger.health.check()).clock)
    logs = open_pool_log(settings, prepared.request, settings.log_names(scraper.name).of_pool())
    log = logs.log.bind(run=run.id)
    try:
        log.info("pool started", workers=len(prepared.plan.assignment))
        pool = _build_pool(prepared, pool_workers, log, host)
        async with alerts(settings, logs.log) as alert_thread, _registered(prepared, pool, log):
            await _supervise(prepared, pool, _build_autoscaler(prepared, pool, pool_workers, log), host)
            if pool.is_outdated:
                known = ledger.schema.known_version
                raise LedgerTooNew(
                    f"The ledger was upgraded beyond schema version {known}, the newest that this Shoal knows; the "
                    "workers have finished their items and stopped."
                )
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


def _build_pool(prepared: PreparedPool, pool_workers: PoolWorkers, log: Log, host: Host) -> Pool:
    request, settings, only = prepared.request, prepared.settings, prepared.plan.only
    # The pool delivers alerts itself: it runs from before the first worker until after the last.
    environment = {**child_environment(request.overrides, ledger=settings.ledger), f"{ENV_PREFIX}NOTIFY": ""}
    launcher = WorkerLauncher(
        *(request.target, prepared.run.id, environment, request.logs, settings.log_names(prepared.scraper.name)),
        stop_timeout=settings.drain + EXIT_SECONDS,
        only=only,
        options_of=_options_of(prepared),
    )
    options = PoolOptions(stagger=request.stagger, max_restarts=request.max_restarts, only=only)

    async def replan(workers: int | None) -> PartitionAssignment:
        """Raises UsageError also when the exits of further workers are those of another pool's."""
        places = prepared.assigner.places
        assignment = await prepared.assigner.assign(workers)
        plan = msgspec.structs.replace(prepared.plan, assignment=assignment, places=prepared.assigner.places)
        try:
            await check_parts_are_free(prepared.ledger, settings, plan.parts, own=pool.pids, notice=host.notice)
        except UsageError:
            prepared.assigner.places = places
            raise
        return assignment

    pool = Pool(launcher, pool_workers, replan, options, log=log, print_line=host.notice)
    return pool


def _options_of(prepared: PreparedPool) -> Callable[[int], tuple[str, ...]]:
    """The options of a worker, by its number: its part of exits that are fixed, where it exports its metrics."""
    metrics = prepared.request.metrics
    is_fixed = any(planned.fixed for planned in prepared.plan.egress)

    def options(number: int) -> tuple[str, ...]:
        place = (f"--place={number}/{prepared.assigner.places}",) if is_fixed else ()
        if metrics is None:
            return place
        own = metrics.of_worker(number)
        return *place, f"--metrics-port={own.port}", f"--metrics-host={own.host}"

    return options


def _build_autoscaler(prepared: PreparedPool, pool: Pool, pool_workers: PoolWorkers, log: Log) -> PoolAutoscaler | None:
    settings, bounds = prepared.settings, prepared.request.bounds
    if bounds is None:
        return None
    limits = LoadLimits(cpu=settings.max_cpu / 100, memory=settings.max_memory / 100)
    scaler = Autoscaler(bounds, DELAYS, limits, what=UNIT, log=log, machine=Machine())
    return PoolAutoscaler(
        prepared.ledger, prepared.run, pool, pool_workers, scaler, items_per_worker=settings.concurrency
    )


@asynccontextmanager
async def _registered(prepared: PreparedPool, pool: Pool, log: Log) -> AsyncIterator[None]:
    """Keep the row of the pool in the ledger for the length of a block. An outage of the ledger stops nothing."""
    ledger, request = prepared.ledger, prepared.request
    spec = WorkerPoolSpec(
        id=f"pool-{new_worker_id()}",
        scraper=prepared.scraper.name,
        run_id=prepared.run.id,
        node=socket.gethostname(),
        pid=os.getpid(),
        process=process_identity(os.getpid()) or "",
        logs=str(request.logs.absolute()),
        by=operator(),
        wanted=len(prepared.plan.assignment),
    )
    with suppress(LedgerError):
        await ledger.pools.register(spec)
    reporting = asyncio.create_task(_report_pool(ledger, spec, pool))
    why = "failed"
    try:
        yield
        why = "stopped" if pool.stopping else "nothing left to do"
    finally:
        reporting.cancel()
        await asyncio.gather(reporting, return_exceptions=True)
        try:
            await ledger.pools.end(spec.id, why)
        except LedgerError as error:
            log.warning("the end of the pool was not recorded", error=error.message)


async def _report_pool(ledger: Ledger, spec: WorkerPoolSpec, pool: Pool) -> None:
    """Record the size of the pool when it changes, and every few seconds; until cancelled."""
    reported, at = None, time.monotonic()
    while True:
        size = len(pool.pids), pool.size or spec.wanted, pool.stopping
        if size != reported or time.monotonic() - at > POOL_REPORT_SECONDS:
            with suppress(LedgerError):
                if not await ledger.pools.report(spec.id, workers=size[0], wanted=size[1], stopping=size[2]):
                    await ledger.pools.register(spec)  # the ledger was away when it began
                reported, at = size, time.monotonic()
        await asyncio.sleep(POOL_POLL_SECONDS)


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
    if prepared.plan.egress:
        others.append(asyncio.create_task(_log_exits(prepared)))
    try:
        async with progress_events(ledger, run.id, host, every=FOLLOW_SECONDS) as following:
            following.add_done_callback(lambda task: None if task.cancelled() else pool.stop_starting())
            with signals if host.handles_signals else nullcontext():
                await run_beside(pool.run(prepared.plan.assignment), following, *others)
            if not pool.stopping:  # else the run does not end, and whoever stops the pool waits for its process
                await asyncio.wait((following,), timeout=LAST_PROGRESS_SECONDS)
    finally:
        for other in others:
            other.cancel()
        await asyncio.gather(*others, return_exceptions=True)


async def _log_exits(prepared: PreparedPool) -> None:
    """Log in a file of its own what happens to the exits, until cancelled."""
    settings = prepared.settings
    logs = open_pool_log(settings, prepared.request, settings.log_names(prepared.scraper.name).of_egress())
    pools = [planned.pool for planned in prepared.plan.egress]
    exit_log = ExitLog(prepared.ledger, pools, logs.log.bind(run=prepared.run.id))
    try:
        await exit_log.run()
    finally:
        await exit_log.read()
        logs.close()


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
        attempts=sum(each.attempts for each in totals.values()),
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
        yield PoolWorkerReport(
            worker=number,
            done=total.done,
            dead=total.dead,
            skipped=total.skipped,
            restarts=restarts,
            end=slot.state.value,
        )
