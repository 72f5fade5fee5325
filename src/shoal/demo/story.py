"""The demo from beginning to end. Every number it reports is read back from the ledger."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, Protocol

import msgspec

from shoal.demo.bookshop import HOST_LIMIT, SLOW_DELAY, SLOW_HOST, run_spec, start_items
from shoal.demo.worker import DemoWorker
from shoal.ledger.protocols import Ledger
from shoal.model.item import ItemState
from shoal.model.run import Run
from shoal.model.views import (
    AttemptView,
    Counts,
    FailedItem,
    Finding,
    Gate,
    IntakeReport,
    ItemFilter,
    ItemView,
    PartitionProgress,
)

LOOK_SECONDS = 0.1
SAMPLE = 3


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """The run as the ledger shows it now."""

    counts: Counts
    partitions: Sequence[PartitionProgress]
    gates: Sequence[Gate]


class Watcher(Protocol):
    """Whoever shows the demo while it goes on."""

    def look(self, moment: Moment) -> None: ...

    def tell(self, text: str) -> None: ...


class ItemStory(msgspec.Struct, frozen=True, kw_only=True):
    """One item, and what there is to say about it."""

    name: str
    gates: Sequence[Gate] = ()
    attempts: Sequence[AttemptView] = ()


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """What the demo did, from the ledger's books."""

    run: Run
    intake: IntakeReport
    counts: Counts
    partitions: Sequence[PartitionProgress]
    retried: int
    rescued: int
    dead: Sequence[FailedItem]
    waiting_item: ItemStory | None
    rescued_item: ItemStory | None
    records: Sequence[dict[str, Any]]
    findings: Sequence[Finding]


async def tell_story(ledger: Ledger, watcher: Watcher, *, code_version: str) -> Summary:
    """Create a run, work it off with three workers of which one dies, and read back what became of it."""
    run = await ledger.runs.create(run_spec(code_version))
    await ledger.lanes.set(SLOW_HOST, limit=HOST_LIMIT, delay=SLOW_DELAY, by="shoal demo")
    intake = await ledger.intake.enqueue(run.id, start_items())
    await ledger.runs.seal(run.id, by="shoal demo")
    watcher.tell(
        f"Run {run.id}: {intake.enqueued} items enqueued, {intake.duplicates} duplicates dropped, "
        f"{intake.invalid} invalid refused."
    )
    workers = [
        DemoWorker(ledger, run, "worker-a"),
        DemoWorker(ledger, run, "worker-b", dies_after=20),
        DemoWorker(ledger, run, "worker-c"),
    ]
    try:
        async with asyncio.TaskGroup() as group:
            for worker in workers:
                group.create_task(worker.work())
            waiting_item = await _watch(ledger, run, workers, watcher)
    except ExceptionGroup as errors:
        # When the ledger fails it fails for all of them alike; one complaint is enough.
        raise errors.exceptions[0] from errors
    return await _summary(ledger, run, intake, waiting_item)


async def _watch(ledger: Ledger, run: Run, workers: Sequence[DemoWorker], watcher: Watcher) -> ItemStory | None:
    """Look at the run until nothing remains. Returns a waiting item and its reasons, caught on the way."""
    caught: ItemStory | None = None
    death = _Death(ledger, workers, watcher)
    while True:
        counts = await ledger.reads.stats(run.id)
        watcher.look(
            Moment(
                counts=counts,
                partitions=await ledger.reads.partitions(run.id),
                gates=await ledger.reads.why_run(run.id),
            )
        )
        await death.look()
        if caught is None and counts.done * 4 > counts.total:
            caught = await _waiting_item(ledger, run)
        if counts.remaining == 0:
            return caught
        await asyncio.sleep(LOOK_SECONDS)


class _Death:
    """Tells, once each, that a worker died and that the ledger gave its items to others."""

    def __init__(self, ledger: Ledger, workers: Sequence[DemoWorker], watcher: Watcher) -> None:
        self._ledger = ledger
        self._workers = workers
        self._watcher = watcher
        self._dead = ""
        self._over = False

    async def look(self) -> None:
        victim = next((worker.id for worker in self._workers if worker.dead), None)
        if victim is None or self._over:
            return
        present = {view.id: view for view in await self._ledger.workers.list()}
        if victim not in present:
            self._over = True
            self._watcher.tell(f"{victim} missed its heartbeats and was declared lost; its items went to the others.")
        elif not self._dead:
            self._dead = victim
            self._watcher.tell(f"{victim} died and still holds {present[victim].leased} items.")


async def _waiting_item(ledger: Ledger, run: Run) -> ItemStory | None:
    page = await ledger.reads.items(run.id, ItemFilter(states=(ItemState.WAITING,), partition="us"), limit=10)
    if not page.rows:
        return None
    item = page.rows[-1]
    gates = await ledger.reads.why_item(run.id, item.id)
    # It may have moved on between the two questions; then another one is caught at the next look.
    still_waiting = any(gate.code == "lane_rank" for gate in gates)
    return ItemStory(name=name_of(item), gates=gates) if still_waiting else None


async def _summary(ledger: Ledger, run: Run, intake: IntakeReport, waiting_item: ItemStory | None) -> Summary:
    items = [item async for item in _all_items(ledger, run)]
    rescued = [item for item in items if item.rescues]
    rescued_item = None
    if rescued:
        simplest = min(rescued, key=lambda item: item.tries)
        attempts = await ledger.reads.attempts(run.id, simplest.id)
        rescued_item = ItemStory(name=name_of(simplest), attempts=attempts)
    return Summary(
        run=await ledger.runs.get(run.id),
        intake=intake,
        counts=await ledger.reads.stats(run.id),
        partitions=sorted(
            await ledger.reads.partitions(run.id),
            key=lambda progress: (run.stages.index(progress.stage), progress.partition),
        ),
        retried=sum(item.tries > 1 for item in items),
        rescued=len(rescued),
        dead=(await ledger.reads.failed(run.id)).rows,
        waiting_item=waiting_item,
        rescued_item=rescued_item,
        records=[
            msgspec.json.decode(row.record, type=dict[str, Any])
            for row in (await ledger.reads.results(run.id, limit=SAMPLE)).rows
        ],
        findings=await ledger.upkeep.audit(),
    )


async def _all_items(ledger: Ledger, run: Run) -> AsyncIterator[ItemView]:
    cursor = None
    while True:
        page = await ledger.reads.items(run.id, cursor=cursor, limit=500)
        for item in page.rows:
            yield item
        cursor = page.cursor
        if cursor is None:
            return


def name_of(item: ItemView) -> str:
    return item.url or item.key or str(item.id)
