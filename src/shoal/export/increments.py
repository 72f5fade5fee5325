"""Incremental exports: the records that were stored since the last export, in numbered files, each record once.

A cursor of the ledger's log of result changes says how far the exports have come. An export first stores with the
cursor what it is going to write: a number and the end in the log (`_Plan`). Then it writes, and moves the cursor. An
export that was killed in between is repeated by the next one: the same number, the same records, so the same file.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import re
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, suppress
from typing import Any

import msgspec

from shoal.errors import NotAllowed, NotFound, UsageError
from shoal.export.formats import Format, file_type
from shoal.export.job import DEFAULT_LAYOUT, ExportReport, Layout, Progress, check_options, make_table, write_export
from shoal.export.records import MAX_PAGE, PAGE_CHARACTERS, StoredRecord
from shoal.ledger.protocols import Ledger
from shoal.model.changes import ChangedRecord, ChangeFilter, ChangePosition, RecordRef, ResultCursor
from shoal.storage import STDOUT, ObjectForbidden, stat

NUMBER = "{n}"
DIGITS = 6
CURSOR_PREFIX = "export:"
DEFAULT_CURSOR = "default"
MAX_STATE_CHARACTERS = 1 << 20
MAX_PLAN_TRIES = 5


class IncrementReport(msgspec.Struct, frozen=True, kw_only=True):
    """What an incremental export has written. `written` is None when there was nothing new; `path` is then empty.

    `repeated`: an earlier export had begun the same file and was not heard of again.
    """

    cursor: str
    number: int
    path: str
    written: ExportReport | None
    repeated: bool = False


class ExportCursor(msgspec.Struct, frozen=True, kw_only=True):
    """How far the exports of a consumer have come. `exports`: how many files; `records`: how many in them.

    `behind`: records that the next export will have, or more if `at_least`.
    """

    cursor: str
    exports: int
    records: int
    behind: int
    at_least: bool
    exported_at: dt.datetime | None


class _Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The file that is being written, or was last: its number, and the part of the log whose records it contains.

    `which`: the records of the cursor. `columns`: of all tables so far. Not `open`: its part of the log had no records,
    so its number was not used.
    """

    n: int
    start: ChangePosition
    end: ChangePosition
    which: ChangeFilter
    columns: dict[str, Any] = {}
    open: bool = True


def cursor_name(which: ChangeFilter, consumer: str | None = None) -> str:
    """The cursor of a consumer, one for each selection of records: what another selection has passed is not lost."""
    if consumer is not None and not re.fullmatch(r"[\w.-]{1,100}", consumer):
        raise UsageError(
            f"The cursor {consumer!r} has a name that is empty, too long or has other characters than letters.",
            remedy="Use letters, digits, '_', '-' and '.', as in --cursor warehouse.",
        )
    selected = which.run_id or ",".join(which.scrapers)
    return f"{CURSOR_PREFIX}{consumer or DEFAULT_CURSOR}:{'/'.join((selected, *which.stages))}"


async def export_new(
    ledger: Ledger,
    which: ChangeFilter,
    path: str,
    *,
    consumer: str | None = None,
    format: str | None = None,
    layout: Layout = DEFAULT_LAYOUT,
    progress: Progress | None = None,
) -> IncrementReport:
    """Write the records that were stored since the last such export; `{n}` in `path` becomes its number.

    Nothing is missed while runs go on, and no record is in two files, whatever is killed; to standard output a record
    comes again if the process dies before the cursor has moved. Raises what `export_run` raises.
    """
    chosen = file_type(path, format)
    check_options(chosen, layout)
    if path != STDOUT and NUMBER not in path:
        raise UsageError(
            f"The name {path!r} would be the same for each export, which would replace the one before.",
            remedy="Put {n} into it, which becomes a number, as in out-{n}.jsonl, or use -o - for standard output.",
        )
    name = cursor_name(which, consumer)
    plan, repeated = await _plan(ledger, name, which, path)
    if plan is None:
        return IncrementReport(cursor=name, number=0, path="", written=None)
    async with aclosing(_changed_pages(ledger, which, plan)) as pages:
        first = await anext(pages, None)
        if first is None:
            await _finish(ledger, name, plan, records=0)
            return IncrementReport(cursor=name, number=0, path="", written=None)
        place = numbered(path, plan.n)
        table = make_table(chosen, layout)
        table.remember(plan.columns)
        written = await write_export(_after(first, pages), place, chosen, layout, table=table, progress=progress)
    if chosen.format in (Format.CSV, Format.PARQUET):
        plan = await _keep_columns(ledger, name, plan, {**plan.columns, **table.to_state()})
    await _finish(ledger, name, plan, records=written.records)
    return IncrementReport(cursor=name, number=plan.n, path=place, written=written, repeated=repeated)


def numbered(path: str, number: int) -> str:
    return path.replace(NUMBER, f"{number:0{DIGITS}d}")


async def list_cursors(ledger: Ledger) -> list[ExportCursor]:
    """The cursors of incremental exports, by name."""
    found = []
    for cursor in await ledger.changes.cursors(CURSOR_PREFIX):
        plan = _plan_of(cursor)
        lag = None if plan is None else await ledger.changes.lag(cursor.position, plan.which)
        is_begun = plan is not None and plan.open and plan.start == cursor.position
        found.append(
            ExportCursor(
                cursor=cursor.name.removeprefix(CURSOR_PREFIX),
                exports=0 if plan is None else plan.n - is_begun,
                records=cursor.delivered,
                behind=0 if lag is None else lag.records,
                at_least=lag is not None and lag.at_least,
                exported_at=cursor.moved_at,
            )
        )
    return found


async def forget_cursor(ledger: Ledger, name: str) -> None:
    """Remove a cursor, by the name that `list_cursors` gives it: its next export begins with the first record."""
    if not await ledger.changes.drop_cursor(f"{CURSOR_PREFIX}{name}"):
        raise NotFound(f"There is no cursor {name!r}.", remedy="`shoal results cursors` lists them.")


async def _plan(ledger: Ledger, name: str, which: ChangeFilter, path: str) -> tuple[_Plan | None, bool]:
    """What to write, stored with the cursor (None: the log has not grown); and whether an earlier export began it."""
    for _ in range(MAX_PLAN_TRIES):
        cursor = await ledger.changes.open_cursor(name)
        last = _plan_of(cursor)
        if last is not None and last.open and last.start == cursor.position:
            return last, True
        end = await ledger.changes.end()
        if end <= cursor.position:
            return None, False
        columns = {} if last is None else last.columns
        plan = _Plan(n=1 if last is None else last.n + 1, start=cursor.position, end=end, which=which, columns=columns)
        await _check_is_free(path, plan.n)
        if await ledger.changes.keep_state(name, cursor.position, cursor.state, _text(plan)):
            return plan, False
    raise NotAllowed(
        f"Other exports of the cursor {name!r} come first each time.", remedy="Run one export of a cursor at a time."
    )


async def _check_is_free(path: str, number: int) -> None:
    """A file that another cursor has written must not be replaced. Credentials that cannot read may still write."""
    if path == STDOUT:
        return
    place = numbered(path, number)
    found = None
    with suppress(ObjectForbidden):
        found = await asyncio.to_thread(stat, place)
    if found is not None:
        raise UsageError(
            f"{place} exists, and was not written by this cursor.",
            remedy="Choose another name, or move the file away; no record was skipped.",
        )


async def _changed_pages(
    ledger: Ledger, which: ChangeFilter, plan: _Plan
) -> AsyncGenerator[Sequence[StoredRecord], None]:
    """The records of a plan. Those of an item that was replaced come with each of its changes; one time is enough."""
    replaced = await ledger.changes.replaced_items(plan.start, plan.end)
    seen: set[RecordRef] = set()
    at = plan.start
    while True:
        page = await ledger.changes.read(at, which, until=plan.end, limit=MAX_PAGE, max_bytes=PAGE_CHARACTERS)
        records: Sequence[ChangedRecord] = page.records
        if replaced:
            records = [record for record in records if not _is_repeated(record, replaced, seen)]
        if records:
            yield records
        at = page.end
        if not page.more:
            return


def _is_repeated(record: ChangedRecord, replaced: set[tuple[str, int]], seen: set[RecordRef]) -> bool:
    if (record.run_id, record.item) not in replaced:
        return False
    if record.ref in seen:
        return True
    seen.add(record.ref)
    return False


async def _after(
    first: Sequence[StoredRecord], rest: AsyncIterator[Sequence[StoredRecord]]
) -> AsyncIterator[Sequence[StoredRecord]]:
    yield first
    async for page in rest:
        yield page


async def _keep_columns(ledger: Ledger, name: str, plan: _Plan, columns: dict[str, Any]) -> _Plan:
    """Columns are stored before the cursor moves. A repeated export begins with them, and writes the same file."""
    if columns == plan.columns:
        return plan
    known = msgspec.structs.replace(plan, columns=columns)
    if len(_text(known)) > MAX_STATE_CHARACTERS:
        known = msgspec.structs.replace(plan, columns={column: {} for column in columns})
    await ledger.changes.keep_state(name, plan.start, _text(plan), _text(known))
    return known


async def _finish(ledger: Ledger, name: str, plan: _Plan, *, records: int) -> None:
    if not records:  # the number is free for the next file
        unused = msgspec.structs.replace(plan, n=plan.n - 1, open=False)
        await ledger.changes.keep_state(name, plan.start, _text(plan), _text(unused))
    if not await ledger.changes.move(name, plan.start, plan.end, delivered=records):
        raise NotAllowed(
            f"The cursor {name!r} was reset during the export.", remedy="Export again; the file may be repeated."
        )


def _plan_of(cursor: ResultCursor) -> _Plan | None:
    return msgspec.json.decode(cursor.state, type=_Plan) if cursor.state else None


def _text(plan: _Plan) -> str:
    return msgspec.json.encode(plan).decode()
