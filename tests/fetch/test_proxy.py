"""Requests through proxies: which way they go, who resolves names, and whose fault a failure is."""

import asyncio
import itertools
import socket
import ssl
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any, Final

import aiohttp.connector
import pytest
import uvloop

from shoal.fetch.http import HttpFetcher
from shoal.fetch.page import Request
from shoal.fetch.robots import Robots
from shoal.model.egress import ProxyAddress, ProxyScheme
from tests.support.certificates import Certificate
from tests.support.faulty_proxy import FaultyProxy
from tests.support.proxies import RealProxy
from tests.support.raw_site import Site, redirect, reply

PASSWORD: Final = "pw-of-this-test"
TOKEN: Final = "token-of-this-test"
HTTP_AND_SOCKS: Final = ("http", "socks5")


class Witness:
    """An identity that adds headers and records its calls."""

    def __init__(self, proxy: ProxyAddress | None, key: str = "one", headers: Mapping[str, str] | None = None) -> None:
        self.key = key
        self.proxy = proxy
        self.headers = dict(headers or {})
        self.requests: list[tuple[str, int]] = []
        self.responses: list[tuple[str, int]] = []

    async def before_request(self, url: str, hop: int) -> Mapping[str, str]:
        self.requests.append((url, hop))
        return self.headers

    def on_response(self, url: str, status: int, headers: Mapping[str, str]) -> None:
        assert "Content-Length" in headers
        self.responses.append((url, status))


class TlsSite(Site):
    """The site with the certificate of shop.test; it remembers the address that each connection came from."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        super().__init__()
        self.tls = tls
        self.peers: list[str] = []
        self._writers: list[asyncio.StreamWriter] = []

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self.tls)

    async def stop(self) -> None:
        await super().stop()
        for writer in self._writers:
            writer.transport.abort()  # a polite end of TLS may outlast the event loop
        await asyncio.sleep(0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.peers.append(writer.get_extra_info("peername")[0])
        self._writers.append(writer)
        await super()._serve(reader, writer)

    def url(self, target: str, host: str = "127.0.0.1") -> str:
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}{target}"


@pytest.fixture(scope="module", autouse=True)
def trusted(certificate: Certificate) -> None:
    certificate.trust(aiohttp.connector._SSL_CONTEXT_VERIFIED)


@pytest.fixture
async def site() -> AsyncIterator[TlsSite]:
    site = TlsSite()
    await site.start()
    yield site
    await site.stop()


@pytest.fixture(params=["http", "https"])
async def either_site(request: pytest.FixtureRequest, certificate: Certificate) -> AsyncIterator[TlsSite]:
    site = TlsSite(certificate.server if request.param == "https" else None)
    await site.start()
    yield site
    await site.stop()


@pytest.fixture
async def tls_site(certificate: Certificate) -> AsyncIterator[TlsSite]:
    site = TlsSite(certificate.server)
    await site.start()
    yield site
    await site.stop()


@pytest.fixture
async def fetcher() -> AsyncIterator[HttpFetcher]:
    fetcher = HttpFetcher(connections=8, user_agent="shoal", max_body=1 << 20, idle_timeout=20.0)
    yield fetcher
    await fetcher.close()


@pytest.fixture
async def hasty() -> AsyncIterator[HttpFetcher]:
    fetcher = HttpFetcher(connections=8, user_agent="shoal", idle_timeout=0.5, connect_timeout=0.5)
    yield fetcher
    await fetcher.close()


@pytest.fixture
def no_dns(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """No name may be resolved in this process."""
    asked: list[str] = []

    def refuse(host: Any, *arguments: Any, **options: Any) -> Any:
        asked.append(str(host))
        raise socket.gaierror("this test resolves no names")

    async def refuse_async(loop: Any, host: Any, *arguments: Any, **options: Any) -> Any:
        refuse(host)

    def is_address(host: Any) -> bool:
        return host is None or str(host).replace(".", "").isdigit() or ":" in str(host)

    real = socket.getaddrinfo
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda host, *a, **k: real(host, *a, **k) if is_address(host) else refuse(host)
    )
    monkeypatch.setattr(aiohttp.connector.DefaultResolver, "resolve", refuse_async)
    yield asked
    assert asked == []


@pytest.fixture
def proxy() -> Iterator[FaultyProxy]:
    with FaultyProxy(names={"shop.test": "127.0.0.1"}) as proxy:
        yield proxy


def addresses(proxy: FaultyProxy) -> list[ProxyAddress]:
    return [proxy.address(scheme) for scheme in ("http", "socks5")]


@pytest.mark.parametrize("kind", ["microsocks", "tinyproxy", "squid"])
async def test_every_request_of_a_fetch_goes_through_the_proxy(
    request: pytest.FixtureRequest, kind: str, either_site: TlsSite, fetcher: HttpFetcher, no_dns: list[str]
) -> None:
    """S3.8: pages, redirects, streams and robots.txt, by name, with a password; the site's own log is the witness."""
    real: RealProxy = request.getfixturevalue(kind)
    identity = Witness(real.address, headers={"Authorization": f"Bearer {TOKEN}"})
    either_site.answers |= {
        "/a": redirect("/b"),
        "/b": reply("<h1>there</h1>"),
        "/robots.txt": reply("User-agent: *\nDisallow: /private\n", content_type="text/plain"),
    }
    urls = [either_site.url(path, "shop.test") for path in ("/a", "/b", "/robots.txt")]
    request_headers = {"X-Mine": "1", "authorization": "of the request"}
    page = await fetcher.fetch(Request(url=urls[0], headers=request_headers), identity=identity)
    assert (page.text, page.url) == ("<h1>there</h1>", urls[1])
    async with fetcher.stream(Request(url=urls[0]), identity=identity) as stream:
        assert (await stream.read(), await stream.read()) == (b"<h1>there</h1>", b"")
    robots = Robots(_As(fetcher, identity), "shoal")
    assert not (await robots.rules(urls[0])).allowed(either_site.url("/private", "shop.test"))
    assert set(either_site.peers) == {real.source}
    # tinyproxy closes connections without saying so: a request may have been repeated.
    assert [url for url, _ in itertools.groupby(url for url, _ in identity.requests)] == [*urls[:2], *urls[:2], urls[2]]
    assert [status for _, status in identity.responses] == [302, 200, 302, 200, 200]
    for seen in either_site.log:
        assert seen.headers["authorization"] == f"Bearer {TOKEN}"
        assert seen.headers["host"] == f"shop.test:{either_site.port}"
        assert "proxy-authorization" not in seen.headers
    assert either_site.log[0].headers["x-mine"] == "1"


class _As:
    """A fetcher that sends as one identity."""

    def __init__(self, fetcher: HttpFetcher, identity: Witness) -> None:
        self._fetcher = fetcher
        self._identity = identity

    async def fetch(self, request: Request, **options: Any) -> Any:
        return await self._fetcher.fetch(request, **{**options, "identity": self._identity})

    def stream(self, request: Request, **options: Any) -> Any:
        return self._fetcher.stream(request, **{**options, "identity": self._identity})

    async def close(self) -> None:
        pass


@pytest.mark.parametrize("scheme", ["http", "https", "socks5", "socks5h"])
@pytest.mark.parametrize("login", [False, True])
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_every_protocol_with_and_without_a_login(
    scheme: ProxyScheme, login: bool, loop: str, certificate: Certificate
) -> None:
    """Also with the other event loop, and with TLS to the proxy, to the site, and both."""

    async def visit(proxy: FaultyProxy) -> None:
        address = proxy.address(scheme)
        for tls in (None, certificate.server):
            site = TlsSite(tls)
            await site.start()
            site.answers["/x%20y?a=%7e"] = site.answers["/x%20y"] = reply("<h1>there</h1>")
            host = f"shop.test:{site.port}"
            fetcher = HttpFetcher(connections=2, user_agent="shoal", idle_timeout=20.0)
            identity = Witness(address)
            try:
                for _ in range(2):
                    page = await fetcher.fetch(
                        Request(url=site.url("/x%20y?a=%7e", "shop.test"), headers={"X-Mine": "1"}), identity=identity
                    )
                    assert page.text == "<h1>there</h1>"
            finally:
                await fetcher.close()
                await site.stop()
            assert site.targets == ["/x%20y?a=%7e"] * 2
            assert site.peers == [proxy.source], "the connection was not kept"
            assert {seen.headers["host"] for seen in site.log} == {host}
        kinds = {visit.kind for visit in proxy.visits}
        assert kinds == ({"socks"} if scheme.startswith("socks") else {"http", "connect"})
        assert {visit.username for visit in proxy.visits} == {"fish" if login else ""}
        connects = [visit for visit in proxy.visits if visit.kind == "connect"]
        assert all(visit.headers.keys() <= {"host", "proxy-authorization"} for visit in connects)

    tls = certificate.server if scheme == "https" else None
    with (
        FaultyProxy(
            names={"shop.test": "127.0.0.1"},
            username="fish" if login else "",
            password=PASSWORD if login else "",
            tls=tls,
            source="127.0.0.1" if tls else None,
        ) as proxy,
        asyncio.Runner(loop_factory=uvloop.new_event_loop if loop == "uvloop" else None) as runner,
    ):
        runner.run(visit(proxy))
