"""Records of a run for people who look at them: searched, measured against the run before, streamed as a file."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import msgspec

from shoal.errors import NotFound
from shoal.export.records import Coverage, LineMaker, decode_record, measure_coverage, result_pages
from shoal.export.tables import CsvRows, TableSchema
from shoal.export.texts import JsonArray, JsonLines
from shoal.model.views import CursorPage, ResultRow
from shoal.service.inspect import check_stage, run_before
from shoal.service.lookup import find_run

if TYPE_CHECKING:
    from shoal.ledger.protocols import Ledger
    from shoal.model.run import Run

SEARCH_PAGE = 500
# A page must come quickly; one that is not full has a cursor to continue.
SEARCH_SECONDS = 0.05
MAX_PAGE_BYTES = 2 << 20
# A page of the dashboard shows shares, not counts: a smaller sample than that of the command line is enough.
COVERAGE_SAMPLE = 1_000
STREAM_BYTES = 1 << 16


class CoverageDrift(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a run's records. `before`: of the scraper's run before, None when there is none."""

    run: Run
    coverage: Coverage
    before_run: Run | None = None
    before: Coverage | None = None


async def search_results(
    ledger: Ledger,
    run: Run,
    *,
    stage: str | None = None,
    text: str | None = None,
    cursor: str | None = None,
    limit: int = 50,
) -> CursorPage[ResultRow]:
    """Records in the order of their items, with `text` those whose JSON, key or URL contains it, whatever its case.

    The page may be short, even empty: a text that few have is searched for `SEARCH_SECONDS`; and a page ends after two
    megabytes.
    """
    check_stage(run, stage)
    wanted = None if text is None else text.casefold()
    rows: list[ResultRow] = []
    size, began = 0, time.monotonic()
    while True:
        room = limit - len(rows)
        page = await ledger.reads.results(
            run.id, stage=stage, cursor=cursor, limit=room if wanted is None else max(room, SEARCH_PAGE)
        )
        for row in page.rows:
            if wanted is not None and not _contains(row, wanted):
                continue
            rows.append(row)
            size += len(row.record)
            if len(rows) == limit or size >= MAX_PAGE_BYTES:
                last = row is page.rows[-1]
                return CursorPage(tuple(rows), page.cursor if last else f"{row.item}.{row.n}")
        cursor = page.cursor
        spent = time.monotonic() - began
        if cursor is None or spent > SEARCH_SECONDS:
            return CursorPage(tuple(rows), cursor)


def _contains(row: ResultRow, wanted: str) -> bool:
    return any(wanted in (text or "").casefold() for text in (row.record, row.key, row.url))


async def coverage_with_drift(ledger: Ledger, run: str, *, stage: str | None = None) -> CoverageDrift:
    """Measure the fields of a run's records in a sample, and those of the scraper's run before."""
    found = await find_run(ledger, run)
    check_stage(found, stage)
    coverage = await measure_coverage(ledger, found.id, stage=stage, sample=COVERAGE_SAMPLE)
    try:
        earlier = await run_before(ledger, found)
    except NotFound:
        return CoverageDrift(run=found, coverage=coverage)
    before = await measure_coverage(ledger, earlier.id, stage=stage, sample=COVERAGE_SAMPLE)
    return CoverageDrift(run=found, coverage=coverage, before_run=earlier, before=before)


async def export_stream(ledger: Ledger, run_id: str, format: str, *, stage: str | None = None) -> AsyncIterator[bytes]:
    """All records as parts of a file (jsonl, json or csv), in constant memory.

    CSV reads the records twice, first for the columns; cells that a spreadsheet would read as formulas are quoted. Its
    first part is empty, so that who sends it on can begin before the columns are known.
    """
    lines = LineMaker(run_id)
    if format == "csv":
        yield b""
        table = TableSchema(typed=False)
        async for rows in result_pages(ledger, run_id, stage=stage):
            for row in rows:
                table.add(row.stage, decode_record(row))
        writer = CsvRows(table, safe=True)
        yield writer.header()
        async for rows in result_pages(ledger, run_id, stage=stage):
            yield writer.rows([lines.line(row).encode() for row in rows])
        return
    text = JsonArray(lines) if format == "json" else JsonLines(lines)
    async for rows in result_pages(ledger, run_id, stage=stage):
        yield text.page(rows)
    yield text.end()
