"""Workers on PostgreSQL."""

from __future__ import annotations

from collections.abc import Mapping

from shoal.errors import WorkerLost
from shoal.ledger.catalog import Catalog
from shoal.ledger.postgres.bulk import update_idle_runs
from shoal.ledger.postgres.claims import PostgresClaims
from shoal.ledger.postgres.database import PostgresDatabase
from shoal.ledger.workers import BaseWorkers
from shoal.model.views import UpkeepReport
from shoal.model.worker import WorkerSpec

RESCUE_BATCH = 1_000


class PostgresWorkers(BaseWorkers):
    def __init__(
        self, db: PostgresDatabase, queries: Mapping[str, str], catalog: Catalog, claims: PostgresClaims
    ) -> None:
        super().__init__(db, queries, catalog, claims)
        self._db = db

    async def register(self, spec: WorkerSpec) -> None:
        await super().register(spec)
        await update_idle_runs(self._db, self._sql)

    async def drain(self, worker: str, *, by: str = "") -> None:
        rows = await self._db.fetch(self._sql["drain"], worker, by)
        if not rows:
            raise WorkerLost(f"There is no live worker {worker!r}.", remedy="See which workers are present.")

    async def stop(self, worker: str) -> int:
        returned: int = await self._db.value(self._sql["stop_worker"], await self._catalog.worker_no(worker))
        self._forget(worker)
        return returned

    async def mark_dead(self, worker: str) -> UpkeepReport:
        lost = await self._db.value(self._sql["declare_lost"], [await self._catalog.worker_no(worker)])
        self._forget(worker)
        rescued = quarantined = 0
        more = True
        while more:
            row = await self._db.row(self._sql["rescue"], RESCUE_BATCH)
            rescued, quarantined, more = rescued + row["rescued"], quarantined + row["quarantined"], row["more"]
        return UpkeepReport(lost_workers=tuple(lost), rescued=rescued, quarantined=quarantined)
