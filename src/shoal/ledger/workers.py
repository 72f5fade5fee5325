"""Workers: what is the same on both ledgers. Draining, stopping and burying are the backends' own."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from shoal.errors import WorkerLost
from shoal.ledger.catalog import Catalog
from shoal.ledger.checks import check_worker
from shoal.ledger.claims import BaseClaims
from shoal.ledger.rows import Queryable, worker_from
from shoal.model.worker import HeartbeatReply, WorkerReport, WorkerSpec, WorkerState, WorkerView


class BaseWorkers:
    def __init__(self, queryable: Queryable, queries: Mapping[str, str], catalog: Catalog, claims: BaseClaims) -> None:
        self._queryable = queryable
        self._sql = queries
        self._catalog = catalog
        self._claims = claims

    async def register(self, spec: WorkerSpec) -> None:
        check_worker(spec)
        await self._queryable.fetch(
            self._sql["register"],
            spec.id,
            spec.node,
            spec.pid,
            spec.version,
            spec.code,
            float(spec.lease_seconds),
            msgspec.json.encode(spec.scope).decode(),
        )

    async def heartbeat(self, worker: str, report: WorkerReport | None = None) -> HeartbeatReply:
        report_json = None if report is None else msgspec.json.encode(report).decode()
        rows = await self._queryable.fetch(self._sql["heartbeat"], worker, report_json)
        if not rows:
            self._forget(worker)
            raise WorkerLost(f"The worker {worker} was declared dead, or never registered.")
        return HeartbeatReply(WorkerState(rows[0]["state"]), rows[0]["settings_version"])

    async def list(self, *, present: bool = True) -> list[WorkerView]:
        return [worker_from(row) for row in await self._queryable.fetch(self._sql["list_workers"], present)]

    def _forget(self, worker: str) -> None:
        self._catalog.forget_worker(worker)
        self._claims.forget(worker)
