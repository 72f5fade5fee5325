"""Faults around every call of a ledger: an error before it, an error after it took effect, a time-out in its middle.

`with_faults(ledger, ...)` looks like the ledger. Calls of its roles fail at random; what a caller must then be able to
rely on is the contract of shoal.ledger.protocols: making the call again is safe.
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
    """An error that a test asked for."""

    def __init__(self, text: str) -> None:
        super().__init__(text, remedy="Make the call again.")


class FaultyLedger:
    """A ledger whose calls fail. `injected` counts which faults happened where."""

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
            raise InjectedFault(f"{name}: timed out on the way") from None


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
    """The ledger with faults in a share of its calls, and the count of faults met so far."""
    wrapped = FaultyLedger(ledger, rate=rate, rng=random.Random(seed))
    return cast(Ledger, wrapped), wrapped.injected


async def retry_on_fault(make: Callable[[], Awaitable[T]], *, tries: int = 200) -> T:
    """Make a call again until it answers, as a robust caller does."""
    for _ in range(tries):
        try:
            return await make()
        except InjectedFault:
            continue
    raise AssertionError(f"{tries} faults in a row")
