"""Moves of many items, on either ledger: step by step, each step a short transaction, gone on with by anybody.

What is to be done stands in the ledger before the first step: a cancelled run that has open items, a removed run, the
lane_work of a run. So nothing is lost when whoever gave the order dies: any worker's upkeep, or the same order again,
goes on.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

from shoal.ledger.protocols import Told
from shoal.ledger.rows import Queryable

# How far a round through a run's rows has come; None: at its beginning, or at its end.
Place = Sequence[int]
HasTime = Callable[[], bool]
SETTLE_SECONDS = 0.5


def _always() -> bool:
    return True


class BulkMoves(ABC):
    """`has_time` is asked before each further step; False ends the move, to be gone on with later."""

    def __init__(self, queryable: Queryable, queries: Mapping[str, str]) -> None:
        self._queryable = queryable
        self._sql = queries

    @abstractmethod
    async def _cancel(self, run_no: int, reason: str | None, place: Place | None) -> tuple[int, Place | None]:
        """End some open items: how many, and how far it has come."""

    @abstractmethod
    async def _purge(self, run_no: int, place: Place | None) -> tuple[int, Place | None]:
        """Delete some rows of a run that has no open items: how many, about, and how far it has come."""

    @abstractmethod
    async def _settle(self, run_no: int) -> bool:
        """Do something to a run's lanes, if there is need; True: there is more to do now."""

    async def cancel_open_items(
        self, run_no: int, reason: str | None, *, told: Told = int, has_time: HasTime = _always
    ) -> int:
        """End what is open of a cancelled run, or, without a reason, drop what is open of a removed one.

        `told` hears how many items are done with so far.
        """
        ended = 0
        while True:
            before, place = ended, None
            while True:
                in_this_step, place = await self._cancel(run_no, reason, place)
                ended += in_this_step
                told(ended)
                if place is None or not has_time():
                    break
            # What came due meanwhile may have got past us: then there is another round.
            if place is not None or ended == before or not await self._open_items_left(run_no):
                return ended

    async def purge(self, run_no: int, *, told: Told = int, has_time: HasTime = _always) -> None:
        """Delete a removed run."""
        ended = await self.cancel_open_items(run_no, None, told=told, has_time=has_time)
        place: Place | None = None
        while has_time():
            in_this_step, place = await self._purge(run_no, place)
            if place is None:
                return
            ended += in_this_step
            told(ended)

    async def settle_lanes(self, run_no: int, *, seconds: float = SETTLE_SECONDS) -> None:
        """Do to a run's lanes what its state asks for, as far as that is needed now and for so long.

        Nobody has to wait for the rest: claims go by the run's state.
        """
        until = time.monotonic() + seconds
        while await self._settle(run_no) and time.monotonic() < until:
            pass

    async def go_on(self, has_time: HasTime) -> None:
        """Go on with whatever somebody has left."""
        for row in await self._queryable.fetch(self._sql["half_cancelled_runs"]):
            await self.cancel_open_items(row["no"], "The run was cancelled.", has_time=has_time)
        for row in await self._queryable.fetch(self._sql["runs_with_lane_work"]):
            while await self._settle(row["no"]) and has_time():
                pass
        for row in await self._queryable.fetch(self._sql["removed_runs"]):
            await self.purge(row["no"], has_time=has_time)

    async def _open_items_left(self, run_no: int) -> bool:
        return bool(await self._queryable.value(self._sql["open_items_left"], run_no))
