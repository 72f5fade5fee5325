"""Operator commands on SQLite."""

from __future__ import annotations

from typing import Any

from shoal.ledger.catalog import Catalog
from shoal.ledger.protocols import Reads
from shoal.ledger.sqlite.connection import Transaction, json_text, micros
from shoal.ledger.sqlite.database import SqliteDatabase
from shoal.ledger.sqlite.moves import admit, release
from shoal.ledger.sqlite.runs import STEP, cancel_items
from shoal.ledger.steering import BaseSteering


def retry_items(tx: Transaction, no: int, items: str) -> int:
    """Retry dead, skipped or cancelled items. A finished or cancelled run becomes active."""
    if tx.value("run_state", no) in (None, "removed"):
        return 0
    retried = tx.run("retry_pick", no, items)
    if retried:
        tx.run("retry_leave")
        tx.run("retry_result_counts", no)
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

    async def _record_event(
        self, run_no: int | None, by: str, action: str, subject: str, detail: dict[str, Any]
    ) -> None:
        await self._db.write(lambda tx: tx.record_event(run_no, by, action, subject, detail))
