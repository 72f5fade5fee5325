"""The order in which a claim reads the queues. Pure functions, so that fairness is tested without a database."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from itertools import groupby
from typing import TypeVar

import msgspec

_T = TypeVar("_T")


class QueueRow(msgspec.Struct, frozen=True):
    """A queue with ready items.

    `priority_min` and `priority_max` are bounds for all items it ever had; `head` is the last known priority of its
    first item.
    """

    id: int
    run_no: int
    run_id: str
    stage: str
    partition: str
    max_attempts: int
    priority_min: int = 0
    priority_max: int = 0
    head: int = 0


class QueueGroup(msgspec.Struct, frozen=True):
    """Queues that a claim empties before it reads the next group.

    `merged`: items are claimed by priority over all queues of the group; otherwise queue by queue.
    """

    queues: list[QueueRow]
    merged: bool = False


def order_queues(queues: Iterable[QueueRow], own: frozenset[str], turn: int, *, steal: bool = True) -> list[QueueGroup]:
    """Own partitions before others; within each, the first (run, stage) changes with every turn.

    A claim empties the first group before it reads the second. A run whose queues have different priorities is one
    group, at the position of its first stage, so that turns do not break its priorities.
    """
    rows = list(queues)
    if not own:
        return _grouped(rows, turn)
    mine = [row for row in rows if row.partition in own]
    others = [row for row in rows if row.partition not in own] if steal else []
    return _grouped(mine, turn) + _grouped(others, turn)


def limit_queues(groups: Iterable[QueueGroup], most: int) -> list[QueueGroup]:
    """The first groups, with at most so many queues in total."""
    kept: list[QueueGroup] = []
    for group in groups:
        if most <= 0:
            break
        kept.append(QueueGroup(group.queues[:most], group.merged))
        most -= len(group.queues)
    return kept


class QueueHeads(msgspec.Struct):
    """The priorities of the first items of some queues, in order. `more`: whether a queue has further items."""

    priorities: list[list[int]]
    more: list[bool]

    def bound(self) -> int | None:
        """The last priority that is safe to claim: a queue may have more items of it than were read."""
        return min((seen[-1] for seen, more in zip(self.priorities, self.more, strict=True) if more), default=None)

    def quotas(self, limit: int) -> list[int]:
        """How many items to claim from each queue to get the smallest priorities over all of them.

        For equal priorities the first queue wins. The sum is below `limit` when fewer items are within the bound.
        """
        bound = self.bound()
        taken = [0] * len(self.priorities)
        merged = heapq.merge(*([(value, n) for value in seen] for n, seen in enumerate(self.priorities)))
        for _, (value, n) in zip(range(limit), merged, strict=False):
            if bound is not None and value > bound:
                break
            taken[n] += 1
        return taken


def _grouped(rows: list[QueueRow], turn: int) -> list[QueueGroup]:
    by_stage: dict[tuple[int, str], list[QueueRow]] = {}
    for row in rows:
        by_stage.setdefault((row.run_no, row.stage), []).append(row)
    if not by_stage:
        return []
    ordered = _rotate([by_stage[key] for key in sorted(by_stage)], turn)
    # Within a stage the partitions take turns too, one step each time the stage is first.
    rounds = turn // len(ordered)
    stages = [_rotate(sorted(stage, key=lambda row: row.id), rounds) for stage in ordered]
    mixed = _mixed_runs(rows)
    if not mixed:
        return [QueueGroup(stage) for stage in stages]
    # The stages of a mixed run move to the position of the first of them.
    first: dict[int, int] = {}
    places = [first.setdefault(stage[0].run_no, n) if stage[0].run_no in mixed else n for n, stage in enumerate(stages)]
    stages = [stages[n] for n in sorted(range(len(stages)), key=places.__getitem__)]
    groups: list[QueueGroup] = []
    for run_no, together in groupby(stages, key=lambda stage: stage[0].run_no):
        if run_no in mixed:
            queues = sorted((row for stage in together for row in stage), key=lambda row: row.head)
            groups.append(QueueGroup(queues, merged=len(queues) > 1))
        else:
            groups.extend(QueueGroup(stage) for stage in together)
    return groups


def _mixed_runs(rows: Iterable[QueueRow]) -> set[int]:
    """Runs whose queues do not all have one and the same priority."""
    one: dict[int, int] = {}
    return {
        row.run_no
        for row in rows
        if row.priority_min != row.priority_max or one.setdefault(row.run_no, row.priority_min) != row.priority_min
    }


def _rotate(values: list[_T], turn: int) -> list[_T]:
    at = turn % len(values)
    return values[at:] + values[:at]
