"""What fields records have, and of which types: found by looking at every record once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from shoal.errors import UsageError

MOST_COLUMNS = 10_000
# An object with more fields than this is a dictionary keyed by data, not a structure.
MOST_NESTED_FIELDS = 100
DEEPEST = 8
_FLOAT_HOLDS = 1 << 53
_INT64_HOLDS = 1 << 63

Convert = Callable[[Any], Any]
_encode = msgspec.json.Encoder().encode
_SIMPLE = {str: "text", bool: "bool", float: "float", type(None): "null"}


def cell_text(value: Any) -> str:
    """A value as the text of a cell: strings as they are, None empty, everything else as JSON."""
    if isinstance(value, str):
        return value
    return "" if value is None else _encode(value).decode()


class Shape:
    """The types that were seen in one place."""

    __slots__ = ("_depth", "element", "fields", "kinds")

    def __init__(self, depth: int = 0) -> None:
        self.kinds: set[str] = set()
        self.element: Shape | None = None
        self.fields: dict[str, Shape] = {}
        self._depth = depth

    def add(self, value: Any) -> None:
        kind = _SIMPLE.get(type(value))
        if kind is None:
            kind = self._add_number(value) if type(value) is int else self._add_nested(value)
        self.kinds.add(kind)

    @property
    def type(self) -> str:
        """bool, int, float, text, list or struct; text where the values agree on nothing better."""
        kinds = self.kinds - {"null"}
        if kinds <= {"int", "wide"}:
            return "int" if kinds else "text"
        if kinds <= {"int", "float"}:
            return "float"
        if len(kinds) > 1:
            return "text"
        kind = next(iter(kinds))
        if kind == "struct":
            return "struct" if 0 < len(self.fields) <= MOST_NESTED_FIELDS else "text"
        return kind if kind in ("bool", "list") else "text"

    def converter(self) -> Convert | None:
        """What turns the values seen into values of `type`; None when they are that already."""
        match self.type:
            case "text":
                return None if self.kinds <= {"text", "null"} else _or_none(cell_text)
            case "float":
                return None if "int" not in self.kinds else _or_none(float)
            case "list":
                each = self.element.converter() if self.element is not None else None
                return None if each is None else _or_none(lambda values: [each(value) for value in values])
            case "struct":
                return _struct_converter({name: shape.converter() for name, shape in self.fields.items()})
            case _:
                return None

    def _add_number(self, value: int) -> str:
        if -_FLOAT_HOLDS <= value <= _FLOAT_HOLDS:
            return "int"
        return "wide" if -_INT64_HOLDS <= value < _INT64_HOLDS else "huge"

    def _add_nested(self, value: Any) -> str:
        if self._depth == DEEPEST:
            return "deep"
        if isinstance(value, list):
            if self.element is None:
                self.element = Shape(self._depth + 1)
            for one in value:
                self.element.add(one)
            return "list"
        for name, one in value.items():
            if name not in self.fields:
                if len(self.fields) > MOST_NESTED_FIELDS:
                    break
                self.fields[name] = Shape(self._depth + 1)
            self.fields[name].add(one)
        return "struct"


class Table:
    """The columns of a table: every field that a record had, in the order of first appearance."""

    def __init__(self, columns: tuple[str, ...] = (), *, typed: bool) -> None:
        self._typed = typed
        self.shapes: dict[str, Shape] = {name: Shape() for name in columns}
        self._by_stage: dict[str, set[str]] = {}

    def add(self, stage: str, record: Mapping[str, Any]) -> None:
        known = self._by_stage.get(stage)
        if known is None:
            known = self._by_stage[stage] = set()
        if not record.keys() <= known:
            known.update(record)
            self._widen(record)
        if self._typed:
            for name, value in record.items():
                self.shapes[name].add(value)

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(self.shapes)

    @property
    def unseen(self) -> tuple[str, ...]:
        """Columns that no record has."""
        return tuple(name for name in self.shapes if not any(name in fields for fields in self._by_stage.values()))

    @property
    def unlike_stages(self) -> tuple[str, ...]:
        """The stages, when their records have different fields."""
        fields = list(self._by_stage.values())
        return tuple(self._by_stage) if any(one != fields[0] for one in fields) else ()

    def _widen(self, record: Mapping[str, Any]) -> None:
        for name in record:
            if name not in self.shapes:
                self.shapes[name] = Shape()
        if len(self.shapes) > MOST_COLUMNS:
            raise UsageError(
                f"The records have more than {MOST_COLUMNS:,} different fields: too many for a table.",
                remedy="Choose some with --columns, or write JSONL.",
            )


def _or_none(convert: Convert) -> Convert:
    return lambda value: None if value is None else convert(value)


def _struct_converter(converters: Mapping[str, Convert | None]) -> Convert | None:
    needed = {name: convert for name, convert in converters.items() if convert is not None}
    if not needed:
        return None

    def convert(value: Any) -> Any:
        return {name: needed[name](one) if name in needed else one for name, one in value.items()}

    return _or_none(convert)
