"""Lanes: a limit and a delay that items share."""

from __future__ import annotations

import datetime as dt
import math
import re

import msgspec

from shoal.errors import InvalidSetting
from shoal.model.item import Lease

MAX_LANE_LIMIT = 1_000_000
MAX_LANE_DELAY = 86_400.0
MAX_STARTS = 1_000
_NUMBER = r"\d{1,9}(?:\.\d{1,9})?"
_RATE = re.compile(rf"(?P<starts>{_NUMBER})\s*/\s*(?P<count>{_NUMBER})?\s*(?P<unit>[a-z]+)", re.ASCII)
_SECONDS = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60),
    **dict.fromkeys(("h", "hour", "hours"), 3_600),
    **dict.fromkeys(("d", "day", "days"), 86_400),
}
# functions/20_intake.sql has the same rule.
_LOOPBACK = re.compile(r"(127(\.[0-9]+){3}|([a-z0-9-]+\.)*localhost|\[::1\])(:[0-9]+)?", re.ASCII)
_EXAMPLES = "Write starts per time, such as 2/s, 30/min, 1/10s or 500/day."


class LanePolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How many items of a lane run at once, and the delay between their starts.

    `limit`: items outside `waiting` at once. `delay_min`..`delay_max`: seconds between two starts, chosen at random
    each time (equal values: no jitter). `ordered`: a sequential group of one run: one at a time, in order; an item that
    waits for a retry keeps its slot. `shared`: the lane is used by all runs (a host), otherwise by one run.
    `loopback_limit`: if given, lanes of hosts on this machine have this limit and no delay.
    """

    limit: int = 1
    delay_min: float = 0.0
    delay_max: float = 0.0
    ordered: bool = False
    shared: bool = True
    loopback_limit: int | None = None

    def checked(self) -> LanePolicy:
        for limit in (self.limit,) if self.loopback_limit is None else (self.limit, self.loopback_limit):
            if type(limit) is not int or not 1 <= limit <= MAX_LANE_LIMIT:
                raise InvalidSetting(f"A lane's limit is {limit!r}; it must be from 1 to {MAX_LANE_LIMIT}.")
        for name in ("delay_min", "delay_max"):
            value = getattr(self, name)
            if not (math.isfinite(value) and 0 <= value <= MAX_LANE_DELAY):
                raise InvalidSetting(
                    f"A lane's {name} is {value!r}; it must be from 0 to {MAX_LANE_DELAY:.0f} seconds."
                )
        if self.delay_min > self.delay_max:
            raise InvalidSetting(f"A lane's delay_min {self.delay_min} is above its delay_max {self.delay_max}.")
        if self.ordered and (self.limit != 1 or self.shared):
            raise InvalidSetting("An ordered lane must have limit=1 and shared=False.")
        return self


def is_loopback_lane(key: str) -> bool:
    """Whether a lane is that of a host on this machine: `localhost:8000`, `127.0.0.1`, `[::1]:80`, `a.localhost`."""
    return _LOOPBACK.fullmatch(key) is not None


class StartRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Starts that a worker wants to reserve on a lane.

    `count` of them, the first for the `leases`, which then count as started. A start may be used up to `slack` seconds
    late. `within`: at most so many seconds ahead. `idle`: the worker did not use its earlier starts on this lane, and
    its last request was so many seconds ago; the delay counts from there, unless another worker reserved since.
    """

    leases: tuple[Lease, ...] = ()
    count: int = 1
    slack: float = 0.0
    within: float | None = None
    idle: float | None = None

    def checked(self) -> StartRequest:
        if not 1 <= self.count <= MAX_STARTS or len(self.leases) > self.count:
            raise InvalidSetting(f"{self.count} starts requested; it must be from 1 to {MAX_STARTS}.")
        for name in ("slack", "idle"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and 0 <= value <= MAX_LANE_DELAY):
                raise InvalidSetting(f"{name} is {value!r}; it must be from 0 to {MAX_LANE_DELAY:.0f} seconds.")
        return self


class ReservedStarts(msgspec.Struct, frozen=True):
    """Reserved starts, each after so many seconds. `lost`: items whose lease was lost.

    `spacing`: the minimum distance between two starts of this worker. `next_in`: when the first start that was not
    reserved would be. `at`: the ledger's clock in seconds, to which all of these are relative.
    """

    waits: tuple[float, ...]
    lost: frozenset[int] = frozenset()
    spacing: float = 0.0
    next_in: float = 0.0
    at: float = 0.0


class HostSlotReply(msgspec.Struct, frozen=True, kw_only=True):
    """The reply to a request for a slot in a host's lane.

    `granted`: the caller has the slot. Otherwise it waits, with `ahead` others before it; or the lane is blocked for
    `blocked_seconds`, because of `why`, and no request waits. `paced`: the lane has a delay, so the start must be
    reserved.
    """

    granted: bool = False
    ahead: int = 0
    blocked_seconds: float = 0.0
    why: str = ""
    paced: bool = False


class LaneView(msgspec.Struct, frozen=True, kw_only=True):
    """A lane in the ledger. `policy` has the effective delay.

    `floor`: the minimum delay in seconds, because of `floor_why`, unless an operator set the delay. `visiting`: slots
    of requests of other lanes' items (redirects, APIs), in addition to the `taken` ones of the lane's own items.
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
    visiting: int = 0


class LaneProgress(msgspec.Struct, frozen=True, kw_only=True):
    """A lane with the items of one run in it, or of all runs.

    `ended`: of one run only. Both are counted up to a limit; beyond it `waiting_is_at_least`, `ended_is_at_least`.
    """

    lane: LaneView
    waiting: int
    leased: int
    ended: int | None = None
    waiting_is_at_least: bool = False
    ended_is_at_least: bool = False


class LaneSpan(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt on an item of a lane. `end` and `outcome` are None while it runs."""

    item: int
    name: str
    begin: dt.datetime
    end: dt.datetime | None
    outcome: str | None


def parse_rate(text: str) -> float:
    """Seconds between two starts: `2/s` is 0.5. Raises InvalidSetting for what is not a rate."""
    # str() because an author may write a bare number, which is refused like other text that is not a rate.
    match = _RATE.fullmatch(str(text).strip().lower())
    if match is None:
        raise InvalidSetting(f"{text!r} is not a rate.", remedy=_EXAMPLES)
    unit = _SECONDS.get(match["unit"])
    if unit is None:
        raise InvalidSetting(
            f"The rate {text!r} has the unit {match['unit']!r}; the units are s, min, h and d.", remedy=_EXAMPLES
        )
    starts = float(match["starts"])
    if starts == 0:
        raise InvalidSetting(f"The rate {text!r} is zero.", remedy=_EXAMPLES)
    pause = float(match["count"] or 1) * unit / starts
    if not 0 < pause <= MAX_LANE_DELAY:
        raise InvalidSetting(
            f"The rate {text!r} means {pause:g} seconds between two starts; more than 0 and at most "
            f"{MAX_LANE_DELAY:.0f} are possible.",
            remedy=_EXAMPLES,
        )
    return pause


def lane_eta(lane: LaneView, item_seconds: float | None = None) -> tuple[float, float] | None:
    """The shortest and the longest time in seconds until the items of a lane have ended, as it is now.

    `item_seconds`: how long an attempt takes, if known. The items that wait start one by one, as the delay and the
    limit allow; new items and retries are not foreseen. None when the lane is paused: an operator decides.
    """
    left = lane.waiting + lane.taken
    if left == 0:
        return 0.0, 0.0
    if lane.paused:
        return None
    policy, each = lane.policy, item_seconds or 0.0
    starts = lane.waiting + lane.unstarted
    # The last start comes after the delays between all starts, or after the turns that the limit allows.
    turns = max(0.0, math.ceil(left / policy.limit) - 1) * each
    low, high = (max((starts - 1) * delay, turns) for delay in (policy.delay_min, policy.delay_max))
    begin = max(lane.blocked_seconds, lane.next_seconds if starts else 0.0)
    return begin + max(0.0, low) + each, begin + max(0.0, high) + each
