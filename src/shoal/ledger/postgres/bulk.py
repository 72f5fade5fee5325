"""Changes of very many items on PostgreSQL, in bounded steps.

Runs that nobody serves while others are worked on make room in the lanes that all share.

The steps of moves of many items on PostgreSQL.
"""

from __future__ import annotations

from collections.abc import Mapping

from shoal.ledger.postgres.database import PostgresDatabase
from shoal.ledger.runs import LANE_WORK_SECONDS, BaseBulk, BulkCursor

# A step holds the run and the lanes of its items for some tens of milliseconds.
CANCEL_BATCH = 2_000
LANES_BATCH = 2_000
PURGE_BATCH = 5_000


async def update_idle_runs(db: PostgresDatabase, queries: Mapping[str, str]) -> None:
    """Runs that nobody serves give up their places, and those that somebody serves again come back.

    Which runs those are is noted first. What it means for their lanes is begun with here and gone on with by anybody.
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
        more: bool = await self._db.value(self._sql["settle_lanes"], run_no, LANES_BATCH)
        return more
