"""Compares the records of two runs: which are new, changed or gone, with the fields that differ.

Both runs are read side by side in the order of their keys, a page at a time, so memory does not grow with them. A
record is matched by its record key; without one by the key of its item and its position among the item's records. A key
that is unique in all runs of a scraper is stored once: the ledger knows that it replaced a record, but not its fields.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import msgspec

from shoal.export.records import MAX_PAGE, PAGE_CHARACTERS, decode_record, result_pages
from shoal.model.record_key import RecordScope
from shoal.model.views import CursorPage, ResultRow, SortedResult

if TYPE_CHECKING:
    from shoal.ledger.protocols import Ledger
    from shoal.model.run import Run

FIRST_PAGE = 50
MISSING = "(missing)"
ReadPage = Callable[[str | None, int], Any]


class RecordChangeKind(StrEnum):
    """What happened to a record from the first run to the second."""

    NEW = "new"
    CHANGED = "changed"
    GONE = "gone"


_OPPOSITE = {
    RecordChangeKind.NEW: RecordChangeKind.GONE,
    RecordChangeKind.GONE: RecordChangeKind.NEW,
    RecordChangeKind.CHANGED: RecordChangeKind.CHANGED,
}


class FieldChange(msgspec.Struct, frozen=True):
    """A field that differs, with the path of nested fields; `(missing)` on the side that does not have it."""

    field: str
    before: Any
    after: Any


class RecordChange(msgspec.Struct, frozen=True, kw_only=True):
    """A record that one run has and the other does not, or that differs.

    `key`: its record key, else the key or URL of its item, with its position if it is not the first. `record`: of the
    run that has it, for a changed one of the second. `fields` is None when the older version was replaced.
    """

    change: RecordChangeKind
    stage: str
    key: str
    url: str | None
    record: dict[str, Any]
    fields: tuple[FieldChange, ...] | None = ()


class RecordComparison(msgspec.Struct, kw_only=True):
    """How many records were compared to what end.

    `unknown_gone`: stages whose keys are unique in the scraper's whole history and whose later duplicates are dropped,
    so that the ledger cannot tell which of the older records were seen again.
    """

    new: int = 0
    changed: int = 0
    gone: int = 0
    unchanged: int = 0
    unknown_gone: tuple[str, ...] = ()

    @property
    def differs(self) -> bool:
        return bool(self.new or self.changed or self.gone)


async def compare_records(
    ledger: Ledger, first: Run, second: Run, *, on_change: Callable[[RecordChange], object] = lambda change: None
) -> RecordComparison:
    """Compare all records of two runs. `on_change` gets each difference; nothing else is kept."""
    totals = RecordComparison()
    seen = [0, 0]

    def note(change: RecordChange) -> None:
        setattr(totals, change.change, getattr(totals, change.change) + 1)
        on_change(change)

    async def merge(read_first: ReadPage | None, read_second: ReadPage | None) -> None:
        async for ours, theirs in _merged(_rows(read_first), _rows(read_second)):
            seen[0] += ours is not None
            seen[1] += theirs is not None
            if (change := _difference(ours, theirs)) is not None:
                note(change)
            else:
                totals.unchanged += 1

    def by_record_key(run: Run) -> ReadPage:
        return lambda cursor, limit: ledger.reads.results_by_record_key(run.id, cursor=cursor, limit=limit)

    def by_item_key(run: Run, stage: str) -> ReadPage | None:
        if stage not in run.stages:
            return None
        return lambda cursor, limit: ledger.reads.results_by_item_key(run.id, stage=stage, cursor=cursor, limit=limit)

    stored = [(await ledger.reads.stats(run.id)).results for run in (first, second)]
    await merge(by_record_key(first), by_record_key(second))
    if seen[0] < stored[0] or seen[1] < stored[1]:
        for stage in dict.fromkeys((*first.stages, *second.stages)):
            await merge(by_item_key(first, stage), by_item_key(second, stage))
    if seen[0] < stored[0] or seen[1] < stored[1]:
        await _compare_history(ledger, first, second, totals, note)
    return totals


async def _compare_history(
    ledger: Ledger, first: Run, second: Run, totals: RecordComparison, note: Callable[[RecordChange], None]
) -> None:
    """The records whose key is unique in all runs: no key is in both. The later run knows what it replaced."""
    older, newer = sorted((first, second), key=lambda run: run.no)
    backwards = newer is first
    unknown = await _stages_that_drop(ledger, newer)
    totals.unknown_gone = tuple(unknown)

    def add(row: ResultRow, kind: RecordChangeKind) -> None:
        fields = None if kind is RecordChangeKind.CHANGED else ()
        note(_change(_OPPOSITE[kind] if backwards else kind, row, fields))

    async for row in _history_rows(ledger, older):
        if row.stage not in unknown:
            add(row, RecordChangeKind.GONE)
    async for row in _history_rows(ledger, newer):
        if row.change == "unchanged":
            totals.unchanged += 1
        else:
            add(row, RecordChangeKind(row.change or "new"))


async def _stages_that_drop(ledger: Ledger, run: Run) -> list[str]:
    return [stage for stage in run.stages if (await ledger.reads.stats(run.id, stage=stage)).dropped_records]


async def _history_rows(ledger: Ledger, run: Run) -> AsyncIterator[ResultRow]:
    async for rows in result_pages(ledger, run.id):
        for row in rows:
            if row.record_scope == RecordScope.SCRAPER:
                yield row


async def _rows(read: ReadPage | None) -> AsyncIterator[SortedResult]:
    if read is None:
        return
    cursor, limit = None, FIRST_PAGE
    while True:
        page: CursorPage[SortedResult] = await read(cursor, limit)
        for row in page.rows:
            yield row
        if page.rows:
            limit = min(MAX_PAGE, max(1, PAGE_CHARACTERS // max(len(row.row.record) for row in page.rows)))
        cursor = page.cursor
        if cursor is None:
            return


async def _merged(
    first: AsyncIterator[SortedResult], second: AsyncIterator[SortedResult]
) -> AsyncIterator[tuple[ResultRow | None, ResultRow | None]]:
    """Pairs with the same place; None for the side that has none."""
    ours, theirs = await anext(first, None), await anext(second, None)
    while ours is not None or theirs is not None:
        if theirs is None or (ours is not None and ours.place < theirs.place):
            assert ours is not None
            yield ours.row, None
            ours = await anext(first, None)
        elif ours is None or theirs.place < ours.place:
            yield None, theirs.row
            theirs = await anext(second, None)
        else:
            yield ours.row, theirs.row
            ours, theirs = await anext(first, None), await anext(second, None)


def _difference(ours: ResultRow | None, theirs: ResultRow | None) -> RecordChange | None:
    if theirs is None:
        assert ours is not None
        return _change(RecordChangeKind.GONE, ours, ())
    if ours is None:
        return _change(RecordChangeKind.NEW, theirs, ())
    if ours.record == theirs.record:
        return None
    fields = tuple(_field_changes(decode_record(ours), decode_record(theirs), ""))
    return _change(RecordChangeKind.CHANGED, theirs, fields) if fields else None


def _change(kind: RecordChangeKind, row: ResultRow, fields: tuple[FieldChange, ...] | None) -> RecordChange:
    if row.record_key is not None:
        key = row.record_key
    else:
        key = f"{row.key or row.url or row.item}{f' [{row.n}]' if row.n else ''}"
    return RecordChange(change=kind, stage=row.stage, key=key, url=row.url, record=decode_record(row), fields=fields)


def _field_changes(before: Mapping[str, Any], after: Mapping[str, Any], path: str) -> Iterator[FieldChange]:
    for name in dict.fromkeys((*before, *after)):
        ours, theirs = before.get(name, MISSING), after.get(name, MISSING)
        if isinstance(ours, dict) and isinstance(theirs, dict):
            yield from _field_changes(ours, theirs, f"{path}{name}.")
        elif ours != theirs or type(ours) is not type(theirs):
            yield FieldChange(f"{path}{name}", ours, theirs)
