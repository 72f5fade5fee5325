"""Invalid bodies and faulty servers: each gives one clear sentence and affects nothing else."""

import asyncio
import gzip
import socket
import ssl
import subprocess
import sys
import zlib

import pytest

from shoal.errors import Permanent, Transient
from shoal.fetch.http import HttpFetcher
from shoal.fetch.impersonate import ImpersonatingFetcher
from shoal.fetch.page import Request
from tests.fetch.conftest import both_clients
from tests.support.raw_site import Seen, Site, reply

pytestmark = both_clients
TEXT = b"<p>page</p>" * 500


def _bare_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


def _chunked(*chunks: bytes) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in (*chunks, b""))


def packed(text: bytes) -> bytes:
    """Without the time: a parameter must be the same in every process that collects it."""
    return gzip.compress(text, mtime=0)


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("gzip", packed(TEXT)),
        ("X-GZIP", packed(TEXT)),
        ("gzip", packed(TEXT[:999]) + packed(TEXT[999:])),
        ("gzip", packed(TEXT) + b"\0\0\0 padding"),
        ("deflate", zlib.compress(TEXT)),
        ("deflate", _bare_deflate(TEXT)),
        ("identity", TEXT),
    ],
)
@pytest.mark.parametrize("chunked", [False, True])
async def test_compressed_bodies(site: Site, fetcher: HttpFetcher, encoding: str, body: bytes, chunked: bool) -> None:
    if chunked:
        pieces = [body[at : at + 50] for at in range(0, len(body), 50)]
        site.answers["/"] = reply(_chunked(*pieces), Content_Encoding=encoding, Transfer_Encoding="chunked")
    else:
        site.answers["/"] = reply(body, Content_Encoding=encoding)
    for _ in range(2):
        assert (await fetcher.fetch(Request(url=site.url("/")))).body == TEXT
    assert {seen.connection for seen in site.log} == {1}, "the connection was not kept"


async def test_an_empty_body_with_a_content_encoding_is_empty(site: Site, fetcher: HttpFetcher) -> None:
    site.answers["/"] = reply(b"", Content_Encoding="gzip")
    assert (await fetcher.fetch(Request(url=site.url("/")))).body == b""


@pytest.mark.parametrize("body", [packed(TEXT)[:-20], b"<html>not gzip at all", packed(TEXT)[:40] + TEXT])
async def test_a_broken_compressed_body_is_transient(site: Site, fetcher: HttpFetcher, body: bytes) -> None:
    site.answers["/"] = reply(body, Content_Encoding="gzip")
    with pytest.raises(Transient, match=r"the compressed body (is broken|ends too early)"):
        await fetcher.fetch(Request(url=site.url("/")))


async def test_a_content_encoding_that_was_not_accepted_is_permanent(site: Site, fetcher: HttpFetcher) -> None:
    site.answers["/"] = reply(b"\x0b\x02\x80", Content_Encoding="compress")
    with pytest.raises(Permanent, match="encoding 'compress'"):
        await fetcher.fetch(Request(url=site.url("/")))


async def test_a_declared_size_above_the_cap_is_refused_before_reading(site: Site, fetcher: HttpFetcher) -> None:
    async def never_ends(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(reply(b"x" * 10, Content_Length="2000000"))
        await asyncio.Event().wait()

    site.answers["/"] = never_ends
    with pytest.raises(Permanent, match=r"/ is larger than 1048576 bytes"):
        await fetcher.fetch(Request(url=site.url("/")))
    with pytest.raises(Permanent, match=r"/ is larger than 1999999 bytes"):
        await fetcher.fetch(Request(url=site.url("/")), max_body=1_999_999)


async def test_an_endless_body_is_cut_off_at_the_cap(site: Site, fetcher: HttpFetcher) -> None:
    async def endless(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(reply(b"", Transfer_Encoding="chunked"))
        while True:
            writer.write(b"1000\r\n" + b"x" * 4096 + b"\r\n")
            await writer.drain()

    site.answers["/"] = endless
    with pytest.raises(Permanent, match=r"larger than 1048576 bytes"):
        await fetcher.fetch(Request(url=site.url("/")))
    await site.until(lambda: site.open_connections == 0)
    page = await fetcher.fetch(Request(url=site.url("/"), truncate=True), max_body=5000)
    assert page.body == b"x" * 5000
    await site.until(lambda: site.open_connections == 0)


@pytest.mark.parametrize("size", [1000, 1001])
async def test_the_cap_is_exact(site: Site, fetcher: HttpFetcher, size: int) -> None:
    site.answers |= {
        "/plain": reply(b"x" * size),
        "/gzip": reply(packed(b"x" * size), Content_Encoding="gzip"),
        "/chunked": reply(_chunked(b"x" * size), Transfer_Encoding="chunked"),
    }
    for path in site.answers:
        if size == 1000:
            assert len((await fetcher.fetch(Request(url=site.url(path)), max_body=1000)).body) == 1000
        else:
            with pytest.raises(Permanent, match="larger than 1000 bytes"):
                await fetcher.fetch(Request(url=site.url(path)), max_body=1000)


BOMB_SCRIPT = """
import asyncio, importlib, resource, sys
from shoal.errors import Permanent
from shoal.fetch.page import Request

async def main(url, module, client):
    fetcher = getattr(importlib.import_module(module), client)(connections=1, user_agent="shoal/0.1", max_body=8 << 20)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        await fetcher.fetch(Request(url=url))
    except Permanent as ended:
        print(ended)
    print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
    await fetcher.close()

asyncio.run(main(*sys.argv[1:]))
"""


async def test_a_zip_bomb_stays_small(site: Site, client: type[HttpFetcher]) -> None:
    """One gigabyte of zeros in one megabyte of gzip, made from repeated blocks."""
    packer = zlib.compressobj(9, wbits=31)
    header = packer.compress(b"") + packer.flush(zlib.Z_FULL_FLUSH)
    megabyte = packer.compress(bytes(1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)
    site.answers["/bomb"] = reply(header + megabyte * 1024, Content_Encoding="gzip")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", BOMB_SCRIPT, site.url("/bomb"), client.__module__, client.__name__),
        stdout=subprocess.PIPE,
    )
    output, _ = await process.communicate()
    message, grown_megabytes = output.decode().splitlines()
    assert message == f"{site.url('/bomb')} is larger than {8 << 20} bytes"
    assert int(grown_megabytes) < 40


async def test_a_body_shorter_than_declared_is_transient(site: Site, fetcher: HttpFetcher) -> None:
    site.answers["/"] = reply(b"short", Content_Length="500", Connection="close")
    with pytest.raises(
        Transient, match=f"127.0.0.1:{site.port}: the body is not complete: the connection closed early"
    ):
        await fetcher.fetch(Request(url=site.url("/")))


async def test_a_chunked_body_that_breaks_off_is_transient(site: Site, fetcher: HttpFetcher) -> None:
    site.answers["/"] = reply(b"5\r\nhello\r\n", Transfer_Encoding="chunked", Connection="close")
    with pytest.raises(Transient, match="the body is not complete"):
        await fetcher.fetch(Request(url=site.url("/")))


async def test_a_body_longer_than_declared_is_transient(
    site: Site, fetcher: HttpFetcher, client: type[HttpFetcher]
) -> None:
    site.answers |= {"/liar": reply(b"0123456789", Content_Length="4"), "/next": reply("next")}
    if client is ImpersonatingFetcher:  # as browsers do, it takes what was declared
        assert (await fetcher.fetch(Request(url=site.url("/liar")))).body == b"0123"
    else:
        with pytest.raises(Transient, match="the response is not valid HTTP"):
            await fetcher.fetch(Request(url=site.url("/liar")))
    assert (await fetcher.fetch(Request(url=site.url("/next")))).text == "next"


async def test_bytes_behind_the_declared_body_do_not_affect_the_next_page(site: Site, fetcher: HttpFetcher) -> None:
    read = asyncio.Event()
    written = asyncio.Event()

    async def liar(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(reply(b"0123", Content_Length="4"))
        await read.wait()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nwrong")
        await writer.drain()
        written.set()
        await asyncio.Event().wait()

    site.answers |= {"/liar": liar, "/next": reply("next")}
    assert (await fetcher.fetch(Request(url=site.url("/liar")))).body == b"0123"
    read.set()
    await written.wait()
    async with asyncio.timeout(60):
        assert (await fetcher.fetch(Request(url=site.url("/next")))).text == "next"


async def test_a_reset_is_transient(site: Site, fetcher: HttpFetcher) -> None:
    async def resets(seen: Seen, writer: asyncio.StreamWriter) -> None:
        raw: socket.socket = writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        writer.transport.abort()

    site.answers["/"] = resets
    with pytest.raises(Transient, match=f"127.0.0.1:{site.port}: .*(reset by peer|without an answer)"):
        await fetcher.fetch(Request(url=site.url("/")))


@pytest.mark.parametrize("begun", [b"", reply(b"beginning", Content_Length="100")])
async def test_a_stalled_response_is_transient(site: Site, client: type[HttpFetcher], begun: bytes) -> None:
    async def stalls(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(begun)
        await asyncio.Event().wait()

    site.answers["/"] = stalls
    fetcher = client(connections=1, user_agent="shoal/0.1", idle_timeout=0.1)
    with pytest.raises(Transient, match=f"127.0.0.1:{site.port}: the site stopped answering"):
        await fetcher.fetch(Request(url=site.url("/")))
    await fetcher.close()


async def test_an_invalid_http_response_is_transient(site: Site, fetcher: HttpFetcher) -> None:
    site.answers |= {"/a": b"220 mail.example ESMTP\r\n\r\n", "/b": b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n"}
    for path in ("/a", "/b"):
        with pytest.raises(Transient, match=r"the response is not valid HTTP: \w+"):
            await fetcher.fetch(Request(url=site.url(path)))


async def test_long_headers_are_read(site: Site, fetcher: HttpFetcher) -> None:
    site.answers["/"] = reply("ok", Content_Security_Policy="x" * 30_000)
    assert len((await fetcher.fetch(Request(url=site.url("/")))).headers["Content-Security-Policy"]) == 30_000


async def test_a_refused_connection_is_transient(fetcher: HttpFetcher) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    with pytest.raises(Transient, match=f"127.0.0.1:{port}: no connection: connection refused"):
        await fetcher.fetch(Request(url=f"http://127.0.0.1:{port}/"))


async def test_an_unknown_host_is_transient(fetcher: HttpFetcher, monkeypatch: pytest.MonkeyPatch) -> None:
    # Stands in for the resolver, so that no query leaves this machine. libcurl looks up no name that ends so.
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(
        Transient, match=r"nowhere\.onion: the host name could not be resolved: name or service not known"
    ):
        await fetcher.fetch(Request(url="http://nowhere.onion/"))


async def test_a_name_that_cannot_be_looked_up_is_permanent(fetcher: HttpFetcher) -> None:
    with pytest.raises(Permanent, match=r"is not a valid host name"):
        await fetcher.fetch(Request(url=f"http://{'x' * 70}.test/"))


async def test_plain_http_behind_https_is_transient(site: Site, fetcher: HttpFetcher) -> None:
    async def speaks_no_tls(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(speaks_no_tls, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(Transient, match=f"127.0.0.1:{port}: the TLS handshake failed: wrong version number"):
        await fetcher.fetch(Request(url=f"https://127.0.0.1:{port}/"))
    server.close()


async def test_a_certificate_that_cannot_be_verified_is_transient_and_named(
    fetcher: HttpFetcher, self_signed: ssl.SSLContext
) -> None:
    async def greets(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(greets, "127.0.0.1", 0, ssl=self_signed)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(Transient, match=f"127.0.0.1:{port}: the certificate could not be verified: self.signed"):
        await fetcher.fetch(Request(url=f"https://127.0.0.1:{port}/"))
    server.close()
