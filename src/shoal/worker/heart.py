"""The heartbeat: a thread of its own, with its own connection, so that neither a handler nor maintenance can stop it.

Nothing but heartbeats goes over that connection. A handler that blocks the event loop (a long computation, a
forgotten `time.sleep`) stops everything that runs on the loop, but not this thread: the leases stay. It also watches
the loop, says which line blocks it, and after `give_up` seconds stops beating, so that a process that hangs for good
loses its items to others instead of keeping them for ever.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from shoal.define.blame import is_machinery
from shoal.errors import LedgerError, WorkerLost
from shoal.ledger.protocols import Ledger
from shoal.model.log import Log
from shoal.model.worker import Orders

TICK_SECONDS = 0.25
BLOCKED_SECONDS = 2.0
LONGEST_BEAT = 2.0
FAREWELL_SECONDS = 1.0
# During an outage every beat fails: it is told now and then, not each time.
LONGEST_QUIET = 10.0

OpenLedger = Callable[[], Awaitable[Ledger]]


class Heart:
    """Beats for one worker until it is stopped. What it hears is passed to the loop it was made on.

    `on_orders` and `on_lost` are called on that loop. `failure` is a future of that loop: it gets an exception when the
    thread ends although nobody stopped it, and is never done otherwise.
    """

    def __init__(
        self,
        open_ledger: OpenLedger,
        *,
        lease: float,
        give_up: float,
        log: Log,
        on_orders: Callable[[Orders], None],
        on_lost: Callable[[str], None],
    ) -> None:
        self._open = open_ledger
        self._every = min(LONGEST_BEAT, lease / 5)
        self._give_up = give_up
        self._log = log
        self._on_orders = on_orders
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self.failure: asyncio.Future[None] = self._loop.create_future()
        self._loop_thread = threading.get_ident()
        self._ticked = time.monotonic()
        self._worker = ""
        self._beat_at = awake_and_asleep()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._ticking: asyncio.TimerHandle | None = None
        self._warned_after = BLOCKED_SECONDS
        self._complained_at = -LONGEST_QUIET

    def beat_for(self, worker: str) -> None:
        """Begin, or go on under another id."""
        self._worker = worker
        self._beat_at = awake_and_asleep()
        if self._thread is None:
            self._tick()
            self._thread = threading.Thread(target=self._run, name="shoal-heart", daemon=True)
            self._thread.start()

    @property
    def silent_seconds(self) -> float:
        """How long ago the ledger last heard from us, time asleep included."""
        return awake_and_asleep() - self._beat_at

    async def stop(self) -> None:
        self._stopped.set()
        if self._ticking is not None:
            self._ticking.cancel()
        # A beat that waits for a ledger which is away is left to itself: the thread ends with the process.
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, FAREWELL_SECONDS)
        if self.failure.done():
            self.failure.exception()  # it was told when it happened

    def _tick(self) -> None:
        self._ticked = time.monotonic()
        self._ticking = self._loop.call_later(TICK_SECONDS, self._tick)

    def _run(self) -> None:
        try:
            asyncio.run(self._beat())
        except BaseException as error:
            # Whatever it is: without heartbeats the items of this worker go to others while it works on them.
            self._call(self._fail, error)

    def _fail(self, error: BaseException) -> None:
        self._log.error("the heartbeat ended unexpectedly; this worker leaves", exc_info=error)
        if not self.failure.done():
            # A StopIteration or a cancellation cannot be the exception of a future as it is.
            self.failure.set_exception(RuntimeError(f"the heartbeat ended: {type(error).__name__}: {error}"))

    async def _beat(self) -> None:
        asyncio.get_running_loop().set_exception_handler(self._left_over)
        ledger: Ledger | None = None
        try:
            while not self._stopped.is_set():
                try:
                    ledger = ledger or await self._open()
                    if self._loop_is_alive():
                        await self._beat_once(ledger)
                except LedgerError as error:
                    self._complain(error)
                await self._pause()
        finally:
            if ledger is not None:
                await ledger.close()

    def _complain(self, error: LedgerError) -> None:
        if time.monotonic() - self._complained_at >= LONGEST_QUIET:
            self._complained_at = time.monotonic()
            self._log.warning("the heartbeat does not reach the ledger", error=error.message)

    def _left_over(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """What asyncio finds left over, such as a connection that broke while nobody waited for it: one line."""
        self._log.debug(str(context["message"]), error=str(context.get("exception") or ""))

    async def _beat_once(self, ledger: Ledger) -> None:
        before, worker = awake_and_asleep(), self._worker
        try:
            orders = await ledger.workers.beat(worker)
        except WorkerLost:
            # By now it may have another id: only the one that was beaten for is lost.
            self._call(self._on_lost, worker)
            return
        if worker == self._worker:
            self._beat_at = before
            self._call(self._on_orders, orders)

    async def _pause(self) -> None:
        # Nothing else runs on this thread's loop, so it may simply wait.
        self._stopped.wait(self._every)
        await asyncio.sleep(0)

    def _loop_is_alive(self) -> bool:
        """Say it when the loop hangs, first after two seconds, then ever more seldom. False: it hangs for too long."""
        silent = time.monotonic() - self._ticked
        if silent < BLOCKED_SECONDS:
            self._warned_after = BLOCKED_SECONDS
            return True
        if silent >= self._warned_after:
            self._warned_after = 2 * silent
            self._log.warning(
                "a handler blocks the event loop; nothing else of this process can run",
                seconds=round(silent, 1),
                at=self._blocking_line(),
            )
        return silent < self._give_up

    def _blocking_line(self) -> str:
        """Where the loop's thread is: the innermost line outside of Python's and Shoal's own code."""
        frame = sys._current_frames().get(self._loop_thread)
        if frame is None:
            return ""
        stack = traceback.extract_stack(frame)
        own = [entry for entry in stack if not is_machinery(entry.filename)] or stack[-1:]
        return f"{Path(own[-1].filename).name}:{own[-1].lineno} in {own[-1].name}"

    def _call(self, function: Callable[..., None], *args: object) -> None:
        if not self._stopped.is_set():
            with suppress(RuntimeError):  # the loop was closed: nobody listens
                self._loop.call_soon_threadsafe(function, *args)


def awake_and_asleep() -> float:
    """Seconds on a clock that goes on while the machine is suspended, where there is one."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()
