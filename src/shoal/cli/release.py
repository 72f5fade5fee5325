"""`shoal release`: return leases that were held for too long."""

from __future__ import annotations

from typing import Annotated

import typer

from shoal.cli.render.options import with_options
from shoal.cli.render.session import Session
from shoal.observe.formatting import pluralize
from shoal.service.lookup import operator
from shoal.service.steer import release_leases


@with_options
def release(
    session: Session,
    older_than: Annotated[
        float, typer.Option(min=0, max=1e9, help="Only leases claimed more than so many seconds ago.")
    ] = 300,
    run: Annotated[str | None, typer.Option(metavar="RUN", help="Only this run.")] = None,
) -> None:
    """Return items that were claimed long ago to the queue. Their holders can no longer commit them.

    Items of dead workers, whose heartbeat is older than their lease, return whatever their age and run; every running
    worker does that too.
    """
    report = session.with_ledger(
        lambda ledger: release_leases(ledger, older_than=older_than, run=run, by=operator()),
    )
    if session.json:
        dead = {"dead_workers": report.dead_workers, "rescued": report.rescued}
        session.record({"released": report.released, "older_than": older_than, "run_id": report.run_id, **dead})
        return
    session.data(f"Released: {pluralize(report.released, 'item')}.")
    if report.dead_workers:
        names = ", ".join(report.dead_workers)
        session.data(f"Released from dead workers: {pluralize(report.rescued, 'item')} ({names}).")
