"""Exports the results of a run to a file or an object."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, TypeVar

import msgspec

from shoal.errors import UsageError
from shoal.export.formats import FileType, Format, file_type
from shoal.export.records import LineMaker, StoredRecord, decode_record, result_pages
from shoal.export.tables import CsvWriter, ParquetWriter, TableSchema, TableWriter, require_pyarrow
from shoal.export.texts import TEXT_WRITERS, TextWriter
from shoal.ledger.protocols import Ledger
from shoal.storage import Target, check_writable, open_target, write_errors_explained
from shoal.storage.compression import CompressedTarget, Compression, require_compression

T = TypeVar("T")
CHUNK_BYTES = 1 << 20


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """Options of an export. `columns`: only these fields, in this order; empty for all fields.

    `meta` adds run, stage, key, URL, `url_hash` and item before each record. `bom` and `safe_csv` apply to CSV only.
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
    compression: Compression | None = None
    missing_columns: tuple[str, ...] = ()
    differing_stages: tuple[str, ...] = ()


# Called with "read" or "wrote" and the number of records so far.
Progress = Callable[[str, int], None]
DEFAULT_LAYOUT = Layout()


def check_target(path: Path | str, format: Format | str | None = None) -> Format:
    """Raise the errors that an export to `path` would raise at its start. Returns the format; writes nothing."""
    chosen = file_type(str(path), format)
    _require_packages(chosen)
    check_writable(str(path))
    return chosen.format


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
    """Write a run's records to `path`, in constant memory: a file, `-` for standard output, or the URL of an object.

    The file or object appears complete or not at all. Of a running run it contains every record stored before the
    export began and some stored later, each once. `format` defaults to that of the path's suffix.
    Raises UsageError when the file cannot be written, StorageUnavailable when the object store does not answer,
    NotFound for the run, UnknownStage for the stage.
    """
    chosen = file_type(str(path), format)
    check_options(chosen, layout)
    await ledger.runs.get(run_id)
    pages = result_pages(ledger, run_id, stage=stage)
    return await write_export(pages, str(path), chosen, layout, run_id=run_id, progress=progress)


async def write_export(
    pages: AsyncIterator[Sequence[StoredRecord]],
    path: str,
    chosen: FileType,
    layout: Layout,
    *,
    run_id: str = "",
    table: TableSchema | None = None,
    progress: Progress | None = None,
) -> ExportReport:
    """Write records to `path`, complete or not at all. `run_id`: of records that do not name their own run.

    `table`: the columns that a table has before it has seen these records, and afterwards all.
    """
    target = await _run_in_thread(_open, path, chosen)
    lines = LineMaker(run_id, meta=layout.meta, columns=layout.columns)
    job = _Job(pages, lines, layout, progress or (lambda *_: None))
    try:
        if chosen.format in TEXT_WRITERS:
            report = await job.copy(target, chosen.format)
        else:
            report = await job.tabulate(target, chosen.format, table or make_table(chosen, layout))
        await _run_in_thread(target.commit)
    except BaseException:
        await _run_in_thread(target.discard)
        raise
    # What the compression held back is written by the commit.
    return msgspec.structs.replace(report, bytes=target.tell(), compression=chosen.compression)


def make_table(chosen: FileType, layout: Layout) -> TableSchema:
    """The table of an export that has seen no record."""
    columns = LineMaker(meta=layout.meta, columns=layout.columns).columns
    return TableSchema(columns, typed=chosen.format is Format.PARQUET, fixed=bool(layout.columns))


def check_options(chosen: FileType, layout: Layout) -> None:
    """Raise UsageError for a package that is not installed, and for options that do not fit the format."""
    if chosen.format is not Format.CSV and (layout.bom or layout.safe_csv):
        raise UsageError(f"--bom and --safe-csv are for CSV, not for {chosen.format.value}.", remedy="Leave them out.")
    _require_packages(chosen)


def _require_packages(chosen: FileType) -> None:
    if chosen.format is Format.PARQUET:
        require_pyarrow()
    if chosen.compression is not None:
        require_compression(chosen.compression)


def _open(path: str, chosen: FileType) -> Target:
    target = open_target(path, content_type=chosen.content_type)
    return target if chosen.compression is None else CompressedTarget(target, chosen.compression)


class _Job:
    def __init__(
        self, results: AsyncIterator[Sequence[StoredRecord]], lines: LineMaker, layout: Layout, progress: Progress
    ) -> None:
        self._results = results
        self._line_maker = lines
        self._layout = layout
        self._progress = progress

    async def copy(self, target: Target, format: Format) -> ExportReport:
        """A text: records are written as they are read."""
        writer = TEXT_WRITERS[format](self._line_maker)
        records = 0
        async for rows in self._results:
            await _run_in_thread(_write_page, target, writer, rows)
            records += len(rows)
            self._progress("wrote", records)
        await _run_in_thread(target.write, writer.end())
        return ExportReport(records=records, columns=self._layout.columns, bytes=target.tell(), format=format)

    async def tabulate(self, target: Target, format: Format, table: TableSchema) -> ExportReport:
        """A table: its columns are known after the last record, so the records are spooled to a temporary file.

        A second read of the ledger instead could find new records that do not fit the columns.
        """
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

    def _spool_page(self, spool: BinaryIO, target: Target, table: TableSchema, rows: Sequence[StoredRecord]) -> None:
        lines = []
        for row in rows:
            line = self._line_maker.line(row)
            table.add(row.stage, decode_record(row, line))
            lines.append(f"{line}\n")
        with write_errors_explained(_spool_folder(target)):
            spool.write("".join(lines).encode())

    def _writer(self, target: Target, format: Format, table: TableSchema) -> TableWriter:
        if format is Format.PARQUET:
            return ParquetWriter(target, table)
        return CsvWriter(target, table, bom=self._layout.bom, safe=self._layout.safe_csv)


def _write_page(target: Target, writer: TextWriter, rows: Sequence[StoredRecord]) -> None:
    target.write(writer.page(rows))


async def _run_in_thread(work: Callable[..., T], *arguments: object) -> T:
    """Run blocking work in a thread. When cancelled, wait for it first: the caller closes its files next."""
    running = asyncio.ensure_future(asyncio.to_thread(work, *arguments))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        raise


def _spool(target: Target) -> BinaryIO:
    """A temporary file on the disk of the export, if the target has one."""
    with write_errors_explained(_spool_folder(target)):
        return tempfile.TemporaryFile(dir=target.folder)


def _spool_folder(target: Target) -> str:
    """What an error names: the target, or the folder of temporary files where its records wait."""
    return target.name if target.folder is not None else tempfile.gettempdir()


def _chunks(spool: BinaryIO) -> Iterator[list[bytes]]:
    spool.seek(0)
    while lines := spool.readlines(CHUNK_BYTES):
        yield lines
