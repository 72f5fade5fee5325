"""What goes wrong, told by kind: a run of a million pages must not say the same thing a million times.

The first of a kind is told at once, those that follow now and then as a number.
"""

from __future__ import annotations

import asyncio
from types import TracebackType

import msgspec

from shoal.define.author_code import is_machinery, sentence
from shoal.model.item import Claimed
from shoal.model.log import Log
from shoal.model.outcome import Verdict, VerdictKind
from shoal.observe.failures import shape

KINDS_REMEMBERED = 1_000
REPEAT_SECONDS = 30.0
# So many failures of the author's code at one line, and not one success: it will not get better by itself.
SAME_BUG = 20


class Repeated(msgspec.Struct):
    """How often a kind of failure came since it was last told, what is said of it, and the facts of the last one."""

    event: str
    facts: dict[str, object]
    count: int = 0


class Complaints:
    """Logs failures: the first of a kind as a warning, how many followed every half minute and at the end.

    Each one is also logged for those who debug. The ledger has them all.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self._told: dict[str, Repeated] = {}
        self._traced: set[str] = set()
        self._bugs: dict[str, int] = {}
        self._succeeded = False
        self.dropped = 0
        self.first_dropped = ""

    def success(self) -> None:
        self._succeeded = True

    def bug(self, claimed: Claimed, error: BaseException) -> None:
        """An error of the author's code: with its traceback the first time."""
        blame = sentence(error)
        if len(self._bugs) < KINDS_REMEMBERED or blame in self._bugs:
            self._bugs[blame] = self._bugs.get(blame, 0) + 1
        if blame not in self._traced and len(self._traced) < KINDS_REMEMBERED:
            self._traced.add(blame)
            cause = (type(error), error, _own_part(error.__traceback__))
            self._log.error("the handler failed", stage=claimed.stage, item=claimed.name, error=blame, exc_info=cause)

    def failed(self, claimed: Claimed, verdict: Verdict) -> None:
        """An attempt that did not succeed."""
        facts: dict[str, object] = {
            "stage": claimed.stage,
            "item": claimed.name,
            "outcome": verdict.outcome.value,
            "error": verdict.error,
        }
        if verdict.kind is not VerdictKind.DEAD:
            facts["retry_in"] = round(verdict.delay, 1)
        kind = f"{claimed.stage} {verdict.kind.value} {verdict.outcome.value} {shape(verdict.error or '')}"
        say = self._log.warning if self._is_new(kind, "more attempts failed like this", facts) else self._log.debug
        say("attempt failed", **facts)

    def refused(self, claimed: Claimed, reasons: list[str]) -> None:
        """Items that a handler yielded and that are none."""
        self.dropped += len(reasons)
        self.first_dropped = self.first_dropped or reasons[0]
        facts: dict[str, object] = {"stage": claimed.stage, "item": claimed.name, "first": reasons[0]}
        is_new = self._is_new(f"refused {claimed.stage}", "more items were refused", facts, len(reasons))
        say = self._log.warning if is_new else self._log.debug
        say("items were refused", count=len(reasons), **facts)

    async def repeat(self) -> None:
        """Say now and then how many more there were of each kind. For ever."""
        while True:
            await asyncio.sleep(REPEAT_SECONDS)
            self.tell_repeated()

    def tell_repeated(self) -> None:
        """Say of each kind how many more there were since it was last told; of most kinds that is nothing."""
        for kind in self._told.values():
            if kind.count:
                self._log.warning(kind.event, count=kind.count, **kind.facts)
                kind.count = 0

    @property
    def broken(self) -> str | None:
        """The error that every attempt ends with, if that is so."""
        if self._succeeded:
            return None
        return next((blame for blame, times in self._bugs.items() if times >= SAME_BUG), None)

    def _is_new(self, kind: str, event: str, facts: dict[str, object], count: int = 1) -> bool:
        """Whether this is the first of its kind. The others are counted, to be told later as `event`."""
        if (known := self._told.get(kind)) is not None:
            known.count += count
            known.facts = facts
            return False
        if len(self._told) >= KINDS_REMEMBERED:
            return False
        self._told[kind] = Repeated(event, facts)
        return True


def _own_part(trace: TracebackType | None) -> TracebackType | None:
    """The traceback from the author's first line on."""
    part = trace
    while part is not None and is_machinery(part.tb_frame.f_code.co_filename):
        part = part.tb_next
    return part or trace
