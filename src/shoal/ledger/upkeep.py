"""Upkeep: what is the same on both ledgers. Tending is the backends' own."""

from __future__ import annotations

from collections.abc import Mapping

from shoal.errors import LedgerCorrupt
from shoal.ledger.rows import Queryable
from shoal.model.views import Finding


class AuditedUpkeep:
    def __init__(self, queryable: Queryable, queries: Mapping[str, str]) -> None:
        self._queryable = queryable
        self._sql = queries

    async def next_due(self) -> float | None:
        seconds: float | None = await self._queryable.value(self._sql["next_due"])
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
