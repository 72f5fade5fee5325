"""Fault injection for ledgers: an error before a call, an error after it took effect, a timeout during it.

Calls of `with_faults(ledger, ...)` fail at random. By the contract of shoal.ledger.protocols a caller may repeat them.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast

from shoal.errors import LedgerUnreachable
from shoal.ledger.protocols import Ledger

T = TypeVar("T")
ROLES = ("runs", "intake", "claims", "commits", "workers", "lanes", "settings", "steering", "reads", "upkeep")


class InjectedFault(LedgerUnreachable):
    """An injected error."""

    def __init__(self, text: str) -> None:
        super().__init__(text, remedy="Repeat the call.")


class FaultyLedger:
    """A ledger whose calls fail. `injected` counts the faults by call and kind."""

    def __init__(self, ledger: Ledger, *, rate: float, rng: random.Random) -> None:
        self.injected: Counter[str] = Counter()
        self._ledger = ledger
        self._rate = rate
        self._rng = rng
        for role in ROLES:
            setattr(self, role, _FaultyRole(self, role, getattr(ledger, role)))

    async def call(self, name: str, make: Callable[[], Awaitable[T]]) -> T:
        if self._rng.random() >= self._rate:
            return await make()
        kind = self._rng.choice(("before", "after", "timeout"))
        self.injected[f"{name} {kind}"] += 1
        if kind == "before":
            raise InjectedFault(f"{name}: error before the call")
        if kind == "after":
            await make()
            raise InjectedFault(f"{name}: error after the call took effect")
        try:
            return await asyncio.wait_for(make(), self._rng.random() * 0.003)
        except TimeoutError:
            raise InjectedFault(f"{name}: timed out") from None


class _FaultyRole:
    def __init__(self, owner: FaultyLedger, role: str, real: object) -> None:
        self._owner = owner
        self._role = role
        self._real = real

    def __getattr__(self, method: str) -> Callable[..., Awaitable[Any]]:
        real = getattr(self._real, method)

        async def call(*args: object, **kwargs: object) -> Any:
            return await self._owner.call(f"{self._role}.{method}", lambda: real(*args, **kwargs))

        return call


def with_faults(ledger: Ledger, *, rate: float, seed: int) -> tuple[Ledger, Counter[str]]:
    """The ledger with faults in a share of its calls, and the counter of injected faults."""
    wrapped = FaultyLedger(ledger, rate=rate, rng=random.Random(seed))
    return cast(Ledger, wrapped), wrapped.injected


async def retry_on_fault(make: Callable[[], Awaitable[T]], *, tries: int = 200) -> T:
    """Repeat a call until it succeeds."""
    for _ in range(tries):
        try:
            return await make()
        except InjectedFault:
            continue
    raise AssertionError(f"{tries} faults in a row")
