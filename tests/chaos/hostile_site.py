"""A site that is exact, slow or hostile, in a process of its own: `python -m tests.chaos.hostile_site PORT LOG`.

`/page/N` is a page whose time of arrival is exact. `/slow/N` takes a while, so that requests at once can be counted.
The other paths are pages that no worker may be stopped by; `KINDS` says how the items of each must end. It writes the
same log as the nginx beside it, which logs a request when it comes to it.
"""

from __future__ import annotations

import asyncio
import gzip
import random
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, NamedTuple, TextIO

from tests.support.website.wire import seconds_in_kernel

SLOW_SECONDS: Final = 0.3
# Workers of the campaign accept pages of this size at most.
MAX_BODY: Final = 1 << 20
_DRIP_SECONDS: Final = 120.0

Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]


class Kind(NamedTuple):
    """A hostile page: what it sends, and how its item must end (state and outcome)."""

    answer: Answer
    state: str
    outcome: str


def _head(*headers: str, status: str = "200 OK") -> bytes:
    lines = (f"HTTP/1.1 {status}", "Content-Type: text/html", "Connection: close", *headers)
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


async def _huge(writer: asyncio.StreamWriter) -> None:
    body = b"<p>" + b"x" * (3 * MAX_BODY)
    writer.write(_head(f"Content-Length: {len(body)}") + body)
    await writer.drain()


async def _endless(writer: asyncio.StreamWriter) -> None:
    """A body in chunks that never ends."""
    writer.write(_head("Transfer-Encoding: chunked"))
    block = b"10000\r\n" + b"y" * 0x10000 + b"\r\n"
    for _ in range(1_000):
        writer.write(block)
        await writer.drain()


async def _drip(writer: asyncio.StreamWriter) -> None:
    """A byte now and then, longer than anybody should wait."""
    writer.write(_head("Content-Length: 100000"))
    ends = time.monotonic() + _DRIP_SECONDS
    while time.monotonic() < ends:
        writer.write(b".")
        await writer.drain()
        await asyncio.sleep(0.25)


async def _charset(writer: asyncio.StreamWriter) -> None:
    """Bytes that are not what the header says, whose charset does not exist."""
    body = "<meta charset=utf-16><h1>grün</h1>".encode("latin-1") + bytes(range(128, 256))
    writer.write(_head("Content-Type: text/html; charset=klingon", f"Content-Length: {len(body)}") + body)


async def _nested(writer: asyncio.StreamWriter) -> None:
    body = b"<div>" * 50_000 + b"<h1>deep</h1>"
    writer.write(_head(f"Content-Length: {len(body)}") + body)


async def _garbage(writer: asyncio.StreamWriter) -> None:
    """Begins as if it were compressed, and is not."""
    body = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03" + b"\xff" * 2_000
    writer.write(_head("Content-Encoding: gzip", f"Content-Length: {len(body)}") + body)


async def _bomb(writer: asyncio.StreamWriter) -> None:
    """Small on the line, large when unpacked."""
    body = gzip.compress(bytes(64 * MAX_BODY), compresslevel=1)
    writer.write(_head("Content-Encoding: gzip", f"Content-Length: {len(body)}") + body)


async def _cut_short(writer: asyncio.StreamWriter) -> None:
    """Less than the header says, and the connection ends."""
    writer.write(_head("Content-Length: 5000") + b"<h1>half")


async def _too_long(writer: asyncio.StreamWriter) -> None:
    """More than the header says."""
    body = b"<h1>whole</h1>"
    writer.write(_head(f"Content-Length: {len(body)}") + body + b"HTTP/1.1 200 OK\r\n" * 100)


async def _no_http(writer: asyncio.StreamWriter) -> None:
    writer.write(b"220 mail.example ESMTP\r\n" + random.randbytes(500))


async def _loop(writer: asyncio.StreamWriter) -> None:
    """Redirects to itself."""
    writer.write(_head("Location: ?again", "Content-Length: 0", status="302 Found"))


async def _headers(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n" + b"".join(b"X-%d: %s\r\n" % (n, b"z" * 1000) for n in range(500)) + b"\r\n")


KINDS: Final = {
    "huge": Kind(_huge, "dead", "permanent"),
    "endless": Kind(_endless, "dead", "permanent"),
    "drip": Kind(_drip, "dead", "transient"),
    "charset": Kind(_charset, "done", "done"),
    "nested": Kind(_nested, "dead", "permanent"),
    "garbage": Kind(_garbage, "dead", "transient"),
    "bomb": Kind(_bomb, "dead", "permanent"),
    "short": Kind(_cut_short, "dead", "transient"),
    "long": Kind(_too_long, "dead", "transient"),
    "mail": Kind(_no_http, "dead", "transient"),
    "loop": Kind(_loop, "dead", "permanent"),
    "headers": Kind(_headers, "dead", "transient"),
}


class HostileSite:
    def __init__(self, log: TextIO) -> None:
        self._log = log

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server, remote = writer.get_extra_info("sockname")[0], writer.get_extra_info("peername")[0]
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                # When the kernel had it: on a busy machine, this process may come to it much later.
                began = time.time() - seconds_in_kernel(writer.transport)
                path = head.split(b" ", 2)[1].decode("latin-1")
                status = 200
                try:
                    status, goes_on = await self._answer(path, reader, writer)
                finally:
                    ended = time.time()
                    self._log.write(f"{ended:.3f} {ended - began:.3f} {status} {server} {remote} {path}\n")
                if not goes_on:
                    return
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.close()

    async def _answer(self, path: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[int, bool]:
        """Returns the status, and whether the connection is kept."""
        name = path.split("/")[1].partition("?")[0]
        if name in ("slow", "page"):
            if name == "slow" and await _has_left(reader, SLOW_SECONDS):
                return 499, False
            body = f"<h1>{path}</h1>".encode()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            await writer.drain()
            return 200, True
        if name not in KINDS:
            writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
            return 404, True
        await KINDS[name].answer(writer)
        await writer.drain()
        return 200, False


async def _has_left(reader: asyncio.StreamReader, seconds: float) -> bool:
    """Wait, and see whether the client has closed the connection before."""
    try:
        async with asyncio.timeout(seconds):
            await reader.read(1)
    except TimeoutError:
        return False
    return True


async def main(port: int, log: Path) -> None:
    with log.open("a", buffering=1) as file:
        async with await asyncio.start_server(HostileSite(file).serve, "0.0.0.0", port, backlog=1024) as server:
            await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), Path(sys.argv[2])))
