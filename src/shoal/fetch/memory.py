"""Limits the memory that the pages of a process take at once: their bodies, and their parsed trees by estimate."""

from __future__ import annotations

import asyncio
from collections import deque
from contextvars import ContextVar
from typing import TYPE_CHECKING

from shoal.fetch.body import GZIP_MAGIC

if TYPE_CHECKING:
    from shoal.fetch.page import Page

DEFAULT_BUDGET = 1 << 30
# Body, text and tree of markup or JSON, per byte of the body: 16 pages of 30 MB took 9.9 GB.
_PARSED_FACTOR = 20
_UNPARSED_FACTOR = 2
_PARSED_TYPES = ("html", "xml", "json", "text/plain")
# A compressed sitemap is decompressed up to this size.
_MAX_INFLATED = 50 << 20

_share: ContextVar[MemoryShare | None] = ContextVar("memory share", default=None)


class MemoryBudget:
    """Bytes that all attempts of a process share.

    An attempt that needs more than is left waits. The oldest attempt never waits: this excludes deadlocks, and lets a
    page that is larger than the whole budget pass alone.
    """

    def __init__(self, limit: int = DEFAULT_BUDGET) -> None:
        self.limit = limit
        self.used = 0
        self._shares: dict[MemoryShare, None] = {}
        self._waiting: deque[tuple[MemoryShare, int, asyncio.Future[None]]] = deque()

    def open_share(self, deadline: asyncio.Timeout | None = None) -> MemoryShare:
        """The share of the attempt that runs in this task and its children; `deadline` is suspended while it waits."""
        share = MemoryShare(self, deadline)
        _share.set(share)
        return share

    async def acquire(self, share: MemoryShare, size: int) -> None:
        self._shares.setdefault(share)
        if not self._try_acquire(share, size):
            granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            entry = (share, size, granted)
            self._waiting.append(entry)
            try:
                await granted
            except BaseException:
                if entry in self._waiting:
                    self._waiting.remove(entry)
                raise

    def release(self, size: int) -> None:
        self.used -= size
        if self._waiting:
            self._wake_waiters()

    def close(self, share: MemoryShare) -> None:
        self._shares.pop(share, None)
        self.release(share.held)

    def _try_acquire(self, share: MemoryShare, size: int) -> bool:
        if self.used + size > self.limit and share is not next(iter(self._shares)):
            return False
        self.used += size
        share.held += size
        return True

    def _wake_waiters(self) -> None:
        for entry in list(self._waiting):
            share, size, granted = entry
            if granted.done():
                self._waiting.remove(entry)
            elif self._try_acquire(share, size):
                self._waiting.remove(entry)
                granted.set_result(None)


class MemoryShare:
    """The memory of one attempt. Closed at its end, even if its pages are still referenced."""

    __slots__ = ("_budget", "_deadline", "_loop", "held", "is_closed")

    def __init__(self, budget: MemoryBudget, deadline: asyncio.Timeout | None) -> None:
        self._budget = budget
        self._deadline = deadline
        self._loop = asyncio.get_running_loop()
        self.held = 0
        self.is_closed = False

    async def acquire(self, size: int) -> None:
        """Reserve bytes. The deadline of the item is suspended while it waits for other attempts."""
        if self.is_closed:
            return
        deadline = self._deadline
        ends_at = None if deadline is None else deadline.when()
        started = self._loop.time()
        if deadline is not None and ends_at is not None and self._budget.used + size > self._budget.limit:
            deadline.reschedule(None)
        try:
            await self._budget.acquire(self, size)
        finally:
            if deadline is not None and ends_at is not None and deadline.when() is None:
                deadline.reschedule(ends_at + self._loop.time() - started)

    def release(self, size: int) -> None:
        """May be called from any thread."""
        if not self.is_closed:
            self._loop.call_soon_threadsafe(self._release, size)

    def _release(self, size: int) -> None:
        if not self.is_closed:
            self.held -= size
            self._budget.release(size)

    def close(self) -> None:
        self.is_closed = True
        self._budget.close(self)


class Reservation:
    """The memory of one page, released when the page is garbage-collected or its attempt ends."""

    __slots__ = ("_share", "_size")

    def __init__(self, share: MemoryShare) -> None:
        self._share = share
        self._size = 0

    async def reserve(self, body_size: int, content_type: str, *, beginning: bytes = b"") -> None:
        """Reserve for a body of this size, in place of what was reserved before."""
        parsed = any(name in content_type for name in _PARSED_TYPES) or not content_type
        size = body_size * (_PARSED_FACTOR if parsed else _UNPARSED_FACTOR)
        if beginning.startswith(GZIP_MAGIC):
            size = max(size, _MAX_INFLATED)
        if size > self._size:
            await self._share.acquire(size - self._size)
            self._size = size

    def __del__(self) -> None:
        if self._size:
            self._share.release(self._size)


def reservation() -> Reservation | None:
    """A reservation for the next page of the current attempt; None outside of an attempt."""
    share = _share.get()
    return None if share is None else Reservation(share)


async def reserve_page_memory(page: Page) -> Page:
    """Reserve the memory of a page that did not come over the network."""
    held = reservation()
    if held is not None:
        await held.reserve(len(page.body), page.content_type, beginning=page.body[:2])
        page._memory = held
    return page
