"""A stage is a plain function: give it a saved page and look at what it yields."""

import asyncio
from pathlib import Path

from shoal import Item, Page

from crawl import visit

PAGES = Path(__file__).parent / "pages"
HOME = "http://shop.example/"


def test_a_page_is_one_record():
    home = Page.of(HOME, (PAGES / "home.html").read_text())
    found = yielded_by(visit(home, Item(HOME, payload={"depth": 1})))
    assert found == [{"url": HOME, "title": "Shop", "depth": 1}]


def test_links_within_the_site_are_followed_down_to_the_depth():
    home = Page.of(HOME, (PAGES / "home.html").read_text())

    def followed(depth):
        return [new.url for new in visit.follow.items(home, Item(HOME, payload={"depth": depth}), visit)]

    assert followed(0) == [f"{HOME}category/garden", f"{HOME}about"]
    assert followed(2) == []


def yielded_by(stage):
    async def collect():
        return [value async for value in stage]

    return asyncio.run(collect())
