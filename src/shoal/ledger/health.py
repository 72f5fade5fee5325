"""How the ledger itself is doing, on either backend: one query that both name alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from shoal.ledger.rows import Queryable
from shoal.model.views import Vitals


class SqlHealth:
    def __init__(self, queryable: Queryable, queries: Mapping[str, str]) -> None:
        self._queryable = queryable
        self._sql = queries

    def report_to(self, tell: Callable[[str], object]) -> None:
        """A ledger that notices nothing by itself has nothing to say."""

    async def examine(self) -> Vitals:
        return Vitals(**dict(await self._queryable.row(self._sql["vitals"])))
