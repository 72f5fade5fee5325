"""The plan of a pool: which partitions each worker prefers, how many items wait there, how long they take."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from shoal.errors import UsageError
from shoal.ledger.protocols import Ledger
from shoal.observe.meter import RECENT_MINUTES, recent_rate
from shoal.observe.snapshot import take_snapshot

MAX_NAMED = 5
PartitionAssignment = tuple[tuple[str, ...], ...]


def assign_evenly(waiting: Mapping[str, int], workers: int) -> PartitionAssignment:
    """Every partition to one worker; the numbers of partitions differ by one at most, and the items by little.

    `waiting`: items by partition. The largest are assigned first, back and forth, so that the worker with the largest
    of one round gets the smallest of the next.
    """
    groups: list[list[str]] = [[] for _ in range(workers)]
    largest_first = sorted((name for name in waiting if name), key=lambda name: (-waiting[name], name))
    for position, name in enumerate(largest_first):
        row, column = divmod(position, workers)
        groups[column if row % 2 == 0 else workers - 1 - column].append(name)
    return tuple(tuple(sorted(group)) for group in groups)


def resize_assignment(assigned: PartitionAssignment, workers: int) -> PartitionAssignment:
    """For another number of workers: additional ones get none, and the partitions of missing ones go to the others."""
    kept = [list(share) for share in assigned[:workers]] + [[] for _ in range(workers - len(assigned))]
    for position, name in enumerate(name for share in assigned[workers:] for name in share):
        kept[position % workers].append(name)
    return tuple(tuple(share) for share in kept)


def read_assignment(path: Path) -> PartitionAssignment:
    """`[0] CA, MT, RI` a line, with # comments; or, in a file named .toml, `0 = ["CA", "MT", "RI"]`.

    Raises UsageError when it cannot be read, when a worker's number is missing or there twice, and when a partition is
    assigned twice.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UsageError(f"The assignment {path} cannot be read: {why}.", remedy="Check the path.") from None
    pairs = _from_toml(path, text) if path.suffix == ".toml" else _from_lines(path, text)
    numbers = Counter(number for number, _ in pairs)
    wrong = [number for number in range(len(numbers)) if numbers[number] != 1]
    if not pairs or wrong:
        what = f"worker {wrong[0]} stands there {numbers[wrong[0]]} times" if wrong else "it is empty"
        raise _invalid(path, what, "Give one line for each worker, with numbers from 0 on.")
    assignment = tuple(share for _, share in sorted(pairs))
    twice = [name for name, times in Counter(name for share in assignment for name in share).items() if times > 1]
    if twice:
        raise _invalid(path, f"{_list_names(twice)} assigned more than once", "Leave each partition to one worker.")
    return assignment


def check_all_assigned(assigned: PartitionAssignment, partitions: Iterable[str]) -> list[str]:
    """Returns partitions that the run does not have. Raises UsageError when one of the run is not assigned."""
    known = {name for name in partitions if name}
    codes = [name for share in assigned for name in share]
    unknown = sorted(set(codes) - known)
    if missing := sorted(known.difference(codes)):
        hint = f" The run knows no {', '.join(unknown[:MAX_NAMED])}." if unknown else ""
        raise UsageError(
            f"{_list_names(missing)} assigned to nobody.{hint}", remedy="Add the missing partitions to the assignment."
        )
    return unknown


def _from_lines(path: Path, text: str) -> list[tuple[int, tuple[str, ...]]]:
    pairs = []
    for number, line in enumerate(text.splitlines(), 1):
        content = line.partition("#")[0].strip()
        if not content:
            continue
        head, bracket, codes = content.partition("]")
        worker = head.removeprefix("[").strip()
        if not bracket or not head.startswith("[") or not worker.isdecimal():
            raise _invalid(path, f"line {number} cannot be understood", "Write lines such as: [0] CA, MT, RI")
        pairs.append((int(worker), _codes(codes.split(","))))
    return pairs


def _from_toml(path: Path, text: str) -> list[tuple[int, tuple[str, ...]]]:
    try:
        table: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _invalid(path, f"it is not valid TOML: {error}", "Correct the file.") from None
    for worker, codes in table.items():
        if not worker.isdecimal() or not isinstance(codes, list) or not all(isinstance(code, str) for code in codes):
            raise _invalid(path, f"{worker} cannot be understood", 'Write lines such as: 0 = ["CA", "MT", "RI"]')
    return [(int(worker), _codes(codes)) for worker, codes in table.items()]


def _codes(texts: Sequence[str]) -> tuple[str, ...]:
    return tuple(code for text in texts if (code := text.strip()))


def _list_names(names: Sequence[str]) -> str:
    shown = ", ".join(names[:MAX_NAMED]) + (f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else "")
    return f"{shown} {'is' if len(names) == 1 else 'are'}"


def _invalid(path: Path, what: str, remedy: str) -> UsageError:
    return UsageError(f"The assignment {path} is not valid: {what}.", remedy=remedy)


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """The items of a run. `waiting`: open ones by partition. `speed`: items per minute of one worker, if measured."""

    waiting: Mapping[str, int]
    done: int = 0
    total: int = 0
    speed: float | None = None


class PartitionTotals(msgspec.Struct, frozen=True, kw_only=True):
    """Items of some partitions of a run. `wanted`: all but the skipped ones. `busy`: items of any partition of the run
    are leased.
    """

    total: int = 0
    wanted: int = 0
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
    workers = await ledger.reads.workers(run_id, minutes=RECENT_MINUTES)
    busy = sum(1 for worker in workers if worker.done + worker.dead + worker.skipped)
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
        wanted=sum(counts.wanted for counts in mine),
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
    partitions of the file, or of `partitions`, that the run did not have at the last reading. `assigns`: False for
    workers that prefer no partition. `most`: how many workers there may be without being asked for. `places`: how many
    workers what is fixed by a worker's number is divided by; it never shrinks, so that parts stay where they are.
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
        assigns: bool = True,
        most: int = 0,
    ) -> None:
        self._assigns = assigns
        self._read_workload = read_workload
        self._assignment = assignment
        self._fixed_size = workers
        self._configured = configured
        self._last_configured = configured()
        self._workers = workers or self._last_configured
        self._partitions = dict.fromkeys(partitions)
        self._first = first
        self.unknown: list[str] = []
        self.places = most

    async def assign(self, workers: int | None = None) -> PartitionAssignment:
        """For so many workers, or for as many as are configured.

        Raises UsageError for an invalid assignment, and when the run has none of the chosen partitions.
        """
        waiting = self._selected((await self._read_workload()).waiting)
        if self._assignment is None:
            if workers is None and self._fixed_size is None and (now := self._configured()) != self._last_configured:
                self._last_configured = self._workers = now
            self._workers = workers or self._workers
            self.places = max(self.places, self._workers)
            return assign_evenly(waiting if self._assigns else {}, self._workers)[: self._first]
        assigned = read_assignment(self._assignment)
        if self._partitions:
            assigned = tuple(tuple(name for name in share if name in self._partitions) for share in assigned)
        self.unknown += check_all_assigned(assigned, waiting)
        total = workers or self._fixed_size or len(assigned)
        self.places = max(self.places, total)
        return resize_assignment(assigned, total)[: self._first]

    def _selected(self, waiting: Mapping[str, int]) -> Mapping[str, int]:
        """The partitions to assign. Those that the run does not have yet may still get items."""
        self.unknown = [name for name in self._partitions if name not in waiting]
        if self.unknown and len(self.unknown) == len(self._partitions):
            known = ", ".join(sorted(name for name in waiting if name)[:MAX_NAMED]) or "none"
            raise UsageError(
                f"The run has no items of {', '.join(self.unknown)}.", remedy=f"Choose others; it has {known}."
            )
        return {name: waiting.get(name, 0) for name in self._partitions} if self._partitions else waiting
