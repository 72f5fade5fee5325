"""Items are replayed from stored pages: their results are replaced, and no site is visited."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import shoal
from shoal import Item, Page, Scraper, secret
from shoal.errors import Permanent, SecretMissing, UsageError
from shoal.model.item import ItemState
from shoal.model.run import RunState
from shoal.model.views import ItemFilter
from shoal.service.client import Fleet
from tests.support.site import Site

Handle = Callable[[Page], Any]


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with Site() as site:
        yield site


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SHOAL_LEDGER", raising=False)


def pages_scraper(site: Site, handle: Handle, numbers: range | list[int] = range(1, 4), **options: Any) -> Scraper:
    pages = Scraper("pages")

    @pages.stage(retries=0, **options)
    async def page(page: Page) -> Any:
        for value in handle(page):
            yield value

    @pages.stage
    async def detail(item: Item) -> Any:
        yield {"detail": item.key}

    pages.start([f"{site.url}/page/{number}" for number in numbers])
    return pages


def number_of(page: Page) -> int:
    return int(page.url.rpartition("/")[2])


def first_version(page: Page) -> list[Any]:
    if number_of(page) == 3:
        raise Permanent("the handler does not understand it")
    return [{"number": number_of(page), "version": 1}, {"number": number_of(page), "version": 1}]


def second_version(page: Page) -> list[Any]:
    return [{"number": number_of(page), "version": 2}]


def run_once(scraper: Scraper) -> str:
    return scraper.run(quiet=True, store="pages").run_id


async def records_of(fleet: Fleet, run: str) -> list[tuple[int, int]]:
    return sorted([(record["number"], record["version"]) async for record in fleet.records(run)])


async def test_changed_code_replaces_the_results_of_done_items(site: Site) -> None:
    run = await asyncio.to_thread(run_once, pages_scraper(site, first_version))
    visits = len(site.visits())
    async with shoal.connect(store="pages") as fleet:
        summary = await fleet.replay(pages_scraper(site, second_version))
        assert (summary.run.id, summary.replayed, summary.failed, summary.records) == (run, 2, 0, 2)
        assert await records_of(fleet, run) == [(1, 2), (2, 2)]
        counts = await fleet.stats(run=run)
        assert (counts.done, counts.dead, counts.results) == (2, 1, 2)
        named = await fleet.replay(pages_scraper(site, second_version), run, key=f"{site.url}/page/3")
        assert named.replayed == 1
        counts = await fleet.stats(run=run)
        assert (counts.done, counts.dead, counts.results) == (3, 0, 3)
        events = [event.action for event in (await fleet.run(run)).events]
        assert events.count("items.replayed") == 2
    assert len(site.visits()) == visits


async def test_a_handler_that_fails_keeps_the_old_results(site: Site) -> None:
    def broken(page: Page) -> list[Any]:
        if number_of(page) == 2:
            raise ValueError("no price on this page")
        return second_version(page)

    run = await asyncio.to_thread(run_once, pages_scraper(site, second_version))
    async with shoal.connect(store="pages") as fleet:
        summary = await fleet.replay(pages_scraper(site, broken), run)
        assert (summary.replayed, summary.failed) == (2, 1)
        (failure,) = summary.failures
        assert failure.name == f"{site.url}/page/2"
        assert "no price on this page" in failure.error
        assert await records_of(fleet, run) == [(1, 2), (2, 2), (3, 2)]
        assert (await fleet.stats(run=run)).done == 3


async def test_an_interrupted_replay_leaves_whole_items(site: Site) -> None:
    """Cancelled in the middle: what was replaced is replaced completely, the rest is as it was."""
    reached = asyncio.Event()
    run = await asyncio.to_thread(run_once, pages_scraper(site, second_version))
    slow = Scraper("pages")

    @slow.stage
    async def page(page: Page) -> Any:
        yield {"number": number_of(page), "version": 3}
        if number_of(page) == 2:
            reached.set()
            await asyncio.Event().wait()
        yield {"number": number_of(page), "version": 3}

    async with shoal.connect(store="pages", concurrency=1) as fleet:
        replay = asyncio.create_task(fleet.replay(slow, run))
        await asyncio.wait_for(reached.wait(), 30)
        replay.cancel()
        await asyncio.gather(replay, return_exceptions=True)
        assert await records_of(fleet, run) == [(1, 3), (1, 3), (2, 2), (3, 2)]
        assert (await fleet.stats(run=run)).done == 3


@pytest.mark.parametrize("wanted", [True, False])
async def test_follow_ups_that_are_new_are_enqueued(site: Site, wanted: bool) -> None:
    scrapers: list[Scraper] = []

    def with_details(page: Page) -> list[Any]:
        item = scrapers[0].stages["detail"].item(key="shared")
        return [{"number": number_of(page), "version": 2}, item]

    run = await asyncio.to_thread(run_once, pages_scraper(site, second_version))
    scrapers.append(pages_scraper(site, with_details))
    async with shoal.connect(store="pages") as fleet:
        summary = await fleet.replay(scrapers[0], run, follow_ups=wanted)
        assert (summary.replayed, summary.enqueued) == (3, int(wanted))
        detail = await fleet.run(run)
        assert detail.run.state is (RunState.ACTIVE if wanted else RunState.FINISHED)
        assert detail.counts.ready == int(wanted)


async def test_keys_and_limits_hold_in_a_replay(site: Site) -> None:
    def keyed(version: int) -> Handle:
        return lambda page: [{"number": number_of(page), "version": version}, {"number": 0, "version": version}]

    run = await asyncio.to_thread(run_once, pages_scraper(site, keyed(1), record_key="number"))
    async with shoal.connect(store="pages", concurrency=1) as fleet:
        again = pages_scraper(site, keyed(2), record_key="number")
        assert (await fleet.replay(again, run, limit=2)).replayed == 2
        numbers = [number for number, _ in await records_of(fleet, run)]
        assert numbers == [0, 1, 2, 3]
        counts = await fleet.stats(run=run)
        assert counts.results == 4


async def test_what_cannot_be_replayed_says_why(site: Site) -> None:
    run = await asyncio.to_thread(run_once, pages_scraper(site, second_version, [1]))
    async with shoal.connect() as fleet:
        with pytest.raises(UsageError, match="no page store"):
            await fleet.replay(pages_scraper(site, second_version), run)
    async with shoal.connect(store="elsewhere") as fleet:
        summary = await fleet.replay(pages_scraper(site, second_version), run)
        assert (summary.replayed, summary.failed) == (0, 1)
        assert "not in the store" in summary.failures[0].error
        other = pages_scraper(site, second_version)
        other.rename("other")
        with pytest.raises(UsageError, match="not of other"):
            await fleet.replay(other, run)
        with pytest.raises(UsageError, match="Only done and dead"):
            await fleet.replay(pages_scraper(site, second_version), run, ItemFilter(states=(ItemState.READY,)))


async def test_a_missing_secret_ends_a_replay_with_its_own_error(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def scraper() -> Scraper:
        pages = pages_scraper(site, second_version, [])
        pages.start([pages.first_stage.item(f"{site.url}/page/{n}", headers={"X-A": secret("PAGES")}) for n in (1, 2)])
        return pages

    monkeypatch.setenv("PAGES", "open sesame")
    run = await asyncio.to_thread(run_once, scraper())
    monkeypatch.delenv("PAGES")
    async with shoal.connect(store="pages") as fleet:
        with pytest.raises(SecretMissing):
            await fleet.replay(scraper(), run)
