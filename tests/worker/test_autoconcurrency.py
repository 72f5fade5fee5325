"""A worker that adjusts how many items it processes at once, on a real ledger."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from shoal import Item, Scraper, Transient
from shoal.autoscale.rules import LoadLimits
from shoal.config import Settings
from shoal.ledger.protocols import Ledger
from shoal.model.run import Run
from shoal.model.views import Counts
from shoal.model.worker import Scope
from shoal.observe.logs import open_logs
from shoal.wiring import build_fetcher, build_worker, ledger_context
from shoal.worker.state import WorkerOptions
from shoal.worker.worker import Worker

LOG = open_logs(format="console", level="error", file=None, stream=None).log
HELD = 4


class Workshop:
    """A scraper whose first items wait for `gate` and then succeed; the others take a moment, and fail if `fails`."""

    def __init__(self, ledger: Ledger, settings: Settings) -> None:
        self.ledger = ledger
        self.settings = settings
        self.gate = asyncio.Event()
        self.fails = False
        self.moment = 0.1
        self.at_once = 0
        self.begun: list[str] = []
        self.scraper = Scraper("workshop")
        self.run: Run | None = None

        @self.scraper.stage(lane=None, retries=0)
        async def work(item: Item) -> AsyncIterator[dict[str, str]]:
            self.begun.append(item.key)
            self.at_once += 1
            try:
                if int(item.key) < HELD:
                    await self.gate.wait()
                else:
                    await asyncio.sleep(self.moment)
                    if self.fails:
                        raise Transient("not today")
            finally:
                self.at_once -= 1
            yield {"key": item.key}

        self.stage = work

    @asynccontextmanager
    async def working(self, items: int, **options: object) -> AsyncIterator[Worker]:
        """A worker on a run of so many items; what happens after the block is that it drains."""
        self.run = await self.ledger.runs.create(self.scraper.run_spec())
        await self.ledger.intake.enqueue(self.run.id, [self.stage.item(key=str(n)) for n in range(items)])
        await self.ledger.runs.seal(self.run.id)
        fetcher = build_fetcher(self.settings)
        chosen = WorkerOptions(
            scope=Scope(run_ids=(self.run.id,)),
            limits=LoadLimits(cpu=1, memory=1),  # whatever else runs here
            **options,  # type: ignore[arg-type]
        )
        worker = build_worker(self.scraper, self.settings, self.ledger, fetcher, chosen, log=LOG)
        task = asyncio.create_task(worker.work())
        try:
            async with asyncio.timeout(60):
                yield worker
                self.gate.set()
                worker.drain()
                await task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await fetcher.close()

    async def changes(self) -> list[tuple[int, int, str]]:
        """What the run was told, oldest first."""
        assert self.run is not None
        events = (await self.ledger.reads.events(run_id=self.run.id)).rows
        details = [event.detail for event in reversed(events) if event.action == "scaled"]
        return [(detail["from"], detail["to"], detail["why"]) for detail in details if detail["from"] != detail["to"]]

    async def counts(self) -> Counts:
        assert self.run is not None
        return await self.ledger.reads.stats(self.run.id)

    async def until(self, happened: Callable[[], bool] | Callable[[], Awaitable[bool]]) -> None:
        while True:
            found = happened()
            if found is True or (not isinstance(found, bool) and await found):
                return
            await asyncio.sleep(0.01)


@pytest.fixture
async def workshop(sqlite_path: Path) -> AsyncIterator[Workshop]:
    settings = Settings(ledger=str(sqlite_path))
    async with ledger_context(settings, migrate=True) as ledger:
        yield Workshop(ledger, settings)


@pytest.mark.slow
async def test_it_grows_with_the_backlog_and_shrinks_when_attempts_fail(workshop: Workshop) -> None:
    """S2.20: what runs when it shrinks is finished; the run says why."""

    async def has_shrunk() -> bool:
        return any(before > after for before, after, _ in await workshop.changes())

    workshop.fails = True
    async with workshop.working(2_000, concurrency=8, min_concurrency=1, batch_size=20):
        await workshop.until(has_shrunk)
        await workshop.until(lambda: workshop.at_once <= 4)
        workshop.gate.set()
        begun, seen = len(workshop.begun), 0
        while len(workshop.begun) < begun + 20:
            seen = max(seen, workshop.at_once)
            await asyncio.sleep(0.01)
        assert seen == 4
        assert workshop.run is not None
        gates = await workshop.ledger.reads.why_run(workshop.run.id)
    changes = await workshop.changes()
    assert [(before, after) for before, after, _ in changes] == [(1, 2), (2, 4), (4, 8), (8, 4)]
    assert "items are ready and all 4 are busy" in changes[2][2]
    assert "attempts failed" in changes[3][2]
    assert "went from 8 to 4 items at once" in gates[-1].text
    counts = await workshop.counts()
    assert (counts.done, counts.leased) == (HELD, 0)
    assert [workshop.begun.count(str(number)) for number in range(HELD)] == [1] * HELD
    assert await workshop.ledger.upkeep.audit() == []


async def test_items_claimed_ahead_are_returned_when_it_shrinks(workshop: Workshop) -> None:
    workshop.gate.set()
    workshop.moment = 0.02
    async with workshop.working(5_000, concurrency=16, batch_size=200) as worker:
        await workshop.until(lambda: worker._lease_buffer.buffered >= 100 and worker._slots.item_seconds > 0.01)
        worker._slots.resize(1)
        await workshop.until(lambda: worker.summary.given_back >= 50)
        assert worker.stop_reason is None
    assert await workshop.ledger.upkeep.audit() == []


async def test_idle_slots_end_and_are_added_again(workshop: Workshop) -> None:
    """Idle slots are cancelled while they wait for an item; no item that comes later is lost."""

    async def all_are_done() -> bool:
        return (await workshop.counts()).done == HELD

    async with workshop.working(HELD, concurrency=8, forever=True, batch_size=20) as worker:
        await workshop.until(lambda: len(workshop.begun) == HELD)
        worker._slots.resize(5)
        await workshop.until(lambda: len(worker._slots.tasks) == 5)
        worker._slots.resize(2)
        assert len(worker._slots.tasks) == HELD, "a running attempt was cancelled"
        workshop.gate.set()
        await workshop.until(all_are_done)
        await workshop.until(lambda: len(worker._slots.tasks) == 2)
        worker._slots.resize(6)
        assert len(worker._slots.tasks) == 6
    assert (await workshop.counts()).remaining == 0
