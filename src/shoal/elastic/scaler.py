"""From one look to the next: what the rule decides, and what is told about it.

Whoever owns a scaler looks at the work, asks it, carries out what it decided and lets it tell the runs. A change is
always told. That it holds back is told when the reason is of another kind than the one told last, at most once a
minute, and again every ten minutes while it lasts: often enough for who asks, seldom enough for a long run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec

from shoal.elastic.machine import Machine
from shoal.elastic.rules import decide
from shoal.elastic.signs import HOLDS_BACK, Bounds, Decision, Kind, Limits, Pace, Past, Signs
from shoal.elastic.window import Ends, Window
from shoal.ledger.protocols import Runs
from shoal.model.log import Log

ACTION = "scaled"
TELL_SECONDS = 60.0
REMIND_SECONDS = 600.0


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
            await runs.tell(run_id, ACTION, subject, detail, by=subject)

    def _is_news(self, kind: Kind) -> bool:
        if kind is self._told:
            return self._at - self._told_at > REMIND_SECONDS
        return self._at - self._stayed_at > TELL_SECONDS
