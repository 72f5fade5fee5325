"""Retry delays and verdicts."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import InvalidSetting
from shoal.model.outcome import (
    MAX_ERROR_CHARS,
    AttemptDecision,
    DecisionKind,
    OutcomeClass,
    RetryPolicy,
    clean_error,
    decide_attempt,
)

PLAIN = RetryPolicy(jitter=0.0)


def decision(
    outcome: OutcomeClass,
    tries: int = 0,
    retry_after: float | None = None,
    error: str = "oops",
    max_attempts: int = 4,
) -> AttemptDecision:
    return decide_attempt(
        outcome,
        tries=tries,
        max_attempts=max_attempts,
        error=error,
        retry_after=retry_after,
        policy=PLAIN,
        rng=random.Random(1),
    )


def test_backoff_doubles_up_to_the_cap() -> None:  # S4.7
    assert [PLAIN.base_delay(tries) for tries in range(1, 11)] == [2, 4, 8, 16, 32, 64, 128, 256, 300, 300]


@given(st.floats(1, 10), st.floats(0.1, 86_400), st.floats(0, 1), st.integers(0, 10_000_000), st.integers(0, 2**32 - 1))
def test_a_delay_is_between_its_base_and_the_cap(
    factor: float, cap: float, jitter: float, tries: int, seed: int
) -> None:
    policy = RetryPolicy(factor=factor, cap=cap, jitter=jitter).checked()
    delay = policy.delay(tries, random.Random(seed))
    assert policy.base_delay(tries) <= delay <= cap
    assert delay <= policy.base_delay(tries) * (1 + jitter) * (1 + 1e-9)


def test_jitter_spreads() -> None:
    rng = random.Random(7)
    delays = {round(RetryPolicy(jitter=0.5).delay(3, rng), 3) for _ in range(50)}
    assert len(delays) > 40
    assert all(8 <= delay <= 12 for delay in delays)


@pytest.mark.parametrize(
    "policy",
    [
        RetryPolicy(factor=0.5),
        RetryPolicy(factor=11),
        RetryPolicy(factor=float("nan")),
        RetryPolicy(cap=0),
        RetryPolicy(cap=float("inf")),
        RetryPolicy(jitter=-0.1),
        RetryPolicy(jitter=2),
    ],
)
def test_a_senseless_policy_is_refused(policy: RetryPolicy) -> None:
    with pytest.raises(InvalidSetting):
        policy.checked()


def test_done_is_done() -> None:
    assert decision(OutcomeClass.DONE).kind is DecisionKind.DONE


def test_permanent_is_dead_at_once() -> None:  # S4.6
    assert decision(OutcomeClass.PERMANENT) == AttemptDecision(DecisionKind.DEAD, OutcomeClass.PERMANENT, 0.0, "oops")


@pytest.mark.parametrize("outcome", [OutcomeClass.TRANSIENT, OutcomeClass.BLOCKED])
def test_four_attempts_are_one_try_and_three_retries(outcome: OutcomeClass) -> None:  # S1.17
    kinds = [decision(outcome, tries).kind for tries in range(4)]
    assert kinds == [DecisionKind.RETRY] * 3 + [DecisionKind.DEAD]
    assert [decision(outcome, tries).delay for tries in range(3)] == [2, 4, 8]
    assert decision(outcome, 3).error == "Exceeded retries: oops"


@pytest.mark.parametrize("outcome", [OutcomeClass.TRANSIENT, OutcomeClass.BLOCKED])
def test_retries_were_exceeded_when_there_was_one(outcome: OutcomeClass) -> None:
    """Also when the limit was lowered to none while the item waited for its fourth try."""
    assert decision(outcome, 3, max_attempts=1).error == "Exceeded retries: oops"
    assert decision(outcome, 0, max_attempts=1).error == "oops"


def test_throttled_is_never_dead_and_waits_as_long_as_asked() -> None:
    assert decision(OutcomeClass.THROTTLED, tries=99, retry_after=17) == AttemptDecision(
        DecisionKind.THROTTLED, OutcomeClass.THROTTLED, 17, "oops"
    )
    assert decision(OutcomeClass.THROTTLED, retry_after=-5).delay == 0
    assert decision(OutcomeClass.THROTTLED, retry_after=1e12).delay == 86_400
    assert decision(OutcomeClass.THROTTLED).delay == 2


def test_a_retry_after_on_a_transient_error_is_obeyed() -> None:
    assert decision(OutcomeClass.TRANSIENT, retry_after=30).delay == 30


@pytest.mark.parametrize("outcome", [OutcomeClass.CRASHED, OutcomeClass.POISON, OutcomeClass.RELEASED])
def test_only_the_ledger_says_these(outcome: OutcomeClass) -> None:
    with pytest.raises(InvalidSetting):
        decision(outcome)


def test_error_texts_fit_any_database() -> None:
    assert clean_error(None) is None
    assert clean_error("a\0b\ud800") == "a\\0b\\ud800"
    long = clean_error("x" * 10_000)
    assert long is not None
    assert len(long) == MAX_ERROR_CHARS
