"""`python -m shoal.service.bench_site`: the site that `shoal bench` visits.

It answers every request with the same small page, prints its port, and exits when its stdin is closed.
"""

from __future__ import annotations

import asyncio
import sys
from typing import cast

_BODY = b"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>A small page</title></head>
<body><h1>A small page</h1><p>%s</p><p><a href="/next">Next</a></p></body></html>
""" % (b"It says little, at some length. " * 25)
_ANSWER = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: %d\r\n\r\n" % len(_BODY)
) + _BODY
_END_OF_REQUEST = b"\r\n\r\n"


class _PageProtocol(asyncio.Protocol):
    """Does as little work as a server can: the client is what is measured."""

    _transport: asyncio.WriteTransport
    _received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)

    def data_received(self, data: bytes) -> None:
        *requests, self._received = (self._received + data).split(_END_OF_REQUEST)
        self._transport.write(_ANSWER * len(requests))


async def serve() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(_PageProtocol, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    server.close()


if __name__ == "__main__":
    try:
        import uvloop
    except ImportError:  # not available on Windows
        asyncio.run(serve())
    else:
        uvloop.run(serve())
