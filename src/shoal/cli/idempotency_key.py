"""`--idempotency-key`: a run that is made once for something, such as a slot of a schedule."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.render.session import Session
from shoal.errors import NotAllowed

if TYPE_CHECKING:
    from shoal.define.scraper import Scraper
    from shoal.ledger.protocols import Ledger
    from shoal.model.run import Run
    from shoal.service.begin import RunPlan

IdempotencyKey = Annotated[
    str | None, typer.Option(metavar="TEXT", help="What the run is made for: made once, then taken up again.")
]


class RunAlreadyEnded(Exception):
    """The run of this idempotency key has ended: there is nothing to do."""


def check_alone(idempotency_key: str | None, *, resume: bool, fresh: bool, dry_run: bool = False) -> None:
    if idempotency_key is not None and (resume or fresh or dry_run):
        which = "--resume" if resume else "--fresh" if fresh else "--dry-run"
        raise typer.BadParameter(f"it excludes {which}.", param_hint="--idempotency-key")
    if idempotency_key is not None and not idempotency_key.strip():
        raise typer.BadParameter("it must not be empty.", param_hint="--idempotency-key")


async def plan_by_idempotency_key(
    session: Session,
    ledger: Ledger,
    scraper: Scraper,
    idempotency_key: str,
    *,
    for_workers: bool = False,
    owned: bool = False,
) -> RunPlan:
    """The plan, unless the idempotency key's run has ended: that is told, and RunAlreadyEnded raised.

    Raises NotAllowed when another run of the scraper is still going.
    """
    from shoal.service.begin import find_keyed_runs, plan_keyed_run

    found = await find_keyed_runs(ledger, scraper.name, idempotency_key, for_workers=for_workers, owned=owned)
    if found.existing is not None and found.is_finished:
        _tell_over(session, found.existing)
        raise RunAlreadyEnded
    if found.conflicting is not None:
        raise _still_going(session, scraper.name, found.conflicting, own=False)
    return await plan_keyed_run(ledger, scraper, found)


async def refused_for(session: Session, ledger: Ledger, scraper: str, idempotency_key: str) -> NotAllowed:
    """What to say when another process owns the scraper: perhaps it works on this very idempotency key.

    Raises RunAlreadyEnded when that has ended already.
    """
    from shoal.service.begin import UNFINISHED

    own = await ledger.runs.by_idempotency_key(idempotency_key)
    if own is not None and own.state not in UNFINISHED:
        _tell_over(session, own)
        raise RunAlreadyEnded
    return _still_going(session, scraper, own or await ledger.runs.latest(scraper), own=own is not None)


def _tell_over(session: Session, run: Run) -> None:
    if session.json:
        session.record(
            {"run_id": run.id, "scraper": run.scraper, "state": run.state.value, "idempotency_key": run.idempotency_key}
        )
    else:
        session.note(f"Run {run.id} of {run.scraper} was made for this idempotency key and is {run.state.value}.")


def _still_going(session: Session, scraper: str, run: Run | None, *, own: bool) -> NotAllowed:
    if session.json:
        session.record(
            {"status": "busy", "scraper": scraper, "run_id": run.id if run is not None else None, "own": own}
        )
    what = f"Run {run.id} of {scraper} is still going" if run is not None else f"{scraper} is being run"
    return NotAllowed(f"{what}, and must not be disturbed.", remedy="Wait until it has ended.")
