"""A real run in a real Chromium: it is watched, steered and repaired; its server is killed, its ledger stopped."""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from playwright.async_api import Browser, Route, expect

from shoal.testing.site import LocalSite
from tests.support.browser_tab import PATIENCE, Tab, open_tab
from tests.support.postgres import PostgresServer
from tests.support.project import Project, migrate
from tests.support.served import ServedProject
from tests.support.small_ledger import small_run

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.xdist_group("dashboard live")]

BROKEN = 45
PAGES = 5_000
PAGE_SECONDS = 0.2
SHOP = f"""
    shop = Scraper("shop", robots=False)

    @shop.stage(concurrency=4, retries=0)
    async def page(page: Page, item: Item):
        if "sold out" in page.text:
            raise Permanent("No price on the page")
        yield {{"url": page.url}}

    shop.start(page.item(f"URL/p/{{n}}") for n in range({PAGES}))
"""
# What the browser says while the server is away.
AWAY = ("net::ERR_", "WebSocket connection to")
# The code of dialogs and charts is loaded when there is time for it.
ALL_CODE = """() => ["ActionDialog", "TimeSeries"].every((part) =>
    performance.getEntriesByType("resource").some((each) => each.name.includes(part)))"""
CHART_CODE = "**/assets/TimeSeries-*.js"
MARK = "() => (window.__loaded_once = true)"


class Shop(NamedTuple):
    """A server with a project whose scraper works for longer than a test."""

    served: ServedProject
    site: LocalSite

    def repair(self) -> None:
        """All pages of the site have their price from now on, at once."""
        for number in range(PAGES):
            self.site.route(f"/p/{number}", "<p>12.50")

    async def start(self, workers: int = 1) -> str:
        """Start a pool; returns the run that it works on."""
        body = {"scraper": "shop", "workers": workers}
        started = await asyncio.to_thread(self.served.post, "/api/v1/pools", body)
        run: str = started["pool"]["run_id"]
        return run


@pytest.fixture
def shop(project: Project) -> Iterator[Shop]:
    with LocalSite() as site:
        for number in range(PAGES):
            site.route(f"/p/{number}", "sold out" if number < BROKEN else "<p>12.50", delay=PAGE_SECONDS)
        project.write(SHOP.replace("URL", site.url))
        (project.folder / "shoal.toml").touch()
        with ServedProject(project) as served:
            yield Shop(served, site)


async def number_in(tab: Tab, label: str) -> int:
    return int((await tab.stat(label).inner_text()).replace(",", ""))


async def until(look: Callable[[], Awaitable[int]], is_so: Callable[[int], bool]) -> int:
    """Look until it is so."""
    deadline = time.monotonic() + PATIENCE / 1000
    while not is_so(seen := await look()):
        assert time.monotonic() < deadline, seen
        await asyncio.sleep(0.1)
    return seen


async def test_a_run_is_watched_paused_and_scaled(browser: Browser, shop: Shop) -> None:
    async with open_tab(browser, shop.served.url) as tab:
        await tab.open("")
        await expect(tab.page.get_by_text("This ledger has no runs yet")).to_be_visible()
        await tab.page.evaluate(MARK)

        # Start a pool.
        await tab.press("g", "w")
        await tab.button("Start a pool").click()
        await tab.dialog.get_by_label("Workers").fill("1")
        await expect(tab.dialog.get_by_role("status")).to_contain_text("1 worker of shop")
        await tab.dialog.get_by_role("button", name="Start").click()
        await expect(tab.dialog).to_have_count(0, timeout=PATIENCE)
        pools = tab.page.get_by_role("table", name="Pools of workers")
        await expect(pools.get_by_text("running", exact=True)).to_be_visible(timeout=PATIENCE)
        workers = tab.page.get_by_role("table", name="Workers", exact=True)
        await expect(workers.locator("tbody tr")).to_have_count(1, timeout=PATIENCE)

        # The overview and the page of the run count by themselves.
        await tab.press("g", "o")
        card = tab.page.get_by_role("article")
        await expect(card).to_contain_text("shop", timeout=PATIENCE)
        await expect(card.get_by_text("active", exact=True)).to_be_visible()
        await card.get_by_role("link", name="shop").click()
        await expect(tab.heading).to_have_text("shop")
        left = await number_in(tab, "Left")
        before = len(tab.frames)
        await until(lambda: number_in(tab, "Left"), lambda now: now < left)
        assert any('"remaining"' in frame for frame in tab.frames[before:]), "frames bring it"

        await check_pause(tab, shop)
        await check_scale(tab, shop)
        assert await tab.page.evaluate("() => window.__loaded_once"), "the page was never loaded again"
        tab.check()


async def check_pause(tab: Tab, shop: Shop) -> None:
    """The site's own log is the witness."""
    await tab.button("Pause").click()
    await expect(tab.dialog).to_contain_text("Claims stop within a second")
    await tab.dialog.get_by_role("button", name="Pause").click()
    head = tab.page.locator(".page-head")
    await expect(head.get_by_text("paused", exact=True)).to_be_visible(timeout=PATIENCE)

    async def held() -> int:
        return (await asyncio.to_thread(shop.served.project.counts)).leased

    await until(held, lambda count: count == 0)
    seen = len(shop.site.requests)
    left = shop.served.get("/api/v1/runs/latest")["remaining"]
    await expect(tab.stat("Left")).to_have_text(f"{left:,}", timeout=PATIENCE)
    assert len(shop.site.requests) == seen
    await tab.button("Resume").click()
    await tab.dialog.get_by_role("button", name="Resume").click()
    await expect(head.get_by_text("active", exact=True)).to_be_visible(timeout=PATIENCE)
    await until(lambda: number_in(tab, "Left"), lambda now: now < left)


async def check_scale(tab: Tab, shop: Shop) -> None:
    await tab.press("g", "w")
    pools = tab.page.get_by_role("table", name="Pools of workers")
    await tab.button("Scale", within=pools).click()
    await tab.dialog.get_by_label("Workers").fill("3")
    await expect(tab.dialog.get_by_role("status")).to_contain_text("3 workers")
    await tab.press("Enter")
    await expect(tab.dialog).to_have_count(0, timeout=PATIENCE)
    workers = tab.page.get_by_role("table", name="Workers", exact=True)
    await expect(workers.locator("tbody tr")).to_have_count(3, timeout=PATIENCE)
    await expect(tab.stat("Live workers")).to_have_text("3", timeout=PATIENCE)
    # Who did it is told, and it is marked on the charts of the run.
    await tab.press("g", "a")
    changes = tab.page.get_by_role("table", name="Changes")
    for what in ("run paused", "run active", "pool scaled"):
        row = changes.get_by_role("row").filter(has_text=what).first
        await expect(row.get_by_role("cell", name="local", exact=True)).to_be_visible(timeout=PATIENCE)
        await expect(row.get_by_role("cell", name="127.0.0.1", exact=True)).to_be_visible()
    marks = shop.served.get("/api/v1/runs/latest/history", minutes=15)["marks"]
    assert [mark["actor"] for mark in marks if "3 workers" in mark["text"]] == ["local@127.0.0.1"], marks


async def test_dead_items_are_retried_a_few_first_and_then_the_rest(browser: Browser, shop: Shop) -> None:
    run = await shop.start(2)

    async def dead() -> int:
        return (await asyncio.to_thread(shop.served.project.counts, run)).dead

    await until(dead, lambda count: count == BROKEN)
    async with open_tab(browser, shop.served.url) as tab:
        await tab.open(f"runs/{run}/failures")
        group = tab.page.get_by_role("table", name="Failures").locator("tbody tr")
        await expect(group).to_have_count(1, timeout=PATIENCE)
        await expect(group).to_contain_text("No price on the page")
        shop.repair()

        await tab.button("Retry", within=group).click()
        await expect(tab.dialog.locator(".preview-count")).to_have_text(str(BROKEN), timeout=PATIENCE)
        assert await dead() == BROKEN, "a preview changes nothing"
        assert await tab.violations() == []
        await expect(tab.dialog.get_by_role("button", name=f"Retry all {BROKEN}")).to_be_enabled()
        await tab.dialog.get_by_role("button", name="Retry 20 first").click()
        await expect(tab.dialog.locator(".preview-count")).to_have_text(str(BROKEN - 20), timeout=PATIENCE)
        assert await dead() == BROKEN - 20
        await expect(tab.dialog.get_by_role("link", name="Look at how they end")).to_be_visible()
        await tab.dialog.get_by_role("button", name="Retry the rest").click()
        await expect(tab.dialog.get_by_role("button", name="Close").last).to_be_visible()
        await expect(tab.dialog).to_contain_text(f"{BROKEN - 20} items", timeout=PATIENCE)
        assert await tab.violations() == []
        assert await dead() == 0
        await tab.dialog.get_by_role("button", name="Close").last.click()
        await expect(tab.page.get_by_text("No item has died.")).to_be_visible(timeout=PATIENCE)
        await expect(tab.page.get_by_text("0 dead")).to_be_visible(timeout=PATIENCE)

        # The site works again: all of them are fetched again, and none dies.
        async def fetched_again() -> int:
            paths = Counter(shop.site.paths)
            return sum(paths[f"/p/{number}"] == 2 for number in range(BROKEN))

        await until(fetched_again, lambda count: count == BROKEN)
        assert await dead() == 0
        tab.check()


async def test_the_page_survives_a_killed_server(browser: Browser, shop: Shop) -> None:
    run = await shop.start(1)
    async with open_tab(browser, shop.served.url) as tab:
        await tab.open(f"runs/{run}")
        await expect(tab.connection).to_have_text("live")
        await tab.page.evaluate(MARK)
        await tab.page.wait_for_function(ALL_CODE)
        left = await until(lambda: number_in(tab, "Left"), lambda now: now < PAGES)

        await asyncio.to_thread(shop.served.kill)
        await expect(tab.connection).to_have_text(re.compile("reconnecting|polling"), timeout=PATIENCE)
        await expect(tab.page.get_by_role("alert").first).to_contain_text(
            "The server does not answer", timeout=PATIENCE
        )
        assert await number_in(tab, "Left") <= left, "what was last known stays"
        assert await tab.violations() == []
        # A change says that it was not made.
        await tab.button("Pause").click()
        await expect(tab.dialog.get_by_role("alert")).to_contain_text("The server does not answer", timeout=PATIENCE)
        await tab.press("Escape")

        await asyncio.to_thread(shop.served.start)
        await expect(tab.connection).to_have_text("live", timeout=PATIENCE)
        await expect(tab.page.get_by_role("alert")).to_have_count(0, timeout=PATIENCE)
        now = await number_in(tab, "Left")
        await until(lambda: number_in(tab, "Left"), lambda later: later < now)
        await tab.press("g", "w")
        await expect(tab.page.get_by_role("table", name="Pools of workers")).to_contain_text(
            "running", timeout=PATIENCE
        )
        assert await tab.page.evaluate("() => window.__loaded_once"), "the page was never loaded again"

        # A page whose code has not been loaded yet says so, and is there by itself when the server is back.
        await asyncio.to_thread(shop.served.kill)
        await expect(tab.connection).to_have_text(re.compile("reconnecting|polling"), timeout=PATIENCE)
        await tab.press("g", "e")
        await expect(tab.page.get_by_text("This page could not be loaded.")).to_be_visible(timeout=PATIENCE)
        assert await tab.violations() == []
        await asyncio.to_thread(shop.served.start)
        await expect(tab.page.get_by_text("No egress is in use.")).to_be_visible(timeout=PATIENCE)
        tab.check(*AWAY)


async def test_charts_whose_code_was_lost_are_drawn_when_the_server_is_back(browser: Browser, shop: Shop) -> None:
    run = await shop.start(1)
    async with open_tab(browser, shop.served.url) as tab:
        await tab.page.route(CHART_CODE, lambda route: route.abort())
        await tab.open(f"runs/{run}")
        await expect(tab.connection).to_have_text("live", timeout=PATIENCE)
        await expect(tab.page.locator("section.chart").first).to_be_visible(timeout=PATIENCE)
        await expect(tab.page.locator("section.chart canvas")).to_have_count(0)
        await asyncio.to_thread(shop.served.kill)
        await expect(tab.connection).to_have_text(re.compile("reconnecting|polling"), timeout=PATIENCE)
        await tab.page.unroute(CHART_CODE)
        await asyncio.to_thread(shop.served.start)
        await expect(tab.page.locator("section.chart canvas").first).to_be_visible(timeout=PATIENCE)
        tab.check(*AWAY)


async def test_a_change_whose_answer_was_lost_is_made_once(browser: Browser, shop: Shop) -> None:
    """The server makes it, is killed before it can answer, and gets it again when it is back."""
    run = await shop.start(1)

    async def lose_answer(route: Route) -> None:
        if "preview" in route.request.url:
            await route.continue_()
            return
        await route.fetch()
        await asyncio.to_thread(shop.served.kill)
        await route.abort()

    async with open_tab(browser, shop.served.url) as tab:
        await tab.open(f"runs/{run}/items?state=waiting")
        await tab.page.route("**/items/cancel*", lose_answer)
        await tab.button("Cancel").click()
        confirm = tab.dialog.get_by_role("button", name="Cancel").last
        await expect(confirm).to_be_enabled(timeout=PATIENCE)
        await confirm.click()
        await expect(tab.dialog.get_by_role("alert")).to_contain_text("The server does not answer", timeout=PATIENCE)
        await tab.page.unroute("**/items/cancel*")
        await asyncio.to_thread(shop.served.start)
        await confirm.click()
        await expect(tab.dialog).to_have_count(0, timeout=PATIENCE)
        events = await asyncio.to_thread(shop.served.get, "/api/v1/events", run=run)
        made = [event for event in events["rows"] if event["action"] == "items.cancelled"]
        assert len(made) == 1, made
        assert (await asyncio.to_thread(shop.served.project.counts, run)).cancelled == made[0]["detail"]["items"] > 0
        tab.check(*AWAY)


@pytest.fixture
def on_postgres(tmp_path: Path, durable_postgres_url: str) -> Iterator[ServedProject]:
    """A server whose ledger has a run and is in a database that may be stopped."""
    migrate(durable_postgres_url)
    with Project(tmp_path, durable_postgres_url) as project, ServedProject(project) as served:
        served.ask(small_run)
        yield served


async def test_the_page_says_that_the_ledger_is_away_and_goes_on_when_it_is_back(
    browser: Browser, on_postgres: ServedProject, durable_postgres: PostgresServer
) -> None:
    async with open_tab(browser, on_postgres.url) as tab:
        await tab.open("runs/latest")
        await expect(tab.connection).to_have_text("live")
        await tab.page.evaluate(MARK)
        await asyncio.to_thread(durable_postgres.stop, "immediate")
        try:
            banner = tab.page.get_by_role("alert").filter(has_text="The ledger is away")
            await expect(banner).to_be_visible(timeout=PATIENCE)
            await expect(tab.connection).to_contain_text("ledger away")
            await expect(tab.stat("Left")).to_have_text("4")
            assert await tab.violations() == []
            assert [width for width in (1440, 1024, 390) if await tab.overflow(width) > 0] == []
            await tab.page.set_viewport_size({"width": 1440, "height": 900})
            await tab.button("Pause").click()
            await expect(tab.dialog.get_by_role("alert")).to_be_visible(timeout=PATIENCE)
            await tab.press("Escape")
        finally:
            await asyncio.to_thread(durable_postgres.start)
        await expect(banner).to_have_count(0, timeout=PATIENCE)
        await expect(tab.connection).to_have_text("live", timeout=PATIENCE)
        await tab.button("Pause").click()
        await tab.dialog.get_by_role("button", name="Pause").click()
        await expect(tab.page.locator(".page-head").get_by_text("paused", exact=True)).to_be_visible(timeout=PATIENCE)
        assert await tab.page.evaluate("() => window.__loaded_once")
        tab.check("status of 503")
