"""The dashboard without a mouse: every key of the help, the order of the focus, and where it goes after a dialog."""

from __future__ import annotations

import re

import pytest
from playwright.async_api import Browser, expect

from tests.support.browser_tab import Tab, open_tab
from tests.web.conftest import Looked

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.xdist_group("dashboard")]

INSIDE = "() => document.activeElement === document.body || document.activeElement.closest('dialog') !== null"


async def test_search_finds_pages_runs_and_items(browser: Browser, looked: Looked) -> None:
    scene = looked.scene
    async with open_tab(browser, looked.url) as tab:
        await tab.open(f"runs/{scene.active}")
        await tab.press("/")
        field = tab.dialog.get_by_role("combobox")
        await expect(field).to_be_focused()
        assert await tab.violations() == []
        await tab.page.keyboard.type("failu")
        await expect(tab.dialog.get_by_role("option", selected=True)).to_contain_text("Failures")
        await tab.press("Enter")
        await tab.is_at(f"runs/{scene.active}/failures")
        await expect(tab.dialog).to_have_count(0)

        await tab.press("Control+k")
        await tab.page.keyboard.type(scene.paused + " paused")
        await expect(tab.dialog.get_by_role("option", selected=True)).to_contain_text(scene.paused)
        await tab.press("Enter")
        await tab.is_at(f"runs/{scene.paused}")

        await tab.press("/")
        await tab.page.keyboard.type("shop.example")
        await tab.press("Enter")
        await tab.is_at(f"runs/{scene.paused}/items?text=shop.example")
        await expect(tab.page.get_by_role("status", name="Items that match")).to_have_text("4")

        # Arrow keys choose; `/` in a field is a letter.
        await tab.press("/")
        await tab.press("ArrowDown", "ArrowDown")
        await expect(tab.dialog.get_by_role("option").nth(2)).to_have_attribute("aria-selected", "true")
        await tab.press("/")
        await expect(field).to_have_value("/")
        await tab.press("Escape")
        await expect(tab.dialog).to_have_count(0)
        tab.check()


async def test_keys_lead_to_every_page(browser: Browser, looked: Looked) -> None:
    run = f"runs/{looked.scene.active}"
    pages = {
        "r": "runs", "o": "", "u": run, "i": f"{run}/items", "f": f"{run}/failures", "l": f"{run}/lanes",
        "m": f"{run}/map", "d": f"{run}/results", "e": "egress", "w": "fleet", "c": "collections", "t": "schedules",
        "a": "activity",
    }  # fmt: skip
    async with open_tab(browser, looked.url) as tab:
        await tab.open(f"{run}/items")
        for key, path in pages.items():
            await tab.press("g", key)
            await tab.is_at(path)
            await tab.loaded()
            await expect(tab.heading).to_be_focused()
        # The help tells all of them.
        await tab.press("?")
        await expect(tab.dialog).to_be_visible()
        for key in pages:
            await expect(tab.dialog.locator("dt", has_text=re.compile(rf"^g\s*{key}$"))).to_have_count(1)
        assert await tab.violations() == []
        await tab.press("Escape")
        await expect(tab.dialog).to_have_count(0)
        tab.check()


async def test_the_focus_goes_through_the_page_in_order_and_returns_from_dialogs(
    browser: Browser, looked: Looked
) -> None:
    async with open_tab(browser, looked.url) as tab:
        await tab.open(f"runs/{looked.scene.active}")
        await tab.press("Tab")
        assert await tab.focused() == "Skip to the content"
        seen = []
        for _ in range(6):
            await tab.press("Tab")
            seen.append(await tab.focused())
        assert seen == ["Shoal", "Overview", "Runs", "Egress", "Fleet", "Collections"]
        await tab.page.locator(".skip").focus()
        await tab.press("Enter", "Tab")
        assert await tab.focused() == "Pause"

        # Enter opens the dialog; the focus stays in it; Escape closes it and gives the focus back.
        await tab.press("Enter")
        await expect(tab.dialog.get_by_role("heading")).to_have_text("Pause states")
        await expect(tab.dialog.get_by_role("button", name="Pause")).to_be_enabled()
        assert await tab.violations() == []
        for _ in range(8):
            await tab.press("Tab")
            assert await tab.page.evaluate(INSIDE), await tab.focused()
        await tab.press("Escape")
        await expect(tab.dialog).to_have_count(0)
        assert await tab.focused() == "Pause"

        await check_menu(tab)
        for key, name in (("?", "Keyboard"), ("/", "Search"), ("s", "Switch run")):
            await tab.press(key)
            await expect(tab.dialog.get_by_role("heading")).to_have_text(name)
            await tab.press("Escape")
            await expect(tab.dialog).to_have_count(0)
            assert await tab.focused() == "More actions"
        tab.check()


async def check_menu(tab: Tab) -> None:
    """Of the buttons behind the three dots."""
    menu = tab.page.get_by_role("button", name="More actions")
    await menu.focus()
    await tab.press("Enter")
    assert await tab.focused() == "Drain workers"
    assert await tab.violations() == []
    await tab.press("ArrowDown", "End", "Home", "ArrowUp")
    assert await tab.focused() == "Cancel the run"
    await tab.press("Enter")
    await expect(tab.dialog.get_by_role("heading")).to_have_text("Cancel states")
    await tab.press("Escape")
    await expect(tab.dialog).to_have_count(0)
    assert await tab.focused() == "More actions"
    await tab.press("Enter", "Escape")
    await expect(tab.page.get_by_role("menu")).to_have_count(0)
    assert await tab.focused() == "More actions"


async def test_rows_tiles_and_cells_are_reached_by_keys(browser: Browser, looked: Looked) -> None:
    run = f"runs/{looked.scene.active}"
    async with open_tab(browser, looked.url) as tab:
        await tab.open(f"{run}/items?state=done")
        rows = tab.page.locator("main tbody tr")
        await tab.press("j")
        await expect(rows.nth(0).locator("a")).to_be_focused()
        await tab.press("j", "j", "k")
        await expect(rows.nth(1).locator("a")).to_be_focused()
        await tab.press("Enter")
        await expect(tab.heading).to_have_text(re.compile("^Item "))

        await tab.open(f"{run}/map")
        tile = tab.page.locator(".tile[tabindex='0']")
        await expect(tile).to_have_count(1)
        await tile.focus()
        before = await tab.focused()
        await tab.press("ArrowRight")
        assert await tab.focused() != before
        await tab.press("Enter")
        await expect(tab.heading).to_have_text("Items")
        assert "partition=" in tab.page.url

        await tab.open("egress?pool=isp")
        await tab.page.locator(".matrix [tabindex='0']").focus()
        await tab.press("ArrowDown", "ArrowRight")
        await expect(tab.page.locator(".matrix-foot p")).to_contain_text(".example")

        # p: nothing changes by itself any more.
        await tab.press("p")
        await expect(tab.connection).to_have_text("paused")
        assert await tab.violations() == []
        await tab.press("p")
        await expect(tab.connection).to_have_text("live")
        tab.check()
