"""Rates and the expected end of a run, from successive snapshots or from the ledger's counts per minute."""

from __future__ import annotations

import datetime as dt
import math
from collections import deque
from typing import NamedTuple

import msgspec

from shoal.ledger.protocols import Ledger
from shoal.model.run import RunState
from shoal.model.views import Counts
from shoal.observe.failures import FailureCount
from shoal.observe.formatting import format_duration, format_percent, format_rate
from shoal.observe.snapshot import Bottleneck, Snapshot, find_bottleneck

WINDOW_SECONDS = 60.0  # the rate is averaged over this time
SHORT_WINDOW_SECONDS = 15.0
MIN_RATE_SECONDS = 2.0  # a shorter time gives no rate
RECENT_MINUTES = 5
# Relative distance of both ends of an ETA from its middle, at least.
MIN_ETA_SPREAD = 0.1
# With this many new items per ended item, the end cannot be estimated.
GROWING_RATIO = 0.95
GROWING_TEXT = "frontier still growing"
MAX_ETA_SECONDS = 100 * 86_400.0


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a run with its rate and expected end.

    `share`: ended items of all items; done is less when items died or were cancelled. `rate`: items ended per minute,
    None while unknown. `ok`: done items of done and dead ones. `eta`: shortest and longest expected time in seconds,
    None when it cannot be estimated. `total_grows`: items are being found, so that a share of the total means little.
    `growing`: they are found as fast as items end. `failures`: why attempts failed, the most frequent first.
    """

    snapshot: Snapshot
    done: int
    total: int
    dead: int
    skipped: int
    share: float
    rate: float | None
    ok: float | None
    eta: tuple[float, float] | None
    growing: bool
    bottleneck: Bottleneck
    total_grows: bool = False
    failures: tuple[FailureCount, ...] = ()

    @property
    def ended(self) -> bool:
        return self.snapshot.ended

    @property
    def waiting_for(self) -> str:
        """The cause of the bottleneck with its share: `host limit 61%`."""
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

        The percentage is done of the items that are wanted: dead ones are not done, skipped ones are not wanted. While
        the total grows there is none.
        """
        if self.total == 0 and not self.ended:
            return f"no items yet, waiting: {self.waiting_for}"
        ok = "-" if self.ok is None else format_percent(self.ok)
        wanted = self.total - self.skipped
        total = f" of {wanted} found" if self.total_grows else f"/{wanted} {format_percent(self.done_share)}"
        head = f"done {self.done}{total} {format_rate(self.rate)} ok {ok}"
        skipped = f" skipped {self.skipped}" if self.skipped else ""
        if self.ended:
            return f"{head} dead {self.dead}{skipped}, {self.snapshot.run.state}"
        return f"{head} waiting: {self.waiting_for} dead {self.dead}{skipped} eta {self.eta_text}"

    @property
    def done_share(self) -> float:
        """Done, of the items that are wanted: those that are not skipped."""
        wanted = self.total - self.skipped
        return self.done / wanted if wanted else 0.0


class _Sample(NamedTuple):
    at: float
    ended: int
    total: int
    sealed: bool


class Meter:
    """Computes readings from the snapshots of one run, given in the order of time; it keeps the last minute of samples.

    `rate`: a known rate in items per minute, used for the time before the first sample.
    """

    def __init__(self, rate: float | None = None) -> None:
        self._initial_rate = None if rate is None else rate / 60
        self._samples: deque[_Sample] = deque()

    def read(self, snapshot: Snapshot, now: float) -> Reading:
        counts = snapshot.counts
        self._add_sample(_Sample(now, counts.ended, counts.total, snapshot.run.sealed))
        rate = self._items_per_second(WINDOW_SECONDS)
        growing = self._is_growing(counts)
        finished = counts.done + counts.dead
        bottleneck = find_bottleneck(counts, snapshot.gates)
        return Reading(
            snapshot=snapshot,
            done=counts.done,
            total=counts.total,
            dead=counts.dead,
            skipped=counts.skipped,
            share=(counts.total - counts.remaining) / counts.total if counts.total else 0.0,
            rate=None if rate is None else rate * 60,
            ok=counts.done / finished if finished else None,
            eta=None if growing or bottleneck.blocks_run else self._eta(snapshot),
            growing=growing and not bottleneck.blocks_run,
            bottleneck=bottleneck,
            total_grows=not snapshot.ended and self._total_grows(snapshot),
        )

    def _add_sample(self, sample: _Sample) -> None:
        if self._samples and (sample.ended < self._samples[-1].ended or sample.total < self._samples[-1].total):
            self._samples.clear()  # items were retried or removed: older samples no longer compare
        self._samples.append(sample)
        # Keep one sample from before the window, so that the samples cover all of it.
        while len(self._samples) > 2 and self._samples[1].at <= sample.at - WINDOW_SECONDS:
            self._samples.popleft()

    def _window_ends(self, window: float) -> tuple[_Sample, _Sample] | None:
        """The first and the newest sample of the window; None when they are too close to compare."""
        newest = self._samples[-1]
        first = next(sample for sample in self._samples if sample.at >= newest.at - window - 1e-9)
        if first is newest and len(self._samples) > 1:
            first = self._samples[-2]  # the samples are further apart than the window
        return (first, newest) if newest.at - first.at >= MIN_RATE_SECONDS else None

    def _items_per_second(self, window: float) -> float | None:
        if (pair := self._window_ends(window)) is None:
            return self._initial_rate
        first, newest = pair
        ended, seconds = newest.ended - first.ended, newest.at - first.at
        if self._initial_rate is not None and seconds < window:
            # A few seconds say little about a slow run: the known rate counts for the rest of the window.
            return (ended + self._initial_rate * (window - seconds)) / window
        return ended / seconds

    def _is_growing(self, counts: Counts) -> bool:
        if (pair := self._window_ends(WINDOW_SECONDS)) is None or counts.remaining == 0:
            return False
        first, newest = pair
        recent, _ = self._window_ends(SHORT_WINDOW_SECONDS) or pair
        return self._added_since(recent) > 0 and self._added_since(first) >= GROWING_RATIO * (
            newest.ended - first.ended
        )

    def _total_grows(self, snapshot: Snapshot) -> bool:
        """Whether items were found lately, or the run's input is still being stored."""
        if not snapshot.run.sealed:
            return True
        if (pair := self._window_ends(SHORT_WINDOW_SECONDS)) is None or snapshot.counts.remaining == 0:
            return False
        return self._added_since(pair[0]) > 0

    def _added_since(self, first: _Sample) -> int:
        """Items added since. Of a sealed run only those added after sealing: its input is not growth."""
        newest = self._samples[-1]
        since = (sample for sample in self._samples if sample.at >= first.at and (sample.sealed or not newest.sealed))
        return newest.total - next(since).total

    def _eta(self, snapshot: Snapshot) -> tuple[float, float] | None:
        """From the best recent rate without new items to the worst one with new items added as before."""
        remaining = snapshot.counts.remaining
        if snapshot.run.state is RunState.PAUSED:
            return None
        if snapshot.ended or (remaining == 0 and snapshot.run.sealed):
            return 0.0, 0.0
        windows = (SHORT_WINDOW_SECONDS, WINDOW_SECONDS)
        rates = [rate for window in windows if (rate := self._items_per_second(window)) is not None]
        if not remaining or not rates or max(rates) <= 0:
            return None
        low, high = remaining / max(rates), remaining / max(min(rates), max(rates) / 4)
        if (pair := self._window_ends(WINDOW_SECONDS)) is not None and (
            ended_items := pair[1].ended - pair[0].ended
        ) > 0:
            high /= max(1 - GROWING_RATIO, 1 - self._added_since(pair[0]) / ended_items)
        middle = (low + high) / 2
        low, high = min(low, middle * (1 - MIN_ETA_SPREAD)), max(high, middle * (1 + MIN_ETA_SPREAD))
        delay = _delay_seconds(snapshot)
        low, high = max(low, delay), max(high, delay)
        return None if low > MAX_ETA_SECONDS else (low, min(high, MAX_ETA_SECONDS))


def _delay_seconds(snapshot: Snapshot) -> float:
    """Seconds until the last known delay ends; the run cannot end before."""
    return max(
        [0.0, *((gate.until - snapshot.at).total_seconds() for gate in snapshot.gates if gate.until is not None)]
    )


async def recent_rate(ledger: Ledger, snapshot: Snapshot, *, stage: str | None = None) -> float | None:
    """Items ended per minute: over the whole run when it has ended, otherwise over the last five minutes.

    `stage`: the only one that the snapshot has (`Snapshot.of_stage`).
    """
    run, counts = snapshot.run, snapshot.counts
    if run.finished_at is not None:
        return _rate(counts.ended, (run.finished_at - run.created_at).total_seconds())
    clock = dt.datetime.fromtimestamp(await ledger.lanes.clock(), dt.UTC)
    recent = await ledger.reads.recent(run.id, minutes=RECENT_MINUTES, stage=stage)
    # The ledger counts per whole minute, and the current minute is not over: four full minutes and a part.
    covered = (RECENT_MINUTES - 1) * 60 + clock.second + clock.microsecond / 1e6
    seconds = min(covered, (clock - run.created_at).total_seconds())
    return _rate(recent.done + recent.dead + recent.skipped, seconds)


def overall_rate(snapshot: Snapshot, until: dt.datetime) -> float | None:
    """Items ended per minute since the run began."""
    counts = snapshot.counts
    ended = snapshot.run.finished_at or until
    return _rate(counts.ended, (ended - snapshot.run.created_at).total_seconds())


def _rate(items: int, seconds: float) -> float | None:
    return None if seconds < MIN_RATE_SECONDS else items * 60 / seconds
