"""Intake on PostgreSQL: prepared items as the parallel arrays that `shoal.intake` takes."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import TypeVar

from shoal.ledger.catalog import CachedRun, Catalog
from shoal.ledger.intake import BaseIntake, QueuedItems
from shoal.ledger.postgres.database import PostgresDatabase

_T = TypeVar("_T")

ItemColumns = tuple[
    list[int],  # queues
    list[bytes],  # hashes
    list[str | None] | None,  # keys
    list[str | None] | None,  # urls
    list[str | None] | None,  # payloads
    list[int | None] | None,  # lane_ix
    list[int] | None,  # priorities
    list[float] | None,  # delays
    list[int | None] | None,  # max_tries
    list[str | None] | None,  # requests
    list[int] | None,  # depths
]
LaneColumns = tuple[list[str] | None, list[int] | None]


def as_columns(queued: QueuedItems) -> tuple[ItemColumns, LaneColumns]:
    """Arrays of the items' fields; an array without values becomes None, which costs nothing to send.

    Each lane is sent once: lane_ix is an index, from 1, into the second part.
    """
    items, stage_ids, queues = queued.items, queued.stage_ids, queued.queues
    lanes: dict[tuple[str, int], int] = {}
    lane_ix: list[int | None] = [
        None if item.lane is None else lanes.setdefault((item.lane, stage), len(lanes) + 1)
        for item, stage in zip(items, stage_ids, strict=True)
    ]
    columns: ItemColumns = (
        [queues[stage, item.partition] for item, stage in zip(items, stage_ids, strict=True)],
        [item.key_hash for item in items],
        none_if_empty([item.key for item in items]),
        none_if_empty([item.url for item in items]),
        none_if_empty([item.payload for item in items]),
        lane_ix if lanes else None,
        [item.priority for item in items] if any(item.priority for item in items) else None,
        [item.delay for item in items] if any(item.delay for item in items) else None,
        none_if_empty([item.max_attempts for item in items]),
        none_if_empty([item.request for item in items]),
        [item.depth for item in items] if any(item.depth for item in items) else None,
    )
    if not lanes:
        return columns, (None, None)
    return columns, ([lane for lane, _ in lanes], [stage for _, stage in lanes])


def none_if_empty(values: list[_T | None]) -> list[_T | None] | None:
    return values if any(value is not None for value in values) else None


class PostgresIntake(BaseIntake):
    # Two keep the server busy while the third is prepared; more are not faster.
    max_concurrent_chunks = 2

    def __init__(self, db: PostgresDatabase, queries: Mapping[str, str], catalog: Catalog) -> None:
        super().__init__(catalog)
        self._db = db
        self._sql = queries

    async def _store(self, run: CachedRun, queued: QueuedItems) -> tuple[int, int]:
        columns, lanes = as_columns(queued)
        row = await self._db.row(self._sql["enqueue"], uuid.uuid4(), run.no, *columns, *lanes)
        return row["enqueued"], row["duplicates"]
