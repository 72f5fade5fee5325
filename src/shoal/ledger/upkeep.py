"""Upkeep and health on both ledgers; the rounds of upkeep are implemented by the backends."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from shoal.errors import LedgerCorrupt
from shoal.ledger.rows import Queryable
from shoal.model.views import Finding, HealthReport
from shoal.model.worker import ALL_WORK, Scope

# A round of upkeep starts no further step after so many seconds.
ROUND_SECONDS = 1.0
DUE_SCAN_LIMIT = 200


class UpkeepRound:
    """The time of one round of upkeep. `left`: tasks that it could not finish; the next round continues them."""

    def __init__(self, left_before: frozenset[str]) -> None:
        self._ends_at = time.monotonic() + ROUND_SECONDS
        self._left_before = left_before
        self.left: frozenset[str] = frozenset()

    def was_unfinished(self, task: str) -> bool:
        """Whether the round before left this task unfinished."""
        return task in self._left_before

    def has_time_for(self, task: str) -> bool:
        """Whether this task, which has more to do, may start another step; if not, the next round continues it."""
        if time.monotonic() < self._ends_at:
            return True
        self.left |= {task}
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
        """Run every query named audit_*. A database server checks its content itself."""
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
        """Only PostgreSQL has warnings."""

    async def check(self) -> HealthReport:
        return HealthReport(**dict(await self._queryable.row(self._sql["health"])))

    async def size_bytes(self) -> int:
        return int((await self._queryable.row(self._sql["ledger_size"]))["bytes"])
