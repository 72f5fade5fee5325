"""Commits on both ledgers: a batch of finished attempts is checked here; the backends store it in one transaction."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Sequence
from itertools import repeat

from shoal.errors import InvalidRecord, UsageError
from shoal.ledger.catalog import Catalog
from shoal.ledger.intake import QueuedItems, assign_queues
from shoal.model.item import Lease, PreparedItem, prepare
from shoal.model.json_text import json_text
from shoal.model.latency import BUCKET_BOUNDS, BUCKETS
from shoal.model.outcome import DONE, DecisionKind, FinishedAttempt, RedirectReply, RedirectVisit
from shoal.model.views import CommitReport

MAX_DETAIL_BYTES = 64 << 10
EMPTY_REPORT = CommitReport(committed=0, lost=(), repeated=(), enqueued=0, duplicates=0)


class BaseCommits(ABC):
    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    @abstractmethod
    async def _commit(self, worker_no: int, finished: Sequence[FinishedAttempt]) -> CommitReport:
        """One transaction. Each item appears once, and everything has been checked."""

    @abstractmethod
    async def _visit_redirect(self, worker_no: int, visit: RedirectVisit, queued: QueuedItems) -> RedirectReply:
        """One transaction. `queued` has the target alone."""

    async def visit_redirect(self, worker: str, visit: RedirectVisit) -> RedirectReply:
        no = await self._catalog.worker_no(worker)
        run = await self._catalog.run_by_no(visit.lease.run_no)
        queued = await assign_queues(
            self._catalog, [visit.target], [run.stage_id(visit.target.stage)], [visit.lease.item]
        )
        return await self._visit_redirect(no, visit, queued)

    async def commit(self, worker: str, finished: Sequence[FinishedAttempt]) -> CommitReport:
        check_finished(finished)
        no = await self._catalog.worker_no(worker)
        reports = [await self._commit(no, batch) for batch in _one_epoch_each(finished)]
        return functools.reduce(CommitReport.merge, reports, EMPTY_REPORT)


def detail_text(end: FinishedAttempt) -> str | None:
    return None if end.detail is None else json_text(end.detail, "detail", MAX_DETAIL_BYTES, InvalidRecord)


async def prepare_follow_ups(catalog: Catalog, finished: Sequence[FinishedAttempt]) -> QueuedItems | None:
    """The follow-up items of a batch of attempts, checked before any is stored; None when there are none."""
    parents: list[int] = []
    items: list[PreparedItem] = []
    stage_ids: list[int] = []
    for end in finished:
        if not end.follow_ups:
            continue
        run = await catalog.run_by_no(end.lease.run_no)
        for new in end.follow_ups:
            item = new if isinstance(new, PreparedItem) else prepare(new, run.first_stage)
            items.append(item)
            stage_ids.append(run.stage_id(item.stage))
            parents.append(end.lease.item)
    return await assign_queues(catalog, items, stage_ids, parents) if items else None


class BatchActivity:
    """Sums of finished attempts of one run. `records`: those without a key. `waits`, `works`: histograms."""

    __slots__ = ("dead", "done", "records", "retried", "seconds", "skipped", "throttled", "waits", "works")

    def __init__(self) -> None:
        self.done = self.dead = self.skipped = self.retried = self.throttled = self.records = 0
        self.seconds = 0.0
        self.waits = [0] * BUCKETS
        self.works = [0] * BUCKETS


def sum_activity(finished: Sequence[FinishedAttempt]) -> dict[int, BatchActivity]:
    """The sums by the numbers of their runs. Written for speed: every attempt of every worker goes through it."""
    runs = {end.lease.run_no for end in finished}
    if len(runs) == 1:
        return {runs.pop(): _sum_run(finished)}
    return {run_no: _sum_run([end for end in finished if end.lease.run_no == run_no]) for run_no in runs}


def _sum_run(finished: Sequence[FinishedAttempt]) -> BatchActivity:
    sums = BatchActivity()
    seconds = [end.seconds for end in finished]
    sums.seconds = sum(seconds)
    works, waits = sums.works, sums.waits
    for bucket in map(bisect_left, repeat(BUCKET_BOUNDS), seconds):
        works[bucket] += 1
    waited = [end.waited for end in finished if end.waited is not None]
    for bucket in map(bisect_left, repeat(BUCKET_BOUNDS), waited):
        waits[bucket] += 1
    sums.records = sum([len(end.records) for end in finished if end.records and not end.record_keys])
    others = [end for end in finished if end.decision is not DONE]
    sums.done = len(finished) - len(others)
    for end in others:
        match end.decision.kind:
            case DecisionKind.DONE:
                sums.done += 1
                continue
            case DecisionKind.DEAD:
                sums.dead += 1
                continue
            case DecisionKind.SKIPPED:
                sums.skipped += 1
            case DecisionKind.RETRY:
                sums.retried += 1
            case DecisionKind.THROTTLED | DecisionKind.PUT_OFF:
                sums.throttled += 1
        if not end.record_keys:
            sums.records -= len(end.records)  # records are stored when the item is done or dead
    return sums


def check_finished(finished: Sequence[FinishedAttempt]) -> None:
    """Raise for an invalid batch before any of it is stored."""
    seen: set[Lease] = set()
    for end in finished:
        if end.lease in seen:
            raise UsageError(f"The item {end.lease.item} appears twice in one commit.")
        seen.add(end.lease)
        if end.record_keys and len(end.record_keys) != len(end.records):
            raise InvalidRecord(f"The item {end.lease.item} has {len(end.records)} records, but other keys.")
        for record in end.records:
            if not record.startswith("{"):
                raise InvalidRecord("A record must be the JSON text of an object: use record_text(value).")


def _one_epoch_each(finished: Sequence[FinishedAttempt]) -> list[list[FinishedAttempt]]:
    """Batches in which each item appears once, older epochs first.

    A worker that lost a lease may claim the same item again while its first attempt still runs.
    """
    if len({end.lease.item for end in finished}) == len(finished):
        return [list(finished)] if finished else []
    batches: list[list[FinishedAttempt]] = []
    times: dict[int, int] = {}
    for end in sorted(finished, key=lambda end: end.lease.epoch):
        n = times[end.lease.item] = times.get(end.lease.item, 0) + 1
        if n > len(batches):
            batches.append([])
        batches[n - 1].append(end)
    return batches
