"""Fifty HTTP proxies in one thread, each on an address of its own, from which it also connects: the site sees it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from base64 import b64encode
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager

import msgspec

from shoal.demo.stand_in import close_servers, listen

USER, PASSWORD = "swimmer", "correct-horse"
# A flaky proxy drops two connections in a row, then takes some: a client that tries once more fails too.
FLAKY_ROUND, FLAKY_DROPS = 6, 2
_HEAD_SECONDS = 10.0
_MAX_HEAD = 32 << 10


class RunningProxies(msgspec.Struct, frozen=True):
    """The addresses of proxies that run, those that are dead, and those that drop connections. All have one port."""

    port: int
    addresses: tuple[str, ...]
    dead: frozenset[str]
    flaky: frozenset[str]

    def lines(self) -> list[str]:
        """The list as a provider of proxies sells it: host:port:user:password."""
        return [f"{address}:{self.port}:{USER}:{PASSWORD}" for address in self.addresses]


@contextmanager
def serving_proxies(
    number: int = 50, *, dead: int = 5, flaky: int = 3, network: str = "127.77.1"
) -> Iterator[RunningProxies]:
    """Run proxies on the addresses NETWORK.1 and following. Dead ones are spread evenly, so are flaky ones."""
    addresses = tuple(f"{network}.{place}" for place in range(1, number + 1))
    gone = frozenset(addresses[place * number // dead] for place in range(dead)) if dead else frozenset()
    alive = [address for address in addresses if address not in gone]
    dropping = frozenset(alive[place * len(alive) // flaky] for place in range(flaky)) if flaky else frozenset()
    sockets = listen(alive, 0)
    opened: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def serve() -> None:
        closing, connections = asyncio.Event(), Counter[str]()
        servers = [
            await asyncio.start_server(_Proxy(address, connections, flaky=address in dropping).serve, sock=sock)
            for address, sock in zip(alive, sockets, strict=True)
        ]
        opened.set_result((asyncio.get_running_loop(), closing))
        await closing.wait()
        await close_servers(*servers)

    thread = threading.Thread(target=asyncio.run, args=(serve(),), name="proxies", daemon=True)
    thread.start()
    loop, closing = opened.result()
    try:
        yield RunningProxies(sockets[0].getsockname()[1], addresses, gone, dropping)
    finally:
        loop.call_soon_threadsafe(closing.set)
        thread.join()


class _Proxy:
    """One proxy: one request for each connection, by absolute URL or through a tunnel (CONNECT)."""

    def __init__(self, address: str, connections: Counter[str], *, flaky: bool) -> None:
        self._address = address
        self._connections = connections
        self._flaky = flaky
        # The event loop has weak references only: a task whose client has closed its side would be collected.
        self._tasks: set[asyncio.Task[None] | None] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections[self._address] += 1
        task = asyncio.current_task()
        self._tasks.add(task)
        try:
            if not (self._flaky and self._connections[self._address] % FLAKY_ROUND < FLAKY_DROPS):
                await self._forward(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError, ValueError):
            pass  # either side has gone, or sent nonsense
        except asyncio.CancelledError:
            writer.transport.abort()  # the proxies are shut down; what was not sent is dropped
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(_HEAD_SECONDS):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.removesuffix("\r\n\r\n").split("\r\n")
        headers = [line for line in lines if not line.lower().startswith(("proxy-", "connection:"))]
        login = "Basic " + b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        if f"proxy-authorization: {login}".lower() not in (line.lower() for line in lines):
            await _refuse(writer, "407 Proxy Authentication Required", 'Proxy-Authenticate: Basic realm="proxy"')
            return
        method, url, version = first.split(" ")
        tunnel = method == "CONNECT"
        place, _, path = (url if tunnel else url.removeprefix("http://")).partition("/")
        host, _, port = place.partition(":")
        if not host.startswith("127."):  # these proxies never leave the machine
            await _refuse(writer, "502 Bad Gateway")
            return
        site_reader, site = await asyncio.open_connection(host, int(port or 80), local_addr=(self._address, 0))
        try:
            if tunnel:
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            else:
                sent = "\r\n".join([f"{method} /{path} {version}", *headers, "Connection: close", "", ""])
                site.write(sent.encode("latin-1"))
            # The answer ends the connection; what the client still sends, such as a body, goes with it.
            sending = asyncio.create_task(_copy(reader, site))
            await _copy(site_reader, writer)
            sending.cancel()
        finally:
            site.close()


async def _refuse(writer: asyncio.StreamWriter, status: str, *headers: str) -> None:
    lines = (f"HTTP/1.1 {status}", "Content-Length: 0", "Connection: close", *headers, "", "")
    writer.write("\r\n".join(lines).encode())
    await writer.drain()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(_MAX_HEAD):
            writer.write(data)
            await writer.drain()
