"""Watches the event loop from a thread of its own.

A handler that blocks the loop stops everything on it: timeouts, signals, the other items. The watchdog logs which item
and which line blocks. When the loop has not moved for `hang_timeout`, or when the process was asked to stop and the
loop does not react, it returns the other items to the ledger and ends the process; a pool then starts a new one.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import os
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from shoal.define.author_code import is_library_code
from shoal.errors import EXIT_HUNG, EXIT_INTERRUPTED
from shoal.model.log import Log

if TYPE_CHECKING:
    from shoal.worker.registration import OpenLedger, Registration
    from shoal.worker.slots import RunningItem, Slots

TICK_SECONDS = 0.25
BLOCKED_SECONDS = 2.0
# Returning the items may take this long before the process ends regardless.
RELEASE_SECONDS = 5.0
# Added to the drain time after the first request to stop; all that a blocked loop gets after the second one.
GRACE_SECONDS = 2.0


class Hang(NamedTuple):
    """A loop that does not move. `suspects`: the item whose code runs, or all running items if that is unknown."""

    seconds: float
    line: str
    suspects: tuple[RunningItem, ...]
    stopped: bool

    def __str__(self) -> str:
        names = ", ".join(item.name for item in self.suspects[:5]) or "something"
        which = names if len(self.suspects) < 2 else f"one of {len(self.suspects)} items ({names})"
        return f"{which} has blocked the event loop for {self.seconds:.0f} s, at {self.line}"


EndProcess = Callable[[int, str], None]


class LoopWatchdog:
    """Watches the loop that it is created on. `hang_timeout`: seconds without a tick after which the process ends.

    `end_process` ends the process with an exit code and a reason. Without it the process stays, and only `is_alive`
    shows that it hangs. Items are returned over a ledger that the watchdog opens on its own thread.
    """

    def __init__(
        self,
        slots: Slots,
        registration: Registration,
        open_ledger: OpenLedger,
        *,
        hang_timeout: float,
        end_process: EndProcess | None,
        log: Log,
    ) -> None:
        self._slots = slots
        self._registration = registration
        self._open_ledger = open_ledger
        self._hang_timeout = hang_timeout
        self._end_process = end_process
        self._drain = registration.options.drain
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._ticks = 0
        self._ticking: asyncio.TimerHandle | None = None
        self._stalled_seconds = 0.0
        self._warn_at = BLOCKED_SECONDS
        self._stop_requests = 0
        self._stalled_at_stop_request = 0.0
        self._has_wakeup_fd = False
        self._backstop = False
        self._previous_wakeup_fd = -1
        self._thread: threading.Thread | None = None
        self._stopped = False
        self._paused = 0
        self._wake_read, self._wake_write = -1, -1

    @property
    def is_alive(self) -> bool:
        """Whether the loop has moved within `hang_timeout`."""
        return self._stalled_seconds < self._hang_timeout

    def start(self) -> None:
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        if self._end_process is not None and threading.current_thread() is threading.main_thread():
            self._install_wakeup_fd()
        self._tick()
        self._thread = threading.Thread(target=self._watch, name="shoal-watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped = True
        if self._ticking is not None:
            self._ticking.cancel()
        if self._thread is None:
            return
        os.write(self._wake_write, b"\0")
        self._thread.join()
        if self._backstop:
            signal.setitimer(signal.ITIMER_PROF, 0)
            faulthandler.unregister(signal.SIGPROF)
        if self._has_wakeup_fd:
            signal.set_wakeup_fd(self._previous_wakeup_fd)
        os.close(self._wake_read)
        os.close(self._wake_write)

    def pause(self) -> None:
        """Let the loop stand still until `resume`: a debugger has it. Calls may be nested, from any thread."""
        self._paused += 1

    def resume(self) -> None:
        self._paused -= 1

    def _install_wakeup_fd(self) -> None:
        """Receive signals in this thread too: Python's own handlers wait while the main thread is inside a library.

        Code that keeps the interpreter lock, such as an endless regular expression, also stops this thread. Then the
        system ends the process by SIGPROF, after `hang_timeout` seconds of processor time, and Python writes the stack.
        """
        self._has_wakeup_fd = True
        self._previous_wakeup_fd = signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        self._backstop = _can_use_backstop()
        if self._backstop:
            faulthandler.register(signal.SIGPROF, chain=True)
            signal.setitimer(signal.ITIMER_PROF, self._hang_timeout)

    def _tick(self) -> None:
        self._ticks += 1
        self._ticking = self._loop.call_later(TICK_SECONDS, self._tick)

    def _watch(self) -> None:
        seen, checked_at = self._ticks, time.monotonic()
        while not self._stopped:
            self._wait_for_signals(TICK_SECONDS)
            if self._backstop:
                signal.setitimer(signal.ITIMER_PROF, self._hang_timeout)
            now = time.monotonic()
            # A process that was stopped or suspended did not hang, so each check counts for little.
            passed, checked_at = min(now - checked_at, 2 * TICK_SECONDS), now
            if self._ticks != seen or self._paused:
                seen, self._warn_at = self._ticks, BLOCKED_SECONDS
                self._stalled_seconds = self._stalled_at_stop_request = 0.0
            else:
                self._stalled_seconds += passed
                self._check()

    def _check(self) -> None:
        if self._stalled_seconds >= self._warn_at:
            self._warn_at = 2 * self._stalled_seconds
            hang = self._describe_hang(stopped=False)
            self._log.warning(
                "event loop blocked by a handler",
                seconds=round(self._stalled_seconds, 1),
                at=hang.line,
                item=", ".join(item.name for item in hang.suspects[:5]),
            )
        grace = GRACE_SECONDS + (self._drain if self._stop_requests == 1 else 0.0)
        stopped = self._stop_requests > 0 and self._stalled_seconds - self._stalled_at_stop_request >= grace
        if (stopped or not self.is_alive) and self._end_process is not None:
            self._end(self._describe_hang(stopped=stopped), self._end_process)

    def _end(self, hang: Hang, end_process: EndProcess) -> None:
        self._log.error("event loop hung; process exits", why=str(hang))
        with contextlib.suppress(Exception):  # leases that cannot be returned now expire
            asyncio.run(asyncio.wait_for(self._release(hang), RELEASE_SECONDS))
        end_process(EXIT_INTERRUPTED if hang.stopped else EXIT_HUNG, str(hang))

    async def _release(self, hang: Hang) -> None:
        """Return what the worker holds. After a hang only the suspects count as rescued."""
        worker = self._registration.identity.id
        ledger = await self._open_ledger()
        try:
            if hang.stopped:
                await ledger.workers.stop(worker)
                return
            await ledger.claims.reconcile(worker, [item.lease for item in hang.suspects])
            await ledger.workers.mark_dead(worker)
        finally:
            await ledger.close()

    def _wait_for_signals(self, seconds: float) -> None:
        """Wait, and count requests to stop that arrive meanwhile."""
        ready, _, _ = select.select([self._wake_read], [], [], seconds)
        if not ready:
            return
        numbers = os.read(self._wake_read, 4096)
        if (forward := self._previous_wakeup_fd) >= 0:
            with contextlib.suppress(OSError):
                os.write(forward, numbers)
        requests = sum(number in (signal.SIGINT, signal.SIGTERM) for number in numbers)
        if requests:
            self._stop_requests += requests
            self._stalled_at_stop_request = self._stalled_seconds

    def _describe_hang(self, *, stopped: bool) -> Hang:
        current = asyncio.current_task(self._loop)
        running = self._slots.running_items()
        suspects = [item for item in running if item.task is current] or running
        return Hang(self._stalled_seconds, self._blocking_line(), tuple(suspects), stopped)

    def _blocking_line(self) -> str:
        """The innermost line of the loop's thread that is neither Python's nor Shoal's."""
        frame = sys._current_frames().get(self._loop_thread)
        if frame is None:
            return "an unknown line"
        stack = traceback.extract_stack(frame)
        own = [entry for entry in stack if not is_library_code(entry.filename)] or stack[-1:]
        return f"{Path(own[-1].filename).name}:{own[-1].lineno} in {own[-1].name}"


def _can_use_backstop() -> bool:
    """Whether the signal and its timer are unused, and stderr can be written."""
    if signal.getsignal(signal.SIGPROF) is not signal.SIG_DFL or signal.getitimer(signal.ITIMER_PROF)[0]:
        return False
    try:
        return sys.stderr.fileno() >= 0
    except (AttributeError, OSError, ValueError):
        return False
