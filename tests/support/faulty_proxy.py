"""A proxy of our own that works (HTTP, CONNECT and SOCKS5 on one port), or fails in the way that a test asks for.

It runs in a thread with an event loop of its own, so that synchronous tests, and commands in other processes, can use
it too.
"""

import asyncio
import base64
import contextlib
import ipaddress
import socket
import ssl
import struct
import threading
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, Self
from urllib.parse import urlsplit

from shoal.model.egress import ProxyAddress, ProxyScheme
from tests.support.proxies import new_source

Fault = Literal["silent", "reset", "close", "garbage", "portal", "cut", "slow", "stall", "status", "reply"]

PORTAL: Final = b"<html><title>Welcome to the hotel</title><form>Room number?</form></html>"
_WAIT: Final = 30.0


@dataclass(frozen=True)
class ProxyVisit:
    """One request to the proxy. `headers`: those that the proxy itself was sent, with names in lower case.

    `connection` counts connections from 1. `target` is host:port as the client named it.
    """

    kind: Literal["http", "connect", "socks"]
    target: str
    username: str
    headers: Mapping[str, str]
    connection: int


class FaultyProxy:
    """Use it as a context. `fault` may be changed at any time, for connections that begin afterwards:

    None: it works. silent: accepts and never answers. reset, close: ends each connection before it answers. garbage: an
    answer that is not of the protocol. portal: a captive portal's page for everything. cut: the connection is reset
    after `cut_after` bytes to the client. slow: waits `delay` seconds before it answers. stall: silent after
    `cut_after` bytes. status: HTTP `status` to every request. reply: SOCKS reply `reply`. To refuse connections, call
    `close()`, and `open()` to listen again on the same port.

    `names`: where host names lead, as only this proxy knows. `username`, `password`: it wants them. `tls`: clients must
    speak TLS to it.
    """

    def __init__(
        self,
        *,
        fault: Fault | None = None,
        username: str = "",
        password: str = "",
        names: Mapping[str, str] | None = None,
        tls: ssl.SSLContext | None = None,
        source: str | None = None,
    ) -> None:
        self.fault = fault
        self.cut_after = 1_000
        self.delay = 0.5
        self.status = 502
        self.reply = 4
        self.username = username
        self.password = password
        self.names = dict(names or {})
        self.source = source or new_source()
        self.port = 0
        self.visits: list[ProxyVisit] = []
        self.connections = 0
        self._tls = tls
        self._login = ""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None] | None] = set()

    def address(self, scheme: ProxyScheme = "http") -> ProxyAddress:
        return ProxyAddress(scheme, self.source, self.port, self.username, self.password)

    def url(self, scheme: ProxyScheme = "http") -> str:
        """As a line of a proxy list, with the password."""
        login = f"{self.username}:{self.password}@" if self.username else ""
        return f"{scheme}://{login}{self.source}:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        self._run(self._end_tasks())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def open(self) -> None:
        """Listen, on the same port as before."""
        self._run(self._listen())

    def close(self) -> None:
        """Refuse connections, and reset those that are open."""
        self._run(self._close())

    def cut_connections(self) -> None:
        """Reset those that are open; new ones are accepted."""
        self._run(self._reset_all())

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, self.source, self.port, ssl=self._tls, backlog=512)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        await self._reset_all()

    async def _reset_all(self) -> None:
        for writer in [*self._open]:
            _reset(writer)

    async def _end_tasks(self) -> None:
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _run(self, what: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(what, self._loop).result(_WAIT)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._open.add(writer)
        task = asyncio.current_task()
        self._tasks.add(task)  # the event loop has weak references only
        try:
            await self._answer(reader, writer, self.connections)
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            self._open.discard(writer)
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        if self.fault == "reset":
            _reset(writer)
            return
        first = await reader.readexactly(1)
        if self.fault == "close":
            return
        if self.fault == "silent":
            await asyncio.Event().wait()
        if self.fault == "slow":
            await asyncio.sleep(self.delay)
        if self.fault == "garbage":
            writer.write(b"\x00\x01\x02 what is this? \xff\xfe" * 10)
            await writer.drain()
            return
        if first == b"\x05":
            await self._socks(reader, writer, number)
        else:
            await self._http(first, reader, writer, number)

    async def _socks(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        [count] = await reader.readexactly(1)
        methods = await reader.readexactly(count)
        username = ""
        if 2 in methods:
            # Asked for always, as Tor does: the name may be what keeps streams apart.
            writer.write(b"\x05\x02")
            _, length = await reader.readexactly(2)
            username = (await reader.readexactly(length)).decode()
            [length] = await reader.readexactly(1)
            password = (await reader.readexactly(length)).decode()
            good = not self.username or (username, password) == (self.username, self.password)
            writer.write(b"\x01\x00" if good else b"\x01\x01")
        elif self.username:
            writer.write(b"\x05\xff")
            good = False
        else:
            writer.write(b"\x05\x00")
            good = True
        if not good:
            await writer.drain()
            return
        _, _, _, kind = await reader.readexactly(4)
        if kind == 3:
            [length] = await reader.readexactly(1)
            host = (await reader.readexactly(length)).decode()
        else:
            host = str(ipaddress.ip_address(await reader.readexactly(4 if kind == 1 else 16)))
        [port] = struct.unpack(">H", await reader.readexactly(2))
        self.visits.append(ProxyVisit("socks", f"{host}:{port}", username, {}, number))
        refused = b"\x05%c\x00\x01\x00\x00\x00\x00\x00\x00"
        if self.fault in ("reply", "status"):
            writer.write(refused % self.reply)
            return
        try:
            site = await self._connect(host, port)
        except OSError as error:
            writer.write(refused % (5 if isinstance(error, ConnectionRefusedError) else 4))
            return
        writer.write(b"\x05\x00\x00\x01\x00\x00\x00\x00\x00\x00")
        await self._relay(reader, writer, *site)

    async def _http(
        self, first: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int
    ) -> None:
        method, host, port, head = await self._read_request(first, reader, number)
        if self.fault == "portal":
            await _respond(writer, 200, PORTAL)
            return
        if self.fault in ("status", "reply"):
            await _respond(writer, self.status, b"the proxy says so")
            return
        if self.username and self._login != f"{self.username}:{self.password}":
            await _respond(writer, 407, b"who are you?", b'Proxy-Authenticate: Basic realm="fish"\r\n')
            return
        try:
            site_reader, site_writer = await self._connect(host.strip("[]"), port)
        except OSError:
            await _respond(writer, 502, b"no such site")
            return
        if method == "CONNECT":
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            await self._relay(reader, writer, site_reader, site_writer)
        else:
            site_writer.write(head)
            await self._relay(reader, writer, site_reader, site_writer, number)

    async def _read_request(
        self, first: bytes, reader: asyncio.StreamReader, number: int
    ) -> tuple[str, str, int, bytes]:
        """Method, host and port of a request, and its head as a site wants it."""
        text = (first + await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        request, *lines = text.rstrip().split("\r\n")
        method, target, _ = request.split(" ")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        self._login = base64.b64decode(headers.get("proxy-authorization", "").removeprefix("Basic ")).decode()
        if method == "CONNECT":
            host, _, port = target.rpartition(":")
        else:
            parsed = urlsplit(target)
            host, port = parsed.hostname or "", str(parsed.port or 80)
        kind: Literal["connect", "http"] = "connect" if method == "CONNECT" else "http"
        self.visits.append(ProxyVisit(kind, f"{host}:{port}", self._login.partition(":")[0], headers, number))
        path = target.partition("://")[2].partition("/")[2]
        kept = [line for line in lines if not line.lower().startswith("proxy-")]
        head = "\r\n".join([f"{method} /{path} HTTP/1.1", *kept, "", ""]).encode("latin-1")
        return method, host, int(port), head

    async def _connect(self, host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host = self.names.get(host, host)
        try:
            ipaddress.ip_address(host)
        except ValueError:
            raise OSError("the proxy knows no such name") from None
        local = (self.source, 0) if ":" not in host else None
        return await asyncio.open_connection(host, port, local_addr=local)

    async def _relay(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        site_reader: asyncio.StreamReader,
        site_writer: asyncio.StreamWriter,
        number: int = 0,
    ) -> None:
        """Pass bytes on. With a number: HTTP requests without bodies, all for this site."""

        async def up() -> None:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                while data := await reader.read(1 if number else 65_536):
                    if number:
                        *_, data = await self._read_request(data, reader, number)
                    site_writer.write(data)
                    await site_writer.drain()
            site_writer.close()

        upwards = asyncio.ensure_future(up())
        left = self.cut_after if self.fault in ("cut", "stall") else None
        try:
            while data := await site_reader.read(65_536):
                writer.write(data if left is None else data[:left])
                await writer.drain()
                if left is not None:
                    left -= len(data)
                    if left <= 0:
                        if self.fault == "stall":
                            await asyncio.Event().wait()
                        _reset(writer)
                        return
        finally:
            upwards.cancel()
            site_writer.close()


def _reset(writer: asyncio.StreamWriter) -> None:
    """End a connection by RST, with what was written before it sent if possible."""
    sock: socket.socket | None = writer.get_extra_info("socket")
    if sock is not None and sock.fileno() >= 0:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport = writer.transport
    transport.abort()


async def _respond(writer: asyncio.StreamWriter, status: int, body: bytes, headers: bytes = b"") -> None:
    head = f"HTTP/1.1 {status} Proxy\r\nContent-Type: text/html\r\nContent-Length: {len(body)}\r\n".encode()
    writer.write(head + headers + b"Connection: close\r\n\r\n" + body)
    await writer.drain()
