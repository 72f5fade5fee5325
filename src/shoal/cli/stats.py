"""`shoal stats`: the items of one run by state, in the older systems' words and in Shoal's."""

from __future__ import annotations

from typing import Annotated

import typer

from shoal.cli.render.options import RunName, with_options
from shoal.cli.render.session import Session
from shoal.service.inspect import read_counts
from shoal.service.records import counts_record

NAMES = ("scraper", "run", "stage")


@with_options
def stats(
    session: Session,
    scraper: Annotated[str, typer.Argument(metavar="SCRAPER", help="The scraper's name.")],
    run: RunName,
    stage: Annotated[str | None, typer.Option(help="Only this stage.")] = None,
) -> None:
    """Count a run's items by state.

    Pending, claimed, completed, failed, remaining, total; then Shoal's own states.
    """
    summary = session.with_ledger(lambda ledger: read_counts(ledger, run, scraper=scraper, stage=stage))
    record = counts_record(summary, stage)
    if session.json:
        session.record(record)
    else:
        session.table(["STATE", "ITEMS"], [(name, value) for name, value in record.items() if name not in NAMES])
