"""/api/v1/pools: pools of workers. Those of this machine are started, scaled, stopped and restarted here."""

from __future__ import annotations

import datetime as dt
from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query
from pydantic import Field

from shoal.control.access import Operator, Viewer
from shoal.control.answers import Preview
from shoal.control.api.common import READ, WHOLE_WRITE
from shoal.control.jobs import Drain, PartDep
from shoal.control.schemas import Answer, Body, Text
from shoal.observe.formatting import pluralize
from shoal.service.local_pools import MAX_WORKERS, STOP_SECONDS, PoolStatus, find_target, project_scrapers

router = APIRouter(prefix="/pools", tags=["pools"])
MAX_POOLS = 200
PoolId = Annotated[Text, Path(max_length=300)]
Workers = Annotated[int, Field(ge=1, le=MAX_WORKERS, examples=[3])]


class StartPoolBody(Body):
    """`scraper`: a name of the project. `run`: an id; otherwise the unfinished run, or a new one."""

    scraper: Text = Field(min_length=1, max_length=200, examples=["books"])
    workers: Workers
    run: Text | None = Field(None, max_length=200)


class ScalePoolBody(Body):
    workers: Workers


class RestartPoolBody(Body):
    workers: Workers | None = None


class PoolAnswer(Answer):
    """`by_this_server`: this server can steer it. `gone`: its process ended without signing off."""

    pool_id: str
    scraper: str
    run_id: str
    node: str
    pid: int
    state: Literal["running", "stopping", "gone", "ended"]
    workers: int
    wanted: int
    started_at: dt.datetime
    ended_at: dt.datetime | None
    started_by: str
    why: str
    by_this_server: bool


class PoolsAnswer(Answer):
    """`scrapers`: those that this server can start."""

    rows: list[PoolAnswer]
    cursor: None = None
    scrapers: list[str]
    command: str


class PoolChangeAnswer(Answer):
    text: str
    command: str
    preview: bool = False
    items: int | None = None
    items_is_at_least: bool = False
    pool: PoolAnswer | None = None


@router.get("", responses=READ)
async def list_pools(
    part: PartDep,
    who: Viewer,
    scraper: Annotated[Text | None, Query(max_length=200)] = None,
    ended: Annotated[bool, Query(description="Also those that have ended.")] = False,
    limit: Annotated[int, Query(ge=1, le=MAX_POOLS)] = 50,
) -> PoolsAnswer:
    """The pools of the ledger, newest first, on whichever machine."""
    found = await part.pools.list(scraper=scraper, ended=ended, limit=limit)
    return PoolsAnswer(
        rows=[_pool(status) for status in found],
        scrapers=sorted(project_scrapers(part.settings)),
        command=part.commands.workers(),
    )


@router.get("/{pool_id}", responses=READ)
async def get_pool(part: PartDep, who: Viewer, pool_id: PoolId) -> PoolAnswer:
    """One pool, also when it has ended."""
    return _pool(await part.pools.get(pool_id))


@router.post("", responses=WHOLE_WRITE)
async def start_pool(part: PartDep, who: Operator, body: StartPoolBody, preview: Preview = False) -> PoolChangeAnswer:
    """Start a pool of a scraper of the project on this machine."""
    command = part.commands.start_pool(find_target(part.settings, body.scraper), body.workers, run=body.run)
    number = pluralize(body.workers, "worker")
    if preview:
        return PoolChangeAnswer(text=f"To be started: {number} of {body.scraper}.", command=command, preview=True)
    started = await part.pools.start(body.scraper, workers=body.workers, run_id=body.run, by=who.actor)
    text = f"A pool of {body.scraper} with {number} works on run {started.pool.run_id}."
    return PoolChangeAnswer(text=text, command=command, pool=_pool(started))


@router.post("/{pool_id}/scale", responses=WHOLE_WRITE)
async def scale_pool(
    part: PartDep, who: Operator, pool_id: PoolId, body: ScalePoolBody, preview: Preview = False
) -> PoolChangeAnswer:
    """Set the number of workers of the pools of its scraper, without a restart."""
    before = await part.pools.get(pool_id)
    part.pools.check_steerable(before)
    command = part.commands.scale(before.pool.scraper, body.workers)
    number = pluralize(body.workers, "worker")
    if preview:
        return PoolChangeAnswer(text=f"To be scaled to {number}.", command=command, preview=True, pool=_pool(before))
    after = await part.pools.scale(pool_id, body.workers, by=who.actor)
    return PoolChangeAnswer(text=f"The pool goes to {number}.", command=command, pool=_pool(after))


@router.post("/{pool_id}/stop", responses=WHOLE_WRITE)
async def stop_pool(
    part: PartDep, who: Operator, pool_id: PoolId, preview: Preview = False, drain: Drain = STOP_SECONDS
) -> PoolChangeAnswer:
    """Stop a pool: running items get `drain` seconds, then they are given back. Answers at once."""
    before = await part.pools.get(pool_id)
    part.pools.check_steerable(before)
    command = part.commands.stop_workers(before.pool.run_id)
    if preview:
        return PoolChangeAnswer(text="To be stopped.", command=command, preview=True, pool=_pool(before))
    after = await part.pools.stop(pool_id, by=who.actor, drain=drain, wait=1.0)
    text = "The pool stops." if after.is_running else "The pool has stopped."
    return PoolChangeAnswer(text=text, command=command, pool=_pool(after))


@router.post("/{pool_id}/restart", responses=WHOLE_WRITE)
async def restart_pool(
    part: PartDep,
    who: Operator,
    pool_id: PoolId,
    preview: Preview = False,
    drain: Drain = STOP_SECONDS,
    body: RestartPoolBody | None = None,
) -> PoolChangeAnswer:
    """Stop a pool and start one with the settings and the code of now, on the same run. Answers when it has begun."""
    before = await part.pools.get(pool_id)
    part.pools.check_steerable(before)
    workers = (None if body is None else body.workers) or before.pool.wanted or 1
    target = find_target(part.settings, before.pool.scraper)
    command = part.commands.start_pool(target, workers, run=before.pool.run_id)
    if preview:
        text = f"To be restarted with {pluralize(workers, 'worker')}."
        return PoolChangeAnswer(text=text, command=command, preview=True, pool=_pool(before))
    after = await part.pools.restart(pool_id, by=who.actor, workers=workers, drain=drain)
    return PoolChangeAnswer(text=f"Restarted as {after.pool.id}.", command=command, pool=_pool(after))


def _pool(status: PoolStatus) -> PoolAnswer:
    pool = status.pool
    return PoolAnswer(
        pool_id=pool.id,
        scraper=pool.scraper,
        run_id=pool.run_id,
        node=pool.node,
        pid=pool.pid,
        state=status.state,  # type: ignore[arg-type]
        workers=pool.workers,
        wanted=pool.wanted,
        started_at=pool.started_at,
        ended_at=pool.ended_at,
        started_by=pool.by,
        why=pool.why,
        by_this_server=status.steerable,
    )
