"""From whatever callers hand in to chunks of checked items, in constant memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Collection, Iterable

import msgspec

from shoal.errors import InvalidItem, UnknownStage
from shoal.ledger.protocols import Entries, Entry
from shoal.model.item import NewItem, PreparedItem, prepare
from shoal.model.urlkey import key_hash, url_key

CHUNK_ITEMS = 10_000
CHUNK_BYTES = 32 << 20
MAX_COMPLAINTS = 20
_SLICE = 500


class Chunk(msgspec.Struct):
    items: list[PreparedItem]
    invalid: int = 0


class Complaints(msgspec.Struct):
    """The first few invalid entries: position (from 0) and what is wrong."""

    found: list[tuple[int, str]]

    def add(self, position: int, error: InvalidItem) -> None:
        if len(self.found) < MAX_COMPLAINTS:
            self.found.append((position, error.message))


async def prepared_chunks(
    entries: Entries, stage: str, stages: Collection[str], complaints: Complaints
) -> AsyncIterator[Chunk]:
    """Check entries and yield them in chunks, bounded by count and by bytes.

    Control goes back to the event loop every few hundred entries, so the previous chunk travels to the database while
    this one is prepared.
    """
    chunk = Chunk([])
    size = 0
    position = -1
    async for entry in _each(entries):
        position += 1
        try:
            item = _prepare(entry, stage)
        except InvalidItem as error:
            complaints.add(position, error)
            chunk.invalid += 1
            continue
        if item.stage is not stage and item.stage not in stages:
            raise UnknownStage(f"The run has no stage {item.stage!r}; it has {', '.join(stages)}.")
        chunk.items.append(item)
        if item.payload is not None:
            size += len(item.payload)
        if len(chunk.items) >= CHUNK_ITEMS or size >= CHUNK_BYTES:
            yield chunk
            chunk, size = Chunk([]), 0
    if chunk.items or chunk.invalid:
        yield chunk


def _prepare(entry: Entry, stage: str) -> PreparedItem:
    if isinstance(entry, NewItem):
        return prepare(entry, stage)
    if isinstance(entry, bytes):
        try:
            entry = entry.decode()
        except UnicodeDecodeError:
            raise InvalidItem(f"{entry[:60]!a} is not valid UTF-8.") from None
    if not isinstance(entry, str):
        raise InvalidItem(f"An entry must be a URL or a NewItem, not {type(entry).__name__}.")
    # The plain URL, by far the most frequent entry.
    return PreparedItem(stage, key_hash(url_key(entry)), None, entry, None, "", None, 0, 0.0, None)


async def _each(entries: Entries) -> AsyncIterator[Entry]:
    if isinstance(entries, AsyncIterable):
        async for entry in entries:
            yield entry
        return
    if isinstance(entries, str | bytes) or not isinstance(entries, Iterable):
        raise InvalidItem(f"Entries must be an iterable of URLs or NewItems, not {type(entries).__name__}.")
    for count, entry in enumerate(entries, 1):
        yield entry
        if count % _SLICE == 0:
            await asyncio.sleep(0)
