"""Latency histograms with fixed buckets, equal in every process and in the ledger, so that counts can be added.

Five buckets per factor of ten (1, 1.6, 2.5, 4, 6.3), from 1 ms to 100,000 s (28 hours). Bucket `i` counts durations
above the bound before it and up to `BUCKET_BOUNDS[i]`; the last bucket has no upper bound. Stored counts have these
bounds, too: changing them needs a migration.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence

import msgspec

BUCKET_BOUNDS: tuple[float, ...] = (
    *(round(step * 10.0**power, 7) for power in range(-3, 5) for step in (1.0, 1.6, 2.5, 4.0, 6.3)),
    100_000.0,
)
BUCKETS = len(BUCKET_BOUNDS) + 1
# An attempt's two buckets as one number: wait * CODE_BASE + work. functions/60_runs.sql has the same numbers.
CODE_BASE = 64
UNKNOWN_WAIT = CODE_BASE - 1


def bucket_of(seconds: float) -> int:
    """The bucket of a duration; a negative one (a clock was set back) counts as 0."""
    return bisect_left(BUCKET_BOUNDS, seconds)


def latency_codes(waited: Iterable[float | None], seconds: Iterable[float]) -> list[int]:
    """The buckets of each attempt's wait and work as one number, which a commit stores with the counts."""
    return [
        (UNKNOWN_WAIT if wait is None else bisect_left(BUCKET_BOUNDS, wait)) * CODE_BASE
        + bisect_left(BUCKET_BOUNDS, work)
        for wait, work in zip(waited, seconds, strict=True)
    ]


class LatencySummary(msgspec.Struct, frozen=True):
    """How many durations there were, and their quantiles in seconds; None when there were none."""

    count: int
    p50: float | None
    p95: float | None
    p99: float | None


class LatencyHistogram(msgspec.Struct, frozen=True):
    """How many durations fell into each bucket. Buckets after the last one that is not empty may be missing."""

    counts: tuple[int, ...] = ()

    @property
    def count(self) -> int:
        return sum(self.counts)

    def quantile(self, share: float) -> float | None:
        """The duration that this share of all durations does not exceed, interpolated within its bucket.

        It is between the bounds of the bucket that the true value is in. Above the last bound, the bound.
        """
        total = self.count
        if total == 0:
            return None
        rank = max(1, math.ceil(share * total))
        below = 0
        for bucket, count in enumerate(self.counts):
            if below + count >= rank:
                return _within(bucket, (rank - below) / count)
            below += count
        return BUCKET_BOUNDS[-1]

    @property
    def summary(self) -> LatencySummary:
        return LatencySummary(self.count, self.quantile(0.5), self.quantile(0.95), self.quantile(0.99))


NO_LATENCIES = LatencyHistogram()


def _within(bucket: int, part: float) -> float:
    """A duration inside a bucket: `part` of its durations are below. Logarithmic, as the bounds are."""
    if bucket == 0:
        return BUCKET_BOUNDS[0] * part
    if bucket >= len(BUCKET_BOUNDS):
        return BUCKET_BOUNDS[-1]
    low, high = BUCKET_BOUNDS[bucket - 1], BUCKET_BOUNDS[bucket]
    return min(high, max(low, low * math.pow(high / low, part)))


def add_buckets(first: Sequence[int], second: Sequence[int]) -> list[int]:
    """The sums of two lists of counts, of which one may be shorter."""
    longer, shorter = (first, second) if len(first) >= len(second) else (second, first)
    sums = list(longer)
    for bucket, count in enumerate(shorter):
        sums[bucket] += count
    return sums


def trimmed(counts: list[int]) -> list[int]:
    """The counts without empty buckets at the end."""
    last = len(counts)
    while last and not counts[last - 1]:
        last -= 1
    return counts[:last]


def sum_histograms(many: Iterable[LatencyHistogram]) -> LatencyHistogram:
    sums: list[int] = []
    for one in many:
        sums = add_buckets(sums, one.counts)
    return LatencyHistogram(tuple(sums))


class LatencyRecorder:
    """A histogram that a process adds to. `counts` has every bucket; `seconds` is the sum of all durations.

    For one thread; others may read it: a reader may miss the newest duration, and nothing else.
    """

    __slots__ = ("counts", "seconds")

    def __init__(self) -> None:
        self.counts = [0] * BUCKETS
        self.seconds = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(BUCKET_BOUNDS, seconds)] += 1
        self.seconds += seconds

    @property
    def histogram(self) -> LatencyHistogram:
        return LatencyHistogram(tuple(self.counts))
