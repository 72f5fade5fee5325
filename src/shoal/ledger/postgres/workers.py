"""Workers on PostgreSQL."""

from __future__ import annotations

from collections.abc import Mapping

from shoal.errors import WorkerLost
from shoal.ledger.catalog import Catalog
from shoal.ledger.postgres.bulk import settle_idle
from shoal.ledger.postgres.claims import PostgresClaims
from shoal.ledger.postgres.database import Database
from shoal.ledger.workers import RegisteredWorkers
from shoal.model.views import Tending
from shoal.model.worker import WorkerSpec

RESCUE_AT_ONCE = 1_000


class PostgresWorkers(RegisteredWorkers):
    def __init__(self, db: Database, queries: Mapping[str, str], catalog: Catalog, claims: PostgresClaims) -> None:
        super().__init__(db, queries, catalog, claims)
        self._db = db

    async def register(self, spec: WorkerSpec) -> None:
        await super().register(spec)
        await settle_idle(self._db, self._sql)

    async def drain(self, worker: str, *, by: str = "") -> None:
        rows = await self._db.fetch(self._sql["drain"], worker, by)
        if not rows:
            raise WorkerLost(f"There is no live worker {worker!r}.", remedy="See which workers are present.")

    async def stop(self, worker: str) -> int:
        returned: int = await self._db.value(self._sql["stop_worker"], await self._catalog.worker_no(worker))
        self._forget(worker)
        return returned

    async def bury(self, worker: str) -> Tending:
        lost = await self._db.value(self._sql["declare_lost"], [await self._catalog.worker_no(worker)])
        self._forget(worker)
        rescued = quarantined = 0
        more = True
        while more:
            row = await self._db.row(self._sql["rescue"], RESCUE_AT_ONCE)
            rescued, quarantined, more = rescued + row["rescued"], quarantined + row["quarantined"], row["more"]
        return Tending(lost_workers=tuple(lost), rescued=rescued, quarantined=quarantined)
