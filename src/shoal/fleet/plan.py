"""The plan of a pool: which partitions each worker gets, how many items wait there, and how long they take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from shoal.errors import UsageError
from shoal.fleet.partitions import (
    MAX_NAMED,
    PartitionAssignment,
    assign_evenly,
    check_all_assigned,
    read_assignment,
    resize_assignment,
)
from shoal.ledger.protocols import Ledger
from shoal.observe.meter import RECENT_MINUTES, recent_rate
from shoal.observe.snapshot import take_snapshot


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """The items of a run. `waiting`: open ones by partition. `speed`: items per minute of one worker, if measured."""

    waiting: Mapping[str, int]
    done: int = 0
    total: int = 0
    speed: float | None = None


class PartitionTotals(msgspec.Struct, frozen=True, kw_only=True):
    """Items of some partitions of a run. `busy`: items of any partition of the run are leased."""

    total: int = 0
    remaining: int = 0
    dead: int = 0
    busy: bool = False


class PlannedWorker(msgspec.Struct, frozen=True, kw_only=True):
    """`waiting`: open items of its partitions, and its part of the unassigned ones. `eta`: seconds, if known."""

    number: int
    partitions: tuple[str, ...]
    waiting: int
    eta: float | None


async def read_workload(ledger: Ledger, run_id: str) -> Workload:
    snapshot = await take_snapshot(ledger, run_id, gates=())
    waiting: Counter[str] = Counter()
    for part in snapshot.partitions:
        waiting[part.partition] += part.counts.remaining
    rate = await recent_rate(ledger, snapshot)
    busy = sum(1 for worker in await ledger.reads.workers(run_id, minutes=RECENT_MINUTES) if worker.done + worker.dead)
    return Workload(
        waiting=waiting,
        done=snapshot.counts.done,
        total=snapshot.counts.total,
        speed=rate / busy if rate and busy else None,
    )


async def read_partition_totals(ledger: Ledger, run_id: str, assignment: PartitionAssignment) -> PartitionTotals:
    """Of all partitions that are assigned."""
    own = {name for share in assignment for name in share}
    rows = await ledger.reads.partitions(run_id)
    mine = [row.counts for row in rows if row.partition in own]
    return PartitionTotals(
        total=sum(counts.total for counts in mine),
        remaining=sum(counts.remaining for counts in mine),
        dead=sum(counts.dead for counts in mine),
        busy=any(row.counts.leased for row in rows),
    )


def plan_workers(workload: Workload, assignment: PartitionAssignment, *, only: bool = False) -> list[PlannedWorker]:
    """`only`: workers take nothing but their own partitions."""
    owned = {name for share in assignment for name in share}
    unassigned = 0 if only else sum(items for name, items in workload.waiting.items() if name not in owned)
    planned = []
    for number, share in enumerate(assignment):
        waiting = sum(workload.waiting.get(name, 0) for name in share)
        waiting += unassigned // len(assignment) + (number < unassigned % len(assignment))
        eta = None if workload.speed is None else waiting / workload.speed * 60
        planned.append(PlannedWorker(number=number, partitions=share, waiting=waiting, eta=eta))
    return planned


class PartitionAssigner:
    """Assigns partitions to workers: evenly, or as the assignment file says, which is read again each time.

    `workers`: how many; None leaves it to the assignment file, and without one to the configuration, which is read
    again too. `partitions`: those to assign, none for all. `first`: keep only so many workers of the plan. `unknown`:
    partitions of the file, or of `partitions`, that the run did not have at the last reading.
    """

    def __init__(
        self,
        read_workload: Callable[[], Awaitable[Workload]],
        *,
        assignment: Path | None,
        workers: int | None,
        configured: Callable[[], int],
        partitions: Sequence[str] = (),
        first: int | None = None,
    ) -> None:
        self._read_workload = read_workload
        self._assignment = assignment
        self._fixed_size = workers
        self._configured = configured
        self._last_configured = configured()
        self._workers = workers or self._last_configured
        self._partitions = dict.fromkeys(partitions)
        self._first = first
        self.unknown: list[str] = []

    async def assign(self, workers: int | None = None) -> PartitionAssignment:
        """For so many workers, or for as many as are configured.

        Raises UsageError for an invalid assignment, and when the run has none of the chosen partitions.
        """
        waiting = self._selected((await self._read_workload()).waiting)
        if self._assignment is None:
            if workers is None and self._fixed_size is None and (now := self._configured()) != self._last_configured:
                self._last_configured = self._workers = now
            self._workers = workers or self._workers
            return assign_evenly(waiting, self._workers)[: self._first]
        assigned = read_assignment(self._assignment)
        if self._partitions:
            assigned = tuple(tuple(name for name in share if name in self._partitions) for share in assigned)
        self.unknown += check_all_assigned(assigned, waiting)
        return resize_assignment(assigned, workers or self._fixed_size or len(assigned))[: self._first]

    def _selected(self, waiting: Mapping[str, int]) -> Mapping[str, int]:
        """The partitions to assign. Those that the run does not have yet may still get items."""
        self.unknown = [name for name in self._partitions if name not in waiting]
        if self.unknown and len(self.unknown) == len(self._partitions):
            known = ", ".join(sorted(name for name in waiting if name)[:MAX_NAMED]) or "none"
            raise UsageError(
                f"The run has no items of {', '.join(self.unknown)}.", remedy=f"Choose others; it has {known}."
            )
        return {name: waiting.get(name, 0) for name in self._partitions} if self._partitions else waiting
