"""The plan of a pool: what each worker has before it and, if the run has been measured, how long that takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from shoal.errors import UsageError
from shoal.fleet.partitions import MOST_NAMED, Shares, check_covers, deal, fitted, read_assignment
from shoal.ledger.protocols import Ledger
from shoal.observe.meter import MINUTES, recent_rate
from shoal.observe.snapshot import look


class Outlook(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be done. `waiting`: open items by partition. `speed`: items per minute of one worker, if measured."""

    waiting: Mapping[str, int]
    done: int = 0
    total: int = 0
    speed: float | None = None


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """What some partitions of a run have come to. `busy`: somebody works on the run, whatever the partition."""

    total: int = 0
    remaining: int = 0
    dead: int = 0
    busy: bool = False


class PlannedWorker(msgspec.Struct, frozen=True, kw_only=True):
    """`waiting`: open items of its partitions, and its part of those that nobody owns. `eta`: seconds, if known."""

    number: int
    partitions: tuple[str, ...]
    waiting: int
    eta: float | None


async def outlook_on(ledger: Ledger, run_id: str) -> Outlook:
    moment = await look(ledger, run_id, gates=())
    waiting: Counter[str] = Counter()
    for part in moment.partitions:
        waiting[part.partition] += part.counts.remaining
    rate = await recent_rate(ledger, moment)
    busy = sum(1 for worker in await ledger.reads.workers(run_id, minutes=MINUTES) if worker.done + worker.dead)
    return Outlook(
        waiting=waiting,
        done=moment.counts.done,
        total=moment.counts.total,
        speed=rate / busy if rate and busy else None,
    )


async def part_of(ledger: Ledger, run_id: str, shares: Shares) -> Part:
    """How the partitions of these shares stand."""
    own = {name for share in shares for name in share}
    rows = await ledger.reads.partitions(run_id)
    mine = [row.counts for row in rows if row.partition in own]
    return Part(
        total=sum(counts.total for counts in mine),
        remaining=sum(counts.remaining for counts in mine),
        dead=sum(counts.dead for counts in mine),
        busy=any(row.counts.leased for row in rows),
    )


def plan_workers(outlook: Outlook, shares: Shares, *, only: bool = False) -> list[PlannedWorker]:
    """`only`: nobody takes anything but its own partitions."""
    owned = {name for share in shares for name in share}
    loose = 0 if only else sum(items for name, items in outlook.waiting.items() if name not in owned)
    planned = []
    for number, share in enumerate(shares):
        waiting = sum(outlook.waiting.get(name, 0) for name in share)
        waiting += loose // len(shares) + (number < loose % len(shares))
        eta = None if outlook.speed is None else waiting / outlook.speed * 60
        planned.append(PlannedWorker(number=number, partitions=share, waiting=waiting, eta=eta))
    return planned


class Dealer:
    """Gives every worker its partitions: evenly, or as the assignment says, which is read anew each time.

    `workers`: how many there are to be; None leaves it to the assignment, and without one to the configuration, which
    is read anew too. `partitions`: those that are dealt out, none for all. `first`: only so many workers of the plan
    get their share, None for all of them. `unknown`: codes of the assignment, or of `partitions`, that the run did not
    know when it was last read.
    """

    def __init__(
        self,
        look: Callable[[], Awaitable[Outlook]],
        *,
        assignment: Path | None,
        workers: int | None,
        configured: Callable[[], int],
        partitions: Sequence[str] = (),
        first: int | None = None,
    ) -> None:
        self._look = look
        self._assignment = assignment
        self._fixed = workers
        self._configured = configured
        self._known = configured()
        self._workers = workers or self._known
        self._partitions = dict.fromkeys(partitions)
        self._first = first
        self.unknown: list[str] = []

    async def shares(self, workers: int | None = None) -> Shares:
        """For so many workers, or for as many as are configured.

        Raises UsageError for a wrong assignment, and when the run has none of the partitions that were asked for.
        """
        waiting = self._meant((await self._look()).waiting)
        if self._assignment is None:
            if workers is None and self._fixed is None and (now := self._configured()) != self._known:
                self._known = self._workers = now
            self._workers = workers or self._workers
            return deal(waiting, self._workers)[: self._first]
        assigned = read_assignment(self._assignment)
        if self._partitions:
            assigned = tuple(tuple(name for name in share if name in self._partitions) for share in assigned)
        self.unknown += check_covers(assigned, waiting)
        return fitted(assigned, workers or self._fixed or len(assigned))[: self._first]

    def _meant(self, waiting: Mapping[str, int]) -> Mapping[str, int]:
        """What is to be dealt out. Partitions that the run does not know yet may still come to it."""
        self.unknown = [name for name in self._partitions if name not in waiting]
        if self.unknown and len(self.unknown) == len(self._partitions):
            known = ", ".join(sorted(name for name in waiting if name)[:MOST_NAMED]) or "none"
            raise UsageError(
                f"The run has no items of {', '.join(self.unknown)}.", remedy=f"Choose others; it has {known}."
            )
        return {name: waiting.get(name, 0) for name in self._partitions} if self._partitions else waiting
