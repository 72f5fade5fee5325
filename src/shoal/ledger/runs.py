"""Runs on both ledgers: reading them, their notes, and changes of their state."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import msgspec

from shoal.errors import InvalidSetting, NotFound, WrongState
from shoal.ledger.bulk import BaseBulk
from shoal.ledger.catalog import Catalog
from shoal.ledger.protocols import OnProgress
from shoal.ledger.rows import Queryable, check_limit, int_cursor, run_from
from shoal.model.json_text import PAYLOAD_BYTES, json_text
from shoal.model.run import Run, RunState
from shoal.model.views import CursorPage

NOT_REMOVED = (RunState.ACTIVE, RunState.PAUSED, RunState.FINISHED, RunState.CANCELLED)


class BaseRuns(ABC):
    """The backends create runs and change their state; the rest is here."""

    def __init__(self, queryable: Queryable, queries: Mapping[str, str], catalog: Catalog, bulk: BaseBulk) -> None:
        self._queryable = queryable
        self._sql = queries
        self._catalog = catalog
        self._bulk = bulk

    @abstractmethod
    async def _set_state(self, run_id: str, wanted: RunState, allowed: tuple[RunState, ...], by: str) -> int:
        """Change the state if it is one of `allowed` now. Returns the run's number."""

    @abstractmethod
    async def _truncate_if_only_run(self, no: int) -> None:
        """Empty whole tables at once if this removed run is the only run."""

    async def get(self, run_id: str) -> Run:
        rows = await self._queryable.fetch(self._sql["get_run"], run_id)
        if not rows:
            raise NotFound(f"There is no run {run_id!r}.")
        run = run_from(rows[0])
        self._catalog.check_run(run.id, run.no)
        return run

    async def latest(self, scraper: str) -> Run | None:
        rows = await self._queryable.fetch(self._sql["latest_run"], scraper)
        return await self.get(rows[0]["id"]) if rows else None

    async def list(self, *, scraper: str | None = None, cursor: str | None = None, limit: int = 50) -> CursorPage[Run]:
        check_limit(limit)
        rows = await self._queryable.fetch(self._sql["list_runs"], scraper, int_cursor(cursor), limit)
        runs = tuple(run_from(row) for row in rows)
        return CursorPage(runs, str(runs[-1].no) if len(runs) == limit else None)

    async def by_idempotency_key(self, idempotency_key: str) -> Run | None:
        rows = await self._queryable.fetch(self._sql["run_by_idempotency_key"], idempotency_key)
        return await self.get(rows[0]["id"]) if rows else None

    async def record_event(
        self, run_id: str, action: str, subject: str, detail: Mapping[str, Any], *, by: str = ""
    ) -> None:
        no = (await self._catalog.run(run_id)).no
        text = json_text(detail, "detail", PAYLOAD_BYTES, InvalidSetting)
        await self._queryable.fetch(self._sql["insert_event"], no, by, action, subject, text)

    async def put_note(self, run_id: str, name: str, value: Mapping[str, Any]) -> None:
        text = json_text(value, "note", PAYLOAD_BYTES, InvalidSetting)
        await self._queryable.fetch(self._sql["put_note"], (await self._catalog.run(run_id)).no, name, text)

    async def get_note(self, run_id: str, name: str) -> dict[str, Any] | None:
        rows = await self._queryable.fetch(self._sql["get_note"], (await self._catalog.run(run_id)).no, name)
        return msgspec.json.decode(rows[0]["value"]) if rows else None

    async def acquire_once(self, run_id: str, name: str) -> bool:
        no = (await self._catalog.run(run_id)).no
        # A random value, so that a repeated call whose first answer was lost recognises its own note.
        mine = {"taken_by": secrets.token_hex(8)}
        await self._queryable.fetch(self._sql["put_first_note"], no, name, msgspec.json.encode(mine).decode())
        return await self.get_note(run_id, name) == mine

    async def pause(self, run_id: str, *, by: str = "") -> None:
        no = await self._set_state(run_id, RunState.PAUSED, (RunState.ACTIVE, RunState.PAUSED), by)
        await self._bulk.apply_lane_work(no)

    async def resume(self, run_id: str, *, by: str = "") -> None:
        no = await self._set_state(run_id, RunState.ACTIVE, NOT_REMOVED, by)
        await self._bulk.apply_lane_work(no)

    async def cancel(self, run_id: str, *, by: str = "", on_progress: OnProgress = int) -> int:
        no = await self._set_state(run_id, RunState.CANCELLED, NOT_REMOVED, by)
        return await self._bulk.cancel_open_items(
            no, f"The run was cancelled by {by or 'an operator'}.", on_progress=on_progress
        )

    async def remove(self, run_id: str, *, by: str = "", on_progress: OnProgress = int) -> None:
        no = await self._set_state(run_id, RunState.REMOVED, NOT_REMOVED, by)
        self._catalog.forget_run(run_id)
        await self._truncate_if_only_run(no)
        await self._bulk.purge(no, on_progress=on_progress)


def check_change(run_id: str, was: str | None, wanted: RunState, allowed: tuple[RunState, ...]) -> None:
    """Raise unless a run in the state `was` may become `wanted`."""
    if was is None or was == RunState.REMOVED:
        raise NotFound(f"There is no run {run_id!r}.")
    if was not in allowed:
        raise WrongState(f"The run {run_id} is {was}: it cannot become {wanted.value}.", remedy="Resume it first.")
