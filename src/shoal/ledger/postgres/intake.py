"""Intake on PostgreSQL: prepared items as the parallel arrays that `shoal.intake` takes.

Prepared items as the parallel arrays that shoal.intake takes.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import TypeVar

from shoal.ledger.catalog import Catalog, RunFacts
from shoal.ledger.intake import ChunkedIntake, Placed
from shoal.ledger.postgres.database import Database

_T = TypeVar("_T")

Columns = tuple[
    list[int],  # queues
    list[bytes],  # hashes
    list[str | None] | None,  # keys
    list[str | None] | None,  # urls
    list[str | None] | None,  # payloads
    list[int | None] | None,  # lane_ix
    list[int] | None,  # priorities
    list[float] | None,  # delays
    list[int | None] | None,  # max_tries
]
Lanes = tuple[list[str] | None, list[int] | None]


def as_columns(placed: Placed) -> tuple[Columns, Lanes]:
    """Arrays of the items' fields; all-empty ones become None, which costs nothing to send.

    Lanes are sent once each: lane_ix counts from 1 into the second part.
    """
    items, stage_ids, queues = placed.items, placed.stage_ids, placed.queues
    lanes: dict[tuple[str, int], int] = {}
    lane_ix: list[int | None] = [
        None if item.lane is None else lanes.setdefault((item.lane, stage), len(lanes) + 1)
        for item, stage in zip(items, stage_ids, strict=True)
    ]
    columns: Columns = (
        [queues[stage, item.partition] for item, stage in zip(items, stage_ids, strict=True)],
        [item.key_hash for item in items],
        none_if_empty([item.key for item in items]),
        none_if_empty([item.url for item in items]),
        none_if_empty([item.payload for item in items]),
        lane_ix if lanes else None,
        [item.priority for item in items] if any(item.priority for item in items) else None,
        [item.delay for item in items] if any(item.delay for item in items) else None,
        none_if_empty([item.max_attempts for item in items]),
    )
    if not lanes:
        return columns, (None, None)
    return columns, ([lane for lane, _ in lanes], [stage for _, stage in lanes])


def none_if_empty(values: list[_T | None]) -> list[_T | None] | None:
    return values if any(value is not None for value in values) else None


class PostgresIntake(ChunkedIntake):
    # Two keep the server busy while we prepare the third; more gain nothing.
    at_once = 2

    def __init__(self, db: Database, queries: Mapping[str, str], catalog: Catalog) -> None:
        super().__init__(catalog)
        self._db = db
        self._sql = queries

    async def _store(self, run: RunFacts, placed: Placed) -> tuple[int, int]:
        columns, lanes = as_columns(placed)
        row = await self._db.row(self._sql["enqueue"], uuid.uuid4(), run.no, *columns, *lanes)
        return row["enqueued"], row["duplicates"]
