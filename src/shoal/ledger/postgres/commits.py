"""Commits on PostgreSQL: one server call for a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shoal.ledger.catalog import Catalog
from shoal.ledger.checks import detail_text
from shoal.ledger.commits import CheckedCommits
from shoal.ledger.intake import placed_follow_ups
from shoal.ledger.postgres.database import Database
from shoal.ledger.postgres.intake import as_columns, none_if_empty
from shoal.model.outcome import DONE, Finished
from shoal.model.views import CommitReport


class PostgresCommits(CheckedCommits):
    def __init__(self, db: Database, queries: Mapping[str, str], catalog: Catalog) -> None:
        super().__init__(catalog)
        self._db = db
        self._sql = queries

    async def _commit(self, worker_no: int, finished: Sequence[Finished]) -> CommitReport:
        plain = all(end.verdict is DONE or end.verdict == DONE for end in finished) and not any(
            end.detail for end in finished
        )
        results = [(end.lease.item, n, record) for end in finished for n, record in enumerate(end.records)]
        row = await self._db.row(
            self._sql["commit"],
            worker_no,
            [end.lease.item for end in finished],
            [end.lease.epoch for end in finished],
            list({end.lease.run_no for end in finished}),
            None if plain else [end.verdict.kind.value for end in finished],
            None if plain else [end.verdict.outcome.value for end in finished],
            None if plain else [end.verdict.delay for end in finished],
            None if plain else none_if_empty([end.verdict.error for end in finished]),
            [end.seconds for end in finished],
            None if plain else none_if_empty([detail_text(end) for end in finished]),
            *([list(column) for column in zip(*results, strict=True)] if results else (None, None, None)),
            *await self._follow_ups(finished),
        )
        return CommitReport(
            committed=row["committed"],
            lost=tuple(row["lost"]),
            repeated=tuple(row["repeated"]),
            enqueued=row["enqueued"],
            duplicates=row["duplicates"],
        )

    async def _follow_ups(self, finished: Sequence[Finished]) -> tuple[object, ...]:
        placed = await placed_follow_ups(self._catalog, finished)
        if placed is None:
            return (None,) * 12
        columns, lanes = as_columns(placed)
        return (placed.parents, *columns, *lanes)
