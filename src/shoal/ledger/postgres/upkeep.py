"""What any worker does now and then."""

from __future__ import annotations

import time
from collections.abc import Mapping

from shoal.ledger.bulk import BulkMoves
from shoal.ledger.postgres.database import Database
from shoal.ledger.postgres.idle import settle_idle
from shoal.ledger.postgres.work import tending
from shoal.ledger.upkeep import AuditedUpkeep
from shoal.model.views import Tending

REAP_SECONDS = 1.0
FOLD_SECONDS = 1.0
LANES_SECONDS = 5.0
TIDY_SECONDS = 60.0
BULK_SECONDS = 1.0
FOLD_AT_ONCE = 50_000
SWEEP_AT_ONCE = 1_000
# Of the time that passes, at most half goes into the moves of many items that somebody has left.
BULK_SHARE = 0.5


class PostgresUpkeep(AuditedUpkeep):
    def __init__(self, db: Database, queries: Mapping[str, str], bulk: BulkMoves) -> None:
        super().__init__(db, queries)
        self._db = db
        self._bulk = bulk

    async def tend(self) -> Tending:
        woken = 0
        while moved := await self._db.value(self._sql["promote_due"]):
            woken += moved
        reaped = Tending()
        if await self._due("reap", REAP_SECONDS):
            reaped = tending(await self._db.row(self._sql["reap"], []))
        if await self._due("lanes", LANES_SECONDS):
            await settle_idle(self._db, self._sql)
            await self._db.fetch(self._sql["sweep_lanes"], SWEEP_AT_ONCE, None)
        if await self._due("fold", FOLD_SECONDS):
            await self._db.fetch(self._sql["fold_counts"], FOLD_AT_ONCE)
        if await self._due("tidy", TIDY_SECONDS):
            await self._db.fetch(self._sql["tidy"])
            await self._db.fetch(self._sql["look_for_places"])
        if await self._due("bulk", BULK_SECONDS):
            until = time.monotonic() + BULK_SECONDS * BULK_SHARE
            await self._bulk.go_on(lambda: time.monotonic() < until)
        return Tending(
            woken=woken,
            lost_workers=reaped.lost_workers,
            rescued=reaped.rescued,
            quarantined=reaped.quarantined,
            finished=tuple(await self._db.value(self._sql["finish_runs"])),
        )

    async def wait(self, seconds: float) -> None:
        await self._db.wait_for_wake(seconds)

    async def _due(self, name: str, every: float) -> bool:
        due: bool = await self._db.value(self._sql["tick_due"], name, every)
        return due
