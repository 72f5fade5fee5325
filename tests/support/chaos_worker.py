"""A worker with nothing but a ledger: the process that chaos tests start, stop, freeze and kill.

    python -m tests.support.chaos_worker LEDGER RUN_ID [--lease 2] [--batch 20] [--pause 0.001]

Stage `list` yields one record and one item for stage `page`; `page` yields one record. Some tries fail. It ends with
exit code 0 when the run has finished, after printing what it saw as one line of JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import time
from pathlib import Path

from shoal.errors import LedgerError, WorkerLost
from shoal.ledger.postgres.ledger import open_postgres
from shoal.ledger.protocols import Ledger
from shoal.ledger.sqlite.ledger import open_sqlite
from shoal.model.item import ClaimedItem, NewItem
from shoal.model.outcome import FinishedAttempt, OutcomeClass, RetryPolicy, decide_attempt
from shoal.model.run import RunState
from shoal.model.worker import Scope, WorkerSpec, new_worker_id

POLICY = RetryPolicy(factor=1.0, cap=0.05, jitter=0.0)


async def open_any(address: str, patience: float = 60.0) -> Ledger:
    if address.startswith("postgres"):
        return await open_postgres(address, patience=patience)
    return await open_sqlite(Path(address))


class ChaosWorker:
    """Claims, works, commits, beats and tends until the run is finished."""

    def __init__(self, ledger: Ledger, run_id: str, *, lease: float, batch: int, pause: float, failures: float) -> None:
        self.ledger = ledger
        self.run_id = run_id
        self.lease = lease
        self.batch = batch
        self.pause = pause
        self.failures = failures
        self.rng = random.Random()
        self.scope = Scope(run_ids=(run_id,))
        self.worker = ""
        self.committed = 0
        self.lost = 0
        self.reborn = 0

    async def work(self) -> None:
        await self.register()
        beats = asyncio.create_task(self.beat())
        try:
            while not await self.finished():
                try:
                    await self.round()
                except WorkerLost:
                    self.reborn += 1
                    await self.register()
        finally:
            beats.cancel()
        await self.ledger.workers.stop(self.worker)

    async def register(self) -> None:
        self.worker = new_worker_id()
        spec = WorkerSpec(id=self.worker, node="chaos", pid=os.getpid(), lease_seconds=self.lease, scope=self.scope)
        await self.ledger.workers.register(spec)

    async def beat(self) -> None:
        while True:
            await asyncio.sleep(self.lease / 4)
            try:
                await self.ledger.workers.heartbeat(self.worker)
            except LedgerError as error:
                print(f"beat: {error}", file=sys.stderr)
            except WorkerLost:
                continue  # the main loop notices at its next claim

    async def finished(self) -> bool:
        await self.ledger.upkeep.run_once()
        return (await self.ledger.runs.get(self.run_id)).state is RunState.FINISHED

    async def round(self) -> None:
        claimed = await self.ledger.claims.claim(self.worker, self.scope, self.batch)
        if not claimed:
            due = await self.ledger.upkeep.next_due()
            await asyncio.sleep(min(0.1, due or 0.1))
            return
        ends = []
        for item in claimed:
            await asyncio.sleep(self.pause)
            ends.append(self.end_of(item))
        report = await self.ledger.commits.commit(self.worker, ends)
        self.committed += report.committed
        self.lost += len(report.lost)

    def end_of(self, item: ClaimedItem) -> FinishedAttempt:
        if self.rng.random() < self.failures and item.tries < 2:
            decision = decide_attempt(
                OutcomeClass.TRANSIENT, tries=item.tries, max_attempts=9, error="chaos", policy=POLICY, rng=self.rng
            )
            return FinishedAttempt(lease=item.lease, decision=decision)
        decision = decide_attempt(OutcomeClass.DONE, tries=0, max_attempts=9, policy=POLICY, rng=self.rng)
        record = json.dumps({"key": item.name, "stage": item.stage, "worker": self.worker, "epoch": item.epoch})
        more = (NewItem(key=item.key, stage="page", lane=item.lane),) if item.stage == "list" else ()
        return FinishedAttempt(lease=item.lease, decision=decision, records=(record,), follow_ups=more)


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("ledger")
    parser.add_argument("run_id")
    parser.add_argument("--lease", type=float, default=2.0)
    parser.add_argument("--batch", type=int, default=20)
    parser.add_argument("--pause", type=float, default=0.001)
    parser.add_argument("--failures", type=float, default=0.05)
    asked = parser.parse_args()
    ledger = await open_any(asked.ledger)
    worker = ChaosWorker(
        ledger, asked.run_id, lease=asked.lease, batch=asked.batch, pause=asked.pause, failures=asked.failures
    )
    began = time.monotonic()
    print("ready", flush=True)
    await worker.work()
    print(
        json.dumps(
            {
                "committed": worker.committed,
                "lost": worker.lost,
                "reborn": worker.reborn,
                "seconds": round(time.monotonic() - began, 2),
            }
        ),
        flush=True,
    )
    await ledger.close()


if __name__ == "__main__":
    asyncio.run(main())
