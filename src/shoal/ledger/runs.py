"""Runs: what is the same on both ledgers. Making them and changing their state is the backends' own."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

import msgspec

from shoal.errors import InvalidSetting, NotFound, WrongState
from shoal.ledger.catalog import Catalog
from shoal.ledger.checks import check_limit, whole_cursor
from shoal.ledger.rows import Queryable, run_from
from shoal.model.jsontext import PAYLOAD_BYTES, json_text
from shoal.model.run import Run, RunState
from shoal.model.views import Page

NOT_REMOVED = (RunState.ACTIVE, RunState.PAUSED, RunState.FINISHED, RunState.CANCELLED)


class FoundRuns:
    """Reading runs, and what is noted about them."""

    def __init__(self, queryable: Queryable, queries: Mapping[str, str], catalog: Catalog) -> None:
        self._queryable = queryable
        self._sql = queries
        self._catalog = catalog

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


def check_change(run_id: str, was: str | None, wanted: RunState, allowed: tuple[RunState, ...]) -> None:
    """Refuse a change of state that makes no sense."""
    if was is None or was == RunState.REMOVED:
        raise NotFound(f"There is no run {run_id!r}.")
    if was not in allowed:
        raise WrongState(f"The run {run_id} is {was}: it cannot become {wanted.value}.", remedy="Resume it first.")
