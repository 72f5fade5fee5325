"""Turning author values into the JSON text that ledgers keep."""

from __future__ import annotations

from typing import Any

import msgspec

from shoal.errors import InvalidRecord, UsageError

PAYLOAD_BYTES = 1 << 20
RECORD_BYTES = 16 << 20
_encoder = msgspec.json.Encoder()


def json_text(value: Any, what: str, max_bytes: int, error: type[UsageError]) -> str:
    """JSON of a value, or `error` saying what is wrong with it."""
    try:
        text = _encoder.encode(value).decode()
    except (TypeError, ValueError, OverflowError, RecursionError) as problem:
        raise error(f"The {what} cannot be stored as JSON: {problem}.") from None
    if len(text) > max_bytes // 4 and len(text.encode()) > max_bytes:
        raise error(
            f"The {what} is {len(text.encode()):,} bytes of JSON; {max_bytes:,} are allowed.",
            remedy="Split it, or store the large part elsewhere and keep a reference.",
        )
    return text


def record_text(record: Any) -> str:
    """A result record as JSON: a dict, a dataclass, a Struct; never a bare number or string."""
    text = json_text(record, "record", RECORD_BYTES, InvalidRecord)
    if not text.startswith("{"):
        raise InvalidRecord(
            f"A record must be an object with fields, not {type(record).__name__}.",
            remedy="Yield a dict, a dataclass, a model, or work: stage.item(url).",
        )
    return text
