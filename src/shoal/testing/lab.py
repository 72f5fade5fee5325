"""A ledger on a bench: a clock that tests move by hand, and short names for what tests do all the time."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Sequence

from shoal.ledger.protocols import Ledger
from shoal.model.item import Claimed, NewItem
from shoal.model.lane import LanePolicy
from shoal.model.outcome import DONE, Finished, OutcomeClass, Verdict, VerdictKind
from shoal.model.run import Run, RunSpec, StageSpec
from shoal.model.views import CommitReport, ItemView
from shoal.model.worker import Scope, WorkerSpec


class Lab:
    """One ledger under test.

    `jump(seconds)` moves the ledger's clock; `another()` opens the same ledger a second time, as another process would.
    """

    def __init__(
        self,
        ledger: Ledger,
        *,
        jump: Callable[[float], Awaitable[None]],
        another: Callable[[], Awaitable[Ledger]],
    ) -> None:
        self.ledger = ledger
        self.jump = jump
        self.another = another
        self._names = itertools.count(1)

    async def run(
        self,
        *stages: str,
        scraper: str = "shop",
        lane: LanePolicy | None = None,
        max_attempts: int = 4,
        max_rescues: int = 3,
    ) -> Run:
        names = stages or ("page",)
        policy = lane or LanePolicy(limit=1)
        return await self.ledger.runs.create(
            RunSpec(
                scraper=scraper,
                stages=tuple(StageSpec(name, lane=policy) for name in names),
                max_attempts=max_attempts,
                max_rescues=max_rescues,
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

    async def claim(self, worker: str, limit: int = 100, scope: Scope | None = None) -> list[Claimed]:
        return await self.ledger.claims.claim(worker, scope or Scope(), limit)

    async def claim_keys(self, worker: str, limit: int = 100, scope: Scope | None = None) -> list[str]:
        return [claimed.name for claimed in await self.claim(worker, limit, scope)]

    async def commit(self, worker: str, *ends: Finished) -> CommitReport:
        return await self.ledger.commits.commit(worker, ends)

    async def finish(self, worker: str, claimed: Sequence[Claimed]) -> CommitReport:
        return await self.commit(worker, *(done(item) for item in claimed))

    async def item(self, run: Run, key: str, stage: str | None = None) -> ItemView:
        return await self.ledger.reads.item(run.id, key=key, stage=stage or run.stages[0])

    async def state(self, run: Run, key: str) -> str:
        return (await self.item(run, key)).state.value

    async def check(self) -> None:
        """The tables keep every rule."""
        findings = await self.ledger.upkeep.audit()
        assert findings == [], findings


def done(claimed: Claimed, *records: str, follow_ups: Sequence[NewItem] = ()) -> Finished:
    return Finished(lease=claimed.lease, verdict=DONE, records=records, follow_ups=tuple(follow_ups), seconds=0.5)


def retry(claimed: Claimed, delay: float = 5.0, error: str = "timed out") -> Finished:
    verdict = Verdict(VerdictKind.RETRY, OutcomeClass.TRANSIENT, delay, error)
    return Finished(lease=claimed.lease, verdict=verdict)


def throttled(claimed: Claimed, delay: float = 60.0) -> Finished:
    verdict = Verdict(VerdictKind.THROTTLED, OutcomeClass.THROTTLED, delay, "429 Too Many Requests")
    return Finished(lease=claimed.lease, verdict=verdict)


def dead(claimed: Claimed, error: str = "404 Not Found") -> Finished:
    return Finished(lease=claimed.lease, verdict=Verdict(VerdictKind.DEAD, OutcomeClass.PERMANENT, 0.0, error))
