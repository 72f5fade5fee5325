"""The hot path on PostgreSQL: intake, claims, commits, workers. One server call each; the logic is in functions/."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import Mapping, Sequence

import msgspec

from shoal.errors import WorkerLost
from shoal.ledger.catalog import Catalog, RunFacts
from shoal.ledger.checks import check_finished, check_worker, detail_text
from shoal.ledger.chunks import Chunk, Complaints, prepared_chunks
from shoal.ledger.claiming import ClaimRow, FairClaims
from shoal.ledger.fairness import QueueRow
from shoal.ledger.postgres.columns import as_columns
from shoal.ledger.postgres.database import ClaimOutOfDate, ConnectionBroke, Database, Record
from shoal.ledger.protocols import Entries
from shoal.ledger.rows import worker_from
from shoal.model.item import Claimed, Lease, PreparedItem, prepare
from shoal.model.outcome import Finished
from shoal.model.views import CommitReport, IntakeReport, Tending
from shoal.model.worker import Orders, Scope, WorkerSpec, WorkerState, WorkerView


class PostgresIntake:
    def __init__(self, db: Database, queries: Mapping[str, str], catalog: Catalog) -> None:
        self._db = db
        self._sql = queries
        self._catalog = catalog

    async def enqueue(self, run_id: str, entries: Entries, *, stage: str | None = None) -> IntakeReport:
        run = await self._catalog.run(run_id)
        stage = stage or run.first_stage
        run.stage_id(stage)
        complaints = Complaints([])
        enqueued = duplicates = invalid = 0
        sending: asyncio.Task[tuple[int, int]] | None = None
        try:
            # One chunk travels while the next is prepared.
            async for chunk in prepared_chunks(entries, stage, run.stages, complaints):
                if sending is not None:
                    new, old = await sending
                    enqueued, duplicates = enqueued + new, duplicates + old
                sending = asyncio.create_task(self._send(run, chunk))
                invalid += chunk.invalid
        finally:
            if sending is not None:
                new, old = await sending
                enqueued, duplicates = enqueued + new, duplicates + old
        return IntakeReport(
            enqueued=enqueued, duplicates=duplicates, invalid=invalid, complaints=tuple(complaints.found)
        )

    async def _send(self, run: RunFacts, chunk: Chunk) -> tuple[int, int]:
        if not chunk.items:
            return 0, 0
        stage_ids = [run.stages[item.stage] for item in chunk.items]
        queues = await self._catalog.queues(
            {(stage, item.partition) for item, stage in zip(chunk.items, stage_ids, strict=True)}
        )
        columns, lanes = as_columns(chunk.items, stage_ids, queues)
        row = await self._db.row(self._sql["enqueue"], uuid.uuid4(), run.no, *columns, *lanes)
        return row["enqueued"], row["duplicates"]


class PostgresClaims:
    """Claims with a number each, so that a claim whose answer was lost is asked for again instead of repeated."""

    def __init__(self, db: Database, queries: Mapping[str, str], catalog: Catalog) -> None:
        self._db = db
        self._sql = queries
        self._catalog = catalog
        self._numbers = itertools.count(1)
        self._fair = FairClaims(self)

    async def claim(self, worker: str, scope: Scope, limit: int) -> list[Claimed]:
        return await self._fair.claim(worker, scope, limit)

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
        self._fair.look_behind(worker)
        back: int = row["back"]
        return back

    async def reconcile(self, worker: str, known: Sequence[Lease]) -> int:
        returned: int = await self._db.value(
            self._sql["reconcile"],
            await self._catalog.worker_no(worker),
            [lease.item for lease in known],
            [lease.epoch for lease in known],
        )
        self._fair.look_behind(worker)
        return returned

    def forget(self, worker: str) -> None:
        self._fair.forget(worker)

    async def open_queues(self, scope: Scope) -> list[QueueRow]:
        partitions = None if scope.steal or not scope.partitions else list(scope.partitions)
        rows = await self._db.fetch(
            self._sql["open_queues"],
            scope.scraper,
            list(scope.run_ids) or None,
            list(scope.stages) or None,
            partitions,
        )
        return [QueueRow(*row) for row in rows]

    async def take(
        self, worker: str, queues: Sequence[QueueRow], after: Sequence[tuple[int, int]], limit: int
    ) -> list[ClaimRow]:
        no = await self._catalog.worker_no(worker)
        while True:
            number = next(self._numbers)
            try:
                return await self._take_once(no, number, queues, after, limit)
            except ClaimOutOfDate:
                continue
            except ConnectionBroke:
                # Did it take anything? Asking also makes sure that it never will, should it still be on its way.
                recalled = await self._db.fetch(self._sql["recall"], no, number)
                if recalled:
                    return [ClaimRow(*row) for row in recalled]

    async def _take_once(
        self, no: int, number: int, queues: Sequence[QueueRow], after: Sequence[tuple[int, int]], limit: int
    ) -> list[ClaimRow]:
        rows = await self._db.fetch_once(
            self._sql["claim"],
            no,
            number,
            [queue.id for queue in queues],
            [place[0] for place in after],
            [place[1] for place in after],
            limit,
        )
        return [ClaimRow(*row) for row in rows]

    async def promote_due(self) -> int:
        moved: int = await self._db.value(self._sql["promote_due"])
        return moved


class PostgresCommits:
    def __init__(self, db: Database, queries: Mapping[str, str], catalog: Catalog) -> None:
        self._db = db
        self._sql = queries
        self._catalog = catalog

    async def commit(self, worker: str, finished: Sequence[Finished]) -> CommitReport:
        if not finished:
            return CommitReport(committed=0, lost=(), repeated=(), enqueued=0, duplicates=0)
        check_finished(finished)
        no = await self._catalog.worker_no(worker)
        results = [(end.lease.item, n, record) for end in finished for n, record in enumerate(end.records)]
        row = await self._db.row(
            self._sql["commit"],
            no,
            [end.lease.item for end in finished],
            [end.lease.epoch for end in finished],
            [end.lease.run_no for end in finished],
            [end.verdict.kind.value for end in finished],
            [end.verdict.outcome.value for end in finished],
            [end.verdict.delay for end in finished],
            _or_none([end.verdict.error for end in finished]),
            [end.seconds for end in finished],
            _or_none([detail_text(end) for end in finished]),
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
        parents: list[int] = []
        items: list[PreparedItem] = []
        stage_ids: list[int] = []
        for end in finished:
            if not end.follow_ups:
                continue
            run = await self._catalog.run_by_no(end.lease.run_no)
            for new in end.follow_ups:
                item = prepare(new, run.first_stage)
                items.append(item)
                stage_ids.append(run.stage_id(item.stage))
                parents.append(end.lease.item)
        if not items:
            return (None,) * 12
        queues = await self._catalog.queues(
            {(stage, item.partition) for item, stage in zip(items, stage_ids, strict=True)}
        )
        columns, lanes = as_columns(items, stage_ids, queues)
        return (parents, *columns, *lanes)


class PostgresWorkers:
    def __init__(self, db: Database, queries: Mapping[str, str], catalog: Catalog, claims: PostgresClaims) -> None:
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
            spec.lease_seconds,
            msgspec.json.encode(spec.scope).decode(),
        )

    async def beat(self, worker: str) -> Orders:
        rows = await self._db.fetch(self._sql["beat"], worker)
        if not rows:
            self._forget(worker)
            raise WorkerLost(f"The worker {worker} was declared dead, or never registered.")
        return Orders(WorkerState(rows[0]["state"]), rows[0]["settings_version"])

    async def drain(self, worker: str, *, by: str = "") -> None:
        rows = await self._db.fetch(self._sql["drain"], worker, by)
        if not rows:
            raise WorkerLost(f"There is no live worker {worker!r}.", remedy="See which workers are present.")

    async def stop(self, worker: str) -> int:
        returned: int = await self._db.value(self._sql["stop_worker"], await self._catalog.worker_no(worker))
        self._forget(worker)
        return returned

    async def bury(self, worker: str) -> Tending:
        row = await self._db.row(self._sql["reap"], [await self._catalog.worker_no(worker)])
        self._forget(worker)
        return tending(row)

    async def list(self, *, present: bool = True) -> list[WorkerView]:
        return [worker_from(row) for row in await self._db.fetch(self._sql["list_workers"], present)]

    def _forget(self, worker: str) -> None:
        self._catalog.forget_worker(worker)
        self._claims.forget(worker)


def tending(row: Record) -> Tending:
    return Tending(lost_workers=tuple(row["lost_workers"]), rescued=row["rescued"], quarantined=row["quarantined"])


def _or_none(values: list[str | None]) -> list[str | None] | None:
    return values if any(value is not None for value in values) else None
