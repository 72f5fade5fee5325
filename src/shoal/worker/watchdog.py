"""The watch over the event loop, from a thread of its own.

A handler that blocks the loop stops everything on it: timeouts, signals, the other items. This thread says which item
and which line it is. When the loop has been silent beyond its bound, or when somebody has asked the process to stop and
the loop does not hear it, the thread gives the other items back and ends the process; a pool then starts a new one.
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
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from shoal.define.author_code import is_library_code
from shoal.model.item import Lease
from shoal.model.log import Log

TICK_SECONDS = 0.25
BLOCKED_SECONDS = 2.0
# How long giving the items back may take before the process ends all the same.
RELEASE_SECONDS = 5.0
# Beyond what running items get after the first request to stop; all that a silent loop gets after the second one.
GRACE_SECONDS = 2.0
EXIT_HUNG = 75  # as the system names it: a temporary failure, worth another try
EXIT_INTERRUPTED = 130


class RunningItem(NamedTuple):
    """An item that is being worked on, and the task that does it."""

    name: str
    lease: Lease
    task: asyncio.Task[None]


class Hang(NamedTuple):
    """A loop that does not move. `suspects`: the item whose code runs, or all if that cannot be told."""

    seconds: float
    line: str
    suspects: tuple[RunningItem, ...]
    stopped: bool

    def __str__(self) -> str:
        names = ", ".join(item.name for item in self.suspects[:5]) or "something"
        which = names if len(self.suspects) < 2 else f"one of {len(self.suspects)} items ({names})"
        return f"{which} has blocked the event loop for {self.seconds:.0f} s, at {self.line}"


Release = Callable[[Hang], Awaitable[None]]
EndProcess = Callable[[int, str], None]


class LoopWatchdog:
    """Watches the loop it is started on. `hang_timeout`: seconds of silence after which the process is given up.

    `running` names what is worked on; `release` gives back what is held, in another thread and on another loop.
    `end_process` is set before the start by whoever owns the process. Without it the process stays, and only `is_alive`
    says that it hangs.
    """

    def __init__(
        self,
        *,
        hang_timeout: float,
        drain: float,
        log: Log,
        running: Callable[[], Sequence[RunningItem]],
        release: Release,
    ) -> None:
        self._hang_timeout = hang_timeout
        self._drain = drain
        self._log = log
        self._running = running
        self._release = release
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
        self._wake_read, self._wake_write = -1, -1
        self.end_process: EndProcess | None = None

    @property
    def is_alive(self) -> bool:
        """Whether the loop has moved within its bound."""
        return self._stalled_seconds < self._hang_timeout

    def start(self) -> None:
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        if self.end_process is not None and threading.current_thread() is threading.main_thread():
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

    def _install_wakeup_fd(self) -> None:
        """Requests to stop are heard here too: Python's own handlers wait while the main thread is inside a library.

        Code that keeps every thread of Python from running, such as a regular expression without end, also stops this
        watch. Then the system ends the process by SIGPROF, after as many seconds of processor time as the bound says,
        and Python writes where it was.
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
        seen, looked = self._ticks, time.monotonic()
        while not self._stopped:
            self._wait_for_signals(TICK_SECONDS)
            if self._backstop:
                signal.setitimer(signal.ITIMER_PROF, self._hang_timeout)
            now = time.monotonic()
            # A process that was stopped or asleep has not been silent, so each look counts for little.
            passed, looked = min(now - looked, 2 * TICK_SECONDS), now
            if self._ticks != seen:
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
                "a handler blocks the event loop; nothing else of this process can run",
                seconds=round(self._stalled_seconds, 1),
                at=hang.line,
                item=", ".join(item.name for item in hang.suspects[:5]),
            )
        grace = GRACE_SECONDS + (self._drain if self._stop_requests == 1 else 0.0)
        stopped = self._stop_requests > 0 and self._stalled_seconds - self._stalled_at_stop_request >= grace
        if (stopped or not self.is_alive) and self.end_process is not None:
            self._end(self._describe_hang(stopped=stopped), self.end_process)

    def _end(self, hang: Hang, end_process: EndProcess) -> None:
        self._log.error("the event loop hangs; this process ends itself", why=str(hang))
        with contextlib.suppress(Exception):  # what cannot be given back now is free when the lease ends
            asyncio.run(asyncio.wait_for(_awaited(self._release(hang)), RELEASE_SECONDS))
        end_process(EXIT_INTERRUPTED if hang.stopped else EXIT_HUNG, str(hang))

    def _wait_for_signals(self, seconds: float) -> None:
        """Wait, and note requests to stop that come meanwhile."""
        ready, _, _ = select.select([self._wake_read], [], [], seconds)
        if not ready:
            return
        numbers = os.read(self._wake_read, 4096)
        if (forward := self._previous_wakeup_fd) >= 0:
            with contextlib.suppress(OSError):
                os.write(forward, numbers)
        asked = sum(number in (signal.SIGINT, signal.SIGTERM) for number in numbers)
        if asked:
            self._stop_requests += asked
            self._stalled_at_stop_request = self._stalled_seconds

    def _describe_hang(self, *, stopped: bool) -> Hang:
        current = asyncio.current_task(self._loop)
        running = list(self._running())
        suspects = [item for item in running if item.task is current] or running
        return Hang(self._stalled_seconds, self._blocking_line(), tuple(suspects), stopped)

    def _blocking_line(self) -> str:
        """Where the loop's thread is: the innermost line outside of Python's and Shoal's own code."""
        frame = sys._current_frames().get(self._loop_thread)
        if frame is None:
            return "an unknown line"
        stack = traceback.extract_stack(frame)
        own = [entry for entry in stack if not is_library_code(entry.filename)] or stack[-1:]
        return f"{Path(own[-1].filename).name}:{own[-1].lineno} in {own[-1].name}"


def _can_use_backstop() -> bool:
    """Whether nobody else uses the signal and its timer, and there is somewhere to write to."""
    if signal.getsignal(signal.SIGPROF) is not signal.SIG_DFL or signal.getitimer(signal.ITIMER_PROF)[0]:
        return False
    try:
        return sys.stderr.fileno() >= 0
    except (AttributeError, OSError, ValueError):
        return False


async def _awaited(work: Awaitable[None]) -> None:
    await work
