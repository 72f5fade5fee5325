"""Lanes and orders on SQLite."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shoal.ledger.catalog import Catalog
from shoal.ledger.lanes import Delay, SqlLanes
from shoal.ledger.protocols import Reads
from shoal.ledger.sqlite.admit import admit_to
from shoal.ledger.sqlite.clock import MICRO, micros
from shoal.ledger.sqlite.database import Database
from shoal.ledger.sqlite.orders import STEP, cancel_items, retry_items
from shoal.ledger.sqlite.transaction import Transaction, json_text
from shoal.ledger.sqlite.unlease import release
from shoal.ledger.steering import FilteredSteering

# A turn that could not be given is asked for again after so many seconds: soon when an item may start any moment, later
# when others have reserved far ahead. So a block that is lifted does not leave the lane waiting for hours.
ASK_AGAIN = 0.05
RESERVED_AHEAD = 60.0
ASK_LATER = 10.0


class SqliteLanes(SqlLanes):
    def __init__(self, db: Database, queries: Mapping[str, str], catalog: Catalog) -> None:
        super().__init__(db, queries, catalog)
        self._db = db

    async def _set(
        self, run_no: int, key: str, limit: int | None, delay: Delay | None, paused: bool | None, by: str
    ) -> bool:
        delay_min, delay_max = (None, None) if delay is None else (float(delay[0]), float(delay[1]))
        told = {"limit": limit, "delay_min": delay_min, "delay_max": delay_max, "paused": paused}

        def work(tx: Transaction) -> bool:
            lane, was_paced = _find_lane(tx, run_no, key)
            if lane is None:
                return False
            tx.run("set_lane", lane, limit, delay_min, delay_max, paused)
            if delay is not None:
                tx.run("retime_lane", lane, was_paced, tx.now)
            _changed(tx, lane)
            detail = {name: value for name, value in told.items() if value is not None}
            tx.note(run_no or None, by, "lane.set", key, detail)
            return True

        return await self._db.write(work)

    async def _block(self, run_no: int, key: str, seconds: float, why: str, by: str) -> bool:
        def work(tx: Transaction) -> bool:
            lane, _ = _find_lane(tx, run_no, key)
            if lane is None:
                return False
            tx.run("block_lane", lane, *((tx.now + micros(seconds), why) if seconds > 0 else (None, None)))
            _changed(tx, lane)
            tx.note(run_no or None, by, "lane.blocked", key, {"seconds": seconds, "why": why})
            return True

        return await self._db.write(work)

    async def _slow(self, run_no: int, key: str, delay: float, why: str) -> bool:
        def work(tx: Transaction) -> bool:
            lane, was_paced = _find_lane(tx, run_no, key)
            if lane is None:
                return False
            if tx.run("slow_lane", lane, float(delay), why if delay > 0 else None):
                tx.run("retime_lane", lane, was_paced, tx.now)
                _changed(tx, lane)
                tx.note(run_no or None, "ledger", "lane.slowed", key, {"floor": delay, "why": why})
            return True

        return await self._db.write(work)

    async def _turn(self, run_no: int, key: str, slack: float) -> float:
        # Most lanes keep no distance: looking is enough, and nobody waits for the lock.
        for lane in await self._db.fetch(self._sql["lane_starts"], run_no, key):
            if lane["delay_max"] > 0:
                return await self._db.write(lambda tx: turn(tx, run_no, key, slack))
            seconds: float = max(0.0, (lane["free_at"] - lane["now"]) / MICRO)
            return seconds
        return 0.0


def turn(tx: Transaction, run_no: int, key: str, slack: float) -> float:
    """Reserve the next start of the lane: seconds until then; below 0 when nothing was reserved."""
    found = tx.rows("lane_starts", run_no, key)
    if not found:
        return 0.0
    lane = found[0]
    starts_at: int = max(tx.now, lane["free_at"])
    delay_max: float = lane["delay_max"]
    wait = (starts_at - tx.now) / MICRO
    if delay_max == 0:
        return wait
    if lane["starting"]:
        return -ASK_AGAIN
    too_early = wait - delay_max - RESERVED_AHEAD
    if too_early > 0:
        return -min(too_early, ASK_LATER)
    tx.run("take_turn", lane["id"], starts_at, micros(slack))
    tx.run("retime_delayed", lane["id"], tx.now)
    return wait


def _find_lane(tx: Transaction, run_no: int, key: str) -> tuple[int | None, bool]:
    """The lane's id, and whether it keeps a distance. A shared lane is made if need be."""
    if run_no == 0:
        tx.run("make_shared_lane", key)
    for lane, paced in tx.rows("lane_facts", run_no, key):
        return lane, bool(paced)
    return None, False


def _changed(tx: Transaction, lane: int) -> None:
    tx.run("retime_delayed", lane, tx.now)
    admit_to(tx, json_text([lane]))
    tx.wakes = True


class SqliteSteering(FilteredSteering):
    def __init__(self, db: Database, catalog: Catalog, reads: Reads) -> None:
        super().__init__(catalog, reads)
        self._db = db

    async def _release(self, older_than: float, run_no: int | None, reason: str) -> int:
        claimed_until = await self._db.write(lambda tx: tx.now - micros(older_than))
        released = 0
        while back := await self._db.write(lambda tx: release(tx, claimed_until, run_no, reason, STEP)):
            released += back
        return released

    async def _retry(self, run_no: int, items: list[int]) -> int:
        return await self._db.write(lambda tx: retry_items(tx, run_no, json_text(items)))

    async def _cancel(self, run_no: int, items: list[int], reason: str) -> int:
        return await self._db.write(lambda tx: cancel_items(tx, run_no, json_text(items), reason))

    async def _note(self, run_no: int | None, by: str, action: str, subject: str, detail: dict[str, Any]) -> None:
        await self._db.write(lambda tx: tx.note(run_no, by, action, subject, detail))
