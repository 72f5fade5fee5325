"""A loopback server that answers byte for byte what a test wants, and remembers what it was asked."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from time import perf_counter


@dataclass(frozen=True)
class Seen:
    """One request as it arrived."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes
    connection: int
    at: float
    peer: str = ""

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]


Answer = bytes | Callable[[Seen, asyncio.StreamWriter], Awaitable[None]]


class Site:
    """Answers by path: with the bytes given, or by calling a function that writes them.

    After a function or an answer that says `Connection: close`, the connection is closed.
    """

    def __init__(self) -> None:
        self.answers: dict[str, Answer] = {}
        self.log: list[Seen] = []
        self.open_connections = 0
        self.arrived = asyncio.Condition()
        self._connections = 0
        self._server: asyncio.Server | None = None
        self._others: list[asyncio.Server] = []
        self._serving: set[asyncio.Task[None]] = set()

    async def start(self, *other_hosts: str) -> None:
        """Answer on a port of 127.0.0.1, and on the same one of other loopback addresses."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self._others = [await asyncio.start_server(self._serve, host, self.port) for host in other_hosts]

    async def stop(self) -> None:
        assert self._server is not None
        for server in (self._server, *self._others):
            server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    @property
    def port(self) -> int:
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    def url(self, target: str, host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{target}"

    @property
    def targets(self) -> list[str]:
        return [seen.target for seen in self.log]

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until what arrived or left makes the condition true."""
        async with asyncio.timeout(5), self.arrived:
            await self.arrived.wait_for(condition)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        self.open_connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        connection = self._connections
        try:
            peer = str(writer.get_extra_info("peername")[0])
            while (seen := await _read_request(reader, connection, peer)) is not None:
                async with self.arrived:
                    self.log.append(seen)
                    self.arrived.notify_all()
                answer = self.answers.get(seen.path, reply(b"no such page", status=404))
                if not isinstance(answer, bytes):
                    await answer(seen, writer)
                    break
                head, blank_line, body = answer.partition(b"\r\n\r\n")
                writer.write(head + blank_line + (b"" if seen.method == "HEAD" else body))
                await writer.drain()
                if b"Connection: close" in head:
                    break
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()
            self._serving.discard(task)
            async with self.arrived:
                self.open_connections -= 1
                self.arrived.notify_all()


async def _read_request(reader: asyncio.StreamReader, connection: int, peer: str) -> Seen | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError:
        return None
    at = perf_counter()
    first, *lines = head.rstrip().split("\r\n")
    method, target, _ = first.split(" ")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Seen(method, target, headers, body, connection, at, peer)


def reply(
    body: str | bytes = b"", *, status: int = 200, content_type: str | None = "text/html", **headers: str | list[str]
) -> bytes:
    """A complete answer. `Set_Cookie=[...]` sends a header several times; `Content_Length=...` may lie."""
    content = body.encode() if isinstance(body, str) else body
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}"]
    if content_type is not None:
        lines.append(f"Content-Type: {content_type}")
    if "Content_Length" not in headers and "Transfer_Encoding" not in headers:
        lines.append(f"Content-Length: {len(content)}")
    for name, values in headers.items():
        for value in [values] if isinstance(values, str) else values:
            lines.append(f"{name.replace('_', '-')}: {value}")
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + content


def redirect(location: str, status: int = 302, *, set_cookie: str | None = None) -> bytes:
    cookies = [] if set_cookie is None else [set_cookie]
    return reply(b"this way", status=status, Location=location, Set_Cookie=cookies)
