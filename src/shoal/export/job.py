"""Exports the results of a run to a file."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from shoal.errors import UsageError
from shoal.export.records import LineMaker, decode_record, result_pages
from shoal.export.tables import CsvWriter, ParquetWriter, TableSchema, TableWriter, require_pyarrow
from shoal.export.targets import ExportTarget, Format, check_writable, format_of, open_target, write_errors_explained
from shoal.ledger.protocols import Ledger
from shoal.model.views import ResultRow

CHUNK_BYTES = 1 << 20


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """Options of an export. `columns`: only these fields, in this order; empty for all fields.

    `meta` adds run, stage, key, URL and item before each record. `bom` and `safe_csv` apply to CSV only.
    """

    columns: tuple[str, ...] = ()
    meta: bool = False
    bom: bool = False
    safe_csv: bool = False


class ExportReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was written. `columns`: those of a table. `missing_columns`: requested columns that no record has.
    `differing_stages`: the stages of a table, when their records have different fields."""

    records: int
    columns: tuple[str, ...]
    bytes: int
    format: Format
    missing_columns: tuple[str, ...] = ()
    differing_stages: tuple[str, ...] = ()


# Called with "read" or "wrote" and the number of records so far.
Progress = Callable[[str, int], None]
DEFAULT_LAYOUT = Layout()


def check_target(path: Path | str, format: Format | str | None = None) -> Format:
    """Raise the errors that an export to `path` would raise at its start. Returns the format; writes nothing."""
    chosen = format_of(str(path), format)
    if chosen is Format.PARQUET:
        require_pyarrow()
    check_writable(str(path))
    return chosen


async def export_run(
    ledger: Ledger,
    run_id: str,
    path: Path | str,
    *,
    format: Format | str | None = None,
    stage: str | None = None,
    layout: Layout = DEFAULT_LAYOUT,
    progress: Progress | None = None,
) -> ExportReport:
    """Write a run's records to `path` (`-`: standard output), in constant memory.

    The file appears complete or not at all. Of a running run it contains every record stored before the export began
    and some stored later, each once. `format` defaults to that of the path's suffix.
    Raises UsageError when the file cannot be written, NotFound for the run, UnknownStage for the stage.
    """
    chosen = format_of(str(path), format)
    if chosen is Format.PARQUET:
        require_pyarrow()
    if chosen is not Format.CSV and (layout.bom or layout.safe_csv):
        raise UsageError(f"--bom and --safe-csv are for CSV, not for {chosen.value}.", remedy="Leave them out.")
    await ledger.runs.get(run_id)
    target = open_target(str(path))
    job = _Job(ledger, run_id, stage, layout, progress or (lambda *_: None))
    try:
        report = await (job.copy(target) if chosen is Format.JSONL else job.tabulate(target, chosen))
        await _run_in_thread(target.commit)
    except BaseException:
        target.discard()
        raise
    return report


class _Job:
    def __init__(self, ledger: Ledger, run_id: str, stage: str | None, layout: Layout, progress: Progress) -> None:
        self._results = result_pages(ledger, run_id, stage=stage)
        self._line_maker = LineMaker(run_id, meta=layout.meta, columns=layout.columns)
        self._layout = layout
        self._progress = progress

    async def copy(self, target: ExportTarget) -> ExportReport:
        """JSON Lines: records are copied as they are stored."""
        records = 0
        async for rows in self._results:
            await _run_in_thread(self._copy_page, target, rows)
            records += len(rows)
            self._progress("wrote", records)
        return ExportReport(records=records, columns=self._layout.columns, bytes=target.tell(), format=Format.JSONL)

    async def tabulate(self, target: ExportTarget, format: Format) -> ExportReport:
        """A table: its columns are known after the last record, so the records are spooled to a temporary file.

        A second read of the ledger instead could find new records that do not fit the columns.
        """
        table = TableSchema(self._line_maker.columns, typed=format is Format.PARQUET)
        records = written = 0
        with _spool(target) as spool:
            async for rows in self._results:
                await _run_in_thread(self._spool_page, spool, target, table, rows)
                records += len(rows)
                self._progress("read", records)
            writer = self._writer(target, format, table)
            try:
                for lines in _chunks(spool):
                    await _run_in_thread(writer.write, lines)
                    written += len(lines)
                    self._progress("wrote", written)
                await _run_in_thread(writer.finish)
            except BaseException:
                writer.abort()
                raise
        return ExportReport(
            records=records,
            columns=table.columns,
            bytes=target.tell(),
            format=format,
            missing_columns=table.missing_columns if records else (),
            differing_stages=table.differing_stages,
        )

    def _copy_page(self, target: ExportTarget, rows: tuple[ResultRow, ...]) -> None:
        target.write("".join(f"{self._line_maker.line(row)}\n" for row in rows).encode())

    def _spool_page(
        self, spool: BinaryIO, target: ExportTarget, table: TableSchema, rows: tuple[ResultRow, ...]
    ) -> None:
        lines = []
        for row in rows:
            line = self._line_maker.line(row)
            table.add(row.stage, decode_record(row, line))
            lines.append(f"{line}\n")
        with write_errors_explained(target.name):
            spool.write("".join(lines).encode())

    def _writer(self, target: ExportTarget, format: Format, table: TableSchema) -> TableWriter:
        if format is Format.PARQUET:
            return ParquetWriter(target, table)
        return CsvWriter(target, table, bom=self._layout.bom, safe=self._layout.safe_csv)


async def _run_in_thread(work: Callable[..., None], *arguments: object) -> None:
    """Run blocking work in a thread. When cancelled, wait for it first: the caller closes its files next."""
    running = asyncio.ensure_future(asyncio.to_thread(work, *arguments))
    try:
        await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        raise


def _spool(target: ExportTarget) -> BinaryIO:
    """A temporary file on the disk of the export, if the target has one."""
    with write_errors_explained(target.name):
        return tempfile.TemporaryFile(dir=target.folder)


def _chunks(spool: BinaryIO) -> Iterator[list[bytes]]:
    spool.seek(0)
    while lines := spool.readlines(CHUNK_BYTES):
        yield lines
