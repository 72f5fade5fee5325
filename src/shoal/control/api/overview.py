"""The overview: runs, workers, egress, alerts and the ledger at a glance; and activity: audit events and alerts."""

from __future__ import annotations

import datetime as dt
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import Response

from shoal.control.api.common import DEFAULT_LIMIT, READ, WRITE, ActingDep, ApiDep, Cursor, Limit
from shoal.control.schemas import AlertList, AlertTestAnswer, EventRecord, OverviewRecord, PageRecord, PreviewAnswer
from shoal.service import records
from shoal.service.alerts import list_raised_alerts
from shoal.service.lookup import find_run_id
from shoal.service.overview import OverviewReader

router = APIRouter()

OfRun = Annotated[str | None, Query(description="Only of this run.", min_length=1, max_length=200)]


@router.get("/overview", response_model=OverviewRecord, responses=READ, tags=["overview"])
async def overview(api: ApiDep) -> Response:
    """What an operator looks at first."""
    record = await OverviewReader(api.shared).read()
    at = dt.datetime.fromtimestamp(await api.ledger.lanes.clock(), dt.UTC)
    return api.answer({"at": at, **record, "command": api.commands.status()})


@router.get("/events", response_model=PageRecord[EventRecord], responses=READ, tags=["activity"])
async def list_events(
    api: ApiDep,
    run: OfRun = None,
    actor: Annotated[str | None, Query(description="Only by this actor.", max_length=255)] = None,
    cursor: Cursor = None,
    limit: Limit = DEFAULT_LIMIT,
) -> Response:
    """Who did what, newest first."""
    run_id = await find_run_id(api.ledger, run)
    page = await api.ledger.reads.events(run_id=run_id, actor=actor, cursor=cursor, limit=limit)
    return api.page(page, records.event_record, "" if run_id is None else api.commands.runs("show", run_id))


@router.get("/alerts", response_model=AlertList, responses=READ, tags=["activity"])
async def list_alerts(api: ApiDep, run: OfRun = None, limit: Limit = DEFAULT_LIMIT) -> Response:
    """Alerts that were raised and whether they were delivered, newest first."""
    run_id = await find_run_id(api.ledger, run)
    rows = [records.alert_record(each) for each in await list_raised_alerts(api.ledger, run=run_id, limit=limit)]
    return api.answer({"rows": rows, "command": api.commands.alerts(run_id)})


@router.post("/alerts/test", response_model=PreviewAnswer | AlertTestAnswer, responses=WRITE, tags=["activity"])
async def send_test_alert(acting: ActingDep) -> Response:
    """Send a test message to every address of `notify`."""
    return await acting.act(lambda actions: actions.test_alerts())
