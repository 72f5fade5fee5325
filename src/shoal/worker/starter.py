"""Telling the ledger that requests have left, in batches. It times the next start of lanes with a delay."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from shoal.model.item import Lease

Started = Callable[[Sequence[Lease]], Awaitable[None]]


class Starter:
    def __init__(self) -> None:
        self._started: Started | None = None
        self._noted: list[Lease] = []
        self._some = asyncio.Event()

    def tells(self, started: Started) -> None:
        """Whom to tell."""
        self._started = started

    def note(self, lease: Lease) -> None:
        """The request of this lease has just left."""
        self._noted.append(lease)
        self._some.set()

    async def run(self) -> None:
        """Tell for ever; raises what the ledger raises."""
        while True:
            await self._some.wait()
            self._some.clear()
            noted, self._noted = self._noted, []
            if self._started is not None:
                await self._started(noted)
