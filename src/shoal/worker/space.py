"""A ledger whose disk is full is waited for: somebody may make room, and nothing is lost meanwhile."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from shoal.errors import LedgerFull
from shoal.model.log import Log

T = TypeVar("T")
NAP_SECONDS = 2.0


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
