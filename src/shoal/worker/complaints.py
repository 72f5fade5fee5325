"""What goes wrong, told once per kind: a run of a million pages must not say the same thing a million times."""

from __future__ import annotations

from types import TracebackType

from shoal.define.blame import is_machinery, sentence
from shoal.model.item import Claimed
from shoal.model.log import Log
from shoal.model.outcome import Verdict, VerdictKind
from shoal.observe.failures import shape

KINDS_REMEMBERED = 1_000
# So many failures of the author's code at one line, and not one success: it will not get better by itself.
SAME_BUG = 20


class Complaints:
    """Logs failures: the first of a kind as a warning, the others for those who debug. The ledger has them all."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._told: set[str] = set()
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
        if self._is_new(blame):
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
        say = self._log.warning if self._is_new(kind) else self._log.debug
        say("attempt failed", **facts)

    def refused(self, claimed: Claimed, reasons: list[str]) -> None:
        """Items that a handler yielded and that are none."""
        self.dropped += len(reasons)
        self.first_dropped = self.first_dropped or reasons[0]
        say = self._log.warning if self._is_new(f"refused {claimed.stage}") else self._log.debug
        say("items were refused", stage=claimed.stage, item=claimed.name, count=len(reasons), first=reasons[0])

    @property
    def broken(self) -> str | None:
        """The error that every attempt ends with, if that is so."""
        if self._succeeded:
            return None
        return next((blame for blame, times in self._bugs.items() if times >= SAME_BUG), None)

    def _is_new(self, kind: str) -> bool:
        if kind in self._told or len(self._told) >= KINDS_REMEMBERED:
            return False
        self._told.add(kind)
        return True


def _own_part(trace: TracebackType | None) -> TracebackType | None:
    """The traceback from the author's first line on."""
    part = trace
    while part is not None and is_machinery(part.tb_frame.f_code.co_filename):
        part = part.tb_next
    return part or trace
