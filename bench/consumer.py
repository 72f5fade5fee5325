"""Shoal consuming no-op items, the way a worker would drive the ledger."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from bench.loops import pipelined, sequential
from bench.places import open_ledger
from shoal.ledger.protocols import Entry, Ledger
from shoal.model.item import ClaimedItem
from shoal.model.lane import LanePolicy
from shoal.model.outcome import DONE, FinishedAttempt
from shoal.model.run import RunSpec, StageSpec
from shoal.model.worker import Scope, WorkerSpec, new_worker_id

SCRAPER = "bench"
BATCH = 200
TEND_SECONDS = 1.0
LEASE_SECONDS = 3600.0


def urls(count: int, start: int = 0) -> Iterable[str]:
    return (f"https://example.com/catalogue/page/{i}?view=full" for i in range(start, start + count))


async def new_run(ledger: Ledger, lane: LanePolicy | None = None) -> str:
    stages = (StageSpec("page", lane=lane or LanePolicy()),)
    return (await ledger.runs.create(RunSpec(scraper=SCRAPER, stages=stages))).id


async def fill(address: str, entries: Iterable[Entry], lane: LanePolicy | None = None) -> str:
    """Enqueue entries into a new run; returns its id."""
    ledger = await open_ledger(address)
    try:
        run_id = await new_run(ledger, lane)
        await ledger.intake.enqueue(run_id, entries)
        await ledger.upkeep.run_once()
        return run_id
    finally:
        await ledger.close()


@dataclass
class Consumer:
    """A registered worker whose items need no work."""

    ledger: Ledger
    worker: str
    batch: int = BATCH
    scope: Scope = field(default_factory=Scope)
    done: int = 0

    async def claim(self) -> list[ClaimedItem]:
        return await self.ledger.claims.claim(self.worker, self.scope, self.batch)

    async def commit(self, claimed: Sequence[ClaimedItem]) -> None:
        report = await self.ledger.commits.commit(
            self.worker, [FinishedAttempt(lease=item.lease, decision=DONE) for item in claimed]
        )
        if report.lost or report.committed != len(claimed):
            raise RuntimeError(f"{len(claimed)} items were handed in and {report.committed} taken")
        self.done += report.committed


@asynccontextmanager
async def consumer(address: str, batch: int = BATCH) -> AsyncIterator[Consumer]:
    """A live worker with its upkeep running beside it, once a second as workers do."""
    ledger = await open_ledger(address)
    worker = new_worker_id("bench")
    # A contender that waits for its turn must not be taken for dead.
    await ledger.workers.register(WorkerSpec(id=worker, node="bench", pid=1, lease_seconds=LEASE_SECONDS))
    upkeep_task = asyncio.create_task(_tend(ledger))
    try:
        yield Consumer(ledger, worker, batch)
    finally:
        upkeep_task.cancel()
        await asyncio.gather(upkeep_task, return_exceptions=True)
        await ledger.workers.stop(worker)
        await ledger.close()


async def consume(address: str, total: int, *, ahead: bool, batch: int = BATCH) -> float:
    """Seconds for `total` items through claim and commit; `ahead`: claims run ahead of commits."""
    async with consumer(address, batch) as shoal:
        loop = pipelined if ahead else sequential
        return await loop(shoal.claim, shoal.commit, total)


async def _tend(ledger: Ledger) -> None:
    while True:
        await ledger.upkeep.run_once()
        await asyncio.sleep(TEND_SECONDS)
