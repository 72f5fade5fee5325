"""What the parts of a worker tell each other: there is room, something moved, it is over."""

from __future__ import annotations

import asyncio

from shoal.worker.options import Ending


class Signs:
    """`hungry`: slots want more items. `moved`: something was committed or started, so a claim may now find work.
    `end`: no more claims. `now`: do not even wait for what runs.
    """

    def __init__(self) -> None:
        self.hungry = asyncio.Event()
        self.moved = asyncio.Event()
        self.end = asyncio.Event()
        self.now = asyncio.Event()
        self.ending: Ending | None = None

    def wake(self) -> None:
        """Whoever sleeps should look around."""
        self.hungry.set()
        self.moved.set()

    def finish(self, why: Ending) -> None:
        """Order the end; the first to do so says why."""
        if self.ending is None:
            self.ending = why
            self.end.set()
            self.wake()
