"""Upkeep on PostgreSQL, done by every worker: short transactions, a round bounded in time."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping

from shoal.ledger.catalog import Catalog
from shoal.ledger.exits import FORGET_SECONDS
from shoal.ledger.history import SAMPLE_SECONDS, RunSampler
from shoal.ledger.postgres.claims import PROMOTE_BATCH, RESCUE_BATCH
from shoal.ledger.postgres.database import PostgresDatabase
from shoal.ledger.postgres.failures import PostgresFailures
from shoal.ledger.postgres.lanes import PostgresLanes
from shoal.ledger.postgres.runs import update_idle_runs
from shoal.ledger.protocols import Reads
from shoal.ledger.runs import BaseBulk
from shoal.ledger.upkeep import BaseUpkeep, UpkeepRound
from shoal.model.history import HOURS_KEPT_SECONDS, MINUTES_KEPT_SECONDS
from shoal.model.views import UpkeepReport

BULK_SECONDS = 1.0
INTERVALS = {
    "reap": 1.0,
    "fold": 1.0,
    "lanes": 5.0,
    "sample": SAMPLE_SECONDS,
    "tidy": 60.0,
    "bulk": BULK_SECONDS,
    "failures": 1.0,
    "slow_lanes": 10.0,
}
SWEEP_BATCH = 1_000
FOLD_BATCH = 10_000
TIDY_BATCH = 10_000
EXITS_BATCH = 1_000
# At most this share of the time goes into bulk changes whose callers have died.
BULK_SHARE = 0.5


class PostgresSampler(RunSampler):
    def __init__(self, db: PostgresDatabase, queries: Mapping[str, str], catalog: Catalog, reads: Reads) -> None:
        super().__init__(db, queries, catalog, reads)
        self._db = db

    async def _put(self, run_no: int, counts: list[int], waiting_for: str) -> None:
        await self._db.fetch(
            self._sql["put_sample"], run_no, counts, waiting_for, MINUTES_KEPT_SECONDS, HOURS_KEPT_SECONDS
        )


class PostgresUpkeep(BaseUpkeep):
    def __init__(
        self,
        db: PostgresDatabase,
        queries: Mapping[str, str],
        bulk: BaseBulk,
        sampler: PostgresSampler,
        failures: PostgresFailures,
        lanes: PostgresLanes,
    ) -> None:
        super().__init__(db, queries)
        self._db = db
        self._bulk = bulk
        self._failures = failures
        self._lanes = lanes
        self._sampler = sampler

    async def run_once(self) -> UpkeepReport:
        round_ = UpkeepRound(self._left)
        promoted = await self._promote_due(round_)
        # One question for all tasks: of many workers, most have nothing to do.
        asked = list(INTERVALS), list(INTERVALS.values())
        due = {row["name"] for row in await self._db.fetch(self._sql["ticks_due"], *asked)}
        lost: list[str] = []
        rescued = quarantined = 0
        if await self._is_due(round_, "reap", due):
            lost = await self._db.value(self._sql["declare_lost"], [])
            rescued, quarantined = await self._rescue(round_)
        if await self._is_due(round_, "fold", due):
            await self._fold_counts(round_)
        finished = await self._db.try_row(self._sql["finish_runs"])
        if await self._is_due(round_, "lanes", due):
            await update_idle_runs(self._db, self._sql)
            await self._sweep_lanes(round_)
        for run_id in () if finished is None else finished[0]:
            await self._sampler.sample(run_id)
        if await self._is_due(round_, "sample", due):
            await self._sampler.sample_open_runs(lambda: round_.has_time_for("sample"))
        if await self._is_due(round_, "tidy", due):
            await self._tidy(round_)
        if await self._is_due(round_, "bulk", due):
            until = time.monotonic() + BULK_SECONDS * BULK_SHARE
            await self._bulk.resume_unfinished(lambda: time.monotonic() < until)
        if await self._is_due(round_, "failures", due):
            await self._failures.group_all(lambda: round_.has_time_for("failures"))
        if await self._is_due(round_, "slow_lanes", due):
            await self._lanes.rank()
        self._left = round_.left
        return UpkeepReport(
            promoted=promoted,
            lost_workers=tuple(lost),
            rescued=rescued,
            quarantined=quarantined,
            finished=() if finished is None else tuple(finished[0]),
            more=bool(round_.left),
        )

    async def sample(self) -> int:
        if not await self._db.value(self._sql["tick_due"], "sample", SAMPLE_SECONDS):
            return 0
        return await self._sampler.sample_open_runs()

    async def wait(self, seconds: float) -> None:
        await self._db.wait_for_notification(seconds)

    async def _is_due(self, round_: UpkeepRound, name: str, due: Collection[str]) -> bool:
        """Whether the task is due and no other worker does it, or our last round left it unfinished."""
        if round_.was_unfinished(name):
            return True
        return name in due and bool(await self._db.value(self._sql["tick_due"], name, INTERVALS[name]))

    async def _promote_due(self, round_: UpkeepRound) -> int:
        promoted = 0
        while True:
            row = await self._db.try_row(self._sql["promote_due"], PROMOTE_BATCH, True)
            if row is None:  # a lane is locked for long: promote all items but those of locked lanes
                row = await self._db.try_row(self._sql["promote_due"], PROMOTE_BATCH, False)
            moved = 0 if row is None else row[0]
            promoted += moved
            if moved < PROMOTE_BATCH or not round_.has_time_for("due"):
                return promoted

    async def _rescue(self, round_: UpkeepRound) -> tuple[int, int]:
        rescued = quarantined = 0
        while (row := await self._db.try_row(self._sql["rescue"], RESCUE_BATCH)) is not None:
            rescued, quarantined = rescued + row["rescued"], quarantined + row["quarantined"]
            if not row["more"] or not round_.has_time_for("reap"):
                break
        return rescued, quarantined

    async def _fold_counts(self, round_: UpkeepRound) -> None:
        while (row := await self._db.try_row(self._sql["fold_counts"], FOLD_BATCH)) is not None:
            if row[0] < FOLD_BATCH or not round_.has_time_for("fold"):
                return

    async def _sweep_lanes(self, round_: UpkeepRound) -> None:
        while (row := await self._db.try_row(self._sql["sweep_step"], SWEEP_BATCH)) is not None:
            if not row["more"] or not round_.has_time_for("lanes"):
                return

    async def _tidy(self, round_: UpkeepRound) -> None:
        while (row := await self._db.try_row(self._sql["tidy"], TIDY_BATCH)) is not None and row[0] == TIDY_BATCH:
            if not round_.has_time_for("tidy"):
                return
        await self._db.fetch(self._sql["tidy_failure_minutes"], TIDY_BATCH)
        await self._db.fetch(self._sql["recheck_lane_slots"])
        while (row := await self._db.try_row(self._sql["tidy_exits"], FORGET_SECONDS, EXITS_BATCH)) is not None:
            if row[0] < EXITS_BATCH or not round_.has_time_for("tidy"):
                return
