"""`shoal worker` with a stopwatch: when its claims and commits began and ended, written down when it leaves.

`python -m bench.fleet_worker NOTES ARGUMENT...` is `shoal ARGUMENT...`, but for the notes.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, cast

import msgspec

from shoal import wiring
from shoal.cli.main import main
from shoal.config import Settings
from shoal.ledger.protocols import Ledger
from shoal.model.item import ClaimedItem
from shoal.model.outcome import FinishedAttempt
from shoal.model.views import CommitReport
from shoal.model.worker import Scope


class Call(msgspec.Struct, array_like=True):
    """One call of the ledger, by the monotonic clock that all processes of a machine share."""

    kind: str
    began: float
    ended: float
    items: int

    @property
    def seconds(self) -> float:
        return self.ended - self.began


class CallLog(Protocol):
    """Where calls are written down: a list, or a file when they are too many for one."""

    def append(self, call: Call, /) -> None: ...


class Notes(msgspec.Struct):
    """What one worker did. `busy`: its processor time, start included."""

    calls: list[Call]
    busy: float

    @property
    def span(self) -> tuple[float, float]:
        """From the first claim that found something to the end of the last commit."""
        return (
            min(call.began for call in self.calls if call.kind == "claim" and call.items),
            max(call.ended for call in self.calls if call.kind == "commit"),
        )

    def ledger_share(self) -> float:
        """The part of that time in which a claim or a commit was under way; two at once count once."""
        first, last = self.span
        under_way, until = 0.0, first
        for call in sorted(self.calls, key=lambda call: call.began):
            under_way += max(0.0, min(call.ended, last) - max(call.began, until))
            until = max(until, call.ended)
        return under_way / (last - first)


class TimedLedger:
    """A ledger whose claims and commits are timed; everything else goes straight through."""

    def __init__(self, real: Ledger, calls: CallLog) -> None:
        self._real = real
        self._calls = calls
        self.claims = _TimedClaims(real.claims, calls)
        self.commits = _TimedCommits(real.commits, calls)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class _Timed:
    def __init__(self, real: Any, calls: CallLog) -> None:
        self._real = real
        self._calls = calls

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class _TimedClaims(_Timed):
    async def claim(self, worker: str, scope: Scope, limit: int) -> list[ClaimedItem]:
        began = time.monotonic()
        claimed: list[ClaimedItem] = await self._real.claim(worker, scope, limit)
        self._calls.append(Call("claim", began, time.monotonic(), len(claimed)))
        return claimed


class _TimedCommits(_Timed):
    async def commit(self, worker: str, finished: Sequence[FinishedAttempt]) -> CommitReport:
        began = time.monotonic()
        report: CommitReport = await self._real.commit(worker, finished)
        self._calls.append(Call("commit", began, time.monotonic(), len(finished)))
        return report


def time_calls(calls: CallLog) -> None:
    """From now on every ledger that this process opens writes down its claims and commits."""
    connect = wiring.connect_ledger

    async def connect_timed(settings: Settings, **options: Any) -> Ledger:
        return cast(Ledger, TimedLedger(await connect(settings, **options), calls))

    wiring.connect_ledger = connect_timed


def work(notes: Path, arguments: Sequence[str]) -> int:
    calls: list[Call] = []
    time_calls(calls)
    code = main(arguments)
    notes.write_bytes(msgspec.json.encode(Notes(calls, time.process_time())))
    return code


if __name__ == "__main__":
    sys.exit(work(Path(sys.argv[1]), sys.argv[2:]))
