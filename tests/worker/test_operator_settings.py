"""Retries and backoff that an operator stores while a worker runs: they hold for its next attempts."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from shoal import Item, Scraper, Transient
from shoal.config import Settings
from shoal.ledger.protocols import Ledger
from shoal.model.item import ItemState
from shoal.model.run import Run
from shoal.model.views import AttemptView, ItemView
from shoal.model.worker import Scope
from shoal.observe.logs import open_logs
from shoal.service.stored_settings import change_stored
from shoal.wiring import build_fetcher, build_worker, ledger_context
from shoal.worker.operator_settings import scraper_scope
from shoal.worker.state import WorkerOptions

LOG = open_logs(format="console", level="error", file=None, stream=None).log
BEAT_SECONDS = 0.1
PATIENCE_SECONDS = 60.0
# What the scraper has in code, and what the operator stores: no delay of one can be taken for one of the other.
CODE: dict[str, Any] = {"retries": 5, "backoff_factor": 2.0, "backoff_jitter": 0.0}
STORED_FACTOR = 10.0


class Failing:
    """A scraper whose items always fail, and its run, which a worker serves."""

    def __init__(self, ledger: Ledger, run: Run, scraper: Scraper) -> None:
        self._ledger = ledger
        self._run = run
        self._stage = scraper.stages["work"]
        self._number = 0

    async def store(self, **values: Any) -> None:
        """As `POST /settings` and `PUT /api/v1/settings/scraper:NAME` do: what is not given stays."""
        scope = scraper_scope("failing")
        await change_stored(self._ledger, scope, lambda before: {**before, **values}, by="ann")

    async def fail_one(self) -> tuple[ItemView, AttemptView]:
        """A new item after its first attempt, and that attempt."""
        self._number += 1
        key = str(self._number)
        await self._ledger.intake.enqueue(self._run.id, [self._stage.item(key=key)])
        while True:
            item = await self._ledger.reads.item(self._run.id, key=key)
            if item.tries:
                (attempt,) = await self._ledger.reads.attempts(self._run.id, item.id)
                return item, attempt
            await asyncio.sleep(0.02)


@pytest.fixture(params=["sqlite", "postgres"])
async def failing(
    request: pytest.FixtureRequest, sqlite_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Failing]:
    place = str(sqlite_path) if request.param == "sqlite" else str(request.getfixturevalue("postgres_url"))
    settings = Settings(ledger=place)
    scraper = Scraper("failing")

    @scraper.stage(lane=None, **CODE)
    def work(item: Item) -> None:
        raise Transient("503 Service Unavailable")

    async with ledger_context(settings, migrate=True) as ledger:
        run = await ledger.runs.create(scraper.run_spec())
        monkeypatch.setattr("shoal.worker.heartbeat.MAX_INTERVAL_SECONDS", BEAT_SECONDS)
        async with working(scraper, settings, ledger):
            yield Failing(ledger, run, scraper)


@asynccontextmanager
async def working(scraper: Scraper, settings: Settings, ledger: Ledger) -> AsyncIterator[None]:
    fetcher = build_fetcher(settings)
    options = WorkerOptions(scope=Scope(scraper=scraper.name), forever=True)
    worker = build_worker(scraper, settings, ledger, fetcher, options, log=LOG)
    task = asyncio.create_task(worker.work())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await fetcher.close()


def delay_of(item: ItemView, attempt: AttemptView) -> float:
    assert item.due_at is not None
    return (item.due_at - attempt.ended_at).total_seconds()


async def test_stored_retries_and_backoff_reach_a_running_worker(failing: Failing) -> None:
    """S4.2: the wait before a retry and the number of retries are those of now."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        await check_backoff(failing)
        await check_retries(failing)


async def check_backoff(failing: Failing) -> None:
    item, attempt = await failing.fail_one()
    assert item.state is ItemState.DELAYED
    assert delay_of(item, attempt) == pytest.approx(CODE["backoff_factor"], abs=0.5)

    await failing.store(backoff_factor=STORED_FACTOR)
    while delay_of(*await failing.fail_one()) < STORED_FACTOR - 0.5:
        pass  # the worker learns it with its next heartbeat
    item, attempt = await failing.fail_one()
    assert delay_of(item, attempt) == pytest.approx(STORED_FACTOR, abs=0.5)
    assert item.state is ItemState.DELAYED, "the retries are still those of the code"


async def check_retries(failing: Failing) -> None:
    await failing.store(retries=0)
    while (await failing.fail_one())[0].state is not ItemState.DEAD:
        pass
    item, _ = await failing.fail_one()
    assert (item.state, item.tries, item.error) == (ItemState.DEAD, 1, "503 Service Unavailable")

    await failing.store(retries=None, backoff_factor=None)
    while (await failing.fail_one())[0].state is ItemState.DEAD:
        pass
    assert delay_of(*await failing.fail_one()) == pytest.approx(CODE["backoff_factor"], abs=0.5)
