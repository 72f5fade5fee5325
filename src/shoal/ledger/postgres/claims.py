"""Claims and workers on PostgreSQL: one server call each."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from operator import itemgetter

from shoal.errors import WorkerLost
from shoal.ledger.catalog import Catalog
from shoal.ledger.claims import BaseClaims, BaseWorkers, ClaimRow
from shoal.ledger.fairness import QueueRow
from shoal.ledger.postgres.database import PostgresDatabase, Record
from shoal.ledger.postgres.errors import ClaimSuperseded, ConnectionLost
from shoal.ledger.postgres.runs import update_idle_runs
from shoal.model.item import Lease
from shoal.model.views import UpkeepReport
from shoal.model.worker import WorkerSpec

PROMOTE_BATCH = 1_000
RESCUE_BATCH = 1_000


class PostgresClaims(BaseClaims):
    """Claims are numbered, so that a claim whose answer was lost is recalled instead of repeated."""

    def __init__(self, db: PostgresDatabase, queries: Mapping[str, str], catalog: Catalog) -> None:
        super().__init__(db, queries)
        self._db = db
        self._catalog = catalog
        self._numbers = itertools.count(1)

    async def mark_started(self, worker: str, leases: Sequence[Lease]) -> set[int]:
        if not leases:
            return set()
        held = await self._db.value(
            self._sql["mark_started"], [lease.item for lease in leases], [lease.epoch for lease in leases]
        )
        return {lease.item for lease in leases}.difference(held)

    async def return_leases(self, worker: str, leases: Sequence[Lease]) -> int:
        if not leases:
            return 0
        row = await self._db.row(
            self._sql["unlease"],
            [lease.item for lease in leases],
            [lease.epoch for lease in leases],
            "returned",
            None,
        )
        self._invalidate_caches(worker)
        back: int = row["back"]
        return back

    async def reconcile(self, worker: str, known: Sequence[Lease]) -> int:
        returned: int = await self._db.value(
            self._sql["reconcile"],
            await self._catalog.worker_no(worker),
            [lease.item for lease in known],
            [lease.epoch for lease in known],
        )
        self._invalidate_caches(worker)
        return returned

    async def _take(
        self, worker: str, queues: Sequence[QueueRow], after: Sequence[tuple[int, int]], most: Sequence[int], limit: int
    ) -> list[ClaimRow]:
        no = await self._catalog.worker_no(worker)
        deadline = time.monotonic() + self._db.patience
        while True:
            number = next(self._numbers)
            try:
                return await self._take_once(no, number, queues, after, most, limit)
            except ClaimSuperseded:
                continue
            except ConnectionLost:
                # Did it claim anything? This also voids the claim if it has not reached the server yet.
                recalled = await self._db.fetch(self._sql["recall_claim"], no, number)
                if recalled:
                    return _in_claim_order(recalled, queues)
                if time.monotonic() > deadline:
                    raise

    async def _take_once(
        self,
        no: int,
        number: int,
        queues: Sequence[QueueRow],
        after: Sequence[tuple[int, int]],
        most: Sequence[int],
        limit: int,
    ) -> list[ClaimRow]:
        rows = await self._db.fetch_once(
            self._sql["claim"],
            no,
            number,
            [queue.id for queue in queues],
            [place[0] for place in after],
            [place[1] for place in after],
            most,
            limit,
        )
        return _in_claim_order(rows, queues)

    async def _first_priorities(
        self, queues: Sequence[QueueRow], after: Sequence[tuple[int, int]], depth: int
    ) -> list[list[int]]:
        rows = await self._db.fetch(
            self._sql["first_priorities"],
            [queue.id for queue in queues],
            [place[0] for place in after],
            [place[1] for place in after],
            depth,
        )
        return [row["priorities"] for row in rows]

    async def _promote_due(self) -> int:
        # A claim does not wait for locked lanes: upkeep promotes the rest.
        row = await self._db.try_row(self._sql["promote_due"], PROMOTE_BATCH, False)
        return 0 if row is None else row[0]


def _in_claim_order(rows: list[Record], queues: Sequence[QueueRow]) -> list[ClaimRow]:
    """The server returns rows in any order; sorting a batch is cheaper here."""
    rows.sort(key=_BY_PRIORITY_AND_ITEM)
    if len(queues) > 1:
        turn = {queue.id: n for n, queue in enumerate(queues)}
        rows.sort(key=lambda row: turn[row["queue"]])  # keeps the order within each queue
    return [ClaimRow(*row) for row in rows]


_BY_PRIORITY_AND_ITEM = itemgetter(3, 0)  # priority, item: as shoal.claim returns them


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
        rows = await self._db.fetch(self._sql["drain_worker"], worker, by)
        if not rows:
            raise WorkerLost(f"There is no live worker {worker!r}.", remedy="`shoal workers ls` lists the workers.")

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
