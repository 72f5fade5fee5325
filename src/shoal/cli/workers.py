"""`shoal workers`: who works on the ledger, and how to send them home."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.finding import ask, find_run, operator
from shoal.cli.render.options import with_options
from shoal.cli.render.session import Session
from shoal.errors import NotFound, WorkerLost

if TYPE_CHECKING:
    from shoal.ledger.protocols import Ledger
    from shoal.model.run import Run
    from shoal.model.worker import Scope, WorkerView

# How a worker is listed whose heartbeat is older than its lease, until somebody gives its items back.
DEAD = "dead"
MOST_TOLD = 5

app = typer.Typer()


@app.command()
@with_options
def ls(
    session: Session,
    gone: Annotated[bool, typer.Option("--all", help="Also those that stopped or were lost.")] = False,
) -> None:
    """List the workers, newest first."""
    import msgspec

    from shoal.ledger.explain import heartbeat_problem

    workers = ask(session, lambda ledger: ledger.workers.list(present=not gone))
    if session.json:
        for worker in workers:
            session.record({**msgspec.to_builtins(worker), "alive": worker.alive})
    elif workers:
        from shoal.observe.formatting import format_duration, format_time, pluralize

        session.table(
            ["WORKER", "STATE", "LEASED", "RUNNING", "LAST SIGN", "SINCE", "VERSION", "CODE", "TAKES"],
            [
                (
                    worker.id,
                    worker.state if heartbeat_problem(worker) is None else DEAD,
                    worker.leased,
                    _running(worker),
                    f"{format_duration(worker.silent_seconds)} ago",
                    format_time(worker.started_at),
                    worker.version,
                    worker.code or "",
                    _takes(worker),
                )
                for worker in workers
            ],
        )
        dead = [(worker, why) for worker in workers if (why := heartbeat_problem(worker)) is not None]
        for worker, why in dead[:MOST_TOLD]:
            session.note(f"{worker.id}: {why}.")
        if len(dead) > MOST_TOLD:
            session.note(f"... and {pluralize(len(dead) - MOST_TOLD, 'more dead worker')}.")
        for worker in workers:
            if worker.alive and worker.report is not None and worker.report.trouble:
                session.note(f"{worker.id} cannot go on: {worker.report.trouble}")
    else:
        session.note("There are no workers." if gone else "No worker is present; --all shows those that left.")


@app.command()
@with_options
def stop(
    session: Session,
    worker: Annotated[str | None, typer.Argument(metavar="WORKER", help="A worker's id.", show_default=False)] = None,
    run: Annotated[str | None, typer.Option("--run", metavar="RUN", help="All workers of this run instead.")] = None,
) -> None:
    """Tell workers to finish what they have and leave. They hear of it at their next sign of life."""
    if (worker is None) == (run is None):
        raise typer.BadParameter("name a worker or a --run, one of the two.", param_hint="WORKER")
    told = ask(session, lambda ledger: _drain_run(ledger, run) if run else _drain(ledger, worker or ""))
    if session.json:
        for name in told:
            session.record({"worker": name, "state": "draining"})
    elif told:
        session.data("\n".join(f"{name} drains: it finishes what it has, then leaves." for name in told))
    else:
        session.note("No worker works on that run.")


async def _drain(ledger: Ledger, worker: str) -> list[str]:
    try:
        await ledger.workers.drain(worker, by=operator())
    except WorkerLost as error:
        raise NotFound(error.message, remedy=await _near(ledger, worker)) from None
    return [worker]


async def _drain_run(ledger: Ledger, name: str) -> list[str]:
    """Those made for this run, and those that hold items of it."""
    run = await find_run(ledger, name)
    holders = {progress.worker for progress in await ledger.reads.workers(run.id) if progress.leased}
    told = []
    for worker in await ledger.workers.list():
        if worker.id in holders or _is_for(worker.scope, run):
            told += await _drain(ledger, worker.id)
    return told


def _is_for(scope: Scope, run: Run) -> bool:
    return run.id in scope.run_ids


async def _near(ledger: Ledger, worker: str) -> str:
    import difflib

    near = difflib.get_close_matches(worker, [present.id for present in await ledger.workers.list()], n=3)
    hint = f"Did you mean {' or '.join(near)}? " if near else ""
    return hint + "`shoal workers ls` lists those that are present."


def _running(worker: WorkerView) -> int | str:
    """Attempts under way, as it said with its last heartbeat."""
    return sum(worker.report.running.values()) if worker.alive and worker.report is not None else ""


def _takes(worker: WorkerView) -> str:
    """What it works on, in a few words."""
    scope = worker.scope
    parts = [scope.scraper or "", *scope.run_ids, *scope.stages, *scope.partitions]
    return " ".join(part for part in parts if part) or "everything"
