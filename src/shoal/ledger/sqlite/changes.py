"""The log of result changes on SQLite. One writer at a time: a change has its position from the commit on."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence

from shoal.ledger.catalog import Catalog
from shoal.ledger.changes import BaseChanges, FoundResult
from shoal.ledger.rows import Row
from shoal.ledger.sqlite.connection import Transaction, json_text
from shoal.ledger.sqlite.database import SqliteDatabase
from shoal.model.changes import ChangePosition, RecordRef


class SqliteChanges(BaseChanges):
    def __init__(self, db: SqliteDatabase, queries: Mapping[str, str], catalog: Catalog) -> None:
        super().__init__(db, queries, catalog)
        self._db = db

    async def _number(self) -> None:
        """Nothing to do."""

    async def _number_all(self) -> None:
        """Nothing to do."""

    async def _results(
        self, pairs: Sequence[tuple[int, int]], after_n: int, limit: int, max_bytes: int
    ) -> tuple[list[FoundResult], bool]:
        def read(connection: sqlite3.Connection) -> tuple[list[FoundResult], bool]:
            found: list[FoundResult] = []
            size = 0
            items = json_text([item for _, item in pairs])
            # One more than asked for tells whether these are all.
            for row in connection.execute(self._sql["changed_results"], (items, after_n, limit + 1)):
                if len(found) == limit or size >= max_bytes:
                    return found, False
                found.append(tuple(row))
                size += len(row[5])
            return found, True

        return await self._db.read(read)

    async def _move(
        self, name: str, start: ChangePosition, end: ChangePosition, delivered: int, dead: Mapping[RecordRef, str]
    ) -> bool:
        def work(tx: Transaction) -> bool:
            if not tx.run("move_cursor", name, *_parts(start), *_parts(end), delivered, tx.now):
                return bool(tx.value("cursor_is_at", name, *_parts(end)))
            if dead:
                rows = [(ref.run_id, ref.item, ref.n, reason) for ref, reason in dead.items()]
                tx.run("add_dead_letters", name, json_text(rows), tx.now)
            return True

        return await self._db.write(work)

    async def remove_dead_letters(self, name: str, refs: Sequence[RecordRef]) -> int:
        return len(await self._db.fetch(self._sql["remove_dead_letters"], name, _refs(refs)))

    async def _records(self, refs: Sequence[RecordRef]) -> list[Row]:
        return list(await self._db.fetch(self._sql["records_by_ref"], _refs(refs)))


def _parts(position: ChangePosition) -> tuple[int, int, int]:
    return position.change, position.item, position.n


def _refs(refs: Sequence[RecordRef]) -> list[tuple[str, int, int]]:
    return [(ref.run_id, ref.item, ref.n) for ref in refs]
