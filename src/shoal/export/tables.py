"""CSV and Parquet: a first pass over the records finds columns and types (TableSchema), a second one writes them."""

from __future__ import annotations

import csv
import importlib
import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from shoal.errors import UsageError
from shoal.storage import Target

MAX_COLUMNS = 10_000
# An object with more fields than this is a dictionary keyed by data, not a structure.
MAX_NESTED_FIELDS = 100
MAX_DEPTH = 8
ROW_GROUP_ROWS = 128 << 10
ROW_GROUP_BYTES = 32 << 20
_MAX_EXACT_FLOAT = 1 << 53
_INT64_LIMIT = 1 << 63
_SIMPLE_TYPES = {str: "text", bool: "bool", float: "float", type(None): "null"}
_CSV_SCALARS = (str, int, float, type(None))
_BOM = "\ufeff"
# Spreadsheets read a cell that starts with one of these as a formula.
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")

Convert = Callable[[Any], Any]
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, Any]).decode


def cell_text(value: Any) -> str:
    """The text of a cell: strings unchanged, None empty, everything else as JSON."""
    if isinstance(value, str):
        return value
    return "" if value is None else _encode(value).decode()


class FieldType:
    """The type of a column, list element or nested field, derived from all its values."""

    __slots__ = ("_depth", "element", "fields", "kinds")

    def __init__(self, depth: int = 0) -> None:
        self.kinds: set[str] = set()
        self.element: FieldType | None = None
        self.fields: dict[str, FieldType] = {}
        self._depth = depth

    def add(self, value: Any) -> None:
        kind = _SIMPLE_TYPES.get(type(value))
        if kind is None:
            kind = self._int_kind(value) if type(value) is int else self._add_nested(value)
        self.kinds.add(kind)

    @property
    def type(self) -> str:
        """bool, int, float, text, list or struct; text where the values have no common type."""
        kinds = self.kinds - {"null"}
        if kinds <= {"int", "wide"}:
            return "int" if kinds else "text"
        if kinds <= {"int", "float"}:
            return "float"
        if len(kinds) > 1:
            return "text"
        kind = next(iter(kinds))
        if kind == "struct":
            return "struct" if 0 < len(self.fields) <= MAX_NESTED_FIELDS else "text"
        return kind if kind in ("bool", "list") else "text"

    def converter(self) -> Convert | None:
        """Converts the values to `type`; None when no conversion is needed."""
        match self.type:
            case "text":
                return None if self.kinds <= {"text", "null"} else _or_none(cell_text)
            case "float":
                return None if "int" not in self.kinds else _or_none(float)
            case "list":
                each = self.element.converter() if self.element is not None else None
                return None if each is None else _or_none(lambda values: [each(value) for value in values])
            case "struct":
                return _struct_converter({name: field_type.converter() for name, field_type in self.fields.items()})
            case _:
                return None

    def to_state(self) -> dict[str, Any]:
        """As JSON; `from_state` makes it again."""
        state: dict[str, Any] = {"kinds": sorted(self.kinds)}
        if self.element is not None:
            state["element"] = self.element.to_state()
        if self.fields:
            state["fields"] = {name: field.to_state() for name, field in self.fields.items()}
        return state

    @classmethod
    def from_state(cls, state: Mapping[str, Any], depth: int = 0) -> FieldType:
        made = cls(depth)
        made.kinds = set(state.get("kinds", ()))
        if "element" in state:
            made.element = cls.from_state(state["element"], depth + 1)
        made.fields = {name: cls.from_state(field, depth + 1) for name, field in state.get("fields", {}).items()}
        return made

    def _int_kind(self, value: int) -> str:
        if -_MAX_EXACT_FLOAT <= value <= _MAX_EXACT_FLOAT:
            return "int"
        return "wide" if -_INT64_LIMIT <= value < _INT64_LIMIT else "huge"

    def _add_nested(self, value: Any) -> str:
        if self._depth == MAX_DEPTH:
            return "deep"
        if isinstance(value, list):
            if self.element is None:
                self.element = FieldType(self._depth + 1)
            for element in value:
                self.element.add(element)
            return "list"
        for name, inner in value.items():
            if name not in self.fields:
                if len(self.fields) > MAX_NESTED_FIELDS:
                    break
                self.fields[name] = FieldType(self._depth + 1)
            self.fields[name].add(inner)
        return "struct"


class TableSchema:
    """The columns of a table: every field of the records, in the order of first appearance."""

    def __init__(self, columns: tuple[str, ...] = (), *, typed: bool, fixed: bool = False) -> None:
        """`fixed`: there are no other columns than these."""
        self._typed = typed
        self._fixed = fixed
        self._requested = columns
        self.field_types: dict[str, FieldType] = {name: FieldType() for name in columns}
        self._by_stage: dict[str, set[str]] = {}

    def to_state(self) -> dict[str, Any]:
        """The columns and their types as JSON, for `remember`."""
        return {name: field_type.to_state() for name, field_type in self.field_types.items()}

    def remember(self, state: Mapping[str, Any]) -> None:
        """Have the columns and types of an earlier table: columns stay, in their order, and types only widen."""
        for name, field_state in state.items():
            if name in self.field_types or not self._fixed:
                self.field_types[name] = FieldType.from_state(field_state)

    def add(self, stage: str, record: Mapping[str, Any]) -> None:
        known = self._by_stage.get(stage)
        if known is None:
            known = self._by_stage[stage] = set()
        if not record.keys() <= known:
            known.update(record)
            self._add_columns(record)
        if self._typed:
            for name, value in record.items():
                self.field_types[name].add(value)

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(self.field_types)

    @property
    def missing_columns(self) -> tuple[str, ...]:
        """Requested columns that no record has."""
        return tuple(name for name in self._requested if not any(name in fields for fields in self._by_stage.values()))

    @property
    def differing_stages(self) -> tuple[str, ...]:
        """The stages, when their records have different fields."""
        fields = list(self._by_stage.values())
        return tuple(self._by_stage) if any(names != fields[0] for names in fields) else ()

    def _add_columns(self, record: Mapping[str, Any]) -> None:
        for name in record:
            if name not in self.field_types:
                self.field_types[name] = FieldType()
        if len(self.field_types) > MAX_COLUMNS:
            raise UsageError(
                f"The records have more than {MAX_COLUMNS:,} different fields: too many for a table.",
                remedy="Select some with --columns, or write JSONL.",
            )


def _or_none(convert: Convert) -> Convert:
    return lambda value: None if value is None else convert(value)


def _struct_converter(converters: Mapping[str, Convert | None]) -> Convert | None:
    needed = {name: convert for name, convert in converters.items() if convert is not None}
    if not needed:
        return None

    def convert(value: Any) -> Any:
        return {name: needed[name](inner) if name in needed else inner for name, inner in value.items()}

    return _or_none(convert)


class TableWriter(Protocol):
    """Writes chunks of JSON lines to a target. `finish` writes buffered rows; `abort`, after a failure, drops them."""

    def write(self, lines: Sequence[bytes]) -> None: ...

    def finish(self) -> None: ...

    def abort(self) -> None: ...


class CsvRows:
    """Renders a table as RFC 4180 in UTF-8. `safe` puts a quote before text that a spreadsheet reads as a formula."""

    def __init__(self, table: TableSchema, *, bom: bool = False, safe: bool = False) -> None:
        self._columns = table.columns
        self._bom = bom
        self._safe = safe

    def header(self) -> bytes:
        header = io.StringIO(newline="")
        if self._columns:
            csv.writer(header).writerow(self._escape_formulas(self._columns))
        return ((_BOM if self._bom else "") + header.getvalue()).encode()

    def rows(self, lines: Sequence[bytes]) -> bytes:
        text = io.StringIO(newline="")
        columns = self._columns
        rows: Any = (
            [value if type(value) in _CSV_SCALARS else cell_text(value) for value in map(record.get, columns)]
            for record in map(_decode, lines)
        )
        csv.writer(text).writerows(map(self._escape_formulas, rows) if self._safe else rows)
        return text.getvalue().encode()

    def _escape_formulas(self, row: Sequence[Any]) -> list[Any]:
        if not self._safe:
            return list(row)
        return [f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA_STARTS) else cell for cell in row]


class CsvWriter:
    """Writes a table as CSV to a target."""

    def __init__(self, target: Target, table: TableSchema, *, bom: bool = False, safe: bool = False) -> None:
        self._target = target
        self._rows = CsvRows(table, bom=bom, safe=safe)
        target.write(self._rows.header())

    def write(self, lines: Sequence[bytes]) -> None:
        self._target.write(self._rows.rows(lines))

    def finish(self) -> None:
        """Rows are not buffered."""

    def abort(self) -> None:
        """Rows are not buffered."""


class ParquetWriter:
    """Writes row groups of bounded size that depend on the data only, so that the same records give the same bytes."""

    def __init__(self, target: Target, table: TableSchema) -> None:
        pa, pq = require_pyarrow()
        self._pa = pa
        self._schema = pa.schema(
            [(name, _arrow_type(pa, field_type)) for name, field_type in table.field_types.items()]
        )
        self._converters: dict[str, Convert | None] = {
            name: field_type.converter() for name, field_type in table.field_types.items()
        }
        self._sink = _ArrowSink(target)
        self._writer = pq.ParquetWriter(self._sink, self._schema)
        self._batches: list[Any] = []
        self._rows = self._bytes = 0

    def write(self, lines: Sequence[bytes]) -> None:
        records = [_decode(line) for line in lines]
        arrays = []
        for field in self._schema:
            values: list[Any] = [record.get(field.name) for record in records]
            convert = self._converters[field.name]
            arrays.append(self._pa.array(map(convert, values) if convert else values, field.type, size=len(values)))
        self._batches.append(self._pa.RecordBatch.from_arrays(arrays, schema=self._schema))
        self._rows += len(lines)
        self._bytes += self._batches[-1].nbytes
        if self._rows >= ROW_GROUP_ROWS or self._bytes >= ROW_GROUP_BYTES:
            self._write_group()

    def finish(self) -> None:
        if self._batches:
            self._write_group()
        self._writer.close()

    def abort(self) -> None:
        self._sink.discards = True
        self._writer.close()

    def _write_group(self) -> None:
        group = self._pa.Table.from_batches(self._batches, schema=self._schema)
        self._batches, self._rows, self._bytes = [], 0, 0
        self._writer.write_table(group, row_group_size=max(1, group.num_rows))


class _ArrowSink:
    """A target as a file object for Arrow, which writes a footer even when it is closed after a failure."""

    closed = False
    mode = "wb"

    def __init__(self, target: Target) -> None:
        self._target = target
        self.discards = False

    def write(self, data: Any) -> int:
        return len(data) if self.discards else self._target.write(bytes(data))

    def tell(self) -> int:
        return self._target.tell()

    def flush(self) -> None:
        """A target does not buffer."""

    def close(self) -> None:
        self.closed = True


def require_pyarrow() -> tuple[Any, Any]:
    """Import pyarrow and pyarrow.parquet on first use."""
    try:
        return importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise UsageError(
            "Parquet needs the package pyarrow, which is not installed.",
            remedy="Install it with `pip install 'shoal[parquet]'`, or write JSONL or CSV.",
        ) from None


def _arrow_type(pa: Any, field_type: FieldType) -> Any:
    match field_type.type:
        case "bool":
            return pa.bool_()
        case "int":
            return pa.int64()
        case "float":
            return pa.float64()
        case "list":
            return pa.list_(pa.string() if field_type.element is None else _arrow_type(pa, field_type.element))
        case "struct":
            return pa.struct([(name, _arrow_type(pa, field)) for name, field in field_type.fields.items()])
        case _:
            return pa.string()
