"""Commits: what is the same on both ledgers. The transaction is the backends' own."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Sequence

from shoal.ledger.catalog import Catalog
from shoal.ledger.checks import check_finished
from shoal.model.outcome import FinishedAttempt
from shoal.model.views import CommitReport

NOTHING = CommitReport(committed=0, lost=(), repeated=(), enqueued=0, duplicates=0)


class BaseCommits(ABC):
    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    @abstractmethod
    async def _commit(self, worker_no: int, finished: Sequence[FinishedAttempt]) -> CommitReport:
        """One transaction. Each item appears once, and everything has been checked."""

    async def commit(self, worker: str, finished: Sequence[FinishedAttempt]) -> CommitReport:
        check_finished(finished)
        no = await self._catalog.worker_no(worker)
        reports = [await self._commit(no, batch) for batch in _one_epoch_each(finished)]
        return functools.reduce(CommitReport.merge, reports, NOTHING)


def _one_epoch_each(finished: Sequence[FinishedAttempt]) -> list[list[FinishedAttempt]]:
    """Batches in which each item appears once, older epochs first.

    A worker whose lease was taken away may get the same item again while its first attempt still runs.
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
