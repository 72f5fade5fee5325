"""Slots: each takes an item from the lease buffer, runs the attempt, puts the result into the commit queue, repeats.

`AutoConcurrency` adjusts how many there are: it measures load and backlog, and applies the scaling rule.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from shoal.autoscale.machine import Machine
from shoal.autoscale.rules import Bounds, ScalingDelays, ScalingInputs
from shoal.autoscale.scaler import AttemptTotals, Autoscaler, Backlog, read_backlog
from shoal.errors import LedgerError, NotFound
from shoal.ledger.protocols import Ledger
from shoal.model.item import ClaimedItem, Lease
from shoal.model.log import Log
from shoal.model.outcome import DecisionKind, FinishedAttempt, OutcomeClass
from shoal.worker.attempt_runner import AttemptRunner
from shoal.worker.commit import CommitQueue, Committer, linger_seconds
from shoal.worker.lane_starts import ReleaseItem
from shoal.worker.politeness import ClosedLanes, PausedRuns
from shoal.worker.record_limits import RecordLimits, StartDecision
from shoal.worker.registration import Registration
from shoal.worker.state import LeaseBuffer, StopReason, WorkSummary

SMOOTHING = 0.1
OVERDUE_CHECK_SECONDS = 2.0
# An item that was rescued this often may be the one that kills its workers.
SUSPECT_RESCUES = 2
SAMPLE_SECONDS = 0.1
SAMPLES = 10
# Slots are cheap: they are added within seconds and removed within half a minute.
DELAYS = ScalingDelays(between_growth=1.0, cooldown=10.0, cpu_full=3.0, idle=20.0, avoid_failed_size=60.0)
# Failures that lower concurrency may cure.
_FAILED = (OutcomeClass.TRANSIENT, OutcomeClass.BLOCKED)


class RunningItem(NamedTuple):
    """An item in a slot, and the slot's task."""

    name: str
    lease: Lease
    task: asyncio.Task[None]


class Slots:
    """Runs attempts, `capacity` at a time.

    `item_seconds`: how long an attempt takes, smoothed. `shrunk`: the capacity was lowered, so the buffer may hold too
    much. `returned`: items that were returned without an attempt. `tasks`: one task for each slot.
    """

    def __init__(  # noqa: PLR0913 - the parts that a slot uses
        self,
        attempts: AttemptRunner,
        registration: Registration,
        lease_buffer: LeaseBuffer,
        commits: CommitQueue,
        closed_lanes: ClosedLanes,
        paused_runs: PausedRuns,
        summary: WorkSummary,
        log: Log,
        *,
        record_limits: RecordLimits | None = None,
    ) -> None:
        self._attempts = attempts
        self._record_limits = record_limits
        self._registration = registration
        self._identity = registration.identity
        self._lease_buffer = lease_buffer
        self._commits = commits
        self._closed_lanes = closed_lanes
        self._paused_runs = paused_runs
        self._events = registration.identity.events
        self._options = registration.options
        self._summary = summary
        self._log = log
        self._running: dict[Lease, asyncio.Task[None]] = {}
        self._last_started_at = 0.0
        self._cancelled: set[Lease] = set()
        self._idle: set[asyncio.Task[None]] = set()
        self._suspect_lock = asyncio.Lock()
        self.tasks: set[asyncio.Task[None]] = set()
        self.capacity = self._options.initial_concurrency
        self.item_seconds = 0.0
        self.returned = 0
        self.shrunk = False

    def start(self) -> None:
        for _ in range(self.capacity):
            self._add_slot()

    def resize(self, capacity: int) -> None:
        """Change the number of slots. Surplus slots end after their item; no attempt is cancelled."""
        if capacity < self.capacity:
            self.shrunk = True
            self._events.items_wanted.set()
        self.capacity = capacity
        for _ in range(capacity - len(self.tasks)):
            self._add_slot()
        for task in list(self._idle)[: max(0, len(self.tasks) - capacity)]:
            self.tasks.discard(task)
            self._idle.discard(task)
            task.cancel()

    @property
    def free(self) -> int:
        return self.capacity - len(self._running)

    @property
    def stuck_seconds(self) -> float:
        """Seconds since the last start while all slots are busy; 0 while one is free."""
        return 0.0 if self.free > 0 else time.monotonic() - self._last_started_at

    @property
    def running(self) -> list[Lease]:
        """The leases of the items in the slots."""
        return list(self._running)

    def running_items(self) -> list[RunningItem]:
        """The items in the slots with their names. Safe to call from another thread."""
        return [
            RunningItem(self._attempts.describe_item(lease), lease, task) for lease, task in list(self._running.items())
        ]

    def cancel_attempts(self) -> None:
        """Cancel every attempt, because the leases are lost. The slots continue with the next item."""
        for lease, task in self._running.items():
            self._cancelled.add(lease)
            task.cancel()

    async def return_leases(self, leases: Sequence[Lease]) -> None:
        """Return leases to the ledger without charging an attempt."""
        self._summary.given_back += await self._registration.return_leases(leases)
        self.returned += len(leases)
        self._lease_buffer.drop(leases)

    async def replace_overdue_slots(self) -> None:
        """Replace slots whose handler ignores its cancellation, until cancelled: their items end as timed out."""
        while True:
            await asyncio.sleep(OVERDUE_CHECK_SECONDS)
            for claimed, finished in self._attempts.pop_overdue(OVERDUE_CHECK_SECONDS):
                task = self._running.pop(claimed.lease, None)
                if task is not None:
                    self._log.warning("handler ignored its timeout; slot replaced", item=claimed.name)
                    self.tasks.discard(task)
                    if len(self.tasks) < self.capacity:
                        self._add_slot()
                    await self._commits.put(finished, 0)

    def _add_slot(self) -> None:
        self.tasks.add(asyncio.create_task(self._run_slot(), name="slot"))

    async def _run_slot(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        while True:
            if self._lease_buffer.buffered <= self._lease_buffer.low_water:
                self._events.items_wanted.set()
            try:
                self._idle.add(task)
                claimed, claimed_at = await self._lease_buffer.next()
            except asyncio.CancelledError:
                if task not in self.tasks:
                    return  # a surplus slot without an item
                raise
            finally:
                self._idle.discard(task)
            lease = claimed.lease
            if self._events.stop_reason is not None:
                await self.return_leases([lease])
                continue
            self._running[lease] = task
            self._last_started_at = time.monotonic()
            try:
                await self._process(claimed, claimed_at)
            except asyncio.CancelledError:
                if lease not in self._cancelled:
                    raise
                task.uncancel()
            finally:
                self._cancelled.discard(lease)
                if task in self.tasks:
                    del self._running[lease]
            if task not in self.tasks:
                return  # this slot was replaced
            if len(self.tasks) > self.capacity:
                self.tasks.discard(task)
                return

    async def _process(self, claimed: ClaimedItem, claimed_at: float) -> None:
        if not await self._still_holds_lease(claimed):
            return
        if await self._paused_runs.is_paused(claimed.run_id, claimed_at):
            await self.return_leases([claimed.lease, *self._lease_buffer.pop_unstarted()])
            return
        if claimed.lane is not None:
            run_id = self._attempts.lane_run_id(claimed)
            if await self._closed_lanes.is_closed(claimed.lane, run_id, claimed_at):
                await self.return_leases([claimed.lease])
                return
        if self._record_limits is not None and not await self._is_wanted(self._record_limits, claimed):
            return
        if claimed.rescues >= SUSPECT_RESCUES:
            # Suspects run one at a time, so that only the one that kills the process is rescued again.
            async with self._suspect_lock:
                await self._run_attempt(claimed, claimed_at)
        else:
            await self._run_attempt(claimed, claimed_at)

    async def _is_wanted(self, limits: RecordLimits, claimed: ClaimedItem) -> bool:
        """False: its stage has its records, and the item was cancelled; or the worker stops."""
        decision = await limits.ask(claimed) if limits.applies_to(claimed) else StartDecision.START
        if decision is StartDecision.COMPLETE:
            await limits.cancel_items(claimed)
            self.returned += 1
            self._lease_buffer.drop([claimed.lease])
            self._events.work_changed.set()
        elif decision is StartDecision.STOPPED:
            await self.return_leases([claimed.lease])
        return decision is StartDecision.START

    async def _run_attempt(self, claimed: ClaimedItem, claimed_at: float) -> None:
        if claimed.rescues and await self._registration.mark_started([claimed.lease]):
            self._lease_buffer.drop([claimed.lease])
            return  # the lease is lost
        try:
            finished, size = await self._attempts.run(claimed, claimed_at)
        except ReleaseItem:
            await self.return_leases([claimed.lease])
            return
        if asyncio.current_task() not in self.tasks:
            return  # this slot was replaced, and the item has ended
        self._record_result(claimed, finished)
        # What did not succeed may close its lane for other workers.
        may_wait = finished.decision.kind is DecisionKind.DONE and not self.is_ordered(claimed)
        linger = linger_seconds(claimed, self.item_seconds, plenty=self._lease_buffer.plenty and may_wait)
        await self._commits.put(finished, size, linger=linger)

    def is_ordered(self, claimed: ClaimedItem) -> bool:
        return self._attempts.is_ordered(claimed)

    def _record_result(self, claimed: ClaimedItem, finished: FinishedAttempt) -> None:
        if finished.decision.kind is DecisionKind.THROTTLED and claimed.lane is not None:
            self._closed_lanes.close(claimed.lane, finished.decision.delay)
        if finished.decision.kind is not DecisionKind.DONE:
            self._log_failure(claimed, finished)
        seconds = finished.seconds
        self.item_seconds += (seconds - self.item_seconds) * SMOOTHING if self.item_seconds else seconds

    def _log_failure(self, claimed: ClaimedItem, finished: FinishedAttempt) -> None:
        failure_log = self._attempts.failure_log
        failure_log.log_failed_attempt(claimed, finished.decision)
        if failure_log.constant_error is not None and self._events.stop_reason is None:
            self._log.error("every attempt fails at the same line; worker stops", error=failure_log.constant_error)
            self._events.stop(StopReason.BROKEN)

    async def _still_holds_lease(self, claimed: ClaimedItem) -> bool:
        """A process that was suspended for longer than its lease waits for a heartbeat before it starts an item."""
        return await self._identity.wait_for_lease() and claimed.lease in self._lease_buffer.leases


class AutoConcurrency:
    """Moves the slots between `min_concurrency` and `concurrency` of the worker's options."""

    def __init__(
        self,
        ledger: Ledger,
        registration: Registration,
        lease_buffer: LeaseBuffer,
        slots: Slots,
        committer: Committer,
        log: Log,
    ) -> None:
        self._ledger = ledger
        self._registration = registration
        self._lease_buffer = lease_buffer
        self._slots = slots
        self._committer = committer
        self._log = log

    async def run(self) -> None:
        """Adjust until cancelled. Nothing changes while the ledger cannot be reached."""
        options = self._registration.options
        bounds = Bounds(options.initial_concurrency, options.concurrency)
        scaler = Autoscaler(bounds, DELAYS, options.limits, what="items at once", log=self._log, machine=Machine())
        while self._registration.identity.events.stop_reason is None:
            began, used = time.monotonic(), time.process_time()
            running = await self._average_busy()
            process = (time.process_time() - used) / (time.monotonic() - began)
            with suppress(LedgerError, NotFound):  # other parts log outages; a run may have been removed
                backlog = await read_backlog(self._ledger, options.scope)
                await self._apply(scaler, self._measure(backlog, running, process), backlog.run_ids)

    async def _average_busy(self) -> float:
        """The average number of busy slots over a second: a slot is free for a moment between two items."""
        busy = 0
        for _ in range(SAMPLES):
            await asyncio.sleep(SAMPLE_SECONDS)
            busy += len(self._slots.running)
        return busy / SAMPLES

    async def _apply(self, scaler: Autoscaler, inputs: ScalingInputs, run_ids: Sequence[str]) -> None:
        now = self._slots.capacity
        decision = scaler.decide(now, inputs, self._totals())
        if decision.target != now:
            self._slots.resize(decision.target)
        await scaler.report(self._ledger.runs, run_ids, f"worker {self._registration.identity.id}", now, decision)

    def _measure(self, backlog: Backlog, running: float, process: float) -> ScalingInputs:
        return ScalingInputs(
            at=time.monotonic(),
            backlog=backlog.ready + self._lease_buffer.buffered,
            waiting_for_lanes=backlog.waiting_for_lanes,
            idle=max(0, round(self._slots.capacity - running)),
            process=process,
        )

    def _totals(self) -> AttemptTotals:
        outcomes = self._committer.outcomes
        return AttemptTotals(
            outcomes.total(), sum(outcomes[outcome] for outcome in _FAILED), outcomes[OutcomeClass.THROTTLED]
        )
