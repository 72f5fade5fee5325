"""Following links and reading sitemaps: which pages become items."""

import gzip
from typing import Any

import pytest

from shoal import Follow, Item, Page, Permanent, Scraper
from shoal.define.follow import StageLinks
from shoal.define.stage import AnyStage
from shoal.errors import InvalidScraper
from shoal.model.item import NewItem

HOME = "https://shop.example/"
LINKS = """<base href="/shop/">
<nav><a href="a">A</a> <a href="/shop/a#top">A again</a> <a href="b?page=2">B</a></nav>
<a href="https://shop.example:444/port">other port</a> <a href="https://elsewhere.example/">elsewhere</a>
<a href="/files/terms.PDF?v=1">file</a> <a href="mailto:us@shop.example">mail</a> <a href="/private/x">private</a>"""


def a_stage(rules: Follow | bool = False) -> AnyStage:
    shop = Scraper("shop")

    @shop.stage(follow=rules)
    def listing(page: Page) -> None: ...

    @shop.stage
    def detail(page: Page) -> None: ...

    shop.check()
    return listing


def followed(rules: Follow, *, depth: int = 0, url: str = HOME) -> list[NewItem]:
    listing = a_stage(rules)
    assert listing.follow is not None
    return listing.follow.items(Page.of(url, LINKS), Item(HOME, depth=depth), listing)


def urls(rules: Follow) -> list[str]:
    return [new.url or "" for new in followed(rules)]


def test_links_of_the_same_host_each_once() -> None:
    assert urls(Follow()) == [f"{HOME}shop/a", f"{HOME}shop/b?page=2", f"{HOME}private/x"]


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        (Follow(prefix=(f"{HOME}shop/",)), ["shop/a", "shop/b?page=2"]),
        (Follow(allow=r"/a$"), ["shop/a"]),
        (Follow(deny=r"/private/|\?page="), ["shop/a"]),
        (Follow(css="nav"), ["shop/a", "shop/a#top", "shop/b?page=2"]),
        (Follow(skip=()), ["shop/a", "shop/b?page=2", "files/terms.PDF?v=1", "private/x"]),
        (Follow(allow="/nothing/"), []),
    ],
)
def test_rules(rules: Follow, expected: list[str]) -> None:
    assert urls(rules) == [HOME + path for path in expected]


@pytest.mark.parametrize(
    "rules",
    [
        {},
        {"prefix": (f"{HOME}shop/",)},
        {"allow": r"/a$"},
        {"deny": r"/private/|\?page="},
        {"css": "nav"},
        {"skip": ()},
        {"same_host": False},
        {"depth": 3},
        {"depth": 2},
        {"to": "detail"},
    ],
)
def test_follow_links_in_a_handler_has_the_same_rules(rules: dict[str, Any]) -> None:
    expected = followed(Follow(**rules), depth=2)
    page = Page.of(HOME, LINKS)
    page._link_source = StageLinks(a_stage(), Item(HOME, depth=2))
    assert page.follow_links(**rules) == expected


def test_follow_links_of_a_page_that_a_test_made() -> None:
    """It works without an item; `to` may be a stage. What is yielded goes to the stage of the handler."""
    page = Page.of(HOME, LINKS)
    found = page.follow_links(css="nav", prefix=f"{HOME}shop/b")
    assert found == [NewItem(url=f"{HOME}shop/b?page=2", lane="shop.example")]
    stage = a_stage()
    assert page.follow_links(to=stage, allow="/a$") == [stage.item(f"{HOME}shop/a")]
    assert [new.stage for new in page.follow_links(to="detail", allow="/a$")] == ["detail"]
    assert page.follow_links(depth=0) == []
    with pytest.raises(InvalidScraper, match=r"follow_links: allow is not a regular expression: '\('"):
        page.follow_links(allow="(")


def test_other_hosts_only_when_asked_for() -> None:
    assert {"https://shop.example:444/port", "https://elsewhere.example/"} < set(urls(Follow(same_host=False)))


def test_a_redirect_to_another_host_does_not_widen_the_scope() -> None:
    assert followed(Follow(), url="https://elsewhere.example/") == []


def test_links_beyond_the_depth_are_not_followed() -> None:
    assert len(followed(Follow(depth=2), depth=1)) == len(followed(Follow(depth=2))) > 0
    assert followed(Follow(depth=2), depth=2) == []
    assert followed(Follow(depth=0)) == []


def test_links_can_go_to_another_stage() -> None:
    assert {new.stage for new in followed(Follow(to="detail"))} == {"detail"}
    assert {new.stage for new in followed(Follow())} == {"listing"}


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ({"allow": "("}, "follow=allow is not a regular expression"),
        ({"deny": 7}, "follow=deny is not a regular expression"),
        ({"depth": -1}, "follow=depth is -1"),
        ({"prefix": "https://shop.example/"}, "follow=prefix must be a tuple"),
    ],
)
def test_rules_that_cannot_work(rules: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidScraper, match=words):
        followed(Follow(**rules))


URLSET = """<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">
<url><loc>https://shop.example/book/1</loc><lastmod>2026-01-31</lastmod></url>
<url><loc>https://shop.example/book/2</loc><lastmod>2025-01-31</lastmod></url>
<url><loc>https://shop.example/about</loc></url></urlset>"""


class Silent:
    """A log that only counts its warnings."""

    def __init__(self) -> None:
        self.warned = 0

    def warning(self, event: str, **facts: Any) -> None:
        self.warned += 1


def read(url: str, body: str | bytes, log: Any = None, **options: str) -> list[NewItem]:
    shop = Scraper("shop")

    @shop.stage
    def book(page: Page) -> None: ...

    start = book.sitemap("https://shop.example/sitemap.xml", **options)
    assert start.stage == "book.sitemap"
    stage = shop.stages["book.sitemap"]
    assert book.sitemap("https://shop.example/other.xml").stage == "book.sitemap"
    return list(stage(Page.of(url, body), Item(start.url, payload=start.payload), log or Silent()))


def test_a_sitemap_is_an_item_that_yields_items() -> None:
    found = read("https://shop.example/sitemap.xml", URLSET)
    assert [(new.stage, new.url) for new in found] == [
        ("book", "https://shop.example/book/1"),
        ("book", "https://shop.example/book/2"),
        ("book", "https://shop.example/about"),
    ]


def test_pages_of_a_sitemap_by_pattern_and_age_gzipped_too() -> None:
    packed = gzip.compress(URLSET.encode())
    assert [new.url for new in read("https://shop.example/s.xml.gz", packed, match="/book/", since="2026-01-01")] == [
        "https://shop.example/book/1"
    ]


def test_an_index_and_robots_lead_to_further_sitemaps_with_the_same_rules() -> None:
    index = "<sitemapindex><sitemap><loc>https://shop.example/1.xml</loc></sitemap></sitemapindex>"
    robots = "User-agent: *\nSitemap: https://shop.example/1.xml\n"
    for url, body in [("https://shop.example/i.xml", index), ("https://shop.example/robots.txt", robots)]:
        (further,) = read(url, body, match="/book/")
        assert (further.stage, further.url) == ("book.sitemap", "https://shop.example/1.xml")
        assert further.payload is not None
        assert further.payload["match"] == "/book/"


def test_an_invalid_sitemap_is_permanent_and_a_broken_one_is_used_in_part() -> None:
    with pytest.raises(Permanent, match="is not a sitemap"):
        read("https://shop.example/sitemap.xml", "<html><body>Sorry</body></html>")
    log = Silent()
    assert len(read("https://shop.example/sitemap.xml", URLSET[:-40], log)) == 2
    assert log.warned == 1


@pytest.mark.parametrize("options", [{"match": "("}, {"since": "last week"}])
def test_a_sitemap_with_rules_that_cannot_work(options: dict[str, str]) -> None:
    with pytest.raises(InvalidScraper, match=r"sitemap\(\) cannot use"):
        read("https://shop.example/sitemap.xml", URLSET, **options)
