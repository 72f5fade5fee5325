"""The overview: runs, workers, egress, alerts and the ledger at a glance."""

from __future__ import annotations

import datetime as dt

from fastapi import APIRouter
from fastapi.responses import Response

from shoal.control.api.common import READ, ApiDep
from shoal.control.schemas import OverviewRecord
from shoal.service.overview import OverviewReader

router = APIRouter(tags=["overview"])


@router.get("/overview", response_model=OverviewRecord, responses=READ)
async def overview(api: ApiDep) -> Response:
    """What an operator looks at first."""
    record = await OverviewReader(api.shared).read()
    at = dt.datetime.fromtimestamp(await api.ledger.lanes.clock(), dt.UTC)
    return api.answer({"at": at, **record, "command": api.commands.status()})
