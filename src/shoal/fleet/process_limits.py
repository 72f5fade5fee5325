"""Limits of a child process: total time, time without progress, memory."""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import Awaitable, Callable

import msgspec

from shoal.fleet.process import ChildProcess

POLL_SECONDS = 0.5
PROGRESS_POLL_SECONDS = 2.0
_MEGABYTE = 1 << 20


class ProcessLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds that it may take, seconds that it may go without progress, megabytes that it may use."""

    timeout: float
    stale: float
    memory: int


class ProcessExit(msgspec.Struct, frozen=True, kw_only=True):
    """`code`: the exit code, negative for a signal. `limit`: which limit was exceeded, if one was."""

    code: int
    limit: str | None = None


async def wait_within_limits(
    child: ChildProcess,
    limits: ProcessLimits,
    memory: SessionMemory,
    seconds_without_progress: Callable[[], Awaitable[float | None]],
) -> ProcessExit:
    """Wait for its end; a child that exceeds a limit is stopped, one that uses too much memory is killed at once.

    `seconds_without_progress` returns None while the child has no run. Cancelling leaves the child alone.
    """
    began = asked_at = time.monotonic()
    exceeded: str | None = None
    ending = asyncio.create_task(child.wait())
    try:
        while not ending.done():
            await asyncio.wait((ending,), timeout=POLL_SECONDS)
            if exceeded is not None or ending.done():
                continue
            now = time.monotonic()
            if now - began > limits.timeout:
                exceeded = f"timed out after {limits.timeout:g} s"
            elif (used := await memory.used_by(child.pid) // _MEGABYTE) > limits.memory:
                exceeded = f"used {used} MB of memory, more than the {limits.memory} MB it may"
                child.kill()  # while it drained, it would go on growing
                continue
            elif now - began > limits.stale and now - asked_at > PROGRESS_POLL_SECONDS:
                asked_at = now
                quiet = await seconds_without_progress()
                if quiet is None or quiet > limits.stale:
                    exceeded = f"made no progress for {limits.stale:g} s"
            if exceeded is not None:
                child.stop()
        return ProcessExit(code=ending.result(), limit=exceeded)
    finally:
        ending.cancel()


class SessionMemory:
    """Memory by process session. One reading of the process table serves everybody who asks within half a second."""

    def __init__(self) -> None:
        self._used: dict[int, int] = {}
        self._read_at = -math.inf
        self._reading: asyncio.Task[None] | None = None

    async def used_by(self, session: int) -> int:
        """Bytes that the processes of a session hold together; 0 where the system has no /proc."""
        if time.monotonic() - self._read_at >= POLL_SECONDS:
            if self._reading is None or self._reading.done():
                self._reading = asyncio.create_task(self._read())
            await asyncio.shield(self._reading)
        return self._used.get(session, 0)

    async def _read(self) -> None:
        # Reading the table takes milliseconds, more on a machine with many processes: too long for the event loop.
        self._used = await asyncio.to_thread(memory_by_session)
        self._read_at = time.monotonic()


def memory_by_session() -> dict[int, int]:
    """Bytes of memory by session, of all processes of this machine; empty where the system has no /proc."""
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
            continue  # it has ended meanwhile
        session = int(fields[3])
        pages[session] = pages.get(session, 0) + int(fields[21])
    page = os.sysconf("SC_PAGE_SIZE")
    return {session: count * page for session, count in pages.items()}
