"""Runs: what is the same on both ledgers. Making them and changing their state is the backends' own."""

from __future__ import annotations

from collections.abc import Mapping

from shoal.errors import NotFound, WrongState
from shoal.ledger.catalog import Catalog
from shoal.ledger.checks import check_limit, whole_cursor
from shoal.ledger.rows import Queryable, run_from
from shoal.model.run import Run, RunState
from shoal.model.views import Page

NOT_REMOVED = (RunState.ACTIVE, RunState.PAUSED, RunState.FINISHED, RunState.CANCELLED)


class FoundRuns:
    """Reading runs."""

    def __init__(self, queryable: Queryable, queries: Mapping[str, str], catalog: Catalog) -> None:
        self._queryable = queryable
        self._sql = queries
        self._catalog = catalog

    async def get(self, run_id: str) -> Run:
        rows = await self._queryable.fetch(self._sql["get_run"], run_id)
        if not rows:
            raise NotFound(f"There is no run {run_id!r}.")
        return run_from(rows[0])

    async def latest(self, scraper: str) -> Run | None:
        rows = await self._queryable.fetch(self._sql["latest_run"], scraper)
        return await self.get(rows[0]["id"]) if rows else None

    async def list(self, *, scraper: str | None = None, cursor: str | None = None, limit: int = 50) -> Page[Run]:
        check_limit(limit)
        rows = await self._queryable.fetch(self._sql["list_runs"], scraper, whole_cursor(cursor), limit)
        runs = tuple(run_from(row) for row in rows)
        return Page(runs, str(runs[-1].no) if len(runs) == limit else None)


def check_change(run_id: str, was: str | None, wanted: RunState, allowed: tuple[RunState, ...]) -> None:
    """Refuse a change of state that makes no sense."""
    if was is None or was == RunState.REMOVED:
        raise NotFound(f"There is no run {run_id!r}.")
    if was not in allowed:
        raise WrongState(f"The run {run_id} is {was}: it cannot become {wanted.value}.", remedy="Resume it first.")
