"""Runs on both ledgers: reads, notes, changes of state, and changes of many items in bounded steps.

Steps are short transactions that any process can continue. The ledger records what is to be done before the first step:
a cancelled run with open items, a removed run, or a run's `lane_work`. So nothing is lost when the caller dies: any
worker's upkeep, or the same call again, continues.
"""

from __future__ import annotations

import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from shoal.errors import InvalidSetting, NotFound, WrongState
from shoal.ledger.catalog import Catalog
from shoal.ledger.protocols import OnProgress
from shoal.ledger.rows import Queryable, check_limit, int_cursor, run_from
from shoal.model.json_text import PAYLOAD_BYTES, json_text
from shoal.model.run import Run, RunState
from shoal.model.views import CursorPage

# Position of a pass through a run's rows; None: at the beginning or at the end.
BulkCursor = Sequence[int]
HasTime = Callable[[], bool]
LANE_WORK_SECONDS = 0.5
NOT_REMOVED = (RunState.ACTIVE, RunState.PAUSED, RunState.FINISHED, RunState.CANCELLED)


def _always() -> bool:
    return True


class BaseBulk(ABC):
    """Steps over all items of a run. `has_time` is called before each further step; False stops, to continue later."""

    def __init__(self, queryable: Queryable, queries: Mapping[str, str]) -> None:
        self._queryable = queryable
        self._sql = queries

    @abstractmethod
    async def _cancel(
        self, run_no: int, reason: str | None, cursor: BulkCursor | None
    ) -> tuple[int, BulkCursor | None]:
        """End some open items. Returns how many, and the new cursor."""

    @abstractmethod
    async def _purge(self, run_no: int, cursor: BulkCursor | None) -> tuple[int, BulkCursor | None]:
        """Delete some rows of a run without open items. Returns about how many, and the new cursor."""

    @abstractmethod
    async def _apply_lane_work(self, run_no: int) -> bool:
        """One step of the run's lane work, if it is needed now. True: there is more to do now."""

    async def cancel_open_items(
        self, run_no: int, reason: str | None, *, on_progress: OnProgress = int, has_time: HasTime = _always
    ) -> int:
        """End the open items of a cancelled run or, without a reason, drop those of a removed run."""
        ended = 0
        while True:
            before, cursor = ended, None
            while True:
                in_this_step, cursor = await self._cancel(run_no, reason, cursor)
                ended += in_this_step
                on_progress(ended)
                if cursor is None or not has_time():
                    break
            # Items that became due meanwhile may have moved behind the cursor: then there is another pass.
            if cursor is not None or ended == before or not await self._open_items_left(run_no):
                return ended

    async def purge(self, run_no: int, *, on_progress: OnProgress = int, has_time: HasTime = _always) -> None:
        """Delete a removed run."""
        ended = await self.cancel_open_items(run_no, None, on_progress=on_progress, has_time=has_time)
        cursor: BulkCursor | None = None
        while has_time():
            in_this_step, cursor = await self._purge(run_no, cursor)
            if cursor is None:
                return
            ended += in_this_step
            on_progress(ended)

    async def apply_lane_work(self, run_no: int, *, seconds: float = LANE_WORK_SECONDS) -> None:
        """Change a run's lanes as its state requires, for at most so many seconds.

        Callers need not wait for the rest: claims depend on the run's state only.
        """
        until = time.monotonic() + seconds
        while await self._apply_lane_work(run_no) and time.monotonic() < until:
            pass

    async def resume_unfinished(self, has_time: HasTime) -> None:
        """Continue changes whose callers have died."""
        for row in await self._queryable.fetch(self._sql["unfinished_cancels"]):
            await self.cancel_open_items(row["no"], "The run was cancelled.", has_time=has_time)
        for row in await self._queryable.fetch(self._sql["runs_with_lane_work"]):
            while await self._apply_lane_work(row["no"]) and has_time():
                pass
        for row in await self._queryable.fetch(self._sql["removed_runs"]):
            await self.purge(row["no"], has_time=has_time)

    async def _open_items_left(self, run_no: int) -> bool:
        return bool(await self._queryable.value(self._sql["open_items_left"], run_no))


class BaseRuns(ABC):
    """The backends create runs and change their state; the rest is here."""

    def __init__(self, queryable: Queryable, queries: Mapping[str, str], catalog: Catalog, bulk: BaseBulk) -> None:
        self._queryable = queryable
        self._sql = queries
        self._catalog = catalog
        self._bulk = bulk

    @abstractmethod
    async def _set_state(
        self, run_id: str, wanted: RunState, allowed: tuple[RunState, ...], by: str, because: str = ""
    ) -> int:
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
        self, run_id: str | None, action: str, subject: str, detail: Mapping[str, Any], *, by: str = ""
    ) -> None:
        no = None if run_id is None else (await self._catalog.run(run_id)).no
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

    async def pause(self, run_id: str, *, by: str = "", because: str = "") -> None:
        no = await self._set_state(run_id, RunState.PAUSED, (RunState.ACTIVE, RunState.PAUSED), by, because)
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
