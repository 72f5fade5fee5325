"""The log of result changes on PostgreSQL. A change gets its position (shoal.number_changes) before it is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shoal.ledger.catalog import Catalog
from shoal.ledger.changes import BaseChanges, FoundResult
from shoal.ledger.postgres.database import PostgresDatabase
from shoal.ledger.rows import Row
from shoal.model.changes import ChangePosition, RecordRef

NUMBERED_AT_ONCE = 5_000


class PostgresChanges(BaseChanges):
    def __init__(self, db: PostgresDatabase, queries: Mapping[str, str], catalog: Catalog) -> None:
        super().__init__(db, queries, catalog)
        self._db = db

    async def _number(self) -> None:
        await self._db.fetch(self._sql["number_changes"], NUMBERED_AT_ONCE)

    async def _number_all(self) -> None:
        """In steps: if nobody has read the log so far, it has as many changes as there were commits."""
        last = await self._db.value(self._sql["last_unnumbered"])
        while last is not None and await self._db.value(self._sql["is_unnumbered_until"], last):
            await self._number()

    async def _results(
        self, pairs: Sequence[tuple[int, int]], after_n: int, limit: int, max_bytes: int
    ) -> tuple[list[FoundResult], bool]:
        runs, items = [run for run, _ in pairs], [item for _, item in pairs]
        # One more than asked for tells whether these are all.
        rows = await self._db.fetch(self._sql["changed_results"], runs, items, after_n, limit + 1, max_bytes)
        found: list[FoundResult] = [(pair - 1, *rest) for pair, *rest, _ in rows[:limit]]
        return found, not rows or len(found) == rows[0]["selected"]

    async def _move(
        self, name: str, start: ChangePosition, end: ChangePosition, delivered: int, dead: Mapping[RecordRef, str]
    ) -> bool:
        moved: bool = await self._db.value(
            self._sql["move_cursor"],
            name,
            *(start.change, start.item, start.n),
            *(end.change, end.item, end.n),
            delivered,
            *_columns(list(dead)),
            list(dead.values()),
        )
        return moved

    async def remove_dead_letters(self, name: str, refs: Sequence[RecordRef]) -> int:
        return len(await self._db.fetch(self._sql["remove_dead_letters"], name, *_columns(refs)))

    async def _records(self, refs: Sequence[RecordRef]) -> list[Row]:
        return list(await self._db.fetch(self._sql["records_by_ref"], *_columns(refs)))


def _columns(refs: Sequence[RecordRef]) -> tuple[list[str], list[int], list[int]]:
    return [ref.run_id for ref in refs], [ref.item for ref in refs], [ref.n for ref in refs]
