"""A worker's place in a pool: which process has it, how often it was filled anew, and how it ended."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from enum import StrEnum

from shoal.fleet.child import Child


class Ended(StrEnum):
    """How a place came to be empty for good."""

    NO = "at work"
    LEFT = "nothing left to do"
    SENT_HOME = "stopped"
    GAVE_UP = "gave up"
    BROKEN = "its handler fails every time"


class Place:
    """`wanted`: somebody is to work here. `told`: the process that is here was asked to leave."""

    def __init__(self, number: int, partitions: tuple[str, ...]) -> None:
        self.number = number
        self.partitions = partitions
        self.wanted = True
        self.told = False
        self.restarts = 0
        self.pids: list[int] = []
        self.ended = Ended.NO
        self.changed = asyncio.Event()
        self._child: Child | None = None
        self._end: asyncio.TimerHandle | None = None

    @property
    def is_empty(self) -> bool:
        return self._child is None

    async def filled_by(self, child: Child) -> int:
        """Until the process has ended; returns its exit code."""
        self._child = child
        self.pids.append(child.pid)
        self.changed.set()
        try:
            return await child.wait()
        finally:
            self._child = None
            if self._end is not None:
                self._end.cancel()
            self.changed.set()

    def ask_to_leave(self, patience: float, tell: Callable[[str], None]) -> None:
        """Asked once, the worker finishes what runs; asked again, it gives that back; after `patience` it is killed."""
        self.changed.set()
        if self._child is None:
            return
        child, first = self._child, not self.told
        self.told = True
        # A worker counts both alike. Two of the same kind that come close together would reach it as one.
        child.tell(signal.SIGTERM if first else signal.SIGINT)
        if first:
            self._end = asyncio.get_running_loop().call_later(patience, self._kill, child, tell)

    def _kill(self, child: Child, tell: Callable[[str], None]) -> None:
        tell(f"Worker {self.number} does not leave and is killed.")
        child.tell(signal.SIGKILL)
