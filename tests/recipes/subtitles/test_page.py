"""The page Subtitles in a real Chromium: a channel is pasted, captions are read, and nothing of a site runs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.async_api import Browser, expect

from shoal.recipes import find_project
from shoal.templates import write_project
from tests.recipes.subtitles.conftest import HOSTILE, URL, do_the_work
from tests.support.browser_tab import PATIENCE, open_tab
from tests.support.ledgers import sqlite_harness
from tests.support.project import Project
from tests.support.served import ServedProject
from tests.web.conftest import Looked, browser, looked

__all__ = ["browser", "looked"]

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.xdist_group("dashboard")]


@pytest.fixture
def served(project: Project) -> Iterator[ServedProject]:
    """A project with a channel of four videos, whose job is paused, so that no worker is started."""
    write_project(project.folder, dict(find_project("subtitles").files()))

    async def work(run_id: str) -> None:
        async with sqlite_harness(Path(project.ledger)) as harness:
            await do_the_work(harness)
            await harness.ledger.runs.pause(run_id)

    with ServedProject(project) as served:
        served.post("/channels", {"url": URL})
        asyncio.run(work(served.get("/jobs")["run_id"]))
        yield served


async def test_a_channel_is_pasted_and_captions_are_read(browser: Browser, served: ServedProject) -> None:
    async with open_tab(browser, served.url) as tab:
        await tab.open("")
        await tab.press("g", "v")
        await expect(tab.heading).to_have_text("Subtitles")
        await expect(tab.page.get_by_role("button", name="Boats")).to_be_visible()
        await expect(tab.page.get_by_role("cell", name="Private video")).to_be_visible()
        for theme in ("light", "dark"):
            await tab.page.emulate_media(color_scheme=theme)
            assert await tab.violations("all" if theme == "light" else "contrast") == []
        assert [width for width in (1440, 1024, 390) if await tab.overflow(width) > 0] == []

        # What robots.txt forbids is shown as such, and can be tried again.
        statuses = tab.page.get_by_role("group", name="Status")
        await statuses.get_by_role("button", name="skipped").click()
        row = tab.page.get_by_role("row").filter(has_text="Four")
        await row.get_by_role("button", name="Retry").click()
        await tab.dialog.get_by_role("button", name="Retry", exact=True).click()
        await expect(tab.page.get_by_text("No video is skipped.")).to_be_visible()
        await statuses.get_by_role("button", name="all").click()

        # Captions are text, and so are titles.
        await tab.page.get_by_role("button", name="One", exact=True).click()
        await expect(tab.dialog.get_by_role("region", name="Captions")).to_have_text(f"Words\n{HOSTILE}")
        assert await tab.violations() == []
        assert "video=" in tab.page.url
        await tab.press("Escape")
        await expect(tab.dialog).to_have_count(0)
        await expect(tab.page.get_by_text(HOSTILE).first).to_be_visible()
        assert await tab.page.locator("main script, dialog script, [onerror], img[src=x]").count() == 0
        assert await tab.page.evaluate("() => window.__ran") == []
        async with tab.page.expect_download() as waiting:
            await tab.page.get_by_role("link", name="Download the captions of One as .txt").click()
        assert (await waiting.value).suggested_filename == "v1_One.txt"

        # A channel by keyboard; what is wrong is said beside the field.
        field = tab.page.get_by_label("Channel or playlist")
        await field.fill("boats")
        await field.press("Enter")
        refused = tab.page.get_by_text("is not the address of a channel")
        await expect(refused).to_be_visible()
        await field.fill("")
        await expect(refused).to_have_count(0)
        await field.fill("https://videos.example/@ropes")
        await field.press("Enter")
        await expect(tab.page.get_by_role("button", name="https://videos.example/@ropes")).to_be_visible(
            timeout=PATIENCE
        )
        assert served.get("/jobs")["status"] == "paused"
        tab.check("Failed to load resource: the server responded with a status of 422")


async def test_settings_are_checked_at_their_fields(browser: Browser, served: ServedProject) -> None:
    """S4.2: what is no number within the bounds is said at the field and not sent."""
    async with open_tab(browser, served.url) as tab:
        await tab.open("subtitles")
        retries, save = tab.page.get_by_label("Retries"), tab.page.get_by_role("button", name="Save")
        for typed in ("abc", "2,5", "2.5", "11", ""):
            await retries.fill(typed)
            await expect(tab.page.get_by_text("It must be a whole number from 0 to 10.")).to_be_visible()
            await retries.press("Enter")
            await expect(save).to_be_disabled()
        assert await tab.violations() == []
        assert served.get("/settings")["max_retries"] == 3
        await retries.fill("2")
        await tab.page.get_by_label("Backoff factor").fill("2.5")
        await save.click()
        await expect(tab.page.get_by_text("Changed. Workers follow.")).to_be_visible()
        settings = served.get("/settings")
        assert (settings["max_retries"], settings["backoff_factor"], settings["max_workers"]) == (2, 2.5, 5)
        tab.check()


async def test_other_projects_do_not_have_the_page(browser: Browser, looked: Looked) -> None:
    async with open_tab(browser, looked.url) as tab:
        await tab.open("")
        navigation = tab.page.get_by_role("navigation", name="Main")
        await expect(navigation.get_by_role("link", name="Runs")).to_be_visible()
        await expect(navigation.get_by_role("link", name="Subtitles")).to_have_count(0)
        tab.check()
