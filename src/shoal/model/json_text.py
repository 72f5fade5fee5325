"""Encodes values of authors as the JSON text that ledgers store."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import msgspec

from shoal.errors import InvalidRecord, UsageError

PAYLOAD_BYTES = 1 << 20
RECORD_BYTES = 16 << 20
_encoder = msgspec.json.Encoder()


def json_text(value: Any, what: str, max_bytes: int, error: type[UsageError]) -> str:
    """JSON of a value; raises `error` when it cannot be encoded or is too large."""
    try:
        text = _encoder.encode(value).decode()
    except (TypeError, ValueError, OverflowError, RecursionError) as problem:
        raise error(f"The {what} cannot be stored as JSON: {problem}.") from None
    if "null" in text:  # NaN and infinite numbers are encoded as null
        check_numbers(value if type(value) is dict else msgspec.to_builtins(value, str_keys=True), what, error)
    if len(text) > max_bytes // 4 and len(text.encode()) > max_bytes:
        raise error(
            f"The {what} is {len(text.encode()):,} bytes of JSON; {max_bytes:,} are allowed.",
            remedy="Split it, or store the large part elsewhere and keep a reference.",
        )
    return text


def check_numbers(value: Any, what: str, error: type[UsageError]) -> None:
    """Raise `error`, with the path, when a value contains NaN or an infinite number."""
    if _is_finite(value):
        return
    place, number = next(_not_finite(msgspec.to_builtins(value, str_keys=True), ""))
    raise error(
        f"The {what} cannot be stored as JSON: {place or 'it'} is {number}, which JSON has no number for.",
        remedy="Omit the value, or use None.",
    )


def _is_finite(value: Any) -> bool:
    kind = type(value)
    if kind is dict:
        return all(map(_is_finite, value.values()))
    if kind is list or kind is tuple:
        return all(map(_is_finite, value))
    if kind is str or kind is int or value is None or kind is bool:
        return True
    if isinstance(value, float):
        return math.isfinite(value)
    plain = msgspec.to_builtins(value, str_keys=True)
    return _is_finite(plain) if type(plain) in (dict, list, tuple, float) else True


def _not_finite(value: Any, place: str) -> Iterator[tuple[str, float]]:
    if isinstance(value, float):
        if not math.isfinite(value):
            yield place, value
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield from _not_finite(inner, f"{place}.{name}" if place else str(name))
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            yield from _not_finite(inner, f"{place}[{number}]")


def record_text(record: Any) -> str:
    """A result record as JSON: a dict, a dataclass, a Struct; never a bare number or string."""
    text = json_text(record, "record", RECORD_BYTES, InvalidRecord)
    if not text.startswith("{"):
        raise InvalidRecord(
            f"A record must be an object with fields, not {type(record).__name__}.",
            remedy="Yield a dict, a dataclass, a model, or work: stage.item(url).",
        )
    return text
