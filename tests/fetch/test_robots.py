"""robots.txt: fetched once, cached, obeyed."""

import asyncio

import pytest

from shoal.errors import Blocked, Throttled, Transient
from shoal.fetch.http import HttpFetcher
from shoal.fetch.robots import Robots, product_token
from tests.support.raw_site import Seen, Site, redirect, reply

FILE = """
User-agent: *
Disallow: /private
Allow: /private/open
Crawl-delay: 2
Sitemap: http://shop.test/map.xml

User-agent: Shoal
Disallow: /no-shoals
Crawl-delay: 1
Request-rate: 1/5s
"""


def test_product_token() -> None:
    assert product_token("shoal/0.1 (+https://example.com)") == "shoal"
    assert product_token("My-Bot 2") == "my-bot"


async def test_the_group_of_our_agent_applies_else_the_wildcard_group(site: Site, fetcher: HttpFetcher) -> None:
    site.answers["/robots.txt"] = reply(FILE, content_type="text/plain")
    ours = await Robots(fetcher, "shoal/0.1").rules(site.url("/x"))
    assert ours.allowed(site.url("/private"))
    assert not ours.allowed(site.url("/no-shoals/1"))
    assert ours.crawl_delay == 5.0
    others = await Robots(fetcher, "other/0.1").rules(site.url("/x"))
    assert not others.allowed(site.url("/private/x"))
    assert others.allowed(site.url("/private/open"))
    assert others.crawl_delay == 2.0
    assert others.sitemaps == ("http://shop.test/map.xml",)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410])
async def test_without_a_file_everything_is_allowed(site: Site, fetcher: HttpFetcher, status: int) -> None:
    site.answers["/robots.txt"] = reply("User-agent: *\nDisallow: /", status=status)
    rules = await Robots(fetcher, "shoal/0.1").rules(site.url("/x"))
    assert rules.allowed(site.url("/anything"))
    assert (rules.crawl_delay, rules.sitemaps) == (None, ())


async def test_it_is_fetched_once_per_site_and_again_after_the_ttl(site: Site, fetcher: HttpFetcher) -> None:
    site.answers["/robots.txt"] = reply("", content_type="text/plain")
    robots = Robots(fetcher, "shoal/0.1")
    await asyncio.gather(*(robots.rules(site.url(f"/{n}")) for n in range(20)))
    assert site.targets == ["/robots.txt"]
    await robots.rules(site.url("/", host="localhost"))
    assert site.targets == ["/robots.txt"] * 2
    forgetful = Robots(fetcher, "shoal/0.1", ttl=0)
    await forgetful.rules(site.url("/"))
    await forgetful.rules(site.url("/"))
    assert site.targets == ["/robots.txt"] * 4


async def test_a_server_error_is_transient_and_cached_for_a_moment(site: Site, fetcher: HttpFetcher) -> None:
    site.answers["/robots.txt"] = reply(status=500)
    robots = Robots(fetcher, "shoal/0.1")
    for _ in range(2):
        with pytest.raises(Transient, match=f"robots.txt of 127.0.0.1:{site.port} answered 500 Internal Server Error"):
            await robots.rules(site.url("/x"))
    assert site.targets == ["/robots.txt"]


async def test_after_the_retry_time_it_is_fetched_again(site: Site, fetcher: HttpFetcher) -> None:
    site.answers["/robots.txt"] = reply(status=503)
    robots = Robots(fetcher, "shoal/0.1", retry=0)
    with pytest.raises(Transient):
        await robots.rules(site.url("/x"))
    site.answers["/robots.txt"] = reply("User-agent: *\nDisallow: /")
    assert not (await robots.rules(site.url("/x"))).allowed(site.url("/x"))


async def test_the_wait_grows_with_every_failure(
    site: Site, fetcher: HttpFetcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first waits are short: a wrong address fails with the item's own retries, within seconds."""
    now = 1000.0
    monkeypatch.setattr("shoal.fetch.robots.monotonic", lambda: now)
    site.answers["/robots.txt"] = reply(status=500)
    robots = Robots(fetcher, "shoal/0.1")
    waits = []
    for asked in range(1, 9):
        with pytest.raises(Transient) as first:
            await robots.rules(site.url("/x"))
        with pytest.raises(Transient) as second:
            await robots.rules(site.url("/x"))
        assert first.value.retry_after == second.value.retry_after, "no caller gets an earlier retry"
        assert len(site.targets) == asked
        waits.append(first.value.retry_after or 0)
        now += waits[-1]
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60]


async def test_a_proxy_that_forbids_a_site_says_nothing_about_the_site(
    site: Site, fetcher: HttpFetcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def forbid(*_arguments: object, **_options: object) -> None:
        raise Blocked("proxy 127.0.0.1:3128 does not allow connections to shop.test (403)")

    site.answers["/robots.txt"] = reply("", content_type="text/plain")
    robots = Robots(fetcher, "shoal/0.1")
    with monkeypatch.context() as patched:
        patched.setattr(fetcher, "fetch", forbid)
        with pytest.raises(Blocked):
            await robots.rules(site.url("/x"))
    assert (await robots.rules(site.url("/x"))).allowed(site.url("/x")), "another exit may ask at once"


async def test_an_unreachable_site_is_transient(site: Site, fetcher: HttpFetcher) -> None:
    async def hangs_up(seen: Seen, writer: asyncio.StreamWriter) -> None:
        pass

    site.answers["/robots.txt"] = hangs_up
    with pytest.raises(Transient, match=r"robots.txt of 127.0.0.1:\d+ could not be fetched: .*closed the connection"):
        await Robots(fetcher, "shoal/0.1").rules(site.url("/x"))


async def test_a_429_is_throttled_for_its_retry_after(site: Site, fetcher: HttpFetcher) -> None:
    site.answers["/robots.txt"] = reply(status=429, Retry_After="90")
    robots = Robots(fetcher, "shoal/0.1", retry=0)
    for _ in range(2):
        with pytest.raises(Throttled, match=r"robots.txt of .* answered 429 Too Many Requests") as caught:
            await robots.rules(site.url("/x"))
        assert caught.value.retry_after == pytest.approx(90, abs=5)
    assert site.targets == ["/robots.txt"]


async def test_redirects_are_followed_and_a_loop_means_no_file(site: Site, fetcher: HttpFetcher) -> None:
    site.answers |= {"/robots.txt": redirect("/real.txt"), "/real.txt": reply("User-agent: *\nDisallow: /")}
    assert not (await Robots(fetcher, "shoal/0.1").rules(site.url("/x"))).allowed(site.url("/x"))
    site.answers["/real.txt"] = redirect("/robots.txt")
    assert (await Robots(fetcher, "shoal/0.1").rules(site.url("/x"))).allowed(site.url("/x"))


async def test_a_huge_file_is_cut_not_refused(site: Site, fetcher: HttpFetcher) -> None:
    filler = "# filler\n" * 60_000
    late = "Disallow: /late\n"
    site.answers["/robots.txt"] = reply(f"User-agent: *\nDisallow: /early\n{filler}{late}")
    rules = await Robots(fetcher, "shoal/0.1").rules(site.url("/x"))
    assert not rules.allowed(site.url("/early"))
    assert rules.allowed(site.url("/late"))


async def test_when_the_fetching_caller_is_cancelled_the_next_one_fetches(site: Site, fetcher: HttpFetcher) -> None:
    async def first_hangs(seen: Seen, writer: asyncio.StreamWriter) -> None:
        if len(site.log) == 1:
            await asyncio.Event().wait()
        writer.write(reply("User-agent: *\nDisallow: /secret"))

    site.answers["/robots.txt"] = first_hangs
    robots = Robots(fetcher, "shoal/0.1")
    first = asyncio.create_task(robots.rules(site.url("/1")))
    await site.until(lambda: len(site.log) == 1)
    second = asyncio.create_task(robots.rules(site.url("/2")))
    first.cancel()
    assert not (await second).allowed(site.url("/secret"))
    with pytest.raises(asyncio.CancelledError):
        await first


@pytest.mark.parametrize("when", ["before_request", "before_send"])
async def test_the_gate_is_called_and_its_refusal_is_not_cached(site: Site, fetcher: HttpFetcher, when: str) -> None:
    """It may refuse at once, or when the request has waited for its turn: the host has answered 429 meanwhile."""

    class Closed:
        asked = 0
        done = 0

        async def before_request(self, url: str, hop: int) -> None:
            self.refuse("before_request")

        async def before_send(self, hop: int) -> None:
            self.refuse("before_send")

        def refuse(self, now: str) -> None:
            if now == when:
                self.asked += 1
                raise Throttled("the lane waits", retry_after=60)

        def after_send(self, hop: int) -> None:
            raise AssertionError("nothing was to be sent")

        def request_done(self, hop: int) -> None:
            self.done += 1

        async def on_redirect(self, url: str, method: str) -> None:
            pass

        async def on_throttled(self, ended: Throttled) -> None:
            raise AssertionError("nothing was to be sent")

    robots = Robots(fetcher, "shoal/0.1")
    gate = Closed()
    for _ in range(2):
        with pytest.raises(Throttled, match="the lane waits"):
            await robots.rules(site.url("/x"), gate=gate)
    assert (gate.asked, gate.done, site.log) == (2, 2 if when == "before_send" else 0, [])
    assert (await robots.rules(site.url("/x"))).allowed(site.url("/x"))
