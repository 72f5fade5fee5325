"""Lanes and orders on SQLite."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shoal.ledger.catalog import Catalog
from shoal.ledger.lanes import Delay, SqlLanes
from shoal.ledger.protocols import Reads
from shoal.ledger.sqlite.admit import admit_to
from shoal.ledger.sqlite.clock import micros
from shoal.ledger.sqlite.database import Database
from shoal.ledger.sqlite.orders import cancel_items, retry_items
from shoal.ledger.sqlite.transaction import Transaction, json_text
from shoal.ledger.sqlite.unlease import release
from shoal.ledger.steering import FilteredSteering


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
            lane = _find_lane(tx, run_no, key)
            if lane is None:
                return False
            tx.run("set_lane", lane, limit, delay_min, delay_max, paused, tx.now)
            _changed(tx, lane)
            detail = {name: value for name, value in told.items() if value is not None}
            tx.note(run_no or None, by, "lane.set", key, detail)
            return True

        return await self._db.write(work)

    async def _block(self, run_no: int, key: str, seconds: float, why: str, by: str) -> bool:
        def work(tx: Transaction) -> bool:
            lane = _find_lane(tx, run_no, key)
            if lane is None:
                return False
            tx.run("block_lane", lane, *((tx.now + micros(seconds), why) if seconds > 0 else (None, None)))
            _changed(tx, lane)
            tx.note(run_no or None, by, "lane.blocked", key, {"seconds": seconds, "why": why})
            return True

        return await self._db.write(work)


def _find_lane(tx: Transaction, run_no: int, key: str) -> int | None:
    if run_no == 0:
        tx.run("make_shared_lane", key)
    lane: int | None = tx.value("lane_id", run_no, key)
    return lane


def _changed(tx: Transaction, lane: int) -> None:
    tx.run("recall_delayed", lane, tx.now)
    admit_to(tx, json_text([lane]))
    tx.wakes = True


class SqliteSteering(FilteredSteering):
    def __init__(self, db: Database, catalog: Catalog, reads: Reads) -> None:
        super().__init__(catalog, reads)
        self._db = db

    async def _release(self, older_than: float, run_no: int | None, reason: str) -> int:
        return await self._db.write(lambda tx: release(tx, older_than, run_no, reason))

    async def _retry(self, run_no: int, items: list[int]) -> int:
        return await self._db.write(lambda tx: retry_items(tx, run_no, json_text(items)))

    async def _cancel(self, run_no: int, items: list[int], reason: str) -> int:
        return await self._db.write(lambda tx: cancel_items(tx, run_no, json_text(items), reason))

    async def _note(self, run_no: int | None, by: str, action: str, subject: str, detail: dict[str, Any]) -> None:
        await self._db.write(lambda tx: tx.note(run_no, by, action, subject, detail))
