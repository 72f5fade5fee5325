"""A worker: one claimer with a small buffer, N slots, one committer; heartbeat and maintenance beside them.

    ledger -> claimer -> buffer -> slots (attempts) -> committer -> ledger

It ends when its runs have nothing left, when it is told to (`drain`, then `stop_now`), when the ledger orders it to
leave, when the ledger fails for longer than its patience, or when one of its parts fails: none of them may end
unnoticed. Whatever it holds by then goes back uncharged.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from shoal.ledger.protocols import Ledger
from shoal.model.log import Log
from shoal.model.outcome import DecisionKind, FinishedAttempt
from shoal.model.views import CommitReport, UpkeepReport
from shoal.model.worker import MAX_REPORTED_ITEMS, HeartbeatReply, WorkerReport, WorkerState
from shoal.worker.attempt import AttemptRunner
from shoal.worker.autoconcurrency import AutoConcurrency
from shoal.worker.claim import Claimer
from shoal.worker.commit import Committer, RetryWhenFull
from shoal.worker.heartbeat import Heartbeat, OpenLedger
from shoal.worker.lane_starts import WorkerCallbacks
from shoal.worker.lease_buffer import LeaseBuffer, WorkerEvents
from shoal.worker.options import StopReason, WorkerOptions, WorkSummary
from shoal.worker.politeness import ClosedLanes
from shoal.worker.registration import Maintenance, Registration
from shoal.worker.slots import Slots
from shoal.worker.watchdog import Hang, LoopWatchdog, RunningItem

CLAIMER_STOP_SECONDS = 0.5
SLOT_CHECK_SECONDS = 2.0
STOP_TIMEOUT_SECONDS = 1.0


class Worker:
    """Works for one scraper on one ledger."""

    def __init__(
        self,
        ledger: Ledger,
        attempts: AttemptRunner,
        options: WorkerOptions,
        *,
        open_heartbeat_ledger: OpenLedger,
        hang_timeout: float,
        log: Log,
    ) -> None:
        self._attempts = attempts
        self._options = options
        self._log = log
        self.report = WorkSummary()
        self._events = WorkerEvents()
        self._lease_buffer = LeaseBuffer()
        self._retry_when_full = RetryWhenFull(options.patience, log)
        self._registration = Registration(ledger, options, self._events, self._retry_when_full)
        self._open_ledger = open_heartbeat_ledger
        self.watchdog = LoopWatchdog(
            hang_timeout=hang_timeout,
            drain=options.drain,
            log=log,
            running=self._in_progress,
            release=self._release,
        )
        self._heartbeat = Heartbeat(
            open_heartbeat_ledger,
            lease=options.lease,
            loop_is_alive=lambda: self.watchdog.is_alive,
            log=log,
            on_orders=self._apply_orders,
            on_lost=self._registration.mark_lost,
            report=self._heartbeat_report,
        )
        self._maintenance = Maintenance(ledger, self._log_maintenance, log)
        self._committer = Committer(self._commit)
        self._slots = Slots(
            attempts,
            self._registration,
            self._lease_buffer,
            self._committer,
            ClosedLanes(ledger.lanes),
            self._heartbeat,
            self.report,
            log,
        )
        self._claimer = Claimer(
            ledger, self._registration, self._lease_buffer, self._slots, reregister=self._reregister
        )
        self._auto_concurrency = (
            None
            if options.min_concurrency is None
            else AutoConcurrency(ledger, self._registration, self._lease_buffer, self._slots, log)
        )
        registration = self._registration
        attempts.set_worker(
            WorkerCallbacks(lambda: registration.id, self._events.work_changed.set, registration.mark_lost)
        )

    @property
    def id(self) -> str:
        """Its name in the ledger; another one after it was given up and joined again."""
        return self._registration.id

    @property
    def stop_reason(self) -> StopReason | None:
        """Why it is about to leave; None while it works."""
        return self._events.stop_reason

    @property
    def idle(self) -> bool:
        """Whether it holds nothing to work on."""
        return not self._lease_buffer.leases

    def drain(self, why: StopReason = StopReason.STOPPED) -> None:
        """Claim no more, finish what runs, give back the rest, leave."""
        self._events.stop(why)

    def stop_now(self) -> None:
        """Do not wait for what runs: give it back and leave."""
        self.drain()
        self._events.stop_immediately.set()

    async def work(self) -> WorkSummary:
        began = time.monotonic()
        self.watchdog.start()
        try:
            return await self._work(began)
        finally:
            self.watchdog.stop()

    async def _work(self, began: float) -> WorkSummary:
        self._heartbeat.start_for(await self._registration.register())
        committer = asyncio.create_task(self._committer.run(), name="committer")
        claimer = asyncio.create_task(self._claimer.run(), name="claimer")
        helpers = [
            committer,
            claimer,
            asyncio.create_task(self._slots.replace_overdue_slots(), name="overdue slots"),
            asyncio.create_task(self._maintenance.run(), name="maintenance"),
            asyncio.create_task(self._attempts.failure_log.run(), name="failure_log"),
        ]
        if self._auto_concurrency is not None:
            helpers.append(asyncio.create_task(self._auto_concurrency.run(), name="autoconcurrency"))
        self._slots.start()
        try:
            await self._watch(helpers, claimer)
            await self._shut_down(committer, claimer)
        except BaseException:
            # Whatever went wrong, what is held should not have to wait for the lease to end.
            with contextlib.suppress(Exception):
                async with asyncio.timeout(STOP_TIMEOUT_SECONDS):
                    await self._registration.deregister()
            raise
        finally:
            await self._end([*helpers, *self._slots.tasks])
            self._attempts.failure_log.log_repeated()
            self.report.seconds = round(time.monotonic() - began, 3)
            self.report.worker = self._registration.id
            self.report.dropped = self._attempts.failure_log.dropped
            self.report.first_dropped = self._attempts.failure_log.first_dropped
        self.report.stop_reason = self._events.stop_reason or StopReason.NOTHING_LEFT
        return self.report

    async def _reregister(self) -> None:
        """The ledger gave our items to others. What still runs can no longer be stored, so it is not finished."""
        self._log.warning(
            "this worker was declared dead; it registers again under a new id", worker=self._registration.id
        )
        self._lease_buffer.pop_unstarted()
        for lease in self._slots.running:
            self._slots.cancel_attempt(lease)
        self._lease_buffer.leases.clear()
        self._heartbeat.start_for(await self._registration.register())

    def _apply_orders(self, orders: HeartbeatReply) -> None:
        if orders.state is WorkerState.DRAINING:
            self.drain(StopReason.ORDERED)

    def _log_maintenance(self, upkeep_report: UpkeepReport) -> None:
        for worker in upkeep_report.lost_workers:
            self._log.warning("a worker was declared dead; its items were released", worker=worker)
        if upkeep_report.quarantined:
            self._log.warning("items that killed their workers were quarantined", items=upkeep_report.quarantined)

    def _heartbeat_report(self) -> WorkerReport:
        """Called on the thread of the heartbeat: everything here is read in one step."""
        now = time.monotonic()
        attempts = self._attempts.running_attempts()
        longest = heapq.nsmallest(MAX_REPORTED_ITEMS, attempts, key=lambda attempt: attempt[1])
        return WorkerReport(
            running=dict(Counter(lease.run_no for lease, _ in attempts)),
            items=tuple((lease.item, round(now - began, 1)) for lease, began in longest),
            unstored=self._committer.pending,
            trouble=self._retry_when_full.trouble,
        )

    def _in_progress(self) -> Sequence[RunningItem]:
        return self._slots.in_progress()

    async def _release(self, hang: Hang) -> None:
        """The loop hangs: give back what it holds, from another thread. Only the item that did it is blamed."""
        ledger = await self._open_ledger()
        try:
            if hang.stopped:
                await ledger.workers.stop(self.id)
                return
            await ledger.claims.reconcile(self.id, [item.lease for item in hang.suspects])
            await ledger.workers.mark_dead(self.id)
        finally:
            await ledger.close()

    async def _commit(self, batch: Sequence[FinishedAttempt]) -> CommitReport:
        report, ends = await self._registration.commit(batch)
        self._lease_buffer.drop(end.lease for end in batch)
        self._events.work_changed.set()  # a lane may have let its next item out
        lost = set(report.lost)
        self.report.lost += len(lost)
        for end, given in zip(ends, batch, strict=True):
            if end.lease.item not in lost:
                self._count(end)
                if end is not given:
                    self._log.error(
                        "the ledger refused the results of an item", item=end.lease.item, error=end.decision.error
                    )
        if lost:
            self._log.warning("attempts were not committed: their leases had ended", items=len(lost))
        return report

    def _count(self, end: FinishedAttempt) -> None:
        summary = self.report
        summary.attempts += 1
        if self._auto_concurrency is not None:
            self._auto_concurrency.record_outcome(end.decision)
        match end.decision.kind:
            case DecisionKind.DONE:
                summary.done += 1
                summary.records += len(end.records)
            case DecisionKind.DEAD:
                summary.dead += 1
            case DecisionKind.RETRY:
                summary.retried += 1
            case DecisionKind.THROTTLED | DecisionKind.PUT_OFF:
                summary.throttled += 1

    async def _watch(self, helpers: Sequence[asyncio.Task[None]], claimer: asyncio.Task[None]) -> None:
        """Return when the end is ordered; raise what a helper, a slot or the heartbeat raised."""
        end = asyncio.create_task(self._events.stopping.wait())
        essential: set[asyncio.Future[Any]] = {*helpers, self._heartbeat.failure}
        try:
            while not self._events.stopping.is_set() and not claimer.done():
                done, _ = await asyncio.wait(
                    (end, *essential, *self._slots.tasks),
                    timeout=SLOT_CHECK_SECONDS,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                for task in done - {end}:
                    if not task.cancelled():
                        task.result()
                        if task not in essential or self._events.stop_reason is not None:
                            continue
                    raise RuntimeError(f"a part of this worker ended without a reason: {task!r}")
        finally:
            end.cancel()

    async def _shut_down(self, committer: asyncio.Task[None], claimer: asyncio.Task[None]) -> None:
        """Give back what was not begun, let what runs end within the drain time, commit, say goodbye."""
        await self._stop_claiming(claimer)
        await self._slots.return_leases(self._lease_buffer.pop_unstarted())
        await self._finish_running(committer)
        unfinished = [lease for lease in self._slots.running if lease in self._lease_buffer.leases]
        for slot in self._slots.tasks:
            slot.cancel()
        await asyncio.wait(self._slots.tasks, timeout=STOP_TIMEOUT_SECONDS)
        await self._slots.return_leases(unfinished)
        flushed = asyncio.create_task(self._committer.flush())
        await asyncio.wait((flushed, committer), return_when=asyncio.FIRST_COMPLETED)
        if committer.done():
            committer.result()
        await self._registration.deregister()

    async def _stop_claiming(self, claimer: asyncio.Task[None]) -> None:
        """A claim that is under way may have taken items nobody has heard of yet: those go back."""
        if not claimer.done():
            await asyncio.wait((claimer,), timeout=CLAIMER_STOP_SECONDS)
        if claimer.done():
            claimer.result()
        else:
            claimer.cancel()
            await asyncio.gather(claimer, return_exceptions=True)
            await self._registration.reconcile(list(self._lease_buffer.leases))

    async def _finish_running(self, committer: asyncio.Task[None]) -> None:
        deadline = time.monotonic() + self._options.drain
        now = asyncio.create_task(self._events.stop_immediately.wait())
        try:
            while self._slots.running and not now.done() and (left := deadline - time.monotonic()) > 0:
                await asyncio.wait((now, committer), timeout=min(left, 0.02), return_when=asyncio.FIRST_COMPLETED)
                for essential in (committer, self._heartbeat.failure):
                    if essential.done():
                        essential.result()
        finally:
            now.cancel()

    async def _end(self, tasks: Sequence[asyncio.Task[None]]) -> None:
        for task in tasks:
            task.cancel()
        # A handler that ignores being cancelled is left behind; whoever ends the process sees to it.
        await asyncio.wait(tasks, timeout=STOP_TIMEOUT_SECONDS)
        await self._heartbeat.stop()
        await self._attempts.close()
