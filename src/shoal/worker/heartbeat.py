"""The heartbeat: a thread with its own connection, so that neither a handler nor maintenance can stop it.

A handler that blocks the event loop (a long computation, a forgotten `time.sleep`) stops everything on the loop but not
this thread: the leases stay, and so does the worker's place (`worker_limit`). When the loop hangs for good the
heartbeat stops, so that other workers get its items.
"""

from __future__ import annotations

import asyncio
import heapq
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from shoal.errors import LedgerError, WorkerLost
from shoal.ledger.protocols import Ledger
from shoal.model.log import Log
from shoal.model.worker import MAX_REPORTED_ITEMS, WorkerReport, WorkerState
from shoal.worker.attempt_runner import AttemptRunner
from shoal.worker.commit import CommitQueue
from shoal.worker.egress import WorkerEgress
from shoal.worker.operator_settings import OperatorSettings
from shoal.worker.registration import OpenLedger, Registration
from shoal.worker.state import StopReason, boottime_seconds
from shoal.worker.watchdog import LoopWatchdog
from shoal.worker.worker_limit import WorkerPlace

MAX_INTERVAL_SECONDS = 2.0
STOP_TIMEOUT_SECONDS = 1.0
# During an outage every beat fails; a warning is logged this often.
WARN_INTERVAL_SECONDS = 10.0


class Heartbeat:
    """Beats for one worker until it is stopped, with a report of what it works on.

    Replies act on the loop that created it: an order to drain stops the worker, as does a schema that is newer than
    this code; an unknown id marks it as lost.
    `failure` is a future of that loop: it gets the exception when the thread fails, and is never done otherwise.
    `place` is renewed with each beat.
    """

    def __init__(
        self,
        open_ledger: OpenLedger,
        registration: Registration,
        attempts: AttemptRunner,
        commits: CommitQueue,
        watchdog: LoopWatchdog,
        log: Log,
        *,
        egress: WorkerEgress | None = None,
        operator_settings: OperatorSettings | None = None,
    ) -> None:
        self._egress = egress
        self._operator_settings = operator_settings
        self._settings_version = 0
        self._open_ledger = open_ledger
        self._registration = registration
        self._identity = registration.identity
        self._attempts = attempts
        self._commits = commits
        self._watchdog = watchdog
        self._log = log
        self.interval = min(MAX_INTERVAL_SECONDS, registration.options.lease / 5)
        self._loop = asyncio.get_running_loop()
        self.failure: asyncio.Future[None] = self._loop.create_future()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="shoal-heartbeat", daemon=True)
        self._warned_at = -WARN_INTERVAL_SECONDS
        self.place = WorkerPlace()

    def start(self) -> None:
        self._thread.start()

    async def stop(self) -> None:
        self._stopped.set()
        # A beat that waits for an unreachable ledger is abandoned: the thread ends with the process.
        if self._thread.ident is not None:
            await asyncio.to_thread(self._thread.join, STOP_TIMEOUT_SECONDS)
        if self.failure.done():
            self.failure.exception()  # it was logged when it happened

    def _run(self) -> None:
        try:
            asyncio.run(self._run_loop())
        except BaseException as error:
            # Whatever it is: without heartbeats the items of this worker go to others while it works on them.
            self._call(self._fail, error)

    def _fail(self, error: BaseException) -> None:
        self._log.error("heartbeat thread failed; worker stops", exc_info=error)
        if not self.failure.done():
            # A future does not accept a StopIteration or a cancellation as its exception.
            self.failure.set_exception(RuntimeError(f"the heartbeat ended: {type(error).__name__}: {error}"))

    def _stop_outdated(self, schema_version: int) -> None:
        if self._identity.events.stop_reason is None:
            self._log.warning("newer schema in ledger; worker finishes its items and stops", version=schema_version)
            self._identity.events.stop(StopReason.OUTDATED)

    async def _run_loop(self) -> None:
        asyncio.get_running_loop().set_exception_handler(self._log_loop_error)
        ledger: Ledger | None = None
        try:
            while not self._stopped.is_set():
                try:
                    ledger = ledger or await self._open_ledger()
                    if self._watchdog.is_alive:
                        await self._beat_once(ledger)
                        await self._renew_place(ledger)
                except LedgerError as error:
                    self._warn_unreachable(error)
                await self._pause()
        finally:
            if ledger is not None:
                await ledger.close()

    def _warn_unreachable(self, error: LedgerError) -> None:
        if time.monotonic() - self._warned_at >= WARN_INTERVAL_SECONDS:
            self._warned_at = time.monotonic()
            self._log.warning("heartbeat failed: ledger unreachable", error=error.message)

    def _log_loop_error(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Log in one line what asyncio reports, such as a connection that broke while nothing waited for it."""
        self._log.debug(str(context["message"]), error=str(context.get("exception") or ""))

    async def _beat_once(self, ledger: Ledger) -> None:
        before, worker = boottime_seconds(), self._identity.id
        try:
            reply = await ledger.workers.heartbeat(worker, self._worker_report())
        except WorkerLost:
            self._call(self._identity.mark_lost, worker)
            return
        self._identity.record_beat(worker, before)
        if reply.state is WorkerState.DRAINING and worker == self._identity.id:
            self._call(self._identity.events.stop, StopReason.ORDERED)
        if reply.schema_version > ledger.schema.known_version:
            self._call(self._stop_outdated, reply.schema_version)
        if self._operator_settings is not None and reply.settings_version != self._settings_version:
            self._call(self._operator_settings.apply, *await self._operator_settings.read(ledger))
            self._settings_version = reply.settings_version

    async def _renew_place(self, ledger: Ledger) -> None:
        """Not after a stop: the place may be released by then, and another worker waits for it."""
        if not self._stopped.is_set() and not await self.place.renew(ledger):
            self._call(self.place.on_lost)

    def _worker_report(self) -> WorkerReport:
        """Runs on this thread, so each part is read in one step."""
        now = time.monotonic()
        attempts = self._attempts.running_attempts()
        longest = heapq.nsmallest(MAX_REPORTED_ITEMS, attempts, key=lambda attempt: attempt[1])
        return WorkerReport(
            running=dict(Counter(lease.run_no for lease, _ in attempts)),
            items=tuple((lease.item, round(now - began, 1)) for lease, began in longest),
            unstored=self._commits.pending,
            trouble=self._registration.trouble,
            egress=() if self._egress is None else self._egress.waits,
        )

    async def _pause(self) -> None:
        # Nothing else runs on this thread's loop, so it may block.
        self._stopped.wait(self.interval)
        await asyncio.sleep(0)

    def _call(self, function: Callable[..., None], *args: object) -> None:
        if not self._stopped.is_set():
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(function, *args)
