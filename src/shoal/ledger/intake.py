"""Intake on both ledgers: entries are checked and stored in chunks, in constant memory."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Collection, Iterable, Mapping, Sequence

import msgspec

from shoal.errors import InvalidItem, UnknownStage
from shoal.ledger.catalog import CachedRun, Catalog
from shoal.ledger.protocols import Entries, Entry, OnStored
from shoal.model.item import NewItem, PreparedItem, prepare
from shoal.model.url_key import key_hash, url_key
from shoal.model.views import IntakeReport

CHUNK_ITEMS = 10_000
CHUNK_BYTES = 32 << 20
MAX_INVALID_REPORTED = 20
_YIELD_EVERY = 500


class Chunk(msgspec.Struct):
    items: list[PreparedItem]
    invalid: int = 0


class InvalidEntries(msgspec.Struct):
    """The first few invalid entries: position (from 0) and what is wrong."""

    found: list[tuple[int, str]]

    def add(self, position: int, error: InvalidItem) -> None:
        if len(self.found) < MAX_INVALID_REPORTED:
            self.found.append((position, error.message))


async def prepared_chunks(
    entries: Entries, stage: str, stages: Collection[str], invalid_entries: InvalidEntries
) -> AsyncIterator[Chunk]:
    """Check entries and yield them in chunks, bounded by count and by bytes.

    The event loop runs every few hundred entries, so the previous chunk is sent to the database meanwhile.
    """
    chunk = Chunk([])
    size = 0
    position = -1
    async for entry in _iterate(entries):
        position += 1
        try:
            item = _prepare(entry, stage)
        except InvalidItem as error:
            invalid_entries.add(position, error)
            chunk.invalid += 1
            continue
        if item.stage is not stage and item.stage not in stages:
            raise UnknownStage(f"The run has no stage {item.stage!r}; it has {', '.join(stages)}.")
        chunk.items.append(item)
        if item.payload is not None:
            size += len(item.payload)
        if item.request is not None:
            size += len(item.request)
        if len(chunk.items) >= CHUNK_ITEMS or size >= CHUNK_BYTES:
            yield chunk
            chunk, size = Chunk([]), 0
    if chunk.items or chunk.invalid:
        yield chunk


def _prepare(entry: Entry, stage: str) -> PreparedItem:
    if isinstance(entry, NewItem):
        return prepare(entry, stage)
    if isinstance(entry, PreparedItem):
        return entry
    if isinstance(entry, bytes):
        try:
            entry = entry.decode()
        except UnicodeDecodeError:
            raise InvalidItem(f"{entry[:60]!a} is not valid UTF-8.") from None
    if not isinstance(entry, str):
        raise InvalidItem(f"An entry must be a URL or a NewItem, not {type(entry).__name__}.")
    # A plain URL, by far the most frequent entry, does not need the checks of `prepare`.
    return PreparedItem(stage, key_hash(url_key(entry)), None, entry, None, "", None, 0, 0.0, None, None, 0)


async def _iterate(entries: Entries) -> AsyncIterator[Entry]:
    if isinstance(entries, AsyncIterable):
        async for entry in entries:
            yield entry
        return
    if isinstance(entries, str | bytes) or not isinstance(entries, Iterable):
        raise InvalidItem(f"Entries must be an iterable of URLs or NewItems, not {type(entries).__name__}.")
    for count, entry in enumerate(entries, 1):
        yield entry
        if count % _YIELD_EVERY == 0:
            await asyncio.sleep(0)


class QueuedItems(msgspec.Struct, frozen=True):
    """Checked items with the stage and queue of each; for follow-ups, also the parent."""

    items: Sequence[PreparedItem]
    stage_ids: Sequence[int]
    queues: Mapping[tuple[int, str], int]
    parents: Sequence[int] | None = None


async def assign_queues(
    catalog: Catalog, items: Sequence[PreparedItem], stage_ids: Sequence[int], parents: Sequence[int] | None = None
) -> QueuedItems:
    priorities = {item.priority for item in items}
    if len(priorities) == 1:
        span = (min(priorities), max(priorities))
        spans = {(stage, item.partition): span for item, stage in zip(items, stage_ids, strict=True)}
    else:
        spans = {}
        for item, stage in zip(items, stage_ids, strict=True):
            low, high = spans.get((stage, item.partition), (item.priority, item.priority))
            spans[stage, item.partition] = (min(low, item.priority), max(high, item.priority))
    return QueuedItems(items, stage_ids, await catalog.queues(spans), parents)


class BaseIntake(ABC):
    """Bulk enqueue: up to `max_concurrent_chunks` chunks are stored while the next one is prepared.

    Chunks with lanes are stored one after another, because an ordered lane keeps the order of arrival.
    """

    max_concurrent_chunks = 1

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    @abstractmethod
    async def _store(self, run: CachedRun, queued: QueuedItems) -> tuple[int, int]:
        """Store a chunk in one transaction. Returns how many items were new and how many were duplicates."""

    async def enqueue(
        self, run_id: str, entries: Entries, *, stage: str | None = None, on_stored: OnStored | None = None
    ) -> IntakeReport:
        run = await self._catalog.run(run_id)
        stage = stage or run.first_stage
        run.stage_id(stage)
        invalid_entries = InvalidEntries([])
        storing: deque[asyncio.Task[tuple[int, int]]] = deque()
        stored: list[tuple[int, int]] = []
        invalid = 0
        try:
            async for chunk in prepared_chunks(entries, stage, run.stages, invalid_entries):
                alone = any(item.lane is not None for item in chunk.items)
                while len(storing) >= (1 if alone else self.max_concurrent_chunks):
                    stored.append(await storing.popleft())
                storing.append(asyncio.create_task(self._store_items(run, chunk.items)))
                if alone or on_stored is not None:
                    stored.append(await storing.popleft())
                if on_stored is not None and chunk.items:
                    await on_stored()
                    on_stored = None
                invalid += chunk.invalid
        finally:
            # Chunks that are being stored are completed even when the source of entries failed.
            stored += await asyncio.gather(*storing)
        return IntakeReport(
            enqueued=sum(new for new, _ in stored),
            duplicates=sum(old for _, old in stored),
            invalid=invalid,
            invalid_entries=tuple(invalid_entries.found),
        )

    async def _store_items(self, run: CachedRun, items: Sequence[PreparedItem]) -> tuple[int, int]:
        if not items:
            return 0, 0
        return await self._store(
            run, await assign_queues(self._catalog, items, [run.stages[item.stage] for item in items])
        )
