"""`shoal stats`: the items of one run by state, in the older systems' words and in Shoal's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.render.options import LATEST_HELP, with_options
from shoal.cli.render.session import Session
from shoal.errors import NotFound
from shoal.service.inspect import RunSummary, read_counts
from shoal.service.lookup import LATEST
from shoal.service.records import counts_record

if TYPE_CHECKING:
    from shoal.ledger.protocols import Ledger

NAMES = ("scraper", "run_id", "stage")


@with_options
def stats(
    session: Session,
    scraper: Annotated[
        str | None,
        typer.Argument(metavar="SCRAPER", help="The scraper's name; or only a RUN.", show_default=False),
    ] = None,
    run: Annotated[str | None, typer.Argument(metavar="RUN", help=LATEST_HELP, show_default=False)] = None,
    stage: Annotated[str | None, typer.Option(help="Only this stage.")] = None,
) -> None:
    """Count a run's items by state.

    Pending, claimed, completed, failed, remaining, total; then Shoal's own states.
    """
    summary = session.with_ledger(lambda ledger: _read(ledger, scraper, run, stage))
    record = counts_record(summary, stage)
    if session.json:
        session.record(record)
        return
    if run in (None, LATEST):
        session.note(f"Items of run {summary.run.id} of {summary.run.scraper}:")
    session.table(["STATE", "ITEMS"], [(name, value) for name, value in record.items() if name not in NAMES])


async def _read(ledger: Ledger, first: str | None, second: str | None, stage: str | None) -> RunSummary:
    """`SCRAPER RUN`, or one of the two alone, or nothing for the newest run."""
    if second is not None:
        return await read_counts(ledger, second, scraper=first, stage=stage)
    try:
        return await read_counts(ledger, first or LATEST, stage=stage)
    except NotFound as no_run:
        if first is None or first.startswith(LATEST):
            raise
        try:
            return await read_counts(ledger, LATEST, scraper=first, stage=stage)
        except NotFound as no_scraper:
            message = f"There is no run {first!r} and no run of a scraper {first!r}."
            raise NotFound(message, remedy=no_run.remedy) from no_scraper
