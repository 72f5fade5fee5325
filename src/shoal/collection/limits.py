"""A member's process under its limits: so long, so long without progress, so much memory."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import time
from collections.abc import Awaitable, Callable

import msgspec

from shoal.fleet.child import Child

LOOK_SECONDS = 0.5
PROGRESS_SECONDS = 2.0
_MEGABYTE = 1 << 20


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds that it may take, seconds that it may be without progress, megabytes that it may use.

    `patience`: seconds that it gets to leave by itself once it is told to.
    """

    timeout: float
    stale: float
    memory: int
    patience: float


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """`code`: its exit code, less than 0 for a signal. `why`: the limit that ended it, if one did."""

    code: int
    why: str | None = None


async def watch(
    child: Child, limits: Limits, memory: Memory, quiet_seconds: Callable[[], Awaitable[float | None]]
) -> Ended:
    """Until the process has ended, by itself or because a limit was passed.

    `quiet_seconds` says how long its run has made no progress, None while that is unknown.
    """
    began = asked_at = time.monotonic()
    why: str | None = None
    kill_at = float("inf")
    ending = asyncio.create_task(child.wait())
    try:
        while not ending.done():
            await asyncio.wait((ending,), timeout=LOOK_SECONDS)
            now = time.monotonic()
            if now >= kill_at:
                child.kill()
            if why is not None or ending.done():
                continue
            if now - began > limits.timeout:
                why = f"timed out after {limits.timeout:g} s"
            elif (used := await memory.of(child.pid) // _MEGABYTE) > limits.memory:
                why = f"used {used} MB of memory, more than the {limits.memory} MB it may"
                kill_at = now  # asked to leave, it would go on growing
            elif now - began > limits.stale and now - asked_at > PROGRESS_SECONDS:
                asked_at = now
                quiet = await quiet_seconds()
                if quiet is None or quiet > limits.stale:
                    why = f"made no progress for {limits.stale:g} s"
            if why is not None and kill_at > now:
                child.tell(signal.SIGTERM)
                kill_at = now + limits.patience
            elif why is not None:
                child.kill()
        return Ended(code=ending.result(), why=why)
    finally:
        ending.cancel()


class Memory:
    """How much memory sessions of processes hold. One look at the system's table of processes serves all who ask."""

    def __init__(self) -> None:
        self._used: dict[int, int] = {}
        self._looked_at = -math.inf
        self._looking: asyncio.Task[None] | None = None

    async def of(self, session: int) -> int:
        """Bytes that the processes of a session hold together, half a second ago at most. 0 where nobody tells."""
        if time.monotonic() - self._looked_at >= LOOK_SECONDS:
            if self._looking is None or self._looking.done():
                self._looking = asyncio.create_task(self._look())
            await asyncio.shield(self._looking)
        return self._used.get(session, 0)

    async def _look(self) -> None:
        # Reading the table takes milliseconds, more on a machine with many processes: too long for the event loop.
        self._used = await asyncio.to_thread(resident)
        self._looked_at = time.monotonic()


def resident() -> dict[int, int]:
    """Bytes of memory by session, of all processes of this machine. Empty where the system does not tell."""
    pages: dict[int, int] = {}
    try:
        names = [name for name in os.listdir("/proc") if name.isdecimal()]
    except OSError:
        return {}
    for name in names:
        try:
            with open(f"/proc/{name}/stat", "rb", buffering=0) as file:
                fields = file.read(4096).rpartition(b")")[2].split()
        except OSError:
            continue  # it ended meanwhile
        session = int(fields[3])
        pages[session] = pages.get(session, 0) + int(fields[21])
    page = os.sysconf("SC_PAGE_SIZE")
    return {session: count * page for session, count in pages.items()}
