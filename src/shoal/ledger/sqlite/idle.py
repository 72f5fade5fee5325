"""Runs that are paused, or that nobody serves while others are worked on, make room in the lanes that all share.

What is to be done to a run's lanes is stored with it (lane_work), and done in steps by whoever comes by.
give: what it has let out goes back behind its lanes; put off as long as nobody else waits for a lane, because then
nothing has to be moved, nor let out again later. ask: it is active again, so its lanes are asked to let items out.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial

from shoal.ledger.bulk import SETTLE_SECONDS, Place
from shoal.ledger.sqlite.admit import admit, admit_to
from shoal.ledger.sqlite.database import Database
from shoal.ledger.sqlite.orders import STEP, rows_of_run
from shoal.ledger.sqlite.transaction import Transaction, decoded, json_text

_HELD = ("some_delayed", "some_ready")


async def settle_idle(db: Database, queries: Mapping[str, str]) -> None:
    """Runs that nobody serves give up their places, and those that somebody serves again come back.

    Which runs those are is noted first. What it means for their lanes is begun with here and gone on with by anybody.
    """
    if not await db.fetch(queries["idle_changes"]):
        return
    changed = await db.write(_note_idle)
    until = time.monotonic() + SETTLE_SECONDS
    for no in changed:
        while await db.write(partial(settle_lanes, no=no)) and time.monotonic() < until:
            pass


def _note_idle(tx: Transaction) -> list[int]:
    changed = [(row["no"], row["now_idle"]) for row in tx.rows("idle_changes")]
    for no, now_idle in changed:
        tx.run("set_idle", no, now_idle)
    return [no for no, _ in changed]


def settle_lanes(tx: Transaction, no: int) -> bool:
    """One step of what a run still has to do to its lanes; True: there is more to do now."""
    for work, text, others_wait in tx.rows("lane_work", no):
        place: Place | None = decoded(text) if text else None
        if work == "give" and others_wait:
            place = _give_up_places(tx, no, place)
        elif work == "ask":
            place = _ask_lanes(tx, no, place)
        else:
            return False
        tx.run("set_lane_work", no, work if place else None, json_text(place) if place else None)
        return place is not None
    return False


def _give_up_places(tx: Transaction, no: int, place: Place | None) -> Place | None:
    for found, after in rows_of_run(tx, no, _HELD, place):
        pick = "yield_pick_ready" if _HELD[after[0]] == "some_ready" else "yield_pick_delayed"
        if tx.run(pick, after[1], json_text(found)):
            tx.run("yield_leave_ready")
            tx.run("yield_leave_delayed")
            tx.run("yield_waiting", no, tx.now)
            tx.run("yield_lanes")
            tx.run("yield_touch")
            tx.run("yield_counts")
            tx.run("yield_end")
            admit(tx)
        return after
    return None


def _ask_lanes(tx: Transaction, no: int, place: Place | None) -> Place | None:
    last, lanes = tx.json("lanes_to_ask", no, place[0] if place else 0, STEP)
    if lanes:
        admit_to(tx, json_text(lanes))
        tx.wakes = True
    return None if last is None else (last,)
