"""Stages with client="browser" through the real command line."""

from __future__ import annotations

from tests.support.browsers import make_browser
from tests.support.project import Project
from tests.support.site import Site

SCRAPER = """
from shoal import Item, Page, Permanent, Scraper, Tab
shop = Scraper("shop")

@shop.login
async def login(tab: Tab):
    await tab.goto("{site}/cookie/set?who=me")

@shop.stage(client="browser", wait_for="#more", block=("image",), capture=True, retries=0)
async def product(page: Page, tab: Tab):
    if "bad" in page.url:
        raise Permanent("no price")
    await tab.click("#more")
    again = await tab.page(wait_for="#shown")
    yield {{"first": page.css("#shown::text").get(), "then": again.css("#shown::text").get()}}

@shop.stage(client="browser")
async def cookie(tab: Tab, item: Item):
    await tab.goto(item.url)
    yield {{"cookie": (await tab.page()).text}}

shop.start(product.item("{site}/good"), product.item("{site}/bad"), cookie.item("{site}/cookie/show"),
           product.item("{site}/forbidden"))
"""
PAGE = """<title>t</title><img src=/page/1><button id=more onclick="show()">more</button>
<script>function show() { document.body.insertAdjacentHTML('beforeend', '<p id=shown>yes</p>') }</script>"""


def test_items_of_a_run_are_rendered_and_failures_are_captured(project: Project) -> None:
    """A login with a tab, clicks, robots.txt, and what is kept of a failure; nothing stays behind."""
    make_browser()
    extra = {"/good": PAGE, "/bad": PAGE, "/forbidden": PAGE}
    with Site(extra=extra, robots="User-agent: *\nDisallow: /forbidden\n") as site:
        project.write(SCRAPER.format(site=site.url))
        done = project.shoal("run", "shop.py", code=1)
        records = project.export()
        visits = [visit.path for visit in site.visits()]
    assert {"first": None, "then": "yes"} in records, done.stderr
    assert any("who=me" in record.get("cookie", "") for record in records)
    assert "/forbidden" not in visits
    assert "/page/1" not in visits
    captures = [
        attempt.detail["capture"]
        for attempts in project.attempts().values()
        for attempt in attempts
        if attempt.detail and "capture" in attempt.detail
    ]
    assert len(captures) == 1
    assert "<title>t</title>" in (project.folder / captures[0]["html"]).read_text()
    assert (project.folder / captures[0]["screenshot"]).read_bytes().startswith(b"\x89PNG")
