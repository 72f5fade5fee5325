"""A ledger whose calls are counted, and that can be away or slow."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, cast

from shoal.errors import LedgerUnavailable
from shoal.ledger.protocols import Ledger


class LedgerWatch:
    """`calls`: how often each call was made. `away`: all of them fail. `held`: they wait until it is set."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.away = False
        self.most_at_once = 0
        self._at_once = 0
        self.held = asyncio.Event()
        self.held.set()

    @property
    def total(self) -> int:
        return self.calls.total()

    async def call(self, name: str, function: Callable[..., Awaitable[Any]], *args: Any, **options: Any) -> Any:
        self.calls[name] += 1
        if self.away:
            raise LedgerUnavailable("The ledger at db.example does not answer.")
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            await self.held.wait()
            return await function(*args, **options)
        finally:
            self._at_once -= 1


def watch_ledger(ledger: Ledger, watch: LedgerWatch) -> Ledger:
    """The ledger, with every call seen by `watch`."""
    return cast(Ledger, _Watched(ledger, watch, ""))


class _Watched:
    def __init__(self, target: object, watch: LedgerWatch, role: str) -> None:
        self._target = target
        self._watch = watch
        self._role = role

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._target, name)
        if self._role == "" and not callable(value):
            return _Watched(value, self._watch, name)
        if not asyncio.iscoroutinefunction(value):
            return value
        if self._role == "":
            return value

        def call(*args: Any, **options: Any) -> Awaitable[Any]:
            return self._watch.call(f"{self._role}.{name}", value, *args, **options)

        return call
