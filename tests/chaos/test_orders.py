"""Many hands at once: workers at work while people pause, cancel, retry, release and change lanes.

Nothing is modelled here; what must be true is: the audit has no findings whenever things are quiet, and whatever was
enqueued can be brought to an end.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from shoal.errors import WorkerLost, WrongState
from shoal.ledger.protocols import Ledger
from shoal.model.item import ClaimedItem, ItemState, NewItem
from shoal.model.lane import LanePolicy
from shoal.model.outcome import FinishedAttempt
from shoal.model.run import Run, RunSpec, StageSpec
from shoal.model.views import ItemFilter
from shoal.model.worker import Scope, WorkerSpec, new_worker_id
from shoal.testing.harness import dead, done, retry, throttled
from tests.support import LONG
from tests.support.chaos_worker import open_any

SECONDS = 40.0 if LONG else 4.0
STAGES = (
    StageSpec("plain"),
    StageSpec("host", lane=LanePolicy(limit=2)),
    StageSpec("polite", lane=LanePolicy(limit=3, delay_min=0.005, delay_max=0.02)),
    StageSpec("group", lane=LanePolicy(limit=1, ordered=True, shared=False)),
)


@pytest.fixture(params=["sqlite", "postgres"])
def address(request: pytest.FixtureRequest, sqlite_path: Path) -> str:
    return str(sqlite_path) if request.param == "sqlite" else str(request.getfixturevalue("postgres_url"))


@pytest.fixture
async def ledgers(address: str) -> AsyncIterator[list[Ledger]]:
    """Two connections to one ledger, as two processes would have."""
    opened = [await open_any(address) for _ in range(2)]
    await opened[0].schema.migrate()
    yield opened
    for ledger in opened:
        await ledger.close()


def some_items(rng: random.Random, count: int) -> list[NewItem]:
    items = []
    for _ in range(count):
        stage = rng.choice(STAGES).name
        lane = None if stage == "plain" else f"{stage}-{rng.randrange(3)}"
        key = f"k{rng.randrange(600)}"
        items.append(
            NewItem(key=key, stage=stage, lane=lane, partition=rng.choice(["", "p"]), delay=rng.choice([0, 0, 0.1]))
        )
    return items


def some_end(rng: random.Random, item: ClaimedItem) -> FinishedAttempt:
    match rng.choices(["done", "follow", "retry", "throttled", "dead"], [5, 3, 2, 1, 1])[0]:
        case "retry":
            return retry(item, delay=rng.choice([0.0, 0.05]))
        case "throttled":
            return throttled(item, delay=0.05)
        case "dead":
            return dead(item)
        case "follow":
            return done(item, '{"a":1}', follow_ups=some_items(rng, 3))
        case _:
            return done(item, '{"a":1}')


async def work(ledger: Ledger, rng: random.Random, until: float) -> None:
    """A worker that starts, finishes, gives back, forgets, dies and comes again."""
    worker = ""
    while time.monotonic() < until:
        try:
            if not worker:
                worker = new_worker_id()
                await ledger.workers.register(WorkerSpec(id=worker, node="n", pid=1, lease_seconds=rng.choice([1, 30])))
            claimed = await ledger.claims.claim(worker, Scope(), rng.randint(1, 20))
            if claimed and rng.random() < 0.4:
                await ledger.claims.mark_started(worker, [item.lease for item in claimed])
            match rng.choices(["commit", "back", "forget", "stop", "die", "tend"], [12, 2, 1, 1, 1, 4])[0]:
                case "commit":
                    await ledger.commits.commit(worker, [some_end(rng, item) for item in claimed])
                case "back":
                    await ledger.claims.return_leases(worker, [item.lease for item in claimed])
                case "forget":
                    await ledger.claims.reconcile(worker, [])
                case "stop":
                    await ledger.workers.stop(worker)
                    worker = ""
                case "die":
                    await ledger.workers.mark_dead(worker)
                    worker = ""
                case "tend":
                    await ledger.upkeep.run_once()
        except WorkerLost:
            worker = ""


async def command(ledger: Ledger, runs: list[Run], rng: random.Random, until: float) -> None:
    """An operator with a restless hand."""
    while time.monotonic() < until:
        run = rng.choice(runs)
        lane = f"{rng.choice(['host', 'polite'])}-{rng.randrange(3)}"
        await asyncio.sleep(rng.random() * 0.03)
        try:
            match rng.randrange(9):
                case 0:
                    await ledger.runs.pause(run.id)
                case 1 | 2:
                    await ledger.runs.resume(run.id)
                case 3:
                    states = (rng.choice([ItemState.READY, ItemState.WAITING, ItemState.LEASED, ItemState.DELAYED]),)
                    await ledger.steering.cancel(run.id, ItemFilter(states=states), limit=20)
                case 4:
                    await ledger.steering.retry(
                        run.id, ItemFilter(states=(ItemState.DEAD, ItemState.CANCELLED)), limit=50
                    )
                case 5:
                    await ledger.steering.release(older_than=0, run_id=run.id)
                case 6:
                    await ledger.lanes.set(lane, limit=rng.randint(1, 4), paused=rng.random() < 0.3)
                case 7:
                    await ledger.lanes.block(lane, rng.choice([0.0, 0.2]), "because")
                case 8:
                    await ledger.intake.enqueue(run.id, some_items(rng, 50))
        except WrongState:
            await ledger.runs.resume(run.id)


async def drain(ledger: Ledger, runs: list[Run]) -> None:
    for run in runs:
        await ledger.runs.resume(run.id)
    for lane in (await ledger.lanes.list(limit=1000)).rows:
        await ledger.lanes.set(lane.key, paused=False)
        await ledger.lanes.block(lane.key, 0, "")
    worker = new_worker_id()
    await ledger.workers.register(WorkerSpec(id=worker, node="n", pid=1, lease_seconds=3600))
    await ledger.steering.release(older_than=0)
    give_up_at = time.monotonic() + 90
    while left := sum([(await ledger.reads.stats(run.id)).remaining for run in runs]):
        claimed = await ledger.claims.claim(worker, Scope(), 200)
        await ledger.commits.commit(worker, [done(item) for item in claimed])
        await ledger.upkeep.run_once()
        if not claimed:
            assert time.monotonic() < give_up_at, (left, [await ledger.reads.why_run(run.id) for run in runs])
            await asyncio.sleep(0.02)


@pytest.mark.slow
async def test_nothing_is_lost_among_many_hands(ledgers: list[Ledger]) -> None:
    first = ledgers[0]
    runs = [await first.runs.create(RunSpec(scraper="many", stages=STAGES, max_rescues=1000)) for _ in range(3)]
    rng = random.Random(5)
    for run in runs:
        await first.intake.enqueue(run.id, some_items(rng, 400))
    until = time.monotonic() + SECONDS
    await asyncio.gather(
        *(work(ledger, random.Random(n), until) for n, ledger in enumerate(ledgers * 2)),
        *(command(ledger, runs, random.Random(n + 100), until) for n, ledger in enumerate(ledgers)),
    )
    assert await first.upkeep.audit() == []
    await drain(first, runs)
    assert await first.upkeep.audit() == []
    for run in runs:
        counts = await first.reads.stats(run.id)
        assert counts.remaining == 0
        assert counts.total >= 400 - counts.duplicates
