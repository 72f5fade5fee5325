"""`shoal bench`: measure how fast Shoal is on this machine, compared with a bare loop."""

from __future__ import annotations

from typing import Annotated

import typer

from shoal.cli.render.options import with_options
from shoal.cli.render.session import Session
from shoal.observe.formatting import pluralize


@with_options
def bench(
    session: Session,
    pages: Annotated[int, typer.Option(min=100, max=100_000, help="Pages to fetch in each round.")] = 4_000,
) -> None:
    """Measure pages per second of a bare loop and of Shoal, and the throughput of the ledger. Needs no network.

    Both visit a local server in a process of its own, with the same concurrency, and read the title of each page. The
    ledger is the one of the settings: beside a SQLite file a new one is made, in PostgreSQL a run that is removed at
    the end.
    """
    from shoal.service.bench import ROUNDS, measure

    figures = session.wait(
        measure(session.settings, pages=pages, on_event=lambda event: session.note(event.text)), fast=True
    )
    if session.json:
        session.record(figures)
        return
    session.table(
        ["WHAT", "A SECOND", "RATIO"],
        [
            ("pages, bare aiohttp loop", round(figures.bare_pages_per_second), "1.00"),
            ("pages, Shoal on SQLite", round(figures.shoal_pages_per_second), f"{figures.ratio:.2f}"),
            (f"claims and commits on {figures.ledger}", round(figures.ledger_items_per_second), ""),
        ],
    )
    session.note(
        f"{figures.pages} pages a round, {figures.concurrency} at once, best of {ROUNDS}; "
        f"{pluralize(figures.cores or 'unknown', 'core')}, Python {figures.python}."
    )
