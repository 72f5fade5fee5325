"""Where lines go in the end, behind a queue with a thread of its own.

The queue is bounded: when the place takes lines more slowly than they come, the newest are dropped and counted. When
the place refuses a line, that is said once, and the next lines are tried all the same: a full disk may be emptied.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress

MOST_LINES = 20_000
CLOSE_SECONDS = 2.0


class Outlet:
    """`write` gets one or more whole lines at a time. `name` says in complaints what it is."""

    def __init__(self, write: Callable[[str], None], name: str, *, finish: Callable[[], None] | None = None) -> None:
        self._write = write
        self._name = name
        self._finish = finish
        self._lines: deque[str] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._dropped = 0
        self._complained = False
        self._thread = threading.Thread(target=self._work, name="shoal-log", daemon=True)
        self._thread.start()

    def put(self, line: str) -> None:
        with self._changed:
            if self._closing:
                return
            if len(self._lines) >= MOST_LINES:
                self._dropped += 1
                return
            self._lines.append(line)
            if len(self._lines) == 1:
                self._changed.notify()

    def close(self) -> None:
        """Write what waits, but do not wait long for it."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(CLOSE_SECONDS)

    def _work(self) -> None:
        while (text := self._next()) is not None:
            try:
                self._write(text)
            except Exception as error:
                if not self._complained:
                    self._complained = True
                    _say(f"Cannot write to {self._name}: {error}. The work goes on; lines are missing there.")
        if self._finish is not None:
            with suppress(Exception):
                self._finish()

    def _next(self) -> str | None:
        """All lines that wait, as one text; None when the log is closed and nothing waits."""
        with self._changed:
            while not self._lines and not self._closing:
                self._changed.wait()
            text = "".join(self._lines)
            self._lines.clear()
            dropped, self._dropped = self._dropped, 0
        if dropped:
            _say(f"{dropped} log lines were dropped: {self._name} takes them too slowly.")
        return text or None


def _say(text: str) -> None:
    """On stderr, if there is one; it may be the very pipe that broke."""
    with suppress(Exception):
        print(text, file=sys.stderr, flush=True)
