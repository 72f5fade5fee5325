"""Slow items: commits wait for each other, and items of lanes are claimed ahead, while nothing waits for either."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from shoal import Item, Scraper
from shoal.config import Settings
from shoal.ledger.protocols import Ledger
from shoal.model.item import ClaimedItem, Lease
from shoal.model.outcome import DONE, FinishedAttempt
from shoal.model.views import CommitReport
from shoal.model.worker import Scope
from shoal.observe.logs import open_logs
from shoal.wiring import build_fetcher, build_worker, ledger_context
from shoal.worker.commit import LINGER_SECONDS, MAX_LINGER_SECONDS, CommitQueue, linger_seconds
from shoal.worker.state import WorkerOptions, WorkSummary

LOG = open_logs(format="console", level="error", file=None, stream=None).log
FOREVER = 3600.0
PATIENCE_SECONDS = 20.0
SLOTS = 4
ITEM_SECONDS = 0.15


def ended(number: int) -> FinishedAttempt:
    return FinishedAttempt(lease=Lease(number, 1, 1), decision=DONE)


def claimed_item(*, lane: str | None, waited: float | None) -> ClaimedItem:
    return ClaimedItem(1, 1, 1, "run", "stage", "", 0, None, "key", None, lane, 0, 0, 3, waited=waited)


@pytest.mark.parametrize(
    ("lane", "waited", "item_seconds", "plenty", "expected"),
    [
        ("host", 60.0, 0.5, True, MAX_LINGER_SECONDS),
        (None, 60.0, 0.5, True, MAX_LINGER_SECONDS),
        ("host", 60.0, 0.2, True, 0.04),  # a fifth of the time that an item takes
        ("host", 0.02, 0.5, True, 0.01),  # the next item of its lane is claimed soon after it becomes ready
        ("host", None, 0.5, True, 0.0),
        ("host", 60.0, 0.5, False, 0.0),  # slots have nothing to do
        ("host", 60.0, 0.05, True, 0.0),  # quick items fill batches anyway
        (None, 60.0, 0.05, True, LINGER_SECONDS),
        (None, 60.0, 0.5, False, LINGER_SECONDS),
        (None, 0.0, 0.5, True, LINGER_SECONDS),
    ],
)
def test_how_long_a_commit_waits(
    lane: str | None, waited: float | None, item_seconds: float, plenty: bool, expected: float
) -> None:
    item = claimed_item(lane=lane, waited=waited)
    assert linger_seconds(item, item_seconds, plenty=plenty) == pytest.approx(expected)


async def test_a_lone_attempt_is_committed_after_its_time_and_takes_others_along() -> None:
    queue = CommitQueue()
    began = time.monotonic()
    await queue.put(ended(1), 1, linger=0.05)
    batch = asyncio.create_task(queue.next_batch())
    await asyncio.sleep(0)
    await queue.put(ended(2), 1, linger=FOREVER)
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert [one.lease.item for one in await batch] == [1, 2]
    assert time.monotonic() - began >= 0.05


async def test_nothing_waits_for_long_beside_an_attempt_that_must_not_wait() -> None:
    queue = CommitQueue()
    batch = asyncio.create_task(queue.next_batch())
    await queue.put(ended(1), 1, linger=FOREVER)
    await asyncio.sleep(0)
    assert not batch.done()
    await queue.put(ended(2), 1)
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert len(await batch) == 2


@pytest.mark.parametrize("limits", [{"batch_items": 3}, {"max_pending_items": 3}, {"max_pending_bytes": 30}])
async def test_a_full_batch_does_not_wait(limits: dict[str, int]) -> None:
    queue = CommitQueue(**limits)
    batch = asyncio.create_task(queue.next_batch())
    for number in range(3):
        await queue.put(ended(number), 10, linger=FOREVER)
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert len(await batch) == 3


async def test_a_drain_does_not_wait() -> None:
    queue = CommitQueue(batch_items=2)
    for number in range(5):
        await queue.put(ended(number), 1, linger=FOREVER)
    flushed = asyncio.create_task(queue.flush())
    async with asyncio.timeout(PATIENCE_SECONDS):
        for size in (2, 2, 1):
            batch = await queue.next_batch()
            assert len(batch) == size
            queue.batch_done(batch)
        await flushed


class Workshop:
    """Runs items that take a while, with one worker, and keeps the sizes of its claims and commits."""

    def __init__(self, ledger: Ledger, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ledger = ledger
        self.settings = settings
        self.asked: list[int] = []
        self.batches: list[int] = []
        claim, commit = ledger.claims.claim, ledger.commits.commit

        async def claim_counted(worker: str, scope: Scope, limit: int) -> list[ClaimedItem]:
            self.asked.append(limit)
            return await claim(worker, scope, limit)

        async def commit_counted(worker: str, finished: Sequence[FinishedAttempt]) -> CommitReport:
            self.batches.append(len(finished))
            return await commit(worker, finished)

        monkeypatch.setattr(ledger.claims, "claim", claim_counted)
        monkeypatch.setattr(ledger.commits, "commit", commit_counted)

    async def run(self, count: int, lanes: int, *, ready_for: float) -> WorkSummary:
        """Items in so many lanes, which become ready so many seconds before a worker comes."""
        scraper = Scraper("workshop")
        numbers = iter(range(count))

        @scraper.stage(concurrency=2, retries=0)
        async def work(item: Item) -> AsyncIterator[dict[str, Any]]:
            # Not in step: otherwise the items of all slots would end at once.
            await asyncio.sleep(ITEM_SECONDS + 0.02 * (next(numbers) % SLOTS))
            yield {"key": item.key}

        run = await self.ledger.runs.create(scraper.run_spec())
        items = [work.item(key=str(n), lane=f"lane {n % lanes}") for n in range(count)]
        await self.ledger.intake.enqueue(run.id, items)
        await self.ledger.runs.seal(run.id, by="test")
        await asyncio.sleep(ready_for)
        fetcher = build_fetcher(self.settings)
        options = WorkerOptions(scope=Scope(scraper="workshop"), concurrency=SLOTS)
        worker = build_worker(scraper, self.settings, self.ledger, fetcher, options, log=LOG)
        try:
            async with asyncio.timeout(3 * PATIENCE_SECONDS):
                summary = await worker.work()
        finally:
            await fetcher.close()
        assert (summary.done, sum(self.batches)) == (count, count)
        return summary


@pytest.fixture(params=["sqlite", "postgres"])
async def workshop(
    request: pytest.FixtureRequest, sqlite_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Workshop]:
    place = str(sqlite_path) if request.param == "sqlite" else str(request.getfixturevalue("postgres_url"))
    settings = Settings(ledger=place)
    async with ledger_context(settings, migrate=True) as ledger:
        yield Workshop(ledger, settings, monkeypatch)


async def test_slow_items_of_many_lanes_are_claimed_ahead_and_committed_together(workshop: Workshop) -> None:
    await workshop.run(60, lanes=60, ready_for=0.5)
    assert max(workshop.asked) > SLOTS
    assert len(workshop.batches) < 48, workshop.batches


async def test_slow_items_of_a_full_lane_are_not_claimed_ahead(workshop: Workshop) -> None:
    """The lane admits two at a time: whatever this worker held in its buffer, another worker could not run."""
    await workshop.run(16, lanes=1, ready_for=0.5)
    assert max(workshop.asked) <= SLOTS
