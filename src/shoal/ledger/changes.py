"""The log of result changes on both ledgers: reads from a position, named cursors, dead letters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import msgspec

from shoal.errors import NotFound
from shoal.ledger.catalog import Catalog
from shoal.ledger.rows import Queryable, Row, array_from, check_limit, cursor_parts
from shoal.model.changes import (
    EVERY_RECORD,
    LOG_BEGIN,
    ChangedRecord,
    ChangeFilter,
    ChangeLag,
    ChangePage,
    ChangePosition,
    DeadLetter,
    RecordRef,
    ReplacedItem,
    ResultCursor,
)
from shoal.model.outcome import clean_error
from shoal.model.url_key import check_text
from shoal.model.views import CursorPage

# So many changes are looked at for one page, or for the lag: about a hundredth of a second.
WINDOW = 1_000
LAG_WINDOW = 5_000
DEFAULT_PAGE_BYTES = 8 << 20
MAX_CURSOR_NAME_BYTES = 500
MAX_CURSORS = 1_000


class _Stage(msgspec.Struct, frozen=True):
    name: str
    run_id: str
    scraper: str


class _Change(msgspec.Struct, frozen=True):
    """A change in a page, with those of its items that are not done."""

    position: int
    stage: _Stage
    replaced: bool
    items: list[int]


# (index of its (run, item) in the list that was asked for, item, n, key, url, record, record_key).
FoundResult = tuple[int, int, int, str | None, str | None, str, str | None]


class BaseChanges(ABC):
    def __init__(self, db: Queryable, queries: Mapping[str, str], catalog: Catalog) -> None:
        self._queryable = db
        self._sql = queries
        self._catalog = catalog
        self._stages: dict[int, _Stage | None] = {}

    @abstractmethod
    async def _number(self) -> None:
        """Give positions to changes that were committed since, where the ledger does not do so at the commit."""

    @abstractmethod
    async def _number_all(self) -> None:
        """As `_number`, for all that are committed now, however many there are."""

    @abstractmethod
    async def _results(
        self, pairs: Sequence[tuple[int, int]], after_n: int, limit: int, max_bytes: int
    ) -> tuple[list[FoundResult], bool]:
        """Records of (run, item) pairs in their order, of the first pair only after `after_n`; and whether all."""

    @abstractmethod
    async def _move(
        self, name: str, start: ChangePosition, end: ChangePosition, delivered: int, dead: Mapping[RecordRef, str]
    ) -> bool: ...

    @abstractmethod
    async def remove_dead_letters(self, name: str, refs: Sequence[RecordRef]) -> int: ...

    @abstractmethod
    async def _records(self, refs: Sequence[RecordRef]) -> list[Row]: ...

    async def read(
        self,
        after: ChangePosition = LOG_BEGIN,
        which: ChangeFilter = EVERY_RECORD,
        *,
        limit: int = 1_000,
        max_bytes: int = DEFAULT_PAGE_BYTES,
        until: ChangePosition | None = None,
    ) -> ChangePage:
        check_limit(limit)
        await self._number()
        run_no = None if which.run_id is None else (await self._catalog.run(which.run_id)).no
        begin = after.change - 1 if after.item else after.change
        rows = await self._queryable.fetch(self._sql["changes_after"], begin, WINDOW)
        is_full = len(rows) == WINDOW
        if until is not None and rows and rows[-1]["position"] > until.change:
            rows = [row for row in rows if row["position"] <= until.change]
            is_full = False
        chosen: list[tuple[Row, _Stage]] = []
        wanted, end = 0, after
        for row in rows:
            stage = await self._stage(row["stage"])
            if stage is not None and run_no in (None, row["run"]) and _selects(which, stage):
                wanted += row["records"]
                if chosen and wanted > limit:  # a page ends with a change as a rule
                    break
                chosen.append((row, stage))
            end = ChangePosition(row["position"])
        more = is_full or (bool(rows) and end.change < rows[-1]["position"])
        if not chosen:
            return ChangePage(records=(), replaced=(), end=end, more=more)
        changes = await self._with_items(chosen, after)
        runs = [row["run"] for row, _ in chosen]
        pairs = [(run, item) for run, change in zip(runs, changes, strict=True) for item in change.items]
        found, complete = await self._results(pairs, _done_to(changes[0], after), limit, max_bytes)
        return _page(changes, found, after, end if complete else None, more or not complete)

    async def _with_items(self, chosen: Sequence[tuple[Row, _Stage]], after: ChangePosition) -> list[_Change]:
        positions = [row["position"] for row, _ in chosen]
        found = await self._queryable.fetch(self._sql["change_items"], positions)
        items = {row["position"]: array_from(row["items"]) for row in found}
        return [
            _Change(
                position := row["position"],
                stage,
                bool(row["replaced"]),
                [item for item in items.get(position, ()) if position != after.change or item >= after.item],
            )
            for row, stage in chosen
        ]

    async def replaced_items(self, after: ChangePosition, until: ChangePosition) -> set[tuple[str, int]]:
        found: set[tuple[str, int]] = set()
        at = after.change
        while True:
            rows = await self._queryable.fetch(self._sql["replaced_changes"], at, until.change, WINDOW)
            found.update((row["run_id"], item) for row in rows for item in array_from(row["items"]))
            if len(rows) < WINDOW:
                return found
            at = rows[-1]["position"]

    async def lag(self, after: ChangePosition, which: ChangeFilter = EVERY_RECORD) -> ChangeLag:
        run_no = None if which.run_id is None else (await self._catalog.run(which.run_id)).no
        row = await self._queryable.row(
            self._sql["change_lag"],
            after.change - 1 if after.item else after.change,
            LAG_WINDOW,
            list(which.scrapers) or None,
            list(which.stages) or None,
            run_no,
        )
        return ChangeLag(
            changes=row["changes"] or 0,
            records=row["records"],
            oldest=row["oldest"],
            seconds=max(0.0, row["seconds"]),
            at_least=row["seen"] >= LAG_WINDOW,
        )

    async def end(self) -> ChangePosition:
        await self._number_all()
        return ChangePosition(await self._queryable.value(self._sql["last_change"]))

    async def open_cursor(self, name: str, start: ChangePosition = LOG_BEGIN) -> ResultCursor:
        check_text("cursor", name, MAX_CURSOR_NAME_BYTES)
        await self._queryable.fetch(self._sql["make_cursor"], name, start.change)
        cursor = await self.cursor(name)
        if cursor is None:
            raise NotFound(f"The cursor {name!r} was removed by another process.", remedy="Try again.")
        return cursor

    async def cursor(self, name: str) -> ResultCursor | None:
        return next((cursor for cursor in await self.cursors(name) if cursor.name == name), None)

    async def cursors(self, prefix: str = "") -> list[ResultCursor]:
        return [_cursor_from(row) for row in await self._queryable.fetch(self._sql["get_cursors"], prefix, MAX_CURSORS)]

    async def move(
        self,
        name: str,
        start: ChangePosition,
        end: ChangePosition,
        *,
        delivered: int = 0,
        dead: Mapping[RecordRef, str] | None = None,
    ) -> bool:
        reasons = {ref: clean_error(reason) or "refused" for ref, reason in (dead or {}).items()}
        return await self._move(name, start, end, delivered, reasons)

    async def keep_state(self, name: str, at: ChangePosition, before: str, state: str) -> bool:
        at_parts = (at.change, at.item, at.n)
        return bool(await self._queryable.fetch(self._sql["keep_cursor_state"], name, *at_parts, before, state))

    async def fail(self, name: str, error: str) -> None:
        await self._queryable.fetch(self._sql["fail_cursor"], name, clean_error(error))

    async def reset(self, name: str, to: ChangePosition = LOG_BEGIN) -> bool:
        return bool(await self._queryable.fetch(self._sql["reset_cursor"], name, to.change))

    async def drop_cursor(self, name: str) -> bool:
        await self._queryable.fetch(self._sql["drop_dead_letters"], name)
        return bool(await self._queryable.fetch(self._sql["drop_cursor"], name))

    async def dead_letters(self, name: str, *, cursor: str | None = None, limit: int = 50) -> CursorPage[DeadLetter]:
        check_limit(limit)
        after = cursor_parts(cursor, 3) if cursor else (0, 0, 0)
        rows = await self._queryable.fetch(self._sql["dead_letters"], name, *after, limit)
        letters = tuple(
            DeadLetter(ref=RecordRef(row["run_id"], row["item"], row["n"]), at=row["at"], reason=row["reason"])
            for row in rows
        )
        last = rows[-1] if len(rows) == limit else None
        return CursorPage(letters, None if last is None else f"{last['run']}.{last['item']}.{last['n']}")

    async def records(self, refs: Sequence[RecordRef]) -> list[ChangedRecord]:
        return [ChangedRecord(*row) for row in await self._records(refs)]  # type: ignore[misc]

    async def _stage(self, id: int) -> _Stage | None:
        """The stage of a change; None when its run was removed."""
        if id not in self._stages:
            rows = await self._queryable.fetch(self._sql["change_stage"], id)
            self._stages[id] = _Stage(rows[0]["stage"], rows[0]["run_id"], rows[0]["scraper"]) if rows else None
        return self._stages[id]


def _selects(which: ChangeFilter, stage: _Stage) -> bool:
    return (not which.scrapers or stage.scraper in which.scrapers) and (not which.stages or stage.name in which.stages)


def _done_to(first: _Change, after: ChangePosition) -> int:
    """The number of the last record that is done of the first item of a page."""
    is_partial = first.position == after.change and first.items[:1] == [after.item]
    return after.n if is_partial else -1


def _page(
    changes: Sequence[_Change],
    found: Sequence[FoundResult],
    after: ChangePosition,
    end: ChangePosition | None,
    more: bool,
) -> ChangePage:
    """`end` is None when not all records were found: the page then ends after its last record."""
    pairs = [(change, item) for change in changes for item in change.items]
    changes_replace = any(change.replaced for change in changes)
    stages = [change.stage for change in changes for _ in change.items]
    places = [(stage.run_id, stage.scraper, stage.name) for stage in stages]
    records = tuple(
        [
            ChangedRecord(*places[pair], item, n, key, url, record, record_key)
            for pair, item, n, key, url, record, record_key in found
        ]
    )
    if end is None:
        pair, item, n, *_ = found[-1]
        end = ChangePosition(pairs[pair][0].position, item, n)
    counts: dict[int, int] = {row[0]: row[2] + 1 for row in found if changes_replace}
    if changes_replace and pairs and _done_to(changes[0], after) >= 0:
        counts.setdefault(0, after.n + 1)
    replaced = tuple(
        ReplacedItem(change.stage.run_id, change.stage.scraper, change.stage.name, item, counts.get(pair, 0))
        for pair, (change, item) in enumerate(pairs)
        if change.replaced and (not end.item or (change.position, item) < (end.change, end.item))
    )
    return ChangePage(records=records, replaced=replaced, end=end, more=more)


def _cursor_from(row: Row) -> ResultCursor:
    return ResultCursor(
        name=row["name"],
        position=ChangePosition(row["position"], row["item"], row["n"]),
        delivered=row["delivered"],
        dead_letters=row["dead_letters"],
        created_at=row["created_at"],
        moved_at=row["moved_at"],
        failing_since=row["failing_since"],
        last_error=row["last_error"],
        state=row["state"] or "",
    )
