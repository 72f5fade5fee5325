"""A worker's share of a budget: its size, and what the ledger is told about it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.egress.shares import (
    MAX_SHARE,
    MIN_SHARE,
    UNANSWERED_SECONDS,
    LedgerTime,
    SharedBudget,
    share_seconds,
    share_size,
)
from shoal.model.egress import BudgetGrant, BudgetPolicy, GrantUse, SiteBudget

POLICY = BudgetPolicy(600, 60.0)


def ledger_time() -> LedgerTime:
    time = LedgerTime()
    time.learn(0.0, 0.0, 1_000_000.0)
    return time


def with_share(calls: int = 10, seconds: float = 3.0, at: float = 0.0) -> SharedBudget:
    budget = SharedBudget(POLICY)
    budget.ask(1, 1, at)
    budget.receive(BudgetGrant(calls=calls, seconds=seconds, left=500), at)
    return budget


@given(st.floats(0, 1e5), st.one_of(st.none(), st.integers(0, 10**9)), st.integers(1, 10**4), st.integers(0, 10**5))
def test_a_share_is_small_and_leaves_something_for_others(
    rate: float, left: int | None, members: int, waiting: int
) -> None:
    size = share_size(rate, left, members, waiting)
    assert 1 <= size <= MAX_SHARE
    if left is not None:
        assert size * members * 2 <= left or size == 1
    if left is None or left >= 2 * members * MAX_SHARE:
        assert size >= min(MAX_SHARE, max(MIN_SHARE, rate, waiting)), "enough for a second at least"


@given(st.one_of(st.none(), st.builds(BudgetPolicy, st.integers(1, 10**6), st.floats(1, 1e7))))
def test_a_share_lives_for_a_small_part_of_the_window(policy: BudgetPolicy | None) -> None:
    seconds = share_seconds(policy)
    assert 0.5 <= seconds <= 30
    assert policy is None or seconds <= max(0.5, policy.seconds / 20) + 1e-9


@given(st.lists(st.tuples(st.floats(0, 0.5), st.booleans()), max_size=60))
def test_no_more_calls_are_made_than_were_granted_and_none_too_late(steps: list[tuple[float, bool]]) -> None:
    budget, time, now = SharedBudget(POLICY), ledger_time(), 0.0
    granted: dict[int, tuple[int, float]] = {}
    made: list[tuple[int, float]] = []
    told: dict[int, GrantUse] = {}
    for number, (wait, settles) in enumerate(steps):
        now += wait
        call = budget.spend(now)
        if call is not None and call.share is not None:
            made.append((call.share.grant, now))
            if number % 3:
                budget.answer(call, None, now)
        elif budget.needs_more(now):
            request = budget.ask(number, 2, now)
            granted[number] = (request.calls, now + request.seconds)
            budget.receive(BudgetGrant(calls=request.calls, seconds=request.seconds, left=100), now + 0.01)
        if settles:
            for use in budget.settlement(time, now)[0]:
                assert use.grant not in told or told[use.grant].made == use.made, "what was returned stays returned"
                told[use.grant] = use
            budget.settled()
    for grant, (calls, until) in granted.items():
        times = [at for owner, at in made if owner == grant]
        assert len(times) <= calls
        assert all(at < until for at in times)
        if grant in told:
            assert told[grant].made == len(times), "no call is made after its share was settled"


def test_the_next_share_is_asked_for_before_this_one_is_used_up() -> None:
    budget = with_share(calls=100, seconds=60.0)
    now = 0.0
    while not budget.needs_more(now):
        now += 0.02
        assert budget.spend(now) is not None
    assert 0 < budget.calls_left(now) < 50, "with 50 calls a second, half a second ahead"


@pytest.mark.parametrize(("rate", "ahead"), [(50, 0.5), (2, 0.0)])
def test_a_fast_worker_asks_before_its_share_ends(rate: int, ahead: float) -> None:
    """A slow one does not: it would hold two shares at once."""
    ends = 10.0
    budget = with_share(calls=10_000, seconds=ends)
    now = 0.0
    while not budget.needs_more(now):
        now += 1 / rate
        budget.spend(now)
    assert ends - ahead <= now <= ends - ahead + 2 / rate


def test_what_is_not_used_is_given_back() -> None:
    budget, time = with_share(calls=10), ledger_time()
    first, second = budget.spend(1.0), budget.spend(1.1)
    assert first is not None
    assert second is not None
    budget.answer(first, None, 1.5)
    budget.end_shares()
    assert budget.spend(1.6) is None
    assert budget.settlement(time, 2.0) == ((GrantUse(grant=1, made=2),), None), "one has no answer yet"
    budget.settled()
    assert not budget.has_news(2.0)
    budget.answer(second, None, 2.5)
    assert budget.settlement(time, 3.0) == ((GrantUse(grant=1, made=2, answered=(1_000_001.5, 1_000_002.5)),), None)


def test_a_call_that_never_gets_an_answer_is_given_up() -> None:
    budget, time = with_share(calls=1, seconds=3.0), ledger_time()
    assert budget.spend(1.0) is not None
    assert budget.settlement(time, 4.0)[0] == (GrantUse(grant=1, made=1),)
    budget.settled()
    late = 3.0 + UNANSWERED_SECONDS + 1
    assert budget.settlement(time, late)[0] == (GrantUse(grant=1, made=1, answered=(1_000_000.0 + late,)),)


def test_what_the_ledger_did_not_hear_is_told_again_as_it_was() -> None:
    """The times of calls and the site's numbers belong together."""
    budget, time = with_share(calls=1), ledger_time()
    call = budget.spend(1.0)
    assert call is not None
    budget.answer(call, SiteBudget(remaining=5, limit=10), 1.2)
    told = budget.settlement(time, 1.3)
    assert told[0] == (GrantUse(grant=1, made=1, answered=(0.0,)),)
    assert told[1] is not None
    assert (told[1].remaining, told[1].sent_at) == (5, 1_000_001.0)
    budget.ask(2, 1, 2.0)
    budget.fail(3.0, "waiting for the ledger")
    assert budget.settlement(time, 9.0) is told
    budget.settled()
    assert budget.settlement(time, 9.0) == ((), None)


def test_of_answers_to_requests_at_once_the_one_is_told_that_leaves_the_most() -> None:
    budget, time = with_share(calls=3), ledger_time()
    calls = [budget.spend(1.0 + number / 100) for number in range(3)]
    for call, remaining in zip(calls, (52, 50, 51), strict=True):
        assert call is not None
        budget.answer(call, SiteBudget(remaining=remaining), 1.5)
    _, said = budget.settlement(time, 2.0)
    assert said is not None
    assert said.remaining == 52, "all three were sent before the first answer, so 52 less two are left for certain"


def test_the_end_of_a_window_is_known_better_with_every_answer() -> None:
    budget, time = with_share(calls=3, seconds=30.0), ledger_time()
    ends = []
    for sent, said in ((1.0, 10.0), (1.6, 9.0), (2.2, 9.0)):
        call = budget.spend(sent)
        assert call is not None
        budget.answer(call, SiteBudget(remaining=5, reset_seconds=said, reset_slack=1.0), sent + 0.1)
        _, told = budget.settlement(time, sent + 0.1)
        budget.settled()
        assert told is not None
        assert told.reset_from is not None
        assert told.reset_at is not None
        ends.append((round(told.reset_from - 1_000_000, 6), round(told.reset_at - 1_000_000, 6)))
    assert ends == [(10.0, 11.1), (10.0, 10.7), (10.2, 10.7)]


def test_our_times_in_the_ledgers_clock_are_bounded_from_both_sides() -> None:
    time = LedgerTime()
    assert not time.is_known
    time.learn(10.0, 10.4, 500.0)
    assert (time.earliest(11.0), time.latest(11.0)) == (500.6, 501.0)
    time.learn(20.0, 21.0, 511.0)
    assert time.latest(11.0) == 501.0, "the more exact measurement stays"
    time.learn(100.0, 101.0, 600.0)
    assert time.latest(101.0) == 601.0, "for a minute"
