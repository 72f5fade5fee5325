"""`--idempotency-key`: a run that is created once for a key, such as a slot of a schedule."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.render.session import Session

if TYPE_CHECKING:
    from shoal.model.run import Run
    from shoal.service.begin import RunBusy

IdempotencyKey = Annotated[
    str | None,
    typer.Option(metavar="TEXT", help="Create one run for this key; resume that run when it is given again."),
]


def check_alone(idempotency_key: str | None, *, resume: bool, fresh: bool, dry_run: bool = False) -> None:
    if idempotency_key is not None and (resume or fresh or dry_run):
        which = "--resume" if resume else "--fresh" if fresh else "--dry-run"
        raise typer.BadParameter(f"it excludes {which}.", param_hint="--idempotency-key")
    if idempotency_key is not None and not idempotency_key.strip():
        raise typer.BadParameter("it must not be empty.", param_hint="--idempotency-key")


def print_already_ended(session: Session, run: Run) -> None:
    if session.json:
        key, state = run.idempotency_key, run.state.value
        session.record({"run_id": run.id, "scraper": run.scraper, "state": state, "idempotency_key": key})
    else:
        session.note(f"Run {run.id} of {run.scraper} was created for this idempotency key and is {run.state.value}.")


def print_busy(session: Session, busy: RunBusy) -> None:
    """For programs: which run is in the way. The error itself is printed as every error is."""
    if session.json:
        run_id = busy.run.id if busy.run is not None else None
        session.record({"status": "busy", "scraper": busy.scraper, "run_id": run_id, "own": busy.own})
