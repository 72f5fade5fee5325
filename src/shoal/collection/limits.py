"""A member's process under its limits: so long, so long without progress, so much memory."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

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


async def watch(child: Child, limits: Limits, quiet_seconds: Callable[[], Awaitable[float | None]]) -> Ended:
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
            elif (used := resident(child.pid) // _MEGABYTE) > limits.memory:
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


def resident(session: int) -> int:
    """Bytes of memory that the processes of a session hold together. 0 where the system does not tell."""
    pages = 0
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it ended meanwhile
        if int(fields[3]) == session:
            pages += int(fields[21])
    return pages * os.sysconf("SC_PAGE_SIZE")
