"""Failures: dead items that failed alike; retry a group, or a few of it first, and mute it."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query
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
)
from shoal.control.schemas import (
    FailurePageRecord,
    FailureRecord,
    LimitBody,
    MuteAnswer,
    PreviewAnswer,
    RunActionAnswer,
)
from shoal.model.item import ItemState
from shoal.model.views import ItemFilter
from shoal.service import records
from shoal.service.failures import list_failure_groups, read_failure_group
from shoal.service.lookup import find_run

router = APIRouter(tags=["failures"])

FailurePath = Annotated[int, Path(description="The group's number.", ge=1, le=(1 << 31) - 1, examples=[1])]


@router.get("/runs/{run}/failures", response_model=FailurePageRecord, responses=READ)
async def list_failures(
    api: ApiDep,
    run: RunPath,
    muted: Annotated[bool, Query(description="The muted groups instead of the others.")] = False,
    cursor: Cursor = None,
    limit: Limit = DEFAULT_LIMIT,
) -> Response:
    """Groups of dead items with the same stage, outcome, host and shape of the message; the newest death first."""
    found = await find_run(api.ledger, run)
    page = await list_failure_groups(api.ledger, found.id, muted=muted, cursor=cursor, limit=limit)
    return api.answer(
        {
            "rows": [records.failure_group_record(group) for group in page.rows],
            "cursor": page.cursor,
            "command": api.commands.items("ls", found.id, ItemFilter(states=(ItemState.DEAD,))),
            "ungrouped": page.ungrouped,
            "ungrouped_is_at_least": page.ungrouped_is_at_least,
        }
    )


@router.get("/runs/{run}/failures/{failure}", response_model=FailureRecord, responses=READ)
async def read_failure(api: ApiDep, run: RunPath, failure: FailurePath) -> Response:
    """One group of dead items."""
    return api.answer(records.failure_group_record(await read_failure_group(api.ledger, run, failure)))


@router.post("/runs/{run}/failures/{failure}/retry", response_model=PreviewAnswer | RunActionAnswer, responses=WRITE)
async def retry_failure(acting: ActingDep, run: RunPath, failure: FailurePath, body: LimitBody) -> Response:
    """Queue the items of a group again: all of them, or a few to see whether it helps."""
    return await acting.act(lambda actions: actions.retry_failure(run, failure, limit=body.limit))


@router.post("/runs/{run}/failures/{failure}/mute", response_model=PreviewAnswer | MuteAnswer, responses=WRITE)
async def mute_failure(acting: ActingDep, run: RunPath, failure: FailurePath) -> Response:
    """Hide a group in lists. Its items and alerts do not change."""
    return await acting.act(lambda actions: actions.mute_failure(run, failure, muted=True))


@router.post("/runs/{run}/failures/{failure}/unmute", response_model=PreviewAnswer | MuteAnswer, responses=WRITE)
async def unmute_failure(acting: ActingDep, run: RunPath, failure: FailurePath) -> Response:
    """Show a group in lists again."""
    return await acting.act(lambda actions: actions.mute_failure(run, failure, muted=False))
