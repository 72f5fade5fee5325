"""The heartbeat: a thread of its own, with its own connection, so that neither a handler nor maintenance can stop it.

Nothing but heartbeats goes over that connection. A handler that blocks the event loop (a long computation, a forgotten
`time.sleep`) stops everything that runs on the loop, but not this thread: the leases stay. When the loop hangs for good
it stops beating, so that such a process loses its items to others instead of keeping them for ever.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from shoal.errors import LedgerError, WorkerLost
from shoal.ledger.protocols import Ledger
from shoal.model.log import Log
from shoal.model.worker import HeartbeatReply, WorkerReport

MAX_INTERVAL_SECONDS = 2.0
STOP_TIMEOUT_SECONDS = 1.0
# During an outage every beat fails: it is told now and then, not each time.
WARN_INTERVAL_SECONDS = 10.0

OpenLedger = Callable[[], Awaitable[Ledger]]


class Heartbeat:
    """Beats for one worker until it is stopped. What it hears is passed to the loop it was made on.

    `on_orders` and `on_lost` are called on that loop. `loop_is_alive` says whether to beat at all; it and `report`,
    what each beat says of the worker, are called on the heartbeat's own thread. `failure` is a future of that loop: it
    gets the exception when the thread ends although nobody stopped it, and is never done otherwise.
    """

    def __init__(
        self,
        open_ledger: OpenLedger,
        *,
        lease: float,
        loop_is_alive: Callable[[], bool],
        log: Log,
        on_orders: Callable[[HeartbeatReply], None],
        on_lost: Callable[[str], None],
        report: Callable[[], WorkerReport | None] = lambda: None,
    ) -> None:
        self._open = open_ledger
        self._interval = min(MAX_INTERVAL_SECONDS, lease / 5)
        self._loop_is_alive = loop_is_alive
        self._log = log
        self._on_orders = on_orders
        self._on_lost = on_lost
        self._report = report
        self._loop = asyncio.get_running_loop()
        self.failure: asyncio.Future[None] = self._loop.create_future()
        self._worker = ""
        self._beat_at = boottime_seconds()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._warned_at = -WARN_INTERVAL_SECONDS

    def start_for(self, worker: str) -> None:
        """Begin, or go on under another id."""
        self._worker = worker
        self._beat_at = boottime_seconds()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="shoal-heartbeat", daemon=True)
            self._thread.start()

    @property
    def seconds_since_beat(self) -> float:
        """How long ago the ledger last heard from us, time asleep included."""
        return boottime_seconds() - self._beat_at

    async def stop(self) -> None:
        self._stopped.set()
        # A beat that waits for a ledger which is away is left to itself: the thread ends with the process.
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, STOP_TIMEOUT_SECONDS)
        if self.failure.done():
            self.failure.exception()  # it was told when it happened

    def _run(self) -> None:
        try:
            asyncio.run(self._run_loop())
        except BaseException as error:
            # Whatever it is: without heartbeats the items of this worker go to others while it works on them.
            self._call(self._fail, error)

    def _fail(self, error: BaseException) -> None:
        self._log.error("the heartbeat thread failed; this worker stops", exc_info=error)
        if not self.failure.done():
            # A StopIteration or a cancellation cannot be the exception of a future as it is.
            self.failure.set_exception(RuntimeError(f"the heartbeat ended: {type(error).__name__}: {error}"))

    async def _run_loop(self) -> None:
        asyncio.get_running_loop().set_exception_handler(self._log_loop_error)
        ledger: Ledger | None = None
        try:
            while not self._stopped.is_set():
                try:
                    ledger = ledger or await self._open()
                    if self._loop_is_alive():
                        await self._beat_once(ledger)
                except LedgerError as error:
                    self._warn_unreachable(error)
                await self._pause()
        finally:
            if ledger is not None:
                await ledger.close()

    def _warn_unreachable(self, error: LedgerError) -> None:
        if time.monotonic() - self._warned_at >= WARN_INTERVAL_SECONDS:
            self._warned_at = time.monotonic()
            self._log.warning("the heartbeat cannot reach the ledger", error=error.message)

    def _log_loop_error(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """What asyncio finds left over, such as a connection that broke while nobody waited for it: one line."""
        self._log.debug(str(context["message"]), error=str(context.get("exception") or ""))

    async def _beat_once(self, ledger: Ledger) -> None:
        before, worker = boottime_seconds(), self._worker
        try:
            orders = await ledger.workers.heartbeat(worker, self._report())
        except WorkerLost:
            # By now it may have another id: only the one that was beaten for is lost.
            self._call(self._on_lost, worker)
            return
        if worker == self._worker:
            self._beat_at = before
            self._call(self._on_orders, orders)

    async def _pause(self) -> None:
        # Nothing else runs on this thread's loop, so it may simply wait.
        self._stopped.wait(self._interval)
        await asyncio.sleep(0)

    def _call(self, function: Callable[..., None], *args: object) -> None:
        if not self._stopped.is_set():
            with suppress(RuntimeError):  # the loop was closed: nobody listens
                self._loop.call_soon_threadsafe(function, *args)


def boottime_seconds() -> float:
    """Seconds on a clock that goes on while the machine is suspended, where there is one."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()
