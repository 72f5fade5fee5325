"""Lanes, settings and orders on SQLite."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from shoal.errors import InvalidSetting, NotFound
from shoal.ledger.bulk import change_matching, checked_for_cancel, checked_for_retry
from shoal.ledger.catalog import Catalog
from shoal.ledger.checks import check_lane_change
from shoal.ledger.protocols import Reads
from shoal.ledger.rows import lane_from
from shoal.ledger.sqlite.admit import admit_to
from shoal.ledger.sqlite.clock import micros
from shoal.ledger.sqlite.database import Database
from shoal.ledger.sqlite.orders import cancel_items, retry_items
from shoal.ledger.sqlite.transaction import Transaction, json_text
from shoal.ledger.sqlite.unlease import release
from shoal.model.item import MAX_NAME_BYTES
from shoal.model.jsontext import PAYLOAD_BYTES
from shoal.model.jsontext import json_text as checked_json
from shoal.model.lane import LaneView
from shoal.model.urlkey import check_text
from shoal.model.views import ItemFilter, Page


class SqliteLanes:
    def __init__(self, db: Database, queries: Mapping[str, str], catalog: Catalog) -> None:
        self._db = db
        self._sql = queries
        self._catalog = catalog

    async def get(self, key: str, *, run_id: str | None = None) -> LaneView:
        rows = await self._db.fetch(self._sql["get_lanes"], await self._run_no(run_id), key, None, 1)
        if not rows:
            raise NotFound(f"There is no lane {key!r}.", remedy="Lanes appear with their first item; check the name.")
        return lane_from(rows[0])

    async def list(self, *, run_id: str | None = None, cursor: str | None = None, limit: int = 50) -> Page[LaneView]:
        rows = await self._db.fetch(self._sql["get_lanes"], await self._run_no(run_id), None, cursor, limit)
        lanes = tuple(lane_from(row) for row in rows)
        return Page(lanes, lanes[-1].key if len(lanes) == limit else None)

    async def set(
        self,
        key: str,
        *,
        run_id: str | None = None,
        limit: int | None = None,
        delay: tuple[float, float] | None = None,
        paused: bool | None = None,
        by: str = "",
    ) -> LaneView:
        check_lane_change(key, limit, delay)
        run_no = await self._run_no(run_id)
        delay_min, delay_max = (None, None) if delay is None else (float(delay[0]), float(delay[1]))
        told = {"limit": limit, "delay_min": delay_min, "delay_max": delay_max, "paused": paused}

        def work(tx: Transaction) -> None:
            lane = _find_lane(tx, run_no, key, run_id)
            tx.run("set_lane", lane, limit, delay_min, delay_max, paused)
            _changed(tx, lane)
            detail = {name: value for name, value in told.items() if value is not None}
            tx.note(run_no or None, by, "lane.set", key, detail)

        await self._db.write(work)
        return await self.get(key, run_id=run_id)

    async def block(self, key: str, seconds: float, why: str, *, run_id: str | None = None, by: str = "") -> LaneView:
        check_lane_change(key, None, (0.0, seconds))
        run_no = await self._run_no(run_id)

        def work(tx: Transaction) -> None:
            lane = _find_lane(tx, run_no, key, run_id)
            tx.run("block_lane", lane, *((tx.now + micros(seconds), why) if seconds > 0 else (None, None)))
            _changed(tx, lane)
            tx.note(run_no or None, by, "lane.blocked", key, {"seconds": seconds, "why": why})

        await self._db.write(work)
        return await self.get(key, run_id=run_id)

    async def _run_no(self, run_id: str | None) -> int:
        return 0 if run_id is None else (await self._catalog.run(run_id)).no


def _find_lane(tx: Transaction, run_no: int, key: str, run_id: str | None) -> int:
    if run_no == 0:
        tx.run("make_shared_lane", key)
    lane: int | None = tx.value("lane_id", run_no, key)
    if lane is None:
        raise NotFound(f"There is no lane {key!r} in the run {run_id}.")
    return lane


def _changed(tx: Transaction, lane: int) -> None:
    admit_to(tx, json_text([lane]))
    tx.wakes = True


class SqliteSettings:
    def __init__(self, db: Database, queries: Mapping[str, str]) -> None:
        self._db = db
        self._sql = queries

    async def put(self, scope: str, value: Mapping[str, Any], *, by: str = "") -> int:
        check_text("scope", scope, MAX_NAME_BYTES)
        text = checked_json(value, "setting", PAYLOAD_BYTES, InvalidSetting)
        version: int = await self._db.value(self._sql["put_setting"], scope, text, by)
        return version

    async def get(self, scope: str) -> tuple[int, dict[str, Any]] | None:
        rows = await self._db.fetch(self._sql["get_setting"], scope)
        return (rows[0]["version"], msgspec.json.decode(rows[0]["value"])) if rows else None


class SqliteSteering:
    def __init__(self, db: Database, catalog: Catalog, reads: Reads) -> None:
        self._db = db
        self._catalog = catalog
        self._reads = reads

    async def release(self, *, older_than: float, run_id: str | None = None, by: str = "") -> int:
        if not older_than >= 0:
            raise InvalidSetting(f"older_than is {older_than!r}; it must be 0 or more seconds.")
        no = None if run_id is None else (await self._catalog.run(run_id)).no

        def work(tx: Transaction) -> int:
            released = release(tx, older_than, no, f"Released by {by or 'an operator'}.")
            tx.note(no, by, "leases.released", run_id or "all", {"older_than": older_than, "items": released})
            return released

        return await self._db.write(work)

    async def retry(self, run_id: str, which: ItemFilter, *, limit: int | None = None, by: str = "") -> int:
        no = (await self._catalog.run(run_id)).no
        which = checked_for_retry(which)

        async def change(items: list[int]) -> int:
            return await self._db.write(lambda tx: retry_items(tx, no, json_text(items)))

        retried = await change_matching(self._reads, run_id, which, limit, change)
        await self._db.write(lambda tx: tx.note(no, by, "items.retried", run_id, {"items": retried}))
        return retried

    async def cancel(self, run_id: str, which: ItemFilter, *, limit: int | None = None, by: str = "") -> int:
        no = (await self._catalog.run(run_id)).no
        which = checked_for_cancel(which)
        reason = f"Cancelled by {by or 'an operator'}."

        async def change(items: list[int]) -> int:
            return await self._db.write(lambda tx: cancel_items(tx, no, json_text(items), reason))

        cancelled = await change_matching(self._reads, run_id, which, limit, change)
        await self._db.write(lambda tx: tx.note(no, by, "items.cancelled", run_id, {"items": cancelled}))
        return cancelled
