"""In which order a claim visits the queues. Pure, so that fairness can be tested without a database."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import msgspec

_T = TypeVar("_T")


class QueueRow(msgspec.Struct, frozen=True):
    """A queue that has something to claim."""

    id: int
    run_no: int
    run_id: str
    stage: str
    partition: str
    max_attempts: int


def in_turn(queues: Iterable[QueueRow], own: frozenset[str], turn: int, *, steal: bool = True) -> list[QueueRow]:
    """Own partitions before others; within each, another (run, stage) goes first at every turn.

    A claim empties the first queue before it looks at the second, so going first is what counts.
    """
    rows = list(queues)
    if not own:
        return _rotate_groups(rows, turn)
    mine = [row for row in rows if row.partition in own]
    others = [row for row in rows if row.partition not in own] if steal else []
    return _rotate_groups(mine, turn) + _rotate_groups(others, turn)


def _rotate_groups(rows: list[QueueRow], turn: int) -> list[QueueRow]:
    groups: dict[tuple[int, str], list[QueueRow]] = {}
    for row in rows:
        groups.setdefault((row.run_no, row.stage), []).append(row)
    if not groups:
        return []
    ordered = _rotate([groups[key] for key in sorted(groups)], turn)
    # Within a group the partitions take turns too, one step each time the group comes first.
    rounds = turn // len(ordered)
    return [row for group in ordered for row in _rotate(sorted(group, key=lambda row: row.id), rounds)]


def _rotate(values: list[_T], turn: int) -> list[_T]:
    at = turn % len(values)
    return values[at:] + values[:at]
