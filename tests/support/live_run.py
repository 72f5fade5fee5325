"""A ledger with runs in several states, for those who look at it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from shoal.ledger.protocols import Ledger
from shoal.model.item import ClaimedItem, NewItem
from shoal.model.lane import LanePolicy
from shoal.model.run import Run, RunSpec, StageSpec
from shoal.model.worker import Scope, WorkerSpec
from shoal.testing.harness import dead, done, retry

WORKER = "node-1-feed"
HOST = "shop.example"


class Scene(NamedTuple):
    """`finished`: 3 done, 2 dead. `active`: 1 done, 2 leased, 1 delayed, 1 dead, 4 behind their host, 2 ready."""

    finished: str
    active: str
    paused: str


async def prepare(ledger: Ledger, *, version: str = "") -> Scene:
    await ledger.workers.register(WorkerSpec(id=WORKER, node="node", pid=1, version=version, lease_seconds=3600))
    return Scene(await _finished(ledger), await _active(ledger), await _paused(ledger))


async def new_run(ledger: Ledger, scraper: str, *stages: str, lane: LanePolicy | None = None) -> Run:
    specs = tuple(StageSpec(name, lane=lane or LanePolicy()) for name in stages or ("page",))
    return await ledger.runs.create(RunSpec(scraper=scraper, stages=specs))


async def claim(ledger: Ledger, run_id: str, limit: int) -> list[ClaimedItem]:
    return await ledger.claims.claim(WORKER, Scope(run_ids=(run_id,)), limit)


async def _finished(ledger: Ledger) -> str:
    run = await new_run(ledger, "books")
    await ledger.intake.enqueue(run.id, [f"https://books.example/{n}" for n in range(5)])
    await ledger.runs.seal(run.id)
    claimed = await claim(ledger, run.id, 5)
    ends = [done(item, '{"title":"A"}') for item in claimed[:3]]
    ends += [dead(item, f"404 Not Found at {item.name}") for item in claimed[3:]]
    await ledger.commits.commit(WORKER, ends)
    await ledger.upkeep.run_once()
    assert (await ledger.runs.get(run.id)).state == "finished"
    return run.id


async def _active(ledger: Ledger) -> str:
    run = await new_run(ledger, "shop", "listing", "product", lane=LanePolicy(limit=2))
    await ledger.intake.enqueue(run.id, _items(5, partition="de"))
    claimed = await claim(ledger, run.id, 5)
    await ledger.commits.commit(
        WORKER, [done(claimed[0]), retry(claimed[1], 3600.0, "read timed out"), dead(claimed[2], "410 Gone")]
    )
    await ledger.intake.enqueue(run.id, [NewItem(key=f"{HOST}/{n}", lane=HOST) for n in range(6)], stage="product")
    return run.id


async def _paused(ledger: Ledger) -> str:
    run = await new_run(ledger, "shop")
    await ledger.intake.enqueue(run.id, _items(3))
    await ledger.runs.pause(run.id, by="tester")
    return run.id


def _items(count: int, partition: str = "") -> Sequence[NewItem]:
    return [NewItem(url=f"https://example.com/{n}", partition=partition) for n in range(count)]
