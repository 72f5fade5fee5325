"""Intake: what is the same on both ledgers. Storing a chunk is the backends' own."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence

import msgspec

from shoal.ledger.catalog import Catalog, RunFacts
from shoal.ledger.chunks import Complaints, prepared_chunks
from shoal.ledger.protocols import Entries
from shoal.model.item import PreparedItem, prepare
from shoal.model.outcome import Finished
from shoal.model.views import IntakeReport


class Placed(msgspec.Struct, frozen=True):
    """Checked items with the stage and the queue of each, and the parents of follow-ups."""

    items: Sequence[PreparedItem]
    stage_ids: Sequence[int]
    queues: Mapping[tuple[int, str], int]
    parents: Sequence[int] | None = None


async def place(
    catalog: Catalog, items: Sequence[PreparedItem], stage_ids: Sequence[int], parents: Sequence[int] | None = None
) -> Placed:
    priorities = {item.priority for item in items}
    if len(priorities) == 1:
        span = (min(priorities), max(priorities))
        wanted = {(stage, item.partition): span for item, stage in zip(items, stage_ids, strict=True)}
    else:
        wanted = {}
        for item, stage in zip(items, stage_ids, strict=True):
            low, high = wanted.get((stage, item.partition), (item.priority, item.priority))
            wanted[stage, item.partition] = (min(low, item.priority), max(high, item.priority))
    return Placed(items, stage_ids, await catalog.queues(wanted), parents)


async def placed_follow_ups(catalog: Catalog, finished: Sequence[Finished]) -> Placed | None:
    """The follow-ups of a batch of attempts, all checked before any is stored; None when there are none."""
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
    return await place(catalog, items, stage_ids, parents) if items else None


class ChunkedIntake(ABC):
    """Bulk enqueue: chunks are stored while the next is prepared, at most `at_once` of them.

    Chunks with lanes go one after another: the order of a sequential group is the order of arrival.
    """

    at_once = 1

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    @abstractmethod
    async def _store(self, run: RunFacts, placed: Placed) -> tuple[int, int]:
        """Store a chunk in one transaction; returns how many were new and how many were not."""

    async def enqueue(self, run_id: str, entries: Entries, *, stage: str | None = None) -> IntakeReport:
        run = await self._catalog.run(run_id)
        stage = stage or run.first_stage
        run.stage_id(stage)
        complaints = Complaints([])
        storing: deque[asyncio.Task[tuple[int, int]]] = deque()
        stored: list[tuple[int, int]] = []
        invalid = 0
        try:
            async for chunk in prepared_chunks(entries, stage, run.stages, complaints):
                alone = any(item.lane is not None for item in chunk.items)
                while len(storing) >= (1 if alone else self.at_once):
                    stored.append(await storing.popleft())
                storing.append(asyncio.create_task(self._store_items(run, chunk.items)))
                if alone:
                    stored.append(await storing.popleft())
                invalid += chunk.invalid
        finally:
            # What was begun is brought to its end, also when the source failed.
            stored += await asyncio.gather(*storing)
        return IntakeReport(
            enqueued=sum(new for new, _ in stored),
            duplicates=sum(old for _, old in stored),
            invalid=invalid,
            complaints=tuple(complaints.found),
        )

    async def _store_items(self, run: RunFacts, items: Sequence[PreparedItem]) -> tuple[int, int]:
        if not items:
            return 0, 0
        return await self._store(run, await place(self._catalog, items, [run.stages[item.stage] for item in items]))
