"""The autoscaler: measures the backlog and recent outcomes, applies the rule, reports each change.

What ended within the last minute, and how.

How much there is to take.

From one look to the next: what the rule decides, and what is told about it.

Whoever owns a scaler looks at the work, asks it, carries out what it decided and lets it tell the runs. A change is
always told. That it holds back is told when the reason is of another kind than the one told last, at most once a
minute, and again every ten minutes while it lasts: often enough for who asks, seldom enough for a long run.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable

import msgspec

from shoal.autoscale.machine import Machine
from shoal.autoscale.rules import HOLDS_BACK, Bounds, Decision, Kind, Limits, Pace, Past, Signs, decide
from shoal.ledger.protocols import Ledger, Runs
from shoal.model.log import Log
from shoal.model.run import RunState
from shoal.model.worker import Scope

SECONDS = 60.0
RUNS_LOOKED_AT = 50
ACTION = "scaled"
TELL_SECONDS = 60.0
REMIND_SECONDS = 600.0


class Ends(msgspec.Struct, frozen=True):
    """Attempts that ended, those among them that failed, and those that the site asked to wait."""

    all: int = 0
    failed: int = 0
    throttled: int = 0


class Window:
    """Fed with counts that grow, it knows what came within the last minute.

    Counts may also drop, when whoever keeps them forgets old ones; what came at that moment is left out.
    """

    def __init__(self) -> None:
        self._before: Ends | None = None
        self._steps: deque[tuple[float, Ends]] = deque()

    def add(self, at: float, ends: Ends) -> None:
        before, self._before = self._before or ends, ends
        step = Ends(ends.all - before.all, ends.failed - before.failed, ends.throttled - before.throttled)
        if min(step.all, step.failed, step.throttled) >= 0 and step.all:
            self._steps.append((at, step))
        while self._steps and self._steps[0][0] < at - SECONDS:
            self._steps.popleft()

    def forget(self) -> None:
        """From now on only what is yet to come counts."""
        self._steps.clear()

    @property
    def total(self) -> Ends:
        steps = [step for _, step in self._steps]
        return Ends(
            sum(step.all for step in steps), sum(step.failed for step in steps), sum(step.throttled for step in steps)
        )


class Backlog(msgspec.Struct, frozen=True, kw_only=True):
    """`ready`: items that could be taken now. `behind_lanes`: those that wait for their lanes."""

    run_ids: tuple[str, ...] = ()
    ready: int = 0
    behind_lanes: int = 0


async def backlog_of(ledger: Ledger, scope: Scope) -> Backlog:
    """What a worker of this scope could take, of the runs that are active. Raises LedgerError."""
    ready = behind_lanes = 0
    run_ids = tuple(await _active(ledger, scope))
    for run_id in run_ids:
        for part in await ledger.reads.partitions(run_id):
            if _takes(scope, part.stage, part.partition):
                ready += part.counts.ready
                behind_lanes += part.counts.waiting
    return Backlog(run_ids=run_ids, ready=ready, behind_lanes=behind_lanes)


async def _active(ledger: Ledger, scope: Scope) -> list[str]:
    if scope.run_ids:
        runs = [await ledger.runs.get(run_id) for run_id in scope.run_ids]
    else:
        runs = list((await ledger.runs.list(scraper=scope.scraper, limit=RUNS_LOOKED_AT)).rows)
    return [run.id for run in runs if run.state is RunState.ACTIVE]


def _takes(scope: Scope, stage: str, partition: str) -> bool:
    is_its_stage = not scope.stages or stage in scope.stages
    return is_its_stage and (scope.steal or not scope.partitions or partition in scope.partitions)


class Scaler:
    """`what`: of which there are more or fewer. `machine`: what else is looked at."""

    def __init__(self, bounds: Bounds, pace: Pace, limits: Limits, *, what: str, log: Log, machine: Machine) -> None:
        self.bounds = bounds
        self._pace = pace
        self._limits = limits
        self._what = what
        self._log = log
        self._machine = machine
        self._window = Window()
        self._past = Past()
        self._at = -math.inf
        self._told: Kind | None = None
        self._told_at = self._stayed_at = -math.inf

    def judge(self, now: int, signs: Signs, ends: Ends) -> Decision:
        """`ends`: all so far. The signs are completed by those of the last minute and by the machine's."""
        self._at = signs.at
        self._window.add(signs.at, ends)
        lately = self._window.total
        signs = msgspec.structs.replace(
            signs, ended=lately.all, failed=lately.failed, throttled=lately.throttled, load=self._machine.look()
        )
        decision = decide(now, self.bounds, signs, self._past, self._pace, self._limits)
        self._past = decision.past
        if decision.target < now:
            self._window.forget()  # what comes now is what the smaller number does
        return decision

    async def tell(self, runs: Runs, run_ids: Iterable[str], subject: str, now: int, decision: Decision) -> None:
        """Log it and leave it with the runs, if it is worth it. Raises LedgerError."""
        target = decision.target
        if target != now:
            self._log.info(f"{now} to {target} {self._what}: {decision.why}")
        elif decision.kind in HOLDS_BACK and self._is_news(decision.kind):
            self._log.info(f"stays at {now} of {self.bounds.most} {self._what}: {decision.why}")
            self._stayed_at = self._at
        else:
            return
        self._told, self._told_at = decision.kind, self._at
        detail = {"from": now, "to": target, "most": self.bounds.most, "what": self._what, "why": decision.why}
        for run_id in run_ids:
            await runs.record_event(run_id, ACTION, subject, detail, by=subject)

    def _is_news(self, kind: Kind) -> bool:
        if kind is self._told:
            return self._at - self._told_at > REMIND_SECONDS
        return self._at - self._stayed_at > TELL_SECONDS
