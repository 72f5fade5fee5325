"""The worker's registration in the ledger: every call made under its id, and its share of maintenance."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import random
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from shoal.errors import LedgerError, LedgerFull, NotFound, UsageError, WorkerLost
from shoal.ledger.protocols import OWN_NOTE, Ledger
from shoal.model.item import ClaimedItem, Lease
from shoal.model.log import Log
from shoal.model.outcome import (
    AttemptDecision,
    DecisionKind,
    FinishedAttempt,
    OutcomeClass,
    RedirectReply,
    RedirectVisit,
    VisitDecision,
    clean_error,
)
from shoal.model.run import RunState
from shoal.model.views import CommitReport, ItemFilter, ItemView, UpkeepReport
from shoal.model.worker import Scope, WorkerSpec, new_worker_id
from shoal.worker.earlier_runs import find_left
from shoal.worker.metrics import WorkerMetrics
from shoal.worker.state import WorkerIdentity, WorkerOptions

T = TypeVar("T")
OpenLedger = Callable[[], Awaitable[Ledger]]
MAINTENANCE_SECONDS = 1.0
FULL_RETRY_SECONDS = 2.0


class RetryWhenFull:
    """Repeats calls while the ledger's disk is full, for up to `patience` seconds each.

    `trouble`: the ledger's error while a call waits, else None.
    """

    def __init__(self, patience: float, log: Log) -> None:
        self._patience = patience
        self._log = log
        self._logged_at = -math.inf
        self._waiting = 0
        self.trouble: str | None = None

    async def call(self, call: Callable[[], Awaitable[T]]) -> T:
        """Make the call. Raises LedgerFull when there is still no space after `patience` seconds."""
        try:
            return await call()
        except LedgerFull as error:
            first = error
        self._waiting += 1
        try:
            return await self._retry(call, first)
        finally:
            self._waiting -= 1
            if not self._waiting:
                self.trouble = None

    async def _retry(self, call: Callable[[], Awaitable[T]], error: LedgerFull) -> T:
        since = time.monotonic()
        while True:
            now = time.monotonic()
            if now - since > self._patience:
                raise error
            self.trouble = error.message
            if now - self._logged_at >= FULL_RETRY_SECONDS:  # one line for all calls that wait
                self._logged_at = now
                self._log.warning("ledger disk full; waiting for space", error=error.message)
            await asyncio.sleep(FULL_RETRY_SECONDS)
            try:
                return await call()
            except LedgerFull as again:
                error = again


class Registration:
    """Calls to the ledger under the worker's id.

    The ledger declares a worker dead when its heartbeat is older than its lease. A call that finds out answers as if
    all leases were lost, which they are, and sets `identity.lost` until the worker registers again.
    """

    def __init__(self, ledger: Ledger, identity: WorkerIdentity, options: WorkerOptions, log: Log) -> None:
        self._ledger = ledger
        self._log = log
        self._retry_when_full = RetryWhenFull(options.patience, log)
        self.identity = identity
        identity.lease = options.lease
        self.options = options
        self.metrics = WorkerMetrics()

    @property
    def trouble(self) -> str | None:
        """The ledger's error while calls wait for disk space, else None."""
        return self._retry_when_full.trouble

    async def register(self) -> None:
        """Register under a new id."""
        options, worker = self.options, new_worker_id()
        await self._ledger.workers.register(
            WorkerSpec(
                id=worker,
                node=socket.gethostname(),
                pid=os.getpid(),
                version=options.version,
                code=options.code,
                lease_seconds=options.lease,
                scope=options.scope,
            )
        )
        self.identity.register_as(worker)

    async def claim(self, limit: int, scope: Scope) -> list[ClaimedItem]:
        worker = self.identity.id
        try:
            return await self._retry_when_full.call(lambda: self._claim(worker, scope, limit))
        except WorkerLost:
            self.identity.mark_lost(worker)
            return []

    async def _claim(self, worker: str, scope: Scope, limit: int) -> list[ClaimedItem]:
        metrics, began = self.metrics, time.monotonic()
        try:
            claimed = await self._ledger.claims.claim(worker, scope, limit)
        except Exception:
            metrics.claim_errors += 1
            raise
        finally:
            metrics.claim_seconds.observe(time.monotonic() - began)
        metrics.claimed_items += len(claimed)
        return claimed

    async def _commit(self, worker: str, batch: Sequence[FinishedAttempt]) -> CommitReport:
        metrics, began = self.metrics, time.monotonic()
        try:
            report = await self._ledger.commits.commit(worker, batch)
        except Exception:
            metrics.commit_errors += 1
            raise
        finally:
            metrics.commit_seconds.observe(time.monotonic() - began)
        metrics.committed_items += report.committed
        return report

    async def mark_started(self, leases: Sequence[Lease]) -> list[Lease]:
        """Record that these attempts start. Returns the leases that are lost."""
        worker = self.identity.id
        try:
            lost = await self._retry_when_full.call(lambda: self._ledger.claims.mark_started(worker, leases))
        except WorkerLost:
            self.identity.mark_lost(worker)
            return list(leases)
        return [lease for lease in leases if lease.item in lost]

    async def return_leases(self, leases: Sequence[Lease]) -> int:
        """Give leases back without charging an attempt. Returns how many the worker still had."""
        worker = self.identity.id
        if not leases:
            return 0
        try:
            return await self._retry_when_full.call(lambda: self._ledger.claims.return_leases(worker, leases))
        except WorkerLost:
            self.identity.mark_lost(worker)
            return 0

    async def retry_items(self, items: Sequence[tuple[str, int]]) -> None:
        """Make dead items of these runs ready again, unless a run was cancelled or removed meanwhile."""
        by_run: dict[str, list[int]] = {}
        for run_id, item in items:
            by_run.setdefault(run_id, []).append(item)
        for run_id, ids in by_run.items():
            with contextlib.suppress(NotFound):
                if (await self._ledger.runs.get(run_id)).state is not RunState.CANCELLED:
                    await self._ledger.steering.retry(run_id, ItemFilter(ids=tuple(ids)), by=self.identity.id)

    async def reconcile(self, known: Sequence[Lease]) -> None:
        """Give back every lease of this worker that is not among those known here."""
        worker = self.identity.id
        try:
            await self._retry_when_full.call(lambda: self._ledger.claims.reconcile(worker, known))
        except WorkerLost:
            self.identity.mark_lost(worker)

    async def commit(self, batch: Sequence[FinishedAttempt]) -> tuple[CommitReport, Sequence[FinishedAttempt]]:
        """The report, and the attempts as they were stored: what the ledger refuses to store ends its item as dead."""
        worker = self.identity.id
        try:
            return await self._retry_when_full.call(lambda: self._commit(worker, batch)), batch
        except WorkerLost:
            self.identity.mark_lost(worker)
            return _all_lost(batch), batch
        except (UsageError, NotFound) as refused:
            if len(batch) > 1:
                half = len(batch) // 2
                first, first_stored = await self.commit(batch[:half])
                second, second_stored = await self.commit(batch[half:])
                return first.merge(second), [*first_stored, *second_stored]
            if isinstance(refused, NotFound) or batch[0].decision.kind is DecisionKind.DEAD:
                return _all_lost(batch), batch  # its run was removed, and its lease with it
            return await self.commit([_dead(batch[0], refused)])

    async def visit_redirect(self, visit: RedirectVisit) -> RedirectReply:
        """Ask whether an attempt may visit the target of a redirect."""
        worker = self.identity.id
        try:
            return await self._retry_when_full.call(lambda: self._ledger.commits.visit_redirect(worker, visit))
        except WorkerLost:
            self.identity.mark_lost(worker)
        except NotFound:  # its run was removed, and its lease with it
            pass
        return RedirectReply(VisitDecision.LOST)

    async def find_finished(
        self,
        run_id: str,
        stage: str,
        hashes: Sequence[bytes],
        *,
        failed: bool = False,
        in_finished_runs: bool = False,
    ) -> set[bytes]:
        """The keys that other runs of the scraper have finished, see `Reads.finished_elsewhere`."""
        return await self._ledger.reads.finished_elsewhere(
            run_id, stage, hashes, failed=failed, in_finished_runs=in_finished_runs
        )

    async def find_left(self, run_id: str, stage: str) -> list[ItemView]:
        """What earlier runs of the scraper left, see `find_left`."""
        return await find_left(self._ledger, run_id, stage, self._log)

    async def read_note(self, run_id: str, name: str) -> dict[str, Any] | None:
        """A value that an operator's program stored with the run."""
        return await self._ledger.runs.get_note(run_id, OWN_NOTE + name)

    async def run_maintenance(self) -> None:
        """Run one round of the ledger's maintenance now."""
        await self._retry_when_full.call(self._ledger.upkeep.run_once)

    async def deregister(self) -> None:
        """Remove the worker from the ledger; leases that it still has are free at once."""
        await self._ledger.workers.stop(self.identity.id)


def _all_lost(batch: Sequence[FinishedAttempt]) -> CommitReport:
    lost = tuple(finished.lease.item for finished in batch)
    return CommitReport(committed=0, lost=lost, repeated=(), enqueued=0, duplicates=0)


def _dead(finished: FinishedAttempt, refused: UsageError) -> FinishedAttempt:
    decision = AttemptDecision(
        DecisionKind.DEAD, OutcomeClass.PERMANENT, 0.0, clean_error(f"not stored: {refused.message}")
    )
    return FinishedAttempt(lease=finished.lease, decision=decision, seconds=finished.seconds, waited=finished.waited)


class Maintenance:
    """Runs the ledger's maintenance, which all workers share: due items, dead workers, lanes, counts, finished runs.

    It uses the connections of the work, never that of the heartbeat, so leases stay however long a round takes. A
    round is bounded in time; what it leaves is done by the next round of any worker.
    """

    def __init__(self, ledger: Ledger, log: Log) -> None:
        self._ledger = ledger
        self._log = log

    async def run(self) -> None:
        """Run a round each second until cancelled; without a pause while a round leaves something to do."""
        while True:
            pause = MAINTENANCE_SECONDS * random.uniform(1.0, 1.25)
            try:
                report = await self._ledger.upkeep.run_once()
            except LedgerError as error:
                # Claims and commits fail as well, and decide how long the worker waits.
                self._log.debug("maintenance skipped: ledger unreachable", error=error.message)
            else:
                self._log_report(report)
                if report.more:
                    pause = 0.0
            await asyncio.sleep(pause)

    def _log_report(self, report: UpkeepReport) -> None:
        for worker in report.lost_workers:
            self._log.warning("worker declared dead; items released", worker=worker)
        if report.quarantined:
            self._log.warning("items quarantined after killing their workers", items=report.quarantined)
