"""Histograms of latencies: the buckets, quantiles, sums."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.model.latency import (
    BUCKET_BOUNDS,
    BUCKETS,
    CODE_BASE,
    NO_LATENCIES,
    UNKNOWN_WAIT,
    LatencyHistogram,
    LatencyRecorder,
    bucket_of,
    latency_codes,
    sum_histograms,
    trimmed,
)

DURATIONS = st.floats(0, 1_000_000) | st.floats(0, 0.01) | st.sampled_from(BUCKET_BOUNDS)


def recorded(durations: list[float]) -> LatencyHistogram:
    recorder = LatencyRecorder()
    for duration in durations:
        recorder.observe(duration)
    return recorder.histogram


def test_buckets_are_five_per_factor_of_ten_from_a_millisecond_to_a_day() -> None:
    assert BUCKET_BOUNDS[:6] == (0.001, 0.0016, 0.0025, 0.004, 0.0063, 0.01)
    assert BUCKET_BOUNDS[-1] == 100_000
    assert all(1.5 < high / low < 1.7 for low, high in itertools.pairwise(BUCKET_BOUNDS))
    assert BUCKETS < UNKNOWN_WAIT < CODE_BASE
    assert latency_codes([1e9], [1e9])[0] < 2**15  # the ledger stores it in two bytes


@given(st.lists(DURATIONS, min_size=1, max_size=60), st.sampled_from((0.0, 0.5, 0.95, 0.99, 1.0)))
def test_a_quantile_is_within_the_bucket_of_the_true_one(durations: list[float], share: float) -> None:
    found = recorded(durations).quantile(share)
    true = sorted(durations)[max(1, math.ceil(share * len(durations))) - 1]
    bucket = bucket_of(true)
    assert found is not None
    low = BUCKET_BOUNDS[bucket - 1] if bucket else 0.0
    high = BUCKET_BOUNDS[bucket] if bucket < len(BUCKET_BOUNDS) else BUCKET_BOUNDS[-1]
    assert low <= found <= high


@given(st.lists(DURATIONS, min_size=1, max_size=60))
def test_quantiles_ascend(durations: list[float]) -> None:
    summary = recorded(durations).summary
    assert summary.count == len(durations)
    assert summary.p50 is not None
    assert summary.p95 is not None
    assert summary.p99 is not None
    assert summary.p50 <= summary.p95 <= summary.p99


@given(st.lists(DURATIONS, max_size=30), st.lists(DURATIONS, max_size=30))
def test_sums_are_as_if_recorded_together(first: list[float], second: list[float]) -> None:
    parts = [LatencyHistogram(tuple(trimmed(list(recorded(part).counts)))) for part in (first, second)]
    together = sum_histograms(parts)
    assert trimmed(list(together.counts)) == trimmed(list(recorded(first + second).counts))


def test_nothing_has_no_quantiles() -> None:
    assert NO_LATENCIES.summary.count == 0
    assert NO_LATENCIES.quantile(0.5) is None


@pytest.mark.parametrize(("seconds", "bucket"), [(-1.0, 0), (0.0, 0), (0.001, 0), (0.0011, 1), (1e9, BUCKETS - 1)])
def test_durations_at_the_ends_have_a_bucket(seconds: float, bucket: int) -> None:
    assert bucket_of(seconds) == bucket


def test_a_code_has_both_buckets_or_says_that_the_wait_is_unknown() -> None:
    assert divmod(latency_codes([3.0], [0.2])[0], CODE_BASE) == (bucket_of(3.0), bucket_of(0.2))
    assert divmod(latency_codes([None], [0.2])[0], CODE_BASE) == (UNKNOWN_WAIT, bucket_of(0.2))
