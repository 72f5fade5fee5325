"""Reads on both ledgers: the queries have the same names and columns. Each reads few rows."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import msgspec

from shoal.errors import InvalidItem, InvalidSetting, NotFound, UsageError
from shoal.ledger import explain
from shoal.ledger.catalog import CachedRun, Catalog
from shoal.ledger.history import read_points
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
    lock_from,
    scaling_from,
)
from shoal.model.history import HistoryPoint
from shoal.model.item import FINAL_STATES, MAX_NAME_BYTES, RETRYABLE_STATES, ItemState
from shoal.model.lane import LaneView
from shoal.model.outcome import OutcomeClass
from shoal.model.run import Run, RunState
from shoal.model.url_key import MAX_URL_BYTES, check_text, key_hash, url_key
from shoal.model.views import (
    AttemptError,
    AttemptView,
    AuditEvent,
    ChildItem,
    Counts,
    CursorPage,
    FailedItem,
    ItemCount,
    ItemFilter,
    ItemView,
    OldestLease,
    PartitionProgress,
    RecentActivity,
    ResultRow,
    SortedResult,
    StaleClaim,
    WaitReason,
    WorkerProgress,
)
from shoal.model.worker import WORKER_PLACE_PREFIX, WorkerView

SCAN_WINDOW = 1_000
BUSIEST_LANES = 5
# So many items are read for one page when no index answers the filter; some tens of milliseconds.
MAX_SCANNED = 5_000
# So many items are read at a time for a text in their keys and URLs.
TEXT_WINDOW = 10_000
# A filter by text or lane is applied to so many items in these states at a time.
MAX_REFINED = 10_000
# So many items of a lane are read for a page when their states must be looked up.
LANE_WINDOW = 1_000
# A count reads so many items in full at a time.
COUNTED_VIEWS = 1_000
EVENTS_WINDOW = 5_000
RATE_MINUTES = 5
MAX_EXPLAINED = 200
MAX_PLACES = 20
# So many keys are looked up in other runs at a time, first in the newest stages, where most are found as a rule.
KEYS_AT_ONCE = 1_000
STAGES_AT_ONCE = 50
# So many pairs of a key and a stage are looked up with one query: some tens of milliseconds when they are in memory.
LOOKUPS_AT_ONCE = 50_000
_LAST_RECORD = 2**31 - 1
_LAST_EVENT = 2**62
OPEN = "open"
Found = tuple[list[int], int | None, bool]


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

    async def author_counts(self, run_id: str) -> dict[str, int]:
        run = await self._catalog.run(run_id)
        return {row["name"]: row["number"] for row in await self._db.fetch(self._sql["author_counts"], run.no)}

    async def partitions(self, run_id: str) -> list[PartitionProgress]:
        await self._catalog.run(run_id)
        progress = []
        for row in await self._db.fetch(self._sql["partitions"], run_id):
            counts = dict(row)
            stage, partition = counts.pop("stage"), counts.pop("partition")
            progress.append(PartitionProgress(stage=stage, partition=partition, counts=Counts(**counts)))
        return progress

    async def partition_page(
        self, run_id: str, *, stage: str | None = None, cursor: str | None = None, limit: int = 50
    ) -> CursorPage[PartitionProgress]:
        run = await self._catalog.run(run_id)
        check_limit(limit)
        wanted = sorted((run.stage_id(name), name) for name in ([stage] if stage is not None else run.stages))
        first, _, after = (cursor or "0 ").partition(" ")
        if not first.isdecimal() or len(first) > 18:
            raise UsageError(
                f"{cursor!r} is not a cursor of this list.", remedy="Use the cursor of the previous page, or none."
            )
        found: list[tuple[int, str, Row]] = []
        for stage_id, name in wanted:
            if stage_id >= int(first) and len(found) < limit:
                again = stage_id == int(first)
                rows = await self._db.fetch(
                    *(
                        self._sql["partition_page"],
                        stage_id,
                        after if again else "",
                        limit - len(found),
                        None,
                        not again,
                    )
                )
                found += [(stage_id, name, row) for row in rows]
        queues = [row["queue"] for _, _, row in found]
        rates = {
            row["queue"]: row["ended"] / RATE_MINUTES
            for row in (await self._db.fetch(self._sql["partition_rates"], queues, RATE_MINUTES) if queues else [])
        }
        progress = tuple(
            PartitionProgress(
                stage=name,
                partition=row["partition"],
                counts=_counts_from(row),
                rate=rates.get(row["queue"], 0.0),
            )
            for _, name, row in found
        )
        last = found[-1] if len(found) == limit else None
        return CursorPage(progress, None if last is None else f"{last[0]} {last[2]['partition']}")

    async def workers(self, run_id: str, *, minutes: int = 60) -> list[WorkerProgress]:
        run = await self._catalog.run(run_id)
        return [WorkerProgress(**dict(r)) for r in await self._db.fetch(self._sql["worker_progress"], run.no, minutes)]

    async def recent(self, run_id: str, *, minutes: int = 5, stage: str | None = None) -> RecentActivity:
        run = await self._catalog.run(run_id)
        if stage is None:
            row = await self._db.row(self._sql["recent"], run.no, minutes)
        else:
            row = await self._db.row(self._sql["recent_of_stage"], run.no, minutes, run.stage_id(stage))
        return RecentActivity(**dict(row))

    async def items(
        self, run_id: str, which: ItemFilter = ALL_ITEMS, *, cursor: str | None = None, limit: int = 50
    ) -> CursorPage[ItemView]:
        run = await self._catalog.run(run_id)
        _check_filter(run, which)
        check_limit(limit)
        named = await self._named(run, which)
        rows: list[ItemView] = []
        if cursor is None and named:
            rows = (await self._matching_named(run.no, named, which))[:limit]
            if rows:
                # What was asked for by its name is not kept waiting for the search of others.
                return CursorPage(tuple(rows), "0")
        ids, seen_to, _ = await self._find(run, which, int_cursor(cursor) or 0, limit - len(rows))
        for view in await self._item_views(run.no, [id for id in ids if id not in named]):
            if _matches(view, which):
                rows.append(view)
                if len(rows) == limit:
                    return CursorPage(tuple(rows), str(view.id))
        return CursorPage(tuple(rows), None if seen_to is None else str(seen_to))

    async def count_items(
        self, run_id: str, which: ItemFilter = ALL_ITEMS, *, at_most: int = 10_000, seconds: float = 0.05
    ) -> ItemCount:
        run = await self._catalog.run(run_id)
        _check_filter(run, which)
        check_limit(at_most)
        if not _needs_items(which):
            return ItemCount(await self._counted(run, which), False)
        if which == ItemFilter(failure=which.failure):
            rows = await self._db.fetch(self._sql["get_failure"], run.no, which.failure)
            return ItemCount(rows[0]["items"] if rows else 0, False)
        ends_at = time.monotonic() + seconds
        named = await self._named(run, which)
        found = {view.id for view in await self._matching_named(run.no, named, which)}
        after: int | None = 0
        while True:
            ids, after, exact = await self._find(run, which, after or 0, at_most + 1)
            if not exact:
                ids = [view.id for view in await self._item_views(run.no, ids[:COUNTED_VIEWS]) if _matches(view, which)]
            found.update(ids)
            if after is None or len(found) > at_most or time.monotonic() >= ends_at:
                return ItemCount(min(len(found), at_most), after is not None or len(found) > at_most)

    async def children(self, run_id: str, item: int, *, limit: int = 50) -> tuple[ChildItem, ...]:
        run = await self._catalog.run(run_id)
        check_limit(limit)
        ids = [row["id"] for row in await self._db.fetch(self._sql["children"], run.no, item, 0, limit)]
        return tuple(
            ChildItem(id=view.id, stage=view.stage, name=view.url or view.key or "", state=view.state)
            for view in await self._item_views(run.no, ids)
        )

    async def item(
        self, run_id: str, *, id: int | None = None, key: str | None = None, stage: str | None = None
    ) -> ItemView:
        return item_from(await self._item_row(run_id, id, key, stage))

    async def finished_elsewhere(
        self,
        run_id: str,
        stage: str,
        key_hashes: Sequence[bytes],
        *,
        failed: bool = False,
        in_finished_runs: bool = False,
    ) -> set[bytes]:
        run = await self._catalog.run(run_id)
        found_stages = await self._db.fetch(self._sql["stages_elsewhere"], run.no, stage, failed, in_finished_runs)
        stages = [row["id"] for row in found_stages]
        found: set[bytes] = set()
        for start in range(0, len(key_hashes), KEYS_AT_ONCE):
            found |= await self._ended_keys(stages, key_hashes[start : start + KEYS_AT_ONCE], failed=failed)
        return found

    async def _ended_keys(self, stages: Sequence[int], key_hashes: Sequence[bytes], *, failed: bool) -> set[bytes]:
        """Those of the keys that have ended in one of these stages.

        No index has keys without their stages, so a key that none has costs one lookup for each. The fewer keys are
        left, the more stages are asked at a time.
        """
        found: set[bytes] = set()
        left, asked, count = list(key_hashes), 0, STAGES_AT_ONCE
        while left and asked < len(stages):
            own = stages[asked : asked + count]
            rows = await self._db.fetch(self._sql["finished_keys"], own, b"".join(left), failed)
            found |= {bytes(row["key_hash"]) for row in rows}
            left = [hash_ for hash_ in left if hash_ not in found]
            asked += count
            count = LOOKUPS_AT_ONCE // max(1, len(left))
        return found

    async def records_elsewhere(self, run_id: str, stage: str) -> int:
        await self._catalog.run(run_id)
        found: int = await self._db.value(self._sql["records_elsewhere"], run_id, stage)
        return found

    async def attempts(self, run_id: str, item: int) -> list[AttemptView]:
        run = await self._catalog.run(run_id)
        return [attempt_from(row) for row in await self._db.fetch(self._sql["attempts"], run.no, item)]

    async def failed(self, run_id: str, *, cursor: str | None = None, limit: int = 50) -> CursorPage[FailedItem]:
        run = await self._catalog.run(run_id)
        check_limit(limit)
        found = await self._db.fetch(self._sql["failed"], run.no, int_cursor(cursor) or 0, limit)
        rows = tuple(FailedItem(**dict(row)) for row in found)
        return CursorPage(rows, str(rows[-1].item) if len(rows) == limit else None)

    async def errors(self, run_id: str, *, limit: int = 20, final: bool = False) -> list[AttemptError]:
        run = await self._catalog.run(run_id)
        check_limit(limit)
        rows = [dict(row) for row in await self._db.fetch(self._sql["errors"], run.no, limit, int(final))]
        return [AttemptError(**{**row, "final": bool(row["final"])}) for row in rows]

    async def stale(self, *, older_than: float = 1800.0, limit: int = 100) -> list[StaleClaim]:
        check_limit(limit)
        return [StaleClaim(**dict(row)) for row in await self._db.fetch(self._sql["stale"], older_than, limit)]

    async def oldest_leases(self, run_id: str, *, limit: int = 1000) -> list[OldestLease]:
        run = await self._catalog.run(run_id)
        check_limit(limit)
        return [OldestLease(**dict(row)) for row in await self._db.fetch(self._sql["oldest_leases"], run.no, limit)]

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

    async def item_results(self, run_id: str, item: int, *, limit: int = 20) -> tuple[ResultRow, ...]:
        run = await self._catalog.run(run_id)
        check_limit(limit)
        found = await self._db.fetch(self._sql["results"], run.no, item, -1, limit, None, limit)
        return tuple(row for row in (ResultRow(*each) for each in found) if row.item == item)

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
        self,
        *,
        run_id: str | None = None,
        actor: str | None = None,
        action: str | None = None,
        cursor: str | None = None,
        limit: int = 50,
    ) -> CursorPage[AuditEvent]:
        check_limit(limit)
        run_no = None if run_id is None else (await self._catalog.run(run_id)).no
        before = _LAST_EVENT if cursor is None else int_cursor(cursor)
        filtered = actor is not None or action is not None
        window = max(limit, EVENTS_WINDOW) if filtered else limit
        found = await self._db.fetch(self._sql["events_filtered"], run_no, before, window, actor, action, limit)
        rows = tuple(event_from(row) for row in found)
        if len(rows) == limit:
            return CursorPage(rows, str(rows[-1].id))
        if not filtered:
            return CursorPage(rows, None)
        query, more = ("events_window_end", ()) if run_no is None else ("run_events_window_end", (run_no,))
        ends = await self._db.fetch(self._sql[query], before, window, *more)
        return CursorPage(rows, str(ends[0]["id"]) if ends else None)

    async def last_pause(self, run: Run) -> AuditEvent | None:
        if run.state is not RunState.PAUSED:
            return None
        found = (await self.events(run_id=run.id, action="run.paused", limit=1)).rows
        return found[0] if found else None

    async def history(
        self, run_id: str, *, seconds: float, step: int, until: dt.datetime | None = None
    ) -> list[HistoryPoint]:
        run = await self._catalog.run(run_id)
        if until is None:
            until = (await self._db.row(self._sql["run_times"], run.no))["now"]
        return await read_points(self._db, self._sql, run.no, until=until.timestamp(), seconds=seconds, step=step)

    async def waiting_lanes(self, run_id: str, *, limit: int = 100) -> list[LaneView]:
        run = await self._catalog.run(run_id)
        check_limit(limit)
        return [lane_from(row) for row in await self._db.fetch(self._sql["busiest_lanes"], run.no, limit)]

    async def why_item(self, run_id: str, item: int) -> list[WaitReason]:
        row = await self._item_row(run_id, item, None, None)
        view = item_from(row)
        run = await self._runs.get(run_id)
        rank = "rank_ready" if view.state is ItemState.READY else "rank_waiting"
        lanes = await self._db.fetch(self._sql["item_lane"], run.no, item)
        times, pause = await self._db.row(self._sql["run_times"], run.no), await self.last_pause(run)
        return explain.why_item(
            explain.ItemContext(
                run=run,
                run_changed_at=times["changed_at"],
                pause=pause,
                now=times["now"],
                full=self._full(),
                item=view,
                delay_reason=row["reason"],
                lane=lane_from(lanes[0]) if lanes else None,
                ahead=await self._db.value(self._sql[rank], run.no, item),
                workers=await self._workers.list(),
            )
        )

    async def why_items(
        self, run_id: str, items: Sequence[int], *, workers: Sequence[WorkerView] | None = None
    ) -> dict[int, WaitReason]:
        if len(items) > MAX_EXPLAINED:
            raise InvalidSetting(f"{len(items)} items cannot be explained at once; at most {MAX_EXPLAINED}.")
        run = await self._runs.get(run_id)
        rows = await self._db.fetch(self._sql["item_views"], run.no, list(items))
        if not rows:
            return {}
        times, pause = await self._db.row(self._sql["run_times"], run.no), await self.last_pause(run)
        found = [lane_from(row) for row in await self._db.fetch(self._sql["item_lanes"], run.no, list(items))]
        # If a lane of the run and a shared one have the same name, the items here are most often of the run's own.
        lanes = {lane.key: lane for lane in sorted(found, key=lambda lane: lane.run_id is not None)}
        full = self._full()
        if workers is None:
            workers = await self._workers.list()
        return explain.why_items(
            explain.ItemContext(
                run=run,
                run_changed_at=times["changed_at"],
                pause=pause,
                now=times["now"],
                full=full,
                item=view,
                delay_reason=row["reason"],
                lane=lanes.get(view.lane) if view.lane is not None else None,
                ahead=None,
                workers=workers,
            )
            for row, view in ((row, item_from(row)) for row in rows)
        )

    async def why_run(self, run_id: str, *, workers: Sequence[WorkerView] | None = None) -> list[WaitReason]:
        run = await self._runs.get(run_id)
        times, pause = await self._db.row(self._sql["run_times"], run.no), await self.last_pause(run)
        delayed = [explain.DelayedGroup(*row) for row in await self._db.fetch(self._sql["delayed_reasons"], run.no)]
        lanes = await self._db.fetch(self._sql["busiest_lanes"], run.no, BUSIEST_LANES)
        if any(group.reason == "blocked" for group in delayed):
            lanes = [*await self._db.fetch(self._sql["blocked_lanes"], run.no), *lanes]
        return explain.why_run(
            explain.RunContext(
                run=run,
                run_changed_at=times["changed_at"],
                pause=pause,
                now=times["now"],
                full=self._full(),
                partitions=await self.partitions(run_id),
                lanes=list({(lane.run_id, lane.key): lane for lane in map(lane_from, lanes)}.values()),
                delayed=delayed,
                holders=[explain.LeaseHolder(*row) for row in await self._db.fetch(self._sql["run_holders"], run.no)],
                workers=await self._workers.list() if workers is None else workers,
                scalings=[scaling_from(row) for row in await self._db.fetch(self._sql["scalings"], run.no)],
                places=await self._worker_places(run.scraper, times["now"]),
            )
        )

    async def _worker_places(self, scraper: str, now: dt.datetime) -> list[str]:
        rows = await self._db.fetch(self._sql["list_locks"], f"{WORKER_PLACE_PREFIX}{scraper}/", MAX_PLACES)
        return [place.taken_by for place in map(lock_from, rows) if place.until > now]

    async def _find(self, run: CachedRun, which: ItemFilter, after: int, most: int) -> Found:
        """The next items that may match, the id up to which all were read (None: to the end), and whether all match."""
        if which.ids:
            return sorted(id for id in set(which.ids) if id > after), None, False
        exact = which.outcome is None and which.error is None
        if which.failure is not None:
            row = await self._db.row(self._sql["find_failure"], run.no, which.failure, after, most)
            return *_full_list(row, most), which == ItemFilter(failure=which.failure)
        lanes: list[int] | None = None
        if which.lane is not None:
            named = await self._db.fetch(self._sql["lanes_named"], run.no, which.lane)
            lanes = [row["id"] for row in named]
            if not lanes:
                return [], None, True
            if not which.states or await self._counted(run, which) > MAX_REFINED:
                window = most if not which.states and exact and which.text is None else LANE_WINDOW
                row = await self._db.row(self._sql["find_in_lanes"], run.no, lanes, after, window)
                ids, seen_to = _full_list(row, window)
                if which.states and ids:
                    ends = {state.value if state in FINAL_STATES else OPEN for state in which.states}
                    row = await self._db.row(self._sql["refine_ends"], run.no, ids, sorted(ends))
                    ids = array_from(row["ids"])
                return ids, seen_to, which == ItemFilter(lane=which.lane)
        if which.text is not None and not which.states and lanes is None and exact:
            queues = None
            if which.stage is not None or which.partition is not None:
                queues = await self._queues(run.no, which)
            first, last = await self._span(run.no)
            begin = max(after, first - 1)
            row = await self._db.row(self._sql["find_text"], run.no, queues, begin, most, TEXT_WINDOW, which.text, last)
            return *_full_list(row, most), True
        if lanes is None and which.text is None:
            return *await self._find_by_state(run.no, which, after, most), exact or not _has_open_state(which)
        # No index has all: of those in these states, some have the text and the lane.
        ids, seen_to = await self._find_by_state(run.no, which, after, max(most, MAX_REFINED))
        refined = await self._db.row(self._sql["refine_items"], run.no, ids, lanes, which.text)
        matching = array_from(refined["ids"])
        if len(matching) > most:
            matching, seen_to = matching[:most], matching[most - 1]
        return matching, seen_to, exact or not _has_open_state(which)

    async def _find_by_state(
        self, run_no: int, which: ItemFilter, after: int, most: int
    ) -> tuple[list[int], int | None]:
        queues = await self._queues(run_no, which)
        some = None if which.stage is None and which.partition is None else queues
        states = which.states or tuple(ItemState)
        found: list[tuple[list[int], int | None]] = []

        async def add(query: str, *args: object) -> None:
            row = await self._db.row(self._sql[query], *args)
            found.append(_full_list(row, most))

        async def add_scanned(query: str, window_at: int, *args: object) -> None:
            """For tables where many rows may not match: first a small window, which is enough as a rule."""
            begin = len(found)
            for window in (min(max(most, SCAN_WINDOW), MAX_SCANNED), MAX_SCANNED):
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
            if some is None:
                first, last = await self._span(run_no)
                await add_scanned("find_done_of_run", 3, run_no, max(after, first - 1), most, last)
            else:
                await add_scanned("find_done", 4, run_no, some, after, most)
        for state in set(RETRYABLE_STATES).intersection(states):
            await add_scanned("find_ended", 4, run_no, some, after, most, state.value, which.outcome, which.error)
        # Ids beyond the end of another table's list would be out of order.
        seen_to = min((end for _, end in found if end is not None), default=None)
        ids = sorted(id for ids, _ in found for id in ids if seen_to is None or id <= seen_to)
        return (ids[:most], ids[most - 1]) if len(ids) > most else (ids, seen_to)

    async def _span(self, run_no: int) -> tuple[int, int]:
        """The first and the last item of a run."""
        row = await self._db.row(self._sql["item_span"], run_no)
        return row["first"] or 1, row["last"] or 0

    async def _queues(self, run_no: int, which: ItemFilter) -> list[int]:
        return [
            row["id"]
            for row in await self._db.fetch(self._sql["run_queues"], run_no)
            if which.stage in (None, row["stage"]) and which.partition in (None, row["partition"])
        ]

    async def _counted(self, run: CachedRun, which: ItemFilter) -> int:
        """How many items there are in these states, this stage and this partition, by the counters."""
        states = [state.value for state in which.states or tuple(ItemState)]
        if which.partition is None:
            counts = [await self.stats(run.id, stage=which.stage)]
        else:
            stages = run.stages.values() if which.stage is None else [run.stage_id(which.stage)]
            counts = [
                _counts_from(row)
                for stage in stages
                for row in await self._db.fetch(self._sql["partition_page"], stage, "", 1, which.partition, True)
            ]
        return sum(getattr(each, state) for each in counts for state in states)

    async def _named(self, run: CachedRun, which: ItemFilter) -> list[int]:
        """The items whose key or URL is the text of the filter."""
        if which.text is None or which.ids or which.failure is not None:
            return []
        hashes = {key_hash(which.text)}
        with suppress(InvalidItem):
            hashes.add(key_hash(url_key(which.text)))
        stages = run.stages.values() if which.stage is None else [run.stage_id(which.stage)]
        found = [
            row["id"]
            for stage in stages
            for hash_ in hashes
            for row in await self._db.fetch(self._sql["item_by_key"], stage, hash_)
        ]
        return sorted(set(found))

    async def _matching_named(self, run_no: int, named: Sequence[int], which: ItemFilter) -> list[ItemView]:
        which = msgspec.structs.replace(which, text=None)
        return [view for view in await self._item_views(run_no, named) if _matches(view, which)]

    async def _item_views(self, run_no: int, ids: Sequence[int]) -> list[ItemView]:
        if not ids:
            return []
        return [item_from(row) for row in await self._db.fetch(self._sql["item_views"], run_no, list(ids))]

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
        and which.lane in (None, view.lane)
        and which.outcome in (None, view.outcome)
        and (which.error is None or which.error in (view.error or ""))
        and (which.failure is None or view.state is ItemState.DEAD)
        and (which.text is None or which.text in (view.key or "") or which.text in (view.url or ""))
    )


def _check_filter(run: CachedRun, which: ItemFilter) -> None:
    if which.stage is not None:
        run.stage_id(which.stage)
    if which.text is not None:
        check_text("text", which.text, MAX_URL_BYTES)
    if which.lane is not None:
        check_text("lane", which.lane, MAX_NAME_BYTES)
    if which.failure is not None and not 0 < which.failure < 2**31:
        raise NotFound(f"The run {run.id} has no failure group {which.failure}.")


def _full_list(row: Row, most: int) -> tuple[list[int], int | None]:
    ids = array_from(row["ids"])
    # After the last id of a full list nothing is known.
    return ids, ids[-1] if len(ids) == most else row["seen_to"]


def _needs_items(which: ItemFilter) -> bool:
    """Whether the counters cannot answer how many items match."""
    return which != ItemFilter(states=which.states, stage=which.stage, partition=which.partition)


def _has_open_state(which: ItemFilter) -> bool:
    return not which.states or bool(set(which.states) - set(FINAL_STATES))


def _counts_from(row: Row) -> Counts:
    return Counts(**{name: row[name] for name in Counts.__struct_fields__})
