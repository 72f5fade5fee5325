"""The worker's registration: its id in the ledger, calls made under it, its share of maintenance.

This process as the ledger knows it: its id, and every call that is made under it.

The ledger's maintenance, which every worker shares in: due items, dead workers, lanes, counts, finished runs.

It runs beside the work, on the connections of the work, and never on that of the heartbeat: however long the ledger
takes for it, leases stay. A round is bounded in time; what it leaves is done by the next round, of any worker.
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
from collections.abc import Callable, Sequence

from shoal.errors import LedgerError, NotFound, UsageError, WorkerLost
from shoal.ledger.protocols import Ledger
from shoal.model.item import ClaimedItem, Lease
from shoal.model.log import Log
from shoal.model.outcome import AttemptDecision, DecisionKind, FinishedAttempt, OutcomeClass, clean_error
from shoal.model.views import CommitReport, UpkeepReport
from shoal.model.worker import WorkerSpec, new_worker_id
from shoal.worker.commit import RetryWhenFull
from shoal.worker.lease_buffer import WorkerEvents
from shoal.worker.options import WorkerOptions

ROUND_SECONDS = 1.0


class Registration:
    """A worker may be given up by the ledger at any moment, because it was silent for too long.

    Every call finds out: it then answers as if all leases were gone, which they are, and `lost` says so until the
    worker joins again under a new id.
    """

    def __init__(
        self, ledger: Ledger, options: WorkerOptions, events: WorkerEvents, retry_when_full: RetryWhenFull
    ) -> None:
        self._ledger = ledger
        self._retry_when_full = retry_when_full
        self.options = options
        self.events = events
        self.id = ""
        self.lost = False

    async def register(self) -> str:
        """Register under a new id."""
        options = self.options
        self.id = new_worker_id()
        self.lost = False
        await self._ledger.workers.register(
            WorkerSpec(
                id=self.id,
                node=socket.gethostname(),
                pid=os.getpid(),
                version=options.version,
                code=options.code,
                lease_seconds=options.lease,
                scope=options.scope,
            )
        )
        return self.id

    def mark_lost(self, worker: str) -> None:
        if worker == self.id:
            self.lost = True
            self.events.wake_all()

    async def claim(self, limit: int) -> list[ClaimedItem]:
        worker = self.id
        try:
            return await self._retry_when_full.call(
                lambda: self._ledger.claims.claim(worker, self.options.scope, limit)
            )
        except WorkerLost:
            self.mark_lost(worker)
            return []

    async def started(self, leases: Sequence[Lease]) -> list[Lease]:
        """Returns those that are gone."""
        worker = self.id
        try:
            lost = await self._retry_when_full.call(lambda: self._ledger.claims.mark_started(worker, leases))
        except WorkerLost:
            self.mark_lost(worker)
            return list(leases)
        return [lease for lease in leases if lease.item in lost]

    async def return_leases(self, leases: Sequence[Lease]) -> int:
        worker = self.id
        if not leases:
            return 0
        try:
            return await self._retry_when_full.call(lambda: self._ledger.claims.return_leases(worker, leases))
        except WorkerLost:
            self.mark_lost(worker)
            return 0

    async def reconcile(self, known: Sequence[Lease]) -> None:
        worker = self.id
        try:
            await self._retry_when_full.call(lambda: self._ledger.claims.reconcile(worker, known))
        except WorkerLost:
            self.mark_lost(worker)

    async def commit(self, batch: Sequence[FinishedAttempt]) -> tuple[CommitReport, Sequence[FinishedAttempt]]:
        """The report, and the ends as they were stored: what the ledger refuses to store ends its item as dead."""
        worker = self.id
        try:
            return await self._retry_when_full.call(lambda: self._ledger.commits.commit(worker, batch)), batch
        except WorkerLost:
            self.mark_lost(worker)
            return _all_lost(batch), batch
        except (UsageError, NotFound) as refused:
            if len(batch) > 1:
                half = len(batch) // 2
                first, first_ends = await self.commit(batch[:half])
                second, second_ends = await self.commit(batch[half:])
                return first.merge(second), [*first_ends, *second_ends]
            if isinstance(refused, NotFound) or batch[0].decision.kind is DecisionKind.DEAD:
                return _all_lost(batch), batch  # its run was removed, and its lease with it
            return await self.commit([_dead(batch[0], refused)])

    async def run_maintenance(self) -> None:
        """The upkeep that any worker does now and then."""
        await self._retry_when_full.call(self._ledger.upkeep.run_once)

    async def deregister(self) -> None:
        """Say goodbye; what is still held goes back at once."""
        await self._ledger.workers.stop(self.id)


def _all_lost(batch: Sequence[FinishedAttempt]) -> CommitReport:
    lost = tuple(end.lease.item for end in batch)
    return CommitReport(committed=0, lost=lost, repeated=(), enqueued=0, duplicates=0)


def _dead(end: FinishedAttempt, refused: UsageError) -> FinishedAttempt:
    decision = AttemptDecision(
        DecisionKind.DEAD, OutcomeClass.PERMANENT, 0.0, clean_error(f"not stored: {refused.message}")
    )
    return FinishedAttempt(lease=end.lease, decision=decision, seconds=end.seconds)


class Maintenance:
    """`on_round` hears what a round did."""

    def __init__(self, ledger: Ledger, on_round: Callable[[UpkeepReport], None], log: Log) -> None:
        self._ledger = ledger
        self._on_round = on_round
        self._log = log

    async def run(self) -> None:
        """A round a second until it is cancelled; at once again while a round leaves something to do."""
        while True:
            pause = ROUND_SECONDS * random.uniform(1.0, 1.25)
            try:
                done = await self._ledger.upkeep.run_once()
            except LedgerError as error:
                # Claims and commits fail as well, and decide how long that is borne.
                self._log.debug("maintenance cannot reach the ledger", error=error.message)
            else:
                self._on_round(done)
                if done.more:
                    pause = 0.0
            await asyncio.sleep(pause)
