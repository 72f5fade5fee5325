"""Writes finished attempts to the ledger: a bounded queue, and the committer that empties it in batches."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections import Counter, deque

from shoal.model.item import ClaimedItem
from shoal.model.log import Log
from shoal.model.outcome import DecisionKind, FinishedAttempt, OutcomeClass
from shoal.worker.registration import Registration
from shoal.worker.state import LeaseBuffer, WorkSummary

BATCH_ITEMS = 500
BATCH_BYTES = 8 << 20
MAX_PENDING_ITEMS = 2_000
MAX_PENDING_BYTES = 64 << 20
LINGER_SECONDS = 0.01
# Attempts that take longer than this end seldom: their commits wait longer for each other.
SLOW_SECONDS = 0.1
MAX_LINGER_SECONDS = 0.08
LINGER_SHARE = 0.2


def linger_seconds(claimed: ClaimedItem, item_seconds: float, *, plenty: bool) -> float:
    """How long the commit of a finished attempt may wait for others; `item_seconds`: how long attempts take.

    Another item may need this commit to start: the next one of its lane, or a follow-up. When items are plenty and this
    one was ready for a while before it was claimed, so will the other be: then nothing starts later.
    """
    if plenty and item_seconds > SLOW_SECONDS and claimed.waited is not None:
        slack = min(MAX_LINGER_SECONDS, LINGER_SHARE * item_seconds, claimed.waited / 2)
    else:
        slack = 0.0
    return max(slack, LINGER_SECONDS if claimed.lane is None else 0.0)


class CommitQueue:
    """Finished attempts that are not committed yet; `put` waits above 2,000 items or 64 MB (back-pressure).

    A batch is what came in while the last commit was under way, so a slow ledger gets larger batches and a fast one
    answers at once. An attempt may come with a time that it can wait for others; a full batch does not wait.
    """

    def __init__(
        self,
        *,
        batch_items: int = BATCH_ITEMS,
        max_pending_items: int = MAX_PENDING_ITEMS,
        max_pending_bytes: int = MAX_PENDING_BYTES,
    ) -> None:
        self._batch_items = batch_items
        self._max_pending_items = max_pending_items
        self._max_pending_bytes = max_pending_bytes
        self._waiting: deque[tuple[FinishedAttempt, int]] = deque()
        self._bytes = 0
        self._count = 0
        self._batch_bytes = 0
        self._not_empty = asyncio.Event()
        self._due_at = math.inf
        self._due_earlier = asyncio.Event()
        self._may_wait = True
        self._not_full = asyncio.Event()
        self._not_full.set()
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def pending(self) -> int:
        """Attempts that have ended but are not committed yet."""
        return self._count

    async def put(self, finished: FinishedAttempt, size: int, *, linger: float = 0.0) -> None:
        """Add an attempt. Its batch is taken within `linger` seconds, unless a commit is under way for longer."""
        while not self._not_full.is_set():
            await self._not_full.wait()
        self._waiting.append((finished, size))
        self._bytes += size
        self._count += 1
        if self._count >= self._max_pending_items or self._bytes >= self._max_pending_bytes:
            self._not_full.clear()
            linger = 0.0
        self._empty.clear()
        self._not_empty.set()
        full = self._count >= self._batch_items or self._bytes >= BATCH_BYTES
        self._take_within(0.0 if full else linger)

    def _take_within(self, seconds: float) -> None:
        self._may_wait = self._may_wait and seconds > 0
        if (due_at := time.monotonic() + seconds) < self._due_at:
            self._due_at = due_at
            self._due_earlier.set()

    async def flush(self) -> None:
        """Wait until everything in the queue is committed."""
        self._take_within(0.0)
        await self._empty.wait()

    async def next_batch(self) -> list[FinishedAttempt]:
        """Wait for the next batch. It stays pending until `batch_done`; one batch is open at a time."""
        await self._not_empty.wait()
        if self._may_wait:  # while the last commit was under way, nothing was taken: larger batches cost less
            self._due_at = max(self._due_at, time.monotonic() + LINGER_SECONDS)
        while (left := self._due_at - time.monotonic()) > 0:
            self._due_earlier.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._due_earlier.wait()
        batch: list[FinishedAttempt] = []
        size = 0
        while self._waiting and len(batch) < self._batch_items and (not batch or size < BATCH_BYTES):
            finished, bytes_ = self._waiting.popleft()
            batch.append(finished)
            size += bytes_
        self._batch_bytes = size
        self._may_wait = not self._waiting
        self._due_at = math.inf if self._may_wait else 0.0
        return batch

    def batch_done(self, batch: list[FinishedAttempt]) -> None:
        """The batch is committed: make room for more."""
        self._bytes -= self._batch_bytes
        self._count -= len(batch)
        if self._count < self._max_pending_items and self._bytes < self._max_pending_bytes:
            self._not_full.set()
        if not self._waiting:
            self._not_empty.clear()
            if not self._count:
                self._empty.set()


class Committer:
    """Commits the batches of a queue, one transaction at a time, and counts what was stored."""

    def __init__(
        self,
        queue: CommitQueue,
        registration: Registration,
        lease_buffer: LeaseBuffer,
        summary: WorkSummary,
        log: Log,
    ) -> None:
        self._queue = queue
        self._registration = registration
        self._lease_buffer = lease_buffer
        self._events = registration.identity.events
        self._summary = summary
        self._log = log
        self._metrics = registration.metrics

    @property
    def outcomes(self) -> Counter[OutcomeClass]:
        """How many committed attempts ended with each outcome."""
        return self._metrics.attempts

    async def run(self) -> None:
        """Commit until cancelled. Raises what the ledger raises."""
        while True:
            batch = await self._queue.next_batch()
            await self._commit(batch)
            self._queue.batch_done(batch)

    async def _commit(self, batch: list[FinishedAttempt]) -> None:
        report, stored = await self._registration.commit(batch)
        self._lease_buffer.drop(finished.lease for finished in batch)
        self._events.work_changed.set()  # the commit may have promoted the next item of a lane
        lost = set(report.lost)
        self._summary.lost += len(lost)
        self._summary.records -= report.dropped_records
        self._metrics.lost_items += len(lost)
        for finished, given in zip(stored, batch, strict=True):
            if finished.lease.item not in lost:
                self._count(finished)
                if finished is not given:
                    error = finished.decision.error
                    self._log.error("results refused by the ledger", item=finished.lease.item, error=error)
        if lost:
            self._log.warning("lease lost before commit; results discarded", items=len(lost))

    def _count(self, finished: FinishedAttempt) -> None:
        summary, metrics = self._summary, self._metrics
        summary.attempts += 1
        metrics.attempts[finished.decision.outcome] += 1
        metrics.work_seconds.observe(finished.seconds)
        if finished.waited is not None:
            metrics.wait_seconds.observe(finished.waited)
        match finished.decision.kind:
            case DecisionKind.DONE:
                summary.done += 1
                summary.records += len(finished.records)
            case DecisionKind.DEAD:
                summary.dead += 1
                summary.records += len(finished.records)
            case DecisionKind.SKIPPED:
                summary.skipped += 1
            case DecisionKind.RETRY:
                summary.retried += 1
            case DecisionKind.THROTTLED | DecisionKind.PUT_OFF | DecisionKind.EGRESS:
                summary.throttled += 1
