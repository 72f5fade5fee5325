"""Lanes that were closed after their items had been claimed."""

from __future__ import annotations

import time

from shoal.errors import NotFound
from shoal.ledger.protocols import Lanes
from shoal.worker.remembered import Remembered

# A look at a lane is good for so long.
LOOK_SECONDS = 0.1


class Barriers:
    """Which lanes must not be visited though their items were claimed before anybody knew.

    What this process hears it knows at once; what others heard it learns by looking at the lane before an item that
    has been waiting in the buffer is started.
    """

    def __init__(self, lanes: Lanes) -> None:
        self._lanes = lanes
        self._until = Remembered()
        self._looked_at = Remembered()

    def close(self, lane: str, seconds: float) -> None:
        """The site asked to wait."""
        self._until[lane] = time.monotonic() + seconds

    async def is_closed(self, lane: str, run_id: str | None, claimed_at: float) -> bool:
        now = time.monotonic()
        if now < self._until.get(lane, 0.0):
            return True
        if now - max(claimed_at, self._looked_at.get(lane, 0.0)) < LOOK_SECONDS:
            return False
        try:
            view = await self._lanes.get(lane, run_id=run_id)
        except NotFound:
            return False
        if view.paused or view.blocked_seconds > 0:
            self.close(lane, LOOK_SECONDS if view.paused else view.blocked_seconds)
            return True
        self._looked_at[lane] = now
        return False
