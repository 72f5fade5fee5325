"""How `shoal worker` helps with runs."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from shoal.cli.finding import naming_the_ledger
from shoal.cli.session import Session
from shoal.cli.watching import tell_end, watched
from shoal.cli.working import INTERRUPTED, TIMED_OUT, end_when_hung, obeying_signals, open_logs_for, settle_memory
from shoal.config import Settings
from shoal.define.scraper import Scraper
from shoal.errors import UnknownStage
from shoal.ledger.protocols import Ledger
from shoal.model.log import Log
from shoal.model.run import RunState
from shoal.model.worker import Scope
from shoal.notify.delivery import check_addresses
from shoal.observe.formatting import pluralize
from shoal.observe.progress import follow_run, open_display
from shoal.service.begin import mark_local_dead_workers
from shoal.wiring import build_fetcher, build_worker, ledger_context, sqlite_path, worker_options
from shoal.worker.claim import open_runs, report_idle_reason, runs_in_scope
from shoal.worker.hooks import RUNS_WATCHED, watch_finished_runs
from shoal.worker.options import StopReason, WorkSummary
from shoal.worker.worker import Worker

# Every worker of a fleet asks the ledger: seldom enough for many, often enough for a person.
FOLLOW_SECONDS = 2.0
MAX_NAMED = 5


def exit_code_of(report: WorkSummary) -> int:
    return {StopReason.STOPPED: INTERRUPTED, StopReason.TIMED_OUT: TIMED_OUT, StopReason.BROKEN: 1}.get(
        report.stop_reason, 0
    )


async def help_out(
    session: Session,
    scraper: Scraper,
    settings: Settings,
    scope: Scope,
    timeout: float | None,
    chosen: dict[str, Any],
) -> WorkSummary:
    await check_addresses(settings)
    async with ledger_context(settings, on_waiting=session.note) as ledger:
        with naming_the_ledger(settings):
            for run_id in scope.run_ids:
                await ledger.runs.get(run_id)
        if sqlite_path(settings.ledger) is not None:
            await mark_local_dead_workers(ledger)
        fetcher = build_fetcher(settings)
        logs = open_logs_for(session, settings, f"{scraper.name}-worker", session.note)
        options = worker_options(scraper, settings, scope, **chosen)
        end = end_when_hung(logs, session)
        worker = build_worker(scraper, settings, ledger, fetcher, options, log=logs.log, end_process=end)
        if timeout is not None:
            asyncio.get_running_loop().call_later(timeout, worker.drain, StopReason.TIMED_OUT)
        settle_memory()
        try:
            async with watched(settings, logs.log) as alert_thread:
                async with _calling_finish_hooks(scraper, ledger, scope, logs.log):
                    report = await _work(session, ledger, scraper, scope, worker)
                    logs.log.info("the worker leaves", **msgspec.to_builtins(report))
                runs = await runs_in_scope(ledger, scope, newest=RUNS_WATCHED)
                await tell_end(alert_thread, [run.id for run in runs], report)
        finally:
            await fetcher.close()
            logs.close()
    _tell_end(session, report)
    return report


async def _work(session: Session, ledger: Ledger, scraper: Scraper, scope: Scope, worker: Worker) -> WorkSummary:
    """Somebody who looks at the terminal sees that it works; of one run, how far that is."""
    session.note(f"Working on {await _served(ledger, scope)} of {scraper.name}; Ctrl-C stops.")
    if len(scope.run_ids) != 1 or not sys.stderr.isatty():
        explaining = asyncio.create_task(report_idle_reason(ledger, scope, lambda: worker.idle, session.note))
        try:
            with obeying_signals(worker, session.note):
                return await worker.work()
        finally:
            explaining.cancel()
            await asyncio.gather(explaining, return_exceptions=True)
    (run_id,) = scope.run_ids
    with open_display(session.note, quiet=session.quiet, title=f"{scraper.name} {run_id}") as show:
        following = asyncio.create_task(follow_run(ledger, run_id, show, every=FOLLOW_SECONDS))
        try:
            with obeying_signals(worker, show.print_line):
                return await worker.work()
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)


async def _served(ledger: Ledger, scope: Scope) -> str:
    """Which runs there are to work on, each that is not active with its state."""
    runs = await open_runs(ledger, scope)
    if not runs:
        return f"run {', '.join(scope.run_ids)}" if scope.run_ids else "the runs to come"
    named = [run.id if run.state is RunState.ACTIVE else f"{run.id} ({run.state.value})" for run in runs[:MAX_NAMED]]
    more = f" and {len(runs) - MAX_NAMED} more" if len(runs) > MAX_NAMED else ""
    return f"{'run' if len(runs) == 1 else 'runs'} {', '.join(named)}{more}"


@asynccontextmanager
async def _calling_finish_hooks(scraper: Scraper, ledger: Ledger, scope: Scope, log: Log) -> AsyncIterator[None]:
    """While the block runs, and when it has ended, finished runs get the author's hooks."""
    ended = asyncio.Event()
    watching = asyncio.create_task(watch_finished_runs(scraper, ledger, scope, log, until=ended))
    try:
        yield
        ended.set()
        await watching
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


def check_stages(scraper: Scraper, stages: list[str]) -> None:
    for name in stages:
        if name not in scraper.stages:
            raise UnknownStage(f"{scraper.name} has no stage {name!r}; it has {', '.join(scraper.stages)}.")


def _tell_end(session: Session, report: WorkSummary) -> None:
    if report.stop_reason is StopReason.NOTHING_LEFT:
        session.note("No more records to claim.")  # S0.22
    session.note(
        f"{report.worker} leaves ({report.stop_reason.value}): {report.done} done, {report.dead} dead, "
        f"{report.retried} to be tried again, {report.given_back} given back, {pluralize(report.records, 'record')} "
        f"in {report.seconds:.1f} s."
    )
