"""A small worker: claim, say what started, work, commit, and a heartbeat beside it. One of them dies on cue."""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import time
from collections.abc import Sequence

from shoal.demo.bookshop import Visit, visit
from shoal.errors import WorkerLost
from shoal.ledger.protocols import Ledger
from shoal.model.item import Claimed
from shoal.model.jsontext import record_text
from shoal.model.outcome import Finished, RetryPolicy, judge
from shoal.model.run import Run, RunState
from shoal.model.worker import Scope, WorkerSpec

BATCH = 8
LEASE_SECONDS = 1.0
BEAT_SECONDS = 0.25
IDLE_SECONDS = 0.05
# The engine waits 2, 4, 8 ... seconds; a demo has no time for that.
RETRIES = RetryPolicy(factor=1.0, cap=0.2, jitter=0.2)


class DemoWorker:
    """Works until the run is finished. `dies_after`: stop like a killed process after so many items, holding some."""

    def __init__(self, ledger: Ledger, run: Run, name: str, *, dies_after: int | None = None) -> None:
        self._ledger = ledger
        self._run = run
        self._name = name
        self._dies_after = dies_after
        self._scope = Scope(run_ids=(run.id,))
        self._rng = random.Random(name)
        self._committed = 0
        self.id = ""
        self.dead = False

    async def work(self) -> None:
        while True:
            self.id = f"{self._name}-{secrets.token_hex(2)}"
            await self._ledger.workers.register(
                WorkerSpec(id=self.id, node="demo", pid=os.getpid(), lease_seconds=LEASE_SECONDS, scope=self._scope)
            )
            heart = asyncio.create_task(self._beat())
            try:
                await self._work_until_finished()
                return
            except WorkerLost:
                continue  # a sleepy machine: we were given up, and come back under a new id
            finally:
                heart.cancel()
                await asyncio.gather(heart, return_exceptions=True)

    async def _work_until_finished(self) -> None:
        ledger = self._ledger
        while True:
            claimed = await ledger.claims.claim(self.id, self._scope, BATCH)
            if not claimed:
                if (await ledger.runs.get(self._run.id)).state is RunState.FINISHED:
                    await ledger.workers.stop(self.id)
                    return
                due = await ledger.upkeep.next_due()
                await ledger.upkeep.wait(IDLE_SECONDS if due is None else min(due, IDLE_SECONDS))
                continue
            lost = await ledger.claims.started(self.id, [item.lease for item in claimed])
            if self._dies_after is not None and self._committed >= self._dies_after:
                self.dead = True
                return
            await self._work_on([item for item in claimed if item.item not in lost])

    async def _work_on(self, items: Sequence[Claimed]) -> None:
        finished = await asyncio.gather(*(self._attempt(item) for item in items))
        report = await self._ledger.commits.commit(self.id, finished)
        self._committed += report.committed

    async def _attempt(self, item: Claimed) -> Finished:
        began = time.monotonic()
        found: Visit = await visit(item, self._rng)
        verdict = judge(
            found.outcome,
            tries=item.tries,
            max_attempts=item.max_attempts,
            error=found.error,
            retry_after=found.retry_after,
            policy=RETRIES,
            rng=self._rng,
        )
        return Finished(
            lease=item.lease,
            verdict=verdict,
            records=tuple(record_text(record) for record in found.records),
            follow_ups=found.follow_ups,
            seconds=time.monotonic() - began,
        )

    async def _beat(self) -> None:
        """Signs of life, and the upkeep that any worker does: wake the due, rescue from the dead, finish the run."""
        while True:
            await self._ledger.workers.beat(self.id)
            await self._ledger.upkeep.tend()
            await asyncio.sleep(BEAT_SECONDS)
