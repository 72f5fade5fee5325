"""Pages rendered by Chromium: `shoal run` with client="browser" against a bare loop of Playwright with as many tabs.

`python -m bench.browser URLS OUT TABS` is the bare loop.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from contextlib import nullcontext
from pathlib import Path

import uvloop
from parsel import Selector

from bench.figures import Report
from bench.rounds import paired_ratio
from bench.scrape import Entrant, shoal, take_turns
from bench.scrape_site import FastSite
from bench.scrape_trial import OUT, URLS, Program, python
from bench.session import Effort, Session

TABS = 4
PAGES: dict[Effort, int] = {"quick": 200, "full": 1_000}
BARE = "bare Playwright loop"
SHOAL = "shoal run, client browser"


def run(session: Session) -> Report:
    pages = session.size(PAGES)
    report = Report(
        "browser",
        "How many pages per second does a browser render, parsed and kept by one process?",
        {"pages": pages, "tabs": TABS, "bytes": 20_000},
    )
    entrants = {
        BARE: Entrant(lambda: nullcontext(Program(python("browser", URLS, OUT, TABS))), pages, "large"),
        SHOAL: Entrant(shoal(TABS, client="browser"), pages, "large"),
    }
    with FastSite() as site:
        trials = take_turns(site, entrants, session.rounds)
    rates = {name: [trial.rate for trial in of] for name, of in trials.items()}
    for name, of in rates.items():
        report.add(name, "pages/s", of)
    report.target(f"{SHOAL} / {BARE}", paired_ratio(rates[SHOAL], rates[BARE]), at_least=0.9)
    report.bars(f"Pages of 20 KB in {TABS} tabs", "pages/s")
    return report


async def _bare(urls: list[str], out: Path, tabs: int) -> None:
    """Every tab opens one page after another: nobody can do less."""
    from playwright.async_api import async_playwright

    from shoal.fetch.chromium import find_chromium

    async with async_playwright() as driver:
        program = find_chromium(os.environ.get("SHOAL_CHROMIUM", ""), driver.chromium.executable_path)
        browser = await driver.chromium.launch(executable_path=program)
        context = await browser.new_context()
        left = iter(urls)
        with out.open("w") as file:

            async def work() -> None:
                tab = await context.new_page()
                for url in left:
                    await tab.goto(url)
                    title = Selector(await tab.content()).css("title::text").get()
                    file.write(json.dumps({"url": url, "title": title}) + "\n")

            await asyncio.gather(*(work() for _ in range(tabs)))
        await browser.close()


if __name__ == "__main__":
    uvloop.run(_bare(Path(sys.argv[1]).read_text().split(), Path(sys.argv[2]), int(sys.argv[3])))
