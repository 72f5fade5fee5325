"""Groups of dead items on PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.ledger.failures import BaseFailures, GroupedItem


class PostgresFailures(BaseFailures):
    async def _store(self, run_no: int, items: Sequence[GroupedItem]) -> int:
        keys = [each.key for each in items]
        stored: int = await self._queryable.value(
            self._sql["group_failures"],
            run_no,
            [each.item for each in items],
            [each.epoch for each in items],
            [key.stage for key in keys],
            [key.outcome for key in keys],
            [key.host for key in keys],
            [key.shape for key in keys],
        )
        return stored

    async def _set_muted(self, run_no: int, failure: int, muted: bool, by: str) -> None:
        await self._queryable.fetch(self._sql["mute_failure"], run_no, failure, muted, by)
