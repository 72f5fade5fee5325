"""The proxies of the tests are what other tests take them for."""

import socket
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection

import pytest

from shoal.model.egress import ProxyAddress
from tests.support import MissingPartError, missing
from tests.support.faulty_proxy import FaultyProxy
from tests.support.proxies import MicroSocks, MicroSocksGroup, RealProxy, Squid, TinyProxy
from tests.support.site import Site


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with Site(extra={"/": "<h1>shop</h1>"}) as site:
        yield site


def get(proxy: ProxyAddress, url: str) -> bytes:
    """The body that an HTTP proxy answers with to a request in absolute form, or its status if that is no 200."""
    client = HTTPConnection(proxy.host, proxy.port, timeout=30)
    with closing(client):
        client.request("GET", url)
        response = client.getresponse()
        return response.read() if response.status == 200 else str(response.status).encode()


def tunnel(proxy: ProxyAddress, port: int, name: str) -> bytes:
    """The first bytes of the answer to a request through SOCKS5 without credentials."""
    with socket.create_connection((proxy.host, proxy.port), timeout=30) as client:
        client.sendall(b"\x05\x01\x00")
        if client.recv(2) != b"\x05\x00":
            return b"wants credentials"
        client.sendall(b"\x05\x01\x00\x03" + bytes([len(name)]) + name.encode() + port.to_bytes(2, "big"))
        answer = client.recv(10)
        if answer[1]:
            return answer
        client.sendall(f"GET / HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n".encode())
        answer = b""
        while b"</h1>" not in answer and (data := client.recv(65_536)):
            answer += data
        return answer


@pytest.mark.parametrize("kind", [TinyProxy, Squid])
def test_an_http_proxy_has_its_own_source_address_and_names(kind: type[RealProxy], site: Site) -> None:
    try:
        with kind(hosts={"shop.test": "127.0.0.1"}) as proxy, kind(login=True) as closed:
            assert b"<h1>shop</h1>" in get(proxy.address, f"http://shop.test:{site.port}/")
            assert site.visits()[-1].peer.startswith(f"{proxy.source}:")
            assert get(closed.address, f"{site.url}/") == b"407"
            proxy.stop()
            with pytest.raises(ConnectionRefusedError):
                get(proxy.address, f"{site.url}/")
            proxy.start()
            assert b"<h1>shop</h1>" in get(proxy.address, f"http://shop.test:{site.port}/")
    except MissingPartError as error:
        missing(str(error))


def test_microsocks_has_its_own_source_address_and_names(site: Site) -> None:
    try:
        with (
            MicroSocks(hosts={"shop.test": "127.0.0.1"}) as proxy,
            MicroSocks(login=True) as closed,
            MicroSocksGroup(3) as group,
        ):
            assert b"<h1>shop</h1>" in tunnel(proxy.address, site.port, "shop.test")
            assert site.visits()[-1].peer.startswith(f"{proxy.source}:")
            assert tunnel(closed.address, site.port, "127.0.0.1") == b"wants credentials"
            for address in group.addresses:
                assert b"<h1>shop</h1>" in tunnel(address, site.port, "127.0.0.1")
            peers = {visit.peer.partition(":")[0] for visit in site.visits()}
            assert {address.host for address in group.addresses} < peers
    except MissingPartError as error:
        missing(str(error))


def test_the_faulty_proxy_works_until_it_is_told_to_fail(site: Site) -> None:
    with FaultyProxy(names={"shop.test": "127.0.0.1"}) as proxy:
        url = f"http://shop.test:{site.port}/"
        assert b"<h1>shop</h1>" in get(proxy.address(), url)
        assert b"<h1>shop</h1>" in tunnel(proxy.address(), site.port, "shop.test")
        assert site.visits()[-1].peer.startswith(f"{proxy.source}:")
        assert [visit.kind for visit in proxy.visits] == ["http", "socks"]
        proxy.fault = "portal"
        assert b"Room number" in get(proxy.address(), url)
        proxy.fault, proxy.cut_after = "cut", 20
        with pytest.raises(ConnectionResetError):
            get(proxy.address(), url)
        proxy.fault = "reset"
        with pytest.raises(ConnectionResetError):
            get(proxy.address(), url)
        proxy.close()
        with pytest.raises(ConnectionRefusedError):
            get(proxy.address(), url)
        proxy.fault = None
        proxy.open()
        assert b"<h1>shop</h1>" in get(proxy.address(), url)
