"""Operator commands on SQLite."""

from __future__ import annotations

from typing import Any

from shoal.ledger.catalog import Catalog
from shoal.ledger.protocols import Reads
from shoal.ledger.sqlite.bulk import STEP, cancel_items, retry_items
from shoal.ledger.sqlite.database import SqliteDatabase
from shoal.ledger.sqlite.moves import release
from shoal.ledger.sqlite.transaction import json_text, micros
from shoal.ledger.steering import BaseSteering


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
