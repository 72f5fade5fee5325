"""deny_private: only public addresses are requested, whatever names resolve to and wherever redirects lead."""

import socket
from collections.abc import AsyncIterator

import pytest

from shoal.define.context import Http
from shoal.errors import Permanent
from shoal.fetch.http import HttpFetcher
from shoal.fetch.impersonate import ImpersonatingFetcher
from shoal.fetch.page import Request
from shoal.fetch.robots import Robots
from shoal.fetch.urls import PrivateAddress, is_public, public_socket
from tests.support.raw_site import Site, redirect, reply


@pytest.fixture(params=[HttpFetcher, ImpersonatingFetcher])
async def careful(request: pytest.FixtureRequest) -> AsyncIterator[HttpFetcher]:
    fetcher = request.param(connections=4, user_agent="shoal/0.1", deny_private=True)
    yield fetcher
    await fetcher.close()


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "2130706433", "0177.0.0.1", "0x7f.1", "127.1", "[::1]", "[::ffff:127.0.0.1]"]
)
async def test_private_addresses_are_refused_in_every_way_to_write_them(
    host: str, site: Site, careful: HttpFetcher
) -> None:
    # Some of these are no URLs to the client in the first place.
    refused = "has an address that is not public, which deny_private refuses|is not a URL that can be fetched"
    with pytest.raises(Permanent, match=refused):
        await careful.fetch(Request(url=site.url("/", host=host)))
    assert site.log == []


async def test_private_addresses_are_allowed_by_default(site: Site, fetcher: HttpFetcher) -> None:
    site.answers["/"] = reply("hello")
    assert (await fetcher.fetch(Request(url=site.url("/", host="localhost")))).text == "hello"


async def test_redirects_robots_and_requests_of_handlers_are_checked_too(
    site: Site, careful: HttpFetcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first hop is allowed here as if it were public; its redirect target is not."""
    site.answers["/"] = redirect(site.url("/secret", host="127.0.0.2"))
    monkeypatch.setattr("shoal.fetch.urls.is_public", lambda text: text == "127.0.0.1")
    with pytest.raises(Permanent, match=r"127\.0\.0\.2:\d+ has an address that is not public"):
        await careful.fetch(Request(url=site.url("/")))
    with pytest.raises(Permanent, match="not public"):
        await Http(careful).get(site.url("/secret", host="127.0.0.2"))
    await Robots(careful, "shoal/0.1").rules(site.url("/", host="127.0.0.2"))
    assert site.targets == ["/"]


def test_the_connected_address_is_checked_not_the_name() -> None:
    found = socket.getaddrinfo("127.0.0.1", 80, type=socket.SOCK_STREAM)[0]
    with pytest.raises(PrivateAddress):
        public_socket(found)
    family, kind, protocol, name, _ = found
    public_socket((family, kind, protocol, name, ("8.8.8.8", 80))).close()


@pytest.mark.parametrize(
    "address",
    [
        *("0.0.0.0", "10.1.2.3", "100.64.0.1", "127.0.0.1", "169.254.169.254", "172.16.0.1", "192.168.1.1"),
        *("224.0.0.1", "239.1.1.1", "240.0.0.1", "255.255.255.255", "198.18.0.1", "192.0.2.1"),
        *("::", "::1", "fc00::1", "fd12::1", "fe80::1%eth0", "fec0::1", "ff02::1", "2001:db8::1"),
        *("::ffff:10.0.0.1", "::ffff:169.254.169.254", "64:ff9b::7f00:1", "2002:7f00:1::", "2002:a00:1::1"),
    ],
)
def test_addresses_that_are_not_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize(
    "address", ["8.8.8.8", "1.1.1.1", "2606:4700:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"]
)
def test_public_addresses(address: str) -> None:
    assert is_public(address)
