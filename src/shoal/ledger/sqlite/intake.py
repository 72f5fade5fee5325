"""Intake on SQLite: stores new items, once per stage and key, and inserts them into ready, delayed or waiting."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from shoal.errors import WrongState
from shoal.ledger.catalog import CachedRun, Catalog
from shoal.ledger.intake import BaseIntake, QueuedItems
from shoal.ledger.sqlite.connection import Transaction, json_text, micros
from shoal.ledger.sqlite.database import SqliteDatabase
from shoal.ledger.sqlite.moves import admit, ensure_lanes
from shoal.model.item import PreparedItem

# What store_items takes: queue, stage, url, key, payload, lane, priority, delay, max_attempts, parent, request,
# depth.
# Until it is stored, `lane` is an index into the lanes of the batch.
ItemRow = list[Any]
_QUEUE, _LANE, _PARENT = 0, 5, 9


class UrlBatch(msgspec.Struct, frozen=True):
    """Items of one queue with nothing but a URL, by far the most frequent kind."""

    stage: int
    queue: int
    hashes: bytes
    urls: str
    count: int


class ItemBatch(msgspec.Struct, frozen=True):
    rows: list[ItemRow]
    hashes: list[bytes]
    lanes: list[tuple[str, int]]


def as_batch(queued: QueuedItems) -> ItemBatch:
    items, stage_ids, queues, parents = queued.items, queued.stage_ids, queued.queues, queued.parents
    lanes: dict[tuple[str, int], int] = {}
    rows: list[ItemRow] = [
        [
            queues[stage, item.partition],
            stage,
            item.url,
            item.key,
            item.payload,
            None if item.lane is None else lanes.setdefault((item.lane, stage), len(lanes)),
            item.priority,
            micros(item.delay),
            item.max_attempts,
            None if parents is None else parents[n],
            item.request,
            item.depth,
        ]
        for n, (item, stage) in enumerate(zip(items, stage_ids, strict=True))
    ]
    return ItemBatch(rows, [item.key_hash for item in items], list(lanes))


def store_urls(tx: Transaction, run_no: int, batch: UrlBatch) -> tuple[int, int]:
    first, last = _reserve(tx, batch.count)
    new = tx.run("store_urls", first, run_no, batch.stage, batch.queue, tx.now, batch.hashes, batch.urls)
    tx.run("intake_ready", first, last, tx.now)
    tx.run("intake_counts", first, last, json_text({batch.queue: batch.count}))
    return new, batch.count - new


def make_lanes(tx: Transaction, batch: ItemBatch) -> list[int]:
    """Create or change the batch's lanes as the stages declare them, and touch them."""
    if not batch.lanes:
        return []
    lane_ids = ensure_lanes(tx, batch.lanes)
    tx.run("touch_lanes", json_text(lane_ids))
    return lane_ids


def store_items(
    tx: Transaction, batch: ItemBatch, lane_ids: Sequence[int], parents: Collection[int] | None = None
) -> tuple[int, int]:
    """(enqueued, duplicates). Rows whose parent is not in `parents` are left out. The caller admits afterwards."""
    rows: list[ItemRow] = []
    hashes: list[bytes] = []
    for row, key_hash in zip(batch.rows, batch.hashes, strict=True):
        if parents is None or row[_PARENT] in parents:
            rows.append(row if row[_LANE] is None else [*row[:_LANE], lane_ids[row[_LANE]], *row[_LANE + 1 :]])
            hashes.append(key_hash)
    first, last = _reserve(tx, len(rows))
    new = tx.run("store_items", first, tx.now, b"".join(hashes), json_text(rows))
    tx.run("intake_ready", first, last, tx.now)
    tx.run("intake_delayed", first, last, tx.now)
    if lane_ids:
        tx.run("intake_waiting", first, last, tx.now)
        tx.run("intake_lanes", first, last)
    tx.run("intake_counts", first, last, json_text(Counter(row[_QUEUE] for row in rows)))
    return new, len(rows) - new


def store_alias(tx: Transaction, batch: ItemBatch, of_item: int) -> None:
    """Store the only item of the batch, which is new, as an alias of another one: it has ended as skipped."""
    lane_ids = make_lanes(tx, batch)
    tx.run("touch_end")  # an alias takes no slot
    row = batch.rows[0]
    if lane_ids:
        row = [*row[:_LANE], lane_ids[0], *row[_LANE + 1 :]]
    first, _ = _reserve(tx, 1)
    tx.run("store_items", first, tx.now, batch.hashes[0], json_text([row]))
    tx.run("redirect_alias", of_item, first, tx.now)
    tx.run("redirect_count", row[_QUEUE])


def _reserve(tx: Transaction, count: int) -> tuple[int, int]:
    """Reserve ids for so many items. Those of duplicates stay unused."""
    last: int = tx.value("reserve_items", count)
    return last - count + 1, last


class SqliteIntake(BaseIntake):
    def __init__(self, db: SqliteDatabase, catalog: Catalog) -> None:
        super().__init__(catalog)
        self._db = db

    async def _store(self, run: CachedRun, queued: QueuedItems) -> tuple[int, int]:
        items = queued.items
        if len(queued.queues) == 1 and all(_is_plain(item) for item in items):
            ((stage, _), queue) = next(iter(queued.queues.items()))
            plain = UrlBatch(
                stage,
                queue,
                b"".join([item.key_hash for item in items]),
                json_text([item.url for item in items]),
                len(items),
            )
            return await self._db.write(lambda tx: _enqueue(tx, run.no, plain))
        batch = as_batch(queued)
        return await self._db.write(lambda tx: _enqueue(tx, run.no, batch))


def _is_plain(item: PreparedItem) -> bool:
    return (
        item.key is None
        and item.payload is None
        and item.lane is None
        and not item.priority
        and not item.delay
        and item.max_attempts is None
        and item.request is None
        and not item.depth
    )


def _enqueue(tx: Transaction, run_no: int, batch: UrlBatch | ItemBatch) -> tuple[int, int]:
    state = tx.value("run_state", run_no) or "removed"
    if state not in ("active", "paused"):
        raise WrongState(f"The run is {state}: it accepts no more items.", remedy="Resume it, or start it fresh.")
    if isinstance(batch, UrlBatch):
        stored = store_urls(tx, run_no, batch)
    else:
        stored = store_items(tx, batch, make_lanes(tx, batch))
        admit(tx)
    tx.should_notify = stored[0] > 0
    return stored
