"""`shoal watch`: follow a run until it ends."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.render.options import RUN_HELP, with_options
from shoal.cli.render.session import Session
from shoal.observe.formatting import format_ends, pluralize
from shoal.service.inspect import newest_active_run
from shoal.service.lookup import find_run
from shoal.service.records import reading_record, sink_record

if TYPE_CHECKING:
    from shoal.ledger.protocols import Ledger
    from shoal.observe.meter import Reading
    from shoal.observe.sinks import SinkStatus
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
            help=RUN_HELP.removesuffix(".") + "; without it the newest active run.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Watch a run until it ends.

    Bars on a terminal, a line every ten seconds elsewhere, a JSON value every second with --json.
    """
    snapshot = session.with_ledger(lambda ledger: _watch(session, ledger, run))
    if not session.json:
        counts = snapshot.counts
        ends = format_ends(counts.done, counts.dead, counts.skipped, counts.cancelled)
        session.data(
            f"Run {snapshot.run.id} is {snapshot.run.state.value}: {ends}, {pluralize(counts.results, 'record')}."
        )


async def _watch(session: Session, ledger: Ledger, name: str | None) -> Snapshot:
    from shoal.observe.progress import LedgerFailures, follow_run, open_display
    from shoal.observe.sinks import SinkLines, watch_sinks

    run = await (newest_active_run(ledger) if name is None else find_run(ledger, name))
    if session.json:
        records = _JsonDisplay(session)
        async with watch_sinks(ledger, session.settings, run, records.set_sinks):
            return await follow_run(ledger, run.id, records, every=JSON_SECONDS)
    with open_display(session.note, quiet=session.quiet, title=run.scraper) as display:
        display.print_line(f"Watching run {run.id} of {run.scraper}; Ctrl-C stops watching, not the run.")
        failures = LedgerFailures(ledger, run.id)
        lines = SinkLines(display.print_line)
        async with watch_sinks(ledger, session.settings, run, lines.update):
            return await follow_run(ledger, run.id, display, every=SCREEN_SECONDS, failures=failures)


class _JsonDisplay:
    """Writes each reading as a JSON record, with the sinks as they were read last."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._sinks: list[SinkStatus] = []

    def set_sinks(self, sinks: list[SinkStatus]) -> None:
        self._sinks = sinks

    def update(self, reading: Reading) -> None:
        self._session.record({**reading_record(reading), "sinks": [sink_record(sink) for sink in self._sinks]})
        sys.stdout.flush()

    def print_line(self, text: str) -> None:
        self._session.note(text)
