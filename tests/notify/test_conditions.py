"""Alert conditions of constructed runs."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pytest

from shoal.config import DeadLimit
from shoal.config.values import AlertKind
from shoal.model.run import RunState
from shoal.model.views import Counts, RecentActivity, WaitReason
from shoal.notify.conditions import (
    AlertRules,
    end_condition,
    has_just_ended,
    is_waiting_as_configured,
    running_conditions,
)
from tests.support.snapshots import NOON, run_like

RULES = AlertRules(stall_after=600, error_share=DeadLimit(Decimal(50), True), max_dead=DeadLimit(Decimal(10), True))
LATER = NOON + dt.timedelta(hours=2)


def recent(quiet: float = 0.0, **counts: int) -> RecentActivity:
    """What happened lately, as seen two hours after noon."""
    known: dict[str, Any] = {"done": 0, "dead": 0, "skipped": 0, "retried": 0, "throttled": 0, "results": 0}
    return RecentActivity(**(known | counts), seconds=0.0, quiet_since=LATER - dt.timedelta(seconds=quiet))


@pytest.mark.parametrize(
    ("state", "counts", "lately", "kinds"),
    [
        (RunState.ACTIVE, Counts(leased=3), recent(599), []),
        (RunState.ACTIVE, Counts(leased=3), recent(600), [AlertKind.STALL]),
        (RunState.ACTIVE, Counts(ready=1, done=99), recent(6_000), [AlertKind.STALL]),
        (RunState.ACTIVE, Counts(done=100), recent(6_000), []),  # nothing remains: more items are to come
        (RunState.PAUSED, Counts(ready=3), recent(6_000), []),
        (RunState.ACTIVE, Counts(ready=3), recent(done=2, dead=98), [AlertKind.ERRORS]),
        (RunState.ACTIVE, Counts(ready=3), recent(done=2, retried=98), [AlertKind.ERRORS]),
        (RunState.ACTIVE, Counts(ready=3), recent(done=50, retried=25, dead=25), []),
        (RunState.ACTIVE, Counts(ready=3), recent(done=49, retried=26, dead=25), [AlertKind.ERRORS]),
        (RunState.ACTIVE, Counts(ready=3), recent(dead=19), []),  # too few to tell
        (RunState.ACTIVE, Counts(ready=3), recent(dead=20), [AlertKind.ERRORS]),
        (RunState.ACTIVE, Counts(ready=3), recent(done=20, throttled=1_000), []),  # no fault of anybody
        (RunState.ACTIVE, Counts(ready=3), recent(700, dead=30), [AlertKind.STALL, AlertKind.ERRORS]),
        (RunState.PAUSED, Counts(ready=3), recent(dead=100), []),
    ],
)
def test_running_conditions(state: RunState, counts: Counts, lately: RecentActivity, kinds: list[AlertKind]) -> None:
    found = running_conditions(run_like(state=state), counts, lately, LATER, RULES)
    assert [condition.kind for condition in found] == kinds


def test_a_stall_episode_ends_with_progress() -> None:
    def episode(quiet: float, now: dt.datetime) -> str:
        (condition,) = running_conditions(run_like(), Counts(leased=1), recent(quiet), now, RULES)
        return condition.episode

    assert episode(700, LATER) == episode(700, LATER + dt.timedelta(hours=5))
    assert episode(700, LATER) != episode(650, LATER)


def test_an_errors_episode_is_an_hour() -> None:
    def episode(minutes: int) -> str:
        now = LATER + dt.timedelta(minutes=minutes)
        (condition,) = running_conditions(run_like(), Counts(), recent(dead=50), now, RULES)
        return condition.episode

    assert episode(0) == episode(59) != episode(60)


DUE = NOON + dt.timedelta(hours=3)


@pytest.mark.parametrize(
    ("counts", "gates", "excused"),
    [
        (Counts(delayed=5), [WaitReason(code="delayed_not_before", text="", until=DUE)], True),
        (Counts(delayed=5), [WaitReason(code="delayed_retry", text="", until=DUE)], False),
        (Counts(delayed=5), [WaitReason(code="delayed_throttled", text="", until=DUE)], False),
        (
            Counts(delayed=5),
            [
                WaitReason(code="delayed_not_before", text="", until=DUE),
                WaitReason(code="delayed_retry", text="", until=DUE),
            ],
            False,
        ),
        (Counts(delayed=5, leased=1), [WaitReason(code="delayed_not_before", text="", until=DUE)], False),
        (Counts(delayed=5, ready=1), [WaitReason(code="delayed_not_before", text="", until=DUE)], False),
        (Counts(delayed=1, waiting=9), [WaitReason(code="delayed_lane", text="", until=DUE)], True),  # one an hour, say
        (
            Counts(delayed=5),
            [WaitReason(code="delayed_not_before", text="", until=NOON)],
            False,
        ),  # due, and nobody came
        (Counts(waiting=5), [WaitReason(code="lane_paused", text="")], False),
        (Counts(ready=5), [], False),
    ],
)
def test_a_configured_wait_is_not_a_stall(counts: Counts, gates: list[WaitReason], excused: bool) -> None:
    assert is_waiting_as_configured(counts, gates, LATER) is excused


@pytest.mark.parametrize(
    ("state", "counts", "idempotency_key", "kind"),
    [
        (RunState.FINISHED, Counts(done=100), None, AlertKind.FINISH),
        (RunState.FINISHED, Counts(done=90, dead=10), None, AlertKind.FINISH),
        (RunState.FINISHED, Counts(done=89, dead=11), None, AlertKind.FAILURE),
        (RunState.CANCELLED, Counts(cancelled=3), None, AlertKind.FAILURE),
        (RunState.FINISHED, Counts(done=100), "schedule nightly", AlertKind.FINISH),
        (RunState.FINISHED, Counts(done=100), "collection papers", None),  # the collection tells
        (RunState.FINISHED, Counts(dead=100), "collection papers", None),
    ],
)
def test_end_condition(state: RunState, counts: Counts, idempotency_key: str | None, kind: AlertKind | None) -> None:
    condition = end_condition(run_like(state=state, finished_at=LATER, idempotency_key=idempotency_key), counts, RULES)
    assert (condition and condition.kind) == kind


def test_a_run_with_nothing_but_failures_has_failed_however_few_they_are() -> None:
    run, counts = run_like(state=RunState.FINISHED, finished_at=LATER), Counts(done=99, dead=1)
    condition = end_condition(run, counts, RULES, only_failures=True)
    assert condition is not None
    assert (condition.kind, condition.text) == (AlertKind.FAILURE, "Nothing was found, and 1 item of 100 failed.")


def test_a_running_run_has_no_end_condition() -> None:
    assert end_condition(run_like(), Counts(done=1), RULES) is None


@pytest.mark.parametrize(("minutes", "is_news"), [(0, True), (59, True), (60, False)])
def test_an_end_is_recent_for_an_hour(minutes: int, is_news: bool) -> None:
    run = run_like(state=RunState.FINISHED, finished_at=LATER)
    assert has_just_ended(run, LATER + dt.timedelta(minutes=minutes)) is is_news


def test_a_collection_itself_does_not_stall() -> None:
    """Its items may take hours each; but one of them that failed is one too many."""
    run = run_like(scraper="collection.pacific")
    assert running_conditions(run, Counts(leased=3), recent(6_000), LATER, RULES) == []
    ended = run_like(scraper="collection.pacific", state=RunState.FINISHED, finished_at=LATER)
    condition = end_condition(ended, Counts(done=23, dead=1), RULES)
    assert condition is not None
    assert condition.kind is AlertKind.FAILURE
