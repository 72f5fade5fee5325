"""The stand-in of the price registers: the same pages from the same seed, its faults, and the exits in tor's place."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from http.client import RemoteDisconnected
from urllib.error import HTTPError

import pytest

from shoal.fetch.http import HttpFetcher
from shoal.fetch.page import Request
from shoal.model.egress import ProxyAddress
from shoal.recipes.countries.exits import EXITS, NETWORK, exit_address, local_exits
from shoal.recipes.countries.stand_in import BLOCK_EVERY, RESET_EVERY, PriceRegisters


def read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return str(answer.read().decode())


def test_the_data_is_the_same_for_one_seed_and_not_in_scripted_pages() -> None:
    site = PriceRegisters(seed=3)
    facts = site.facts("india", 12)
    assert facts == PriceRegisters(seed=3).facts("india", 12) != PriceRegisters(seed=4).facts("india", 12)
    with site.serving() as running:
        page = read(f"{running.url}/india/drug/12")
        assert facts.name not in page
        assert json.loads(read(f"{running.url}/api/india/drug/12"))["price"] == facts.price
        assert site.facts("russia", 12).name in read(f"{running.url}/russia/drug/12")
        assert read(f"{running.url}/ip") == "127.0.0.1\n"
        for path in ("/india/drug/0", "/api/russia/drug/1", "/peru/drug/1", "/india/drug/x"):
            with pytest.raises(HTTPError, match="404"):
                read(running.url + path)
        assert list(site.urls("india", 2)) == [f"{running.url}/india/drug/1", f"{running.url}/india/drug/2"]
    assert [visit.peer for visit in running.log()] == ["127.0.0.1"] * len(running.log())


def test_faults_can_be_switched_on() -> None:
    with PriceRegisters(faults=("blocks", "gone")).serving() as running:
        with pytest.raises(HTTPError, match="404"):
            read(f"{running.url}/russia/drug/113")
        page = f"{running.url}/russia/drug/1"
        for _ in range(BLOCK_EVERY - 1):
            read(page)
        with pytest.raises(HTTPError, match="403"):
            read(page)
        read(page)
        running.switch("resets")
        cut = f"{running.url}/russia/drug/{RESET_EVERY}"
        with pytest.raises((RemoteDisconnected, ConnectionError)):
            read(cut)
        read(cut)
    assert [visit.note for visit in running.log() if visit.note] == ["blocked", "reset"]


async def test_each_user_name_of_the_exits_has_an_address_and_leads_to_this_machine_only() -> None:
    users = ("ann", "bob", "eve")
    assert len({exit_address(str(number)) for number in range(1_000)}) == EXITS
    with PriceRegisters().serving() as running, local_exits() as port:
        fetcher = HttpFetcher(connections=4, user_agent="shoal")
        try:
            for user in users:
                identity = _Exit(ProxyAddress("socks5h", "127.0.0.1", port, username=user, password="x"))
                page = await fetcher.fetch(Request(url=f"{running.url}/ip"), identity=identity)
                assert page.text.strip() == exit_address(user)
                assert page.text.startswith(NETWORK)
        finally:
            await fetcher.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"\x05\x01\x02\x01\x01a\x01b\x05\x01\x00\x01\xc0\x00\x02\x01\x00\x50")  # 192.0.2.1:80
        assert (await reader.read())[4:6] == b"\x05\x02"
        writer.close()


class _Exit:
    def __init__(self, proxy: ProxyAddress) -> None:
        self.key = proxy.username
        self.proxy: ProxyAddress | None = proxy

    async def before_request(self, url: str, hop: int) -> dict[str, str]:
        return {}

    def on_response(self, url: str, status: int, headers: object) -> None:
        """Nothing is kept."""
