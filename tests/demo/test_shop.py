"""The demo shop: its expected products are what a crawl finds."""

import asyncio
import gzip
import re
import signal
import socket
import subprocess
import sys
from collections import Counter, deque
from collections.abc import Iterator
from urllib.parse import urljoin, urlsplit

import aiohttp
import pytest
from parsel import Selector

from shoal.demo.shop import ExpectedProduct, Fault, RunningShop, Shop
from shoal.errors import InvalidSetting

AT_ONCE = 32


@pytest.fixture(scope="module")
def shop() -> Iterator[RunningShop]:
    with Shop().serving() as opened:
        yield opened


@pytest.fixture
def small_shop() -> Iterator[RunningShop]:
    with Shop(per_category=10).serving() as opened:
        yield opened


class Reply:
    """A response, read to its end."""

    def __init__(self, response: aiohttp.ClientResponse, body: bytes) -> None:
        self.status = response.status
        self.headers = response.headers
        self.url = str(response.url)
        self.body = body
        declared = response.charset or re.findall(rb'<meta charset="([^"]+)"', body)[:1]
        encoding = declared if isinstance(declared, str) else (declared[0].decode() if declared else "utf-8")
        self.text = body.decode(encoding) if "text" in response.content_type else ""


async def get(client: aiohttp.ClientSession, url: str, *, follow: bool = True) -> Reply:
    async with client.get(url, allow_redirects=follow) as response:
        return Reply(response, await response.read())


async def get_all(urls: list[str]) -> list[Reply]:
    """Fetch each of them once, some at a time."""
    limit = aiohttp.TCPConnector(limit=AT_ONCE)
    async with aiohttp.ClientSession(connector=limit) as client:
        return await asyncio.gather(*(get(client, url) for url in urls))


def read_product(reply: Reply, link: str) -> ExpectedProduct | None:
    """The product on a page, read as an author would; None if the page shows none."""
    product = Selector(reply.text or "<html></html>").css("article.product")
    if reply.status != 200 or not product:
        return None

    def text(query: str) -> str:
        return product.css(f"{query}::text").get("")

    return ExpectedProduct(
        sku=text("td.sku"),
        title=text("h1"),
        price=float(text("p.price span.amount")),
        currency=text("p.price span.currency"),
        rating=float(product.css("p.rating::attr(data-rating)").get("")),
        stock=int(text("p.stock span.count")),
        description=text("div.description p"),
        category=text("td.category"),
        link=link,
        url=reply.url,
    )


async def collect_links(shop: RunningShop) -> tuple[list[str], list[str]]:
    """Follow links from the home page through all listings: (the listings, the products they link to)."""
    listings: list[str] = []
    products: list[str] = []
    async with aiohttp.ClientSession() as client:
        home = Selector((await get(client, shop.url)).text)
        waiting = deque(urljoin(shop.url, path) for path in home.css("li.category a::attr(href)").getall())
        while waiting:
            url = waiting.popleft()
            listings.append(url)
            page = Selector((await get(client, url)).text)
            shown = page.css("ul.products h3 a::attr(href), aside.outlet li a::attr(href)").getall()
            products += [urljoin(url, path) for path in shown]
            waiting.extendleft(urljoin(url, path) for path in page.css("ul.pagination li.next a::attr(href)").getall())
    return listings, products


@pytest.mark.slow
async def test_a_patient_visitor_finds_exactly_what_the_facts_say(shop: RunningShop) -> None:
    facts = shop.facts()
    listings, links = await collect_links(shop)
    assert tuple(listings) == facts.listings
    found: dict[str, ExpectedProduct] = {}
    failures: dict[str, list[Reply]] = {}
    for _ in range(2):
        known = {truth.link for truth in found.values()}
        wanted = [link for link in links if link not in known]
        for link, reply in zip(wanted, await get_all(wanted), strict=True):
            product = read_product(reply, link)
            if product is None:
                failures.setdefault(link, []).append(reply)
            else:
                assert product.sku not in found
                found[product.sku] = product
    assert found == facts.products
    assert {link: replies[-1].status for link, replies in failures.items() if len(replies) == 2} == facts.dead
    once = {link: replies[0] for link, replies in failures.items() if len(replies) == 1}
    assert {link for link, reply in once.items() if reply.status == 500} == set(facts.links_by_fault[Fault.ERROR_ONCE])
    throttled = {link: reply.headers["Retry-After"] for link, reply in once.items() if reply.status == 429}
    assert throttled == dict.fromkeys(facts.links_by_fault[Fault.THROTTLED_ONCE], "1")
    odd = {link: reply for link, reply in once.items() if reply.status == 200}
    assert {link for link, reply in odd.items() if reply.body} == set(facts.links_by_fault[Fault.CAPTCHA_ONCE])
    assert {link for link, reply in odd.items() if not reply.body} == set(facts.links_by_fault[Fault.EMPTY_ONCE])
    assert all("captcha" in reply.text for reply in odd.values() if reply.body)


def test_the_shop_has_the_expected_size_and_faults(shop: RunningShop) -> None:
    facts = shop.facts()
    in_outlet = [truth for truth in facts.products.values() if truth.url.startswith(shop.outlet_url)]
    assert len(in_outlet) == 15
    assert len(facts.products) - len(in_outlet) >= 1200
    assert len({truth.category for truth in facts.products.values()}) == 12 + 1
    assert Counter(facts.dead.values()) == {404: 3, 410: 1}
    assert facts.fault_counts == {
        Fault.ERROR_ONCE: 25,
        Fault.MISSING: 3,
        Fault.GONE: 1,
        Fault.THROTTLED_ONCE: 5,
        Fault.SLOW: 8,
        Fault.CAPTCHA_ONCE: 5,
        Fault.EMPTY_ONCE: 1,
        Fault.MOVED: 10,
    }
    assert {truth.link for truth in facts.products.values() if truth.link != truth.url} == set(
        facts.links_by_fault[Fault.MOVED]
    )


async def test_the_same_seed_makes_the_same_shop(small_shop: RunningShop) -> None:
    def portable(shop: RunningShop) -> dict[str, tuple[str, str, float]]:
        return {
            sku: (truth.title, urlsplit(truth.link).path, truth.price) for sku, truth in shop.facts().products.items()
        }

    with Shop(per_category=10).serving() as again, Shop(per_category=10, seed=8).serving() as other:
        assert portable(again) == portable(small_shop)
        assert portable(other) != portable(small_shop)


async def test_sitemaps_name_every_product_of_the_shop(small_shop: RunningShop) -> None:
    facts = small_shop.facts()
    robots, index = await get_all([f"{small_shop.url}/robots.txt", f"{small_shop.url}/sitemap.xml"])
    assert f"Sitemap: {small_shop.url}/sitemap.xml" in robots.text
    parts = re.findall("<loc>(.*?)</loc>", index.body.decode())
    assert len(parts) == 2
    links = [
        link
        for part in await get_all(parts)
        for link in re.findall("<loc>(.*?)</loc>", gzip.decompress(part.body).decode())
    ]
    living = [truth.link for truth in facts.products.values() if truth.link.startswith(small_shop.url)]
    assert sorted(links) == sorted([*living, *facts.dead])


async def test_the_outlet_is_another_host_with_a_crawl_delay(small_shop: RunningShop) -> None:
    assert urlsplit(small_shop.outlet_url).hostname != urlsplit(small_shop.url).hostname
    robots, shop_robots, redirected, home = await get_all(
        [
            f"{small_shop.outlet_url}/robots.txt",
            f"{small_shop.url}/robots.txt",
            f"{small_shop.url}/outlet/",
            f"{small_shop.outlet_url}/",
        ]
    )
    assert "Crawl-delay: 0.2" in robots.text
    assert "Crawl-delay" not in shop_robots.text
    assert "Disallow: /private/" in shop_robots.text
    assert redirected.url == f"{small_shop.outlet_url}/"
    shown = [small_shop.outlet_url + path for path in Selector(home.text).css("ul.products a::attr(href)").getall()]
    assert set(shown) == {
        truth.url for truth in small_shop.facts().products.values() if truth.url.startswith(small_shop.outlet_url)
    }


async def test_private_pages_are_linked_and_answer_but_are_no_facts(small_shop: RunningShop) -> None:
    facts = small_shop.facts()
    (home,) = await get_all([f"{small_shop.url}/"])
    linked = {urljoin(small_shop.url, href) for href in Selector(home.text).css("a::attr(href)").getall()}
    private = {url for url in facts.private if url.startswith(small_shop.url)}
    assert private
    assert private <= linked
    assert all(urlsplit(url).path.startswith("/private/") for url in facts.private)
    assert {reply.status for reply in await get_all(list(facts.private))} == {200}


async def test_every_link_leads_somewhere(small_shop: RunningShop) -> None:
    """A crawler that follows every link meets the expected dead pages and no others."""
    seen, waiting, missing = set[str](), [f"{small_shop.url}/"], set[str]()
    while waiting:
        seen.update(waiting)
        found = set[str]()
        for url, reply in zip(waiting, await get_all(waiting), strict=True):
            if reply.status in (404, 410):
                missing.add(url)
            page = Selector(reply.text or "<html></html>")
            hrefs = page.css("a::attr(href), img::attr(src), link::attr(href)").getall()
            found.update(urljoin(reply.url, href) for href in hrefs)
        waiting = sorted(found - seen)
    assert missing == set(small_shop.facts().dead)


async def test_charsets_are_declared_in_headers_or_in_the_page_alone(shop: RunningShop) -> None:
    kitchen, stationery, bags = await get_all(
        [f"{shop.url}/category/{slug}" for slug in ("kitchen", "stationery", "bags")]
    )
    assert kitchen.headers["Content-Type"] == "text/html; charset=iso-8859-1"
    assert "Sauté".encode("latin-1") in kitchen.body
    assert stationery.headers["Content-Type"] == "text/html"
    assert "Écru".encode("cp1252") in stationery.body
    assert b'<meta charset="windows-1252">' in stationery.body
    assert bags.headers["Content-Type"] == "text/html; charset=utf-8"


async def test_a_third_of_the_pages_is_gzipped_for_clients_that_accept_it(shop: RunningShop) -> None:
    links = [truth.url for truth in shop.facts().products.values() if truth.category == "Lighting"]
    packed = [reply for reply in await get_all(links) if reply.headers.get("Content-Encoding") == "gzip"]
    assert 0.2 < len(packed) / len(links) < 0.47
    async with aiohttp.ClientSession(headers={"Accept-Encoding": "identity"}) as client:
        plain = await get(client, packed[0].url)
    assert "Content-Encoding" not in plain.headers
    assert plain.body == packed[0].body


async def test_the_log_has_every_visit(small_shop: RunningShop) -> None:
    slow = small_shop.facts().links_by_fault[Fault.SLOW][0]
    moved = small_shop.facts().links_by_fault[Fault.MOVED][0]
    async with aiohttp.ClientSession(headers={"User-Agent": "tester"}) as client:
        await get(client, slow)
        await get(client, moved, follow=False)
        await client.post(f"{small_shop.outlet_url}/")
    first, second, third = small_shop.log()
    assert (first.host, first.path, first.status, first.peer, first.user_agent) == (
        *("127.0.0.1", urlsplit(slow).path, 200, "127.0.0.1", "tester"),
    )
    assert 0.3 <= first.ended - first.at < 2
    assert first.ended <= second.at
    assert (second.path, second.status) == (urlsplit(moved).path, 301)
    assert (third.host, third.status) == (urlsplit(small_shop.outlet_url).hostname, 405)


def test_a_taken_port_is_named_with_the_remedy() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with (
            pytest.raises(InvalidSetting, match=rf"127\.0\.0\.1:{port}.* Choose another port"),
            Shop(port=port).serving(),
        ):
            pass


@pytest.mark.parametrize("wrong", [{"per_category": 9}, {"per_category": 1001}, {"port": 70_000}, {"latency": (2, 1)}])
def test_impossible_shops_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(InvalidSetting):
        Shop(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_the_shop_runs_alone_until_it_is_stopped(stop: signal.Signals) -> None:
    command = [sys.executable, "-m", "shoal.demo.shop", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = re.findall(r"http://[\d.:]+/", process.stdout.readline())[0]
        (home,) = asyncio.run(get_all([url]))
        process.send_signal(stop)
        _, errors = process.communicate(timeout=60)
    assert "Good plain things" in home.text
    assert (process.returncode, errors) == (0, "")
