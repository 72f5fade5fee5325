"""A TCP relay on 127.0.0.1 that can cut its connections, or swallow what goes through them."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Self


class Relay:
    """Forwards connections to a port on 127.0.0.1. To be used in `async with`."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.connections = 0

    @property
    def port(self) -> int:
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> int:
        """Reset all connections; new ones are accepted. Returns how many there were."""
        writers, self._writers = self._writers, set()
        for writer in writers:
            writer.transport.abort()
        return len(writers) // 2

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        pair = {writer, there_writer}
        self._writers |= pair
        for source, target in ((reader, there_writer), (there_reader, writer)):
            task = asyncio.create_task(self._copy(source, target, pair))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _copy(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, pair: set[asyncio.StreamWriter]
    ) -> None:
        with suppress(OSError):
            while block := await source.read(1 << 16):
                target.write(block)
                await target.drain()
        for writer in pair:
            writer.transport.abort()
        self._writers -= pair
