"""What an elastic pool sees of its run: who is idle, what waits for lanes, and when it must keep still."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import pytest

from shoal.autoscale.machine import Machine
from shoal.autoscale.rules import Bounds, LoadLimits, ScalingDelays
from shoal.autoscale.scaler import Autoscaler
from shoal.config import Settings
from shoal.fleet.autoscale import PoolAutoscaler
from shoal.fleet.pool import Pool
from shoal.fleet.pool_workers import PoolWorkers
from shoal.ledger.protocols import Ledger
from shoal.model.item import NewItem
from shoal.model.lane import LanePolicy
from shoal.model.run import Run, RunSpec, StageSpec
from shoal.model.worker import Scope, WorkerSpec
from shoal.observe.logs import open_logs
from shoal.wiring import ledger_context

LOG = open_logs(format="console", level="error", file=None, stream=None).log
AT_ONCE = ScalingDelays(between_growth=0, cooldown=0, cpu_full=0, idle=0, avoid_failed_size=0)
EACH = 4


class Places:
    """In the place of a pool: how many it is told to have, and the process that all its workers have."""

    def __init__(self) -> None:
        self.size = self.expected = 3
        self.pids = [os.getpid()]
        self.why = ""

    async def resize(self, workers: int, why: str) -> None:
        self.size = self.expected = workers
        self.why = why

    async def scale(self, workers: int) -> None:
        await self.resize(workers, "")


class Scene:
    def __init__(self, ledger: Ledger, run: Run, pool_workers: PoolWorkers, nothing: Path) -> None:
        self.ledger = ledger
        self.run_id = run.id
        self.slots = Places()
        machine = Machine(proc=nothing, cgroups=nothing)
        scaler = Autoscaler(Bounds(1, 10), AT_ONCE, LoadLimits(), what="workers", log=LOG, machine=machine)
        self.elastic = PoolAutoscaler(
            ledger, run, cast("Pool", self.slots), pool_workers, scaler, items_per_worker=EACH
        )

    async def put(self, count: int, lane: str | None = None) -> None:
        items = [NewItem(key=f"{lane}-{number}", lane=lane) for number in range(count)]
        await self.ledger.intake.enqueue(self.run_id, items)

    async def take(self, count: int) -> None:
        """Workers of the pool have so many items."""
        scope = Scope(run_ids=(self.run_id,))
        spec = WorkerSpec(id="w", node=socket.gethostname(), pid=os.getpid(), scope=scope)
        await self.ledger.workers.register(spec)
        assert len(await self.ledger.claims.claim("w", scope, count)) == count

    async def look(self) -> int:
        await self.elastic._adjust()
        return self.slots.size


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    async with ledger_context(Settings(ledger=str(tmp_path / "ledger.db")), migrate=True) as ledger:
        stage = StageSpec(name="one", lane=LanePolicy(limit=1))
        run = await ledger.runs.create(RunSpec(scraper="books", stages=(stage,)))
        pool_workers = PoolWorkers(ledger, run.id, since=(await ledger.health.check()).clock)
        yield Scene(ledger, run, pool_workers, tmp_path / "nothing")


async def test_it_grows_when_all_workers_are_busy(scene: Scene) -> None:
    await scene.put(100)
    await scene.take(3 * EACH)
    assert await scene.look() == 6
    assert scene.slots.why == "88 items are ready and all 3 are busy"


async def test_it_does_not_grow_while_workers_have_room(scene: Scene) -> None:
    """One of three has nothing, or has not come yet."""
    await scene.put(100)
    await scene.take(2 * EACH)
    assert await scene.look() == 3


async def test_a_worker_that_was_given_up_is_not_waited_for(scene: Scene) -> None:
    await scene.put(100)
    await scene.take(2 * EACH)
    scene.slots.expected = 2
    assert await scene.look() == 6


async def test_it_shrinks_when_items_wait_for_their_lanes(scene: Scene) -> None:
    await scene.put(50, lane="host")
    await scene.take(1)
    assert await scene.look() == 2
    assert scene.slots.why.endswith("49 items wait for their lanes, where more would not help")


async def test_a_run_that_is_paused_keeps_its_workers(scene: Scene) -> None:
    await scene.put(100)
    await scene.take(3 * EACH)
    await scene.ledger.runs.pause(scene.run_id)
    assert await scene.look() == 3


async def test_it_rests_after_an_operator_set_a_size(scene: Scene) -> None:
    await scene.put(100)
    await scene.take(3 * EACH)
    await scene.elastic.apply_desired_size(3)
    assert await scene.look() == 3
    await scene.elastic.apply_desired_size(0)
    assert await scene.look() == 6
