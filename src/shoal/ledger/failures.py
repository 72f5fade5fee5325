"""Groups of dead items on both ledgers: the shapes are computed here, the backends store the groups."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

import msgspec

from shoal.errors import NotFound
from shoal.ledger.catalog import Catalog
from shoal.ledger.rows import Queryable, Row, check_limit, cursor_parts, int_cursor
from shoal.model.failures import (
    MAX_GROUPS,
    OTHER_SHAPE,
    TREND_MINUTES,
    FailureKey,
    FailurePage,
    FailureView,
    failed_host,
    message_shape,
)
from shoal.model.views import CursorPage, FailedItem

GROUP_BATCH = 500
COUNTED_UNGROUPED = 10_000


class GroupedItem(msgspec.Struct, frozen=True):
    """A dead item, with the epoch in which it died, and the key of its group."""

    item: int
    epoch: int
    key: FailureKey


class BaseFailures(ABC):
    def __init__(self, queryable: Queryable, queries: Mapping[str, str], catalog: Catalog) -> None:
        self._queryable = queryable
        self._sql = queries
        self._catalog = catalog

    @abstractmethod
    async def _store(self, run_no: int, items: Sequence[GroupedItem]) -> int:
        """Put items into their groups, in one transaction. Returns how many; 0 when another process does it."""

    @abstractmethod
    async def _set_muted(self, run_no: int, failure: int, muted: bool, by: str) -> None: ...

    async def group(self, run_id: str, *, at_most: int = 1_000) -> int:
        check_limit(at_most)
        run_no = (await self._catalog.run(run_id)).no
        grouped = 0
        while grouped < at_most and (stored := await self._group_some(run_no, min(GROUP_BATCH, at_most - grouped))):
            grouped += stored
        return grouped

    async def group_all(self, has_time: Callable[[], bool]) -> None:
        """Upkeep: group the dead items of all runs in small steps, as long as there is time."""
        for row in await self._queryable.fetch(self._sql["runs_with_ungrouped"]):
            while await self._group_some(row["run"], GROUP_BATCH):
                if not has_time():
                    return

    async def list(
        self, run_id: str, *, muted: bool | None = None, cursor: str | None = None, limit: int = 50
    ) -> FailurePage:
        check_limit(limit)
        run_no = (await self._catalog.run(run_id)).no
        place, last = cursor_parts(cursor, 2) if cursor is not None else (None, None)
        rows = await self._queryable.fetch(self._sql["list_failures"], run_no, muted, place, last, limit)
        views = await self._views(rows)
        ungrouped = await self._queryable.value(self._sql["count_ungrouped"], run_no, COUNTED_UNGROUPED + 1)
        return FailurePage(
            rows=views,
            cursor=f"{rows[-1]['place']}.{rows[-1]['id']}" if len(rows) == limit else None,
            ungrouped=min(ungrouped, COUNTED_UNGROUPED),
            ungrouped_is_at_least=ungrouped > COUNTED_UNGROUPED,
        )

    async def get(self, run_id: str, failure: int) -> FailureView:
        run_no = (await self._catalog.run(run_id)).no
        known = 0 < failure < 2**31
        rows = await self._queryable.fetch(self._sql["get_failure"], run_no, failure) if known else []
        if not rows:
            raise NotFound(
                f"The run {run_id} has no failure group {failure}.",
                remedy=f"`shoal status {run_id} --json` lists them.",
            )
        return (await self._views(rows))[0]

    async def mute(self, run_id: str, failure: int, *, by: str = "") -> FailureView:
        return await self._mute(run_id, failure, True, by)

    async def unmute(self, run_id: str, failure: int, *, by: str = "") -> FailureView:
        return await self._mute(run_id, failure, False, by)

    async def ungrouped(self, run_id: str, *, cursor: str | None = None, limit: int = 50) -> CursorPage[FailedItem]:
        check_limit(limit)
        run_no = (await self._catalog.run(run_id)).no
        found = await self._queryable.fetch(self._sql["ungrouped"], run_no, int_cursor(cursor) or 0, limit)
        rows = tuple(
            FailedItem(
                item=row["item"],
                stage=row["stage_name"],
                url=row["url"] or row["key"] or "",
                outcome=row["outcome"],
                error_message=row["error"],
                retry_count=max(row["tries"] - 1, 0),
                failed_at=row["ended_at"],
            )
            for row in found
        )
        return CursorPage(rows, str(rows[-1].item) if len(rows) == limit else None)

    async def _mute(self, run_id: str, failure: int, muted: bool, by: str) -> FailureView:
        await self.get(run_id, failure)
        await self._set_muted((await self._catalog.run(run_id)).no, failure, muted, by)
        return await self.get(run_id, failure)

    async def _group_some(self, run_no: int, most: int) -> int:
        rows = await self._queryable.fetch(self._sql["ungrouped"], run_no, 0, most)
        if not rows:
            return 0
        known = {FailureKey(*row) for row in await self._queryable.fetch(self._sql["failure_keys"], run_no)}
        return await self._store(run_no, [_grouped(row, known) for row in rows])

    async def _views(self, rows: Sequence[Row]) -> tuple[FailureView, ...]:
        trends = {row["id"]: [0] * TREND_MINUTES for row in rows}
        if rows:
            for failure, ago, items in await self._queryable.fetch(
                self._sql["failure_trends"], list(trends), TREND_MINUTES
            ):
                # The clock may have been set back since.
                trends[failure][TREND_MINUTES - 1 - max(0, min(ago, TREND_MINUTES - 1))] += items
        names = [name for name in FailureView.__struct_fields__ if name != "trend"]
        return tuple(FailureView(**{name: row[name] for name in names}, trend=tuple(trends[row["id"]])) for row in rows)


def _grouped(row: Row, known: set[FailureKey]) -> GroupedItem:
    key = FailureKey(row["stage"], row["outcome"], failed_host(row["url"]), message_shape(row["error"] or ""))
    if key not in known:
        if len(known) < MAX_GROUPS:
            known.add(key)
        else:
            key = FailureKey(row["stage"], row["outcome"], "", OTHER_SHAPE)
    return GroupedItem(row["item"], row["epoch"], key)
