"""The rule over time, in a small world that answers to what it decides."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest

from shoal.autoscale.machine import Load
from shoal.autoscale.rules import Bounds, LoadLimits, ScalingDelays, ScalingHistory, ScalingInputs, decide

BOUNDS = Bounds(2, 20)
DELAYS = ScalingDelays(between_growth=4, cooldown=30, cpu_full=6, idle=30, avoid_failed_size=300)
LOOK = 2.0


class World:
    """Items come at a rate; each of those there does one a second, if the machine and the site let it."""

    def __init__(self, arrivals: Callable[[float], float]) -> None:
        self.arrivals = arrivals
        self.waiting = 0.0
        self.fails_above = 10**6
        self.cores = 10**6

    def pass_by(self, at: float, now: int) -> ScalingInputs:
        self.waiting += self.arrivals(at) * LOOK
        able = now * LOOK
        done = min(self.waiting, able)
        self.waiting -= done
        failing = now > self.fails_above
        return ScalingInputs(
            at=at,
            backlog=int(self.waiting),
            idle=int((able - done) / LOOK),
            ended=int(30 * done),
            failed=int(30 * done * 0.8) if failing else 0,
            load=Load(cpu=min(1.0, done / LOOK / self.cores), memory=0.3),
        )


def course(world: World, seconds: float, now: int = 2) -> list[tuple[float, int]]:
    """How many there were, look by look."""
    history, at, seen = ScalingHistory(), 0.0, []
    while at < seconds:
        decision = decide(now, BOUNDS, world.pass_by(at, now), history, DELAYS, LoadLimits())
        now, history = decision.target, decision.history
        assert BOUNDS.least <= now <= BOUNDS.most
        seen.append((at, now))
        at += LOOK
    return seen


def changes(seen: list[tuple[float, int]]) -> list[tuple[float, int]]:
    return [after for before, after in pairwise(seen) if before[1] != after[1]]


def turns(seen: list[tuple[float, int]]) -> int:
    """How often it went up after it had gone down, or the other way round."""
    steps = [after[1] - before[1] for before, after in pairwise(seen) if before[1] != after[1]]
    return sum(one * other < 0 for one, other in pairwise(steps))


def test_it_reaches_the_most_within_half_a_minute_and_returns_to_the_least() -> None:
    seen = course(World(lambda at: 100 if at < 60 else 0), 1_200)
    assert next(at for at, now in seen if now == BOUNDS.most) <= 30
    assert seen[-1][1] == BOUNDS.least
    assert turns(seen) == 1


@pytest.mark.parametrize("rate", [1, 5, 9, 15])
def test_it_converges_with_steady_work(rate: int) -> None:
    """Enough to keep up, no flapping: after some minutes it changes no more."""
    world = World(lambda _: rate)
    seen = course(world, 3_600)
    assert world.waiting < rate * LOOK
    assert max(2, rate) <= seen[-1][1] <= max(2, 2 * rate)
    assert [change for change in changes(seen) if change[0] > 900] == []


def test_bursts_do_not_make_it_oscillate() -> None:
    """Ten seconds of work every twenty: it keeps those it will need again."""
    seen = course(World(lambda at: 20 if at % 20 < 10 else 0), 1_800)
    assert turns(seen) <= 2


def test_it_converges_to_what_a_site_allows() -> None:
    world = World(lambda _: 100)
    world.fails_above = 7
    seen = course(world, 3_600)
    long_run = [now for at, now in seen if at > 600]
    assert sum(now > 7 for now in long_run) / len(long_run) < 0.15
    assert sum(long_run) / len(long_run) > 4
    # Up again after five minutes, and down: that is a turn or two in five minutes, not in a minute.
    assert turns(seen) <= 2 * 3_600 / DELAYS.avoid_failed_size + 2


def test_it_converges_to_what_the_cores_allow() -> None:
    world = World(lambda _: 100)
    world.cores = 4
    seen = course(world, 3_600)
    long_run = [now for at, now in seen if at > 600]
    assert 2 <= sum(long_run) / len(long_run) <= 5
    assert turns(seen) <= 2 * 3_600 / DELAYS.avoid_failed_size + 2
