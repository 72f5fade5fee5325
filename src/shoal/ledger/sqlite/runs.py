"""Runs on SQLite: create, seal, change of state; cancel, removal and lane work in bounded steps.

Lane work is stored with the run. `release`: a run that is paused, or that no worker serves, returns its admitted items
to shared lanes; deferred until another run waits for a lane, because then nothing may have to be moved at all.
`readmit`: the run is active again, so its lanes admit items.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from shoal.errors import InvalidSetting
from shoal.ledger.catalog import Catalog
from shoal.ledger.runs import LANE_WORK_SECONDS, BaseBulk, BaseRuns, BulkCursor, check_change
from shoal.ledger.sqlite.connection import Transaction, decoded, json_text, to_datetime
from shoal.ledger.sqlite.database import SqliteDatabase
from shoal.ledger.sqlite.moves import admit, admit_to
from shoal.model.json_text import PAYLOAD_BYTES
from shoal.model.json_text import json_text as checked_json
from shoal.model.run import Run, RunSpec, RunState, run_id_at
from shoal.model.url_key import KEY_VERSION

_HELD = ("next_delayed", "next_ready")
# A step holds the write lock for some milliseconds.
STEP = 1_000
_LOWEST_PRIORITY = -(2**31)
# Leases first, so that no commit adds items; ready last, because items that become due go there.
_OPEN = ("next_leased", "next_delayed", "next_waiting", "next_ready")
_LANE_WORK = {RunState.PAUSED: "release", RunState.ACTIVE: "readmit"}


async def update_idle_runs(db: SqliteDatabase, queries: Mapping[str, str]) -> None:
    """Mark runs that no worker serves as idle, and the others as not idle, and begin the lane work that follows.

    The upkeep of any worker continues it.
    """
    if not await db.fetch(queries["idle_changes"]):
        return
    changed = await db.write(_mark_idle)
    until = time.monotonic() + LANE_WORK_SECONDS
    for no in changed:
        while await db.write(partial(apply_lane_work, no=no)) and time.monotonic() < until:
            pass


def _mark_idle(tx: Transaction) -> list[int]:
    changed = [(row["no"], row["now_idle"]) for row in tx.rows("idle_changes")]
    for no, now_idle in changed:
        tx.run("set_idle", no, now_idle)
    return [no for no, _ in changed]


def apply_lane_work(tx: Transaction, no: int) -> bool:
    """One step of a run's lane work. True: there is more to do now."""
    for work, text, others_wait in tx.rows("lane_work", no):
        cursor: BulkCursor | None = decoded(text) if text else None
        if work == "release" and others_wait:
            cursor = _release_lane_slots(tx, no, cursor)
        elif work == "readmit":
            cursor = _readmit_from_lanes(tx, no, cursor)
        else:
            return False
        tx.run("set_lane_work", no, work if cursor else None, json_text(cursor) if cursor else None)
        return cursor is not None
    return False


def _release_lane_slots(tx: Transaction, no: int, cursor: BulkCursor | None) -> BulkCursor | None:
    for found, after in scan_run(tx, no, _HELD, cursor):
        pick = "release_slot_pick_ready" if _HELD[after[0]] == "next_ready" else "release_slot_pick_delayed"
        if tx.run(pick, after[1], json_text(found)):
            tx.run("release_slot_leave_ready")
            tx.run("release_slot_leave_delayed")
            tx.run("release_slot_waiting", no, tx.now)
            tx.run("release_slot_lanes")
            tx.run("release_slot_touch")
            tx.run("release_slot_counts")
            tx.run("release_slot_end")
            admit(tx)
        return after
    return None


def _readmit_from_lanes(tx: Transaction, no: int, cursor: BulkCursor | None) -> BulkCursor | None:
    last, lanes = tx.json("lanes_to_readmit", no, cursor[0] if cursor else 0, STEP)
    if lanes:
        admit_to(tx, json_text(lanes))
        tx.should_notify = True
    return None if last is None else (last,)


def cancel_items(tx: Transaction, no: int, items: str, reason: str | None) -> int:
    """End these items of a run, a JSON list, as cancelled, whatever their state. Ended items do not change.

    Without a reason no outcome is stored, because the run is removed.
    """
    cancelled = sum(tx.run(query, no, items, tx.now) for query in ("drop_ready", "drop_waiting", "drop_delayed"))
    cancelled += tx.run("drop_leased", no, items)
    if cancelled:
        tx.run("drop_leave_ready")
        tx.run("drop_leave_waiting", no)
        tx.run("drop_leave_delayed")
        tx.run("drop_leave_leased")
        if reason is not None:
            tx.run("drop_outcomes", no, tx.now, reason)
        tx.run("drop_lanes")
        tx.run("drop_counts")
        tx.run("drop_touch")
        tx.run("drop_end")
        admit(tx)
    return cancelled


def cancel_open_items(
    tx: Transaction, no: int, reason: str | None, cursor: BulkCursor | None = None
) -> tuple[int, BulkCursor | None]:
    """One step of ending the open items of a cancelled or (without a reason) removed run.

    Returns how many were ended and the new cursor; None: the pass is complete.
    """
    if tx.value("run_state", no) != ("removed" if reason is None else "cancelled"):
        return 0, None
    for found, after in scan_run(tx, no, _OPEN, cursor):
        return cancel_items(tx, no, json_text([item for _, item, _ in found]), reason), after
    return 0, None


def scan_run(
    tx: Transaction, no: int, tables: Sequence[str], cursor: BulkCursor | None
) -> Iterator[tuple[list[tuple[int, int, int | None]], BulkCursor]]:
    """A run's rows in these tables, a step at a time: (priority, item, lane) of each, and the cursor after them.

    A cursor is (index of the table, queue, priority, item).
    """
    begin = cursor or (0, 0, _LOWEST_PRIORITY, 0)
    queues = [row[0] for row in tx.rows("queue_ids", no)]
    for table in range(begin[0], len(tables)):
        for queue in queues:
            if [table, queue] < list(begin[:2]):
                continue
            after = begin[2:] if [table, queue] == list(begin[:2]) else (_LOWEST_PRIORITY, 0)
            found = tx.json(tables[table], queue, *after, STEP)
            if found:
                yield found, (table, queue, *found[-1][:2])


def purge(tx: Transaction, no: int) -> int:
    """Delete some items of a removed run without open items, with their data; 0: the run is deleted."""
    if tx.value("run_state", no) != "removed":
        return 0
    items = tx.value("purge_pick", no, STEP)
    tx.run("purge_results", no, items)
    tx.run("purge_attempts", items)
    tx.run("purge_outcomes", items)
    if deleted := tx.run("purge_items", items):
        return deleted
    if deleted := tx.run("purge_lanes", no, STEP) or tx.run("purge_changes", no, STEP):
        return deleted
    for what in (
        *("counts", "minutes", "activity", "author_counts", "states", "failure_minutes", "failures", "slow_lanes"),
        *("dead_letters", "queues", "stages", "notes", "run"),
    ):
        tx.run(f"forget_{what}", no)
    return 0


def truncate_if_only_run(tx: Transaction, no: int) -> None:
    """If the run is the only one, empty its tables: without a WHERE, SQLite drops whole pages unread."""
    if tx.value("other_runs", no):
        return
    for table in (
        "item",
        "ready",
        "waiting",
        "delayed",
        "lease",
        "outcome",
        "attempt",
        "result",
        "result_change",
        "queue_count",
        "minute_count",
        "failure_group",
        "failure_minute",
        "slow_lane",
        "run_activity",
        "author_count",
        "run_state",
    ):
        tx.run(f"empty_{table}")
    tx.run("reset_lanes")


class SqliteBulk(BaseBulk):
    def __init__(self, db: SqliteDatabase, queries: Mapping[str, str]) -> None:
        super().__init__(db, queries)
        self._db = db

    async def _cancel(
        self, run_no: int, reason: str | None, cursor: BulkCursor | None
    ) -> tuple[int, BulkCursor | None]:
        return await self._db.write(partial(cancel_open_items, no=run_no, reason=reason, cursor=cursor))

    async def _purge(self, run_no: int, cursor: BulkCursor | None) -> tuple[int, BulkCursor | None]:
        deleted = await self._db.write(partial(purge, no=run_no))
        return deleted, (0,) if deleted else None

    async def _apply_lane_work(self, run_no: int) -> bool:
        return await self._db.write(partial(apply_lane_work, no=run_no))


class SqliteRuns(BaseRuns):
    def __init__(self, db: SqliteDatabase, queries: Mapping[str, str], catalog: Catalog, bulk: BaseBulk) -> None:
        super().__init__(db, queries, catalog, bulk)
        self._db = db

    async def create(self, spec: RunSpec) -> Run:
        spec.checked()
        settings = checked_json(spec.stored_settings, "settings", PAYLOAD_BYTES, InvalidSetting)
        return await self.get(await self._db.write(lambda tx: _create(tx, spec, settings)))

    async def seal(self, run_id: str, *, by: str = "") -> None:
        no = (await self._catalog.run(run_id)).no

        def work(tx: Transaction) -> None:
            if tx.run("seal_run", no):
                tx.record_event(no, by, "run.sealed", run_id, {})

        await self._db.write(work)

    async def _truncate_if_only_run(self, no: int) -> None:
        await self._db.write(lambda tx: truncate_if_only_run(tx, no))

    async def _set_state(
        self, run_id: str, wanted: RunState, allowed: tuple[RunState, ...], by: str, because: str = ""
    ) -> int:
        no = (await self._catalog.run(run_id)).no
        await self._db.write(lambda tx: _set_state(tx, no, run_id, wanted, allowed, by, because))
        return no


def _create(tx: Transaction, spec: RunSpec, settings: str) -> str:
    """Create a run. Its id is the ledger's time, with a suffix when that id exists."""
    if (
        spec.idempotency_key is not None
        and (existing := tx.value("run_by_idempotency_key", spec.idempotency_key)) is not None
    ):
        return str(existing)
    taken = 0
    while True:
        run_id = run_id_at(to_datetime(tx.now), taken)
        no = tx.value(
            "insert_run",
            run_id,
            spec.scraper,
            settings,
            spec.code_version,
            KEY_VERSION,
            spec.max_attempts,
            spec.max_rescues,
            tx.now,
            spec.idempotency_key,
        )
        if no is not None:
            break
        taken += 1
    stages = [
        (
            stage.name,
            stage.max_attempts,
            stage.lane.limit,
            float(stage.lane.delay_min),
            float(stage.lane.delay_max),
            stage.lane.ordered,
            stage.lane.shared,
            stage.lane.loopback_limit,
        )
        for stage in spec.stages
    ]
    tx.run("insert_stages", no, json_text(stages))
    tx.record_event(no, "", "run.created", run_id, {"scraper": spec.scraper})
    return run_id


def _set_state(
    tx: Transaction, no: int, run_id: str, wanted: RunState, allowed: tuple[RunState, ...], by: str, because: str
) -> None:
    was = tx.value("run_state", no)
    check_change(run_id, was, wanted, allowed)
    if was != wanted:
        tx.run("change_run_state", no, wanted.value, tx.now)
        detail = {"from": was} | ({"because": because} if because else {})
        tx.record_event(no, by, f"run.{wanted.value}", run_id, detail)
        tx.should_notify = True
    tx.run("set_lane_work", no, _LANE_WORK.get(wanted), None)
