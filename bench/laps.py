"""Contenders that keep going: each has its own ledger open and does a lap of about a second when its turn comes.

Laps in turn make ratios hold on a noisy machine: neighbours that are busy for a while slow all contenders, not one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack
from types import TracebackType
from typing import Self

import asyncpg

from bench import bare_sqlite, consumer
from bench.bare_postgres import BareLoop
from bench.loops import COMMITS_IN_FLIGHT, pipelined, sequential

Lap = Callable[[int], float]
"""Does so many items and returns the seconds they took."""


class LapTrack:
    """Opens contenders and closes them all at the end. Each has an event loop of its own, which rests between laps."""

    def __enter__(self) -> Self:
        self._stack = ExitStack()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def shoal(self, address: str, *, ahead: bool) -> Lap:
        runner, opened = self._loop()
        worker = runner.run(opened.enter_async_context(consumer.consumer(address)))
        loop = pipelined if ahead else sequential
        return lambda items: runner.run(loop(worker.claim, worker.commit, items))

    def bare_postgres(self, url: str, *, ahead: bool) -> Lap:
        runner, opened = self._loop()
        connections = [runner.run(_connect(opened, url)) for _ in range(1 + COMMITS_IN_FLIGHT if ahead else 1)]
        bare = BareLoop(connections, consumer.BATCH)
        loop = pipelined if ahead else sequential
        return lambda items: runner.run(loop(bare.claim, bare.commit, items))

    def bare_sqlite(self, path: str) -> Lap:
        bare = bare_sqlite.BareLoop(path)
        self._stack.callback(bare.close)
        return lambda items: bare.seconds(items, consumer.BATCH)

    def _loop(self) -> tuple[asyncio.Runner, AsyncExitStack]:
        runner = self._stack.enter_context(asyncio.Runner())
        opened = AsyncExitStack()
        self._stack.callback(lambda: runner.run(opened.aclose()))
        return runner, opened


async def _connect(opened: AsyncExitStack, url: str) -> asyncpg.Connection:
    connection = await asyncpg.connect(url)
    opened.push_async_callback(connection.close)
    return connection
