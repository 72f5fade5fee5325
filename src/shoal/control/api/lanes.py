"""Lanes: the limits and delays that items share, and how to change them while runs go on."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query
from fastapi.responses import Response

from shoal.control.api.common import DEFAULT_LIMIT, READ, WRITE, ActingDep, ApiDep, Cursor, Limit, RunPath
from shoal.control.schemas import (
    BlockBody,
    LaneAnswer,
    LaneBody,
    LaneStatusRecord,
    LaneTimelineRecord,
    PageRecord,
    PreviewAnswer,
)
from shoal.service import records
from shoal.service.lanes import list_lane_progress, read_lane_timeline
from shoal.service.lookup import find_run

router = APIRouter(tags=["lanes"])

# The key of a group may have slashes.
LanePath = Annotated[str, Path(description="The lane's key.", min_length=1, max_length=255, examples=["shop.example"])]
Order = Annotated[
    Literal["name", "slowest"], Query(description="By name, or those with waiting items that will take longest first.")
]
Prefix = Annotated[str, Query(description="Only lanes whose names begin so.", max_length=255)]
OfRun = Annotated[str | None, Query(description="A lane of this run, not a shared one.", min_length=1, max_length=200)]


@router.get("/lanes", response_model=PageRecord[LaneStatusRecord], responses=READ)
async def list_lanes(
    api: ApiDep,
    order: Order = "name",
    text: Prefix = "",
    cursor: Cursor = None,
    limit: Limit = DEFAULT_LIMIT,
) -> Response:
    """The lanes that all runs share."""
    page = await list_lane_progress(api.ledger, order=order, prefix=text, cursor=cursor, limit=limit)
    return api.page(page, records.lane_status_record, api.commands.list_lanes(None))


@router.get("/runs/{run}/lanes", response_model=PageRecord[LaneStatusRecord], responses=READ)
async def list_lanes_of_run(
    api: ApiDep,
    run: RunPath,
    order: Order = "slowest",
    text: Prefix = "",
    cursor: Cursor = None,
    limit: Limit = DEFAULT_LIMIT,
) -> Response:
    """The lanes that items of a run use, shared ones too, with its items in them."""
    run_id = (await find_run(api.ledger, run)).id
    page = await list_lane_progress(api.ledger, run=run_id, order=order, prefix=text, cursor=cursor, limit=limit)
    return api.page(page, records.lane_status_record, api.commands.list_lanes(run_id))


@router.get("/runs/{run}/lanes/timeline", response_model=LaneTimelineRecord, responses=READ)
async def timeline(
    api: ApiDep,
    run: RunPath,
    minutes: Annotated[int, Query(description="The last minutes.", ge=1, le=1_440)] = 60,
    lanes: Annotated[int, Query(description="So many lanes, the slowest first.", ge=1, le=30)] = 30,
    lane: Annotated[
        list[Annotated[str, Query(min_length=1, max_length=255)]] | None,
        Query(description="These lanes instead; may be repeated.", max_length=30),
    ] = None,
) -> Response:
    """The attempts that ran in the lanes of a run, for a chart of swim-lanes."""
    found = await read_lane_timeline(api.ledger, run, lanes=lane, minutes=minutes, limit=lanes)
    return api.answer(records.lane_timeline_record(found))


@router.patch("/lanes/{lane:path}", response_model=PreviewAnswer | LaneAnswer, responses=WRITE)
async def set_lane(acting: ActingDep, lane: LanePath, body: LaneBody, run: OfRun = None) -> Response:
    """Change a lane for all workers at once; what is set here outranks what scrapers declare."""
    delay = tuple(body.delay) if isinstance(body.delay, list) else body.delay
    return await acting.act(
        lambda actions: actions.set_lane(lane, run=run, limit=body.limit, delay=delay, paused=body.paused)  # type: ignore[arg-type]
    )


@router.post("/lanes/{lane:path}/block", response_model=PreviewAnswer | LaneAnswer, responses=WRITE)
async def block_lane(acting: ActingDep, lane: LanePath, body: BlockBody, run: OfRun = None) -> Response:
    """Start no item of a lane for a while; 0 seconds lift a block."""
    return await acting.act(lambda actions: actions.block_lane(lane, seconds=body.seconds, why=body.why, run=run))
