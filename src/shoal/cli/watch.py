"""`shoal watch`: a run while it goes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.finding import LATEST, ask, find_run
from shoal.cli.render.options import with_options
from shoal.cli.render.session import Session
from shoal.cli.render.tables import reading_record

if TYPE_CHECKING:
    from shoal.ledger.protocols import Ledger
    from shoal.model.run import Run
    from shoal.observe.meter import Reading
    from shoal.observe.progress import ProgressDisplay
    from shoal.observe.snapshot import Snapshot

JSON_SECONDS = 1.0
SCREEN_SECONDS = 0.5


@with_options
def watch(
    session: Session,
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN",
            help="A run's id, `latest`, or `latest:SCRAPER`; without it the newest active run.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Watch a run until it ends.

    Bars on a terminal, a line every ten seconds elsewhere, a JSON value every second with --json.
    """
    snapshot = ask(session, lambda ledger: _watch(session, ledger, run))
    if not session.json:
        counts = snapshot.counts
        session.data(
            f"Run {snapshot.run.id} is {snapshot.run.state.value}: {counts.done} done, {counts.dead} dead, "
            f"{counts.cancelled} cancelled, {counts.results} results."
        )


async def _watch(session: Session, ledger: Ledger, name: str | None) -> Snapshot:
    from shoal.observe.progress import follow_run, open_display

    run = await (_newest_active(ledger) if name is None else find_run(ledger, name))
    if session.json:
        return await follow_run(ledger, run.id, _Records(session), every=JSON_SECONDS)
    with open_display(session.note, quiet=session.quiet, title=run.scraper) as show:
        _greet(show, run)
        return await follow_run(ledger, run.id, show, every=SCREEN_SECONDS)


def _greet(show: ProgressDisplay, run: Run) -> None:
    show.print_line(f"Watching run {run.id} of {run.scraper}; Ctrl-C stops watching, not the run.")


async def _newest_active(ledger: Ledger) -> Run:
    """The newest active run, or the newest at all."""
    for run in (await ledger.runs.list()).rows:
        if run.state == "active":
            return run
    return await find_run(ledger, LATEST)


class _Records:
    """A JSON value on every look."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def update(self, reading: Reading) -> None:
        import sys

        self._session.record(reading_record(reading))
        sys.stdout.flush()

    def print_line(self, text: str) -> None:
        self._session.note(text)
