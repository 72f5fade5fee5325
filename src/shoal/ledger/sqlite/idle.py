"""Runs that are paused, or that nobody serves while others are worked on, make room in the lanes that all share."""

from __future__ import annotations

from collections.abc import Mapping

from shoal.ledger.sqlite.admit import admit, admit_to
from shoal.ledger.sqlite.database import Database
from shoal.ledger.sqlite.transaction import Transaction

LANES_AT_ONCE = 100_000


async def settle_idle(db: Database, queries: Mapping[str, str]) -> None:
    """Runs that nobody serves give up their places, and those that somebody serves again come back."""
    if await db.fetch(queries["idle_changes"]):
        await db.write(_settle)


def _settle(tx: Transaction) -> None:
    for no, now_idle in tx.rows("idle_changes"):
        tx.run("set_idle", no, now_idle)
        if now_idle:
            yield_lanes(tx, no)
        else:
            admit_to(tx, tx.value("lanes_with_room", LANES_AT_ONCE))


def yield_lanes(tx: Transaction, no: int) -> None:
    """A paused or idle run must not sit on places in lanes that others share: what it has let out goes back in line."""
    if tx.run("yield_pick_ready", no) + tx.run("yield_pick_delayed", no):
        tx.run("yield_leave_ready")
        tx.run("yield_leave_delayed")
        tx.run("yield_waiting", no, tx.now)
        tx.run("yield_lanes")
        tx.run("yield_touch")
        tx.run("yield_counts")
        tx.run("yield_end")
        admit(tx)
