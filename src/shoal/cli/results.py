"""`shoal results`: show a run's records and which fields they have; export them."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.export import StageName, export
from shoal.cli.render.options import LatestRunName, Yes, confirm, with_options
from shoal.cli.render.session import DIM, Session
from shoal.observe.formatting import pluralize
from shoal.service.inspect import measure_run_coverage, sample_results
from shoal.service.lookup import LATEST

if TYPE_CHECKING:
    from shoal.model.views import ResultRow

app = typer.Typer(help="Look at records, and export them.", no_args_is_help=True)
app.command("export")(export)


@app.command()
@with_options
def sample(
    session: Session,
    run: LatestRunName = LATEST,
    number: Annotated[int, typer.Option("--number", "-n", min=1, max=1000, help="So many records.")] = 5,
    stage: StageName = None,
) -> None:
    """Show a run's first records: fields below each other on a terminal, JSON Lines elsewhere."""
    rows = session.with_ledger(lambda ledger: sample_results(ledger, run, count=number, stage=stage))
    if not rows:
        session.note("The run has no records yet.")
    for row in rows:
        if session.json or not sys.stdout.isatty():
            session.json_text(" ".join(row.record.splitlines()))
        else:
            _print_record(session, row)


@app.command()
@with_options
def coverage(
    session: Session,
    run: LatestRunName = LATEST,
    stage: StageName = None,
    everything: Annotated[bool, typer.Option("--all", help="Read every record, however many there are.")] = False,
) -> None:
    """Say which fields the records have, how often they are filled, of which types they are.

    Of a run with very many records a sample is read, spread evenly over it, with a note. --all reads every one.
    """
    found, covered = session.with_ledger(
        lambda ledger: measure_run_coverage(ledger, run, stage=stage, every_record=everything)
    )
    if session.json:
        for field in covered.fields:
            session.record(field)
    elif covered.fields:
        session.table(
            ["FIELD", "RECORDS", "FILLED", "SHARE", "TYPES", "EXAMPLE"],
            [
                (each.field, each.present, each.filled, f"{each.filled_share:.1%}", " ".join(each.types), each.example)
                for each in covered.fields
            ],
        )
    if covered.sampled:
        session.note(
            f"A sample: {covered.records:,} of the {covered.of:,} records of run {found.id} ({found.scraper}), spread "
            "evenly over it. --all reads every one."
        )
    else:
        session.note(f"{pluralize(covered.records, 'record')} of run {found.id} ({found.scraper}).")
    if not covered.complete:
        session.note(f"There are more than {len(covered.fields):,} different fields; the rest is not shown.")


@app.command()
@with_options
def cursors(session: Session) -> None:
    """List the cursors of `shoal export --since-last`: how many files and records they have had, and what waits."""
    from shoal.export import list_cursors
    from shoal.observe.formatting import format_time

    found = session.with_ledger(list_cursors)
    if session.json:
        for each in found:
            session.record(each)
    elif found:
        session.table(
            ["CURSOR", "EXPORTS", "RECORDS", "NEW", "LAST EXPORT"],
            [
                (
                    each.cursor,
                    each.exports,
                    each.records,
                    f"{each.behind}{'+' if each.at_least else ''}",
                    "" if each.exported_at is None else format_time(each.exported_at),
                )
                for each in found
            ],
        )
    else:
        session.note("There are no cursors: nothing was exported with --since-last yet.")


@app.command()
@with_options
def forget(
    session: Session,
    cursor: Annotated[str, typer.Argument(metavar="CURSOR", help="As `shoal results cursors` names it.")],
    yes: Yes = False,
) -> None:
    """Remove a cursor: its next export begins with the first record again, and with number 1."""
    from shoal.export import forget_cursor

    confirm(session, f"The next export of {cursor} will contain every record again.", yes=yes)
    session.with_ledger(lambda ledger: forget_cursor(ledger, cursor))
    session.note(f"The cursor {cursor} is removed.")


def _print_record(session: Session, row: ResultRow) -> None:
    from shoal.export.records import decode_record
    from shoal.export.tables import cell_text

    record = decode_record(row)
    width = max(map(len, record), default=0)
    room = max(20, shutil.get_terminal_size().columns - width - 4)
    session.data(session.styled(_printable(f"{row.stage}  {row.url or row.key}"), DIM))
    for name, value in record.items():
        text = _printable(cell_text(value))
        session.data(f"  {_printable(name).ljust(width)}  {text if len(text) <= room else text[: room - 1] + '…'}")
    session.data("")


def _printable(text: str) -> str:
    """Replace control characters: records contain text of sites, which must not control the terminal."""
    return "".join(char if char.isprintable() else " " for char in text)
