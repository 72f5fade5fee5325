"""Claims on both ledgers (which queues, in which order, what happens when a batch is short), and their workers."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import msgspec

from shoal.errors import InvalidSetting, WorkerLost
from shoal.ledger.catalog import Catalog
from shoal.ledger.fairness import QueueGroup, QueueHeads, QueueRow, limit_queues, order_queues
from shoal.ledger.rows import Queryable, array_from, check_limit, int_cursor, worker_from
from shoal.model.item import ClaimedItem
from shoal.model.views import CursorPage, HeldItem
from shoal.model.worker import HeartbeatReply, NodeView, Scope, WorkerReport, WorkerSpec, WorkerState, WorkerView

MAX_CLAIM = 10_000
QUEUES_PER_CLAIM = 64
REFRESH_SECONDS = 1.0
RESCAN_SECONDS = 2.0
PROMOTE_SECONDS = 0.1
# Before a claim from queues with different priorities, at least so many items of each queue are read.
MIN_LOOK_AHEAD = 4
FROM_START = (-(1 << 31), 0)
# A list of one machine's workers reads so many workers for a page.
WORKERS_WINDOW = 5_000
_LAST_NUMBER = 2**62


class ClaimRow(msgspec.Struct, gc=False):
    """One row as a backend claims it. A deferred row was not leased, because its lane does not allow a start now."""

    item: int
    epoch: int
    queue: int
    priority: int
    tries: int
    rescues: int
    max_attempts: int | None
    lane: str | None
    url: str | None
    key: str | None
    payload: str | None
    request: str | None
    depth: int
    deferred: bool
    paced: bool
    waited: float | None = None


class QueueCache:
    """The queues that one worker knows, with keyset hints, kept between two claims."""

    def __init__(self, scope: Scope) -> None:
        self._own = frozenset(scope.partitions)
        self._steal = scope.steal
        self._rows: dict[int, QueueRow] = {}
        self._hints: dict[int, tuple[int, int]] = {}
        self._turn = 0
        self.refreshed_at = float("-inf")
        self._rescanned_at = float("-inf")

    def refresh(self, rows: list[QueueRow], now: float) -> None:
        self._rows = {row.id: row for row in rows}
        self.refreshed_at = now

    def next_round(self, now: float) -> list[QueueGroup]:
        if now - self._rescanned_at > RESCAN_SECONDS:
            # Rows that became ready late, or with a higher priority, are before the hints.
            self.forget_hints(now)
        groups = order_queues(self._rows.values(), self._own, self._turn, steal=self._steal)
        self._turn += 1
        return limit_queues(groups, QUEUES_PER_CLAIM)

    def after(self, rows: Sequence[QueueRow]) -> list[tuple[int, int]]:
        return [self._hints.get(row.id, FROM_START) for row in rows]

    def forget_hints(self, now: float) -> bool:
        had_any = bool(self._hints)
        self._hints.clear()
        self._rescanned_at = now
        return had_any

    def invalidate(self, now: float) -> None:
        """The known queues had too few items: read the list of queues again next time."""
        self.forget_hints(now)
        self.refreshed_at = float("-inf")

    def update_hints(self, claimed: Sequence[ClaimRow]) -> None:
        for row in claimed:
            place = (row.priority, row.item)
            if place > self._hints.get(row.queue, FROM_START):
                self._hints[row.queue] = place

    def update_head(self, queue: QueueRow, left: Sequence[int]) -> None:
        """`left`: priorities of the first items that a claim leaves in a queue."""
        self._rows[queue.id] = msgspec.structs.replace(queue, head=left[0] if left else queue.priority_max)

    def drop(self, rows: Sequence[QueueRow]) -> None:
        for row in rows:
            self._rows.pop(row.id, None)

    @staticmethod
    def to_claimed_item(row: ClaimRow, queue: QueueRow) -> ClaimedItem:
        return ClaimedItem(
            row.item,
            row.epoch,
            queue.run_no,
            queue.run_id,
            queue.stage,
            queue.partition,
            row.priority,
            row.url,
            row.key,
            row.payload,
            row.lane,
            row.tries,
            row.rescues,
            row.max_attempts if row.max_attempts is not None else queue.max_attempts,
            row.paced,
            row.request,
            row.depth,
            row.waited,
        )


class BaseClaims(ABC):
    """Claims that are fair between runs and stages, with own partitions first; cheap when many items are ready."""

    def __init__(self, queryable: Queryable, queries: Mapping[str, str]) -> None:
        self._queryable = queryable
        self._sql = queries
        self._caches: dict[tuple[str, Scope], QueueCache] = {}
        self._promoted_at = float("-inf")

    @abstractmethod
    async def _take(
        self, worker: str, queues: Sequence[QueueRow], after: Sequence[tuple[int, int]], most: Sequence[int], limit: int
    ) -> list[ClaimRow]:
        """Claim from these queues, in this order, in one transaction: at most `most` of each, and `limit` in total.

        `after` is the position of the last claim in each.
        """

    @abstractmethod
    async def _first_priorities(
        self, queues: Sequence[QueueRow], after: Sequence[tuple[int, int]], depth: int
    ) -> list[list[int]]:
        """The priorities of the first items of each queue, at most `depth` of each, without claiming them."""

    @abstractmethod
    async def _promote_due(self) -> int:
        """Move items that are due; returns how many."""

    async def claim(self, worker: str, scope: Scope, limit: int) -> list[ClaimedItem]:
        if type(limit) is not int or not 1 <= limit <= MAX_CLAIM:
            raise InvalidSetting(f"The batch size is {limit!r}; it must be from 1 to {MAX_CLAIM}.")
        cache = self._caches.setdefault((worker, scope), QueueCache(scope))
        now = time.monotonic()
        if now - self._promoted_at > PROMOTE_SECONDS:
            await self._promote(now)
        fresh = now - cache.refreshed_at > REFRESH_SECONDS
        if fresh:
            cache.refresh(await self._open_queues(scope), now)
        promoted = False
        while True:
            now = time.monotonic()
            groups = cache.next_round(now)
            queues = [queue for group in groups for queue in group.queues]
            rows = await self._take_by_priority(worker, cache, groups, limit) if queues else []
            by_id = {queue.id: queue for queue in queues}
            claimed = [cache.to_claimed_item(row, by_id[row.queue]) for row in rows if not row.deferred]
            cache.update_hints(rows)
            if claimed:
                if len(rows) < limit:
                    cache.invalidate(now)
                return claimed
            if rows or cache.forget_hints(now):
                continue  # all were deferred, or there may be rows before the hints
            cache.drop(queues)
            if not queues:
                # Once: a claim does not promote all due items of others.
                if fresh and (promoted or not await self._promote(now)):
                    return []
                promoted = fresh
                cache.refresh(await self._open_queues(scope), now)
                fresh = True

    async def _take_by_priority(
        self, worker: str, cache: QueueCache, groups: Sequence[QueueGroup], limit: int
    ) -> list[ClaimRow]:
        """Claim rows, and sort them into the order in which they should start."""
        if not any(group.merged for group in groups):
            # The usual case, one priority or one queue, needs no look-ahead.
            queues = [queue for group in groups for queue in group.queues]
            return await self._take(worker, queues, cache.after(queues), [limit] * len(queues), limit)
        queues, most = await self._shares(cache, groups, limit)
        rows = await self._take(worker, queues, cache.after(queues), most, limit) if queues else []
        place = {queue.id: n for n, group in enumerate(groups) for queue in group.queues}
        merged = [group.merged for group in groups]
        rows.sort(key=lambda row: (n := place[row.queue], row.priority if merged[n] else 0))
        return rows

    async def _shares(
        self, cache: QueueCache, groups: Sequence[QueueGroup], limit: int
    ) -> tuple[list[QueueRow], list[int]]:
        """How many items to claim from which queues."""
        queues: list[QueueRow] = []
        most: list[int] = []
        left = limit
        for group in groups:
            if group.merged:
                shares = await self._merged_shares(cache, group.queues, left)
            else:
                shares = [left] * len(group.queues)
            queues += [queue for queue, share in zip(group.queues, shares, strict=True) if share]
            most += [share for share in shares if share]
            left -= sum(shares) if group.merged else 0
            if left <= 0:
                break
        return queues, most

    async def _merged_shares(self, cache: QueueCache, queues: Sequence[QueueRow], limit: int) -> list[int]:
        """Read the first items of all queues, and more of the queues that may have to give more."""
        depth = min(limit, MIN_LOOK_AHEAD + 2 * limit // len(queues))
        found = await self._first_priorities(queues, cache.after(queues), depth)
        heads = QueueHeads(found, [len(seen) >= depth for seen in found])
        rounds = 0
        while sum(shares := heads.quotas(limit)) < limit and (bound := heads.bound()) is not None:
            # First the queues that set the bound, usually the one with the smallest priorities; then all.
            deeper = [n for n, more in enumerate(heads.more) if more and (rounds or heads.priorities[n][-1] == bound)]
            rows = [queues[n] for n in deeper]
            rounds += 1
            for n, seen in zip(deeper, await self._first_priorities(rows, cache.after(rows), limit), strict=True):
                # More than `limit` items of one queue are never needed.
                heads.priorities[n], heads.more[n] = seen, False
        for queue, seen, more, share in zip(queues, heads.priorities, heads.more, shares, strict=True):
            cache.update_head(queue, seen[share:] or (seen[-1:] if more else []))
        return shares

    def _invalidate_caches(self, worker: str) -> None:
        """Items were returned to the queues: the next claim starts from their beginning."""
        for (owner, _), cache in self._caches.items():
            if owner == worker:
                cache.invalidate(time.monotonic())

    def forget(self, worker: str) -> None:
        """Drop the cached queues of a worker."""
        for known in [cache for cache in self._caches if cache[0] == worker]:
            del self._caches[known]

    async def _open_queues(self, scope: Scope) -> list[QueueRow]:
        """Queues of active runs within the scope that have ready items."""
        partitions = None if scope.steal or not scope.partitions else list(scope.partitions)
        rows = await self._queryable.fetch(
            self._sql["open_queues"],
            scope.scraper,
            list(scope.run_ids) or None,
            list(scope.stages) or None,
            partitions,
        )
        return [QueueRow(*row) for row in rows]

    async def _promote(self, now: float) -> int:
        self._promoted_at = now
        return await self._promote_due()


class BaseWorkers:
    def __init__(self, queryable: Queryable, queries: Mapping[str, str], catalog: Catalog, claims: BaseClaims) -> None:
        self._queryable = queryable
        self._sql = queries
        self._catalog = catalog
        self._claims = claims

    async def register(self, spec: WorkerSpec) -> None:
        _check_worker(spec)
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
        row = rows[0]
        return HeartbeatReply(WorkerState(row["state"]), row["settings_version"], row["schema_version"])

    async def list(self, *, present: bool = True) -> list[WorkerView]:
        return [worker_from(row) for row in await self._queryable.fetch(self._sql["list_workers"], present)]

    async def page(
        self, *, present: bool = True, node: str | None = None, cursor: str | None = None, limit: int = 50
    ) -> CursorPage[WorkerView]:
        check_limit(limit)
        before = int_cursor(cursor) if cursor is not None else _LAST_NUMBER
        window = limit if node is None else max(limit, WORKERS_WINDOW)
        rows = await self._queryable.fetch(self._sql["page_workers"], present, before, window, node, limit)
        workers = tuple(worker_from(row) for row in rows)
        if len(rows) == limit:
            return CursorPage(workers, str(rows[-1]["no"]))
        ends = await self._queryable.fetch(self._sql["workers_window_end"], before, present, window) if node else []
        return CursorPage(workers, str(ends[0]["no"]) if ends else None)

    async def nodes(self) -> tuple[NodeView, ...]:
        rows = await self._queryable.fetch(self._sql["list_nodes"])
        return tuple(NodeView(**{**dict(row), "versions": tuple(sorted(array_from(row["versions"])))}) for row in rows)

    async def held_items(self, items: Sequence[int]) -> dict[int, HeldItem]:
        if not items:
            return {}
        rows = await self._queryable.fetch(self._sql["held_items"], list(items))
        return {row["id"]: HeldItem(id=row["id"], run_id=row["run_id"], name=row["name"] or "") for row in rows}

    def _forget(self, worker: str) -> None:
        self._catalog.forget_worker(worker)
        self._claims.forget(worker)


def _check_worker(spec: WorkerSpec) -> None:
    if not 1 <= spec.lease_seconds <= 86_400:
        raise InvalidSetting(f"lease_seconds is {spec.lease_seconds!r}; it must be from 1 to 86400.")
    if not spec.id or len(spec.id) > 255:
        raise InvalidSetting("A worker id must have 1 to 255 characters.")
