"""`shoal worker`: one process that helps with a run; start as many as you like, on any machine."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from shoal.cli.options import with_options
from shoal.cli.scrapers import Concurrency, Target, load
from shoal.cli.session import Session
from shoal.cli.working import INTERRUPTED, TIMED_OUT, obeying_signals, open_logs_for

if TYPE_CHECKING:
    from shoal.config import Settings
    from shoal.define.scraper import Scraper
    from shoal.ledger.protocols import Ledger
    from shoal.model.log import Log
    from shoal.model.worker import Scope
    from shoal.worker.options import WorkReport


@with_options
def worker(
    session: Session,
    scraper: Target,
    run_id: Annotated[str | None, typer.Option(help="Only this run; otherwise all runs of the scraper.")] = None,
    stage: Annotated[list[str], typer.Option(help="Only this stage; may be repeated.")] = [],  # noqa: B006
    partition: Annotated[list[str], typer.Option(help="This partition first; may be repeated.")] = [],  # noqa: B006
    only: Annotated[bool, typer.Option("--only", help="Nothing but the partitions given, ever.")] = False,
    batch_size: Annotated[int | None, typer.Option(min=1, max=10_000, help="Items per claim, at most.")] = None,
    concurrency: Concurrency = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Leave after so many items.")] = None,
    timeout: Annotated[float | None, typer.Option(min=0.1, help="Leave after so many seconds, exit 124.")] = None,
    drain: Annotated[bool, typer.Option("--drain", help="Leave as soon as nothing is claimable.")] = False,
    forever: Annotated[bool, typer.Option("--forever", help="Stay when nothing is left, for runs to come.")] = False,
) -> None:
    """Work on a scraper's runs until nothing is left. Join and leave at any time."""
    if drain and forever:
        raise typer.BadParameter("give one of --drain and --forever.", param_hint="--drain")
    found, settings = load(session, scraper, concurrency=concurrency, batch_size=batch_size)
    _check_stages(found, stage)
    from shoal.model.worker import Scope

    scope = Scope(
        scraper=found.name,
        run_ids=(run_id,) if run_id else (),
        stages=tuple(stage),
        partitions=tuple(partition),
        steal=not only,
    )
    chosen = {"limit": limit, "leave_when_idle": drain, "forever": forever}
    report = session.wait(_work(session, found, settings, scope, timeout, chosen), fast=True)
    if session.json:
        session.record(report)
    raise typer.Exit(_exit_code(report))


def _exit_code(report: WorkReport) -> int:
    from shoal.worker.options import Ending

    return {Ending.STOPPED: INTERRUPTED, Ending.TIMED_OUT: TIMED_OUT}.get(report.ending, 0)


async def _work(
    session: Session,
    scraper: Scraper,
    settings: Settings,
    scope: Scope,
    timeout: float | None,
    chosen: dict[str, Any],
) -> WorkReport:
    from shoal import __version__
    from shoal.wiring import build_fetcher, build_worker, opened
    from shoal.worker.options import Ending, WorkerOptions

    async with opened(settings) as ledger:
        for run_id in scope.run_ids:
            await ledger.runs.get(run_id)
        fetcher = build_fetcher(settings)
        logs = open_logs_for(session, settings, f"{scraper.name}-worker", session.note)
        options = WorkerOptions(
            scope=scope,
            concurrency=settings.concurrency,
            batch_size=settings.batch_size,
            lease=settings.lease,
            drain=settings.drain,
            patience=settings.patience,
            version=__version__,
            **chosen,
        )
        worker = build_worker(scraper, settings, ledger, fetcher, options, log=logs.log)
        if timeout is not None:
            asyncio.get_running_loop().call_later(timeout, worker.drain, Ending.TIMED_OUT)
        try:
            with obeying_signals(worker, session.note):
                report = await worker.work()
            logs.log.info("the worker leaves", **msgspec.to_builtins(report))
            await _finish(scraper, ledger, scope, logs.log)
        finally:
            await fetcher.close()
            logs.close()
    _tell_end(session, report)
    return report


async def _finish(scraper: Scraper, ledger: Ledger, scope: Scope, log: Log) -> None:
    """Whoever sees that a run has finished first calls the author's hooks."""
    from shoal.worker.hooks import call_finish_hooks

    run_ids = scope.run_ids or [run.id for run in (await ledger.runs.list(scraper=scraper.name, limit=20)).rows]
    for run_id in run_ids:
        await call_finish_hooks(scraper, ledger, run_id, log)


def _check_stages(scraper: Scraper, stages: list[str]) -> None:
    from shoal.errors import UnknownStage

    for name in stages:
        if name not in scraper.stages:
            raise UnknownStage(f"{scraper.name} has no stage {name!r}; it has {', '.join(scraper.stages)}.")


def _tell_end(session: Session, report: WorkReport) -> None:
    from shoal.worker.options import Ending

    if report.ending is Ending.NOTHING_LEFT:
        session.note("No more records to claim.")  # S0.22
    session.note(
        f"{report.worker} leaves ({report.ending.value}): {report.done} done, {report.dead} dead, "
        f"{report.retried} to be tried again, {report.given_back} given back, {report.records} records "
        f"in {report.seconds:.1f} s."
    )
