"""Upkeep on SQLite, done by every worker. The reading connection checks first, so that most rounds write nothing.

Transactions are short and a round is bounded in time, because heartbeats need the one write lock too.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from functools import partial

import msgspec

from shoal.ledger.catalog import Catalog
from shoal.ledger.history import SAMPLE_SECONDS, RunSampler
from shoal.ledger.protocols import Reads
from shoal.ledger.runs import BaseBulk
from shoal.ledger.sqlite.claims import PROMOTE_BATCH, promote_due
from shoal.ledger.sqlite.connection import MICRO, Transaction, json_text
from shoal.ledger.sqlite.database import SqliteDatabase
from shoal.ledger.sqlite.exits import tidy_exits
from shoal.ledger.sqlite.failures import SqliteFailures
from shoal.ledger.sqlite.integrity import check_content
from shoal.ledger.sqlite.lanes import SqliteLanes
from shoal.ledger.sqlite.moves import admit_to, declare_lost, rescue
from shoal.ledger.sqlite.runs import update_idle_runs
from shoal.ledger.sqlite.schema import expected_schema
from shoal.ledger.upkeep import BaseUpkeep, UpkeepRound
from shoal.model.history import HOUR_SECONDS, HOURS_KEPT_SECONDS, MINUTE_SECONDS, MINUTES_KEPT_SECONDS
from shoal.model.run import RunState
from shoal.model.views import Finding, UpkeepReport

INTERVALS = {
    "reap": 1 * MICRO,
    "lanes": 5 * MICRO,
    "tidy": 60 * MICRO,
    "bulk": 1 * MICRO,
    "failures": 1 * MICRO,
    "slow_lanes": 10 * MICRO,
    "sample": int(SAMPLE_SECONDS * MICRO),
}
SWEEP_BATCH = 1_000
TIDY_BATCH = 1_000
# Seconds per round for bulk changes whose callers have died.
BULK_SECONDS = 0.3
MINUTES_KEPT = 8 * 24 * 60
FAILURE_MINUTES_KEPT = 180
LOCK_RETENTION_DAYS = 400
REQUEST_KEY_RETENTION_DAYS = 1
BUDGET_RETENTION_SECONDS = 32 * 86_400


class SqliteSampler(RunSampler):
    def __init__(self, db: SqliteDatabase, queries: Mapping[str, str], catalog: Catalog, reads: Reads) -> None:
        super().__init__(db, queries, catalog, reads)
        self._db = db

    async def _put(self, run_no: int, counts: list[int], waiting_for: str) -> None:
        await self._db.write(partial(put_sample, run_no=run_no, counts=json_text(counts), waiting_for=waiting_for))


class SqliteUpkeep(BaseUpkeep):
    def __init__(
        self,
        db: SqliteDatabase,
        queries: Mapping[str, str],
        bulk: BaseBulk,
        sampler: SqliteSampler,
        failures: SqliteFailures,
        lanes: SqliteLanes,
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
        due = {row["name"] for row in await self._db.fetch(self._sql["ticks_due"], json_text(INTERVALS))}
        lost: tuple[str, ...] = ()
        rescued = quarantined = 0
        if await self._is_due(round_, "reap", due):
            if not self._db.has_just_stalled:
                lost = await self._db.write(declare_lost)
            rescued, quarantined = await self._rescue(round_)
        await self._resume_bulk()
        finished: tuple[str, ...] = ()
        if await self._db.fetch(self._sql["finishable_runs"]):
            finished = await self._db.write(finish_runs)
        if await self._is_due(round_, "lanes", due):
            await update_idle_runs(self._db, self._sql)
            await self._sweep_lanes(round_)
        for run_id in finished:
            await self._sampler.sample(run_id)
        if await self._is_due(round_, "sample", due):
            await self._sampler.sample_open_runs(lambda: round_.has_time_for("sample"))
        if await self._is_due(round_, "tidy", due):
            await self._tidy(round_)
        await self._group_failures(round_, due)
        if await self._is_due(round_, "slow_lanes", due):
            await self._lanes.rank()
        self._left = round_.left
        return UpkeepReport(
            promoted=promoted,
            lost_workers=lost,
            rescued=rescued,
            quarantined=quarantined,
            finished=finished,
            more=bool(round_.left),
        )

    async def sample(self) -> int:
        due = await self._db.fetch(self._sql["ticks_due"], json_text({"sample": INTERVALS["sample"]}))
        if not due or not await self._db.write(lambda tx: _acquire_tick(tx, "sample")):
            return 0
        return await self._sampler.sample_open_runs()

    async def audit(self, *, content: bool = False) -> list[Finding]:
        """Check the file first: the rules need rows that can be read."""
        found = await self._db.read(lambda connection: check_content(connection, expected_schema())) if content else []
        return [*found, *await super().audit()]

    async def wait(self, seconds: float) -> None:
        await self._db.wait_for_notification(seconds)

    async def _is_due(self, round_: UpkeepRound, task: str, due: Collection[str]) -> bool:
        """Whether the task is due and no other worker does it, or our last round left it unfinished."""
        if round_.was_unfinished(task):
            return True
        return task in due and await self._db.write(lambda tx: _acquire_tick(tx, task))

    async def _promote_due(self, round_: UpkeepRound) -> int:
        promoted = 0
        if await self._db.value(self._sql["anything_due"]):
            while moved := await self._db.write(promote_due):
                promoted += moved
                if moved < PROMOTE_BATCH or not round_.has_time_for("due"):
                    break
        return promoted

    async def _rescue(self, round_: UpkeepRound) -> tuple[int, int]:
        rescued = quarantined = 0
        more = True
        while more:
            back, dead, more = await self._db.write(rescue)
            rescued, quarantined = rescued + back, quarantined + dead
            more = more and round_.has_time_for("reap")
        return rescued, quarantined

    async def _sweep_lanes(self, round_: UpkeepRound) -> None:
        """Admit items of lanes that have room although no operation has touched them, in the order of their ids."""
        more = True
        while more:
            cursor = await self._db.value(self._sql["tick_cursor"], "lanes")
            found = await self._db.value(self._sql["next_lanes_with_room"], cursor, SWEEP_BATCH)
            last, seen, lanes = msgspec.json.decode(found)
            more = seen == SWEEP_BATCH
            if lanes or cursor or more:
                await self._db.write(partial(_sweep, lanes=lanes, cursor=last if more else 0))
            more = more and round_.has_time_for("lanes")

    async def _tidy(self, round_: UpkeepRound) -> None:
        while await self._db.write(_tidy):
            if not round_.has_time_for("tidy"):
                return

    async def _group_failures(self, round_: UpkeepRound, due: Collection[str]) -> None:
        if "failures" not in due and not round_.was_unfinished("failures"):
            return
        if await self._db.fetch(self._sql["runs_with_ungrouped"]) and await self._is_due(round_, "failures", due):
            await self._failures.group_all(lambda: round_.has_time_for("failures"))

    async def _resume_bulk(self) -> None:
        """Continue bulk changes whose callers have died."""
        if await self._db.value(self._sql["unfinished_bulk"]) and await self._db.write(
            lambda tx: _acquire_tick(tx, "bulk")
        ):
            until = time.monotonic() + BULK_SECONDS
            await self._bulk.resume_unfinished(lambda: time.monotonic() < until)


def put_sample(tx: Transaction, *, run_no: int, counts: str, waiting_for: str) -> None:
    """As shoal.put_sample in functions/76_history.sql."""
    if not tx.run("put_state", run_no, tx.now, counts, waiting_for):
        return
    minutes_before = tx.now - MINUTES_KEPT_SECONDS * MICRO
    minutes_before -= minutes_before % (HOUR_SECONDS * MICRO)
    for rows in ("activity", "states"):
        tx.run(f"put_old_{rows}", run_no, minutes_before)
        tx.run(f"drop_old_{rows}", run_no, MINUTE_SECONDS, minutes_before)
        tx.run(f"drop_old_{rows}", run_no, HOUR_SECONDS, tx.now - HOURS_KEPT_SECONDS * MICRO)


def _acquire_tick(tx: Transaction, name: str) -> bool:
    """True for one caller per interval."""
    return tx.run("acquire_tick", name, tx.now, INTERVALS[name]) > 0


def _sweep(tx: Transaction, lanes: list[int], cursor: int) -> None:
    tx.run("set_tick_cursor", "lanes", cursor)
    if lanes:
        admit_to(tx, json_text(lanes))


def _tidy(tx: Transaction) -> bool:
    """Delete some old rows; False when none are left."""
    tx.run("tidy_locks", tx.now - LOCK_RETENTION_DAYS * 24 * 3_600 * MICRO)
    tx.run("recheck_lane_slots")
    tx.run("tidy_grants", tx.now / MICRO, TIDY_BATCH)
    tx.run("tidy_budgets", tx.now / MICRO - BUDGET_RETENTION_SECONDS)
    tx.run("tidy_failure_minutes", tx.now - FAILURE_MINUTES_KEPT * 60 * MICRO, TIDY_BATCH)
    before = tx.now - REQUEST_KEY_RETENTION_DAYS * 24 * 3_600 * MICRO
    more = tx.run("tidy_request_keys", before, TIDY_BATCH) == TIDY_BATCH
    more |= tidy_exits(tx, TIDY_BATCH)
    return tx.run("tidy_minutes", tx.now - MINUTES_KEPT * 60 * MICRO, TIDY_BATCH) == TIDY_BATCH or more


def finish_runs(tx: Transaction) -> tuple[str, ...]:
    """Finish runs that are sealed and have no open items. Returns their ids."""
    finished = []
    for no, run_id in tx.rows("finishable_runs"):
        tx.run("change_run_state", no, RunState.FINISHED.value, tx.now)
        tx.record_event(no, "ledger", "run.finished", run_id, {})
        finished.append(run_id)
    return tuple(finished)
