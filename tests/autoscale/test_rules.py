"""The rule, case by case."""

from __future__ import annotations

import msgspec
import pytest

from shoal.autoscale.machine import Load
from shoal.autoscale.rules import Bounds, Decision, Kind, Limits, Pace, Past, Signs, decide

BOUNDS = Bounds(2, 10)
PACE = Pace(grow=5, settle=30, hot=5, quiet=30, remember=300)
AT = 1_000.0
CALM = Signs(at=AT, backlog=0, idle=0)
BUSY = Signs(at=AT, backlog=1_250, idle=0)


def decided(now: int, signs: Signs, past: Past = Past(), limits: Limits = Limits()) -> Decision:  # noqa: B008 - frozen
    return decide(now, BOUNDS, signs, past, PACE, limits)


def but(signs: Signs, **changes: object) -> Signs:
    return msgspec.structs.replace(signs, **changes)


CASES = {
    "grows while there is more than those there can take": (
        (4, BUSY),
        (8, "1,250 items are ready and all 4 are busy"),
    ),
    "from one alone": ((2, but(BUSY, backlog=1)), (3, "1 item is ready and all 2 are busy")),
    "no more than the items need": ((4, but(BUSY, backlog=17, each=16)), (6, "17 items are ready and all 4 are busy")),
    "never above the most": ((8, BUSY), (10, "1,250 items are ready and all 8 are busy")),
    "at the most": ((10, BUSY), (10, "10 is the most that is allowed; 1,250 items are ready")),
    "not while some are free or have not come yet": ((4, but(BUSY, idle=1)), (4, "1 of 4 have room for more")),
    "lanes are no backlog": (
        (4, but(CALM, behind_lanes=500)),
        (4, "500 items wait for their lanes, where more would not help"),
    ),
    "memory": ((8, but(BUSY, load=Load(memory=0.88))), (6, "memory is at 88 % of its limit")),
    "memory about to run out": ((8, but(BUSY, load=Load(memory=0.93))), (4, "memory is at 93 % of its limit")),
    "memory at the least": ((2, but(BUSY, load=Load(memory=0.93))), (2, "memory is at 93 % of its limit")),
    "memory warns": ((4, but(BUSY, load=Load(memory=0.75))), (4, "memory is at 75 % of its limit")),
    "memory that is there": ((4, but(BUSY, load=Load(memory=0.5))), (8, "1,250 items are ready and all 4 are busy")),
    "errors": (
        (6, but(BUSY, ended=140, failed=85)),
        (3, "61 % of the last 140 attempts failed"),
    ),
    "errors warn": ((6, but(BUSY, ended=140, failed=42)), (6, "30 % of the last 140 attempts failed")),
    "too few to say": ((4, but(BUSY, ended=19, failed=19)), (8, "1,250 items are ready and all 4 are busy")),
    "throttled": (
        (6, but(BUSY, ended=100, throttled=25)),
        (3, "the site asked to wait in 25 % of the last 100 attempts"),
    ),
    "throttled warns": (
        (6, but(BUSY, ended=100, throttled=10)),
        (6, "the site asked to wait in 10 % of the last 100 attempts"),
    ),
    "memory before errors": (
        (8, but(BUSY, load=Load(memory=0.88), ended=100, failed=100)),
        (6, "memory is at 88 % of its limit"),
    ),
    "a moment of full CPU": ((8, but(BUSY, load=Load(cpu=0.97))), (8, "the CPU is at 97 %")),
    "a CPU that is nearly full": ((4, but(BUSY, load=Load(cpu=0.89))), (8, "1,250 items are ready and all 4 are busy")),
    "a process that keeps its core busy": ((4, but(BUSY, process=0.97)), (4, "this process keeps a core busy (97 %)")),
    "below the bounds": ((1, CALM), (2, "2 to 10 are allowed")),
    "above the bounds": ((20, CALM), (10, "2 to 10 are allowed")),
    "as many as needed": ((4, CALM), (4, "nobody waits for room")),
}


@pytest.mark.parametrize("name", CASES)
def test_at_first_sight(name: str) -> None:  # S2.20
    (now, signs), expected = CASES[name]
    decision = decided(now, signs)
    assert (decision.target, decision.why) == expected


def test_a_full_cpu_counts_when_it_lasts() -> None:
    full = but(BUSY, load=Load(cpu=0.97))
    first = decided(8, full)
    assert first.target == 8
    later = decided(8, but(full, at=AT + PACE.hot), first.past)
    assert (later.target, later.why) == (6, "the CPU is at 97 %")


def test_a_full_cpu_that_was_free_in_between_does_not_last() -> None:
    full = but(BUSY, load=Load(cpu=0.97))
    past = decided(8, full).past
    past = decided(8, but(BUSY, at=AT + 2, idle=8, load=Load(cpu=0.2)), past).past
    assert decided(8, but(full, at=AT + PACE.hot), past).target == 8


def test_a_cpu_limit_that_holds_back_is_a_full_cpu() -> None:
    held = but(BUSY, load=Load(cpu=0.7, held_back=0.8))
    past = decided(8, held).past
    later = decided(8, but(held, at=AT + PACE.hot), past)
    assert (later.target, later.why) == (6, "the CPU limit stopped it in 80 % of the time slices")


@pytest.mark.parametrize("load", [Load(cpu=1.0, held_back=1.0, memory=1.0), Load()])
def test_load_is_no_reason_when_it_is_unknown_or_not_wanted(load: Load) -> None:
    past = decided(4, but(BUSY, idle=4, load=load), limits=Limits(cpu=1, memory=1)).past
    later = decided(4, but(BUSY, at=AT + 60, load=load), past, Limits(cpu=1, memory=1))
    assert later.target == 8


def test_it_takes_its_time_between_two_steps_up() -> None:
    past = decided(2, BUSY).past
    assert decided(4, but(BUSY, at=AT + 4), past).target == 4
    assert decided(4, but(BUSY, at=AT + 5), past).target == 8


def test_it_waits_for_the_effect_of_a_step_down() -> None:
    bad = but(BUSY, ended=100, failed=100)
    past = decided(8, bad).past
    assert decided(4, but(bad, at=AT + 29), past).target == 4
    assert decided(4, but(bad, at=AT + 30), past).target == 2


def test_a_number_that_was_too_many_is_not_tried_again_at_once() -> None:
    past = decided(8, but(BUSY, ended=100, failed=100)).past
    again = decided(4, but(BUSY, at=AT + 30), past)
    assert again.target == 7
    held = decided(7, but(BUSY, at=AT + 60), again.past)
    assert (held.target, held.kind) == (7, Kind.TOO_MANY)
    assert held.why == "8 were too many 60 s ago: 100 % of the last 100 attempts failed"
    # Five minutes later it is, one more at a time.
    assert decided(7, but(BUSY, at=AT + 300), held.past).target == 8


def test_it_shrinks_slowly_when_there_is_nothing_to_take() -> None:
    idle = but(CALM, idle=6)
    past = decided(8, idle).past
    assert decided(8, but(idle, at=AT + 29), past).target == 8
    less = decided(8, but(idle, at=AT + 30), past)
    assert (less.target, less.kind) == (6, Kind.QUIET)
    assert less.why == "for 30 s there was nothing to take, 6 of 8 had nothing to do"
    assert decided(6, but(idle, idle=4, at=AT + 31), less.past).target == 6
    # New work does not have to wait.
    assert decided(6, but(BUSY, at=AT + 32), less.past).target == 10


def test_those_who_work_are_not_sent_home_for_want_of_more() -> None:
    past = decided(8, CALM).past
    assert decided(8, but(CALM, at=AT + 600), past).target == 8
