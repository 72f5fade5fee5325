"""Runs on PostgreSQL: create, seal, change of state; cancel, retry, release, removal and lane work in bounded steps."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

import msgspec

from shoal.errors import InvalidSetting
from shoal.ledger.catalog import Catalog
from shoal.ledger.postgres.database import PostgresDatabase
from shoal.ledger.protocols import Reads
from shoal.ledger.runs import LANE_WORK_SECONDS, BaseBulk, BaseRuns, BaseSteering, BulkCursor, check_change
from shoal.model.json_text import PAYLOAD_BYTES, json_text
from shoal.model.run import Run, RunSpec, RunState
from shoal.model.url_key import KEY_VERSION

# A step locks the run and the lanes of its items for some tens of milliseconds.
CANCEL_BATCH = 2_000
LANES_BATCH = 2_000
PURGE_BATCH = 5_000
RELEASE_BATCH = 1_000


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


class PostgresSteering(BaseSteering):
    def __init__(self, db: PostgresDatabase, queries: Mapping[str, str], catalog: Catalog, reads: Reads) -> None:
        super().__init__(catalog, reads)
        self._db = db
        self._sql = queries

    async def _release(self, older_than: float, run_no: int | None, reason: str) -> int:
        found = await self._db.fetch(self._sql["leases_older_than"], older_than, run_no)
        released = 0
        for at in range(0, len(found), RELEASE_BATCH):
            items, epochs = zip(*found[at : at + RELEASE_BATCH], strict=True)
            row = await self._db.row(self._sql["unlease"], list(items), list(epochs), "released", reason)
            released += row["back"]
        return released

    async def _retry(self, run_no: int, items: list[int]) -> int:
        retried: int = await self._db.value(self._sql["retry_items"], run_no, items)
        return retried

    async def _cancel(self, run_no: int, items: list[int], reason: str) -> int:
        ended: int = await self._db.value(self._sql["cancel_items"], run_no, items, reason)
        return ended

    async def _record_event(
        self, run_no: int | None, by: str, action: str, subject: str, detail: dict[str, Any]
    ) -> None:
        text = msgspec.json.encode(detail).decode()
        await self._db.fetch(self._sql["insert_event"], run_no, by, action, subject, text)


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
        )
        return await self.get(run_id)

    async def seal(self, run_id: str, *, by: str = "") -> None:
        await self._db.fetch(self._sql["seal_run"], (await self._catalog.run(run_id)).no, by)

    async def _truncate_if_only_run(self, no: int) -> None:
        await self._db.fetch(self._sql["truncate_if_only_run"], no)

    async def _set_state(self, run_id: str, wanted: RunState, allowed: tuple[RunState, ...], by: str) -> int:
        no = (await self._catalog.run(run_id)).no
        was = await self._db.value(self._sql["set_run_state"], no, wanted.value, [s.value for s in allowed], by)
        check_change(run_id, was, wanted, allowed)
        return no
