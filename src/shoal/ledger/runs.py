"""Runs: what is the same on both ledgers. Making them and the change of state itself are the backends' own."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import msgspec

from shoal.errors import InvalidSetting, NotFound, WrongState
from shoal.ledger.bulk import BulkMoves
from shoal.ledger.catalog import Catalog
from shoal.ledger.checks import check_limit, whole_cursor
from shoal.ledger.protocols import Told
from shoal.ledger.rows import Queryable, run_from
from shoal.model.jsontext import PAYLOAD_BYTES, json_text
from shoal.model.run import Run, RunState
from shoal.model.views import Page

NOT_REMOVED = (RunState.ACTIVE, RunState.PAUSED, RunState.FINISHED, RunState.CANCELLED)


class FoundRuns(ABC):
    """Reading runs, what is noted about them, and the orders that concern all their items."""

    def __init__(self, queryable: Queryable, queries: Mapping[str, str], catalog: Catalog, bulk: BulkMoves) -> None:
        self._queryable = queryable
        self._sql = queries
        self._catalog = catalog
        self._bulk = bulk

    @abstractmethod
    async def _set_state(self, run_id: str, wanted: RunState, allowed: tuple[RunState, ...], by: str) -> int:
        """Change the state, refusing what makes no sense; returns the run's number."""

    @abstractmethod
    async def _empty_if_alone(self, no: int) -> None:
        """Empty whole tables at once if this removed run is the only one that has rows in them."""

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

    async def list(self, *, scraper: str | None = None, cursor: str | None = None, limit: int = 50) -> Page[Run]:
        check_limit(limit)
        rows = await self._queryable.fetch(self._sql["list_runs"], scraper, whole_cursor(cursor), limit)
        runs = tuple(run_from(row) for row in rows)
        return Page(runs, str(runs[-1].no) if len(runs) == limit else None)

    async def of_occasion(self, occasion: str) -> Run | None:
        rows = await self._queryable.fetch(self._sql["run_of_occasion"], occasion)
        return await self.get(rows[0]["id"]) if rows else None

    async def tell(self, run_id: str, action: str, subject: str, detail: Mapping[str, Any], *, by: str = "") -> None:
        no = (await self._catalog.run(run_id)).no
        text = json_text(detail, "detail", PAYLOAD_BYTES, InvalidSetting)
        await self._queryable.fetch(self._sql["note_event"], no, by, action, subject, text)

    async def note(self, run_id: str, name: str, value: Mapping[str, Any]) -> None:
        text = json_text(value, "note", PAYLOAD_BYTES, InvalidSetting)
        await self._queryable.fetch(self._sql["put_note"], (await self._catalog.run(run_id)).no, name, text)

    async def noted(self, run_id: str, name: str) -> dict[str, Any] | None:
        rows = await self._queryable.fetch(self._sql["get_note"], (await self._catalog.run(run_id)).no, name)
        return msgspec.json.decode(rows[0]["value"]) if rows else None

    async def take(self, run_id: str, name: str) -> bool:
        no = (await self._catalog.run(run_id)).no
        # A name of our own, so that a call whose answer was lost finds itself.
        mine = {"taken_by": secrets.token_hex(8)}
        await self._queryable.fetch(self._sql["put_first_note"], no, name, msgspec.json.encode(mine).decode())
        return await self.noted(run_id, name) == mine

    async def pause(self, run_id: str, *, by: str = "") -> None:
        no = await self._set_state(run_id, RunState.PAUSED, (RunState.ACTIVE, RunState.PAUSED), by)
        await self._bulk.settle_lanes(no)

    async def resume(self, run_id: str, *, by: str = "") -> None:
        no = await self._set_state(run_id, RunState.ACTIVE, NOT_REMOVED, by)
        await self._bulk.settle_lanes(no)

    async def cancel(self, run_id: str, *, by: str = "", told: Told = int) -> int:
        no = await self._set_state(run_id, RunState.CANCELLED, NOT_REMOVED, by)
        return await self._bulk.cancel_open_items(no, f"The run was cancelled by {by or 'an operator'}.", told=told)

    async def remove(self, run_id: str, *, by: str = "", told: Told = int) -> None:
        no = await self._set_state(run_id, RunState.REMOVED, NOT_REMOVED, by)
        self._catalog.forget_run(run_id)
        await self._empty_if_alone(no)
        await self._bulk.purge(no, told=told)


def check_change(run_id: str, was: str | None, wanted: RunState, allowed: tuple[RunState, ...]) -> None:
    """Refuse a change of state that makes no sense."""
    if was is None or was == RunState.REMOVED:
        raise NotFound(f"There is no run {run_id!r}.")
    if was not in allowed:
        raise WrongState(f"The run {run_id} is {was}: it cannot become {wanted.value}.", remedy="Resume it first.")
