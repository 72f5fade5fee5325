"""Reads on both ledgers: the queries have the same names and columns. Each reads few rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from shoal.errors import NotFound, UsageError
from shoal.ledger import explain
from shoal.ledger.catalog import Catalog
from shoal.ledger.protocols import ALL_ITEMS, Runs, Workers
from shoal.ledger.rows import (
    Queryable,
    Row,
    array_from,
    attempt_from,
    check_limit,
    cursor_parts,
    event_from,
    int_cursor,
    item_from,
    lane_from,
    scaling_from,
)
from shoal.model.item import FINAL_STATES, RETRYABLE_STATES, ItemState
from shoal.model.outcome import OutcomeClass
from shoal.model.url_key import key_hash
from shoal.model.views import (
    AttemptView,
    AuditEvent,
    Counts,
    CursorPage,
    FailedItem,
    ItemFilter,
    ItemView,
    PartitionProgress,
    RecentActivity,
    ResultRow,
    SortedResult,
    StaleClaim,
    WaitReason,
    WorkerProgress,
)

SCAN_WINDOW = 1_000
# So many items are read for one page when no index answers the filter; some tens of milliseconds.
MAX_SCANNED = 50_000
_LAST_RECORD = 2**31 - 1


class SqlReads:
    def __init__(
        self,
        db: Queryable,
        queries: Mapping[str, str],
        catalog: Catalog,
        runs: Runs,
        workers: Workers,
        *,
        full: Callable[[], str | None] = lambda: None,
    ) -> None:
        """`full` returns a sentence when the ledger has no space left, where this process can detect that."""
        self._db = db
        self._sql = queries
        self._catalog = catalog
        self._runs = runs
        self._workers = workers
        self._full = full

    async def stats(self, run_id: str, *, stage: str | None = None) -> Counts:
        run = await self._catalog.run(run_id)
        if stage is not None:
            run.stage_id(stage)
        return Counts(**dict(await self._db.row(self._sql["stats"], run_id, stage)))

    async def partitions(self, run_id: str) -> list[PartitionProgress]:
        await self._catalog.run(run_id)
        progress = []
        for row in await self._db.fetch(self._sql["partitions"], run_id):
            counts = dict(row)
            stage, partition = counts.pop("stage"), counts.pop("partition")
            progress.append(PartitionProgress(stage=stage, partition=partition, counts=Counts(**counts)))
        return progress

    async def workers(self, run_id: str, *, minutes: int = 60) -> list[WorkerProgress]:
        run = await self._catalog.run(run_id)
        return [WorkerProgress(**dict(r)) for r in await self._db.fetch(self._sql["worker_progress"], run.no, minutes)]

    async def recent(self, run_id: str, *, minutes: int = 5) -> RecentActivity:
        run = await self._catalog.run(run_id)
        return RecentActivity(**dict(await self._db.row(self._sql["recent"], run.no, minutes)))

    async def items(
        self, run_id: str, which: ItemFilter = ALL_ITEMS, *, cursor: str | None = None, limit: int = 50
    ) -> CursorPage[ItemView]:
        run = await self._catalog.run(run_id)
        if which.stage is not None:
            run.stage_id(which.stage)
        check_limit(limit)
        ids, seen_to = await self._find(run.no, which, int_cursor(cursor) or 0, limit)
        rows: list[ItemView] = []
        for row in await self._db.fetch(self._sql["item_views"], run.no, ids):
            view = item_from(row)
            if _matches(view, which):
                rows.append(view)
                if len(rows) == limit:
                    return CursorPage(tuple(rows), str(view.id))
        return CursorPage(tuple(rows), None if seen_to is None else str(seen_to))

    async def item(
        self, run_id: str, *, id: int | None = None, key: str | None = None, stage: str | None = None
    ) -> ItemView:
        return item_from(await self._item_row(run_id, id, key, stage))

    async def attempts(self, run_id: str, item: int) -> list[AttemptView]:
        run = await self._catalog.run(run_id)
        return [attempt_from(row) for row in await self._db.fetch(self._sql["attempts"], run.no, item)]

    async def failed(self, run_id: str, *, cursor: str | None = None, limit: int = 50) -> CursorPage[FailedItem]:
        run = await self._catalog.run(run_id)
        check_limit(limit)
        found = await self._db.fetch(self._sql["failed"], run.no, int_cursor(cursor) or 0, limit)
        rows = tuple(FailedItem(**dict(row)) for row in found)
        return CursorPage(rows, str(rows[-1].item) if len(rows) == limit else None)

    async def stale(self, *, older_than: float = 1800.0, limit: int = 100) -> list[StaleClaim]:
        check_limit(limit)
        return [StaleClaim(**dict(row)) for row in await self._db.fetch(self._sql["stale"], older_than, limit)]

    async def results(
        self, run_id: str, *, stage: str | None = None, cursor: str | None = None, limit: int = 1000
    ) -> CursorPage[ResultRow]:
        run = await self._catalog.run(run_id)
        stage_id = None if stage is None else run.stage_id(stage)
        check_limit(limit)
        item, n = cursor_parts(cursor, 2) if cursor else (0, -1)
        window = limit if stage_id is None else max(limit, SCAN_WINDOW)
        found = await self._db.fetch(self._sql["results"], run.no, item, n, window, stage_id, limit)
        rows = tuple(ResultRow(*row) for row in found)
        if len(rows) == limit:
            return CursorPage(rows, f"{rows[-1].item}.{rows[-1].n}")
        if stage_id is None:
            return CursorPage(rows, None)
        ends = await self._db.fetch(self._sql["results_window_end"], run.no, item, n, window)
        # Records may have been added between the two queries: the cursor must not be before the last row of this page.
        ends_at = [(end["item"], end["n"]) for end in ends] + [(row.item, row.n) for row in rows[-1:]]
        return CursorPage(rows, "{}.{}".format(*max(ends_at)) if ends else None)

    async def results_by_record_key(
        self, run_id: str, *, cursor: str | None = None, limit: int = 1000
    ) -> CursorPage[SortedResult]:
        run = await self._catalog.run(run_id)
        check_limit(limit)
        after, _ = _place(cursor)
        found = await self._db.fetch(self._sql["results_by_record_key"], run.no, after, limit)
        rows = tuple(
            SortedResult((hash_, 0), ResultRow(item, n, stage, key, url, record, record_key, "new", "run"))
            for hash_, item, n, stage, key, url, record, record_key in map(tuple, found)
        )
        return CursorPage(rows, f"{rows[-1].place[0].hex()}.0" if len(rows) == limit else None)

    async def results_by_item_key(
        self, run_id: str, *, stage: str, cursor: str | None = None, limit: int = 1000
    ) -> CursorPage[SortedResult]:
        run = await self._catalog.run(run_id)
        check_limit(limit)
        stage_id, (after, after_n) = run.stage_id(stage), _place(cursor)
        found = await self._db.fetch(self._sql["results_by_item_key"], run.no, stage_id, after, after_n, limit, limit)
        rows = tuple(
            SortedResult((hash_, n), ResultRow(item, n, stage, key, url, record))
            for hash_, n, item, key, url, record in map(tuple, found)
        )
        if len(rows) == limit:
            return CursorPage(rows, f"{rows[-1].place[0].hex()}.{rows[-1].place[1]}")
        ends = await self._db.fetch(self._sql["item_key_window_end"], stage_id, after, limit)
        return CursorPage(rows, f"{ends[0][0].hex()}.{_LAST_RECORD}" if ends else None)

    async def result_span(self, run_id: str) -> tuple[int, int] | None:
        run = await self._catalog.run(run_id)
        first, last = await self._db.row(self._sql["result_span"], run.no)
        return None if first is None else (first, last)

    async def events(
        self, *, run_id: str | None = None, cursor: str | None = None, limit: int = 50
    ) -> CursorPage[AuditEvent]:
        check_limit(limit)
        run_no = None if run_id is None else (await self._catalog.run(run_id)).no
        found = await self._db.fetch(self._sql["events"], run_no, int_cursor(cursor), limit)
        rows = tuple(event_from(row) for row in found)
        return CursorPage(rows, str(rows[-1].id) if len(rows) == limit else None)

    async def why_item(self, run_id: str, item: int) -> list[WaitReason]:
        row = await self._item_row(run_id, item, None, None)
        view = item_from(row)
        run = await self._runs.get(run_id)
        rank = "rank_ready" if view.state is ItemState.READY else "rank_waiting"
        lanes = await self._db.fetch(self._sql["item_lane"], run.no, item)
        times = await self._db.row(self._sql["run_times"], run.no)
        return explain.why_item(
            explain.ItemContext(
                run=run,
                run_changed_at=times["changed_at"],
                now=times["now"],
                full=self._full(),
                item=view,
                delay_reason=row["reason"],
                lane=lane_from(lanes[0]) if lanes else None,
                ahead=await self._db.value(self._sql[rank], run.no, item),
                workers=await self._workers.list(),
            )
        )

    async def why_run(self, run_id: str) -> list[WaitReason]:
        run = await self._runs.get(run_id)
        times = await self._db.row(self._sql["run_times"], run.no)
        delayed = [explain.DelayedGroup(*row) for row in await self._db.fetch(self._sql["delayed_reasons"], run.no)]
        lanes = await self._db.fetch(self._sql["busiest_lanes"], run.no)
        if any(group.reason == "blocked" for group in delayed):
            lanes = [*await self._db.fetch(self._sql["blocked_lanes"], run.no), *lanes]
        return explain.why_run(
            explain.RunContext(
                run=run,
                run_changed_at=times["changed_at"],
                now=times["now"],
                full=self._full(),
                partitions=await self.partitions(run_id),
                lanes=list({(lane.run_id, lane.key): lane for lane in map(lane_from, lanes)}.values()),
                delayed=delayed,
                holders=[explain.LeaseHolder(*row) for row in await self._db.fetch(self._sql["run_holders"], run.no)],
                workers=await self._workers.list(),
                scalings=[scaling_from(row) for row in await self._db.fetch(self._sql["scalings"], run.no)],
            )
        )

    async def _find(self, run_no: int, which: ItemFilter, after: int, most: int) -> tuple[list[int], int | None]:
        """The next items that may match, and the id up to which all were read (None: to the end)."""
        if which.ids:
            return sorted(id for id in set(which.ids) if id > after), None
        queues = [
            row["id"]
            for row in await self._db.fetch(self._sql["run_queues"], run_no)
            if which.stage in (None, row["stage"]) and which.partition in (None, row["partition"])
        ]
        some = None if which.stage is None and which.partition is None else queues
        states = which.states or tuple(ItemState)
        found: list[tuple[list[int], int | None]] = []

        async def add(query: str, *args: object) -> None:
            row = await self._db.row(self._sql[query], *args)
            ids = array_from(row["ids"])
            # After the last id of a full list nothing is known.
            found.append((ids, ids[-1] if len(ids) == most else row["seen_to"]))

        async def add_scanned(query: str, window_at: int, *args: object) -> None:
            """For tables where many rows may not match: first a small window, which is enough as a rule."""
            begin = len(found)
            for window in (max(most, SCAN_WINDOW), MAX_SCANNED):
                del found[begin:]
                await add(query, *args[:window_at], window, *args[window_at:])
                if len(found[begin][0]) == most or found[begin][1] is None:
                    return

        if which.outcome is None and which.error is None:
            if not which.states:
                await add("find_items", None, queues, after, most)
                return found[0]
            for state in set(states) - set(FINAL_STATES):
                await add("find_items", state.value, queues, after, most)
        elif set(states) - set(FINAL_STATES):
            await add_scanned("find_attempted", 3, run_no, after, most, which.outcome, which.error)
        if ItemState.DONE in states and which.error is None and which.outcome in (None, OutcomeClass.DONE):
            await add_scanned("find_done", 4, run_no, some, after, most)
        for state in set(RETRYABLE_STATES).intersection(states):
            await add_scanned("find_ended", 4, run_no, some, after, most, state.value, which.outcome, which.error)
        # Ids beyond the end of another table's list would be out of order.
        seen_to = min((end for _, end in found if end is not None), default=None)
        ids = sorted(id for ids, _ in found for id in ids if seen_to is None or id <= seen_to)
        return (ids[:most], ids[most - 1]) if len(ids) > most else (ids, seen_to)

    async def _item_row(self, run_id: str, id: int | None, key: str | None, stage: str | None) -> Row:
        run = await self._catalog.run(run_id)
        if (id is None) == (key is None):
            raise UsageError("Name the item by its id or by its key, not both.")
        if key is not None:
            stage_id = run.stage_id(stage or run.first_stage)
            found = await self._db.fetch(self._sql["item_by_key"], stage_id, key_hash(key))
            id = found[0]["id"] if found else -1
        rows = await self._db.fetch(self._sql["item_views"], run.no, [id])
        if not rows:
            raise NotFound(f"The run {run_id} has no item {key if key is not None else id!r}.")
        found_row: Row = rows[0]
        return found_row


def _place(cursor: str | None) -> tuple[bytes, int]:
    """The hash and the position that a cursor of a sorted list names."""
    if cursor is None:
        return b"", -1
    text, _, n = cursor.partition(".")
    try:
        return bytes.fromhex(text), int(n)
    except ValueError:
        raise UsageError(
            f"{cursor!r} is not a cursor of this list.", remedy="Use the cursor of the previous page, or none."
        ) from None


def _matches(view: ItemView, which: ItemFilter) -> bool:
    return (
        (not which.states or view.state in which.states)
        and which.stage in (None, view.stage)
        and which.partition in (None, view.partition)
        and which.outcome in (None, view.outcome)
        and (which.error is None or which.error in (view.error or ""))
    )
