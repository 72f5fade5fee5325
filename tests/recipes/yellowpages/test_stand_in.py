"""The stand-in: the same pages for the same seed, its faults, and proxies that it can tell apart."""

from __future__ import annotations

import gc
import socket
import time
import urllib.error
import urllib.request
from base64 import b64encode
from contextlib import ExitStack
from pathlib import Path

import pytest

from shoal import Page
from shoal.demo.stand_in import RunningStandIn
from shoal.recipes.yellowpages.proxies import PASSWORD, USER, serving_proxies
from shoal.recipes.yellowpages.stand_in import PER_PAGE, YellowPages, slug

CITY, CATEGORY = "los-angeles-ca", "plumbers"
PATH = f"/{CITY}/{CATEGORY}"


def ask(running: RunningStandIn[YellowPages], path: str, proxy: str = "") -> tuple[int, Page]:
    """The status and the page of an address."""
    handler = urllib.request.ProxyHandler({"http": f"http://{USER}:{PASSWORD}@{proxy}"} if proxy else {})
    url = running.url + path
    try:
        with urllib.request.build_opener(handler).open(url, timeout=20) as answer:
            return answer.status, Page.of(url, answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, Page.of(url, error.read())


def test_pages_follow_from_the_seed() -> None:
    one, again, other = YellowPages(), YellowPages(), YellowPages(seed=8)
    assert one.businesses(CITY, CATEGORY) == again.businesses(CITY, CATEGORY) != other.businesses(CITY, CATEGORY)
    everything = one.businesses(CITY, CATEGORY)
    kinds = {business.kind for business in everything}
    assert kinds >= {"good", "sponsored", "no website"}
    wanted = {business.domain for business in everything[:PER_PAGE] if business.is_wanted}
    assert one.companies_of([(CITY, CATEGORY, 1)]) == wanted
    missing = [number for number in range(200) if one.is_missing(f"city-{number}-ca", CATEGORY)]
    assert 5 < len(missing) < 40


def test_pages_have_thirty_listings_and_lead_to_the_next(site: YellowPages) -> None:
    city = next(f"city-{n}-ca" for n in range(99) if site.pages_of(f"city-{n}-ca", CATEGORY, 9) == 3)
    path = f"/search?search_terms=Plumbers&geo_location_terms={city}"
    with site.serving() as running:
        numbers = []
        while path:
            status, page = ask(running, path)
            assert status == 200
            numbers.append(len(page.css(".result")))
            path = page.css("a.next::attr(href)").get("")
        assert numbers[:2] == [PER_PAGE, PER_PAGE]
        assert sum(numbers) == len(site.businesses(city, CATEGORY))
        assert ask(running, "/robots.txt")[0] == 200
        assert ask(running, "/nowhere")[0] == 404
        missing = next(f"city-{n}-ca" for n in range(99) if site.is_missing(f"city-{n}-ca", CATEGORY))
        assert ask(running, f"/{missing}/{CATEGORY}")[0] == 404
        assert ask(running, f"/search?search_terms=Plumbers&geo_location_terms={missing}")[0] == 200


def test_a_search_finds_the_city_of_the_page_whatever_accents_its_name_has() -> None:
    assert slug("Cañon City, CO") == "canon-city-co"


def test_faults(site: YellowPages) -> None:
    with site.serving() as running:
        running.switch("limits")
        site.min_gap = 60.0
        statuses = [ask(running, PATH)[0] for _ in range(site.strikes + 2)]
        assert statuses == [200, *[429] * site.strikes, 403]
        running.switch("limits", False)
        running.switch("captcha")
        texts = [ask(running, PATH)[1].text for _ in range(25)]
        assert sum("captcha" in text for text in texts) == 1
        running.switch("outage")
        assert ask(running, PATH)[0] == 503


def test_a_proxy_waits_for_the_site_when_its_client_sends_no_more() -> None:
    """Its task must not be garbage: nothing but the task itself refers to what it waits for."""
    login = b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    with ExitStack() as stack:
        site = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        proxies = stack.enter_context(serving_proxies(1, dead=0, flaky=0, network="127.200.8"))
        client = stack.enter_context(socket.create_connection((proxies.addresses[0], proxies.port), timeout=60))
        address = f"127.0.0.1:{site.getsockname()[1]}"
        client.sendall(f"GET http://{address}/ HTTP/1.1\r\nProxy-Authorization: Basic {login}\r\n\r\n".encode())
        site.settimeout(60)
        connection = stack.enter_context(site.accept()[0])
        client.shutdown(socket.SHUT_WR)
        for _ in range(10):
            time.sleep(0.02)
            gc.collect()
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\nhere")
        connection.close()
        assert client.recv(65_536).endswith(b"here")


def test_each_proxy_has_an_address_of_its_own(site: YellowPages, tmp_path: Path) -> None:
    with site.serving() as running, serving_proxies(6, dead=2, flaky=1, network="127.200.7") as proxies:
        assert len(proxies.lines()) == 6
        for address in proxies.addresses:
            proxy = f"{address}:{proxies.port}"
            if address in proxies.dead:
                with pytest.raises(urllib.error.URLError, match="refused"):
                    ask(running, PATH, proxy)
            elif address not in proxies.flaky:
                assert ask(running, PATH, proxy)[0] == 200
        seen = {visit.peer for visit in running.log()}
        assert seen == set(proxies.addresses) - proxies.dead - proxies.flaky
        (flaky,) = proxies.flaky
        outcomes = []
        for _ in range(6):
            try:
                outcomes.append(ask(running, PATH, f"{flaky}:{proxies.port}")[0])
            except OSError:
                outcomes.append(0)
        assert sorted(outcomes) == [0, 0, 200, 200, 200, 200]
