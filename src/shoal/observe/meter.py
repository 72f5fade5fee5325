"""How fast a run went lately, for those who look only once: from what the ledger notes per minute."""

from __future__ import annotations

import datetime as dt
import math
from collections import deque
from typing import NamedTuple

import msgspec

from shoal.ledger.protocols import Ledger
from shoal.model.run import RunState
from shoal.model.views import Counts
from shoal.observe.formatting import format_duration, format_percent, format_rate
from shoal.observe.snapshot import Bottleneck, Snapshot, find_bottleneck

MINUTES = 5
MIN_SECONDS = 2.0
WINDOW = 60.0  # seconds that the rate is smoothed over
SHORT_WINDOW = 15.0
FIRST_RATE_AFTER = 2.0
MIN_SPREAD = 0.1
# From this many new items per ended one an end is not in sight.
GROWING = 0.95
GROWING_TEXT = "frontier still growing"
LONGEST_ETA = 100 * 86_400.0


async def recent_rate(ledger: Ledger, snapshot: Snapshot) -> float | None:
    """Items ended per minute: over the whole run when it has ended, otherwise over the last five minutes."""
    run, counts = snapshot.run, snapshot.counts
    if run.finished_at is not None:
        return _rate(counts.done + counts.dead, (run.finished_at - run.created_at).total_seconds())
    clock = (await ledger.health.check()).clock
    workers = await ledger.reads.workers(run.id, minutes=MINUTES)
    # The ledger counts by whole minutes: the oldest of the five begins four full ones before the current one.
    covered = (MINUTES - 1) * 60 + clock.second + clock.microsecond / 1e6
    seconds = min(covered, (clock - run.created_at).total_seconds())
    return _rate(sum(worker.done + worker.dead for worker in workers), seconds)


def overall_rate(snapshot: Snapshot, until: dt.datetime) -> float | None:
    """Items ended per minute since the run began."""
    counts = snapshot.counts
    ended = snapshot.run.finished_at or until
    return _rate(counts.done + counts.dead, (ended - snapshot.run.created_at).total_seconds())


def _rate(items: int, seconds: float) -> float | None:
    return None if seconds < MIN_SECONDS else items * 60 / seconds


class Sample(NamedTuple):
    at: float
    ended: int
    total: int
    sealed: bool


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """One look at a run, ready to be shown.

    `share`: of all items, those that have ended. `rate`: items ended per minute, None until it is known. `ok`: done
    among done and dead. `eta`: seconds from .. to, None when nobody can tell; `growing` says that new items come as
    fast as items end.
    """

    snapshot: Snapshot
    done: int
    total: int
    dead: int
    share: float
    rate: float | None
    ok: float | None
    eta: tuple[float, float] | None
    growing: bool
    bottleneck: Bottleneck

    @property
    def ended(self) -> bool:
        return self.snapshot.ended

    @property
    def waiting_for(self) -> str:
        """What holds it back, in a few words with its share: `host limit 61%`."""
        return self.bottleneck.cause + (
            "" if self.bottleneck.share is None else f" {format_percent(self.bottleneck.share)}"
        )

    @property
    def eta_text(self) -> str:
        if self.growing:
            return GROWING_TEXT
        if self.eta is None:
            return "-"
        low, high = (format_duration(math.ceil(seconds)) for seconds in self.eta)
        return low if low == high else f"{low}-{high}"

    @property
    def line(self) -> str:
        """`done 48210/120000 40% 312/min ok 97% waiting: host limit 61% dead 37 eta 3h40-4h30`

        The percentage is that of the figures before it: what is dead is not done.
        """
        if self.total == 0 and not self.ended:
            return f"no items yet, waiting: {self.waiting_for}"
        ok = "-" if self.ok is None else format_percent(self.ok)
        done = format_percent(self.done / self.total if self.total else 0.0)
        return (
            f"done {self.done}/{self.total} {done} {format_rate(self.rate)} ok {ok} "
            f"waiting: {self.waiting_for} dead {self.dead} eta {self.eta_text}"
        )


class Meter:
    """Remembers the last minute. Feed it one run's moments in the order of their times.

    `rate`: items ended per minute before it began to look, if somebody knows; used until it has seen enough itself.
    """

    def __init__(self, rate: float | None = None) -> None:
        self._initial_rate = None if rate is None else rate / 60
        self._samples: deque[Sample] = deque()

    def read(self, snapshot: Snapshot, now: float) -> Reading:
        counts = snapshot.counts
        self._add_sample(Sample(now, counts.done + counts.dead, counts.total, snapshot.run.sealed))
        rate = self._speed(WINDOW)
        growing = self._is_growing(counts)
        finished = counts.done + counts.dead
        found = find_bottleneck(counts, snapshot.gates)
        return Reading(
            snapshot=snapshot,
            done=counts.done,
            total=counts.total,
            dead=counts.dead,
            share=(counts.total - counts.remaining) / counts.total if counts.total else 0.0,
            rate=None if rate is None else rate * 60,
            ok=counts.done / finished if finished else None,
            eta=None if growing or found.blocks_run else self._eta(snapshot),
            growing=growing and not found.blocks_run,
            bottleneck=found,
        )

    def _add_sample(self, sample: Sample) -> None:
        if self._samples and (sample.ended < self._samples[-1].ended or sample.total < self._samples[-1].total):
            self._samples.clear()  # items were retried or removed: what was seen before tells nothing any more
        self._samples.append(sample)
        # One sample from before the window stays, so that the window is covered whole.
        while len(self._samples) > 2 and self._samples[1].at <= sample.at - WINDOW:
            self._samples.popleft()

    def _window_ends(self, window: float) -> tuple[Sample, Sample] | None:
        """The first sample of the window and the newest, when they are far enough apart to be compared."""
        newest = self._samples[-1]
        first = next(sample for sample in self._samples if sample.at >= newest.at - window - 1e-9)
        if first is newest and len(self._samples) > 1:
            first = self._samples[-2]  # looked at less often than once a window
        return (first, newest) if newest.at - first.at >= FIRST_RATE_AFTER else None

    def _speed(self, window: float) -> float | None:
        """Items ended per second."""
        if (pair := self._window_ends(window)) is None:
            return self._initial_rate
        first, newest = pair
        return (newest.ended - first.ended) / (newest.at - first.at)

    def _is_growing(self, counts: Counts) -> bool:
        if (pair := self._window_ends(WINDOW)) is None or counts.remaining == 0:
            return False
        first, newest = pair
        recently, _ = self._window_ends(SHORT_WINDOW) or pair
        return self._added_since(recently) > 0 and self._added_since(first) >= GROWING * (newest.ended - first.ended)

    def _added_since(self, first: Sample) -> int:
        """Items that came in since. Of a sealed run, only those that it found itself: what it was given came once."""
        newest = self._samples[-1]
        since = (one for one in self._samples if one.at >= first.at and (one.sealed or not newest.sealed))
        return newest.total - next(since).total

    def _eta(self, snapshot: Snapshot) -> tuple[float, float] | None:
        """From the best recent speed and nothing new, to the worst one and new items coming as they did so far."""
        remaining = snapshot.counts.remaining
        if snapshot.run.state is RunState.PAUSED:
            return None
        if snapshot.ended or (remaining == 0 and snapshot.run.sealed):
            return 0.0, 0.0
        speeds = [speed for window in (SHORT_WINDOW, WINDOW) if (speed := self._speed(window)) is not None]
        if not remaining or not speeds or max(speeds) <= 0:
            return None
        low, high = remaining / max(speeds), remaining / max(min(speeds), max(speeds) / 4)
        if (pair := self._window_ends(WINDOW)) is not None and (ended_items := pair[1].ended - pair[0].ended) > 0:
            high /= max(1 - GROWING, 1 - self._added_since(pair[0]) / ended_items)
        middle = (low + high) / 2
        low, high = min(low, middle * (1 - MIN_SPREAD)), max(high, middle * (1 + MIN_SPREAD))
        soonest = _first_due(snapshot)
        low, high = max(low, soonest), max(high, soonest)
        return None if low > LONGEST_ETA else (low, min(high, LONGEST_ETA))


def _first_due(snapshot: Snapshot) -> float:
    """Seconds before which the run cannot end: some items are delayed until then."""
    return max(
        [0.0, *((gate.until - snapshot.at).total_seconds() for gate in snapshot.gates if gate.until is not None)]
    )
