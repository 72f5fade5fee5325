"""The hot path on PostgreSQL: intake, claims, commits, workers. One server call each; the logic is in functions/."""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Mapping, Sequence
from operator import itemgetter

from shoal.errors import WorkerLost
from shoal.ledger.catalog import Catalog, RunFacts
from shoal.ledger.checks import detail_text
from shoal.ledger.claiming import ClaimRow, QueueClaims
from shoal.ledger.commits import CheckedCommits
from shoal.ledger.fairness import QueueRow
from shoal.ledger.intake import ChunkedIntake, Placed, placed_follow_ups
from shoal.ledger.postgres.columns import as_columns
from shoal.ledger.postgres.database import ClaimOutOfDate, ConnectionBroke, Database, Record
from shoal.ledger.postgres.idle import settle_idle
from shoal.ledger.workers import RegisteredWorkers
from shoal.model.item import Lease
from shoal.model.outcome import DONE, Finished
from shoal.model.views import CommitReport, Tending
from shoal.model.worker import WorkerSpec

PROMOTE_AT_ONCE = 1_000
RESCUE_AT_ONCE = 1_000


class PostgresIntake(ChunkedIntake):
    # Two keep the server busy while we prepare the third; more gain nothing.
    at_once = 2

    def __init__(self, db: Database, queries: Mapping[str, str], catalog: Catalog) -> None:
        super().__init__(catalog)
        self._db = db
        self._sql = queries

    async def _store(self, run: RunFacts, placed: Placed) -> tuple[int, int]:
        columns, lanes = as_columns(placed)
        row = await self._db.row(self._sql["enqueue"], uuid.uuid4(), run.no, *columns, *lanes)
        return row["enqueued"], row["duplicates"]


class PostgresClaims(QueueClaims):
    """Claims with a number each, so that a claim whose answer was lost is asked for again instead of repeated."""

    def __init__(self, db: Database, queries: Mapping[str, str], catalog: Catalog) -> None:
        super().__init__(db, queries)
        self._db = db
        self._catalog = catalog
        self._numbers = itertools.count(1)

    async def started(self, worker: str, leases: Sequence[Lease]) -> set[int]:
        if not leases:
            return set()
        held = await self._db.value(
            self._sql["started"], [lease.item for lease in leases], [lease.epoch for lease in leases]
        )
        return {lease.item for lease in leases}.difference(held)

    async def give_back(self, worker: str, leases: Sequence[Lease]) -> int:
        if not leases:
            return 0
        row = await self._db.row(
            self._sql["unlease"],
            [lease.item for lease in leases],
            [lease.epoch for lease in leases],
            "returned",
            None,
        )
        self._look_behind(worker)
        back: int = row["back"]
        return back

    async def reconcile(self, worker: str, known: Sequence[Lease]) -> int:
        returned: int = await self._db.value(
            self._sql["reconcile"],
            await self._catalog.worker_no(worker),
            [lease.item for lease in known],
            [lease.epoch for lease in known],
        )
        self._look_behind(worker)
        return returned

    async def _take(
        self, worker: str, queues: Sequence[QueueRow], after: Sequence[tuple[int, int]], most: Sequence[int], limit: int
    ) -> list[ClaimRow]:
        no = await self._catalog.worker_no(worker)
        give_up_at = time.monotonic() + self._db.patience
        while True:
            number = next(self._numbers)
            try:
                return await self._take_once(no, number, queues, after, most, limit)
            except ClaimOutOfDate:
                continue
            except ConnectionBroke:
                # Did it take anything? Asking also makes sure that it never will, should it still be on its way.
                recalled = await self._db.fetch(self._sql["recall"], no, number)
                if recalled:
                    return _in_claim_order(recalled, queues)
                if time.monotonic() > give_up_at:
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
        # A claim waits for nobody's lane: what is left is moved by the upkeep.
        row = await self._db.try_row(self._sql["promote_due"], PROMOTE_AT_ONCE, False)
        return 0 if row is None else row[0]


class PostgresCommits(CheckedCommits):
    def __init__(self, db: Database, queries: Mapping[str, str], catalog: Catalog) -> None:
        super().__init__(catalog)
        self._db = db
        self._sql = queries

    async def _commit(self, worker_no: int, finished: Sequence[Finished]) -> CommitReport:
        plain = all(end.verdict is DONE or end.verdict == DONE for end in finished) and not any(
            end.detail for end in finished
        )
        results = [(end.lease.item, n, record) for end in finished for n, record in enumerate(end.records)]
        row = await self._db.row(
            self._sql["commit"],
            worker_no,
            [end.lease.item for end in finished],
            [end.lease.epoch for end in finished],
            list({end.lease.run_no for end in finished}),
            None if plain else [end.verdict.kind.value for end in finished],
            None if plain else [end.verdict.outcome.value for end in finished],
            None if plain else [end.verdict.delay for end in finished],
            None if plain else _or_none([end.verdict.error for end in finished]),
            [end.seconds for end in finished],
            None if plain else _or_none([detail_text(end) for end in finished]),
            *([list(column) for column in zip(*results, strict=True)] if results else (None, None, None)),
            *await self._follow_ups(finished),
        )
        return CommitReport(
            committed=row["committed"],
            lost=tuple(row["lost"]),
            repeated=tuple(row["repeated"]),
            enqueued=row["enqueued"],
            duplicates=row["duplicates"],
        )

    async def _follow_ups(self, finished: Sequence[Finished]) -> tuple[object, ...]:
        placed = await placed_follow_ups(self._catalog, finished)
        if placed is None:
            return (None,) * 12
        columns, lanes = as_columns(placed)
        return (placed.parents, *columns, *lanes)


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


def _or_none(values: list[str | None]) -> list[str | None] | None:
    return values if any(value is not None for value in values) else None


def _in_claim_order(rows: list[Record], queues: Sequence[QueueRow]) -> list[ClaimRow]:
    """The server deletes and joins in whatever order suits it; sorting a batch is cheaper here."""
    rows.sort(key=_BY_PLACE)
    if len(queues) > 1:
        turn = {queue.id: n for n, queue in enumerate(queues)}
        rows.sort(key=lambda row: turn[row["queue"]])  # keeps the order within each queue
    return [ClaimRow(*row) for row in rows]


_BY_PLACE = itemgetter(3, 0)  # priority, item: as shoal.claim returns them
