"""Operator commands on SQLite."""

from __future__ import annotations

from typing import Any

from shoal.ledger.catalog import Catalog
from shoal.ledger.commits import prepare_follow_ups
from shoal.ledger.protocols import Reads
from shoal.ledger.sqlite.commits import KeyedRecords, keyed_records, plain_counts, plain_records, store_keyed
from shoal.ledger.sqlite.connection import Transaction, json_text, micros
from shoal.ledger.sqlite.database import SqliteDatabase
from shoal.ledger.sqlite.intake import ItemBatch, as_batch, make_lanes, store_items
from shoal.ledger.sqlite.moves import admit, release
from shoal.ledger.sqlite.runs import STEP, cancel_items
from shoal.ledger.steering import BaseSteering
from shoal.model.outcome import FinishedAttempt
from shoal.model.views import ReplayReport


def retry_items(tx: Transaction, no: int, items: str) -> int:
    """Retry dead, skipped or cancelled items. A finished or cancelled run becomes active."""
    if tx.value("run_state", no) in (None, "removed"):
        return 0
    retried = tx.run("retry_pick", no, items)
    if retried:
        tx.run("retry_leave")
        tx.run("retry_failures")
        tx.run("retry_result_counts", no)
        tx.run("retry_changes", no, tx.now)
        tx.run("retry_results", no)
        tx.run("retry_history", no)
        tx.run("retry_ready", tx.now)
        tx.run("retry_waiting", no, tx.now)
        tx.run("retry_lanes")
        tx.run("retry_counts")
        tx.run("retry_touch")
        tx.run("retry_end")
        if (run_id := tx.value("reactivate_run", no, tx.now)) is not None:
            tx.record_event(no, "ledger", "run.active", run_id, {"because": "items are retried"})
        admit(tx)
        tx.should_notify = True
    return retried


def replay_item(
    tx: Transaction,
    finished: FinishedAttempt,
    replay_id: str,
    results: tuple[str | None, str],
    keyed: KeyedRecords | None,
    follow_ups: ItemBatch | None,
) -> ReplayReport:
    """Replace the results of a done or dead item; see `Steering.replay`."""
    no, item = finished.lease.run_no, finished.lease.item
    rows = tx.rows("replay_ended", item, no)
    ended = rows[0] if rows else None
    if ended is None or ended["epoch"] != finished.lease.epoch or ended["state"] not in ("done", "dead"):
        made_before = ended is not None and ended["replay"] == replay_id
        return ReplayReport(replayed=made_before, enqueued=0, duplicates=0, dropped_records=0)
    lane_ids = make_lanes(tx, follow_ups) if follow_ups is not None else []
    tx.run("replay_history", item)
    tx.run("replay_failure", item)
    tx.run("replay_outcome", item, tx.now, float(finished.seconds), replay_id)
    tx.run("replay_renumber", no, item)
    tx.run("replay_take", item, no, ended["queue"])
    records, counts = results
    if records is not None:
        tx.run("commit_results", records)
        tx.run("commit_result_counts", counts)
    dropped = store_keyed(tx, None, keyed) if keyed is not None else 0
    tx.run("commit_end")
    tx.run("replay_counts", ended["queue"], tx.run("replay_drop", no, item), int(ended["state"] == "dead"))
    tx.run("replay_compact", no, item)
    tx.run("replay_renumber", no, item)
    tx.run("replay_change", no, item, tx.now, ended["queue"])
    enqueued = duplicates = 0
    if follow_ups is not None:
        enqueued, duplicates = store_items(tx, follow_ups, lane_ids, {item})
    if enqueued:
        if (run_id := tx.value("reactivate_run", no, tx.now)) is not None:
            because = {"because": "a replayed item has new follow-ups"}
            tx.record_event(no, "ledger", "run.active", run_id, because)
        tx.should_notify = True
    admit(tx)
    return ReplayReport(replayed=True, enqueued=enqueued, duplicates=duplicates, dropped_records=dropped)


class SqliteSteering(BaseSteering):
    def __init__(self, db: SqliteDatabase, catalog: Catalog, reads: Reads) -> None:
        super().__init__(catalog, reads)
        self._db = db

    async def _release(self, older_than: float, run_no: int | None, reason: str) -> int:
        claimed_until = await self._db.write(lambda tx: tx.now - micros(older_than))
        released = 0
        while back := await self._db.write(lambda tx: release(tx, claimed_until, run_no, reason, STEP)):
            released += back
        return released

    async def _retry(self, run_no: int, items: list[int]) -> int:
        return await self._db.write(lambda tx: retry_items(tx, run_no, json_text(items)))

    async def _cancel(self, run_no: int, items: list[int], reason: str) -> int:
        return await self._db.write(lambda tx: cancel_items(tx, run_no, json_text(items), reason))

    async def _replay(self, finished: FinishedAttempt, replay_id: str) -> ReplayReport:
        ends = [finished]
        queued = await prepare_follow_ups(self._catalog, ends)
        results, batch = (plain_records(ends), plain_counts(ends)), None if queued is None else as_batch(queued)
        keyed = keyed_records(ends)
        return await self._db.write(lambda tx: replay_item(tx, finished, replay_id, results, keyed, batch))

    async def _record_event(
        self, run_no: int | None, by: str, action: str, subject: str, detail: dict[str, Any]
    ) -> None:
        await self._db.write(lambda tx: tx.record_event(run_no, by, action, subject, detail))
