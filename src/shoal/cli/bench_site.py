"""`python -m shoal.cli.bench_site`: the site that `shoal bench` visits, in a process of its own.

It answers every request with the same small page, prints its port, and ends when its stdin does.
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


class _Answering(asyncio.Protocol):
    """As little work as a server can do, so that the visitor is what is measured."""

    _transport: asyncio.WriteTransport
    _received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)

    def data_received(self, data: bytes) -> None:
        *whole, self._received = (self._received + data).split(_END_OF_REQUEST)
        self._transport.write(_ANSWER * len(whole))


async def serve() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(_Answering, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    server.close()


if __name__ == "__main__":
    try:
        import uvloop
    except ImportError:  # there is none for Windows
        asyncio.run(serve())
    else:
        uvloop.run(serve())
