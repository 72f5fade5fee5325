"""Results: records of a run, which fields they have, and all of them as a stream."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Annotated, Literal

from fastapi import APIRouter, Query
from fastapi.responses import Response, StreamingResponse

from shoal.control.answers import ApiError
from shoal.control.api.common import DEFAULT_LIMIT, READ, ApiDep, Cursor, Limit, RunPath, StageQuery, TextQuery
from shoal.control.app import Control
from shoal.control.schemas import CoverageRecord, PageRecord, ResultRecord
from shoal.service import inspect, records
from shoal.service.lookup import find_run
from shoal.service.results import coverage_with_drift, export_stream, search_results

router = APIRouter(tags=["results"])

_TYPES = {"jsonl": "application/x-ndjson", "json": "application/json", "csv": "text/csv; charset=utf-8"}
MAX_EXPORTS = 4
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]+")


async def _bounded(control: Control, stream: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """A stream that reads all records of a run: few of them at once, so that the ledger has time for others."""
    if control.exports >= MAX_EXPORTS:
        raise ApiError(
            *(503, "too_many_exports", f"The server sends {MAX_EXPORTS} exports already."),
            hint="Try again later, or use `shoal export`.",
            headers={"Retry-After": "10"},
        )
    control.exports += 1
    try:
        async for part in stream:
            yield part
    finally:
        control.exports -= 1


@router.get("/runs/{run}/results", response_model=PageRecord[ResultRecord], responses=READ)
async def list_results(
    api: ApiDep,
    run: RunPath,
    stage: StageQuery = None,
    text: TextQuery = None,
    cursor: Cursor = None,
    limit: Limit = DEFAULT_LIMIT,
) -> Response:
    """Records in the order of their items; with `text` those that contain it. A page may be short while more follow."""
    found = await find_run(api.ledger, run)
    page = await search_results(api.ledger, found, stage=stage, text=text, cursor=cursor, limit=limit)
    return api.page(page, records.result_record, api.commands.sample(found.id, stage=stage))


@router.get("/runs/{run}/results/coverage", response_model=CoverageRecord, responses=READ)
async def coverage(api: ApiDep, run: RunPath, stage: StageQuery = None) -> Response:
    """Which fields the records have, how often they are filled, and how that differs from the run before."""
    found = await coverage_with_drift(api.ledger, run, stage=stage)
    command = api.commands.coverage(found.run.id, stage=stage)
    return api.answer({**records.coverage_record(found), "command": command})


@router.get(
    "/runs/{run}/results/export",
    response_class=StreamingResponse,
    responses={
        **{status: text for status, text in READ.items() if status != 304},
        200: {
            "description": "All records, as a file. A connection that ends early means that the file is not whole.",
            "content": {
                "application/json": {"schema": {"type": "array", "items": {}}},
                **{_TYPES[kind].partition(";")[0]: {"schema": {"type": "string"}} for kind in ("jsonl", "csv")},
            },
        },
    },
)
async def export(
    api: ApiDep,
    run: RunPath,
    format: Annotated[
        Literal["jsonl", "json", "csv"],
        Query(description="In `csv` text that a spreadsheet would read as a formula has a quote before it."),
    ] = "jsonl",
    stage: StageQuery = None,
) -> Response:
    """All records of a run as a file; of a running run those that were stored before and some stored later."""
    found = await find_run(api.ledger, run)
    inspect.check_stage(found, stage)
    stream = _bounded(api.control, export_stream(api.ledger, found.id, format, stage=stage))
    # Errors before the first part are answered as errors.
    first = await anext(stream, b"")

    async def parts() -> AsyncIterator[bytes]:
        yield first
        async for part in stream:
            yield part

    name = _UNSAFE.sub("_", f"{found.scraper}-{found.id}{f'-{stage}' if stage else ''}.{format}")
    headers = {
        "Content-Disposition": f'attachment; filename="{name}"',
        "Cache-Control": "no-store",
        "X-Content-Type-Options": "nosniff",
    }
    return StreamingResponse(parts(), headers=headers, media_type=_TYPES[format])
