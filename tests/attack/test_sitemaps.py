"""Sitemap indexes that link to further indexes without end."""

from typing import Any

from shoal import Item, Page, Scraper
from shoal.define import sitemap
from shoal.define.sitemap import MAX_DEPTH, sitemap_item
from shoal.model.item import NewItem

ENDLESS = "http://a.test/index"


class Log:
    def __init__(self) -> None:
        self.warned: list[str] = []

    def warning(self, event: str, **facts: Any) -> None:
        self.warned.append(event)


def crawl(children: int, most: int = 10_000) -> tuple[int, list[str], int]:
    """The number of sitemaps read when each is an index of `children` others, the warnings, and the depth."""
    shop = Scraper("shop")

    @shop.stage
    def page(page: Page) -> None: ...

    log = Log()
    todo: list[tuple[int, NewItem]] = [(0, sitemap_item(page, f"{ENDLESS}/", match=None, since=None))]
    read = deepest = 0
    while todo and read < most:
        depth, new = todo.pop()
        read, deepest = read + 1, max(deepest, depth)
        assert new.url is not None
        listed = "".join(f"<sitemap><loc>{new.url}{n}/</loc></sitemap>" for n in range(children))
        answer = Page.of(new.url, f"<sitemapindex>{listed}</sitemapindex>")
        item = Item(new.url, payload=new.payload, depth=depth)
        function: Any = shop.stages["page.sitemap"].function
        todo += [(depth + 1, found) for found in function(answer, item, log)]
    return read, log.warned, deepest


def test_the_depth_of_indexes_is_limited_and_logged() -> None:
    read, warned, deepest = crawl(children=1)
    assert (read, deepest) == (MAX_DEPTH + 1, MAX_DEPTH)
    assert warned == ["sitemaps nested too deeply; skipped"]


def test_the_number_of_sitemaps_is_limited_over_the_whole_tree(monkeypatch: Any) -> None:
    monkeypatch.setattr(sitemap, "MAX_SITEMAPS", 300)
    read, warned, _ = crawl(children=7)
    assert 100 < read <= 301
    assert "too many sitemaps; rest skipped" in warned
