"""What any worker does now and then: in short transactions, a round bounded in time, gone on with by anybody."""

from __future__ import annotations

import time
from collections.abc import Mapping

from shoal.ledger.postgres.bulk import settle_idle
from shoal.ledger.postgres.claims import PROMOTE_AT_ONCE
from shoal.ledger.postgres.database import Database
from shoal.ledger.postgres.workers import RESCUE_AT_ONCE
from shoal.ledger.runs import BulkMoves
from shoal.ledger.upkeep import AuditedUpkeep, Round
from shoal.model.views import Tending

REAP_SECONDS = 1.0
FOLD_SECONDS = 1.0
LANES_SECONDS = 5.0
TIDY_SECONDS = 60.0
BULK_SECONDS = 1.0
SWEEP_AT_ONCE = 1_000
FOLD_AT_ONCE = 10_000
TIDY_AT_ONCE = 10_000
# Of the time that passes, at most half goes into the moves of many items that somebody has left.
BULK_SHARE = 0.5


class PostgresUpkeep(AuditedUpkeep):
    def __init__(self, db: Database, queries: Mapping[str, str], bulk: BulkMoves) -> None:
        super().__init__(db, queries)
        self._db = db
        self._bulk = bulk

    async def tend(self) -> Tending:
        round_ = Round(self._left)
        woken = await self._promote_due(round_)
        lost: list[str] = []
        rescued = quarantined = 0
        if await self._due(round_, "reap", REAP_SECONDS):
            lost = await self._db.value(self._sql["declare_lost"], [])
            rescued, quarantined = await self._rescue(round_)
        if await self._due(round_, "fold", FOLD_SECONDS):
            await self._fold_counts(round_)
        finished = await self._db.try_row(self._sql["finish_runs"])
        if await self._due(round_, "lanes", LANES_SECONDS):
            await settle_idle(self._db, self._sql)
            await self._sweep_lanes(round_)
        if await self._due(round_, "tidy", TIDY_SECONDS):
            await self._tidy(round_)
        if await self._due(round_, "bulk", BULK_SECONDS):
            until = time.monotonic() + BULK_SECONDS * BULK_SHARE
            await self._bulk.go_on(lambda: time.monotonic() < until)
        self._left = round_.left
        return Tending(
            woken=woken,
            lost_workers=tuple(lost),
            rescued=rescued,
            quarantined=quarantined,
            finished=() if finished is None else tuple(finished[0]),
            more=bool(round_.left),
        )

    async def wait(self, seconds: float) -> None:
        await self._db.wait_for_wake(seconds)

    async def _due(self, round_: Round, name: str, every: float) -> bool:
        """Whether it is our turn, or what we could not end in the last round."""
        if round_.goes_on_with(name):
            return True
        due: bool = await self._db.value(self._sql["tick_due"], name, every)
        return due

    async def _promote_due(self, round_: Round) -> int:
        woken = 0
        while True:
            row = await self._db.try_row(self._sql["promote_due"], PROMOTE_AT_ONCE, True)
            if row is None:  # somebody has one of the lanes for long: then all but those
                row = await self._db.try_row(self._sql["promote_due"], PROMOTE_AT_ONCE, False)
            moved = 0 if row is None else row[0]
            woken += moved
            if moved < PROMOTE_AT_ONCE or not round_.has_time_for("due"):
                return woken

    async def _rescue(self, round_: Round) -> tuple[int, int]:
        rescued = quarantined = 0
        while (row := await self._db.try_row(self._sql["rescue"], RESCUE_AT_ONCE)) is not None:
            rescued, quarantined = rescued + row["rescued"], quarantined + row["quarantined"]
            if not row["more"] or not round_.has_time_for("reap"):
                break
        return rescued, quarantined

    async def _fold_counts(self, round_: Round) -> None:
        while (row := await self._db.try_row(self._sql["fold_counts"], FOLD_AT_ONCE)) is not None:
            if row[0] < FOLD_AT_ONCE or not round_.has_time_for("fold"):
                return

    async def _sweep_lanes(self, round_: Round) -> None:
        while (row := await self._db.try_row(self._sql["sweep_step"], SWEEP_AT_ONCE)) is not None:
            if not row["more"] or not round_.has_time_for("lanes"):
                return

    async def _tidy(self, round_: Round) -> None:
        while (row := await self._db.try_row(self._sql["tidy"], TIDY_AT_ONCE)) is not None and row[0] == TIDY_AT_ONCE:
            if not round_.has_time_for("tidy"):
                return
        await self._db.fetch(self._sql["look_for_places"])
