"""Runs whose stages go out with API tokens: the tokens are put in, nobody is charged for a spent one, budgets hold."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from shoal import Http, Item, Page, Scraper, Token
from shoal.config import Settings
from shoal.config.egress import EgressConfig
from shoal.ledger.protocols import Ledger
from shoal.model import redaction
from shoal.model.egress import BudgetPolicy
from shoal.model.item import ItemState
from shoal.model.worker import Scope
from shoal.observe.logs import open_logs
from shoal.wiring import build_fetcher, build_worker, ledger_context
from shoal.worker.state import WorkerOptions, WorkSummary
from tests.support.token_api import TokenApi

LOG = open_logs(format="console", level="error", file=None, stream=None).log
TOKENS = {f"API_TOKEN_{number}": f"very-secret-token-{number}" for number in (1, 2)}
MANY = {"core": (10_000, 3_600), "search": (1_000, 3_600)}


class Setup:
    """A scraper on a ledger, and workers of it."""

    def __init__(self, settings: Settings, ledger: Ledger) -> None:
        self.settings = settings
        self.ledger = ledger
        self.run_id = ""

    async def run(self, scraper: Scraper, *, workers: int = 1) -> list[WorkSummary]:
        run = await self.ledger.runs.create(scraper.run_spec())
        self.run_id = run.id
        await self.ledger.intake.enqueue(run.id, scraper.seeds())
        await self.ledger.runs.seal(run.id)
        async with asyncio.timeout(60):
            return list(await asyncio.gather(*(self._work(scraper) for _ in range(workers))))

    async def _work(self, scraper: Scraper) -> WorkSummary:
        fetcher = build_fetcher(self.settings)
        options = WorkerOptions(scope=Scope(run_ids=(self.run_id,)), concurrency=4, lease=5.0)
        try:
            worker = build_worker(scraper, self.settings, self.ledger, fetcher, options, log=LOG)
            return await worker.work()
        finally:
            await fetcher.close()


@pytest.fixture
async def setup(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Setup]:
    options = getattr(request, "param", {})
    egress = EgressConfig(name="api", kind="tokens", env=("API_TOKEN_*",), **{"given": TOKENS, **options})
    settings = Settings(ledger=str(tmp_path / "ledger.db"), egress={"api": egress}, robots=False)
    async with ledger_context(settings) as ledger:
        yield Setup(settings, ledger)


@pytest.fixture(autouse=True)
def no_secrets_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redaction, "_sent", [])
    monkeypatch.setattr(redaction, "_sent_by_beginning", {})


async def test_pages_and_requests_have_a_token(setup: Setup) -> None:
    with TokenApi(MANY) as api:
        scraper = Scraper("people")

        @scraper.stage(egress="api")
        async def profile(page: Page, http: Http) -> Any:
            repos = await http.get(f"{api.url}/repos")
            return {"status": [page.status, repos.status]}

        scraper.start(*(profile.item(f"{api.url}/users/{number}") for number in range(5)))
        (summary,) = await setup.run(scraper)
        assert summary.done == 5
        attempt = (await setup.ledger.reads.attempts(setup.run_id, 1))[0]
        assert attempt.detail is not None
        assert attempt.detail["egress"].removeprefix("api ") in TOKENS
    assert len(api.calls) == 10
    assert {call.token for call in api.calls} <= {*TOKENS.values()}


LIMIT, WINDOW = 12, 2


@pytest.mark.parametrize("setup", [{"budget": BudgetPolicy(LIMIT, WINDOW)}], indirect=True)
async def test_items_wait_for_the_renewal_without_being_charged(setup: Setup) -> None:
    items = LIMIT * len(TOKENS) + 8
    with TokenApi({"core": (LIMIT, WINDOW)}) as api:
        scraper = Scraper("people", retries=0)

        @scraper.stage(egress="api", concurrency=20)
        async def profile(page: Page) -> Any:
            return page.json()

        scraper.start(*(profile.item(f"{api.url}/users/{number}") for number in range(items)))
        began = math.floor(time.time() / WINDOW)
        summaries = await setup.run(scraper, workers=2)
        windows = math.floor(time.time() / WINDOW) - began
    assert sum(summary.done for summary in summaries) == items
    assert sum(summary.dead for summary in summaries) == 0
    assert api.over == []
    assert len(api.calls) == items
    assert windows >= 1
    for number in range(1, items + 1):
        item = await setup.ledger.reads.item(setup.run_id, id=number)
        assert item.state is ItemState.DONE


async def test_a_refused_token_neither_charges_the_item_nor_blocks_the_host(setup: Setup) -> None:
    """Somebody else has spent the first token; its 429 is about the token, not about the host."""
    with TokenApi({"core": (100, 3_600)}, status=429) as api:
        api.spend(TOKENS["API_TOKEN_1"], 100)
        scraper = Scraper("people", retries=0)

        @scraper.stage(egress="api")
        async def profile(page: Page) -> Any:
            return page.json()

        scraper.start(*(profile.item(f"{api.url}/users/{number}") for number in range(20)))
        (summary,) = await setup.run(scraper)
        lane = await setup.ledger.lanes.get(api.url.removeprefix("http://"))
    assert (summary.done, summary.dead, summary.retried) == (20, 0, 0)
    assert lane.blocked_seconds == 0
    assert len(api.over) <= 4, "at most the requests that were under way at once"


@pytest.mark.parametrize("setup", [{"given": TOKENS | {"API_TOKEN_3": "very-secret-token-3"}}], indirect=True)
async def test_each_token_keeps_its_pace_also_when_it_takes_the_place_of_another_one(setup: Setup) -> None:  # S0.25
    """One token is bad and one is spent: their requests go out with the third, but no sooner than its pace allows."""
    delay, bad, spent, good = 0.8, TOKENS["API_TOKEN_1"], TOKENS["API_TOKEN_2"], "very-secret-token-3"
    with TokenApi({"core": (100, 3_600)}, bad=frozenset({bad})) as api:
        api.spend(spent, 100)
        scraper = Scraper("people", retries=0)

        @scraper.stage(egress="api", pace="identity", delay=delay, concurrency=20)
        async def profile(page: Page) -> Any:
            return page.json()

        scraper.start(*(profile.item(f"{api.url}/users/{number}") for number in range(8)))
        summaries = await setup.run(scraper, workers=2)
        calls = sorted(api.calls, key=lambda call: call.at)
    assert sum(summary.done for summary in summaries) == 8
    times = {token: [call.at for call in calls if call.token == token] for token in (bad, spent, good)}
    assert [len(times[token]) >= least for token, least in ((bad, 1), (spent, 1), (good, 8))] == [True] * 3
    # Gaps are kept as requests are sent; on a busy machine one may be counted much later than it was sent.
    for starts in times.values():
        assert all(after - before > delay / 4 for before, after in pairwise(starts))


async def test_a_handler_may_ask_for_a_token_for_a_library_of_its_own(setup: Setup) -> None:
    with TokenApi(MANY) as api:
        scraper = Scraper("people")

        @scraper.stage(egress="api")
        async def profile(item: Item, token: Token) -> Any:
            async with aiohttp.ClientSession() as session:
                for path in ("users/1", "search/users"):
                    value = await token.take("search" if path.startswith("search") else "core")
                    headers = {"Authorization": f"Bearer {value}"}
                    async with session.get(f"{api.url}/{path}", headers=headers) as response:
                        token.report(response.status, response.headers)
            await token.take()
            return {"token": repr(token)}

        scraper.start(profile.item(key="somebody"))
        (summary,) = await setup.run(scraper)
        assert summary.done == 1
        records = (await setup.ledger.reads.results(setup.run_id)).rows
        assert "secret" not in str(records)
        views = [view for _, view in await setup.ledger.budgets.list("api")]
    assert [call.resource for call in api.calls] == ["core", "search"]
    assert {view.resource: (view.capacity, view.left) for view in views if view.left < view.capacity} == {
        "core": (10_000, 9_998),
        "search": (1_000, 999),
    }


async def test_a_stage_without_tokens_says_what_is_missing(setup: Setup) -> None:
    scraper = Scraper("people")

    @scraper.stage()
    async def profile(item: Item, token: Token) -> Any:
        return {"token": await token.take()}

    scraper.start(profile.item(key="somebody"))
    (summary,) = await setup.run(scraper)
    assert summary.dead == 1
    item = await setup.ledger.reads.item(setup.run_id, id=1)
    assert "its egress is no pool of tokens" in (item.error or "")
