"""Runs, lanes, settings and orders on PostgreSQL."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

import msgspec

from shoal.errors import InvalidSetting, NotFound, WrongState
from shoal.ledger.bulk import change_matching, checked_for_cancel, checked_for_retry
from shoal.ledger.catalog import Catalog
from shoal.ledger.checks import check_lane_change
from shoal.ledger.postgres.database import Database
from shoal.ledger.protocols import Reads
from shoal.ledger.rows import lane_from, run_from
from shoal.model.item import MAX_NAME_BYTES
from shoal.model.jsontext import PAYLOAD_BYTES, json_text
from shoal.model.lane import LaneView
from shoal.model.run import Run, RunSpec, RunState
from shoal.model.urlkey import KEY_VERSION, check_text
from shoal.model.views import ItemFilter, Page

PURGE_AT_ONCE = 20_000


class PostgresRuns:
    def __init__(self, db: Database, queries: Mapping[str, str], catalog: Catalog) -> None:
        self._db = db
        self._sql = queries
        self._catalog = catalog

    async def create(self, spec: RunSpec) -> Run:
        spec.checked()
        lanes = [stage.lane for stage in spec.stages]
        run_id = await self._db.value(
            self._sql["create_run"],
            uuid.uuid4(),
            spec.scraper,
            json_text(spec.settings, "settings", PAYLOAD_BYTES, InvalidSetting),
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

    async def get(self, run_id: str) -> Run:
        rows = await self._db.fetch(self._sql["get_run"], run_id)
        if not rows:
            raise NotFound(f"There is no run {run_id!r}.")
        return run_from(rows[0])

    async def latest(self, scraper: str) -> Run | None:
        rows = await self._db.fetch(self._sql["latest_run"], scraper)
        return await self.get(rows[0]["id"]) if rows else None

    async def list(self, *, scraper: str | None = None, cursor: str | None = None, limit: int = 50) -> Page[Run]:
        rows = await self._db.fetch(self._sql["list_runs"], scraper, int(cursor) if cursor else None, limit)
        runs = tuple(run_from(row) for row in rows)
        return Page(runs, str(runs[-1].no) if len(runs) == limit else None)

    async def seal(self, run_id: str, *, by: str = "") -> None:
        await self._db.fetch(self._sql["seal_run"], (await self._catalog.run(run_id)).no, by)

    async def pause(self, run_id: str, *, by: str = "") -> None:
        no = await self._set_state(run_id, RunState.PAUSED, (RunState.ACTIVE, RunState.PAUSED), by)
        await self._db.fetch(self._sql["yield_lanes"], no)

    async def resume(self, run_id: str, *, by: str = "") -> None:
        from_states = (RunState.ACTIVE, RunState.PAUSED, RunState.FINISHED, RunState.CANCELLED)
        await self._set_state(run_id, RunState.ACTIVE, from_states, by)
        await self._db.fetch(self._sql["sweep_lanes"], 100_000)

    async def cancel(self, run_id: str, *, by: str = "") -> int:
        from_states = (RunState.ACTIVE, RunState.PAUSED, RunState.FINISHED, RunState.CANCELLED)
        no = await self._set_state(run_id, RunState.CANCELLED, from_states, by)
        cancelled: int = await self._db.value(
            self._sql["cancel_open_items"], no, f"The run was cancelled by {by or 'an operator'}."
        )
        return cancelled

    async def remove(self, run_id: str, *, by: str = "") -> None:
        await self.cancel(run_id, by=by)
        no = await self._set_state(run_id, RunState.REMOVED, tuple(RunState), by)
        self._catalog.forget_run(run_id)
        await self._db.fetch(self._sql["truncate_if_alone"], no)
        while await self._db.value(self._sql["purge"], no, PURGE_AT_ONCE):
            pass

    async def _set_state(self, run_id: str, wanted: RunState, allowed: tuple[RunState, ...], by: str) -> int:
        no = (await self._catalog.run(run_id)).no
        was = await self._db.value(self._sql["set_run_state"], no, wanted.value, [s.value for s in allowed], by)
        if was is None or was == RunState.REMOVED:
            raise NotFound(f"There is no run {run_id!r}.")
        if was not in allowed:
            raise WrongState(f"The run {run_id} is {was}: it cannot become {wanted.value}.", remedy="Resume it first.")
        return no


class PostgresLanes:
    def __init__(self, db: Database, queries: Mapping[str, str], catalog: Catalog) -> None:
        self._db = db
        self._sql = queries
        self._catalog = catalog

    async def get(self, key: str, *, run_id: str | None = None) -> LaneView:
        rows = await self._db.fetch(self._sql["get_lanes"], await self._run_no(run_id), key, None, 1)
        if not rows:
            raise NotFound(f"There is no lane {key!r}.", remedy="Lanes appear with their first item; check the name.")
        return lane_from(rows[0])

    async def list(self, *, run_id: str | None = None, cursor: str | None = None, limit: int = 50) -> Page[LaneView]:
        rows = await self._db.fetch(self._sql["get_lanes"], await self._run_no(run_id), None, cursor, limit)
        lanes = tuple(lane_from(row) for row in rows)
        return Page(lanes, lanes[-1].key if len(lanes) == limit else None)

    async def set(
        self,
        key: str,
        *,
        run_id: str | None = None,
        limit: int | None = None,
        delay: tuple[float, float] | None = None,
        paused: bool | None = None,
        by: str = "",
    ) -> LaneView:
        check_lane_change(key, limit, delay)
        delay_min, delay_max = delay if delay is not None else (None, None)
        found = await self._db.value(
            self._sql["set_lane"], await self._run_no(run_id), key, limit, delay_min, delay_max, paused, by
        )
        if found is None:
            raise NotFound(f"There is no lane {key!r} in the run {run_id}.")
        return await self.get(key, run_id=run_id)

    async def block(self, key: str, seconds: float, why: str, *, run_id: str | None = None, by: str = "") -> LaneView:
        check_lane_change(key, None, (0.0, seconds))
        found = await self._db.value(self._sql["block_lane"], await self._run_no(run_id), key, seconds, why, by)
        if found is None:
            raise NotFound(f"There is no lane {key!r} in the run {run_id}.")
        return await self.get(key, run_id=run_id)

    async def _run_no(self, run_id: str | None) -> int:
        return 0 if run_id is None else (await self._catalog.run(run_id)).no


class PostgresSettings:
    def __init__(self, db: Database, queries: Mapping[str, str]) -> None:
        self._db = db
        self._sql = queries

    async def put(self, scope: str, value: Mapping[str, Any], *, by: str = "") -> int:
        check_text("scope", scope, MAX_NAME_BYTES)
        text = json_text(value, "setting", PAYLOAD_BYTES, InvalidSetting)
        version: int = await self._db.value(self._sql["put_setting"], scope, text, by)
        return version

    async def get(self, scope: str) -> tuple[int, dict[str, Any]] | None:
        rows = await self._db.fetch(self._sql["get_setting"], scope)
        return (rows[0]["version"], msgspec.json.decode(rows[0]["value"])) if rows else None


class PostgresSteering:
    def __init__(self, db: Database, queries: Mapping[str, str], catalog: Catalog, reads: Reads) -> None:
        self._db = db
        self._sql = queries
        self._catalog = catalog
        self._reads = reads

    async def release(self, *, older_than: float, run_id: str | None = None, by: str = "") -> int:
        if not older_than >= 0:
            raise InvalidSetting(f"older_than is {older_than!r}; it must be 0 or more seconds.")
        no = None if run_id is None else (await self._catalog.run(run_id)).no
        released: int = await self._db.value(
            self._sql["release"], older_than, no, f"Released by {by or 'an operator'}."
        )
        await self._note(no, by, "leases.released", run_id or "all", {"older_than": older_than, "items": released})
        return released

    async def retry(self, run_id: str, which: ItemFilter, *, limit: int | None = None, by: str = "") -> int:
        no = (await self._catalog.run(run_id)).no
        which = checked_for_retry(which)

        async def change(items: list[int]) -> int:
            revived: int = await self._db.value(self._sql["retry_items"], no, items)
            return revived

        retried = await change_matching(self._reads, run_id, which, limit, change)
        await self._note(no, by, "items.retried", run_id, {"items": retried})
        return retried

    async def cancel(self, run_id: str, which: ItemFilter, *, limit: int | None = None, by: str = "") -> int:
        no = (await self._catalog.run(run_id)).no
        which = checked_for_cancel(which)
        reason = f"Cancelled by {by or 'an operator'}."

        async def change(items: list[int]) -> int:
            ended: int = await self._db.value(self._sql["cancel_items"], no, items, reason)
            return ended

        cancelled = await change_matching(self._reads, run_id, which, limit, change)
        await self._note(no, by, "items.cancelled", run_id, {"items": cancelled})
        return cancelled

    async def _note(self, run_no: int | None, actor: str, action: str, subject: str, detail: dict[str, Any]) -> None:
        text = msgspec.json.encode(detail).decode()
        await self._db.fetch(self._sql["note_event"], run_no, actor, action, subject, text)
