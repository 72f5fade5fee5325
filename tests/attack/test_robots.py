"""robots.txt files with excessive delays, or made to cost time."""

from collections.abc import Callable
from typing import Any

import pytest

from shoal.fetch.http import HttpFetcher
from shoal.fetch.robots import MAX_CRAWL_DELAY, MAX_FILE_BYTES, MAX_WILDCARDS, Robots, RobotsRules
from shoal.model.lane import LanePolicy
from tests.support.memory_growth import growth
from tests.support.raw_site import Site, reply

URL = "http://a.test/some/page.html?x=1"


class Remarks:
    """A log that keeps its warnings."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def bind(self, **facts: Any) -> "Remarks":
        return self

    def debug(self, event: str, **facts: Any) -> None: ...

    def info(self, event: str, **facts: Any) -> None: ...

    def warning(self, event: str, **facts: Any) -> None:
        self.warnings.append(f"{event}: {facts['why']}")

    def error(self, event: str, **facts: Any) -> None: ...


@pytest.mark.parametrize(
    "asked",
    ["Crawl-delay: 86401", "Crawl-delay: 1e308", "Request-rate: 1/999999d", f"Request-rate: 1/{'9' * 4_000}"],
)
async def test_an_excessive_crawl_delay_is_clamped_and_logged_once(
    asked: str, site: Site, fetcher: HttpFetcher
) -> None:
    site.answers["/robots.txt"] = reply(f"User-agent: *\n{asked}\n".encode())
    log = Remarks()
    robots = Robots(fetcher, "shoal/0.1", log=log)
    for _ in range(3):
        rules = await robots.rules(site.url("/x"))
    assert rules.crawl_delay == MAX_CRAWL_DELAY
    LanePolicy(delay_min=rules.crawl_delay, delay_max=rules.crawl_delay).checked()
    assert len(log.warnings) == 1
    assert "86400 s are kept" in log.warnings[0]
    assert f"127.0.0.1:{site.port}" in log.warnings[0]


@pytest.mark.parametrize("asked", ["nan", "inf", "-1", "-1e308", "x", "9" * 5_000, ""])
async def test_an_invalid_crawl_delay_is_ignored(asked: str) -> None:
    rules = RobotsRules(f"User-agent: *\nCrawl-delay: {asked}\nRequest-rate: {asked}/0\n", "shoal")
    assert rules.crawl_delay in (None, MAX_CRAWL_DELAY)
    assert RobotsRules("User-agent: *\nRequest-rate: 0/1\n", "shoal").crawl_delay is None


WILDCARDS: dict[str, Callable[[int], str]] = {
    "many rules": lambda size: "User-agent: *\n" + "".join(f"Disallow: /*{n}z\n" for n in range(size)),
    "one long rule": lambda size: "User-agent: *\nDisallow: " + "*a" * size,
    "many anchors": lambda size: "User-agent: *\n" + "".join(f"Disallow: /{n}$\n" for n in range(size)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WILDCARDS)
def test_the_time_per_url_is_limited_for_any_file(name: str) -> None:
    files = {
        size: RobotsRules(WILDCARDS[name](size)[:MAX_FILE_BYTES], "shoal")
        for size in (MAX_WILDCARDS, 8 * MAX_WILDCARDS)
    }
    url = f"http://a.test/{'a' * 300}"
    assert growth(lambda size: [files[size].allowed(url) for _ in range(5)], MAX_WILDCARDS, 8) < 3


def test_rules_beyond_the_limit_forbid_more_and_never_less() -> None:
    many = "".join(f"Disallow: /*{number}z\n" for number in range(MAX_WILDCARDS))
    rules = RobotsRules(f"User-agent: *\n{many}Disallow: /shop/*/cart\nAllow: /*\nAllow: /shop/*open\n", "shoal")
    assert not rules.allowed("http://a.test/x/1z")
    assert rules.allowed("http://a.test/x/1y")
    assert not rules.allowed("http://a.test/shop/1/cart")
    assert not rules.allowed("http://a.test/shop/1/open")
    assert "cut" in rules.warnings[0]


def test_groups_of_other_agents_are_dropped() -> None:
    def read(size: int) -> RobotsRules:
        agents = "".join(f"User-agent: bot{number}\n" for number in range(size))
        return RobotsRules(agents + "Disallow: /\n" * size + "User-agent: *\nDisallow: /private\n", "shoal")

    assert growth(read, 2_000) < 10
    assert not read(10).allowed("http://a.test/private/1")
    assert read(10).allowed(URL)


def test_the_own_group_is_found_among_others() -> None:
    text = """
        # comment
        User-agent: other   # them
        User-agent: Shoal*
        Disallow: /a        # not here
        Crawl-delay: 3
        Sitemap: http://a.test/s.xml

        Disallow: /b
        User-agent: *
        Disallow: /
    """
    rules = RobotsRules(text, "shoal")
    assert [rules.allowed(f"http://a.test{path}") for path in ("/a", "/b", "/c")] == [False, False, True]
    assert (rules.crawl_delay, rules.sitemaps) == (3.0, ("http://a.test/s.xml",))
    assert not RobotsRules(text, "unknown").allowed("http://a.test/c")
