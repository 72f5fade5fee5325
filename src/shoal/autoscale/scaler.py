"""The autoscaler: measures the backlog and recent outcomes, applies the rule, reports each change.

Its owner calls `decide`, carries the decision out, and calls `report`. Every change is reported. A reason that prevents
growth is reported when its kind is new, at most once a minute, and again every ten minutes while it lasts.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable

import msgspec

from shoal.autoscale.machine import Machine
from shoal.autoscale.rules import (
    BLOCKS_GROWTH,
    Bounds,
    LoadLimits,
    ScalingDecision,
    ScalingDelays,
    ScalingHistory,
    ScalingInputs,
    ScalingReason,
    decide,
)
from shoal.ledger.protocols import Ledger, Runs
from shoal.model.log import Log
from shoal.model.run import RunState
from shoal.model.worker import Scope

WINDOW_SECONDS = 60.0
MAX_RUNS_READ = 50
ACTION = "scaled"
REPORT_SECONDS = 60.0
REMIND_SECONDS = 600.0


class AttemptTotals(msgspec.Struct, frozen=True):
    """Attempts that ended; how many of them failed, and how many the site throttled."""

    all: int = 0
    failed: int = 0
    throttled: int = 0


class Window:
    """The attempts of the last minute, from totals that grow. A step in which a total drops is left out."""

    def __init__(self) -> None:
        self._before: AttemptTotals | None = None
        self._steps: deque[tuple[float, AttemptTotals]] = deque()

    def add(self, at: float, totals: AttemptTotals) -> None:
        before, self._before = self._before or totals, totals
        step = AttemptTotals(
            totals.all - before.all, totals.failed - before.failed, totals.throttled - before.throttled
        )
        if min(step.all, step.failed, step.throttled) >= 0 and step.all:
            self._steps.append((at, step))
        while self._steps and self._steps[0][0] < at - WINDOW_SECONDS:
            self._steps.popleft()

    def clear(self) -> None:
        """Forget all attempts so far."""
        self._steps.clear()

    @property
    def total(self) -> AttemptTotals:
        steps = [step for _, step in self._steps]
        return AttemptTotals(
            sum(step.all for step in steps), sum(step.failed for step in steps), sum(step.throttled for step in steps)
        )


class Backlog(msgspec.Struct, frozen=True, kw_only=True):
    """Open items of the active runs. `ready`: claimable now. `waiting_for_lanes`: their lanes are full."""

    run_ids: tuple[str, ...] = ()
    ready: int = 0
    waiting_for_lanes: int = 0


async def read_backlog(ledger: Ledger, scope: Scope) -> Backlog:
    """The items that a worker of this scope could claim. Raises LedgerError."""
    ready = waiting_for_lanes = 0
    run_ids = tuple(await _active(ledger, scope))
    for run_id in run_ids:
        for part in await ledger.reads.partitions(run_id):
            if _takes(scope, part.stage, part.partition):
                ready += part.counts.ready
                waiting_for_lanes += part.counts.waiting
    return Backlog(run_ids=run_ids, ready=ready, waiting_for_lanes=waiting_for_lanes)


async def _active(ledger: Ledger, scope: Scope) -> list[str]:
    if scope.run_ids:
        runs = [await ledger.runs.get(run_id) for run_id in scope.run_ids]
    else:
        runs = list((await ledger.runs.list(scraper=scope.scraper, limit=MAX_RUNS_READ)).rows)
    return [run.id for run in runs if run.state is RunState.ACTIVE]


def _takes(scope: Scope, stage: str, partition: str) -> bool:
    is_its_stage = not scope.stages or stage in scope.stages
    return is_its_stage and (scope.steal or not scope.partitions or partition in scope.partitions)


class Autoscaler:
    """Keeps the history of the rule. `what`: the plural noun of what is scaled."""

    def __init__(
        self, bounds: Bounds, delays: ScalingDelays, limits: LoadLimits, *, what: str, log: Log, machine: Machine
    ) -> None:
        self.bounds = bounds
        self._delays = delays
        self._limits = limits
        self._what = what
        self._log = log
        self._machine = machine
        self._window = Window()
        self._history = ScalingHistory()
        self._at = -math.inf
        self._last_reported: ScalingReason | None = None
        self._last_reported_at = self._last_unchanged_at = -math.inf

    def decide(self, now: int, inputs: ScalingInputs, totals: AttemptTotals) -> ScalingDecision:
        """Apply the rule. `totals`: all attempts so far; `inputs` are completed by the last minute and the load."""
        self._at = inputs.at
        self._window.add(inputs.at, totals)
        recent = self._window.total
        inputs = msgspec.structs.replace(
            inputs, ended=recent.all, failed=recent.failed, throttled=recent.throttled, load=self._machine.read_load()
        )
        decision = decide(now, self.bounds, inputs, self._history, self._delays, self._limits)
        self._history = decision.history
        if decision.target < now:
            self._window.clear()  # only attempts with the smaller number count
        return decision

    async def report(
        self, runs: Runs, run_ids: Iterable[str], subject: str, now: int, decision: ScalingDecision
    ) -> None:
        """Log the decision and record it as an event of the runs, unless it is no news. Raises LedgerError."""
        target = decision.target
        if target != now:
            self._log.info(f"{now} to {target} {self._what}: {decision.why}")
        elif decision.kind in BLOCKS_GROWTH and self._should_report(decision.kind):
            self._log.info(f"stays at {now} of {self.bounds.most} {self._what}: {decision.why}")
            self._last_unchanged_at = self._at
        else:
            return
        self._last_reported, self._last_reported_at = decision.kind, self._at
        detail = {"from": now, "to": target, "most": self.bounds.most, "what": self._what, "why": decision.why}
        for run_id in run_ids:
            await runs.record_event(run_id, ACTION, subject, detail, by=subject)

    def _should_report(self, kind: ScalingReason) -> bool:
        if kind is self._last_reported:
            return self._at - self._last_reported_at > REMIND_SECONDS
        return self._at - self._last_unchanged_at > REPORT_SECONDS
