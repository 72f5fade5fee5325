"""What the parts of a worker share: the leases it holds, and the events that wake them.

What the parts of a worker tell each other: there is room, something moved, it is over.

What a worker holds: leases it answers for, and the few items that wait for a slot.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence

from shoal.model.item import ClaimedItem, Lease
from shoal.worker.options import StopReason


class WorkerEvents:
    """`items_wanted`: slots want more items. `work_changed`: something was committed or started, so a claim may now
    find work. `stopping`: no more claims. `stop_immediately`: do not even wait for what runs.
    """

    def __init__(self) -> None:
        self.items_wanted = asyncio.Event()
        self.work_changed = asyncio.Event()
        self.stopping = asyncio.Event()
        self.stop_immediately = asyncio.Event()
        self.stop_reason: StopReason | None = None

    def wake_all(self) -> None:
        """Whoever sleeps should look around."""
        self.items_wanted.set()
        self.work_changed.set()

    def stop(self, why: StopReason) -> None:
        """Order the end; the first to do so says why."""
        if self.stop_reason is None:
            self.stop_reason = why
            self.stopping.set()
            self.wake_all()


class LeaseBuffer:
    """`leases` has every lease from its claim until it is committed or given back.

    A lease that was taken away may come back as another lease of the same item while the old attempt still runs, so
    nothing here goes by the item alone.
    """

    def __init__(self) -> None:
        self.leases: set[Lease] = set()
        self._buffer: asyncio.Queue[tuple[ClaimedItem, float]] = asyncio.Queue()

    @property
    def buffered(self) -> int:
        return self._buffer.qsize()

    def add_claimed(self, claimed: Sequence[ClaimedItem]) -> None:
        now = time.monotonic()
        for item in claimed:
            self.leases.add(item.lease)
            self._buffer.put_nowait((item, now))

    async def next(self) -> tuple[ClaimedItem, float]:
        """An item to work on, and when it was claimed."""
        return await self._buffer.get()

    def drop(self, leases: Iterable[Lease]) -> None:
        self.leases.difference_update(leases)

    def pop_unstarted(self, *, keep: int = 0) -> list[Lease]:
        """The leases of what nobody has begun, but for the first few; it is up to the caller to give them back."""
        buffered = [self._buffer.get_nowait() for _ in range(self._buffer.qsize())]
        for entry in buffered[:keep]:
            self._buffer.put_nowait(entry)
        return [claimed.lease for claimed, _ in buffered[keep:]]
