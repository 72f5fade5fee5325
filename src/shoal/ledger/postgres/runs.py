"""Runs on PostgreSQL: create, seal, change of state; cancel, removal and lane work in bounded steps."""

from __future__ import annotations

import uuid
from collections.abc import Mapping

from shoal.errors import InvalidSetting
from shoal.ledger.catalog import Catalog
from shoal.ledger.postgres.database import PostgresDatabase
from shoal.ledger.runs import LANE_WORK_SECONDS, BaseBulk, BaseRuns, BulkCursor, check_change
from shoal.model.json_text import PAYLOAD_BYTES, json_text
from shoal.model.run import Run, RunSpec, RunState
from shoal.model.url_key import KEY_VERSION

# A step locks the run and the lanes of its items for some tens of milliseconds.
CANCEL_BATCH = 2_000
LANES_BATCH = 2_000
PURGE_BATCH = 5_000


async def update_idle_runs(db: PostgresDatabase, queries: Mapping[str, str]) -> None:
    """Mark runs that no worker serves as idle, and the others as not idle, and begin the lane work that follows.

    The upkeep of any worker continues it.
    """
    changed = await db.fetch(queries["idle_changes"])
    for row in changed:
        await db.fetch(queries["set_idle"], row["run_no"], row["now_idle"])
    for row in changed:
        await PostgresBulk(db, queries).apply_lane_work(row["run_no"], seconds=LANE_WORK_SECONDS / len(changed))


class PostgresBulk(BaseBulk):
    def __init__(self, db: PostgresDatabase, queries: Mapping[str, str]) -> None:
        super().__init__(db, queries)
        self._db = db

    async def _cancel(
        self, run_no: int, reason: str | None, cursor: BulkCursor | None
    ) -> tuple[int, BulkCursor | None]:
        row = await self._db.row(self._sql["cancel_open_items"], run_no, reason, CANCEL_BATCH, cursor)
        return row["ended"], row["place"]

    async def _purge(self, run_no: int, cursor: BulkCursor | None) -> tuple[int, BulkCursor | None]:
        return PURGE_BATCH, await self._db.value(self._sql["purge"], run_no, PURGE_BATCH, cursor)

    async def _apply_lane_work(self, run_no: int) -> bool:
        more: bool = await self._db.value(self._sql["apply_lane_work"], run_no, LANES_BATCH)
        return more


class PostgresRuns(BaseRuns):
    def __init__(self, db: PostgresDatabase, queries: Mapping[str, str], catalog: Catalog, bulk: BaseBulk) -> None:
        super().__init__(db, queries, catalog, bulk)
        self._db = db

    async def create(self, spec: RunSpec) -> Run:
        spec.checked()
        lanes = [stage.lane for stage in spec.stages]
        run_id = await self._db.value(
            self._sql["create_run"],
            uuid.uuid4(),
            spec.scraper,
            json_text(spec.stored_settings, "settings", PAYLOAD_BYTES, InvalidSetting),
            spec.idempotency_key,
            spec.code_version,
            KEY_VERSION,
            spec.max_attempts,
            spec.max_rescues,
            [stage.name for stage in spec.stages],
            [stage.max_attempts for stage in spec.stages],
            [lane.limit for lane in lanes],
            [lane.delay_min for lane in lanes],
            [lane.delay_max for lane in lanes],
            [lane.ordered for lane in lanes],
            [lane.shared for lane in lanes],
            [lane.loopback_limit for lane in lanes],
        )
        return await self.get(run_id)

    async def seal(self, run_id: str, *, by: str = "") -> None:
        await self._db.fetch(self._sql["seal_run"], (await self._catalog.run(run_id)).no, by)

    async def _truncate_if_only_run(self, no: int) -> None:
        await self._db.fetch(self._sql["truncate_if_only_run"], no)

    async def _set_state(
        self, run_id: str, wanted: RunState, allowed: tuple[RunState, ...], by: str, because: str = ""
    ) -> int:
        no = (await self._catalog.run(run_id)).no
        states = [state.value for state in allowed]
        was = await self._db.value(self._sql["set_run_state"], no, wanted.value, states, by, because)
        check_change(run_id, was, wanted, allowed)
        return no
