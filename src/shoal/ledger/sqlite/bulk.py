"""The steps of moves of many items on SQLite."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from shoal.ledger.bulk import BulkMoves, Place
from shoal.ledger.sqlite.database import Database
from shoal.ledger.sqlite.idle import settle_lanes
from shoal.ledger.sqlite.orders import cancel_open_items
from shoal.ledger.sqlite.removal import purge


class SqliteBulk(BulkMoves):
    def __init__(self, db: Database, queries: Mapping[str, str]) -> None:
        super().__init__(db, queries)
        self._db = db

    async def _cancel(self, run_no: int, reason: str | None, place: Place | None) -> tuple[int, Place | None]:
        return await self._db.write(partial(cancel_open_items, no=run_no, reason=reason, place=place))

    async def _purge(self, run_no: int, place: Place | None) -> tuple[int, Place | None]:
        deleted = await self._db.write(partial(purge, no=run_no))
        return deleted, (0,) if deleted else None

    async def _settle(self, run_no: int) -> bool:
        return await self._db.write(partial(settle_lanes, no=run_no))
