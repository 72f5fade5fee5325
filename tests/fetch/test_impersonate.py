"""client="chrome": what a site sees of it, and what it does differently from the plain client."""

import asyncio
import shutil
import signal
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass

import brotli
import pytest
import zstandard

from shoal.errors import Permanent, Throttled, Transient
from shoal.fetch import impersonate
from shoal.fetch.http import HttpFetcher
from shoal.fetch.impersonate import ImpersonatingFetcher
from shoal.fetch.page import Request
from shoal.model.egress import ProxyAddress
from tests.support import MissingPartError, missing
from tests.support.account import Account
from tests.support.binaries import proxy_program
from tests.support.certificates import Certificate
from tests.support.faulty_proxy import FaultyProxy
from tests.support.raw_site import Seen, Site, reply
from tests.support.server import ServerProcess, free_port

TEXT = b"<p>page</p>" * 5_000
# The cipher suites of Chrome 83 and later, without GREASE.
CHROME_CIPHERS = [
    *(0x1301, 0x1302, 0x1303, 0xC02B, 0xC02F, 0xC02C, 0xC030, 0xCCA9, 0xCCA8),
    *(0xC013, 0xC014, 0x009C, 0x009D, 0x002F, 0x0035),
]
ALPN, SUPPORTED_VERSIONS, COMPRESS_CERTIFICATE, APPLICATION_SETTINGS, ECH = 16, 43, 27, 17613, 65037


@dataclass
class Identity:
    """Adds nothing to its requests."""

    key: str
    proxy: ProxyAddress | None = None

    async def before_request(self, url: str, hop: int) -> Mapping[str, str]:
        return {}

    def on_response(self, url: str, status: int, headers: Mapping[str, str]) -> None:
        pass


class OpenGate:
    """Lets everything pass."""

    async def before_request(self, url: str, hop: int) -> None:
        pass

    async def before_send(self, hop: int) -> None:
        pass

    def after_send(self, hop: int) -> None:
        pass

    def request_done(self, hop: int) -> None:
        pass

    async def on_redirect(self, url: str, method: str) -> None:
        pass

    async def on_throttled(self, ended: Throttled) -> None:
        pass


@pytest.fixture
def client() -> type[HttpFetcher]:
    return ImpersonatingFetcher


@dataclass
class ClientHello:
    """The first message of a TLS client. GREASE: values that only clients of the Chrome family send."""

    ciphers: list[int]
    extensions: dict[int, bytes]

    @classmethod
    def parse(cls, record: bytes) -> "ClientHello":
        at = 5 + 4 + 2 + 32  # the headers of record and handshake, the version, the random bytes
        at += 1 + record[at]
        size = int.from_bytes(record[at : at + 2])
        ciphers = list(struct.unpack(f">{size // 2}H", record[at + 2 : at + 2 + size]))
        at += 2 + size
        at += 1 + record[at] + 2
        extensions = {}
        while at < len(record):
            kind, length = struct.unpack(">HH", record[at : at + 4])
            extensions[kind] = record[at + 4 : at + 4 + length]
            at += 4 + length
        return cls(ciphers, extensions)

    @property
    def protocols(self) -> list[bytes]:
        data, found = self.extensions[ALPN][2:], []
        while data:
            found.append(data[1 : 1 + data[0]])
            data = data[1 + data[0] :]
        return found


def is_grease(value: int) -> bool:
    return value & 0x0F0F == 0x0A0A and value >> 8 == value & 0xFF


@pytest.fixture
async def hellos() -> AsyncIterator[tuple[str, list[ClientHello]]]:
    """The URL of a server that reads the ClientHello of each connection and closes it."""
    seen: list[ClientHello] = []

    async def record(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        header = await reader.readexactly(5)
        seen.append(ClientHello.parse(header + await reader.readexactly(int.from_bytes(header[3:]))))
        writer.close()

    server = await asyncio.start_server(record, "127.0.0.1", 0)
    yield f"https://localhost:{server.sockets[0].getsockname()[1]}/", seen
    server.close()


async def test_the_tls_handshake_is_that_of_chrome(hellos: tuple[str, list[ClientHello]], fetcher: HttpFetcher) -> None:
    """S3.6: ciphers, extensions and ALPN; Python's own handshake has none of these signs."""
    url, seen = hellos
    plain = HttpFetcher(connections=1, user_agent="shoal/0.1")
    for client in (fetcher, fetcher, plain):
        with pytest.raises(Transient, match=r"TLS handshake failed: connection closed|no connection: connectionreset"):
            await client.fetch(Request(url=url))
    await plain.close()
    *chrome, python = seen
    for hello in chrome:
        assert is_grease(hello.ciphers[0])
        assert hello.ciphers[1:] == CHROME_CIPHERS
        assert hello.protocols == [b"h2", b"http/1.1"]
        assert hello.extensions.keys() >= {SUPPORTED_VERSIONS, COMPRESS_CERTIFICATE, APPLICATION_SETTINGS, ECH}
        assert sum(map(is_grease, hello.extensions)) == 2
    assert [*chrome[0].extensions] != [*chrome[1].extensions], "Chrome shuffles them"
    assert python.ciphers != CHROME_CIPHERS
    assert not any(map(is_grease, [*python.ciphers, *python.extensions]))


async def test_headers_are_those_of_chrome_in_its_order(tls_site: Site, site: Site, fetcher: HttpFetcher) -> None:
    for each in (tls_site, site):
        each.answers["/"] = reply("ok", Set_Cookie="a=b")
        for _ in range(2):
            await fetcher.fetch(Request(url=each.url("/"), headers={"Accept-Language": "de"}), jar="one")
    secure, plain = tls_site.log[1].headers, site.log[1].headers
    assert list(secure) == [
        *("host", "sec-ch-ua", "sec-ch-ua-mobile", "sec-ch-ua-platform", "upgrade-insecure-requests", "user-agent"),
        *("accept", "sec-fetch-site", "sec-fetch-mode", "sec-fetch-user", "sec-fetch-dest", "accept-encoding"),
        *("accept-language", "cookie"),
    ]
    assert secure["accept-encoding"] == "gzip, deflate, br, zstd"
    # Without TLS, Chrome sends no hints and accepts less.
    assert list(plain) == [
        *("host", "connection", "upgrade-insecure-requests", "user-agent", "accept", "accept-encoding"),
        *("accept-language", "cookie"),
    ]
    assert plain["accept-encoding"] == "gzip, deflate"
    for headers in (secure, plain):
        assert (headers["accept-language"], headers["cookie"]) == ("de", "a=b")
        assert "Chrome/" in headers["user-agent"]
        assert "hoal" not in str(headers)


class TlsSite(Site):
    def __init__(self, context: ssl.SSLContext) -> None:
        super().__init__()
        self._context = context

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._context)

    def url(self, target: str, host: str = "localhost") -> str:
        return f"https://{host}:{self.port}{target}"


@pytest.fixture
async def tls_site(certificate: Certificate, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    """A site whose certificate is trusted by fetchers that are made after it."""
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate.path))
    site = TlsSite(certificate.server)
    await site.start()
    yield site
    await site.stop()


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("br", brotli.compress(TEXT)),
        ("zstd", zstandard.compress(TEXT)),
        ("ZSTD", zstandard.compress(TEXT[:999]) + zstandard.compress(TEXT[999:])),
    ],
)
async def test_bodies_that_only_browsers_accept(site: Site, fetcher: HttpFetcher, encoding: str, body: bytes) -> None:
    site.answers |= {
        "/": reply(body, Content_Encoding=encoding),
        "/short": reply(body[:-5], Content_Encoding=encoding),
        "/broken": reply(body[:20] + b"nonsense" * 9, Content_Encoding=encoding),
        "/empty": reply(b"", Content_Encoding=encoding),
    }
    assert (await fetcher.fetch(Request(url=site.url("/")))).body == TEXT
    assert (await fetcher.fetch(Request(url=site.url("/empty")))).body == b""
    for path in ("/short", "/broken"):
        with pytest.raises(Transient, match=r"the compressed body (is broken|ends too early)"):
            await fetcher.fetch(Request(url=site.url(path)))
    with pytest.raises(Permanent, match="larger than 1000 bytes"):
        await fetcher.fetch(Request(url=site.url("/")), max_body=1000)


async def test_connections_belong_to_an_identity(site: Site, fetcher: HttpFetcher) -> None:
    site.answers["/"] = reply("ok")
    for key in (None, "a", "b", "a", None, "b"):
        await fetcher.fetch(Request(url=site.url("/")), identity=None if key is None else Identity(key))
    assert [seen.connection for seen in site.log] == [1, 2, 3, 2, 1, 3]


async def test_connections_of_many_identities_are_closed_again(
    site: Site, fetcher: HttpFetcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(impersonate, "MAX_IDLE", 5)
    site.answers["/"] = reply("ok")
    for number in range(20):
        await fetcher.fetch(Request(url=site.url("/")), identity=Identity(str(number)))
    await site.until(lambda: site.open_connections <= 5)
    await fetcher.fetch(Request(url=site.url("/")), identity=Identity("19"))
    assert site.log[-1].connection == site.log[-2].connection, "the last one was kept"


async def test_an_unread_stream_holds_the_site_back(site: Site, fetcher: HttpFetcher) -> None:
    """Memory stays bounded: the site cannot send more than the buffers of both sides take."""
    sent = 0
    blocked = asyncio.Event()

    async def endless(seen: Seen, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(reply(b"", content_type="x/y", Content_Length=str(1 << 40)))
        while sent < 256 << 20:
            writer.write(bytes(1 << 20))
            sent += 1 << 20
            try:
                async with asyncio.timeout(1.0):
                    await writer.drain()
            except TimeoutError:
                blocked.set()
                await writer.drain()

    site.answers["/"] = endless
    async with fetcher.stream(Request(url=site.url("/"))) as stream:
        assert stream.content_length == 1 << 40
        received = len(await stream.read())
        async with asyncio.timeout(60):
            await blocked.wait()
        before = sent
        while sent < before + (20 << 20):
            received += len(await stream.read())
    assert 0 < received <= sent
    await site.until(lambda: site.open_connections == 0)


async def test_the_proxies_of_the_environment_are_not_read_by_libcurl(
    site: Site, fetcher: HttpFetcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    site.answers["/"] = reply("ok")
    assert (await fetcher.fetch(Request(url=site.url("/")))).text == "ok"


NGINX = """\
daemon off;
pid {folder}/nginx.pid;
error_log stderr warn;
events {{ worker_connections 100; }}
http {{
  access_log off;
  {temporary}
  server {{
    listen 127.0.0.1:{port} ssl http2;
    ssl_certificate {folder}/certificate.pem;
    ssl_certificate_key {folder}/key.pem;
    location / {{ return 200 "$server_protocol $connection"; }}
  }}
}}
"""


@pytest.fixture
def http2_site(certificate: Certificate, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of an nginx that answers with the protocol and the number of the connection."""
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate.path))
    account, port = Account.unprivileged(), free_port()
    try:
        program = proxy_program("nginx")
    except MissingPartError as error:
        missing(str(error))
    folder = account.scratch_folder("shoal-nginx-")
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    temporary = " ".join(f"{kind}_temp_path {folder / kind};" for kind in kinds)
    (folder / "nginx.conf").write_text(NGINX.format(folder=folder, port=port, temporary=temporary))
    for file in (certificate.path, certificate.key):
        shutil.copy(file, folder)
        account.give(folder / file.name)
    process = ServerProcess(
        [str(program), "-c", str(folder / "nginx.conf"), "-p", str(folder), "-e", "stderr"],
        account=account,
        folder=folder,
        farewell=signal.SIGTERM,
    )

    def is_listening() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    process.wait_until(is_listening)
    yield f"https://localhost:{port}/"
    process.stop(signal.SIGTERM)
    shutil.rmtree(folder)


class SendingGate(OpenGate):
    """Counts the connections of the proxy at the time when a request may be sent."""

    def __init__(self, proxy: FaultyProxy) -> None:
        self._proxy = proxy
        self.connections: list[int] = []

    async def before_send(self, hop: int) -> None:
        self.connections.append(len(self._proxy.visits))


async def test_http2_is_spoken_on_one_connection_that_is_open_when_the_gate_is_asked(
    http2_site: str, fetcher: HttpFetcher
) -> None:
    requests = [Request(url=f"{http2_site}{number}") for number in range(8)]
    pages = await asyncio.gather(*(fetcher.fetch(request) for request in requests))
    assert len({page.text for page in pages}) == 1
    assert pages[0].text.startswith("HTTP/2.0 ")
    with FaultyProxy(names={"localhost": "127.0.0.1"}) as proxy:
        gate = SendingGate(proxy)
        for key in ("a", "a", "b"):
            identity = Identity(key, proxy.address("socks5"))
            await fetcher.fetch(requests[0], gate=gate, identity=identity)
        assert gate.connections == [1, 1, 2], "the tunnel was not open when the start was asked for"
