"""Claims and workers on SQLite: ready to lease, delayed to ready, and started items."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence

import msgspec

from shoal.errors import WorkerLost
from shoal.ledger.catalog import Catalog
from shoal.ledger.claims import BaseClaims, BaseWorkers, ClaimRow
from shoal.ledger.fairness import QueueRow
from shoal.ledger.sqlite.connection import Transaction, json_text
from shoal.ledger.sqlite.database import SqliteDatabase
from shoal.ledger.sqlite.moves import admit, declare_lost, reconcile, rescue, stop_worker, unlease
from shoal.ledger.sqlite.runs import update_idle_runs
from shoal.model.item import Lease
from shoal.model.views import UpkeepReport
from shoal.model.worker import WorkerSpec

PROMOTE_BATCH = 1_000


class _PickedRow(ClaimRow, array_like=True, gc=False):
    """A claimed row as claim_pick writes it."""


_decode_priorities = msgspec.json.Decoder(list[int]).decode
_decode_picked = msgspec.json.Decoder(list[_PickedRow], strict=False).decode


class SqliteClaims(BaseClaims):
    def __init__(self, db: SqliteDatabase, queries: Mapping[str, str], catalog: Catalog) -> None:
        super().__init__(db, queries)
        self._db = db
        self._catalog = catalog

    async def mark_started(self, worker: str, leases: Sequence[Lease]) -> set[int]:
        if not leases:
            return set()
        pairs = pairs_text(leases)
        held = await self._db.write(lambda tx: start(tx, pairs))
        return {lease.item for lease in leases}.difference(held)

    async def return_leases(self, worker: str, leases: Sequence[Lease]) -> int:
        if not leases:
            return 0
        pairs = pairs_text(leases)
        back, _ = await self._db.write(lambda tx: unlease(tx, pairs, "returned", None))
        self._invalidate_caches(worker)
        return back

    async def reconcile(self, worker: str, known: Sequence[Lease]) -> int:
        no = await self._catalog.worker_no(worker)
        pairs = pairs_text(known)
        returned = await self._db.write(lambda tx: reconcile(tx, no, pairs))
        self._invalidate_caches(worker)
        return returned

    async def _take(
        self, worker: str, queues: Sequence[QueueRow], after: Sequence[tuple[int, int]], most: Sequence[int], limit: int
    ) -> list[ClaimRow]:
        # `after` is not needed: SQLite has no dead rows that a claim would read again.
        no = await self._catalog.worker_no(worker)
        return await self._db.write(lambda tx: take(tx, no, queues, most, limit))

    async def _first_priorities(
        self, queues: Sequence[QueueRow], after: Sequence[tuple[int, int]], depth: int
    ) -> list[list[int]]:
        rows = await self._db.fetch(self._sql["first_priorities"], [queue.id for queue in queues], depth)
        return [_decode_priorities(row[0]) for row in rows]

    async def _promote_due(self) -> int:
        if not await self._db.value(self._sql["anything_due"]):
            return 0
        return await self._db.write(promote_due)


def take(tx: Transaction, worker: int, queues: Sequence[QueueRow], most: Sequence[int], limit: int) -> list[ClaimRow]:
    """Up to `limit` ready rows of these queues, in the given order, and up to `most` of each.

    A row whose lane does not allow a start soon is not leased; it goes to `delayed` and keeps its slot: see claim_pick.
    """
    if not tx.run("claim_heartbeat", worker, tx.now):
        raise WorkerLost("This worker was declared dead, or never registered.")
    taken: list[ClaimRow] = []
    for queue, share in zip(queues, most, strict=True):
        rows = _pick(tx, queue.id, min(share, limit - len(taken)))
        if not rows:
            continue
        count = len(rows)
        deferred = json_text([row.item for row in rows if row.deferred])
        leased = tx.run("claim_lease", queue.id, count, tx.now, worker, queue.run_no, deferred)
        if leased < count:
            tx.run("claim_defer", queue.id, count, tx.now, queue.run_no, deferred)
        tx.run("claim_leave", queue.id, rows[-1].priority, rows[-1].item)
        tx.run("claim_counts", queue.id, count, leased, count - leased)
        taken.extend(rows)
        if len(taken) >= limit:
            break
    return taken


def _pick(tx: Transaction, queue: int, limit: int) -> list[_PickedRow]:
    while True:
        try:
            rows = _decode_picked(tx.value("claim_pick", queue, limit, tx.now))
        except sqlite3.DataError:  # the payloads exceed SQLite's limit of a billion bytes for one value
            if limit == 1:
                raise
            limit //= 2
        else:
            return rows


def start(tx: Transaction, pairs: str) -> list[int]:
    """Mark items as started without a reservation. A lane with a delay counts from now and admits its next item.

    Returns the items whose lease is still valid.
    """
    if tx.run("started_pick", pairs):
        tx.run("started_mark", tx.now)
        tx.run("started_lanes", tx.now)
        tx.run("started_end")
    if tx.run("started_touch", pairs):
        admit(tx)
    held: list[int] = tx.json("leases_held", pairs)
    return held


def promote_due(tx: Transaction) -> int:
    """Move items that are due, at most PROMOTE_BATCH; returns how many."""
    moved = tx.run("promote_pick", tx.now, PROMOTE_BATCH)
    if not moved:
        return 0
    tx.run("promote_leave")
    tx.run("promote_ready", tx.now)
    if tx.run("promote_waiting", tx.now):
        tx.run("promote_lanes")
        tx.run("promote_touch")
    tx.run("promote_counts")
    tx.run("promote_end")
    admit(tx)
    tx.should_notify = True
    return moved


def pairs_text(leases: Sequence[Lease]) -> str:
    return json_text([(lease.item, lease.epoch) for lease in leases])


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
            raise WorkerLost(f"There is no live worker {worker!r}.", remedy="`shoal workers ls` lists the workers.")

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
