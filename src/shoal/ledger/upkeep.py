"""Maintenance and health on both ledgers.

Upkeep: what is the same on both ledgers. Tending is the backends' own.

How the ledger itself is doing, on either backend: one query that both name alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from shoal.errors import LedgerCorrupt
from shoal.ledger.rows import Queryable
from shoal.model.views import Finding, HealthReport
from shoal.model.worker import ALL_WORK, Scope

# A round of upkeep begins no further step after so long.
ROUND_SECONDS = 1.0
DUE_SCAN_LIMIT = 200


class UpkeepRound:
    """One round of upkeep. `left`: pieces that it could not finish in its time, or that the round before could not."""

    def __init__(self, left_before: frozenset[str]) -> None:
        self._ends_at = time.monotonic() + ROUND_SECONDS
        self._left_before = left_before
        self.left: frozenset[str] = frozenset()

    def was_unfinished(self, piece: str) -> bool:
        """Whether the round before left this piece unfinished."""
        return piece in self._left_before

    def has_time_for(self, piece: str) -> bool:
        """Whether this piece, which has more to do, may begin another step; if not, the next round goes on with it."""
        if time.monotonic() < self._ends_at:
            return True
        self.left |= {piece}
        return False


class BaseUpkeep:
    def __init__(self, queryable: Queryable, queries: Mapping[str, str]) -> None:
        self._queryable = queryable
        self._sql = queries
        self._left: frozenset[str] = frozenset()

    async def next_due(self, scope: Scope = ALL_WORK) -> float | None:
        partitions = None if scope.steal or not scope.partitions else list(scope.partitions)
        seconds: float | None = await self._queryable.value(
            self._sql["next_due"],
            scope.scraper,
            list(scope.run_ids) or None,
            list(scope.stages) or None,
            partitions,
            DUE_SCAN_LIMIT,
        )
        return None if seconds is None else max(0.0, seconds)

    async def audit(self, *, content: bool = False) -> list[Finding]:
        """Every query named audit_ finds what must not be. A server checks by itself whether its content is whole."""
        found: list[Finding] = []
        for name in sorted(self._sql):
            if name.startswith("audit_"):
                try:
                    found += [Finding(name, row["detail"]) for row in await self._queryable.fetch(self._sql[name])]
                except LedgerCorrupt as error:
                    found.append(Finding(name, error.message))
        return found


class SqlHealth:
    def __init__(self, queryable: Queryable, queries: Mapping[str, str]) -> None:
        self._queryable = queryable
        self._sql = queries

    def set_warning_handler(self, warn: Callable[[str], object]) -> None:
        """A ledger that notices nothing by itself has nothing to say."""

    async def check(self) -> HealthReport:
        return HealthReport(**dict(await self._queryable.row(self._sql["vitals"])))
