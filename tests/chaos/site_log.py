"""Judges how polite the visitors of a site were, by the site's own log.

A request that Shoal could not recall is excused, but only by what is known of that very request: the lease that it
belonged to was taken away, or the line of its node was disturbed when it was under way. Excused ones are counted.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

# A site logs a request when it has read it: on a busy machine some milliseconds after its arrival.
TOLERANCE = 0.06
# The kernel says how long ago a request came in steps of its timer, which are 10 ms at most: so much too early.
TIMER_STEP = 0.01
_EXAMPLES = 10


class Visit(NamedTuple):
    """A request as the site saw it, by the clock of the machine. `end`: it was answered, or its client went away."""

    start: float
    end: float
    status: int
    server: str
    remote: str
    path: str


class Disturbance(NamedTuple):
    """A time in which what these nodes (by address) had sent may have been kept on its way. No address: all nodes."""

    began: float
    ended: float
    remotes: Collection[str] = ()

    def may_delay(self, visit: Visit) -> bool:
        """TCP sends again after a pause that has at most doubled, so what was kept arrives within twice that time."""
        latest = self.ended + (self.ended - self.began) + 1.0
        return (not self.remotes or visit.remote in self.remotes) and self.began <= visit.start <= latest


class LostLease(NamedTuple):
    """A lease that the ledger ended at `ended`: its worker was silent for too long, or an operator returned it.

    `next_claim`: when the same node claimed the item again; infinity if it did not.
    """

    server: str
    path: str
    remote: str
    claimed: float
    ended: float
    next_claim: float = math.inf

    def covers(self, visit: Visit) -> bool:
        return self.remote == visit.remote and self.claimed <= visit.start < self.next_claim


class Politeness(msgspec.Struct, frozen=True):
    """`gaps`: requests that came too soon after the one before; `crowds`: requests while the host already had as many
    as it may have; `direct`: requests that did not come through an exit. `late_gaps`, `orphan_gaps`, `orphan_crowds`:
    those that were excused, because of a disturbed line, or because of a request whose lease had been taken away.
    """

    visits: int = 0
    gaps: int = 0
    late_gaps: int = 0
    orphan_gaps: int = 0
    crowds: int = 0
    orphan_crowds: int = 0
    direct: int = 0
    examples: tuple[str, ...] = ()


class Rules(NamedTuple):
    """What each host allows, by address: seconds between two requests; requests at once; who may visit it."""

    delays: Mapping[str, float]
    limits: Mapping[str, int]
    exits: Mapping[str, Collection[str]]


class Excuses(NamedTuple):
    disturbances: Sequence[Disturbance] = ()
    lost_leases: Sequence[LostLease] = ()


def read_visits(*logs: Path) -> Iterator[Visit]:
    """What the logs have, without robots.txt, in no particular order."""
    for log in logs:
        with log.open() as lines:
            for line in lines:
                ended, took, status, server, remote, path = line.rstrip("\n").split(" ", 5)
                if not path.startswith("/robots.txt"):
                    end = float(ended)
                    yield Visit(round(end - float(took), 3), end, int(status), server, remote, path)


def judge(visits: Iterable[Visit], rules: Rules, excuses: Excuses, tolerance: float = TOLERANCE) -> Politeness:
    """`tolerance`: how much too soon, in seconds, a request may seem to have come after the one before."""
    by_server: dict[str, list[Visit]] = defaultdict(list)
    number = 0
    for visit in visits:
        number += 1
        by_server[visit.server].append(visit)
    lost: dict[tuple[str, str], list[LostLease]] = defaultdict(list)
    for lease in excuses.lost_leases:
        lost[lease.server, lease.path].append(lease)
    orphans = _Orphans(lost)
    gaps = {"plain": 0, "late": 0, "orphan": 0}
    crowds = {"plain": 0, "orphan": 0}
    direct, examples = 0, list[str]()
    for server, found in by_server.items():
        found.sort()
        if (delay := rules.delays.get(server)) is not None:
            for earlier, later in itertools.pairwise(found):
                if later.start - earlier.start < delay - tolerance:
                    kind = _gap_kind(earlier, later, excuses.disturbances, orphans)
                    gaps[kind] += 1
                    if kind == "plain":
                        examples.append(f"{later.start - earlier.start:.3f} s: {earlier} then {later}")
        if (limit := rules.limits.get(server)) is not None:
            for visit, at_once, recalled in _crowds(found, limit, orphans):
                kind = "orphan" if at_once - recalled <= limit else "plain"
                crowds[kind] += 1
                if kind == "plain":
                    examples.append(f"{at_once} at once, {recalled} of them without a lease: {visit}")
        if (allowed := rules.exits.get(server)) is not None:
            strangers = [visit for visit in found if visit.remote not in allowed]
            direct += len(strangers)
            examples += [f"direct: {visit}" for visit in strangers]
    return Politeness(
        visits=number,
        gaps=gaps["plain"],
        late_gaps=gaps["late"],
        orphan_gaps=gaps["orphan"],
        crowds=crowds["plain"],
        orphan_crowds=crowds["orphan"],
        direct=direct,
        examples=tuple(examples[:_EXAMPLES]),
    )


class _Orphans:
    """Which requests went on after their lease had been taken away."""

    def __init__(self, lost: Mapping[tuple[str, str], Sequence[LostLease]]) -> None:
        self._lost = lost

    def is_orphan(self, visit: Visit, at: float) -> bool:
        """Whether the request had no lease any more at that time."""
        leases = self._lost.get((visit.server, visit.path), ())
        return any(lease.covers(visit) and lease.ended <= at for lease in leases)


def _gap_kind(earlier: Visit, later: Visit, disturbances: Sequence[Disturbance], orphans: _Orphans) -> str:
    """Who is late or without a lease may be the first or the second of the two."""
    both = (earlier, later)
    if any(orphans.is_orphan(visit, visit.start) for visit in both):
        return "orphan"
    if any(disturbance.may_delay(visit) for disturbance in disturbances for visit in both):
        return "late"
    return "plain"


def _crowds(visits: Sequence[Visit], limit: int, orphans: _Orphans) -> Iterator[tuple[Visit, int, int]]:
    """Each request beyond the limit, with how many were there then, and how many of those had no lease any more.

    What ends at the same moment, as far as the timer can tell, has ended before. `visits` are in order of their starts.
    """
    present: list[Visit] = []
    for visit in visits:
        present = [each for each in present if each.end > visit.start + TIMER_STEP]
        present.append(visit)
        if len(present) > limit:
            yield visit, len(present), sum(orphans.is_orphan(each, visit.start) for each in present)
