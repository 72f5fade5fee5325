"""Operator commands on PostgreSQL."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from shoal.ledger.catalog import Catalog
from shoal.ledger.postgres.commits import follow_up_columns, key_columns, result_columns
from shoal.ledger.postgres.database import PostgresDatabase
from shoal.ledger.protocols import Reads
from shoal.ledger.steering import BaseSteering
from shoal.model.outcome import FinishedAttempt
from shoal.model.views import ReplayReport

RELEASE_BATCH = 1_000


class PostgresSteering(BaseSteering):
    def __init__(self, db: PostgresDatabase, queries: Mapping[str, str], catalog: Catalog, reads: Reads) -> None:
        super().__init__(catalog, reads)
        self._db = db
        self._sql = queries

    async def _release(self, older_than: float, run_no: int | None, reason: str) -> int:
        found = await self._db.fetch(self._sql["leases_older_than"], older_than, run_no)
        released = 0
        for at in range(0, len(found), RELEASE_BATCH):
            items, epochs = zip(*found[at : at + RELEASE_BATCH], strict=True)
            row = await self._db.row(self._sql["unlease"], list(items), list(epochs), "released", reason)
            released += row["back"]
        return released

    async def _retry(self, run_no: int, items: list[int]) -> int:
        retried: int = await self._db.value(self._sql["retry_items"], run_no, items)
        return retried

    async def _cancel(self, run_no: int, items: list[int], reason: str) -> int:
        ended: int = await self._db.value(self._sql["cancel_items"], run_no, items, reason)
        return ended

    async def _replay(self, finished: FinishedAttempt, replay_id: str) -> ReplayReport:
        lease = finished.lease
        row = await self._db.row(
            self._sql["replay_item"],
            *(lease.run_no, lease.item, lease.epoch, replay_id, finished.seconds),
            *result_columns([finished]),
            *await follow_up_columns(self._catalog, [finished]),
            *key_columns([finished]),
        )
        return ReplayReport(**dict(row))

    async def _record_event(
        self, run_no: int | None, by: str, action: str, subject: str, detail: dict[str, Any]
    ) -> None:
        text = msgspec.json.encode(detail).decode()
        await self._db.fetch(self._sql["insert_event"], run_no, by, action, subject, text)
