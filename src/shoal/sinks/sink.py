"""What a sink can do, and what it gets: batches of records with stable ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from shoal.model.changes import ChangedRecord, ChangePosition, RecordRef, ReplacedItem

RecordTypes = Mapping[str, str]


class SinkBatch(msgspec.Struct, frozen=True, kw_only=True):
    """Records in the order they were stored. `start`: the position that they follow.

    `replaced`: items whose records were replaced; those from their number on no longer exist. `types`: the declared
    types of the fields by (run id, stage), where the stage declares a record type.
    """

    records: tuple[ChangedRecord, ...]
    replaced: tuple[ReplacedItem, ...] = ()
    start: ChangePosition = ChangePosition()
    types: Mapping[tuple[str, str], RecordTypes] = {}

    def of(self, records: Sequence[ChangedRecord]) -> SinkBatch:
        """A part of it. What was replaced goes with every part: it may be repeated."""
        return msgspec.structs.replace(self, records=tuple(records))


class RecordsRefused(Exception):
    """The sink works, but does not take something in the batch: not now and not later.

    `reasons` names the records, if they are known; none of the batch was stored then either.
    """

    def __init__(self, reason: str, reasons: Mapping[RecordRef, str] | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.reasons = dict(reasons or {})


class Sink(Protocol):
    async def deliver(self, batch: SinkBatch) -> None:
        """Store or send all of the batch; it may be called again with the same records.

        Raises SinkFailed when nothing can be delivered now, RecordsRefused for single records. Other errors count as
        SinkFailed.
        """

    async def close(self) -> None: ...


class Envelope(msgspec.Struct, frozen=True, kw_only=True):
    """A record as a message."""

    id: str
    run_id: str
    scraper: str
    stage: str
    key: str | None
    url: str | None
    record_key: str | None
    record: msgspec.Raw


def envelope(record: ChangedRecord) -> Envelope:
    return Envelope(
        id=record.id,
        run_id=record.run_id,
        scraper=record.scraper,
        stage=record.stage,
        key=record.key,
        url=record.url,
        record_key=record.record_key,
        record=msgspec.Raw(record.record.encode()),
    )


def newest_only(batch: SinkBatch) -> Sequence[ChangedRecord]:
    """The records without those that a later one replaces: the same key, or the same id.

    A record has its id twice in a batch when its item was changed twice; the batch may end before it says so.
    """
    newest = {
        (record.run_id, record.item, record.n)
        if record.record_key is None
        else (record.scraper, record.stage, record.record_key): record
        for record in batch.records
    }
    return batch.records if len(newest) == len(batch.records) else list(newest.values())


def row_key(record: ChangedRecord, id: str) -> str:
    """What a record with this id is upserted by."""
    return id if record.record_key is None else record.record_key
