"""Places at hosts: how many requests of this process are under way there."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque

from shoal.define.policy import DEFAULT_PER_HOST
from shoal.errors import NotFound
from shoal.ledger.protocols import Lanes
from shoal.worker.remembered import Remembered


class Places:
    """How many requests of this process are under way per host, and how many may be.

    An item's own lane keeps the limit over all machines. Requests to other hosts than the item's (redirects, APIs) have
    no place there; they keep the limit of that host within this process, and the host's own items make room for them.
    """

    def __init__(self, lanes: Lanes | None) -> None:
        self._lanes = lanes
        self._inside: dict[str, int] = {}
        self._limits = Remembered()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    async def enter(self, host: str, *, foreign: bool, deadline: asyncio.Timeout | None) -> None:
        """Wait for a place. Only hosts that somebody visited from outside have a limit here."""
        if foreign and host not in self._limits:
            self._limits[host] = await self._limit(host)
        limit = self._limits.get(host)
        while limit is not None and self._inside.get(host, 0) >= limit:
            since = time.monotonic()
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            line = self._waiting.setdefault(host, deque())
            line.append(waiter)
            try:
                await waiter
            except BaseException:
                if waiter in line:
                    line.remove(waiter)
                else:
                    self._call_next(host)  # it was called, and cannot come
                raise
            extend(deadline, time.monotonic() - since)
        self._inside[host] = self._inside.get(host, 0) + 1

    def leave(self, host: str) -> None:
        left = self._inside[host] - 1
        if left:
            self._inside[host] = left
        else:
            del self._inside[host]
        self._call_next(host)

    def _call_next(self, host: str) -> None:
        line = self._waiting.get(host)
        while line:
            waiter = line.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        self._waiting.pop(host, None)

    async def _limit(self, host: str) -> float:
        if self._lanes is not None:
            with contextlib.suppress(NotFound):
                return (await self._lanes.get(host)).policy.limit
        return DEFAULT_PER_HOST


def extend(deadline: asyncio.Timeout | None, seconds: float) -> None:
    """Waiting for others is not the item's fault: its time is moved by as much."""
    if deadline is not None and (when := deadline.when()) is not None:
        deadline.reschedule(when + seconds)
