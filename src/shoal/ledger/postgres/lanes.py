"""Lanes on PostgreSQL: limits, delays, reserved starts, host slots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shoal.ledger.catalog import Catalog
from shoal.ledger.lanes import RANKED_LANES, BaseLanes, DelayRange
from shoal.ledger.postgres.database import PostgresDatabase
from shoal.model.lane import HostSlotReply, ReservedStarts, StartRequest


class PostgresLanes(BaseLanes):
    def __init__(self, db: PostgresDatabase, queries: Mapping[str, str], catalog: Catalog) -> None:
        super().__init__(db, queries, catalog)
        self._db = db

    async def _set(
        self, run_no: int, key: str, limit: int | None, delay: DelayRange | None, paused: bool | None, by: str
    ) -> bool:
        delay_min, delay_max = delay if delay is not None else (None, None)
        found = await self._db.value(self._sql["set_lane"], run_no, key, limit, delay_min, delay_max, paused, by)
        return found is not None

    async def _block(self, run_no: int, key: str, seconds: float, why: str, by: str) -> bool:
        return await self._db.value(self._sql["block_lane"], run_no, key, seconds, why, by) is not None

    async def _declare(self, key: str, delay: DelayRange) -> None:
        await self._db.fetch(self._sql["declare_lane"], key, *delay)

    async def _set_delay_floor(self, run_no: int, key: str, delay: float, why: str) -> bool:
        return await self._db.value(self._sql["set_delay_floor"], run_no, key, delay, why) is not None

    async def _reserve(self, run_no: int, key: str, worker_no: int, request: StartRequest) -> ReservedStarts:
        row = await self._db.row(
            self._sql["reserve"],
            run_no,
            key,
            worker_no,
            [lease.item for lease in request.leases],
            [lease.epoch for lease in request.leases],
            request.count,
            request.within,
            request.slack,
            request.idle,
        )
        return ReservedStarts(
            tuple(row["waits"]), frozenset(row["lost"]), spacing=row["spacing"], next_in=row["next_in"], at=row["at"]
        )

    async def _request_slot(self, worker_no: int, stage: int, key: str, slot: int) -> HostSlotReply:
        row = await self._db.row(self._sql["request_slot"], worker_no, stage, key, slot)
        return HostSlotReply(
            granted=row["is_granted"],
            ahead=row["ahead"],
            blocked_seconds=row["blocked_seconds"],
            why=row["why"] or "",
            paced=row["paced"],
        )

    async def _release_slots(self, slots: Sequence[int]) -> None:
        await self._db.fetch(self._sql["release_slots"], list(slots))

    async def _block_host(self, stage: int, key: str, seconds: float, why: str) -> None:
        await self._db.fetch(self._sql["block_host"], stage, key, seconds, why)

    async def _rank(self) -> None:
        await self._db.fetch(self._sql["rank_lanes"], RANKED_LANES)
