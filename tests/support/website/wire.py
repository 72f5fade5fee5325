"""HTTP/1.1 by hand: a library would not let us lie about lengths or break off in the middle."""

import asyncio
import socket
import struct
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus

_LONGEST_REQUEST = 1024 * 1024
_NO_BODY = (204, 304)
_LAST_DATA_RECEIVED = 52  # offset of tcpi_last_data_recv in struct tcp_info


class Request:
    """One request, and the means to answer it in any way."""

    def __init__(self, wire: "Wire", method: str, target: str, headers: Mapping[str, str]) -> None:
        self._wire = wire
        self.method = method
        self.target = target
        self.path, _, self.query = target.partition("?")
        self.headers = headers
        self.host = wire.host
        self.peer = wire.peer
        self.connection = wire.number
        self.start = time.monotonic()
        self.arrived = self.start - seconds_in_kernel(wire.transport)
        self.end: float | None = None
        self.status = 0

    @property
    def key(self) -> str:
        """What the memory of the stateful routes goes by."""
        return self.host + self.target

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        """Send the status and exactly these headers."""
        self.status = status
        try:
            phrase = HTTPStatus(status).phrase
        except ValueError:
            phrase = "Unheard Of"
        lines = [f"HTTP/1.1 {status} {phrase}", *(f"{name}: {value}" for name, value in headers.items())]
        self.raw("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n")

    def raw(self, data: bytes) -> None:
        self._wire.transport.write(data)

    async def flushed(self) -> None:
        """Wait until the other side has taken most of what was sent."""
        await self._wire.writable.wait()

    def answer(
        self, body: bytes | str = b"", status: int = 200, kind: str = "text/html; charset=utf-8", **headers: str
    ) -> None:
        """Send a well-behaved response. `Retry_After="1"` becomes the header `Retry-After: 1`."""
        data = body.encode() if isinstance(body, str) else body
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if status in _NO_BODY:
            self.head(status, named)
            return
        self.head(status, {"Content-Type": kind, "Content-Length": str(len(data)), **named})
        if self.method != "HEAD":
            self.raw(data)

    def close(self) -> None:
        """End the connection after what was sent."""
        self._wire.transport.close()

    def reset(self) -> None:
        """End the connection at once, with a TCP reset."""
        raw_socket = self._wire.transport.get_extra_info("socket")
        raw_socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._wire.transport.abort()


def seconds_in_kernel(transport: asyncio.BaseTransport) -> float:
    """How long ago the last data came in, by TCP_INFO, to a few milliseconds. 0 where only Linux could say it."""
    if sys.platform != "linux":
        return 0.0
    info = transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 60)
    milliseconds: int = struct.unpack_from("I", info, _LAST_DATA_RECEIVED)[0]
    return milliseconds / 1000


Handler = Callable[[Request], Awaitable[None]]


class Book:
    """Every request there ever was, in the order of their starts."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.connections = 0


class Wire(asyncio.Protocol):
    """One connection: reads a request, has it answered, reads the next."""

    transport: asyncio.Transport

    def __init__(self, handler: Handler, book: Book) -> None:
        self._handler = handler
        self._book = book
        self._received = b""
        self._answering: asyncio.Task[None] | None = None
        self.writable = asyncio.Event()
        self.writable.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        # Without it the second part of an answer waits for the acknowledgement of the first, 40 ms.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.host: str = transport.get_extra_info("sockname")[0]
        peer = transport.get_extra_info("peername")
        self.peer = f"{peer[0]}:{peer[1]}"
        self._book.connections += 1
        self.number = self._book.connections

    def connection_lost(self, error: Exception | None) -> None:
        self.writable.set()
        if self._answering is not None:
            self._answering.cancel()

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def data_received(self, data: bytes) -> None:
        self._received += data
        if len(self._received) > _LONGEST_REQUEST:
            self.transport.abort()
        elif self._answering is None:
            self._next_request()

    def _next_request(self) -> None:
        """Take the next request, once it is whole, out of what was received. Its body is thrown away."""
        head, blank_line, rest = self._received.partition(b"\r\n\r\n")
        if not blank_line:
            return
        first, *lines = head.decode("latin-1").split("\r\n")
        words = first.split(" ")
        if len(words) != 3:
            self.transport.abort()
            return
        pairs = (line.partition(":") for line in lines)
        headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        length = int(headers.get("content-length", "0"))
        if len(rest) < length:
            return
        self._received = rest[length:]
        request = Request(self, words[0], words[1], headers)
        self._book.requests.append(request)
        self._answering = asyncio.get_running_loop().create_task(self._answer(request))

    async def _answer(self, request: Request) -> None:
        try:
            await self._handler(request)
        except Exception:
            self.transport.abort()
            raise
        finally:
            # In the same step as the last write: nothing that the answer brings about can be seen before this moment.
            request.end = time.monotonic()
            self._answering = None
        if not self.transport.is_closing():
            self._next_request()
