"""Runs: list, status, why, partitions, comparison; pause, resume, seal, cancel and remove."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import Response

from shoal.control.api.common import (
    DEFAULT_LIMIT,
    READ,
    WRITE,
    ActingDep,
    ApiDep,
    Cursor,
    Limit,
    RunPath,
    StageQuery,
)
from shoal.control.schemas import (
    ComparisonRecord,
    DrainAnswer,
    HistoryRecord,
    PageRecord,
    PartitionRecord,
    PreviewAnswer,
    RunActionAnswer,
    RunDetailRecord,
    RunRecord,
    WhyRecord,
)
from shoal.model.run import RunState
from shoal.service import inspect, records
from shoal.service.history import MAX_HISTORY_MINUTES, MIN_HISTORY_MINUTES, read_history
from shoal.service.lookup import find_run
from shoal.service.overview import read_run_page

router = APIRouter(tags=["runs"])


@router.get("/runs", response_model=PageRecord[RunRecord], responses=READ)
async def list_runs(
    api: ApiDep,
    scraper: Annotated[str | None, Query(description="Only of this scraper.", max_length=100)] = None,
    state: Annotated[RunState | None, Query(description="Only in this state.")] = None,
    cursor: Cursor = None,
    limit: Limit = DEFAULT_LIMIT,
) -> Response:
    """Runs with their counts, newest first."""
    page = await inspect.list_runs(api.ledger, scraper=scraper, state=state, cursor=cursor, limit=limit)
    command = api.commands.list_runs(scraper=scraper, state=state)
    return api.page(page, lambda each: records.run_record(each.run, each.counts), command)


@router.get("/runs/{run}", response_model=RunDetailRecord, responses=READ)
async def read_run(api: ApiDep, run: RunPath) -> Response:
    """Everything about how one run stands."""
    page = await read_run_page(api.shared, run)
    return api.answer({**records.run_page_record(page), "command": api.commands.status(page.run.id)})


@router.get("/runs/{run}/why", response_model=WhyRecord, responses=READ)
async def why(api: ApiDep, run: RunPath) -> Response:
    """What limits the run and since when, the lane that will end last, and when the run may end."""
    found = await find_run(api.ledger, run)
    outlook = await api.shared.run_reader(found.id).outlook(found)
    return api.answer({**records.outlook_record(outlook), "command": api.commands.why(found.id)})


@router.get("/runs/{run}/history", response_model=HistoryRecord, responses=READ)
async def history(
    api: ApiDep,
    run: RunPath,
    minutes: Annotated[int, Query(description="So far back.", ge=MIN_HISTORY_MINUTES, le=MAX_HISTORY_MINUTES)] = 60,
) -> Response:
    """The run over its last minutes: items per state, what ended, latencies, what it waited for, and marks."""
    return api.answer(records.history_record(await read_history(api.ledger, run, minutes)))


@router.get("/runs/{run}/partitions", response_model=PageRecord[PartitionRecord], responses=READ)
async def partitions(
    api: ApiDep, run: RunPath, stage: StageQuery = None, cursor: Cursor = None, limit: Limit = DEFAULT_LIMIT
) -> Response:
    """How far each partition is, by stage and name."""
    found = await find_run(api.ledger, run)
    page = await inspect.list_partitions(api.ledger, found.id, stage=stage, cursor=cursor, limit=limit)
    return api.page(page, records.partition_record, api.commands.status(found.id))


@router.get("/runs/{run}/compare", response_model=ComparisonRecord, responses=READ)
async def compare(
    api: ApiDep,
    run: RunPath,
    other: Annotated[
        str | None,
        Query(alias="with", description="The other run; by default the one before.", min_length=1, max_length=200),
    ] = None,
) -> Response:
    """The figures of two runs: counts, rate, share of successes, why items died."""
    pair = await inspect.compare_runs(api.ledger, other, run)
    command = api.commands.compare(*(each.run.id for each in pair))
    return api.answer({"runs": [records.figures_record(each) for each in pair], "command": command})


@router.post("/runs/{run}/pause", response_model=PreviewAnswer | RunActionAnswer, responses=WRITE)
async def pause_run(acting: ActingDep, run: RunPath) -> Response:
    """Stop claims of a run; running attempts may end."""
    return await acting.act(lambda actions: actions.pause_run(run))


@router.post("/runs/{run}/resume", response_model=PreviewAnswer | RunActionAnswer, responses=WRITE)
async def resume_run(acting: ActingDep, run: RunPath) -> Response:
    """Make a paused, finished or cancelled run active again."""
    return await acting.act(lambda actions: actions.resume_run(run))


@router.post("/runs/{run}/seal", response_model=PreviewAnswer | RunActionAnswer, responses=WRITE)
async def seal_run(acting: ActingDep, run: RunPath) -> Response:
    """No more items will be added from outside: the run finishes when none is open."""
    return await acting.act(lambda actions: actions.seal_run(run))


@router.post("/runs/{run}/cancel", response_model=PreviewAnswer | RunActionAnswer, responses=WRITE)
async def cancel_run(acting: ActingDep, run: RunPath) -> Response:
    """End every open item as cancelled, leased ones too."""
    return await acting.act(lambda actions: actions.cancel_run(run))


@router.delete("/runs/{run}", response_model=PreviewAnswer | RunActionAnswer, responses=WRITE)
async def remove_run(acting: ActingDep, run: RunPath) -> Response:
    """Delete a run with its items, attempts and records. This cannot be undone."""
    return await acting.act(lambda actions: actions.remove_run(run))


@router.post("/runs/{run}/drain", response_model=PreviewAnswer | DrainAnswer, responses=WRITE)
async def drain_run(acting: ActingDep, run: RunPath) -> Response:
    """Stop the workers of a run after their running items."""
    return await acting.act(lambda actions: actions.drain_run(run))
