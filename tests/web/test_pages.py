"""Every page in a real Chromium: by its address, for every reader, at every width, with no request to anybody else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal

import pytest
from playwright.async_api import Browser, expect

from tests.support.browser_tab import PATIENCE, open_tab
from tests.support.dashboard_scene import HOSTILE, HOSTILE_URL, SCRIPT_URL, DashboardScene
from tests.support.project import Project
from tests.support.served import ServedProject
from tests.web.conftest import Looked

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.xdist_group("dashboard")]

WIDTHS = (1440, 1024, 390)
THEMES: tuple[Literal["light"], Literal["dark"]] = ("light", "dark")
MISSING = "Failed to load resource: the server responded with a status of 404"


def pages(scene: DashboardScene) -> dict[str, str]:
    """The heading of every page by its address."""
    run = f"runs/{scene.active}"
    return {
        "": "Overview",
        "runs": "Runs",
        "runs?state=paused": "Runs",
        run: "states",
        f"runs/{scene.finished}": "shop",
        f"runs/{scene.cancelled}": "states",
        f"{run}/items": "Items",
        f"{run}/items?state=dead&error=503": "Items",
        f"{run}/items/{scene.hostile_item}": f"Item {scene.hostile_item}",
        f"{run}/items/{scene.dead_item}": f"Item {scene.dead_item}",
        f"{run}/failures": "Failures",
        f"{run}/lanes": "Lanes",
        f"{run}/lanes?lane=ca.example": "Lanes",
        f"{run}/map": "Map",
        f"{run}/results": "Results",
        f"runs/{scene.finished}/compare": "Compare two runs",
        "egress": "Egress",
        "egress?pool=api": "Egress",
        "fleet": "Fleet",
        "collections": "Collections",
        "schedules": "Schedules",
        "activity": "Activity",
        "activity?view=alerts": "Activity",
    }


async def test_every_page_is_accessible_fits_its_window_and_asks_nobody_else(browser: Browser, looked: Looked) -> None:
    """Every address of a page; axe-core in light and dark on a wide screen, and once on a narrow one."""
    async with open_tab(browser, looked.url) as tab:
        found: list[str] = []
        for path, heading in pages(looked.scene).items():
            await tab.page.set_viewport_size({"width": 1440, "height": 900})
            await tab.open(path)
            await expect(tab.heading).to_have_text(heading)
            for theme in THEMES:
                await tab.page.emulate_media(color_scheme=theme)
                await expect(tab.page.locator("html")).to_have_attribute("data-theme", theme)
                found += [f"{path} in {theme}: {each}" for each in await tab.violations()]
            for width in WIDTHS:
                if (overflow := await tab.overflow(width)) > 0:
                    found.append(f"{path} at {width}: {overflow} pixels too wide")
            found += [f"{path} at {width}: {each}" for each in await tab.violations()]
        assert not found, "\n".join(found)
        tab.check()


@pytest.fixture
def empty(project: Project) -> Iterator[ServedProject]:
    with ServedProject(project) as served:
        yield served


async def test_the_empty_ledger_says_what_to_do_first(browser: Browser, empty: ServedProject) -> None:
    async with open_tab(browser, empty.url) as tab:
        await tab.open("")
        await expect(tab.page.get_by_text("This ledger has no runs yet")).to_be_visible()
        await expect(tab.page.get_by_text("shoal demo --serve")).to_be_visible()
        for theme in THEMES:
            await tab.page.emulate_media(color_scheme=theme)
            assert await tab.violations() == []
        assert [width for width in WIDTHS if await tab.overflow(width) > 0] == []
        for path in ("runs", "egress", "fleet", "collections", "schedules", "activity"):
            await tab.page.goto(f"{tab.url}/{path}")
            await expect(tab.page.locator("main .empty").first).to_be_visible(timeout=PATIENCE)
            assert await tab.violations() == [], path
        tab.check()


async def test_what_does_not_exist_is_said_and_leads_back(browser: Browser, looked: Looked) -> None:
    async with open_tab(browser, looked.url) as tab:
        await tab.page.goto(f"{tab.url}/no/such/page")
        await expect(tab.page.get_by_text("There is no such page.")).to_be_visible()
        assert await tab.violations() == []
        await tab.page.get_by_role("link", name="Go to the overview").click()
        await expect(tab.heading).to_have_text("Overview")
        for path in ("runs/none", "runs/none/items", f"runs/{looked.scene.active}/items/987654321"):
            await tab.open(path)
            await expect(tab.page.get_by_role("alert").first).to_contain_text("no", timeout=PATIENCE)
        assert await tab.violations() == []
        tab.check(MISSING)


async def test_texts_of_sites_are_shown_and_never_run(browser: Browser, looked: Looked) -> None:
    """A script in a URL, a title, an error, a record, a partition, a lane, a node, an actor and a reason."""
    scene = looked.scene
    run = f"runs/{scene.active}"
    where = {
        f"{run}/items/{scene.hostile_item}": (HOSTILE, HOSTILE_URL, SCRIPT_URL),
        f"{run}/items/{scene.dead_item}": (HOSTILE, SCRIPT_URL),
        f"{run}/items": (HOSTILE, SCRIPT_URL),
        f"{run}/failures": ("</script></textarea>",),  # groups show the shape of a message
        f"{run}/lanes": (HOSTILE,),
        f"{run}/lanes?lane=tx.example": (HOSTILE,),
        f"{run}/map": (HOSTILE,),
        f"{run}/results": (HOSTILE, SCRIPT_URL),
        run: (HOSTILE,),
        "fleet": (HOSTILE,),
        "activity": (HOSTILE,),
        f"egress?pool=isp&exit={scene.exit}": (HOSTILE,),
        f"runs/{scene.finished}/results": (HOSTILE,),
    }
    async with open_tab(browser, looked.url) as tab:
        for path, texts in where.items():
            await tab.open(path)
            for text in texts:
                shown = tab.page.get_by_text(text).or_(tab.page.get_by_text(json_text(text)))
                await expect(shown.first).to_be_attached(timeout=PATIENCE)
            await tab.page.evaluate("() => document.querySelectorAll('details').forEach((each) => (each.open = true))")
            for tip in (await tab.page.locator("main [data-tip]:visible").all())[:12]:
                await tip.hover(force=True)
            if path.endswith("/results"):
                await tab.button("Open").first.click()
                await expect(tab.dialog).to_contain_text("window.__ran")
            if path.endswith("/failures"):
                await tab.button("Retry").nth(-1).click()
                await expect(tab.dialog).to_be_visible()
            planted = "img[src=x], main script, dialog script, a[href^='javascript:' i], [onerror]"
            assert await tab.page.locator(planted).count() == 0, path
            assert await tab.page.evaluate("() => window.__ran") == [], path
        # An address is input too.
        for address in (f"runs?scraper={SCRIPT_URL}", f"{run}/items?text={HOSTILE}", f"activity?actor={HOSTILE}"):
            await tab.open(address)
            assert await tab.page.locator(planted).count() == 0
        await tab.page.goto(f"{tab.url}/%3Cimg%20src=x%20onerror=window.__ran.push(1)%3E")
        await expect(tab.page.get_by_text("There is no such page.")).to_be_visible()
        assert await tab.page.evaluate("() => window.__ran") == []
        tab.check()


def json_text(text: str) -> str:
    """The text as it is written inside JSON."""
    return text.replace('"', '\\"')


async def test_a_planted_script_would_be_noticed(browser: Browser, looked: Looked) -> None:
    """The policy stops what gets into the page, and the tests hear of it."""
    async with open_tab(browser, looked.url) as tab:
        await tab.open("")
        await tab.page.evaluate(
            """() => { const script = document.createElement("script"); script.textContent = "window.__ran.push(1)";
                       document.body.append(script); document.body.insertAdjacentHTML("beforeend",
                       "<img src=x onerror='window.__ran.push(2)'>"); }"""
        )
        await tab.page.wait_for_timeout(200)
        assert await tab.page.evaluate("() => window.__ran") == []
        assert any("CSP: script-src" in each for each in tab.problems)


async def test_views_and_filters_are_addresses_and_back_returns_to_them(browser: Browser, looked: Looked) -> None:
    scene = looked.scene
    async with open_tab(browser, looked.url) as tab:
        await tab.open(f"runs/{scene.active}/items?state=dead&error=503")
        await expect(tab.page.get_by_role("status", name="Items that match")).to_have_text("45")
        await expect(tab.page.get_by_role("searchbox", name="Error")).to_have_value("503")
        await expect(tab.page.get_by_role("group", name="State").locator("[aria-pressed=true]")).to_contain_text("dead")

        await tab.open("")
        await tab.page.get_by_role("article").filter(has_text=scene.active).get_by_role("link", name="states").click()
        await tab.is_at(f"runs/{scene.active}")
        await tab.loaded()
        await expect(tab.heading).to_be_focused()
        await tab.page.get_by_role("navigation", name="Main").get_by_role("link", name="Items").click()
        await expect(tab.heading).to_have_text("Items")
        await tab.page.get_by_role("group", name="State").get_by_role("button", name=re.compile("^done")).click()
        await tab.is_at(f"runs/{scene.active}/items?state=done")
        await tab.page.locator("main tbody a").first.click()
        await expect(tab.heading).to_have_text(re.compile("^Item "))
        assert await tab.page.title() == f"{await tab.heading.inner_text()} · Shoal"

        await tab.page.go_back()
        await tab.is_at(f"runs/{scene.active}/items?state=done")
        await expect(tab.page.get_by_role("group", name="State").locator("[aria-pressed=true]")).to_contain_text("done")
        await tab.page.go_back()
        await tab.is_at(f"runs/{scene.active}/items")
        await expect(tab.page.get_by_role("group", name="State").locator("[aria-pressed=true]")).to_have_text("All")
        await tab.page.go_back()
        await expect(tab.heading).to_have_text("states")
        await tab.page.go_back()
        await expect(tab.heading).to_have_text("Overview")
        await tab.page.go_forward()
        await expect(tab.heading).to_have_text("states")

        # A dialog with an address closes with the back button.
        await tab.open("egress?pool=isp")
        await tab.page.get_by_role("table").get_by_role("button", name="http://192.0.2.3:3128").click()
        await expect(tab.dialog).to_be_visible()
        assert "exit=" in tab.page.url
        await tab.page.go_back()
        await expect(tab.dialog).to_have_count(0)
        await tab.is_at("egress?pool=isp")
        tab.check()
