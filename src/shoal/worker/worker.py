"""A worker: creates its parts, watches them, and shuts them down in order.

It ends when its runs have nothing left, when it is stopped (`drain`, then `stop_now`), when the ledger orders it to
leave or was upgraded by a newer Shoal, when the ledger cannot be reached for longer than `patience`, or when one of its
parts fails. Leases that it still has are then returned without charging an attempt.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from shoal.errors import LedgerTooNew
from shoal.ledger.protocols import Ledger
from shoal.model.log import Log
from shoal.observe.failures import FailureCount
from shoal.worker.attempt_runner import AttemptRunner
from shoal.worker.claim import Claimer
from shoal.worker.commit import CommitQueue, Committer
from shoal.worker.egress import WorkerEgress
from shoal.worker.heartbeat import Heartbeat
from shoal.worker.metrics import WorkerMetrics
from shoal.worker.operator_settings import OperatorSettings
from shoal.worker.politeness import ClosedLanes, PausedRuns
from shoal.worker.record_limits import RecordLimit, RecordLimits
from shoal.worker.registration import Maintenance, OpenLedger, Registration
from shoal.worker.slots import AutoConcurrency, Slots
from shoal.worker.state import LeaseBuffer, StopReason, WorkSummary
from shoal.worker.watchdog import EndProcess, LoopWatchdog
from shoal.worker.worker_limit import WorkerPlace

CLAIMER_STOP_SECONDS = 0.5
SLOT_CHECK_SECONDS = 2.0
STOP_TIMEOUT_SECONDS = 1.0


class Worker:
    """Processes items of one scraper from one ledger. `open_ledger` opens it again, for other threads."""

    def __init__(  # noqa: PLR0913 - the parts of a worker
        self,
        ledger: Ledger,
        registration: Registration,
        attempts: AttemptRunner,
        *,
        open_ledger: OpenLedger,
        hang_timeout: float,
        end_process: EndProcess | None,
        log: Log,
        egress: WorkerEgress | None = None,
        operator_settings: OperatorSettings | None = None,
        record_limits: Mapping[str, RecordLimit] | None = None,
        closed_lanes: ClosedLanes,
    ) -> None:
        self._ledger = ledger
        self._operator_settings = operator_settings
        self._egress = egress
        options = registration.options
        self._registration = registration
        self._options = options
        self._attempts = attempts
        self._events = registration.identity.events
        self.summary = WorkSummary()
        self._lease_buffer = LeaseBuffer()
        self._commits = CommitQueue()
        self._committer = Committer(self._commits, registration, self._lease_buffer, self.summary, log)
        closed = closed_lanes, PausedRuns(ledger.runs)
        limits = (
            RecordLimits(ledger, registration.identity, self._lease_buffer, record_limits, log)
            if record_limits
            else None
        )
        self._slots = Slots(
            *(attempts, registration, self._lease_buffer, self._commits, *closed, self.summary, log),
            record_limits=limits,
        )
        self._claimer = Claimer(ledger, registration, self._lease_buffer, self._slots, log, egress=egress)
        self._maintenance = Maintenance(ledger, log)
        self._auto_concurrency = (
            None
            if options.min_concurrency is None
            else AutoConcurrency(ledger, registration, self._lease_buffer, self._slots, self._committer, log)
        )
        self._loop, self._loop_thread = asyncio.get_running_loop(), threading.get_ident()
        self._watchdog = LoopWatchdog(
            self._slots, registration, open_ledger, hang_timeout=hang_timeout, end_process=end_process, log=log
        )
        self._heartbeat = Heartbeat(
            *(open_ledger, registration, attempts, self._commits, self._watchdog, log),
            egress=egress,
            operator_settings=operator_settings,
        )

    @property
    def id(self) -> str:
        """Its id in the ledger. It changes when the ledger declared the worker dead and it registered again."""
        return self._registration.identity.id

    @property
    def stop_reason(self) -> StopReason | None:
        """Why it is stopping; None while it works."""
        return self._events.stop_reason

    @property
    def metrics(self) -> WorkerMetrics:
        """What it measures about itself."""
        return self._registration.metrics

    @property
    def idle(self) -> bool:
        """Whether it has no leases."""
        return not self._lease_buffer.leases

    @property
    def running(self) -> int:
        """How many attempts are running."""
        return len(self._slots.running)

    def keep_place(self, place: WorkerPlace) -> None:
        """Renew this place while the loop is blocked too, and stop when another worker has it."""
        place.on_lost = self.drain
        self._heartbeat.place = place

    def drain(self, reason: StopReason = StopReason.STOPPED) -> None:
        """Claim no more, finish what runs, return the rest, leave."""
        self._events.stop(reason)

    def stop_now(self) -> None:
        """Return what runs without waiting for it, and leave."""
        self.drain()
        self._events.stop_immediately.set()

    @property
    def failures(self) -> tuple[FailureCount, ...]:
        """Why attempts failed, the most frequent reason first."""
        return self._attempts.failure_log.counts()

    def enter_debugger(self) -> None:
        """An author's code stopped at a breakpoint: neither its timeout nor a loop that stands still ends it."""
        self._watchdog.pause()
        if threading.get_ident() == self._loop_thread:
            self._attempts.lift_timeouts()
        else:
            self._loop.call_soon_threadsafe(self._attempts.lift_timeouts)

    def leave_debugger(self) -> None:
        self._watchdog.resume()

    async def work(self) -> WorkSummary:
        """Work until there is a reason to stop. Raises what a failed part raised.

        Raises LedgerTooNew, after it has finished its items, when the ledger was upgraded meanwhile.
        """
        began = time.monotonic()
        self._watchdog.start()
        try:
            summary = await self._work(began)
        finally:
            self._watchdog.stop()
        if summary.stop_reason is StopReason.OUTDATED:
            known = self._ledger.schema.known_version
            raise LedgerTooNew(
                f"The ledger was upgraded beyond schema version {known}, the newest that this Shoal knows; "
                f"worker {summary.worker} has finished its items and stopped."
            )
        return summary

    async def _work(self, began: float) -> WorkSummary:
        await self._attempts.start()
        await self._registration.register()
        if self._operator_settings is not None:
            self._operator_settings.apply(*await self._operator_settings.read(self._ledger))
        self._heartbeat.start()
        if self._egress is not None:
            await self._egress.try_sync(self._ledger, self.id)
        committer = asyncio.create_task(self._committer.run(), name="committer")
        claimer = asyncio.create_task(self._claimer.run(), name="claimer")
        parts = [
            committer,
            claimer,
            asyncio.create_task(self._slots.replace_overdue_slots(), name="overdue slots"),
            asyncio.create_task(self._maintenance.run(), name="maintenance"),
            asyncio.create_task(self._attempts.failure_log.run(), name="failure_log"),
        ]
        if self._auto_concurrency is not None:
            parts.append(asyncio.create_task(self._auto_concurrency.run(), name="autoconcurrency"))
        if self._egress is not None:
            interval = self._heartbeat.interval
            syncing = self._egress.run(self._ledger, self._registration.identity, interval)
            parts.append(asyncio.create_task(syncing, name="egress"))
        self._slots.start()
        try:
            await self._watch(parts, claimer)
            await self._shut_down(committer, claimer)
        except BaseException:
            # Whatever failed, other workers should not have to wait for the leases to expire.
            with contextlib.suppress(Exception):
                async with asyncio.timeout(STOP_TIMEOUT_SECONDS):
                    await self._registration.deregister()
            raise
        finally:
            await self._end([*parts, *self._slots.tasks])
            self._complete_summary(began)
        return self.summary

    async def _watch(self, parts: Sequence[asyncio.Task[None]], claimer: asyncio.Task[None]) -> None:
        """Return when the worker stops; raise what a part, a slot or the heartbeat raised."""
        stopping = asyncio.create_task(self._events.stopping.wait())
        essential: set[asyncio.Future[Any]] = {*parts, self._heartbeat.failure}
        try:
            while not self._events.stopping.is_set() and not claimer.done():
                done, _ = await asyncio.wait(
                    (stopping, *essential, *self._slots.tasks),
                    timeout=SLOT_CHECK_SECONDS,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                for task in done - {stopping}:
                    if not task.cancelled():
                        task.result()
                        if task not in essential or self._events.stop_reason is not None:
                            continue
                    raise RuntimeError(f"a part of this worker ended without a reason: {task!r}")
        finally:
            stopping.cancel()

    async def _shut_down(self, committer: asyncio.Task[None], claimer: asyncio.Task[None]) -> None:
        """Return unstarted items, let attempts end within the drain time, commit, deregister."""
        await self._stop_claiming(claimer)
        await self._slots.return_leases(self._lease_buffer.pop_unstarted())
        await self._finish_running(committer)
        unfinished = [lease for lease in self._slots.running if lease in self._lease_buffer.leases]
        for slot in self._slots.tasks:
            slot.cancel()
        await asyncio.wait(self._slots.tasks, timeout=STOP_TIMEOUT_SECONDS)
        await self._slots.return_leases(unfinished)
        flushed = asyncio.create_task(self._commits.flush())
        await asyncio.wait((flushed, committer), return_when=asyncio.FIRST_COMPLETED)
        if committer.done():
            committer.result()
        if self._events.stop_reason is StopReason.BROKEN:
            # They died of the error that stopped the worker: the corrected code gets them.
            await self._registration.retry_items(self._attempts.failure_log.broken_items)
        if self._egress is not None:
            await self._egress.try_sync(self._ledger, self.id)
        await self._registration.deregister()

    async def _stop_claiming(self, claimer: asyncio.Task[None]) -> None:
        """A claim that is cancelled under way may have leased items unknown here: the ledger takes them back."""
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
        # A handler that ignores its cancellation is abandoned; it ends with the process.
        await asyncio.wait(tasks, timeout=STOP_TIMEOUT_SECONDS)
        await self._heartbeat.stop()
        await self._attempts.close()

    def _complete_summary(self, began: float) -> None:
        summary, failure_log = self.summary, self._attempts.failure_log
        failure_log.log_repeated()
        summary.seconds = round(time.monotonic() - began, 3)
        summary.worker = self.id
        summary.dropped = failure_log.dropped
        summary.first_dropped = failure_log.first_dropped
        summary.failures = failure_log.counts()
        summary.dropped_by_hooks = failure_log.dropped_records
        summary.stop_reason = self._events.stop_reason or StopReason.NOTHING_LEFT
