"""`shoal workers`: list the workers of the ledger, and drain them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.render.options import with_options
from shoal.cli.render.session import Session
from shoal.service import inspect, records, steer
from shoal.service.lookup import operator

if TYPE_CHECKING:
    from shoal.ledger.protocols import Ledger
    from shoal.model.worker import WorkerView

MAX_PROBLEMS = 5

app = typer.Typer()


@app.command()
@with_options
def ls(
    session: Session,
    gone: Annotated[bool, typer.Option("--all", help="Also those that stopped or were lost.")] = False,
) -> None:
    """List the workers, newest first."""
    workers = session.with_ledger(lambda ledger: inspect.list_workers(ledger, present=not gone))
    if session.json:
        for status in workers:
            session.record(records.worker_record(status))
    elif workers:
        _print_workers(session, workers)
    else:
        session.note("There are no workers." if gone else "No worker is present; --all shows those that left.")


@app.command()
@with_options
def stop(
    session: Session,
    worker: Annotated[str | None, typer.Argument(metavar="WORKER", help="A worker's id.", show_default=False)] = None,
    run: Annotated[str | None, typer.Option("--run", metavar="RUN", help="All workers of this run instead.")] = None,
) -> None:
    """Drain workers: from their next heartbeat on they finish their running items, claim no more and exit."""
    if (worker is None) == (run is None):
        raise typer.BadParameter("name a worker or a --run, one of the two.", param_hint="WORKER")
    drained = session.with_ledger(lambda ledger: _drain(ledger, worker, run))
    if session.json:
        for name in drained:
            session.record({"worker": name, "state": "draining"})
    elif drained:
        session.data("\n".join(f"{name} drains: it finishes its running items, then exits." for name in drained))
    else:
        session.note("No worker serves that run.")


async def _drain(ledger: Ledger, worker: str | None, run: str | None) -> list[str]:
    if run is not None:
        return await steer.drain_workers_of_run(ledger, run, by=operator())
    assert worker is not None
    await steer.drain_worker(ledger, worker, by=operator())
    return [worker]


def _print_workers(session: Session, workers: list[inspect.WorkerStatus]) -> None:
    from shoal.observe.formatting import format_duration, format_time, pluralize

    session.table(
        ["WORKER", "STATE", "LEASED", "RUNNING", "HEARTBEAT", "SINCE", "VERSION", "CODE", "TAKES"],
        [
            (
                status.worker.id,
                status.state,
                status.worker.leased,
                _running(status.worker),
                f"{format_duration(status.worker.silent_seconds)} ago",
                format_time(status.worker.started_at),
                status.worker.version,
                status.worker.code or "",
                _scope_text(status.worker),
            )
            for status in workers
        ],
    )
    dead = [status for status in workers if status.problem is not None]
    for status in dead[:MAX_PROBLEMS]:
        session.note(f"{status.worker.id}: {status.problem}.")
    if len(dead) > MAX_PROBLEMS:
        session.note(f"... and {pluralize(len(dead) - MAX_PROBLEMS, 'more dead worker')}.")
    for worker in (status.worker for status in workers):
        if worker.alive and worker.report is not None and worker.report.trouble:
            session.note(f"{worker.id} cannot continue: {worker.report.trouble}")


def _running(worker: WorkerView) -> int | str:
    """Running attempts, as of its last heartbeat."""
    return sum(worker.report.running.values()) if worker.alive and worker.report is not None else ""


def _scope_text(worker: WorkerView) -> str:
    """Scraper, runs, stages and partitions that it takes items of."""
    scope = worker.scope
    parts = [scope.scraper or "", *scope.run_ids, *scope.stages, *scope.partitions]
    return " ".join(part for part in parts if part) or "everything"
