"""Egress: pools of exits, single exits with their hosts and budgets; rest, ban, free and test them."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import Response

from shoal.control.api.common import DEFAULT_LIMIT, READ, WRITE, ActingDep, ApiDep, Cursor, Limit, NamePath, RunPath
from shoal.control.schemas import (
    BanBody,
    EgressExitRecord,
    EgressMatrixRecord,
    ExitAnswer,
    ExitTestAnswer,
    ExitTestBody,
    PageRecord,
    PoolList,
    PreviewAnswer,
    RestBody,
)
from shoal.model.egress import ExitState
from shoal.service import records
from shoal.service.egress import find_pool, list_exit_page, list_pools
from shoal.service.lookup import find_run
from shoal.service.overview import pool_records

router = APIRouter(tags=["egress"])


@router.get("/egress", response_model=PoolList, responses=READ)
async def pools(api: ApiDep) -> Response:
    """Every pool that workers have used, by name."""
    return api.answer({"rows": pool_records(await list_pools(api.ledger))})


@router.get("/runs/{run}/egress", response_model=PoolList, responses=READ)
async def pools_of_one_run(api: ApiDep, run: RunPath) -> Response:
    """The pools that live workers of the run use."""
    found = await find_run(api.ledger, run)
    status = await api.shared.run_reader(found.id).read(found)
    return api.answer({"rows": pool_records(status.reading.snapshot.egress)})


@router.get("/egress/{pool}", response_model=PageRecord[EgressExitRecord], responses=READ)
async def list_exits(
    api: ApiDep,
    pool: NamePath,
    state: Annotated[ExitState | None, Query(description="Only in this state.")] = None,
    cursor: Cursor = None,
    limit: Limit = DEFAULT_LIMIT,
) -> Response:
    """The exits of a pool by label, without their hosts; tokens with their budgets."""
    found = await find_pool(api.ledger, pool)
    page = await list_exit_page(api.ledger, found, state=state, cursor=cursor, limit=limit)
    return api.page(page, records.exit_record, api.commands.list_exits(pool, found.kind, state))


@router.get("/egress/{pool}/exits/{exit}", response_model=EgressExitRecord, responses=READ)
async def read_exit(api: ApiDep, pool: NamePath, exit: NamePath) -> Response:
    """One exit with the hosts that blocked it and its budgets."""
    view = await api.ledger.exits.get(pool, exit)
    command = api.commands.show_exit(pool, exit, view.kind)
    return api.answer({**records.exit_record(view), "command": command})


@router.get("/egress/{pool}/matrix", response_model=EgressMatrixRecord, responses=READ)
async def matrix(api: ApiDep, pool: NamePath) -> Response:
    """Which exits are blocked at which hosts: 50 exits and 30 hosts at most, the most blocked first."""
    await find_pool(api.ledger, pool)
    return api.answer(records.matrix_record(await api.ledger.exits.matrix(pool)))


@router.post("/egress/{pool}/exits/{exit}/rest", response_model=PreviewAnswer | ExitAnswer, responses=WRITE)
async def rest_exit(acting: ActingDep, pool: NamePath, exit: NamePath, body: RestBody) -> Response:
    """Use an exit no more for a while, on all machines."""
    return await acting.act(lambda actions: actions.rest_exit(pool, exit, seconds=body.seconds))


@router.post("/egress/{pool}/exits/{exit}/ban", response_model=PreviewAnswer | ExitAnswer, responses=WRITE)
async def ban_exit(acting: ActingDep, pool: NamePath, exit: NamePath, body: BanBody) -> Response:
    """Ban an exit on all machines; it is tried with one request before it is used again."""
    return await acting.act(lambda actions: actions.ban_exit(pool, exit, seconds=body.seconds, why=body.why))


@router.post("/egress/{pool}/exits/{exit}/free", response_model=PreviewAnswer | ExitAnswer, responses=WRITE)
async def free_exit(acting: ActingDep, pool: NamePath, exit: NamePath) -> Response:
    """Use a banned or resting exit again at once, at every host."""
    return await acting.act(lambda actions: actions.free_exit(pool, exit))


@router.post("/egress/{pool}/exits/{exit}/test", response_model=PreviewAnswer | ExitTestAnswer, responses=WRITE)
async def test_exit(acting: ActingDep, pool: NamePath, exit: NamePath, body: ExitTestBody) -> Response:
    """Try one proxy from the server's machine."""
    return await acting.act(lambda actions: actions.test_exit(pool, exit, url=body.url))
