"""The witness of the other tests sees what happens and misbehaves as it is told to."""

import asyncio
import os
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import AsyncIterator, Iterator
from email.utils import parsedate_to_datetime
from http.client import HTTPConnection
from pathlib import Path

import aiohttp
import pytest
from parsel import Selector

from tests.support.site import HOSTS, Site, closest_starts, most_at_once, per_path

REPOSITORY = Path(__file__).parents[2]
ROBOTS = "User-agent: *\nDisallow: /slow/\n"


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with Site(pages=20, robots={HOSTS[0]: ROBOTS, HOSTS[1]: 503}, extra={"/own": "<h1>Own</h1>"}) as running:
        yield running


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    # A time limit makes a hanging test fail; loopback addresses may have cookies only in such a jar.
    jar, limit = aiohttp.CookieJar(unsafe=True), aiohttp.ClientTimeout(total=10)
    async with aiohttp.ClientSession(cookie_jar=jar, timeout=limit) as session:
        yield session


async def status_of(client: aiohttp.ClientSession, url: str, **headers: str) -> int:
    async with client.get(url, allow_redirects=False, headers=headers) as response:
        await response.read()
        return response.status


async def text_of(client: aiohttp.ClientSession, url: str) -> str:
    async with client.get(url) as response:
        response.raise_for_status()
        return await response.text()


async def test_visits_tell_who_came_when_and_what_they_got(client: aiohttp.ClientSession) -> None:
    with Site() as site:
        before = time.monotonic()
        await status_of(client, f"{site.url}/page/7?a=1", **{"User-Agent": "tester"})
        await status_of(client, f"{site.url_of(HOSTS[8])}/status/503")
        after = time.monotonic()
        first, second = site.visits()
    assert first.end is not None
    assert before < first.start < first.end < second.start < after
    assert (first.host, first.path, first.method, first.status, first.user_agent) == (
        *(HOSTS[0], "/page/7?a=1", "GET", 200, "tester"),
    )
    assert (second.host, second.path, second.status) == (HOSTS[8], "/status/503", 503)
    assert site.visits() == [first, second], "the log outlives the site"


async def test_pages_and_trees_have_the_size_that_was_asked_for(site: Site, client: aiohttp.ClientSession) -> None:
    assert Selector(await text_of(client, f"{site.url}/page/20")).css("title::text").get() == "Page 20"
    assert await status_of(client, f"{site.url}/page/21") == 404
    found, waiting = set(), ["/link/1"]
    while waiting:
        path = waiting.pop()
        found.add(path)
        waiting += Selector(await text_of(client, site.url + path)).css("a::attr(href)").getall()
    assert found == {f"/link/{number}" for number in range(1, 21)}
    assert (await text_of(client, f"{site.url}/sitemap.xml")).count(f"<loc>{site.url}/page/") == 20
    assert await text_of(client, f"{site.url}/own") == "<h1>Own</h1>"


async def test_robots_txt_differs_by_host(site: Site, client: aiohttp.ClientSession) -> None:
    assert await text_of(client, f"{site.url}/robots.txt") == ROBOTS
    assert await status_of(client, f"{site.url_of(HOSTS[1])}/robots.txt") == 503
    assert await status_of(client, f"{site.url_of(HOSTS[2])}/robots.txt") == 404


async def test_failures_end_after_the_agreed_number_for_each_host_and_path(
    site: Site, client: aiohttp.ClientSession
) -> None:
    elsewhere = site.url_of(HOSTS[1])
    path = "/status/500/then-ok/2"
    for url in (site.url + path, f"{site.url}{path}/x", elsewhere + path):
        assert [await status_of(client, url) for _ in range(4)] == [500, 500, 200, 200]


async def test_throttling_ends_when_the_named_time_has_passed(site: Site, client: aiohttp.ClientSession) -> None:
    async with client.get(f"{site.url}/throttle/3") as response:
        assert (response.status, response.headers["Retry-After"]) == (429, "3")
    async with client.get(f"{site.url}/throttle/30/date") as response:
        wait = parsedate_to_datetime(response.headers["Retry-After"]).timestamp() - time.time()
        assert 29 < wait < 32
    async with client.get(f"{site.url}/status/503?retry-after=7") as response:
        assert (response.status, response.headers["Retry-After"]) == (503, "7")
    assert await status_of(client, f"{site.url}/throttle/3") == 429
    await asyncio.sleep(3)
    assert await status_of(client, f"{site.url}/throttle/3") == 200


async def test_redirects_lead_on_in_circles_to_other_hosts_and_schemes(
    site: Site, client: aiohttp.ClientSession
) -> None:
    async with client.get(f"{site.url}/redirect/3") as response:
        assert (response.status, response.url.path, len(response.history)) == (200, "/redirect/0", 3)
    with pytest.raises(aiohttp.TooManyRedirects):
        await client.get(f"{site.url}/loop")
    async with client.get(f"{site.url}/elsewhere/{HOSTS[3]}/page/2") as response:
        assert str(response.url) == f"{site.url_of(HOSTS[3])}/page/2"
    with pytest.raises(aiohttp.NonHttpUrlRedirectClientError):
        await client.get(f"{site.url}/scheme")


async def test_bodies_in_odd_shapes(site: Site, client: aiohttp.ClientSession) -> None:
    assert await text_of(client, f"{site.url}/empty") == ""
    assert "captcha" in await text_of(client, f"{site.url}/captcha")
    assert "Crème brûlée" in await text_of(client, f"{site.url}/latin1")
    async with client.get(f"{site.url}/latin1/meta") as response:
        body = await response.read()
        assert response.charset is None
        assert 'charset="iso-8859-1"' in body.decode("latin-1")
        assert "Crème brûlée" in body.decode("latin-1")
    async with client.get(f"{site.url}/big/3") as response:
        assert len(await response.read()) == 3 * 1024 * 1024


async def test_known_pages_are_not_sent_again(site: Site, client: aiohttp.ClientSession) -> None:
    url = f"{site.url}/etag"
    async with client.get(url) as response:
        tag, modified = response.headers["ETag"], response.headers["Last-Modified"]
        assert response.status == 200
    assert await status_of(client, url, **{"If-None-Match": tag}) == 304
    assert await status_of(client, url, **{"If-Modified-Since": modified}) == 304
    assert await status_of(client, url, **{"If-None-Match": '"other"', "If-Modified-Since": modified}) == 200


async def test_cookies_come_back(site: Site, client: aiohttp.ClientSession) -> None:
    assert await text_of(client, f"{site.url}/cookie/show") == ""
    await text_of(client, f"{site.url}/cookie/set?fish=cod")
    assert await text_of(client, f"{site.url}/cookie/show") == "fish=cod"


async def test_the_bomb_is_small_and_valid(site: Site, client: aiohttp.ClientSession) -> None:
    async with client.get(f"{site.url}/bomb", auto_decompress=False) as response:
        packed = await response.read()
        assert response.headers["Content-Encoding"] == "gzip"
    assert len(packed) < 300_000
    unpacker, size = zlib.decompressobj(zlib.MAX_WBITS | 16), 0
    while not unpacker.eof:
        size += len(unpacker.decompress(packed, 1024 * 1024))
        packed = unpacker.unconsumed_tail
    assert size == 200 * 1024 * 1024


async def test_a_reset_comes_in_the_middle_of_the_body(site: Site) -> None:
    reader, writer = await asyncio.open_connection(HOSTS[0], site.port)
    writer.write(b"GET /reset HTTP/1.1\r\nHost: x\r\n\r\n")
    await reader.readuntil(b"\r\n\r\n")
    await reader.readuntil(b"the beginning")
    with pytest.raises(ConnectionResetError):
        await reader.read()
    writer.close()


@pytest.mark.parametrize(("path", "difference"), [("/lie/long", -1000), ("/lie/short", 50)])
async def test_lengths_are_lies(site: Site, path: str, difference: int) -> None:
    reader, writer = await asyncio.open_connection(HOSTS[0], site.port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    head = await reader.readuntil(b"\r\n\r\n")
    body = await reader.read()
    promised = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    assert len(body) - promised == difference
    writer.close()


@pytest.mark.parametrize(("path", "status"), [("/hang", 0), ("/stall", 200)])
async def test_silence_lasts_until_the_visitor_leaves(client: aiohttp.ClientSession, path: str, status: int) -> None:
    with Site() as site:
        with pytest.raises(TimeoutError):
            async with client.get(site.url + path, timeout=aiohttp.ClientTimeout(total=2.0)) as response:
                await response.read()
        (visit,) = await asyncio.to_thread(site.wait_until, lambda visits: bool(visits) and visits[0].end is not None)
    assert visit.status == status
    assert visit.end is not None
    assert visit.end - visit.start > 1.0


def test_a_visit_that_goes_on_has_no_end_yet() -> None:
    with Site() as site:
        connection = HTTPConnection(HOSTS[0], site.port, timeout=5)
        connection.request("GET", "/hang")
        (visit,) = site.wait_until(lambda visits: len(visits) == 1)
        assert visit.end is None
        connection.close()


async def test_most_at_once_and_closest_starts_are_what_happened(client: aiohttp.ClientSession) -> None:
    with Site(delay=0.5) as site:
        first = asyncio.gather(*(text_of(client, f"{site.url}/page/{number}") for number in (1, 2, 3)))
        other = text_of(client, f"{site.url_of(HOSTS[1])}/page/1")
        await asyncio.gather(first, other)
        await text_of(client, f"{site.url}/page/1")
        visits = site.visits()
    assert most_at_once(visits, HOSTS[0]) == 3
    assert most_at_once(visits, HOSTS[1]) == 1
    assert most_at_once(visits) == 4
    assert most_at_once(visits, HOSTS[5]) == 0
    assert closest_starts(visits, HOSTS[0]) < 0.5
    assert closest_starts([visit for visit in visits if visit.path == "/page/1" and visit.host == HOSTS[0]]) >= 0.48
    assert closest_starts(visits, HOSTS[1]) == float("inf")
    assert {path: len(seen) for path, seen in per_path(visits).items()} == {"/page/1": 3, "/page/2": 1, "/page/3": 1}


async def test_one_after_another_is_never_two_at_once(client: aiohttp.ClientSession) -> None:
    with Site() as site:
        for number in range(1, 51):
            # A new connection each time: the end of one must not be seen after the start of the next.
            await status_of(client, f"{site.url}/page/{number}", Connection="close")
        assert most_at_once(site.visits()) == 1


async def test_bodies_of_requests_are_read_over(client: aiohttp.ClientSession) -> None:
    with Site() as site:
        for _ in range(2):
            async with client.post(f"{site.url}/page/1", data=b"GET /page/2 HTTP/1.1\r\n\r\n") as response:
                assert response.status == 200
        assert [(visit.method, visit.path) for visit in site.visits()] == [("POST", "/page/1")] * 2


def test_the_site_ends_with_a_killed_parent() -> None:
    script = "from tests.support.site import Site\nwith Site() as site:\n print(site.pid, flush=True)\n input()\n"
    parent = subprocess.Popen(
        [sys.executable, "-c", script], cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    os.kill(pid, 0)
    parent.send_signal(signal.SIGKILL)
    parent.communicate()
    deadline = time.monotonic() + 60
    while is_running(pid):
        assert time.monotonic() < deadline, "the site outlived the process that started it"
        time.sleep(0.01)


def is_running(pid: int) -> bool:
    """Whether there is such a process, and more of it than an entry that nobody has collected yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
