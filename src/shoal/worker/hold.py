"""What a worker holds: leases it answers for, and the few items that wait for a slot."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence

from shoal.model.item import Claimed, Lease


class Hold:
    """`leases` has every lease from its claim until it is committed or given back.

    A lease that was taken away may come back as another lease of the same item while the old attempt still runs, so
    nothing here goes by the item alone.
    """

    def __init__(self) -> None:
        self.leases: set[Lease] = set()
        self._buffer: asyncio.Queue[tuple[Claimed, float]] = asyncio.Queue()

    @property
    def buffered(self) -> int:
        return self._buffer.qsize()

    def take_in(self, claimed: Sequence[Claimed]) -> None:
        now = time.monotonic()
        for item in claimed:
            self.leases.add(item.lease)
            self._buffer.put_nowait((item, now))

    async def next(self) -> tuple[Claimed, float]:
        """An item to work on, and when it was claimed."""
        return await self._buffer.get()

    def drop(self, leases: Iterable[Lease]) -> None:
        self.leases.difference_update(leases)

    def empty_buffer(self) -> list[Lease]:
        """The leases of what nobody has begun; it is up to the caller to give them back."""
        leases = []
        while not self._buffer.empty():
            leases.append(self._buffer.get_nowait()[0].lease)
        return leases
