"""The steps of a history, what items wait for, and the time that a lane takes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.model.causes import DELAY_CAUSES, LANE_CAUSES, open_items_by_cause
from shoal.model.history import MAX_HISTORY_POINTS, MINUTES_KEPT_SECONDS, history_step
from shoal.model.lane import LanePolicy, LaneView, lane_eta
from shoal.model.views import Counts, WaitReason


@given(st.integers(15, 129_600))
def test_a_step_gives_at_most_240_points_of_what_is_kept(minutes: int) -> None:
    step = history_step(minutes * 60)
    assert step % 60 == 0
    assert minutes * 60 / step <= MAX_HISTORY_POINTS or step == 86_400
    if minutes * 60 > MINUTES_KEPT_SECONDS:
        assert step % 3_600 == 0


@pytest.mark.parametrize(
    ("minutes", "step"), [(60, 60), (240, 60), (241, 120), (1_440, 600), (2_880, 900), (10_080, 3_600)]
)
def test_usual_times_have_round_steps(minutes: int, step: int) -> None:
    assert history_step(minutes * 60) == step


CODES = ("egress", "held_by_dead", "no_worker", "run_paused", "ledger_full", *LANE_CAUSES, *DELAY_CAUSES)
SOME = st.integers(0, 10**7)
POOLS = st.sampled_from((None, "p", "q"))
REASONS = st.lists(
    st.builds(WaitReason, code=st.sampled_from(CODES), text=st.just("?"), items=st.none() | SOME, pool=POOLS),
    max_size=8,
)
COUNTS = st.builds(Counts, ready=SOME, waiting=SOME, delayed=SOME, leased=SOME)


@given(COUNTS, REASONS, st.dictionaries(st.sampled_from(("", *LANE_CAUSES)), SOME, max_size=6))
def test_causes_add_up_to_the_open_items(counts: Counts, reasons: list[WaitReason], lanes: dict[str, int]) -> None:
    by_cause = open_items_by_cause(counts, reasons, lanes)
    assert sum(by_cause.values()) == counts.remaining
    assert all(items > 0 for items in by_cause.values())


def test_waiting_items_are_divided_by_the_lanes_that_were_looked_at() -> None:
    counts = Counts(ready=5, waiting=1_000, delayed=30, leased=4)
    reasons = [
        WaitReason(code="egress", text="?", items=7, pool="eu"),
        WaitReason(code="delayed_retry", text="?", items=10),
    ]
    lanes = {"lane_limit": 30, "lane_delay": 10, "": 10}
    idle = WaitReason(code="lane_workers", text="?", items=600)
    found = open_items_by_cause(counts, [*reasons, idle], lanes)
    assert (found["free workers"], "host limit" in found) == (600, False), "ready items have the places of full lanes"
    assert open_items_by_cause(counts, reasons, lanes) == {
        "being worked on": 4,
        "egress eu": 7,
        "host limit": 600,
        "host delay": 199,
        "their lanes": 199,
        "retries": 10,
        "other delays": 20,
    }


def lane(**fields: object) -> LaneView:
    shown: dict[str, object] = {
        "key": "x",
        "run_id": None,
        "policy": LanePolicy(limit=2, delay_min=1.0, delay_max=3.0),
        "paused": False,
        "blocked_seconds": 0.0,
        "blocked_why": None,
        "next_seconds": 0.0,
        "taken": 0,
        "unstarted": 0,
        "waiting": 0,
        "set_by_operator": False,
    }
    return LaneView(**{**shown, **fields})  # type: ignore[arg-type]


def test_a_lane_takes_as_long_as_its_delay_and_its_limit_make_it() -> None:
    assert lane_eta(lane()) == (0.0, 0.0)
    assert lane_eta(lane(waiting=11)) == (10.0, 30.0)
    assert lane_eta(lane(waiting=11, blocked_seconds=60.0)) == (70.0, 90.0)
    assert lane_eta(lane(waiting=11), 0.5) == (10.5, 30.5)
    # With slow items the limit decides: 6 turns of two.
    assert lane_eta(lane(waiting=10, taken=2), 10.0) == (60.0, 60.0)
    assert lane_eta(lane(waiting=10, policy=LanePolicy(limit=1, ordered=True, shared=False)), 2.0) == (20.0, 20.0)


def test_a_paused_lane_has_no_end() -> None:
    assert lane_eta(lane(waiting=1, paused=True)) is None
    assert lane_eta(lane(paused=True)) == (0.0, 0.0)
