"""Runs on both ledgers, and changes of all items of a run in bounded steps.

Moves of many items, on either ledger: step by step, each step a short transaction, gone on with by anybody.

What is to be done stands in the ledger before the first step: a cancelled run that has open items, a removed run, the
lane_work of a run. So nothing is lost when whoever gave the order dies: any worker's upkeep, or the same order again,
goes on.

Runs: what is the same on both ledgers. Making them and the change of state itself are the backends' own.
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
from shoal.ledger.checks import check_limit, int_cursor
from shoal.ledger.protocols import OnProgress
from shoal.ledger.rows import Queryable, run_from
from shoal.model.json_text import PAYLOAD_BYTES, json_text
from shoal.model.run import Run, RunState
from shoal.model.views import CursorPage

# How far a round through a run's rows has come; None: at its beginning, or at its end.
BulkCursor = Sequence[int]
HasTime = Callable[[], bool]
LANE_WORK_SECONDS = 0.5
NOT_REMOVED = (RunState.ACTIVE, RunState.PAUSED, RunState.FINISHED, RunState.CANCELLED)


def _always() -> bool:
    return True


class BaseBulk(ABC):
    """`has_time` is asked before each further step; False ends the move, to be gone on with later."""

    def __init__(self, queryable: Queryable, queries: Mapping[str, str]) -> None:
        self._queryable = queryable
        self._sql = queries

    @abstractmethod
    async def _cancel(
        self, run_no: int, reason: str | None, cursor: BulkCursor | None
    ) -> tuple[int, BulkCursor | None]:
        """End some open items: how many, and how far it has come."""

    @abstractmethod
    async def _purge(self, run_no: int, cursor: BulkCursor | None) -> tuple[int, BulkCursor | None]:
        """Delete some rows of a run that has no open items: how many, about, and how far it has come."""

    @abstractmethod
    async def _apply_lane_work(self, run_no: int) -> bool:
        """Do something to a run's lanes, if there is need; True: there is more to do now."""

    async def cancel_open_items(
        self, run_no: int, reason: str | None, *, on_progress: OnProgress = int, has_time: HasTime = _always
    ) -> int:
        """End what is open of a cancelled run, or, without a reason, drop what is open of a removed one.

        `on_progress` hears how many items are done with so far.
        """
        ended = 0
        while True:
            before, cursor = ended, None
            while True:
                in_this_step, cursor = await self._cancel(run_no, reason, cursor)
                ended += in_this_step
                on_progress(ended)
                if cursor is None or not has_time():
                    break
            # What came due meanwhile may have got past us: then there is another round.
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
        """Do to a run's lanes what its state asks for, as far as that is needed now and for so long.

        Nobody has to wait for the rest: claims go by the run's state.
        """
        until = time.monotonic() + seconds
        while await self._apply_lane_work(run_no) and time.monotonic() < until:
            pass

    async def resume_unfinished(self, has_time: HasTime) -> None:
        """Go on with whatever somebody has left."""
        for row in await self._queryable.fetch(self._sql["half_cancelled_runs"]):
            await self.cancel_open_items(row["no"], "The run was cancelled.", has_time=has_time)
        for row in await self._queryable.fetch(self._sql["runs_with_lane_work"]):
            while await self._apply_lane_work(row["no"]) and has_time():
                pass
        for row in await self._queryable.fetch(self._sql["removed_runs"]):
            await self.purge(row["no"], has_time=has_time)

    async def _open_items_left(self, run_no: int) -> bool:
        return bool(await self._queryable.value(self._sql["open_items_left"], run_no))


class BaseRuns(ABC):
    """Reading runs, what is noted about them, and the orders that concern all their items."""

    def __init__(self, queryable: Queryable, queries: Mapping[str, str], catalog: Catalog, bulk: BaseBulk) -> None:
        self._queryable = queryable
        self._sql = queries
        self._catalog = catalog
        self._bulk = bulk

    @abstractmethod
    async def _set_state(self, run_id: str, wanted: RunState, allowed: tuple[RunState, ...], by: str) -> int:
        """Change the state, refusing what makes no sense; returns the run's number."""

    @abstractmethod
    async def _truncate_if_only_run(self, no: int) -> None:
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
        # A name of our own, so that a call whose answer was lost finds itself.
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
    """Refuse a change of state that makes no sense."""
    if was is None or was == RunState.REMOVED:
        raise NotFound(f"There is no run {run_id!r}.")
    if was not in allowed:
        raise WrongState(f"The run {run_id} is {was}: it cannot become {wanted.value}.", remedy="Resume it first.")
