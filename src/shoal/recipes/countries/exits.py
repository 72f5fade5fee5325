"""Local exits in the place of tor: a SOCKS proxy that gives each user name an address of its own of the loopback.

Public Tor cannot reach a site on this machine. As with Tor, a circuit is a user name, and a site sees the address of
its exit, which is one of 127.8.0.0/24. Connections lead to this machine only.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import struct
import threading
import zlib
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress

from shoal.demo.stand_in import close_servers

EXITS = 40
NETWORK = "127.8.0."
_WITH_NAMES, _REFUSED, _IP4, _NAME = 2, 2, 1, 3


def exit_address(user: str) -> str:
    """The address that a site sees of the circuit with this user name."""
    return f"{NETWORK}{1 + zlib.crc32(user.encode()) % EXITS}"


@contextmanager
def local_exits(port: int = 0) -> Iterator[int]:
    """Serve the exits in a thread, for the length of a block. Gives their port of 127.0.0.1; 0 takes a free one."""
    opened: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event, int]] = Future()
    thread = threading.Thread(target=lambda: asyncio.run(_serve(port, opened)), name="exits", daemon=True)
    thread.start()
    loop, closing, port = opened.result()
    try:
        yield port
    finally:
        loop.call_soon_threadsafe(closing.set)
        thread.join()


async def _serve(port: int, opened: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event, int]]) -> None:
    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(OSError, EOFError, UnicodeDecodeError, asyncio.CancelledError):
                await _connect(reader, writer)
        finally:
            writer.transport.abort()

    closing = asyncio.Event()
    try:
        server = await asyncio.start_server(accept, "127.0.0.1", port)
    except OSError as error:
        opened.set_exception(error)
        return
    opened.set_result((asyncio.get_running_loop(), closing, server.sockets[0].getsockname()[1]))
    await closing.wait()
    await close_servers(server)


async def _connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One connection, by RFC 1928 and 1929."""
    methods = await reader.readexactly((await reader.readexactly(2))[1])
    if _WITH_NAMES not in methods:
        writer.write(b"\x05\xff")
        await writer.drain()
        return
    writer.write(bytes([5, _WITH_NAMES]))
    await reader.readexactly(1)
    user, _password = [(await reader.readexactly((await reader.readexactly(1))[0])).decode() for _ in range(2)]
    writer.write(b"\x01\x00")
    host, port = await _target(reader)
    if not _is_local(host):
        writer.write(bytes([5, _REFUSED, 0, 1, 0, 0, 0, 0, 0, 0]))
        await writer.drain()
        return
    there_reader, there_writer = await asyncio.open_connection(
        host, port, local_addr=(exit_address(user), 0), family=socket.AF_INET
    )
    try:
        writer.write(bytes([5, 0, 0, 1, 0, 0, 0, 0, 0, 0]))
        copies = [asyncio.create_task(_copy(reader, there_writer)), asyncio.create_task(_copy(there_reader, writer))]
        await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
        for copy in copies:
            copy.cancel()
    finally:
        there_writer.transport.abort()


async def _target(reader: asyncio.StreamReader) -> tuple[str, int]:
    *_, kind = await reader.readexactly(4)
    if kind == _IP4:
        host = str(ipaddress.IPv4Address(await reader.readexactly(4)))
    elif kind == _NAME:
        host = (await reader.readexactly((await reader.readexactly(1))[0])).decode()
    else:
        raise EOFError("only IPv4 addresses and names are served")
    (port,) = struct.unpack("!H", await reader.readexactly(2))
    return host, port


def _is_local(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await source.read(65_536):
            target.write(data)
            await target.drain()
