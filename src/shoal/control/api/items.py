"""Items: search, one with its attempts; retry, cancel and replay."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query
from fastapi.responses import Response

from shoal.control.api.common import (
    DEFAULT_LIMIT,
    READ,
    WRITE,
    ActingDep,
    ApiDep,
    Cursor,
    ItemPath,
    Limit,
    RunPath,
    StageQuery,
    TextQuery,
)
from shoal.control.schemas import (
    MAX_NUMBER,
    ItemDetailRecord,
    ItemFilterBody,
    ItemPage,
    ItemsBody,
    PreviewAnswer,
    ReplayAnswer,
    ReplayBody,
    RunActionAnswer,
)
from shoal.model.item import OPEN_STATES, ItemState
from shoal.model.views import ItemFilter, ItemView
from shoal.service import inspect, records
from shoal.service.lookup import find_run

router = APIRouter(tags=["items"])

# A page must come quickly; one that is not full has a cursor to continue, and a count may be "at least".
SEARCH_SECONDS, COUNT_SECONDS = 0.04, 0.02


def _filter(body: ItemFilterBody) -> ItemFilter:
    return ItemFilter(
        ids=tuple(body.ids),
        states=tuple(body.states),
        stage=body.stage,
        partition=body.partition,
        outcome=body.outcome,
        error=body.error,
        lane=body.lane,
        failure=body.failure,
        text=body.text,
    )


async def _query(
    state: Annotated[list[ItemState] | None, Query(description="Only in these states; may be repeated.")] = None,
    stage: StageQuery = None,
    partition: TextQuery = None,
    lane: TextQuery = None,
    outcome: TextQuery = None,
    error: Annotated[str | None, Query(description="Only with this in the last error.", max_length=500)] = None,
    failure: Annotated[int | None, Query(description="Only of this group of failures.", ge=1, le=MAX_NUMBER)] = None,
    text: Annotated[str | None, Query(description="Only with this in the key or the URL.", max_length=500)] = None,
) -> ItemFilter:
    return ItemFilter(
        states=tuple(state or ()),
        stage=stage,
        partition=partition,
        outcome=outcome,
        error=error,
        lane=lane,
        failure=failure,
        text=text,
    )


@router.get("/runs/{run}/items", response_model=ItemPage, responses=READ)
async def list_items(
    api: ApiDep,
    run: RunPath,
    which: Annotated[ItemFilter, Depends(_query)],
    cursor: Cursor = None,
    limit: Limit = DEFAULT_LIMIT,
) -> Response:
    """Items that match, in the order they were enqueued, and how many there are, counted up to a limit."""
    found = await find_run(api.ledger, run)
    page = await inspect.list_items(api.ledger, found.id, which, cursor=cursor, limit=limit, seconds=SEARCH_SECONDS)
    count = await inspect.count_items(api.ledger, found.id, which, seconds=COUNT_SECONDS)
    waiting = [item.id for item in page.rows if item.state in OPEN_STATES]
    reasons = {}
    if waiting:
        reasons = await inspect.explain_items(api.ledger, found.id, waiting, workers=await api.shared.workers.get())

    def record(item: ItemView) -> records.Record:
        reason = reasons.get(item.id)
        return {**records.item_record(item, found.id), "waiting_text": "" if reason is None else reason.text}

    return api.page(
        page,
        record,
        api.commands.items("ls", found.id, which),
        count=count.count,
        count_is_at_least=count.is_at_least,
    )


@router.get("/runs/{run}/items/{item}", response_model=ItemDetailRecord, responses=READ)
async def read_item(api: ApiDep, run: RunPath, item: ItemPath) -> Response:
    """One item: its attempts, why it does not run, its first records."""
    detail = await inspect.read_item_page(api.ledger, run, item)
    command = api.commands.item("show", detail.detail.run.id, item)
    return api.answer({**records.item_page_record(detail), "command": command})


@router.post("/runs/{run}/items/retry", response_model=PreviewAnswer | RunActionAnswer, responses=WRITE)
async def retry_items(acting: ActingDep, run: RunPath, body: ItemsBody) -> Response:
    """Queue dead items that match again; skipped and cancelled ones when `states` names them."""
    which = _filter(body.filter)
    return await acting.act(lambda actions: actions.retry_items(run, which, limit=body.limit))


@router.post("/runs/{run}/items/cancel", response_model=PreviewAnswer | RunActionAnswer, responses=WRITE)
async def cancel_items(acting: ActingDep, run: RunPath, body: ItemsBody) -> Response:
    """End open items that match as cancelled, leased ones too."""
    which = _filter(body.filter)
    return await acting.act(lambda actions: actions.cancel_items(run, which, limit=body.limit))


@router.post("/runs/{run}/items/{item}/retry", response_model=PreviewAnswer | RunActionAnswer, responses=WRITE)
async def retry_item(acting: ActingDep, run: RunPath, item: ItemPath) -> Response:
    """Queue one item again that is dead, skipped or cancelled."""
    return await acting.act(lambda actions: actions.retry_items(run, ItemFilter(ids=(item,))))


@router.post("/runs/{run}/items/{item}/cancel", response_model=PreviewAnswer | RunActionAnswer, responses=WRITE)
async def cancel_item(acting: ActingDep, run: RunPath, item: ItemPath) -> Response:
    """End one open item as cancelled."""
    return await acting.act(lambda actions: actions.cancel_items(run, ItemFilter(ids=(item,))))


@router.post("/runs/{run}/items/{item}/replay", response_model=PreviewAnswer | ReplayAnswer, responses=WRITE)
async def replay_item(acting: ActingDep, run: RunPath, item: ItemPath, body: ReplayBody) -> Response:
    """Run the handler of an item again and replace its records: on its stored page, or on one fetched anew."""
    return await acting.act(
        lambda actions: actions.replay_item(run, item, egress=body.egress, follow_ups=body.follow_ups)
    )
