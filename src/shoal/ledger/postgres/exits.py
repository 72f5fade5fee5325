"""Exits on PostgreSQL: one server call each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shoal.ledger.catalog import Catalog
from shoal.ledger.exits import MAX_HOSTS, BaseExits
from shoal.ledger.postgres.database import PostgresDatabase
from shoal.ledger.protocols import Budgets
from shoal.model.egress import ExitReport, ExitSpec, ExitState, HealthRules, PoolKind


class PostgresExits(BaseExits):
    def __init__(self, db: PostgresDatabase, queries: Mapping[str, str], catalog: Catalog, budgets: Budgets) -> None:
        super().__init__(db, queries, catalog, budgets)
        self._db = db

    async def _register(
        self, worker_no: int, pool: str, kind: PoolKind, name: str, exits: Sequence[ExitSpec], complete: bool
    ) -> None:
        keys, labels = [spec.key for spec in exits], [spec.label for spec in exits]
        await self._db.fetch(self._sql["register_exits"], worker_no, pool, kind, name, keys, labels, complete)

    async def _report(
        self, worker_no: int, pool: str, number: int, reports: Sequence[ExitReport], rules: HealthRules
    ) -> None:
        hosts = [(report.key, host) for report in reports for host in report.hosts]
        await self._db.fetch(
            self._sql["report_exits"],
            worker_no,
            pool,
            number,
            [report.key for report in reports],
            [report.succeeded for report in reports],
            [report.failed for report in reports],
            [report.failures_in_row for report in reports],
            [report.error for report in reports],
            [report.trial for report in reports],
            [report.answered > 0 for report in reports],
            [key for key, _ in hosts],
            [host.host for _, host in hosts],
            [host.succeeded for _, host in hosts],
            [host.blocked for _, host in hosts],
            [host.blocks_in_row for _, host in hosts],
            [host.error for _, host in hosts],
            rules.ban_after,
            float(rules.ban_for),
            rules.block_after,
            float(rules.block_for),
            MAX_HOSTS,
        )

    async def _start_trial(self, worker_no: int, pool: str, key: str, seconds: float) -> bool:
        won: bool = await self._db.value(self._sql["start_trial"], worker_no, pool, key, seconds)
        return won

    async def _end_bans(self, pool: str, keys: Sequence[str]) -> None:
        await self._db.fetch(self._sql["end_bans"], pool, keys)

    async def _set(self, pool: str, key: str, state: ExitState, seconds: float | None, why: str, by: str) -> bool:
        return await self._db.value(self._sql["set_exit"], pool, key, state.value, seconds, why, by) is not None
