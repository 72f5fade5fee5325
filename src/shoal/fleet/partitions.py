"""Partition assignment: which partitions each worker of a pool prefers."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from shoal.errors import UsageError

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
