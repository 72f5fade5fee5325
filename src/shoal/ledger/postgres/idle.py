"""Runs that nobody serves while others are worked on make room in the lanes that all share."""

from __future__ import annotations

from collections.abc import Mapping

from shoal.ledger.postgres.database import Database


async def settle_idle(db: Database, queries: Mapping[str, str]) -> None:
    """Runs that nobody serves give up their places, and those that somebody serves again come back.

    One after another: together they would take the lanes' locks in any order.
    """
    for row in await db.fetch(queries["idle_changes"]):
        await db.fetch(queries["set_idle"], row["run_no"], row["now_idle"])
