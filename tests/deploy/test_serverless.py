"""The cloud function on a real ledger and a real site."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from deploy.serverless.handler import cloud_function, lambda_handler
from shoal.config import Settings
from shoal.define.load import load_scraper
from shoal.errors import NotFound, UnknownStage, UsageError
from shoal.service.begin import FillProgress, RunChoice, fill_run, open_run, plan_run
from shoal.wiring import ledger_context
from tests.support.project import Project
from tests.support.site import Site

CODE = """
shop = Scraper("shop")

@shop.stage(lane=None, retries=0)
async def first(page: Page):
    yield {{"path": page.url}}

@shop.stage(lane=None, retries=0)
async def second(page: Page):
    yield {{"path": page.url}}

@shop.stage(lane=None, retries=0)
def stubborn(item: Item):
    time.sleep(60)

@shop.on_finish
def tell():
    with open("finished", "a") as file:
        file.write("finished ")

shop.start({start})
"""


class Context(NamedTuple):
    """What Lambda hands in."""

    seconds: float

    def get_remaining_time_in_millis(self) -> int:
        return int(self.seconds * 1000)


class Request(NamedTuple):
    """What Google hands in, as far as it is used."""

    body: Any

    def get_json(self, *, silent: bool) -> Any:
        return self.body


@pytest.fixture
def site() -> Any:
    with Site() as running:
        yield running


@pytest.fixture
def function(tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Project]:
    """A deployed function: its code in its folder, its variables, a run waiting."""

    def deploy(start: str) -> Project:
        project = Project(tmp_path, postgres_url)
        project.write(CODE.format(start=start))
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("SHOAL_LEDGER", postgres_url)
        monkeypatch.setenv("SCRAPER", "shop.py")
        asyncio.run(enqueue(postgres_url, tmp_path))
        return project

    return deploy


async def enqueue(postgres_url: str, folder: Path) -> None:
    scraper = load_scraper("shop.py", {}, folder)
    async with ledger_context(Settings(ledger=postgres_url), migrate=True) as ledger:
        plan = await plan_run(ledger, scraper, RunChoice.FRESH)
        run = await open_run(ledger, scraper, plan, scraper.run_spec(), by="test")
        await fill_run(ledger, run, scraper, None, FillProgress(), by="test")


def pages(site: Site, count: int, stage: str = "first") -> str:
    return f"{stage}.item(f'{site.url}/page/{{n}}') for n in range(1, {count} + 1)"


def test_a_call_works_one_claim_and_says_whether_more_is_left(
    site: Site, function: Callable[[str], Project], monkeypatch: pytest.MonkeyPatch
) -> None:  # S2.27
    project = function(pages(site, 12))
    monkeypatch.setenv("SHOAL_BATCH_SIZE", "5")
    answers = [lambda_handler({}, Context(30)) for _ in range(3)]
    assert [(answer["done"], answer["left"]) for answer in answers] == [(5, True), (5, True), (2, False)]
    assert len(project.export()) == 12
    assert (project.folder / "finished").read_text() == "finished "
    nothing = lambda_handler({}, Context(30))
    assert (nothing["attempts"], nothing["left"]) == (0, False)


def test_a_call_may_choose_run_stages_and_number(site: Site, function: Callable[[str], Project]) -> None:
    project = function(f"[*({pages(site, 4)}), *({pages(site, 3, 'second')})]")
    request = Request({"run_id": project.run().id, "stages": ["second"], "limit": 2})
    with ThreadPoolExecutor() as threads:  # Google's server calls it in a thread
        body, status = threads.submit(cloud_function, request).result()
    assert (status, body["done"], body["stop_reason"]) == (200, 2, "limit reached")
    assert {item.stage for item in project.items() if item.state == "done"} == {"second"}
    body, status = cloud_function(Request({"run_id": "20200101_000000"}))
    assert status == 404
    assert "20200101_000000" in body["error"]


def test_time_is_up_before_the_work_is_done(site: Site, function: Callable[[str], Project]) -> None:
    """What does not end in time goes back, uncharged, and the call is over before it would be cut off.

    That holds for a page that hangs, and for a function that blocks its thread and cannot be ended.
    """
    project = function(f"['{site.url}/page/1', '{site.url}/slow/60/a', stubborn.item(key='stubborn')]")
    began = time.monotonic()
    answer = lambda_handler({}, Context(12))
    assert time.monotonic() - began < 12
    assert (answer["done"], answer["given_back"], answer["left"]) == (1, 2, True)
    left_over = [(item.state, item.tries) for item in project.items() if item.state != "done"]
    assert left_over == [("ready", 0), ("ready", 0)]
    assert project.is_sound()


def test_a_wrong_call_changes_nothing(site: Site, function: Callable[[str], Project]) -> None:
    project = function(pages(site, 2))
    wrong: list[tuple[Any, type[Exception], str]] = [
        ({"scraper": "other.py"}, UsageError, "scraper"),
        ({"limit": 0}, UsageError, "limit is 0"),
        ({"limit": "many"}, UsageError, "limit"),
        ({"stages": ["third"]}, UnknownStage, "third"),
        ({"run_id": "20200101_000000"}, NotFound, "20200101_000000"),
        ("{}", UsageError, "cannot be read"),
    ]
    for event, error, text in wrong:
        with pytest.raises(error, match=text):
            lambda_handler(event, Context(30))
    assert project.counts().remaining == 2


def test_a_wrong_call_by_http_is_told_why() -> None:
    body, status = cloud_function(Request({"limit": -1}))
    assert status == 400
    assert "limit" in body["error"]


def test_a_function_that_cannot_work_says_so(
    site: Site, function: Callable[[str], Project], monkeypatch: pytest.MonkeyPatch
) -> None:
    function(pages(site, 2))
    with pytest.raises(UsageError, match="too short"):
        lambda_handler({}, Context(4))
    monkeypatch.setenv("SHOAL_LEDGER", "ledger.db")
    with pytest.raises(UsageError, match="gone with the function"):
        lambda_handler({}, Context(30))
    monkeypatch.delenv("SCRAPER")
    with pytest.raises(UsageError, match="SCRAPER"):
        lambda_handler({}, Context(30))
