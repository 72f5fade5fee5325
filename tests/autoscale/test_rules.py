"""The rule, case by case."""

from __future__ import annotations

import msgspec
import pytest

from shoal.autoscale.machine import Load
from shoal.autoscale.rules import (
    Bounds,
    LoadLimits,
    ScalingDecision,
    ScalingDelays,
    ScalingHistory,
    ScalingInputs,
    ScalingReason,
    decide,
)

BOUNDS = Bounds(2, 10)
DELAYS = ScalingDelays(between_growth=5, cooldown=30, cpu_full=5, idle=30, avoid_failed_size=300)
AT = 1_000.0
CALM = ScalingInputs(at=AT, backlog=0, idle=0)
BUSY = ScalingInputs(at=AT, backlog=1_250, idle=0)


def decided(
    now: int,
    inputs: ScalingInputs,
    history: ScalingHistory = ScalingHistory(),  # noqa: B008 - frozen
    limits: LoadLimits = LoadLimits(),  # noqa: B008 - frozen
) -> ScalingDecision:
    return decide(now, BOUNDS, inputs, history, DELAYS, limits)


def but(inputs: ScalingInputs, **changes: object) -> ScalingInputs:
    return msgspec.structs.replace(inputs, **changes)


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
        (4, but(CALM, waiting_for_lanes=500)),
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
    "as many as needed": ((4, CALM), (4, "no item is ready")),
}


@pytest.mark.parametrize("name", CASES)
def test_the_first_decision(name: str) -> None:  # S2.20
    (now, inputs), expected = CASES[name]
    decision = decided(now, inputs)
    assert (decision.target, decision.why) == expected


def test_a_full_cpu_counts_when_it_lasts() -> None:
    full = but(BUSY, load=Load(cpu=0.97))
    first = decided(8, full)
    assert first.target == 8
    later = decided(8, but(full, at=AT + DELAYS.cpu_full), first.history)
    assert (later.target, later.why) == (6, "the CPU is at 97 %")


def test_a_cpu_that_was_free_in_between_is_not_full_for_long() -> None:
    full = but(BUSY, load=Load(cpu=0.97))
    history = decided(8, full).history
    history = decided(8, but(BUSY, at=AT + 2, idle=8, load=Load(cpu=0.2)), history).history
    assert decided(8, but(full, at=AT + DELAYS.cpu_full), history).target == 8


def test_a_throttled_cpu_is_a_full_cpu() -> None:
    held = but(BUSY, load=Load(cpu=0.7, cpu_throttled=0.8))
    history = decided(8, held).history
    later = decided(8, but(held, at=AT + DELAYS.cpu_full), history)
    assert (later.target, later.why) == (6, "the CPU limit stopped it in 80 % of the time slices")


@pytest.mark.parametrize("load", [Load(cpu=1.0, cpu_throttled=1.0, memory=1.0), Load()])
def test_an_unknown_or_unlimited_load_is_ignored(load: Load) -> None:
    history = decided(4, but(BUSY, idle=4, load=load), limits=LoadLimits(cpu=1, memory=1)).history
    later = decided(4, but(BUSY, at=AT + 60, load=load), history, LoadLimits(cpu=1, memory=1))
    assert later.target == 8


def test_it_waits_between_two_steps_up() -> None:
    history = decided(2, BUSY).history
    assert decided(4, but(BUSY, at=AT + 4), history).target == 4
    assert decided(4, but(BUSY, at=AT + 5), history).target == 8


def test_it_waits_for_the_effect_of_a_step_down() -> None:
    bad = but(BUSY, ended=100, failed=100)
    history = decided(8, bad).history
    assert decided(4, but(bad, at=AT + 29), history).target == 4
    assert decided(4, but(bad, at=AT + 30), history).target == 2


def test_a_size_that_was_too_large_is_not_tried_again_at_once() -> None:
    history = decided(8, but(BUSY, ended=100, failed=100)).history
    again = decided(4, but(BUSY, at=AT + 30), history)
    assert again.target == 7
    held = decided(7, but(BUSY, at=AT + 60), again.history)
    assert (held.target, held.kind) == (7, ScalingReason.TOO_MANY)
    assert held.why == "8 were too many 60 s ago: 100 % of the last 100 attempts failed"
    # Five minutes later it is, one more at a time.
    assert decided(7, but(BUSY, at=AT + 300), held.history).target == 8


def test_it_shrinks_slowly_without_a_backlog() -> None:
    idle = but(CALM, idle=6)
    history = decided(8, idle).history
    assert decided(8, but(idle, at=AT + 29), history).target == 8
    less = decided(8, but(idle, at=AT + 30), history)
    assert (less.target, less.kind) == (6, ScalingReason.IDLE)
    assert less.why == "for 30 s there was nothing to take; 6 of 8 were idle"
    assert decided(6, but(idle, idle=4, at=AT + 31), less.history).target == 6
    # New work does not have to wait.
    assert decided(6, but(BUSY, at=AT + 32), less.history).target == 10


def test_busy_ones_are_kept_without_a_backlog() -> None:
    history = decided(8, CALM).history
    assert decided(8, but(CALM, at=AT + 600), history).target == 8
