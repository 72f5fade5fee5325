"""`shoal release`: take leases back that were held for too long."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.finding import ask, find_run, operator
from shoal.cli.render.options import with_options
from shoal.cli.render.session import Session
from shoal.observe.formatting import pluralize

if TYPE_CHECKING:
    from shoal.ledger.protocols import Ledger
    from shoal.model.views import UpkeepReport


@with_options
def release(
    session: Session,
    older_than: Annotated[
        float, typer.Option(min=0, max=1e9, help="Only leases claimed more than so many seconds ago.")
    ] = 300,
    run: Annotated[str | None, typer.Option(metavar="RUN", help="Only this run.")] = None,
) -> None:
    """Give items that were claimed long ago to other workers. Who holds them can no longer commit them.

    Items of dead workers, whose heartbeat is older than their lease, return whatever their age and run; a worker that
    runs does that too.
    """
    rescue, released = ask(session, lambda ledger: _release(ledger, older_than, run))
    rescued = rescue.rescued + rescue.quarantined
    if session.json:
        dead = {"dead_workers": rescue.lost_workers, "rescued": rescued}
        session.record({"released": released, "older_than": older_than, "run": run, **dead})
        return
    session.data(f"Released: {pluralize(released, 'item')}.")
    if rescue.lost_workers:
        names = ", ".join(rescue.lost_workers)
        session.data(f"Taken from dead workers: {pluralize(rescued, 'item')} ({names}).")


async def _release(ledger: Ledger, older_than: float, name: str | None) -> tuple[UpkeepReport, int]:
    run_id = None if name is None else (await find_run(ledger, name)).id
    rescue = await ledger.upkeep.run_once()
    return rescue, await ledger.steering.release(older_than=older_than, run_id=run_id, by=operator())
