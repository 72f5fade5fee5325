"""`shoal results`: look at a run's records, and take them out."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.export import StageName, export
from shoal.cli.finding import RunName, ask, find_run
from shoal.cli.render.options import with_options
from shoal.cli.render.session import DIM, Session

if TYPE_CHECKING:
    from shoal.export import Coverage
    from shoal.ledger.protocols import Ledger
    from shoal.model.run import Run
    from shoal.model.views import ResultRow

app = typer.Typer(help="Look at records, and export them.", no_args_is_help=True)
app.command("export")(export)


@app.command()
@with_options
def sample(
    session: Session,
    run: RunName,
    number: Annotated[int, typer.Option("--number", "-n", min=1, max=1000, help="So many records.")] = 5,
    stage: StageName = None,
) -> None:
    """Show a run's first records: fields below each other on a terminal, JSON Lines elsewhere."""
    rows = ask(session, lambda ledger: _sample(ledger, run, number, stage))
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
    run: RunName,
    stage: StageName = None,
    everything: Annotated[bool, typer.Option("--all", help="Read every record, however many there are.")] = False,
) -> None:
    """Say which fields the records have, how often they are filled, of which types they are.

    Of a run with very many records some are read, spread evenly over it; it says so. --all reads every one.
    """
    found, covered = ask(session, lambda ledger: _coverage(ledger, run, stage, everything=everything))
    if session.json:
        for field in covered.fields:
            session.record(field)
    elif covered.fields:
        session.table(
            ["FIELD", "RECORDS", "FILLED", "SHARE", "TYPES", "EXAMPLE"],
            [
                (one.field, one.present, one.filled, f"{one.filled_share:.1%}", " ".join(one.types), one.example)
                for one in covered.fields
            ],
        )
    if covered.sampled:
        session.note(
            f"A sample: {covered.records:,} of the {covered.of:,} records of run {found.id} ({found.scraper}), spread "
            "evenly over it. --all reads every one."
        )
    else:
        session.note(f"{covered.records} records of run {found.id} ({found.scraper}).")
    if not covered.complete:
        session.note(f"There are more than {len(covered.fields):,} different fields; the rest is not shown.")


async def _sample(ledger: Ledger, name: str, number: int, stage: str | None) -> list[ResultRow]:
    from shoal.export import first_results

    return await first_results(ledger, (await find_run(ledger, name)).id, number, stage=stage)


async def _coverage(ledger: Ledger, name: str, stage: str | None, *, everything: bool) -> tuple[Run, Coverage]:
    from shoal.export import SAMPLE, measure_coverage

    run = await find_run(ledger, name)
    return run, await measure_coverage(ledger, run.id, stage=stage, sample=None if everything else SAMPLE)


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
    """What a site put into a record must not steer the terminal."""
    return "".join(char if char.isprintable() else " " for char in text)
