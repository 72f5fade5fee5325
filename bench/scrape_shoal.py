"""Shoal as a user would start it: a scraper in a file, and `shoal run`."""

from __future__ import annotations

import sys
from pathlib import Path

from bench.scrape_trial import OUT, STORED, URLS, Program

# The hook is called when everything is committed; what comes after is the export, the summary and the goodbye.
_SCRAPER = """\
import time
from pathlib import Path

from shoal import Page, Scraper

pages = Scraper("pages", robots={robots})


@pages.stage({options})
async def page(page: Page):
    yield {{"url": page.url, "title": page.css("title::text").get()}}


@pages.on_finish
def stored():
    Path("{stored}").write_text(repr(time.time()))
"""


def shoal_program(
    concurrency: int,
    *,
    ledger: str | None = None,
    by_host: bool = False,
    robots: bool = False,
    follow: bool = False,
    client: str = "http",
    egress: str | None = None,
) -> Program:
    """`ledger`: the default file unless given. `by_host`: at most `concurrency` pages of a host at once, as a lane.

    `egress`: a pool of exits, which a file shoal.toml beside it declares.
    """
    options = [f"concurrency={concurrency}" if by_host else "lane=None"]
    if egress is not None:
        options.append(f"egress={egress!r}")
    if client != "http":
        options.append(f"client={client!r}")
    if follow:
        options.append("follow=True")
    scraper = _SCRAPER.format(robots=robots, options=", ".join(options), stored=STORED)
    return Program(
        command=[
            *(str(Path(sys.executable).with_name("shoal")), "run", "pages.py"),
            *("--urls-file", URLS, "--concurrency", str(concurrency), "-o", OUT),
        ],
        environment={"SHOAL_LEDGER": ledger} if ledger is not None else {},
        files={"pages.py": scraper},
    )
