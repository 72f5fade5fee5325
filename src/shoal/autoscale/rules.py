"""The autoscaling rule: signals in, a number and its reason out. Pure.

What the rule looks at, what it remembers, and what it answers.

The rule: how many workers, or items at once, there are to be. Pure: it sees signs and answers with a number and why.

In this order: stay within the bounds; give way when memory, the site, errors or the CPU say so; grow while there is
more to do than those who are there can take, unless one of those signs warns; shrink when there has been nothing to
take for a while. A change is given time to show its effect, and a number that was too many is not tried again at once.
"""

from __future__ import annotations

import math
from enum import StrEnum

import msgspec

from shoal.autoscale.machine import Load

# Shares below are of what ended lately; with fewer ends than this they say nothing.
ENOUGH_ENDS = 20
FAILED, FAILED_WARNS = 0.5, 0.25
THROTTLED, THROTTLED_WARNS = 0.2, 0.05
HELD_BACK = 0.5
PROCESS_FULL = 0.9
# Growth needs more memory than staying does: what comes will take its part only after a while.
MEMORY_WARNS = 5 / 6
# Beyond its limit by this factor, memory is about to run out.
MEMORY_URGENT = 0.9 / 0.85


class Kind(StrEnum):
    """The kinds of reasons."""

    BOUNDS = "bounds"
    MEMORY = "memory"
    THROTTLED = "throttled"
    FAILED = "failed"
    CPU = "cpu"
    PROCESS = "process"
    TOO_MANY = "too many"
    MOST = "most"
    BACKLOG = "backlog"
    LANES = "lanes"
    QUIET = "quiet"
    FITS = "fits"


# Those that keep it from growing though there is more to do; an operator wants to hear of them.
HOLDS_BACK = frozenset(
    {Kind.MEMORY, Kind.THROTTLED, Kind.FAILED, Kind.CPU, Kind.PROCESS, Kind.TOO_MANY, Kind.MOST, Kind.LANES}
)


class Bounds(msgspec.Struct, frozen=True):
    least: int
    most: int


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Shares of the machine above which there are too many; 1 means that it is no reason."""

    cpu: float = 0.9
    memory: float = 0.85


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds. `grow`: between two steps up. `settle`: after a step down, before the next step of either direction.
    `hot`: so long the CPU is full before it counts. `quiet`: so long there is nothing to take before it shrinks.
    `remember`: so long a number that was too many is not tried again.
    """

    grow: float
    settle: float
    hot: float
    quiet: float
    remember: float


class Signs(msgspec.Struct, frozen=True, kw_only=True):
    """`at`: seconds of a clock that only goes on. `backlog`: items that somebody could take now, and nobody has.
    `behind_lanes`: items that wait for their lanes; more hands would not help them. `idle`: so many of those that are
    there have nothing to do, or have not come yet. `each`: items that one of them takes at once. `ended`, `failed`,
    `throttled`: attempts of the last minute. `process`: the share of one core that this process uses, where it is one.
    """

    at: float
    backlog: int
    behind_lanes: int = 0
    idle: int
    each: int = 1
    ended: int = 0
    failed: int = 0
    throttled: int = 0
    load: Load = Load()
    process: float | None = None


class Past(msgspec.Struct, frozen=True, kw_only=True):
    """What the rule remembers from one look to the next."""

    grown_at: float = -math.inf
    shrunk_at: float = -math.inf
    hot_since: float | None = None
    quiet_since: float | None = None
    too_many: int = 0
    too_many_why: str = ""
    too_many_at: float = -math.inf


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """`why` is a sentence without its beginning: "4 to 6 workers: " goes before it."""

    target: int
    kind: Kind
    why: str
    past: Past


class _Reason(msgspec.Struct, frozen=True):
    """`keeps`: the share of those there that may stay."""

    kind: Kind
    why: str
    keeps: float = 1.0


def decide(now: int, bounds: Bounds, signs: Signs, past: Past, pace: Pace, limits: Limits) -> Decision:
    """How many there are to be when there are `now`."""
    past = _noted(signs, past, limits)
    within = min(bounds.most, max(bounds.least, now))
    if within != now:
        return Decision(target=within, kind=Kind.BOUNDS, why=f"{bounds.least} to {bounds.most} are allowed", past=past)
    trouble = _trouble(signs, past, pace, limits)
    if trouble is not None and now > bounds.least:
        if signs.at - past.shrunk_at < pace.settle:
            return _stays(now, trouble, past)
        target = max(bounds.least, min(now - 1, math.floor(now * trouble.keeps)))
        past = msgspec.structs.replace(
            past, shrunk_at=signs.at, too_many=now, too_many_why=trouble.why, too_many_at=signs.at
        )
        return Decision(target=target, kind=trouble.kind, why=trouble.why, past=past)
    if signs.backlog > 0:
        return _more(now, bounds, signs, past, pace, trouble or _warning(signs, past, limits))
    return _fewer(now, bounds, signs, past, pace)


def _noted(signs: Signs, past: Past, limits: Limits) -> Past:
    """The past with since when the CPU is full and since when there is nothing to take."""
    is_hot = _is_above(signs.load.cpu, limits.cpu) or (limits.cpu < 1 and (signs.load.held_back or 0) > HELD_BACK)
    is_quiet = signs.backlog == 0 and signs.idle > 0
    return msgspec.structs.replace(
        past,
        hot_since=(signs.at if past.hot_since is None else past.hot_since) if is_hot else None,
        quiet_since=(signs.at if past.quiet_since is None else past.quiet_since) if is_quiet else None,
    )


def _trouble(signs: Signs, past: Past, pace: Pace, limits: Limits) -> _Reason | None:
    """Why there should be fewer, the most pressing reason first."""
    if _is_above(signs.load.memory, limits.memory):
        urgent = _is_above(signs.load.memory, limits.memory * MEMORY_URGENT)
        return _Reason(Kind.MEMORY, _memory_text(signs), 0.5 if urgent else 0.75)
    if _share(signs, signs.throttled) > THROTTLED:
        return _Reason(Kind.THROTTLED, _throttled_text(signs), 0.5)
    if _share(signs, signs.failed) > FAILED:
        return _Reason(Kind.FAILED, _failed_text(signs), 0.5)
    if past.hot_since is not None and signs.at - past.hot_since >= pace.hot:
        return _Reason(Kind.CPU, _cpu_text(signs), 0.75)
    return None


def _warning(signs: Signs, past: Past, limits: Limits) -> _Reason | None:
    """Why there should not be more."""
    if _is_above(signs.load.memory, limits.memory, MEMORY_WARNS):
        return _Reason(Kind.MEMORY, _memory_text(signs))
    if _share(signs, signs.throttled) > THROTTLED_WARNS:
        return _Reason(Kind.THROTTLED, _throttled_text(signs))
    if _share(signs, signs.failed) > FAILED_WARNS:
        return _Reason(Kind.FAILED, _failed_text(signs))
    if past.hot_since is not None:
        return _Reason(Kind.CPU, _cpu_text(signs))
    if signs.process is not None and signs.process > PROCESS_FULL:
        return _Reason(Kind.PROCESS, f"this process keeps a core busy ({_percent(signs.process)})")
    return None


def _more(now: int, bounds: Bounds, signs: Signs, past: Past, pace: Pace, against: _Reason | None) -> Decision:
    """There is something to take."""
    if signs.idle > now // 10:
        return _stays(now, _Reason(Kind.FITS, f"{signs.idle} of {now} have room for more"), past)
    if against is not None:
        return _stays(now, against, past)
    most = bounds.most
    if now >= most:
        return _stays(now, _Reason(Kind.MOST, f"{most} is the most that is allowed; {_ready(signs.backlog)}"), past)
    ago = signs.at - past.too_many_at
    if ago < pace.remember:
        most = min(most, past.too_many - 1)
        if now >= most:
            text = f"{past.too_many} were too many {_span(ago)} ago: {past.too_many_why}"
            return _stays(now, _Reason(Kind.TOO_MANY, text), past)
    busy = f"all {now} are busy" if now > 1 else "the one that is there is busy"
    reason = _Reason(Kind.BACKLOG, f"{_ready(signs.backlog)} and {busy}")
    if signs.at - past.grown_at < pace.grow or ago < pace.settle:
        return _stays(now, reason, past)
    target = 2 * now
    if 0 < past.too_many <= target:  # what went wrong once is neared step by step
        target = max(past.too_many - 1, now + max(1, now // 8))
    target = min(target, most, now + math.ceil(signs.backlog / signs.each))
    past = msgspec.structs.replace(past, grown_at=signs.at)
    return Decision(target=target, kind=reason.kind, why=reason.why, past=past)


def _fewer(now: int, bounds: Bounds, signs: Signs, past: Past, pace: Pace) -> Decision:
    """There is nothing to take."""
    lanes = f"{_items(signs.behind_lanes, 'waits', 'wait')} for their lanes, where more would not help"
    reason = _Reason(Kind.LANES, lanes) if signs.behind_lanes else _Reason(Kind.FITS, "nobody waits for room")
    if now == bounds.least or past.quiet_since is None or signs.at - past.quiet_since < pace.quiet:
        return _stays(now, reason, past)
    if signs.at - past.shrunk_at < pace.settle or signs.at - past.grown_at < pace.settle:
        return _stays(now, reason, past)
    target = max(bounds.least, now - min(signs.idle, max(1, now // 4)))
    why = f"for {_span(signs.at - past.quiet_since)} there was nothing to take, {signs.idle} of {now} had nothing to do"
    if signs.behind_lanes:
        why += f"; {lanes}"
    past = msgspec.structs.replace(past, shrunk_at=signs.at)
    return Decision(target=target, kind=Kind.QUIET, why=why, past=past)


def _stays(now: int, reason: _Reason, past: Past) -> Decision:
    return Decision(target=now, kind=reason.kind, why=reason.why, past=past)


def _is_above(share: float | None, limit: float, factor: float = 1.0) -> bool:
    return share is not None and limit < 1 and share > limit * factor


def _share(signs: Signs, part: int) -> float:
    return part / signs.ended if signs.ended >= ENOUGH_ENDS else 0.0


def _memory_text(signs: Signs) -> str:
    return f"memory is at {_percent(signs.load.memory or 0)} of its limit"


def _throttled_text(signs: Signs) -> str:
    return f"the site asked to wait in {_percent(signs.throttled / signs.ended)} of the last {signs.ended:,} attempts"


def _failed_text(signs: Signs) -> str:
    return f"{_percent(signs.failed / signs.ended)} of the last {signs.ended:,} attempts failed"


def _cpu_text(signs: Signs) -> str:
    if (signs.load.held_back or 0) > HELD_BACK:
        return f"the CPU limit stopped it in {_percent(signs.load.held_back or 0)} of the time slices"
    return f"the CPU is at {_percent(signs.load.cpu or 0)}"


def _ready(count: int) -> str:
    return f"{_items(count, 'is', 'are')} ready"


def _items(count: int, one: str, many: str) -> str:
    return f"1 item {one}" if count == 1 else f"{count:,} items {many}"


def _percent(share: float) -> str:
    return f"{share * 100:.0f} %"


def _span(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
