"""Commits finished attempts in batches; waits while the ledger's disk is full.

A ledger whose disk is full is waited for: somebody may make room, and nothing is lost meanwhile.

Finished attempts on their way to the ledger: in batches, one commit at a time, and only so many in memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from shoal.errors import LedgerFull
from shoal.model.log import Log
from shoal.model.outcome import Finished
from shoal.model.views import CommitReport

T = TypeVar("T")
NAP_SECONDS = 2.0
BATCH_ITEMS = 500
BATCH_BYTES = 8 << 20
HELD_ITEMS = 2_000
HELD_BYTES = 64 << 20
LINGER_SECONDS = 0.01

Commit = Callable[[Sequence[Finished]], Awaitable[CommitReport]]


class Space:
    """`patience`: how many seconds a call waits. `trouble`: what the ledger says while a call waits, else None."""

    def __init__(self, patience: float, log: Log) -> None:
        self._patience = patience
        self._log = log
        self._told_at = -math.inf
        self._waiting = 0
        self.trouble: str | None = None

    async def wait_for(self, call: Callable[[], Awaitable[T]]) -> T:
        """Make the call, again and again while there is no space. Raises LedgerFull when it takes too long."""
        try:
            return await call()
        except LedgerFull as error:
            first = error
        self._waiting += 1
        try:
            return await self._again(call, first)
        finally:
            self._waiting -= 1
            if not self._waiting:
                self.trouble = None

    async def _again(self, call: Callable[[], Awaitable[T]], error: LedgerFull) -> T:
        since = time.monotonic()
        while True:
            now = time.monotonic()
            if now - since > self._patience:
                raise error
            self.trouble = error.message
            if now - self._told_at >= NAP_SECONDS:  # one says it for all who wait
                self._told_at = now
                self._log.warning("the ledger's disk is full; waiting for space", error=error.message)
            await asyncio.sleep(NAP_SECONDS)
            try:
                return await call()
            except LedgerFull as again:
                error = again


class Committer:
    """Takes finished attempts and commits them. `put` waits while too many items or bytes are held: backpressure.

    A batch is whatever came in while the last commit was under way, so that a slow ledger gets larger batches and a
    fast one answers at once. Items that nobody waits for are collected a moment longer; measured, that saves a tenth of
    the time per page.
    """

    def __init__(
        self,
        commit: Commit,
        *,
        batch_items: int = BATCH_ITEMS,
        held_items: int = HELD_ITEMS,
        held_bytes: int = HELD_BYTES,
    ) -> None:
        self._commit = commit
        self._batch_items = batch_items
        self._held_items = held_items
        self._held_bytes = held_bytes
        self._waiting: deque[tuple[Finished, int]] = deque()
        self._bytes = 0
        self._count = 0
        self._some = asyncio.Event()
        self._hurry = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def held(self) -> int:
        """Attempts that have ended but are not committed yet."""
        return self._count

    async def put(self, finished: Finished, size: int, *, hurry: bool = True) -> None:
        """Hand over an attempt. `hurry`: others may be waiting for its commit, because it has a place in a lane."""
        while not self._room.is_set():
            await self._room.wait()
        self._waiting.append((finished, size))
        self._bytes += size
        self._count += 1
        if self._count >= self._held_items or self._bytes >= self._held_bytes:
            self._room.clear()
        self._empty.clear()
        self._some.set()
        if hurry or self._count >= self._batch_items:
            self._hurry.set()

    async def flushed(self) -> None:
        """Wait until everything that was put is committed."""
        self._hurry.set()
        await self._empty.wait()

    async def run(self) -> None:
        """Commit for ever; raises what the ledger raises."""
        while True:
            await self._some.wait()
            if not self._hurry.is_set():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LINGER_SECONDS):
                        await self._hurry.wait()
            self._hurry.clear()
            batch, size = self._batch()
            await self._commit(batch)
            self._bytes -= size
            self._count -= len(batch)
            if self._count < self._held_items and self._bytes < self._held_bytes:
                self._room.set()
            if not self._waiting:
                self._some.clear()
                if not self._count:
                    self._empty.set()

    def _batch(self) -> tuple[list[Finished], int]:
        batch: list[Finished] = []
        size = 0
        while self._waiting and len(batch) < self._batch_items and (not batch or size < BATCH_BYTES):
            finished, bytes_ = self._waiting.popleft()
            batch.append(finished)
            size += bytes_
        return batch, size
