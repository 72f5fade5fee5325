"""The fleet: workers, the nodes they run on, draining and scaling."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import Response

from shoal.control.api.common import DEFAULT_LIMIT, READ, WRITE, ActingDep, ApiDep, Cursor, Limit, NamePath
from shoal.control.schemas import (
    DrainAnswer,
    NodeList,
    PageRecord,
    PreviewAnswer,
    ScaleAnswer,
    ScaleBody,
    WorkerRecord,
)
from shoal.service import records
from shoal.service.workers import list_nodes, list_worker_page

router = APIRouter(tags=["fleet"])


@router.get("/workers", response_model=PageRecord[WorkerRecord], responses=READ)
async def list_workers(
    api: ApiDep,
    present: Annotated[bool, Query(description="False: also those that stopped or were lost.")] = True,
    node: Annotated[str | None, Query(description="Only on this machine.", max_length=255)] = None,
    cursor: Cursor = None,
    limit: Limit = DEFAULT_LIMIT,
) -> Response:
    """Workers with what they run, newest first."""
    page = await list_worker_page(api.ledger, present=present, node=node, cursor=cursor, limit=limit)
    return api.page(page, records.worker_page_record, api.commands.workers(present=present))


@router.get("/nodes", response_model=NodeList, responses=READ)
async def nodes(api: ApiDep) -> Response:
    """The machines that workers run on, by name."""
    return api.answer({"rows": await list_nodes(api.ledger), "command": api.commands.workers()})


@router.post("/workers/{worker}/drain", response_model=PreviewAnswer | DrainAnswer, responses=WRITE)
async def drain_worker(acting: ActingDep, worker: NamePath) -> Response:
    """Stop a worker after its running items."""
    return await acting.act(lambda actions: actions.drain_worker(worker))


@router.post("/scrapers/{scraper}/scale", response_model=PreviewAnswer | ScaleAnswer, responses=WRITE)
async def scale(acting: ActingDep, scraper: NamePath, body: ScaleBody) -> Response:
    """Set the number of workers of the running pools of a scraper, on all machines."""
    return await acting.act(lambda actions: actions.scale(scraper, body.workers))
