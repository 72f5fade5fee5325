"""JSONL and Parquet parts in a folder or an object store.

A part is named after the position where it begins: a batch that is delivered again replaces the same part. Each part is
complete or absent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import msgspec

from shoal.config.sinks import SinkConfig
from shoal.export.tables import ParquetWriter, TableSchema, require_pyarrow
from shoal.model.changes import ChangedRecord, ChangePosition
from shoal.sinks.sink import SinkBatch
from shoal.storage import is_object_url, open_target, write_errors_explained

ID_FIELD = "shoal_id"
_CONTENT_TYPES = {"jsonl": "application/x-ndjson", "parquet": "application/vnd.apache.parquet"}
_decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_values = msgspec.json.Decoder(dict[str, object]).decode
_encode = msgspec.json.Encoder().encode


class FileSink:
    def __init__(self, config: SinkConfig) -> None:
        self._config = config
        if config.kind == "parquet":
            require_pyarrow()

    async def deliver(self, batch: SinkBatch) -> None:
        """What was replaced cannot be taken out of earlier parts: the newest part has the valid record of an id."""
        groups: dict[str, list[ChangedRecord]] = {}
        for record in batch.records:
            folder = self._config.filled(self._config.path or "", record.scraper, record.stage)
            groups.setdefault(folder, []).append(record)
        for folder, records in groups.items():
            await asyncio.to_thread(self._write, folder, batch.start, records)

    async def close(self) -> None:
        """Nothing is open between two parts."""

    def _write(self, folder: str, start: ChangePosition, records: Sequence[ChangedRecord]) -> None:
        place = f"{folder.rstrip('/')}/{part_name(start)}.{self._config.kind}"
        if not is_object_url(folder):
            place = str(Path(place).expanduser())
            with write_errors_explained(place):
                Path(place).parent.mkdir(parents=True, exist_ok=True)
        lines = [_line(record) for record in records]
        target = open_target(place, content_type=_CONTENT_TYPES[self._config.kind])
        try:
            if self._config.kind == "jsonl":
                target.write(b"".join(line + b"\n" for line in lines))
            else:
                schema = TableSchema((), typed=True)
                for record, line in zip(records, lines, strict=True):
                    schema.add(record.stage, _decode_values(line))
                writer = ParquetWriter(target, schema)
                writer.write(lines)
                writer.finish()
            target.commit()
        except BaseException:
            target.discard()
            raise


def part_name(start: ChangePosition) -> str:
    """Sorted by name, parts are in the order of delivery."""
    name = f"part-{start.change:012d}"
    return f"{name}-{start.item:012d}-{start.n:09d}" if start.item else name


def _line(record: ChangedRecord) -> bytes:
    """The record with its id as the first field."""
    return _encode({ID_FIELD: record.id, **_decode(record.record)})
