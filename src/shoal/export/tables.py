"""Writers of tables: each takes chunks of JSON lines whose columns are known, and gives bytes to a target."""

from __future__ import annotations

import csv
import importlib
import io
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from shoal.errors import UsageError
from shoal.export.shape import Convert, Shape, Table, cell_text
from shoal.export.targets import Target

ROW_GROUP_ROWS = 128 << 10
ROW_GROUP_BYTES = 32 << 20
_BOM = "\ufeff"
_AS_THEY_ARE = (str, int, float, type(None))
# What spreadsheets take for the start of a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")

_decode = msgspec.json.Decoder(dict[str, Any]).decode


class TableWriter(Protocol):
    """`finish` writes what is left; `abandon`, after a failure, makes sure that nothing more is written."""

    def write(self, lines: Sequence[bytes]) -> None: ...

    def finish(self) -> None: ...

    def abandon(self) -> None: ...


class CsvWriter:
    """RFC 4180 in UTF-8. `safe` puts a quote before texts that a spreadsheet would take for a formula."""

    def __init__(self, target: Target, table: Table, *, bom: bool = False, safe: bool = False) -> None:
        self._target = target
        self._columns = table.columns
        self._safe = safe
        heading = io.StringIO(newline="")
        if table.columns:
            csv.writer(heading).writerow(self._harmless(self._columns))
        target.write(((_BOM if bom else "") + heading.getvalue()).encode())

    def write(self, lines: Sequence[bytes]) -> None:
        text = io.StringIO(newline="")
        columns = self._columns
        rows: Any = (
            [value if type(value) in _AS_THEY_ARE else cell_text(value) for value in map(record.get, columns)]
            for record in map(_decode, lines)
        )
        csv.writer(text).writerows(map(self._harmless, rows) if self._safe else rows)
        self._target.write(text.getvalue().encode())

    def finish(self) -> None:
        """Every row is written already."""

    def abandon(self) -> None:
        """Nothing is kept back that could be written later."""

    def _harmless(self, row: Sequence[Any]) -> list[Any]:
        if not self._safe:
            return list(row)
        return [f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA) else cell for cell in row]


class ParquetWriter:
    """Row groups of bounded size, cut by the data alone, so that the same records give the same bytes."""

    def __init__(self, target: Target, table: Table) -> None:
        pa, pq = require_pyarrow()
        self._pa = pa
        self._schema = pa.schema([(name, _arrow_type(pa, shape)) for name, shape in table.shapes.items()])
        self._converters: dict[str, Convert | None] = {name: shape.converter() for name, shape in table.shapes.items()}
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

    def abandon(self) -> None:
        self._sink.swallows = True
        self._writer.close()

    def _write_group(self) -> None:
        group = self._pa.Table.from_batches(self._batches, schema=self._schema)
        self._batches, self._rows, self._bytes = [], 0, 0
        self._writer.write_table(group, row_group_size=max(1, group.num_rows))


class _ArrowSink:
    """A target as Arrow wants a file to look. Arrow writes a footer even when it is closed after a failure."""

    closed = False
    mode = "wb"

    def __init__(self, target: Target) -> None:
        self._target = target
        self.swallows = False

    def write(self, data: Any) -> int:
        return len(data) if self.swallows else self._target.write(bytes(data))

    def tell(self) -> int:
        return self._target.tell()

    def flush(self) -> None:
        """A target holds nothing back."""

    def close(self) -> None:
        self.closed = True


def require_pyarrow() -> tuple[Any, Any]:
    """Arrow and its Parquet half, imported when they are needed and not before."""
    try:
        return importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise UsageError(
            "Parquet needs the package pyarrow, which is not installed.",
            remedy="Install it with `pip install 'shoal[parquet]'`, or write JSONL or CSV.",
        ) from None


def _arrow_type(pa: Any, shape: Shape) -> Any:
    match shape.type:
        case "bool":
            return pa.bool_()
        case "int":
            return pa.int64()
        case "float":
            return pa.float64()
        case "list":
            return pa.list_(pa.string() if shape.element is None else _arrow_type(pa, shape.element))
        case "struct":
            return pa.struct([(name, _arrow_type(pa, field)) for name, field in shape.fields.items()])
        case _:
            return pa.string()
