"""Workers who leave, by themselves or not."""

from __future__ import annotations

from collections.abc import Mapping

from shoal.errors import WorkerLost
from shoal.ledger.catalog import Catalog
from shoal.ledger.sqlite.bulk import update_idle_runs
from shoal.ledger.sqlite.claims import SqliteClaims
from shoal.ledger.sqlite.database import SqliteDatabase
from shoal.ledger.sqlite.moves import declare_lost, rescue, stop_worker
from shoal.ledger.sqlite.transaction import Transaction
from shoal.ledger.workers import BaseWorkers
from shoal.model.views import UpkeepReport
from shoal.model.worker import WorkerSpec


class SqliteWorkers(BaseWorkers):
    def __init__(self, db: SqliteDatabase, queries: Mapping[str, str], catalog: Catalog, claims: SqliteClaims) -> None:
        super().__init__(db, queries, catalog, claims)
        self._db = db

    async def register(self, spec: WorkerSpec) -> None:
        await super().register(spec)
        await update_idle_runs(self._db, self._sql)

    async def drain(self, worker: str, *, by: str = "") -> None:
        def work(tx: Transaction) -> bool:
            if not tx.run("drain_worker", worker):
                return False
            tx.record_event(None, by, "worker.draining", worker, {})
            return True

        if not await self._db.write(work):
            raise WorkerLost(f"There is no live worker {worker!r}.", remedy="See which workers are present.")

    async def stop(self, worker: str) -> int:
        no = await self._catalog.worker_no(worker)
        returned = await self._db.write(lambda tx: stop_worker(tx, no))
        self._forget(worker)
        return returned

    async def mark_dead(self, worker: str) -> UpkeepReport:
        no = await self._catalog.worker_no(worker)
        lost = await self._db.write(lambda tx: declare_lost(tx, (no,)))
        self._forget(worker)
        rescued = quarantined = 0
        more = True
        while more:
            back, dead, more = await self._db.write(rescue)
            rescued, quarantined = rescued + back, quarantined + dead
        return UpkeepReport(lost_workers=lost, rescued=rescued, quarantined=quarantined)
