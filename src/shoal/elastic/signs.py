"""What the rule looks at, what it remembers, and what it answers."""

from __future__ import annotations

import math
from enum import StrEnum

import msgspec

from shoal.elastic.machine import Load


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
