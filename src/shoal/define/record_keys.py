"""The rule of a stage that gives each record its key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from shoal.errors import InvalidRecord, InvalidScraper
from shoal.model.record_key import OnDuplicate, RecordKey, RecordScope, record_key_hash

MAX_KEY_CHARACTERS = 2_000
RecordKeyFields = str | list[str] | tuple[str, ...] | Callable[[Any], Any]
_EMPTY: tuple[Any, ...] = (None, "", [], {})
_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode = msgspec.json.Encoder(order="sorted").encode
_NULLS = {b"null", b'""', b"[]", b"{}"}


class RecordKeyRule:
    """Makes the keys of a stage's records, from fields of the stored JSON or by a function of the yielded record."""

    __slots__ = ("_fields", "_function", "_replaces", "_scraper", "_stage", "scope")

    def __init__(self, scraper: str, stage: str, key: RecordKeyFields, scope: str, on_duplicate: str) -> None:
        self._scraper = scraper
        self._stage = stage
        self._function = key if callable(key) else None
        self._fields = (key,) if isinstance(key, str) else tuple(key) if isinstance(key, list | tuple) else ()
        if self._function is None and (not self._fields or any(type(f) is not str or not f for f in self._fields)):
            raise InvalidScraper(
                f"record_key of the stage {stage} is {key!r}; it must be the name of a field, several names, or a "
                "function of the record."
            )
        self.scope = _choice(RecordScope, "record_scope", stage, scope)
        self._replaces = _choice(OnDuplicate, "on_duplicate", stage, on_duplicate) is OnDuplicate.REPLACE

    def key_of(self, value: Any, text: str) -> RecordKey:
        """The key of a record, given as it was yielded and as JSON. Raises InvalidRecord when it has none."""
        key = self._key_from_fields(text) if self._function is None else self._key_from_function(value)
        if len(key) > MAX_KEY_CHARACTERS:
            raise InvalidRecord(
                f"The key of the record has {len(key):,} characters; {MAX_KEY_CHARACTERS:,} are allowed.",
                remedy="Name shorter fields in record_key, or return a hash from its function.",
            )
        return RecordKey(key, record_key_hash(self._scraper, self._stage, key), self.scope, self._replaces)

    def _key_from_fields(self, text: str) -> str:
        record = _decode_fields(text)
        parts = []
        for name in self._fields:
            raw = bytes(record.get(name, b"null")).strip()
            if raw in _NULLS:
                state = "is empty" if name in record else "is missing"
                raise InvalidRecord(
                    f"The record has no key: its field {name!r} {state}, and the stage {self._stage} has "
                    f"record_key={self._shown()}.",
                    remedy="Yield the field with every record, or choose another record_key.",
                )
            parts.append(_normalized(raw))
        return parts[0] if len(parts) == 1 else f"[{','.join(parts)}]"

    def _key_from_function(self, value: Any) -> str:
        assert self._function is not None
        found = self._function(value)
        try:
            text = _encode(found).decode()
        except (TypeError, ValueError, RecursionError) as problem:
            raise InvalidRecord(
                f"The record_key function of the stage {self._stage} returned {type(found).__name__}, which is no key: "
                f"{problem}.",
                remedy="Return text, a number, or a tuple of them.",
            ) from None
        if found in _EMPTY or text == "null":
            raise InvalidRecord(
                f"The record has no key: the record_key function of the stage {self._stage} returned {found!r}.",
                remedy="Return text, a number, or a tuple of them for every record.",
            )
        return text

    def _shown(self) -> str:
        return repr(self._fields[0] if len(self._fields) == 1 else self._fields)


def _normalized(raw: bytes) -> str:
    """Equal values have equal text, however the encoder of their record wrote them."""
    if raw[:1] in b'"{[' or b"." in raw or b"e" in raw or b"E" in raw:
        return _encode(msgspec.json.decode(raw)).decode()
    return raw.decode()


def _choice(kind: Any, option: str, stage: str, value: str) -> Any:
    try:
        return kind(value)
    except ValueError:
        names = " or ".join(repr(member.value) for member in kind)
        raise InvalidScraper(f"{option} of the stage {stage} is {value!r}; it must be {names}.") from None
