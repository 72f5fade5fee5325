"""The steps of moves of many items on PostgreSQL."""

from __future__ import annotations

from collections.abc import Mapping

from shoal.ledger.bulk import BulkMoves, Place
from shoal.ledger.postgres.database import Database

# A step holds the run and the lanes of its items for some tens of milliseconds.
CANCEL_AT_ONCE = 2_000
LANES_AT_ONCE = 2_000
PURGE_AT_ONCE = 5_000


class PostgresBulk(BulkMoves):
    def __init__(self, db: Database, queries: Mapping[str, str]) -> None:
        super().__init__(db, queries)
        self._db = db

    async def _cancel(self, run_no: int, reason: str | None, place: Place | None) -> tuple[int, Place | None]:
        row = await self._db.row(self._sql["cancel_open_items"], run_no, reason, CANCEL_AT_ONCE, place)
        return row["ended"], row["place"]

    async def _purge(self, run_no: int, place: Place | None) -> tuple[int, Place | None]:
        return PURGE_AT_ONCE, await self._db.value(self._sql["purge"], run_no, PURGE_AT_ONCE, place)

    async def _settle(self, run_no: int) -> bool:
        more: bool = await self._db.value(self._sql["settle_lanes"], run_no, LANES_AT_ONCE)
        return more
