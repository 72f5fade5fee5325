"""How `shoal pool` lets its workers work: shown while they do, obedient to signals, summed up at the end."""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from shoal.autoscale.machine import Machine
from shoal.autoscale.rules import Bounds, LoadLimits
from shoal.autoscale.scaler import Autoscaler
from shoal.cli.children import environment_of_children, passing_signals_on
from shoal.cli.pool_shown import print_work
from shoal.cli.render.session import Session
from shoal.cli.scrapers import command_line, ledger_flag
from shoal.cli.summary import exit_code, print_summary
from shoal.cli.watching import watched
from shoal.cli.working import beside
from shoal.config import Settings
from shoal.config.settings import ENV_PREFIX
from shoal.define.scraper import Scraper
from shoal.errors import LedgerError, NotFound, ShoalError
from shoal.fleet.autoscale import AUTO, DELAYS, UNIT, PoolAutoscaler, read_desired_size, watch_desired_size
from shoal.fleet.partitions import PartitionAssignment
from shoal.fleet.plan import PartitionAssigner, PartitionTotals, read_partition_totals
from shoal.fleet.pool import EXIT_SECONDS, Pool, PoolOptions
from shoal.fleet.pool_workers import PoolWorkers, SlotState
from shoal.fleet.process import Launcher
from shoal.ledger.protocols import Ledger
from shoal.model.log import Log
from shoal.model.run import Run, RunState
from shoal.observe.formatting import pluralize
from shoal.observe.logs import open_logs
from shoal.observe.progress import ProgressDisplay, follow_run, open_display
from shoal.worker.hooks import call_finish_hooks
from shoal.worker.options import StopReason, WorkSummary

LAST_LOOK_SECONDS = 1.0
PART_SECONDS = 1.0


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """What the pool begins with. `bounds`: within which it may choose how many workers it has; None if it may not.

    `kept`: the options that hold for the rest of the run too, as they were typed.
    """

    target: str
    assignment: PartitionAssignment
    logs: Path
    options: PoolOptions
    bounds: Bounds | None
    kept: str = ""


async def work_off(
    session: Session,
    scraper: Scraper,
    settings: Settings,
    ledger: Ledger,
    run: Run,
    assigner: PartitionAssigner,
    start: Start,
) -> int:
    """Until all workers have left. Returns the exit code."""
    began = time.monotonic()
    pool_workers = PoolWorkers(ledger, run.id, since=(await ledger.health.check()).clock)
    # It is the pool that tells people of alerts: it is there from the first worker to after the last.
    environment = {**environment_of_children(session, ledger=settings.ledger), f"{ENV_PREFIX}NOTIFY": ""}
    launcher = Launcher(
        *(start.target, run.id, environment, start.logs, scraper.name),
        stop_timeout=settings.drain + EXIT_SECONDS,
        only=start.options.only,
    )
    logs = open_logs(
        format=settings.log_format,
        level=settings.log_level,
        file=start.logs / f"{scraper.name}_pool.log",
        stream=None,
        secrets=settings.secrets(),
    )
    log = logs.log.bind(run=run.id)
    try:
        with open_display(session.note, quiet=session.quiet, title=f"{scraper.name} {run.id}") as show:
            log.info("the pool begins", workers=len(start.assignment))
            pool = Pool(launcher, pool_workers, assigner.assign, start.options, log=log, print_line=show.print_line)
            async with watched(settings, logs.log) as alert_thread:
                elastic = _elastic(settings, ledger, run, pool, pool_workers, start.bounds, log)
                await _supervise(ledger, run, pool, elastic, start, show)
                if not pool.stopping:
                    await ledger.upkeep.run_once()
                    await alert_thread.close((run.id,))
        await ledger.upkeep.run_once()
        await call_finish_hooks(scraper, ledger, run.id, log)
        run = await ledger.runs.get(run.id)
        totals = await pool_workers.count_by_worker([(slot.number, pid) for slot in pool.slots for pid in slot.pids])
        log.info(
            "the pool ends",
            state=run.state.value,
            workers={str(number): msgspec.to_builtins(tally) for number, tally in totals.items()},
        )
    finally:
        logs.close()
    print_work(session, pool.slots, totals)
    report = WorkSummary(
        stop_reason=StopReason.STOPPED if pool.stopping else StopReason.ORDERED,
        attempts=sum(tally.done + tally.dead for tally in totals.values()),
        seconds=time.monotonic() - began,
    )
    part = await read_partition_totals(ledger, run.id, pool.assignment) if start.options.only else None
    if run.state is RunState.FINISHED or (part is not None and not part.remaining and not pool.stopping):
        report.stop_reason = StopReason.NOTHING_LEFT
    await print_summary(session, ledger, run, report, settings, None)
    return await _farewell(session, ledger, run, pool, report, settings, start, part)


def _elastic(
    settings: Settings, ledger: Ledger, run: Run, pool: Pool, pool_workers: PoolWorkers, bounds: Bounds | None, log: Log
) -> PoolAutoscaler | None:
    if bounds is None:
        return None
    limits = LoadLimits(cpu=settings.max_cpu / 100, memory=settings.max_memory / 100)
    scaler = Autoscaler(bounds, DELAYS, limits, what=UNIT, log=log, machine=Machine())
    return PoolAutoscaler(ledger, run, pool, pool_workers, scaler, each=settings.concurrency)


async def _supervise(
    ledger: Ledger, run: Run, pool: Pool, elastic: PoolAutoscaler | None, start: Start, show: ProgressDisplay
) -> None:
    async def show_run() -> None:
        await follow_run(ledger, run.id, show)
        pool.stop_starting()

    async def apply_desired_size(workers: int) -> None:
        if elastic is not None:
            await elastic.apply_desired_size(workers)
        elif workers != AUTO:
            await pool.scale(workers)

    seen, _ = await read_desired_size(ledger, run.scraper)
    following = asyncio.create_task(show_run())
    others = [following, asyncio.create_task(watch_desired_size(ledger, run.scraper, apply_desired_size, seen))]
    if elastic is not None:
        others.append(asyncio.create_task(elastic.run()))
    if start.options.only:
        others.append(asyncio.create_task(_finish_with_its_part(ledger, run, pool)))
    try:
        with passing_signals_on(pool.stop, show.print_line, _reloading(pool, show)):
            await beside(pool.run(start.assignment), *others)
        await asyncio.wait((following,), timeout=LAST_LOOK_SECONDS)
    finally:
        for other in others:
            other.cancel()
        await asyncio.gather(*others, return_exceptions=True)


async def _finish_with_its_part(ledger: Ledger, run: Run, pool: Pool) -> None:
    """A pool that takes only its own partitions ends with them, not with the run.

    While somebody works on other items of the run, those may still yield some of ours.
    """
    while True:
        await asyncio.sleep(PART_SECONDS)
        with suppress(LedgerError, NotFound):  # others tell of outages, and of a run that was removed
            part = await read_partition_totals(ledger, run.id, pool.assignment)
            if not part.remaining and not part.busy and (await ledger.runs.get(run.id)).sealed:
                pool.finish()
                return


def _reloading(pool: Pool, show: ProgressDisplay) -> Callable[[], None]:
    reloads: set[asyncio.Task[None]] = set()

    async def reload_and_tell() -> None:
        try:
            await pool.reload()
        except ShoalError as error:
            show.print_line(f"Nothing was changed: {error.message} {error.remedy}")

    def reload() -> None:
        task = asyncio.create_task(reload_and_tell())
        reloads.add(task)
        task.add_done_callback(reloads.discard)

    return reload


async def _farewell(
    session: Session,
    ledger: Ledger,
    run: Run,
    pool: Pool,
    report: WorkSummary,
    settings: Settings,
    start: Start,
    part: PartitionTotals | None,
) -> int:
    failed = sum(slot.state in (SlotState.GAVE_UP, SlotState.HANDLER_FAILING) for slot in pool.slots)
    if run.state is RunState.ACTIVE:
        if part is not None and not part.remaining:
            session.note(
                f"The partitions of this pool are done: {pluralize(part.total, 'item')}, {part.dead} of them dead."
            )
        again = f"pool {shlex.quote(start.target)} --run-id {run.id}{start.kept}"
        session.note(f"Go on with: {command_line()} {again}{ledger_flag(settings)}")
        if failed and not pool.stopping:
            session.complain(f"The run has not ended: {pluralize(failed, 'worker')} failed.")
            return 1
        if part is not None and settings.max_dead.exceeded(part.dead, part.total):
            session.complain(f"Too many items are dead: {part.dead} of {part.total}; allowed: {settings.max_dead}.")
            return 1
    return exit_code(run, await ledger.reads.stats(run.id), report, settings)
