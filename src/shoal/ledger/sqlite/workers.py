"""Workers: registering, heartbeats, leaving."""

from __future__ import annotations

from collections.abc import Mapping

from shoal.errors import WorkerLost
from shoal.ledger.catalog import Catalog
from shoal.ledger.checks import check_worker
from shoal.ledger.rows import worker_from
from shoal.ledger.sqlite.claims import SqliteClaims
from shoal.ledger.sqlite.database import Database
from shoal.ledger.sqlite.transaction import Transaction, json_text
from shoal.ledger.sqlite.unlease import reap, stop_worker
from shoal.model.views import Tending
from shoal.model.worker import Orders, WorkerSpec, WorkerState, WorkerView


class SqliteWorkers:
    def __init__(self, db: Database, queries: Mapping[str, str], catalog: Catalog, claims: SqliteClaims) -> None:
        self._db = db
        self._sql = queries
        self._catalog = catalog
        self._claims = claims

    async def register(self, spec: WorkerSpec) -> None:
        check_worker(spec)
        await self._db.fetch(
            self._sql["register"],
            spec.id,
            spec.node,
            spec.pid,
            spec.version,
            float(spec.lease_seconds),
            json_text(spec.scope),
        )

    async def beat(self, worker: str) -> Orders:
        rows = await self._db.fetch(self._sql["beat"], worker)
        if not rows:
            self._forget(worker)
            raise WorkerLost(f"The worker {worker} was declared dead, or never registered.")
        return Orders(WorkerState(rows[0]["state"]), rows[0]["settings_version"])

    async def drain(self, worker: str, *, by: str = "") -> None:
        def work(tx: Transaction) -> bool:
            if not tx.run("drain_worker", worker):
                return False
            tx.note(None, by, "worker.draining", worker, {})
            return True

        if not await self._db.write(work):
            raise WorkerLost(f"There is no live worker {worker!r}.", remedy="See which workers are present.")

    async def stop(self, worker: str) -> int:
        no = await self._catalog.worker_no(worker)
        returned = await self._db.write(lambda tx: stop_worker(tx, no))
        self._forget(worker)
        return returned

    async def bury(self, worker: str) -> Tending:
        no = await self._catalog.worker_no(worker)
        buried = await self._db.write(lambda tx: reap(tx, (no,)))
        self._forget(worker)
        return buried

    async def list(self, *, present: bool = True) -> list[WorkerView]:
        return [worker_from(row) for row in await self._db.fetch(self._sql["list_workers"], present)]

    def _forget(self, worker: str) -> None:
        self._catalog.forget_worker(worker)
        self._claims.forget(worker)
