"""Changes of many items on PostgreSQL, in bounded steps: cancel, retry, release, removal, and lane work."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from shoal.ledger.bulk import LANE_WORK_SECONDS, BaseBulk, BaseSteering, BulkCursor
from shoal.ledger.catalog import Catalog
from shoal.ledger.postgres.database import PostgresDatabase
from shoal.ledger.protocols import Reads

# A step locks the run and the lanes of its items for some tens of milliseconds.
CANCEL_BATCH = 2_000
LANES_BATCH = 2_000
PURGE_BATCH = 5_000
RELEASE_BATCH = 1_000


async def update_idle_runs(db: PostgresDatabase, queries: Mapping[str, str]) -> None:
    """Mark runs that no worker serves as idle, and the others as not idle, and begin the lane work that follows.

    The upkeep of any worker continues it.
    """
    changed = await db.fetch(queries["idle_changes"])
    for row in changed:
        await db.fetch(queries["set_idle"], row["run_no"], row["now_idle"])
    for row in changed:
        await PostgresBulk(db, queries).apply_lane_work(row["run_no"], seconds=LANE_WORK_SECONDS / len(changed))


class PostgresBulk(BaseBulk):
    def __init__(self, db: PostgresDatabase, queries: Mapping[str, str]) -> None:
        super().__init__(db, queries)
        self._db = db

    async def _cancel(
        self, run_no: int, reason: str | None, cursor: BulkCursor | None
    ) -> tuple[int, BulkCursor | None]:
        row = await self._db.row(self._sql["cancel_open_items"], run_no, reason, CANCEL_BATCH, cursor)
        return row["ended"], row["place"]

    async def _purge(self, run_no: int, cursor: BulkCursor | None) -> tuple[int, BulkCursor | None]:
        return PURGE_BATCH, await self._db.value(self._sql["purge"], run_no, PURGE_BATCH, cursor)

    async def _apply_lane_work(self, run_no: int) -> bool:
        more: bool = await self._db.value(self._sql["apply_lane_work"], run_no, LANES_BATCH)
        return more


class PostgresSteering(BaseSteering):
    def __init__(self, db: PostgresDatabase, queries: Mapping[str, str], catalog: Catalog, reads: Reads) -> None:
        super().__init__(catalog, reads)
        self._db = db
        self._sql = queries

    async def _release(self, older_than: float, run_no: int | None, reason: str) -> int:
        found = await self._db.fetch(self._sql["leases_older_than"], older_than, run_no)
        released = 0
        for at in range(0, len(found), RELEASE_BATCH):
            items, epochs = zip(*found[at : at + RELEASE_BATCH], strict=True)
            row = await self._db.row(self._sql["unlease"], list(items), list(epochs), "released", reason)
            released += row["back"]
        return released

    async def _retry(self, run_no: int, items: list[int]) -> int:
        retried: int = await self._db.value(self._sql["retry_items"], run_no, items)
        return retried

    async def _cancel(self, run_no: int, items: list[int], reason: str) -> int:
        ended: int = await self._db.value(self._sql["cancel_items"], run_no, items, reason)
        return ended

    async def _record_event(
        self, run_no: int | None, by: str, action: str, subject: str, detail: dict[str, Any]
    ) -> None:
        text = msgspec.json.encode(detail).decode()
        await self._db.fetch(self._sql["insert_event"], run_no, by, action, subject, text)
