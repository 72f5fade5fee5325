"""Lanes on PostgreSQL: limits, delays, reserved starts, host slots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shoal.ledger.catalog import Catalog
from shoal.ledger.lanes import Delay, SqlLanes
from shoal.ledger.postgres.database import Database
from shoal.model.lane import Admission, Starts, StartWish


class PostgresLanes(SqlLanes):
    def __init__(self, db: Database, queries: Mapping[str, str], catalog: Catalog) -> None:
        super().__init__(db, queries, catalog)
        self._db = db

    async def _set(
        self, run_no: int, key: str, limit: int | None, delay: Delay | None, paused: bool | None, by: str
    ) -> bool:
        delay_min, delay_max = delay if delay is not None else (None, None)
        found = await self._db.value(self._sql["set_lane"], run_no, key, limit, delay_min, delay_max, paused, by)
        return found is not None

    async def _block(self, run_no: int, key: str, seconds: float, why: str, by: str) -> bool:
        return await self._db.value(self._sql["block_lane"], run_no, key, seconds, why, by) is not None

    async def _slow(self, run_no: int, key: str, delay: float, why: str) -> bool:
        return await self._db.value(self._sql["slow_lane"], run_no, key, delay, why) is not None

    async def _reserve(self, run_no: int, key: str, worker_no: int, wish: StartWish) -> Starts:
        row = await self._db.row(
            self._sql["reserve"],
            run_no,
            key,
            worker_no,
            [lease.item for lease in wish.leases],
            [lease.epoch for lease in wish.leases],
            wish.count,
            wish.within,
            wish.slack,
            wish.idle,
        )
        return Starts(
            tuple(row["waits"]), frozenset(row["lost"]), spacing=row["spacing"], next_in=row["next_in"], at=row["at"]
        )

    async def _enter(self, worker_no: int, stage: int, key: str, visit: int) -> Admission:
        row = await self._db.row(self._sql["enter"], worker_no, stage, key, visit)
        return Admission(
            is_in=row["is_in"], ahead=row["ahead"], shut=row["shut"], why=row["why"] or "", paced=row["paced"]
        )

    async def _leave(self, visits: Sequence[int]) -> None:
        await self._db.fetch(self._sql["leave"], list(visits))

    async def _close(self, stage: int, key: str, seconds: float, why: str) -> None:
        await self._db.fetch(self._sql["close_host"], stage, key, seconds, why)
