"""A SOCKS proxy in this process that looks like Tor's: it wants user names, and logs them with the hosts."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import NamedTuple, Self

from tests.support.server import free_port


class Asked(NamedTuple):
    """A request for a connection."""

    user: str
    password: str
    host: str


class SocksServer:
    """Use it in `async with`. Every host is 127.0.0.1, at the port that was asked for.

    `reply`: the answer instead of a connection, when it is not 0. `names`: whether it takes user names.
    """

    def __init__(self) -> None:
        self.port = free_port()
        self.asked: list[Asked] = []
        self.reply = 0
        self.names = True
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)

    async def stop(self) -> None:
        """As if its process were killed: connections break, new ones are refused."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    @property
    def users(self) -> list[str]:
        return [asked.user for asked in self.asked]

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            with suppress(OSError, asyncio.IncompleteReadError):
                await self._serve(reader, writer)
        finally:
            self._serving.discard(task)
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _, count = await reader.readexactly(2)
        methods = await reader.readexactly(count)
        if not self.names or 2 not in methods:
            writer.write(b"\x05\x00" if 0 in methods else b"\x05\xff")
            await reader.read()
            return
        writer.write(b"\x05\x02")
        await reader.readexactly(1)
        user, password = [(await reader.readexactly((await reader.readexactly(1))[0])).decode() for _ in range(2)]
        writer.write(b"\x01\x00")
        *_, kind = await reader.readexactly(4)
        size = 4 if kind == 1 else (await reader.readexactly(1))[0]
        host = await reader.readexactly(size)
        port = int.from_bytes(await reader.readexactly(2), "big")
        self.asked.append(Asked(user, password, host.decode() if kind == 3 else ".".join(map(str, host))))
        writer.write(bytes([5, self.reply, 0, 1, 0, 0, 0, 0, 0, 0]))
        if self.reply:
            return
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            await asyncio.wait(
                [asyncio.create_task(_copy(reader, there_writer)), asyncio.create_task(_copy(there_reader, writer))],
                return_when="FIRST_COMPLETED",
            )
        finally:
            there_writer.transport.abort()


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await source.read(65_536):
            target.write(data)
            await target.drain()
