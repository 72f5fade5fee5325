"""Lanes: a limit and a delay that items share."""

from __future__ import annotations

import math

import msgspec

from shoal.errors import InvalidSetting

MAX_LANE_LIMIT = 1_000_000
MAX_LANE_DELAY = 86_400.0


class LanePolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How many items of a lane may be under way, and how far apart their starts are.

    `limit`: items out of `waiting` at once. `delay_min`..`delay_max`: seconds between two starts, drawn anew each
    time (equal values: no jitter). `ordered`: a sequential group: one at a time, in order, a retrying head keeps its
    place; always of one run. `shared`: the lane is common to all runs of the ledger (a host); otherwise the run's own.
    """

    limit: int = 1
    delay_min: float = 0.0
    delay_max: float = 0.0
    ordered: bool = False
    shared: bool = True

    def checked(self) -> LanePolicy:
        if type(self.limit) is not int or not 1 <= self.limit <= MAX_LANE_LIMIT:
            raise InvalidSetting(f"A lane's limit is {self.limit!r}; it must be from 1 to {MAX_LANE_LIMIT}.")
        for name in ("delay_min", "delay_max"):
            value = getattr(self, name)
            if not (math.isfinite(value) and 0 <= value <= MAX_LANE_DELAY):
                raise InvalidSetting(
                    f"A lane's {name} is {value!r}; it must be from 0 to {MAX_LANE_DELAY:.0f} seconds."
                )
        if self.delay_min > self.delay_max:
            raise InvalidSetting(f"A lane's delay_min {self.delay_min} is above its delay_max {self.delay_max}.")
        if self.ordered and (self.limit != 1 or self.shared):
            raise InvalidSetting("An ordered lane runs one at a time within one run: use limit=1 and shared=False.")
        return self


class LaneView(msgspec.Struct, frozen=True, kw_only=True):
    """A lane as it stands. `policy` has the delay that holds now.

    `floor`: the delay is at least so many seconds, because of `floor_why`, unless an operator set it.
    """

    key: str
    run_id: str | None
    policy: LanePolicy
    paused: bool
    blocked_seconds: float
    blocked_why: str | None
    next_seconds: float
    taken: int
    unstarted: int
    waiting: int
    set_by_operator: bool
    floor: float = 0.0
    floor_why: str | None = None
