"""Lanes on SQLite: limits, delays, reserved starts, host slots."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from shoal.errors import WorkerLost
from shoal.ledger.catalog import Catalog
from shoal.ledger.lanes import RANKED_LANES, BaseLanes, DelayRange
from shoal.ledger.sqlite.connection import MICRO, Transaction, json_text, micros
from shoal.ledger.sqlite.database import SqliteDatabase
from shoal.ledger.sqlite.moves import admit_to, release_slots
from shoal.model.lane import HostSlotReply, ReservedStarts, StartRequest

# Starts are reserved at most a delay and so many seconds ahead, so that after a block is lifted the lane does not wait
# for hours.
RESERVED_AHEAD_SECONDS = 60.0
PAUSED_SECONDS = 2.0


class SqliteLanes(BaseLanes):
    def __init__(self, db: SqliteDatabase, queries: Mapping[str, str], catalog: Catalog) -> None:
        super().__init__(db, queries, catalog)
        self._db = db

    async def _set(
        self, run_no: int, key: str, limit: int | None, delay: DelayRange | None, paused: bool | None, by: str
    ) -> bool:
        delay_min, delay_max = (None, None) if delay is None else (float(delay[0]), float(delay[1]))
        changes = {"limit": limit, "delay_min": delay_min, "delay_max": delay_max, "paused": paused}

        def work(tx: Transaction) -> bool:
            lane, was_paced = _find_lane(tx, run_no, key)
            if lane is None:
                return False
            tx.run("set_lane", lane, limit, delay_min, delay_max, paused)
            if delay is not None:
                tx.run("retime_lane", lane, was_paced, tx.now)
            _apply_lane_change(tx, lane)
            detail = {name: value for name, value in changes.items() if value is not None}
            tx.record_event(run_no or None, by, "lane.set", key, detail)
            return True

        return await self._db.write(work)

    async def _block(self, run_no: int, key: str, seconds: float, why: str, by: str) -> bool:
        def work(tx: Transaction) -> bool:
            lane, _ = _find_lane(tx, run_no, key)
            if lane is None:
                return False
            tx.run("block_lane", lane, *((tx.now + micros(seconds), why) if seconds > 0 else (None, None)))
            _apply_lane_change(tx, lane)
            tx.record_event(run_no or None, by, "lane.blocked", key, {"seconds": seconds, "why": why})
            return True

        return await self._db.write(work)

    async def _rank(self) -> None:
        ranks = await self._db.value(self._sql["lane_ranks"], RANKED_LANES)

        def work(tx: Transaction) -> None:
            tx.run("rank_lanes_tick", tx.now)
            tx.run("rank_lanes_drop", ranks)
            tx.run("rank_lanes_put", ranks)

        await self._db.write(work)

    async def _declare(self, key: str, delay: DelayRange) -> None:
        await self._db.write(lambda tx: tx.run("declare_lane", key, *delay))

    async def _set_delay_floor(self, run_no: int, key: str, delay: float, why: str) -> bool:
        def work(tx: Transaction) -> bool:
            lane, was_paced = _find_lane(tx, run_no, key)
            if lane is None:
                return False
            if tx.run("set_delay_floor", lane, float(delay), why if delay > 0 else None):
                tx.run("retime_lane", lane, was_paced, tx.now)
                _apply_lane_change(tx, lane)
                tx.record_event(run_no or None, "ledger", "lane.slowed", key, {"floor": delay, "why": why})
            return True

        return await self._db.write(work)

    async def _reserve(self, run_no: int, key: str, worker_no: int, request: StartRequest) -> ReservedStarts:
        return await self._db.write(lambda tx: reserve(tx, run_no, key, worker_no, request))

    async def _request_slot(self, worker_no: int, stage: int, key: str, slot: int) -> HostSlotReply:
        return await self._db.write(lambda tx: request_slot(tx, worker_no, stage, key, slot))

    async def _release_slots(self, slots: Sequence[int]) -> None:
        await self._db.write(lambda tx: release_slots(tx, json_text(slots)))

    async def _block_host(self, stage: int, key: str, seconds: float, why: str) -> None:
        def work(tx: Transaction) -> None:
            lane = _host_lane(tx, stage, key)
            if tx.run("block_host", lane["id"], tx.now + micros(seconds), why):
                tx.run("retime_delayed", lane["id"], tx.now)
                if lane["blocked_until"] <= tx.now:
                    tx.record_event(None, "ledger", "lane.blocked", key, {"seconds": seconds, "why": why})

        await self._db.write(work)


def reserve(tx: Transaction, run_no: int, key: str, worker: int, request: StartRequest) -> ReservedStarts:
    """Reserve the next starts of a lane for a worker: see Lanes.reserve."""
    pairs = [(lease.item, lease.epoch) for lease in request.leases]
    lost = frozenset(item for item, _ in pairs).difference(tx.json("leases_held", json_text(pairs)))
    found = tx.rows("lane_starts", run_no, key, worker)
    if not found:
        return ReservedStarts((0.0,) * request.count, lost, at=tx.now / MICRO)
    lane = found[0]
    low, high = lane["delay_min"], lane["delay_max"]
    within = request.within if request.within is not None else RESERVED_AHEAD_SECONDS + high
    starts_at = max(tx.now, lane["blocked_until"])
    if high > 0:
        free_at = lane["next_at"] + (0 if lane["is_mine"] else lane["handover"])
        if lane["is_mine"] and request.idle is not None:
            free_at = max(lane["run_from"], tx.now + micros(random.uniform(low, high) - request.idle))
        starts_at = max(starts_at, free_at)
    first_at = starts_at
    waits: list[float] = []
    while len(waits) < request.count and starts_at - tx.now <= micros(within):
        waits.append((starts_at - tx.now) / MICRO)
        if high > 0:
            starts_at += micros(random.uniform(low, high))
    if waits:
        begun = tx.run("reserve_leases", json_text(pairs[: len(waits)]), tx.now, lane["id"]) if pairs else 0
        if high > 0 or begun:
            tx.run(
                "reserve_starts",
                lane["id"],
                begun,
                starts_at if high > 0 else None,
                worker,
                micros(request.slack),
                first_at,
            )
            tx.run("retime_delayed", lane["id"], tx.now)
            admit_to(tx, json_text([lane["id"]]))
    return ReservedStarts(tuple(waits), lost, spacing=low, next_in=(starts_at - tx.now) / MICRO, at=tx.now / MICRO)


def request_slot(tx: Transaction, worker: int, stage: int, key: str, slot: int) -> HostSlotReply:
    """Request a slot in a host's lane: see Lanes.request_slot."""
    if not tx.value("is_worker_live", worker):
        raise WorkerLost("This worker was declared dead, or never registered.")
    lane = _host_lane(tx, stage, key)
    paced = bool(lane["paced"])
    if lane["paused"] or lane["blocked_until"] > tx.now:
        release_slots(tx, json_text([slot]))
        if lane["paused"]:
            return HostSlotReply(blocked_seconds=PAUSED_SECONDS, why="it is paused", paced=paced)
        return HostSlotReply(
            blocked_seconds=(lane["blocked_until"] - tx.now) / MICRO, why=lane["blocked_why"] or "", paced=paced
        )
    rows = tx.rows("find_slot", slot)
    if rows and rows[0]["granted"]:
        return HostSlotReply(granted=True, paced=paced)
    since = rows[0]["since"] if rows else tx.now
    if not rows:
        tx.run("insert_slot", slot, lane["id"], since, worker)
    ahead: int = tx.value("slots_ahead", lane["id"], since, slot)
    granted = ahead < lane["free"]
    if granted:
        tx.run("grant_slot", slot)
    tx.run("count_slots", json_text([lane["id"]]))
    return HostSlotReply(granted=granted, ahead=ahead, paced=paced)


def _host_lane(tx: Transaction, stage: int, key: str) -> Any:
    tx.run("host_lane", stage, key)
    return tx.rows("host_lane_state", key)[0]


def _find_lane(tx: Transaction, run_no: int, key: str) -> tuple[int | None, bool]:
    """The lane's id, and whether it has a delay. A shared lane is created if needed."""
    if run_no == 0:
        tx.run("make_shared_lane", key)
    for lane, paced in tx.rows("find_lane", run_no, key):
        return lane, bool(paced)
    return None, False


def _apply_lane_change(tx: Transaction, lane: int) -> None:
    tx.run("retime_delayed", lane, tx.now)
    admit_to(tx, json_text([lane]))
    tx.should_notify = True
