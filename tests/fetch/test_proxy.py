"""Requests through proxies: which way they go, who resolves names, and whose fault a failure is."""

import asyncio
import itertools
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Iterator, Mapping
from time import perf_counter
from typing import Any, Final

import aiohttp
import aiohttp.connector
import pytest
import uvloop

from shoal.errors import AttemptEnded, Blocked, ExitFailed, Permanent, Transient
from shoal.fetch import proxy as proxy_module
from shoal.fetch.environment import environment_proxies
from shoal.fetch.http import HttpFetcher
from shoal.fetch.page import Request
from shoal.fetch.proxy import Evidence, RequestRoute, RequestRoutes
from shoal.fetch.robots import Robots
from shoal.model.egress import ProxyAddress, ProxyScheme
from tests.support.certificates import Certificate
from tests.support.faulty_proxy import Fault, FaultyProxy
from tests.support.proxies import RealProxy
from tests.support.raw_site import Seen, Site, redirect, reply

PASSWORD: Final = "pw-of-this-test"
TOKEN: Final = "token-of-this-test"
HTTP_AND_SOCKS: Final[tuple[ProxyScheme, ...]] = ("http", "socks5")


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
    monkeypatch.setattr(aiohttp.DefaultResolver, "resolve", refuse_async)
    yield asked
    assert asked == []


@pytest.fixture
def proxy() -> Iterator[FaultyProxy]:
    with FaultyProxy(names={"shop.test": "127.0.0.1"}) as proxy:
        yield proxy


def addresses(proxy: FaultyProxy) -> list[ProxyAddress]:
    return [proxy.address(scheme) for scheme in HTTP_AND_SOCKS]


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


# Failures of the way


FAULTS: Final[list[tuple[Fault | None, dict[str, int], str, str]]] = [
    ("silent", {}, "did not answer CONNECT in time", "did not answer the SOCKS request in time"),
    ("reset", {}, "closed the connection instead|reset by peer", "closed the connection instead|reset by peer"),
    ("close", {}, "closed the connection instead", "closed the connection instead"),
    ("garbage", {}, "something else than HTTP", "does not speak SOCKS5"),
    ("portal", {}, "a page of its own", ""),
    ("status", {"status": 407, "reply": 1}, r"wants credentials \(407\)", "SOCKS: general failure"),
    ("status", {"status": 402, "reply": 7}, "answered CONNECT with 402", "SOCKS: it cannot connect"),
    ("status", {"status": 404, "reply": 99}, "answered CONNECT with 404", "SOCKS: unknown reply 99"),
]


@pytest.mark.parametrize(("fault", "values", "by_connect", "by_socks"), FAULTS)
async def test_failures_of_the_way_are_exit_failures(
    fault: Fault,
    values: dict[str, int],
    by_connect: str,
    by_socks: str,
    tls_site: TlsSite,
    fetcher: HttpFetcher,
    hasty: HttpFetcher,
    proxy: FaultyProxy,
) -> None:
    """S3.8: and nothing goes out directly."""
    sender = hasty if fault == "silent" else fetcher
    proxy.fault = fault
    for name, value in values.items():
        setattr(proxy, name, value)
    for scheme, expected in zip(HTTP_AND_SOCKS, (by_connect, by_socks), strict=True):
        if not expected:
            continue
        identity = Witness(proxy.address(scheme))
        with pytest.raises(ExitFailed, match=expected) as caught:
            await sender.fetch(Request(url=tls_site.url("/")), identity=identity)
        assert caught.value.message.startswith(f"proxy {proxy.source}:{proxy.port}")
        assert identity.responses == []
    assert tls_site.peers == []


@pytest.mark.parametrize("scheme", ["http", "https", "socks5"])
async def test_a_refused_connection_names_the_proxy_and_nothing_goes_out_directly(
    scheme: ProxyScheme, site: TlsSite, fetcher: HttpFetcher, proxy: FaultyProxy
) -> None:
    site.answers["/"] = reply("<h1>there</h1>")
    proxy.close()
    identity = Witness(proxy.address(scheme))
    for _ in range(2):
        with pytest.raises(ExitFailed, match=f"^proxy {proxy.source}:{proxy.port} refused the connection$"):
            await fetcher.fetch(Request(url=site.url("/")), identity=identity)
    with pytest.raises(ExitFailed):
        await _read_stream(fetcher, Request(url=site.url("/")), identity)
    assert site.peers == []
    if scheme != "https":
        proxy.open()
        assert (await fetcher.fetch(Request(url=site.url("/")), identity=identity)).status == 200


async def test_a_proxy_whose_name_does_not_exist(fetcher: HttpFetcher, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(aiohttp.DefaultResolver, "resolve", fail)
    identity = Witness(ProxyAddress("http", "proxy.invalid", 8080))
    with pytest.raises(ExitFailed, match=r"^proxy proxy\.invalid:8080: its name could not be resolved$"):
        await fetcher.fetch(Request(url="http://shop.test/"), identity=identity)


@pytest.mark.parametrize("kind", ["microsocks", "tinyproxy", "squid"])
async def test_wrong_credentials(
    request: pytest.FixtureRequest,
    kind: str,
    either_site: TlsSite,
    fetcher: HttpFetcher,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Also for http://, where the proxy's 407 must not be taken for an answer of the site; no secret in the error."""
    caplog.set_level(logging.DEBUG)
    real: RealProxy = request.getfixturevalue(kind)
    right = real.address
    for proxy in (
        ProxyAddress(right.scheme, right.host, right.port, "fish", PASSWORD),
        ProxyAddress(right.scheme, right.host, right.port),
    ):
        identity = Witness(proxy, headers={"Authorization": TOKEN})
        with pytest.raises(ExitFailed, match="credentials") as caught:
            await fetcher.fetch(Request(url=either_site.url("/")), identity=identity)
        chain: BaseException | None = caught.value
        while chain is not None:
            assert PASSWORD not in f"{chain!r} {chain}"
            assert TOKEN not in f"{chain!r} {chain}"
            chain = chain.__cause__ or chain.__context__
        assert PASSWORD not in repr(identity.proxy)
        assert identity.responses == []
    assert either_site.log == []
    assert PASSWORD not in caplog.text
    assert TOKEN not in caplog.text


async def test_a_site_that_a_proxy_does_not_allow_is_a_block(
    tls_site: TlsSite, fetcher: HttpFetcher, proxy: FaultyProxy
) -> None:
    """It counts against this exit at this host only."""
    proxy.fault, proxy.status, proxy.reply = "status", 403, 2
    for address in addresses(proxy):
        with pytest.raises(Blocked, match="does not allow connections to"):
            await fetcher.fetch(Request(url=tls_site.url("/")), identity=Witness(address))


# Failures of the site, and those that may be both


async def test_a_dead_site_is_not_the_fault_of_the_proxies(
    request: pytest.FixtureRequest, fetcher: HttpFetcher, tls_site: TlsSite
) -> None:
    port = tls_site.port
    await tls_site.stop()
    for kind in ("microsocks", "tinyproxy", "squid"):
        real: RealProxy = request.getfixturevalue(kind)
        for _ in range(2):
            with pytest.raises(Transient, match="no connection") as caught:
                await fetcher.fetch(Request(url=f"https://127.0.0.1:{port}/"), identity=Witness(real.address, kind))
            assert not isinstance(caught.value, ExitFailed)


async def _cut(seen: Seen, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\nfive")
    await writer.drain()


async def _close(seen: Seen, writer: asyncio.StreamWriter) -> None:
    pass


@pytest.mark.parametrize("scheme", HTTP_AND_SOCKS)
@pytest.mark.parametrize(("path", "expected"), [("/cut", "not complete"), ("/close", "without an answer")])
async def test_a_site_that_cuts_connections_is_not_the_fault_of_the_proxy(
    scheme: ProxyScheme, path: str, expected: str, tls_site: TlsSite, fetcher: HttpFetcher, proxy: FaultyProxy
) -> None:
    tls_site.answers |= {"/cut": _cut, "/close": _close}
    for _ in range(3):
        with pytest.raises(Transient, match=expected) as caught:
            await fetcher.fetch(Request(url=tls_site.url(path)), identity=Witness(proxy.address(scheme)))
        assert not isinstance(caught.value, ExitFailed)


async def test_an_untrusted_certificate_is_the_sites(
    self_signed: ssl.SSLContext, fetcher: HttpFetcher, proxy: FaultyProxy
) -> None:
    site = TlsSite(self_signed)
    await site.start()
    try:
        for address in addresses(proxy):
            with pytest.raises(Transient, match="certificate could not be verified") as caught:
                await fetcher.fetch(Request(url=site.url("/")), identity=Witness(address))
            assert not isinstance(caught.value, ExitFailed)
    finally:
        await site.stop()


async def _read_stream(fetcher: HttpFetcher, request: Request, identity: Witness) -> None:
    async with fetcher.stream(request, identity=identity) as stream:
        while await stream.read():
            pass


@pytest.mark.parametrize("scheme", HTTP_AND_SOCKS)
async def test_a_proxy_that_fails_where_others_deliver_is_at_fault(
    scheme: ProxyScheme, either_site: TlsSite, fetcher: HttpFetcher, proxy: FaultyProxy
) -> None:
    """A half-dead proxy, which cuts connections after some kilobytes."""
    either_site.answers["/"] = reply(b"x" * 20_000)
    request = Request(url=either_site.url("/"))
    bad = Witness(proxy.address(scheme), "bad")
    proxy.fault, proxy.cut_after = "cut", 4_000
    with FaultyProxy() as good:
        with pytest.raises(Transient) as first:
            await fetcher.fetch(request, identity=bad)
        assert not isinstance(first.value, ExitFailed), "it may have been the site"
        await fetcher.fetch(request, identity=Witness(good.address(scheme), "good"))
        with pytest.raises(ExitFailed, match=f"^proxy {proxy.source}:{proxy.port}: 127.0.0.1:"):
            await fetcher.fetch(request, identity=bad)
        with pytest.raises(ExitFailed):
            await _read_stream(fetcher, request, bad)


async def test_a_silent_http_proxy_that_never_delivered_anything_is_at_fault(
    site: TlsSite, hasty: HttpFetcher, proxy: FaultyProxy
) -> None:
    """It owes an answer, if only that the site is silent."""
    proxy.fault = "silent"
    with pytest.raises(ExitFailed, match="no data for too long"):
        await hasty.fetch(Request(url=site.url("/")), identity=Witness(proxy.address("http")))


def test_doubtful_failures_are_judged_by_what_others_deliver() -> None:
    evidence = Evidence()
    failed = Transient("shop: the body is not complete")
    first, second = (RequestRoute(key, ProxyAddress("http", "proxy", 1)) for key in ("first", "second"))

    def judged(route: RequestRoute, host: str = "shop", *, owes_answer: bool = False) -> type[BaseException]:
        return type(evidence.judge(failed, route, host, perf_counter(), owes_answer=owes_answer))

    assert judged(first) is judged(first) is Transient, "nobody delivers: the site may be dead"
    assert judged(first, owes_answer=True) is ExitFailed, "it has never answered"
    evidence.record_delivery(second, "elsewhere")
    assert judged(first) is Transient
    evidence.record_delivery(second, "shop")
    assert judged(first) is ExitFailed
    assert judged(second) is Transient, "what it delivered itself is no evidence against it"
    evidence.record_delivery(first, "elsewhere")
    assert judged(first) is Transient, "its failures begin anew"
    assert judged(first, owes_answer=True) is Transient
    evidence.record_delivery(second, "shop")
    assert judged(first) is ExitFailed
    assert evidence.judge(Permanent("no"), first, "shop", 0.0, owes_answer=True).message == "no"


def test_evidence_needs_little_memory_however_many_proxies_and_sites_there_are() -> None:
    evidence = Evidence()
    for number in range(25_000):
        route = RequestRoute(str(number), ProxyAddress("http", "proxy", 1))
        evidence.judge(Transient("x"), route, str(number), 0.0, owes_answer=False)
        evidence.record_delivery(route, str(number))
    assert max(len(kept) for kept in vars(evidence).values()) == 10_000


@pytest.mark.parametrize("scheme", HTTP_AND_SOCKS)
async def test_a_proxy_that_dies_in_mid_connection(
    scheme: ProxyScheme, either_site: TlsSite, fetcher: HttpFetcher, proxy: FaultyProxy
) -> None:
    """S3.8: neither the rest of the page nor the next request goes out directly."""

    async def answer_slowly(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\nfive")
        await writer.drain()
        await asyncio.Event().wait()

    either_site.answers |= {"/": reply("<h1>there</h1>"), "/slow": answer_slowly}
    identity = Witness(proxy.address(scheme))
    await fetcher.fetch(Request(url=either_site.url("/")), identity=identity)
    async with fetcher.stream(Request(url=either_site.url("/slow")), identity=identity) as stream:
        assert await stream.read() == b"five"
        proxy.close()
        with pytest.raises(Transient, match=r"not complete|connection broke"):
            await stream.read()
    with pytest.raises(ExitFailed, match="refused the connection"):
        await fetcher.fetch(Request(url=either_site.url("/")), identity=identity)
    assert set(either_site.peers) == {proxy.source}


# Connections


@pytest.mark.parametrize("scheme", HTTP_AND_SOCKS)
async def test_a_connection_belongs_to_one_identity(
    scheme: ProxyScheme, either_site: TlsSite, fetcher: HttpFetcher, proxy: FaultyProxy
) -> None:
    """Also at one port, where SOCKS user names are what keeps circuits of Tor apart; and never a direct one."""
    either_site.answers["/"] = reply("<h1>there</h1>")
    request = Request(url=either_site.url("/"))
    first = ProxyAddress(scheme, proxy.source, proxy.port, "circuit-1", "x")
    second = ProxyAddress(scheme, proxy.source, proxy.port, "circuit-2", "x")
    identities = [
        Witness(first, "1"),
        Witness(second, "2"),
        Witness(first, "3"),
        Witness(None, "4"),
        Witness(None, "5"),
    ]
    for _ in range(3):
        for identity in [*identities, None]:
            await fetcher.fetch(request, identity=identity)
    assert len(either_site.log) == 18
    assert sorted(either_site.peers) == sorted([proxy.source] * 3 + ["127.0.0.1"] * 3)
    assert proxy.connections == 3
    by_connection: dict[int, set[str]] = {}
    for visit in proxy.visits:
        by_connection.setdefault(visit.connection, set()).add(visit.username)
    assert sorted(map(sorted, by_connection.values())) == [["circuit-1"], ["circuit-1"], ["circuit-2"]]


async def test_idle_connections_are_bounded_however_many_identities_there_are(
    site: TlsSite, fetcher: HttpFetcher, proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxy_module, "MAX_IDLE", 5)
    site.answers["/"] = reply("<h1>there</h1>")
    for number in range(30):
        await fetcher.fetch(Request(url=site.url("/")), identity=Witness(proxy.address("socks5"), str(number)))
    await site.until(lambda: site.open_connections <= 5)
    assert len(site.peers) == 30
    await fetcher.fetch(Request(url=site.url("/")), identity=Witness(proxy.address("socks5"), "29"))
    assert len(site.peers) == 30, "the newest connection was not kept"


def test_routes_are_one_object_per_identity_and_few_are_remembered() -> None:
    routes, proxy = RequestRoutes(limit=3), ProxyAddress("http", "proxy", 1, "fish", PASSWORD)
    first = routes.get("1", proxy)
    assert routes.get("1", ProxyAddress("http", "proxy", 1, "fish", PASSWORD)) is first
    others = [
        routes.get("1", None),
        routes.get("2", proxy),
        routes.get("1", ProxyAddress("http", "proxy", 1, "fish", "new")),
    ]
    assert len({first, *others}) == 4
    assert routes.get("1", proxy) is not first, "it was the least recently used"
    assert PASSWORD not in repr(first)


async def test_ipv6_literals_and_onion_names_reach_the_proxy_as_they_are(
    fetcher: HttpFetcher, proxy: FaultyProxy, no_dns: list[str]
) -> None:
    onion = "a" * 56 + ".onion"
    for host in ("[2001:db8::7]", onion):
        for scheme in ("https", "http"):
            for address in addresses(proxy):
                proxy.fault, proxy.status, proxy.reply = "status", 504, 4
                if scheme == "http" and address.scheme == "http":
                    assert (
                        await fetcher.fetch(Request(url=f"{scheme}://{host}/"), identity=Witness(address))
                    ).status == 504
                    continue
                with pytest.raises(Transient, match="no connection"):
                    await fetcher.fetch(Request(url=f"{scheme}://{host}/"), identity=Witness(address))
    targets = {visit.target for visit in proxy.visits}
    assert targets == {
        *("[2001:db8::7]:443", "2001:db8::7:443", "2001:db8::7:80"),
        *(f"{onion}:443", f"{onion}:80"),
    }


async def test_deny_private_refuses_addresses_in_urls_and_leaves_names_to_the_proxy(
    site: TlsSite, proxy: FaultyProxy, no_dns: list[str]
) -> None:
    """The proxy itself may have a private address."""
    fetcher = HttpFetcher(connections=2, user_agent="shoal", deny_private=True)
    site.answers |= {"/": reply("<h1>there</h1>"), "/in": redirect("http://10.0.0.1/")}
    try:
        for address in addresses(proxy):
            identity = Witness(address, address.scheme)
            for host in ("127.0.0.1", "[::1]", "10.1.2.3", "2130706433", "0x7f.1", "localhost", "a.localhost."):
                with pytest.raises(Permanent, match="deny_private refuses"):
                    await fetcher.fetch(Request(url=f"http://{host}/"), identity=identity)
            assert (await fetcher.fetch(Request(url=site.url("/", "shop.test")), identity=identity)).status == 200
            with pytest.raises(Permanent, match=r"10\.0\.0\.1 has an address that is not public"):
                await fetcher.fetch(Request(url=site.url("/in", "shop.test")), identity=identity)
        with pytest.raises(Permanent, match="deny_private refuses"):
            await fetcher.fetch(Request(url=site.url("/")), identity=Witness(None))
    finally:
        await fetcher.close()
    assert {visit.target for visit in proxy.visits} == {f"shop.test:{site.port}"}


async def test_an_identity_may_end_the_attempt_before_anything_is_sent(site: TlsSite, fetcher: HttpFetcher) -> None:
    class Spent(Witness):
        async def before_request(self, url: str, hop: int) -> Mapping[str, str]:
            raise AttemptEnded("spent")

    class Gate:
        done = 0

        async def before_request(self, url: str, hop: int) -> None: ...
        async def on_redirect(self, url: str, method: str) -> None: ...
        async def before_send(self, hop: int) -> None: ...
        def after_send(self, hop: int) -> None: ...
        def request_done(self, hop: int) -> None:
            self.done += 1

        async def on_throttled(self, ended: Any) -> None: ...

    gate = Gate()
    with pytest.raises(AttemptEnded, match="spent"):
        await fetcher.fetch(Request(url=site.url("/")), gate=gate, identity=Spent(None))
    assert gate.done == 1
    assert site.peers == []


# The environment


async def test_requests_without_an_identity_go_through_the_proxy_of_the_environment(
    site: TlsSite, tls_site: TlsSite, proxy: FaultyProxy, no_dns: list[str]
) -> None:
    proxy.username, proxy.password = "fish", "p@:/ss"
    login = "fish:p%40%3A%2Fss"
    environment = {
        "HTTP_PROXY": f"http://{login}@{proxy.source}:{proxy.port}",
        "all_proxy": f"socks5://{login}@{proxy.source}:{proxy.port}",
        "NO_PROXY": f"127.0.0.1:{tls_site.port}",
    }
    fetcher = HttpFetcher(connections=2, user_agent="shoal", environment=environment_proxies(environment))
    for each in (site, tls_site):
        each.answers["/"] = reply("<h1>there</h1>")
    try:
        assert (await fetcher.fetch(Request(url=site.url("/", "shop.test")))).status == 200
        assert (await fetcher.fetch(Request(url=tls_site.url("/", "shop.test")))).status == 200
        assert (await fetcher.fetch(Request(url=tls_site.url("/")))).status == 200
        # Credentials of an identity go the same way; its own proxy outranks the environment.
        token = Witness(None, headers={"Authorization": TOKEN})
        assert (await fetcher.fetch(Request(url=site.url("/", "shop.test")), identity=token)).status == 200
        with FaultyProxy() as own:
            assert (
                await fetcher.fetch(Request(url=site.url("/")), identity=Witness(own.address("socks5")))
            ).status == 200
            assert site.peers == [proxy.source, proxy.source, own.source]
        proxy.close()
        with pytest.raises(ExitFailed, match="refused"):
            await fetcher.fetch(Request(url=site.url("/other", "shop.test"), method="POST"))
    finally:
        await fetcher.close()
    assert tls_site.peers == [proxy.source, "127.0.0.1"]
    assert [visit.kind for visit in proxy.visits] == ["http", "socks", "http"]
