"""Runs that nobody serves while others are worked on make room in the lanes that all share."""

from __future__ import annotations

from collections.abc import Mapping

from shoal.ledger.bulk import SETTLE_SECONDS
from shoal.ledger.postgres.bulk import PostgresBulk
from shoal.ledger.postgres.database import Database


async def settle_idle(db: Database, queries: Mapping[str, str]) -> None:
    """Runs that nobody serves give up their places, and those that somebody serves again come back.

    Which runs those are is noted first. What it means for their lanes is begun with here and gone on with by anybody.
    """
    changed = await db.fetch(queries["idle_changes"])
    for row in changed:
        await db.fetch(queries["set_idle"], row["run_no"], row["now_idle"])
    for row in changed:
        await PostgresBulk(db, queries).settle_lanes(row["run_no"], seconds=SETTLE_SECONDS / len(changed))
