"""The answers that no proper server would give."""

import asyncio
import functools
import struct
import zlib

from tests.support.website.wire import Request

_MEGABYTE = 1024 * 1024
BOMB_MEGABYTES = 200
_MOST_MEGABYTES = 512
# Nothing waits for ever, not even here.
_PATIENCE_SECONDS = 120.0
_PART = b"<p>the beginning of a page</p>\n" * 10


async def _reset(request: Request, rest: list[str]) -> None:
    """Break the connection in the middle of the body."""
    request.head(200, {"Content-Type": "text/html", "Content-Length": "100000"})
    request.raw(_PART)
    # A reset throws away what has not been read yet. This gives the other side time to see the beginning.
    await asyncio.sleep(0.05)
    request.reset()


async def _stall(request: Request, rest: list[str]) -> None:
    """Send the head and the beginning of the body, then nothing more."""
    request.head(200, {"Content-Type": "text/html", "Content-Length": "100000"})
    request.raw(_PART)
    await _wait_until_gone(request)


async def _hang(request: Request, rest: list[str]) -> None:
    """Take the request and never answer."""
    await _wait_until_gone(request)


async def _lie(request: Request, rest: list[str]) -> None:
    """/lie/long promises more than it sends, /lie/short sends more than it promised."""
    promised = {"long": len(_PART) + 1000, "short": len(_PART) - 50}[rest[0]]
    request.head(200, {"Content-Type": "text/html", "Content-Length": str(promised)})
    request.raw(_PART)
    request.close()


async def _bomb(request: Request, rest: list[str]) -> None:
    """A small gzip of 200 MB of zeros."""
    request.answer(_bomb_body(), Content_Encoding="gzip")


async def _big(request: Request, rest: list[str]) -> None:
    """/big/MB: so many megabytes, honestly announced."""
    size = int(rest[0])
    if not 0 <= size <= _MOST_MEGABYTES:
        raise ValueError(size)
    request.head(200, {"Content-Type": "text/html", "Content-Length": str(size * _MEGABYTE)})
    for _ in range(size * 16):
        request.raw(b"x" * (_MEGABYTE // 16))
        await request.flushed()


async def _wait_until_gone(request: Request) -> None:
    await asyncio.sleep(_PATIENCE_SECONDS)
    request.close()


@functools.cache
def _bomb_body() -> bytes:
    """After a full flush deflate starts afresh, so that one packed megabyte can be repeated instead of packed again."""
    zeros = bytes(_MEGABYTE)
    packer = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    block = packer.compress(zeros) + packer.flush(zlib.Z_FULL_FLUSH)
    checksum = 0
    for _ in range(BOMB_MEGABYTES):
        checksum = zlib.crc32(zeros, checksum)
    length = BOMB_MEGABYTES * _MEGABYTE
    start = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\xff"
    return start + block * BOMB_MEGABYTES + packer.flush() + struct.pack("<II", checksum, length)


ROUTES = {"reset": _reset, "stall": _stall, "hang": _hang, "lie": _lie, "bomb": _bomb, "big": _big}
