"""The autoscaling rule: how many workers, or items at once, there shall be, and why. Pure functions.

In this order: stay within the bounds; shrink when memory, throttling, failures or the CPU exceed their limits; grow
while the backlog is more than the present ones can take and no signal is near its limit; shrink when they were idle for
a while. A change gets time to show its effect, and a size that was too large is not tried again at once.
"""

from __future__ import annotations

import math
from enum import StrEnum

import msgspec

from shoal.autoscale.machine import Load

# The shares below are of recent attempts; of fewer than this they are ignored.
MIN_ATTEMPTS = 20
FAILED, FAILED_WARNS = 0.5, 0.25
THROTTLED, THROTTLED_WARNS = 0.2, 0.05
CPU_THROTTLED = 0.5
PROCESS_FULL = 0.9
# Growth needs a margin of memory: a new worker allocates its part only after a while.
MEMORY_WARNS = 5 / 6
# Above its limit by this factor, memory is about to run out.
MEMORY_CRITICAL = 0.9 / 0.85


class ScalingReason(StrEnum):
    """The kind of reason for a decision."""

    BOUNDS = "bounds"
    MEMORY = "memory"
    THROTTLED = "throttled"
    FAILED = "failed"
    CPU = "cpu"
    PROCESS = "process"
    TOO_MANY = "too many"
    AT_MAXIMUM = "most"
    BACKLOG = "backlog"
    LANES = "lanes"
    IDLE = "quiet"
    NO_NEED = "fits"


# Reasons that prevent growth although there is a backlog; these are reported.
BLOCKS_GROWTH = frozenset(
    {
        ScalingReason.MEMORY,
        ScalingReason.THROTTLED,
        ScalingReason.FAILED,
        ScalingReason.CPU,
        ScalingReason.PROCESS,
        ScalingReason.TOO_MANY,
        ScalingReason.AT_MAXIMUM,
        ScalingReason.LANES,
    }
)


class Bounds(msgspec.Struct, frozen=True):
    """The smallest and the largest allowed number."""

    least: int
    most: int


class LoadLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Shares of the machine above which it shrinks; 1 disables the limit."""

    cpu: float = 0.9
    memory: float = 0.85


class ScalingDelays(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds. `between_growth`: between two steps up. `cooldown`: from a step down to the next step. `cpu_full`: that
    the CPU must be full before it shrinks. `idle`: that some must be idle before it shrinks. `avoid_failed_size`: that
    a size that was too large is not tried again.
    """

    between_growth: float
    cooldown: float
    cpu_full: float
    idle: float
    avoid_failed_size: float


class ScalingInputs(msgspec.Struct, frozen=True, kw_only=True):
    """What the rule decides by.

    `at`: a monotonic clock. `backlog`: claimable items. `waiting_for_lanes`: items that more workers would not help.
    `idle`: how many of the present ones have nothing to do or have not started yet. `each`: items that one takes at
    once. `ended`, `failed`, `throttled`: attempts of the last minute. `process`: the share of one core that this
    process uses, where a single process is scaled.
    """

    at: float
    backlog: int
    waiting_for_lanes: int = 0
    idle: int
    each: int = 1
    ended: int = 0
    failed: int = 0
    throttled: int = 0
    load: Load = Load()
    process: float | None = None


class ScalingHistory(msgspec.Struct, frozen=True, kw_only=True):
    """What the rule remembers from one decision to the next."""

    grown_at: float = -math.inf
    shrunk_at: float = -math.inf
    cpu_full_since: float | None = None
    idle_since: float | None = None
    too_many: int = 0
    too_many_why: str = ""
    too_many_at: float = -math.inf


class ScalingDecision(msgspec.Struct, frozen=True, kw_only=True):
    """`why` completes a sentence that begins with "4 to 6 workers: "."""

    target: int
    kind: ScalingReason
    why: str
    history: ScalingHistory


class _Reason(msgspec.Struct, frozen=True):
    """`keep_share`: the share of the present number that stays when it shrinks."""

    kind: ScalingReason
    why: str
    keep_share: float = 1.0


def decide(
    now: int, bounds: Bounds, inputs: ScalingInputs, history: ScalingHistory, delays: ScalingDelays, limits: LoadLimits
) -> ScalingDecision:
    """The next number when there are `now`."""
    history = _update_history(inputs, history, limits)
    within = min(bounds.most, max(bounds.least, now))
    if within != now:
        return ScalingDecision(
            target=within,
            kind=ScalingReason.BOUNDS,
            why=f"{bounds.least} to {bounds.most} are allowed",
            history=history,
        )
    trouble = _shrink_reason(inputs, history, delays, limits)
    if trouble is not None and now > bounds.least:
        if inputs.at - history.shrunk_at < delays.cooldown:
            return _no_change(now, trouble, history)
        target = max(bounds.least, min(now - 1, math.floor(now * trouble.keep_share)))
        history = msgspec.structs.replace(
            history, shrunk_at=inputs.at, too_many=now, too_many_why=trouble.why, too_many_at=inputs.at
        )
        return ScalingDecision(target=target, kind=trouble.kind, why=trouble.why, history=history)
    if inputs.backlog > 0:
        return _decide_growth(
            now, bounds, inputs, history, delays, trouble or _no_growth_reason(inputs, history, limits)
        )
    return _decide_shrink(now, bounds, inputs, history, delays)


def _update_history(inputs: ScalingInputs, history: ScalingHistory, limits: LoadLimits) -> ScalingHistory:
    """With the times since when the CPU is full and since when some are idle."""
    cpu_is_full = _is_above(inputs.load.cpu, limits.cpu) or (
        limits.cpu < 1 and (inputs.load.cpu_throttled or 0) > CPU_THROTTLED
    )
    is_idle = inputs.backlog == 0 and inputs.idle > 0
    return msgspec.structs.replace(
        history,
        cpu_full_since=(inputs.at if history.cpu_full_since is None else history.cpu_full_since)
        if cpu_is_full
        else None,
        idle_since=(inputs.at if history.idle_since is None else history.idle_since) if is_idle else None,
    )


def _shrink_reason(
    inputs: ScalingInputs, history: ScalingHistory, delays: ScalingDelays, limits: LoadLimits
) -> _Reason | None:
    """Why it should shrink; the most urgent reason."""
    if _is_above(inputs.load.memory, limits.memory):
        urgent = _is_above(inputs.load.memory, limits.memory * MEMORY_CRITICAL)
        return _Reason(ScalingReason.MEMORY, _memory_text(inputs), 0.5 if urgent else 0.75)
    if _share(inputs, inputs.throttled) > THROTTLED:
        return _Reason(ScalingReason.THROTTLED, _throttled_text(inputs), 0.5)
    if _share(inputs, inputs.failed) > FAILED:
        return _Reason(ScalingReason.FAILED, _failed_text(inputs), 0.5)
    if history.cpu_full_since is not None and inputs.at - history.cpu_full_since >= delays.cpu_full:
        return _Reason(ScalingReason.CPU, _cpu_text(inputs), 0.75)
    return None


def _no_growth_reason(inputs: ScalingInputs, history: ScalingHistory, limits: LoadLimits) -> _Reason | None:
    """Why it should not grow."""
    if _is_above(inputs.load.memory, limits.memory, MEMORY_WARNS):
        return _Reason(ScalingReason.MEMORY, _memory_text(inputs))
    if _share(inputs, inputs.throttled) > THROTTLED_WARNS:
        return _Reason(ScalingReason.THROTTLED, _throttled_text(inputs))
    if _share(inputs, inputs.failed) > FAILED_WARNS:
        return _Reason(ScalingReason.FAILED, _failed_text(inputs))
    if history.cpu_full_since is not None:
        return _Reason(ScalingReason.CPU, _cpu_text(inputs))
    if inputs.process is not None and inputs.process > PROCESS_FULL:
        return _Reason(ScalingReason.PROCESS, f"this process keeps a core busy ({_percent(inputs.process)})")
    return None


def _decide_growth(
    now: int,
    bounds: Bounds,
    inputs: ScalingInputs,
    history: ScalingHistory,
    delays: ScalingDelays,
    blocker: _Reason | None,
) -> ScalingDecision:
    """With a backlog: grow, unless something prevents it."""
    if inputs.idle > now // 10:
        return _no_change(now, _Reason(ScalingReason.NO_NEED, f"{inputs.idle} of {now} have room for more"), history)
    if blocker is not None:
        return _no_change(now, blocker, history)
    most = bounds.most
    if now >= most:
        return _no_change(
            now,
            _Reason(ScalingReason.AT_MAXIMUM, f"{most} is the most that is allowed; {_ready(inputs.backlog)}"),
            history,
        )
    ago = inputs.at - history.too_many_at
    if ago < delays.avoid_failed_size:
        most = min(most, history.too_many - 1)
        if now >= most:
            text = f"{history.too_many} were too many {_span(ago)} ago: {history.too_many_why}"
            return _no_change(now, _Reason(ScalingReason.TOO_MANY, text), history)
    busy = f"all {now} are busy" if now > 1 else "the one that is there is busy"
    reason = _Reason(ScalingReason.BACKLOG, f"{_ready(inputs.backlog)} and {busy}")
    if inputs.at - history.grown_at < delays.between_growth or ago < delays.cooldown:
        return _no_change(now, reason, history)
    target = 2 * now
    if 0 < history.too_many <= target:  # a size that was too large once is approached in small steps
        target = max(history.too_many - 1, now + max(1, now // 8))
    target = min(target, most, now + math.ceil(inputs.backlog / inputs.each))
    history = msgspec.structs.replace(history, grown_at=inputs.at)
    return ScalingDecision(target=target, kind=reason.kind, why=reason.why, history=history)


def _decide_shrink(
    now: int, bounds: Bounds, inputs: ScalingInputs, history: ScalingHistory, delays: ScalingDelays
) -> ScalingDecision:
    """Without a backlog: shrink after a while."""
    lanes = f"{_items(inputs.waiting_for_lanes, 'waits', 'wait')} for their lanes, where more would not help"
    reason = (
        _Reason(ScalingReason.LANES, lanes)
        if inputs.waiting_for_lanes
        else _Reason(ScalingReason.NO_NEED, "no item is ready")
    )
    if now == bounds.least or history.idle_since is None or inputs.at - history.idle_since < delays.idle:
        return _no_change(now, reason, history)
    if inputs.at - history.shrunk_at < delays.cooldown or inputs.at - history.grown_at < delays.cooldown:
        return _no_change(now, reason, history)
    target = max(bounds.least, now - min(inputs.idle, max(1, now // 4)))
    why = f"for {_span(inputs.at - history.idle_since)} there was nothing to take; {inputs.idle} of {now} were idle"
    if inputs.waiting_for_lanes:
        why += f"; {lanes}"
    history = msgspec.structs.replace(history, shrunk_at=inputs.at)
    return ScalingDecision(target=target, kind=ScalingReason.IDLE, why=why, history=history)


def _no_change(now: int, reason: _Reason, history: ScalingHistory) -> ScalingDecision:
    return ScalingDecision(target=now, kind=reason.kind, why=reason.why, history=history)


def _is_above(share: float | None, limit: float, factor: float = 1.0) -> bool:
    return share is not None and limit < 1 and share > limit * factor


def _share(inputs: ScalingInputs, part: int) -> float:
    return part / inputs.ended if inputs.ended >= MIN_ATTEMPTS else 0.0


def _memory_text(inputs: ScalingInputs) -> str:
    return f"memory is at {_percent(inputs.load.memory or 0)} of its limit"


def _throttled_text(inputs: ScalingInputs) -> str:
    return (
        f"the site asked to wait in {_percent(inputs.throttled / inputs.ended)} of the last {inputs.ended:,} attempts"
    )


def _failed_text(inputs: ScalingInputs) -> str:
    return f"{_percent(inputs.failed / inputs.ended)} of the last {inputs.ended:,} attempts failed"


def _cpu_text(inputs: ScalingInputs) -> str:
    if (inputs.load.cpu_throttled or 0) > CPU_THROTTLED:
        return f"the CPU limit stopped it in {_percent(inputs.load.cpu_throttled or 0)} of the time slices"
    return f"the CPU is at {_percent(inputs.load.cpu or 0)}"


def _ready(count: int) -> str:
    return f"{_items(count, 'is', 'are')} ready"


def _items(count: int, one: str, many: str) -> str:
    return f"1 item {one}" if count == 1 else f"{count:,} items {many}"


def _percent(share: float) -> str:
    return f"{share * 100:.0f} %"


def _span(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
