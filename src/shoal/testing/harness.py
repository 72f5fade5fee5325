"""A ledger under test with a movable clock, and fault injection.

Calls of `with_faults(ledger, ...)` fail at random: before they take effect, after it, or by a timeout. By the contract
of shoal.ledger.protocols a caller may repeat them.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar, cast

from shoal.errors import LedgerUnreachable
from shoal.ledger.protocols import Ledger
from shoal.model.item import ClaimedItem, NewItem
from shoal.model.lane import LanePolicy
from shoal.model.outcome import DONE, AttemptDecision, DecisionKind, FinishedAttempt, OutcomeClass
from shoal.model.record_key import RecordKey, RecordScope, record_key_hash
from shoal.model.run import Run, RunSpec, StageSpec
from shoal.model.views import CommitReport, ItemView
from shoal.model.worker import Scope, WorkerSpec

T = TypeVar("T")
ROLES = (
    "runs",
    "intake",
    "claims",
    "commits",
    "changes",
    "workers",
    "lanes",
    "exits",
    "budgets",
    "settings",
    "steering",
    "reads",
    "failures",
    "upkeep",
)


class LedgerHarness:
    """A ledger under test.

    `advance_clock(seconds)` moves the ledger's clock; `open_again()` opens the same ledger as another process would.
    """

    def __init__(
        self,
        ledger: Ledger,
        *,
        advance_clock: Callable[[float], Awaitable[None]],
        open_again: Callable[[], Awaitable[Ledger]],
    ) -> None:
        self.ledger = ledger
        self.advance_clock = advance_clock
        self.open_again = open_again
        self._names = itertools.count(1)

    async def run(
        self,
        *stages: str,
        scraper: str = "shop",
        lane: LanePolicy | None = None,
        max_attempts: int = 4,
        max_rescues: int = 3,
        code_version: str | None = None,
    ) -> Run:
        names = stages or ("page",)
        policy = lane or LanePolicy(limit=1)
        return await self.ledger.runs.create(
            RunSpec(
                scraper=scraper,
                stages=tuple(StageSpec(name, lane=policy) for name in names),
                max_attempts=max_attempts,
                max_rescues=max_rescues,
                code_version=code_version,
            )
        )

    async def worker(self, *, lease_seconds: float = 30.0, scope: Scope | None = None) -> str:
        name = f"node-{next(self._names)}"
        await self.ledger.workers.register(
            WorkerSpec(id=name, node="node", pid=1, lease_seconds=lease_seconds, scope=scope or Scope())
        )
        return name

    async def put(self, run: Run, *keys: str, **fields: object) -> None:
        """Enqueue items by key, all with the same other fields."""
        items = [NewItem(key=key, **fields) for key in keys]  # type: ignore[arg-type]
        report = await self.ledger.intake.enqueue(run.id, items)
        assert report.enqueued == len(keys), report

    async def claim(self, worker: str, limit: int = 100, scope: Scope | None = None) -> list[ClaimedItem]:
        return await self.ledger.claims.claim(worker, scope or Scope(), limit)

    async def claim_keys(self, worker: str, limit: int = 100, scope: Scope | None = None) -> list[str]:
        return [claimed.name for claimed in await self.claim(worker, limit, scope)]

    async def commit(self, worker: str, *ends: FinishedAttempt) -> CommitReport:
        return await self.ledger.commits.commit(worker, ends)

    async def finish(self, worker: str, claimed: Sequence[ClaimedItem]) -> CommitReport:
        return await self.commit(worker, *(done(item) for item in claimed))

    async def item(self, run: Run, key: str, stage: str | None = None) -> ItemView:
        return await self.ledger.reads.item(run.id, key=key, stage=stage or run.stages[0])

    async def state(self, run: Run, key: str) -> str:
        return (await self.item(run, key)).state.value

    async def check(self) -> None:
        """Assert that the tables keep every rule."""
        findings = await self.ledger.upkeep.audit()
        assert findings == [], findings


def done(
    claimed: ClaimedItem, *records: str, follow_ups: Sequence[NewItem] = (), keys: Sequence[RecordKey] = ()
) -> FinishedAttempt:
    return FinishedAttempt(
        lease=claimed.lease,
        decision=DONE,
        records=records,
        record_keys=tuple(keys),
        follow_ups=tuple(follow_ups),
        seconds=0.5,
    )


def record_key(stage: str, key: str, scope: RecordScope = RecordScope.RUN, *, replaces: bool = False) -> RecordKey:
    return RecordKey(key, record_key_hash("shop", stage, key), scope, replaces)


def keyed(
    claimed: ClaimedItem,
    *pairs: tuple[str, int],
    scope: RecordScope = RecordScope.RUN,
    replaces: bool = False,
    follow_ups: Sequence[NewItem] = (),
) -> FinishedAttempt:
    """A done attempt whose records are (key, value)."""
    keys = [record_key(claimed.stage, key, scope, replaces=replaces) for key, _ in pairs]
    records = [f'{{"key": "{key}", "value": {value}}}' for key, value in pairs]
    return done(claimed, *records, keys=keys, follow_ups=follow_ups)


def retry(claimed: ClaimedItem, delay: float = 5.0, error: str = "timed out") -> FinishedAttempt:
    decision = AttemptDecision(DecisionKind.RETRY, OutcomeClass.TRANSIENT, delay, error)
    return FinishedAttempt(lease=claimed.lease, decision=decision)


def throttled(claimed: ClaimedItem, delay: float = 60.0) -> FinishedAttempt:
    decision = AttemptDecision(DecisionKind.THROTTLED, OutcomeClass.THROTTLED, delay, "429 Too Many Requests")
    return FinishedAttempt(lease=claimed.lease, decision=decision)


def dead(claimed: ClaimedItem, error: str = "404 Not Found") -> FinishedAttempt:
    return FinishedAttempt(
        lease=claimed.lease, decision=AttemptDecision(DecisionKind.DEAD, OutcomeClass.PERMANENT, 0.0, error)
    )


def skipped(claimed: ClaimedItem, error: str = "robots.txt forbids it") -> FinishedAttempt:
    return FinishedAttempt(
        lease=claimed.lease, decision=AttemptDecision(DecisionKind.SKIPPED, OutcomeClass.SKIPPED, 0.0, error)
    )


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
