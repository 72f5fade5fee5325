"""Runs, lanes and orders on PostgreSQL."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from shoal.errors import InvalidSetting
from shoal.ledger.bulk import BulkMoves
from shoal.ledger.catalog import Catalog
from shoal.ledger.lanes import Delay, SqlLanes
from shoal.ledger.postgres.database import Database
from shoal.ledger.protocols import Reads
from shoal.ledger.runs import FoundRuns, check_change
from shoal.ledger.steering import FilteredSteering
from shoal.model.jsontext import PAYLOAD_BYTES, json_text
from shoal.model.lane import Admission, Starts, StartWish
from shoal.model.run import Run, RunSpec, RunState
from shoal.model.urlkey import KEY_VERSION

RELEASE_AT_ONCE = 1_000


class PostgresRuns(FoundRuns):
    def __init__(self, db: Database, queries: Mapping[str, str], catalog: Catalog, bulk: BulkMoves) -> None:
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
            spec.occasion,
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

    async def _empty_if_alone(self, no: int) -> None:
        await self._db.fetch(self._sql["truncate_if_alone"], no)

    async def _set_state(self, run_id: str, wanted: RunState, allowed: tuple[RunState, ...], by: str) -> int:
        no = (await self._catalog.run(run_id)).no
        was = await self._db.value(self._sql["set_run_state"], no, wanted.value, [s.value for s in allowed], by)
        check_change(run_id, was, wanted, allowed)
        return no


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


class PostgresSteering(FilteredSteering):
    def __init__(self, db: Database, queries: Mapping[str, str], catalog: Catalog, reads: Reads) -> None:
        super().__init__(catalog, reads)
        self._db = db
        self._sql = queries

    async def _release(self, older_than: float, run_no: int | None, reason: str) -> int:
        found = await self._db.fetch(self._sql["leases_older_than"], older_than, run_no)
        released = 0
        for at in range(0, len(found), RELEASE_AT_ONCE):
            items, epochs = zip(*found[at : at + RELEASE_AT_ONCE], strict=True)
            row = await self._db.row(self._sql["unlease"], list(items), list(epochs), "released", reason)
            released += row["back"]
        return released

    async def _retry(self, run_no: int, items: list[int]) -> int:
        revived: int = await self._db.value(self._sql["retry_items"], run_no, items)
        return revived

    async def _cancel(self, run_no: int, items: list[int], reason: str) -> int:
        ended: int = await self._db.value(self._sql["cancel_items"], run_no, items, reason)
        return ended

    async def _note(self, run_no: int | None, by: str, action: str, subject: str, detail: dict[str, Any]) -> None:
        text = msgspec.json.encode(detail).decode()
        await self._db.fetch(self._sql["note_event"], run_no, by, action, subject, text)
