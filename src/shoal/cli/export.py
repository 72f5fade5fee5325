"""`shoal export`: write the records of a run, or those that are new, to a file, an object or stdout."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.render.options import LatestRunName, with_options
from shoal.cli.render.session import Session
from shoal.errors import UsageError
from shoal.observe.formatting import pluralize
from shoal.service.lookup import LATEST, find_run, find_selection

if TYPE_CHECKING:
    from shoal.export import ExportReport, IncrementReport, Layout
    from shoal.ledger.protocols import Ledger
    from shoal.model.run import Run

StageName = Annotated[str | None, typer.Option(help="Only records of this stage.")]
STDOUT = "-"
SHOW_AFTER_SECONDS = 1.0
SECONDS_ON_TERMINAL, SECONDS_IN_LOG = 0.2, 10.0


@with_options
def export(
    session: Session,
    run: LatestRunName = LATEST,
    *,
    output: Annotated[
        str,
        typer.Option(
            "--output",
            "-o",
            help="A .jsonl, .json, .csv, .xml or .parquet file, also s3://, gs://, az://; - is stdout.",
        ),
    ] = STDOUT,
    format: Annotated[
        str | None, typer.Option(help="jsonl, json, csv, xml or parquet, also csv.gz or csv.zst, whatever the name.")
    ] = None,
    stage: StageName = None,
    columns: Annotated[str | None, typer.Option(metavar="A,B,C", help="Only these fields, in this order.")] = None,
    meta: Annotated[
        bool, typer.Option("--meta", help="Put _run, _stage, _key, _url, _item before each record.")
    ] = False,
    bom: Annotated[bool, typer.Option("--bom", help="CSV: begin with a byte order mark, for spreadsheets.")] = False,
    safe_csv: Annotated[bool, typer.Option("--safe-csv", help="CSV: put ' before texts like formulas.")] = False,
    since_last: Annotated[
        bool,
        typer.Option("--since-last", help="Only what was stored since the last such export; RUN may be a scraper."),
    ] = False,
    cursor: Annotated[
        str | None, typer.Option(metavar="NAME", help="As --since-last, for one of several consumers.")
    ] = None,
) -> None:
    """Write a run's records to a file, also while the run goes on. The file is replaced atomically or not at all."""
    from shoal.export import Layout, file_type

    if output == STDOUT and file_type(output, format).is_binary and sys.stdout.isatty():
        raise UsageError(
            f"{format} is binary and cannot be written to a terminal.", remedy="Name a file with -o, or use a pipe."
        )
    layout = Layout(columns=_parse_columns(columns), meta=meta, bom=bom, safe_csv=safe_csv)
    only_new = since_last or cursor is not None
    try:
        with _sigterm_interrupts():
            if only_new:
                new = session.with_ledger(partial(_export_new, session, run, output, format, stage, layout, cursor))
            else:
                found, report = session.with_ledger(partial(_export, session, run, output, format, stage, layout))
    except BrokenPipeError:
        # The reader has what it wanted, as `head` has. A cursor has not moved.
        raise typer.Exit(1 if only_new else 0) from None
    if only_new:
        _print_increment(session, run, output, new)
    else:
        _print_report(session, found, output, report)


@contextmanager
def _sigterm_interrupts() -> Iterator[None]:
    """SIGTERM does what Ctrl-C does: an upload must be aborted, whoever stops the command."""
    before = signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


async def _export(
    session: Session, name: str, output: str, format: str | None, stage: str | None, layout: Layout, ledger: Ledger
) -> tuple[Run, ExportReport]:
    from shoal.export import export_run

    run = await find_run(ledger, name)
    progress = _Progress(session, (await ledger.reads.stats(run.id, stage=stage)).results)
    try:
        report = await export_run(ledger, run.id, output, format=format, stage=stage, layout=layout, progress=progress)
    finally:
        progress.clear()
    return run, report


async def _export_new(
    session: Session,
    name: str,
    output: str,
    format: str | None,
    stage: str | None,
    layout: Layout,
    cursor: str | None,
    ledger: Ledger,
) -> IncrementReport:
    from shoal.export import export_new

    which = await find_selection(ledger, name, stage=stage)
    progress = _Progress(session, 0)
    try:
        return await export_new(ledger, which, output, consumer=cursor, format=format, layout=layout, progress=progress)
    finally:
        progress.clear()


def _print_increment(session: Session, name: str, output: str, report: IncrementReport) -> None:
    if report.written is None:
        session.note(f"There are no new records of {name} since the last export.")
    else:
        _note_written(session, report.written.records, report.path)
        if report.repeated:
            session.note("An earlier export was interrupted before its end: this is the same part again.")
        _note_columns(session, report.written)
    if session.json and output != STDOUT:
        written = {} if report.written is None else _written(report.path, report.written)
        session.record({"cursor": report.cursor, "number": report.number, "records": 0, **written})


def _print_report(session: Session, run: Run, output: str, report: ExportReport) -> None:
    _note_written(session, report.records, output)
    if run.finished_at is None:
        session.note(f"The run is {run.state}: records that it stores later are not in the file.")
    _note_columns(session, report)
    if session.json and output != STDOUT:
        session.record({"run_id": run.id, **_written(output, report)})


def _note_written(session: Session, records: int, output: str) -> None:
    place = "standard output" if output == STDOUT else output
    session.note(f"Wrote {pluralize(records, 'record')} to {place}")


def _note_columns(session: Session, report: ExportReport) -> None:
    if report.differing_stages:
        session.note(
            f"The stages {', '.join(report.differing_stages)} have different fields and share this table; "
            f"--stage {report.differing_stages[0]} writes one of them."
        )
    if report.missing_columns:
        session.note(
            f"No record has {', '.join(report.missing_columns)}: check the spelling with `shoal results coverage`."
        )


def _written(path: str, report: ExportReport) -> dict[str, object]:
    return {
        "path": path,
        "format": report.format,
        "compression": report.compression,
        "records": report.records,
        "columns": report.columns,
        "bytes": report.bytes,
    }


def _parse_columns(text: str | None) -> tuple[str, ...]:
    """Split names at commas; a name that contains a comma is in double quotes."""
    if text is None:
        return ()
    import csv

    names = tuple(name.strip() for name in next(csv.reader([text], skipinitialspace=True), []))
    if not all(names) or not names:
        raise UsageError(f"--columns {text!r} contains an empty name.", remedy="Write it like --columns title,price.")
    return names


class _Progress:
    """Shows the progress of a long export: one changing line on a terminal, a line every ten seconds elsewhere."""

    def __init__(self, session: Session, total: int) -> None:
        self._session = session
        self._total = total
        self._live = sys.stderr.isatty() and not session.quiet
        self._next = time.monotonic() + (SHOW_AFTER_SECONDS if self._live else SECONDS_IN_LOG)
        self._shown = False

    def __call__(self, verb: str, records: int) -> None:
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + (SECONDS_ON_TERMINAL if self._live else SECONDS_IN_LOG)
        # A run that goes on may have stored more records meanwhile.
        of = f" of {max(self._total, records):,}" if self._total else ""
        text = f"{verb} {records:,}{of} records"
        if self._live:
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
            self._shown = True
        else:
            self._session.note(text)

    def clear(self) -> None:
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
