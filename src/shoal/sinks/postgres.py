"""A PostgreSQL table: created and extended from the records, upserted by record key or record id.

Each batch is one transaction. New rows go into the table by COPY; when one of them exists already, by COPY into a
temporary table and INSERT ... ON CONFLICT. Columns that Shoal made carry a comment, so that a field that a record no
longer has becomes null, and columns of other people are left alone. No column is dropped; of Shoal's own, a column of
whole numbers becomes numeric when a fraction comes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from types import NoneType
from typing import Any

import asyncpg
import msgspec

from shoal.config.sinks import SinkConfig
from shoal.errors import SinkFailed
from shoal.model.changes import ChangedRecord, RecordRef, ReplacedItem
from shoal.model.ledger_url import split_connect_timeout
from shoal.sinks.sink import RecordsRefused, SinkBatch, newest_only, row_key

MAX_NAME_BYTES = 63
MAX_COLUMNS = 1_000
OWN_COMMENT = "a field of Shoal's records"
_INT64 = 1 << 63
_PLAIN_TABLE = re.compile(r"[^\w.]+", re.ASCII)
# Columns of every table: what a row is upserted by, and where its record came from.
_OWN_COLUMNS = {
    "shoal_key": "text",
    "shoal_id": "text",
    "shoal_run": "text",
    "shoal_item": "bigint",
    "shoal_n": "integer",
    "shoal_url": "text",
}
_COLUMNS = """
select a.attname as name, format_type(a.atttypid, a.atttypmod) as type, col_description(a.attrelid, a.attnum) as comment
from pg_attribute a where a.attrelid = to_regclass($1) and a.attnum > 0 and not a.attisdropped and a.attgenerated = ''
"""
_decode = msgspec.json.Decoder(dict[str, Any]).decode
_encode = msgspec.json.Encoder().encode
# Types of columns that values are sent as; for all others they are sent as text, which the server casts.
_SENT_AS_IS = {"boolean", "bigint", "integer", "smallint", "double precision", "real", "text", "jsonb", "json"}
_INT_LIMITS = {"bigint": _INT64, "integer": 1 << 31, "smallint": 1 << 15}


# Column types of declared fields, by the names that `record_field_types` gives them.
_DECLARED = {
    "boolean": "boolean",
    "integer": "bigint",
    "number": "double precision",
    "decimal": "numeric",
    "string": "text",
    "datetime": "timestamp with time zone",
    "date": "date",
    "uuid": "uuid",
    "json": "jsonb",
}


class _Table(msgspec.Struct):
    """A table as it is: the types of its columns, and which of them are fields of records."""

    name: str
    types: dict[str, str]
    fields: set[str]


class _Refused(ValueError):
    """Why a value does not fit its column."""


class PostgresSink:
    def __init__(self, config: SinkConfig) -> None:
        self._config = config
        self._connection: asyncpg.Connection | None = None
        self._tables: dict[str, _Table] = {}
        self._names: dict[tuple[str, str], str] = {}
        self._upserts: set[str] = set()  # tables whose rows were there already, lately

    async def deliver(self, batch: SinkBatch) -> None:
        try:
            await self._deliver(batch)
        except (asyncpg.UndefinedTableError, asyncpg.UndefinedColumnError, asyncpg.DatatypeMismatchError):
            self._tables.clear()  # somebody has changed the table since
            await self._deliver(batch)
        except (asyncpg.DataError, asyncpg.IntegrityConstraintViolationError, UnicodeEncodeError) as error:
            raise RecordsRefused(_first_line(error)) from None

    async def close(self) -> None:
        if self._connection is not None:
            self._connection.terminate()

    async def _deliver(self, batch: SinkBatch) -> None:
        groups = self._grouped(newest_only(batch))
        replaced: dict[str, list[ReplacedItem]] = {}
        for item in batch.replaced:
            replaced.setdefault(self._table_name(item.scraper, item.stage), []).append(item)
        connection = await self._connect()
        prepared = []
        for name, records in groups.items():
            values = [_decode(record.record) for record in records]
            await self._prepare_table(connection, name, records, values, batch)
            prepared.append((self._tables[name], *self._rows(name, records, values)))
        async with connection.transaction():
            for table, columns, rows in prepared:
                await self._store(connection, table, columns, rows)
            for name, items in replaced.items():
                await self._delete_rest(connection, name, items, groups.get(name, ()))

    async def _connect(self) -> asyncpg.Connection:
        if self._connection is None or self._connection.is_closed():
            url, connect_timeout = split_connect_timeout(self._config.url or "")
            # No prepared statements: a pooler may be in between.
            self._connection = await asyncpg.connect(
                url, statement_cache_size=0, timeout=connect_timeout or self._config.timeout
            )
        return self._connection

    def _grouped(self, records: Sequence[ChangedRecord]) -> dict[str, Sequence[ChangedRecord]]:
        """The records by table; mostly there is one."""
        stages = {(record.scraper, record.stage) for record in records}
        if len(stages) == 1:
            return {self._table_name(*stages.pop()): records}
        groups: dict[str, list[ChangedRecord]] = {}
        for record in records:
            groups.setdefault(self._table_name(record.scraper, record.stage), []).append(record)
        return dict(groups)

    def _table_name(self, scraper: str, stage: str) -> str:
        known = self._names.get((scraper, stage))
        if known is None:
            known = self._names[scraper, stage] = self._new_table_name(scraper, stage)
        return known

    def _new_table_name(self, scraper: str, stage: str) -> str:
        """The quoted name; what is not a letter, digit or underscore in the name of a scraper becomes an underscore."""
        plain = self._config.filled(self._config.table, _plain(scraper), _plain(stage))
        parts = plain.split(".")
        if len(parts) > 2 or any(not part or len(part.encode()) > MAX_NAME_BYTES for part in parts):
            raise SinkFailed(
                f"{plain!r} is not the name of a table.", remedy="Correct `table`: NAME or SCHEMA.NAME, 63 bytes each."
            )
        return ".".join(map(_quoted, parts))

    async def _prepare_table(
        self,
        connection: asyncpg.Connection,
        name: str,
        records: Sequence[ChangedRecord],
        rows: Sequence[Mapping[str, Any]],
        batch: SinkBatch,
    ) -> None:
        """Create the table, or add the columns that it lacks."""
        table = self._tables.get(name) or await self._read_table(connection, name)
        declared = {
            field: _DECLARED[kind]
            for record in {(record.run_id, record.stage): record for record in records}.values()
            for field, kind in batch.types.get((record.run_id, record.stage), {}).items()
            if kind in _DECLARED and not _field_problem(field)
        }
        if table is not None:
            _check_declared(table, declared)
        known = set(table.types) if table is not None else set()
        if table is not None:
            await self._widen(connection, table, rows, declared)
        if known.issuperset((*_all_fields(rows), *declared, *_OWN_COLUMNS)):
            return
        wanted = {**_OWN_COLUMNS, **declared, **_inferred_types(rows, skip=known | declared.keys())}
        missing = {column: kind for column, kind in wanted.items() if column not in known}
        if len(known) + len(missing) > MAX_COLUMNS:
            raise SinkFailed(
                f"The records for {name} have more than {MAX_COLUMNS:,} different fields.",
                remedy="Yield such data as one field with an object in it.",
            )
        if missing or table is None:
            await self._change_table(connection, name, missing, is_new=table is None)
        found = await self._read_table(connection, name)
        if found is None:
            raise SinkFailed(f"The table {name} was dropped by somebody else.")
        _check_declared(found, declared)

    async def _widen(
        self,
        connection: asyncpg.Connection,
        table: _Table,
        rows: Sequence[Mapping[str, Any]],
        declared: Mapping[str, str],
    ) -> None:
        """Columns that Shoal made for whole numbers, because it had seen no others, become numeric."""
        whole = [column for column in table.fields - declared.keys() if table.types[column] == "bigint"]
        for column in whole:
            if any(isinstance(value := row.get(column), float) and not value.is_integer() for row in rows):
                await connection.execute(f"alter table {table.name} alter column {_quoted(column)} type numeric")
                table.types[column] = "numeric"

    async def _change_table(
        self, connection: asyncpg.Connection, name: str, missing: Mapping[str, str], *, is_new: bool
    ) -> None:
        async with connection.transaction():
            if is_new:
                if "." in name:
                    await connection.execute(f"create schema if not exists {name.partition('.')[0]}")
                await connection.execute(f"create table if not exists {name} (shoal_key text primary key)")
            for column, kind in missing.items():
                await connection.execute(f"alter table {name} add column if not exists {_quoted(column)} {kind}")
                if column not in _OWN_COLUMNS:
                    comment = (
                        f"comment on column {name}.{_quoted(column)} is '{OWN_COMMENT.replace(chr(39), chr(39) * 2)}'"
                    )
                    await connection.execute(comment)
            if not is_new and "shoal_key" in missing:
                await connection.execute(
                    f"create unique index if not exists {_index(name, 'key')} on {name} (shoal_key)"
                )

    async def _read_table(self, connection: asyncpg.Connection, name: str) -> _Table | None:
        found = await connection.fetch(_COLUMNS, name)
        if not found:
            self._tables.pop(name, None)
            return None
        table = self._tables[name] = _Table(
            name,
            {row["name"]: row["type"] for row in found},
            {row["name"] for row in found if row["comment"] == OWN_COMMENT},
        )
        return table

    def _rows(
        self, name: str, records: Sequence[ChangedRecord], values: Sequence[Mapping[str, Any]]
    ) -> tuple[list[str], list[tuple[Any, ...]]]:
        """The columns, and a row for each record. Raises RecordsRefused with the records that do not fit."""
        table = self._tables[name]
        fields = _all_fields(values)
        columns = [
            column
            for column in table.types
            if column not in _OWN_COLUMNS and (column in fields or column in table.fields)
        ]
        reasons: dict[RecordRef, str] = {}
        ids = [record.id for record in records]
        filled: list[list[Any]] = [
            [row_key(record, id) for record, id in zip(records, ids, strict=True)],
            ids,
            [record.run_id for record in records],
            [record.item for record in records],
            [record.n for record in records],
            [record.url for record in records],
        ]
        for column in columns:
            found = [value.get(column) for value in values]
            if not _fits(table.types[column], found):
                found = _converted(column, table.types[column], records, found, reasons)
            filled.append(found)
        for field in fields - table.types.keys():
            for record, value in zip(records, values, strict=True):
                if value.get(field) is not None:
                    reasons[record.ref] = _field_problem(field)
        if reasons:
            raise RecordsRefused(next(iter(reasons.values())), reasons)
        return [*_OWN_COLUMNS, *columns], list(zip(*filled, strict=True))

    async def _store(
        self, connection: asyncpg.Connection, table: _Table, columns: list[str], rows: list[tuple[Any, ...]]
    ) -> None:
        """A table whose last batch was all new probably gets new rows again: COPY alone is three times as fast."""
        if table.name not in self._upserts and _SENT_AS_IS.issuperset(table.types[column] for column in columns):
            try:
                async with connection.transaction():
                    await self._copy(connection, table.name, columns, rows)
                return
            except asyncpg.UniqueViolationError:
                self._upserts.add(table.name)
        types = [table.types[column] for column in columns]
        sent = [kind if kind in _SENT_AS_IS else "text" for kind in types]
        names = [_quoted(column) for column in columns]
        defined = ", ".join(f"{name} {kind}" for name, kind in zip(names, sent, strict=True))
        await connection.execute(f"create temporary table shoal_batch ({defined}) on commit drop")
        await self._copy(connection, "shoal_batch", columns, rows)
        casts = ", ".join(f"b.{name}::{kind}" for name, kind in zip(names, types, strict=True))
        changes = ", ".join(f"{name} = excluded.{name}" for name in names[1:])
        done = await connection.fetch(
            f"insert into {table.name} ({', '.join(names)}) select {casts} from shoal_batch b "
            f"on conflict (shoal_key) do update set {changes} returning (xmax = 0) as is_new",
            timeout=self._config.timeout,
        )
        await connection.execute("drop table shoal_batch")
        if all(row["is_new"] for row in done):
            self._upserts.discard(table.name)

    async def _copy(
        self, connection: asyncpg.Connection, name: str, columns: list[str], rows: list[tuple[Any, ...]]
    ) -> None:
        *schema, table = _unquoted(name)
        await connection.copy_records_to_table(
            table,
            schema_name=schema[0] if schema else None,
            columns=columns,
            records=rows,
            timeout=self._config.timeout,
        )

    async def _delete_rest(
        self,
        connection: asyncpg.Connection,
        name: str,
        items: Sequence[ReplacedItem],
        records: Sequence[ChangedRecord],
    ) -> None:
        """Delete the records that replaced items no longer have: also those whose number has another key now."""
        if self._tables.get(name) is None and await self._read_table(connection, name) is None:
            return
        await connection.execute(f"create index if not exists {_index(name, 'item')} on {name} (shoal_run, shoal_item)")
        await connection.execute(
            f"delete from {name} t using unnest($1::text[], $2::bigint[], $3::int[]) as u(run, item, n) "
            "where t.shoal_run = u.run and t.shoal_item = u.item and t.shoal_n >= u.n",
            [item.run_id for item in items],
            [item.item for item in items],
            [item.count for item in items],
        )
        changed = {(item.run_id, item.item) for item in items}
        kept = [record for record in records if (record.run_id, record.item) in changed]
        await connection.execute(
            f"delete from {name} t "
            "using unnest($1::text[], $2::bigint[], $3::int[], $4::text[]) as u(run, item, n, key) "
            "where t.shoal_run = u.run and t.shoal_item = u.item and t.shoal_n = u.n and t.shoal_key <> u.key",
            [record.run_id for record in kept],
            [record.item for record in kept],
            [record.n for record in kept],
            [row_key(record, record.id) for record in kept],
        )


def _all_fields(rows: Sequence[Mapping[str, Any]]) -> set[str]:
    return set().union(*rows)


def _inferred_types(rows: Sequence[Mapping[str, Any]], *, skip: set[str]) -> dict[str, str]:
    """Column types of fields by their values. A field that is null in all of them gets no column yet."""
    found: dict[str, set[str]] = {}
    for row in rows:
        for field, value in row.items():
            if value is not None and field not in skip:
                found.setdefault(field, set()).add(_value_type(value))
    return {field: _common_type(kinds) for field, kinds in found.items() if not _field_problem(field)}


def _value_type(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "bigint" if -_INT64 <= value < _INT64 else "numeric"
    if isinstance(value, float):
        return "double precision"
    return "text" if isinstance(value, str) else "jsonb"


def _common_type(kinds: set[str]) -> str:
    if len(kinds) == 1:
        return next(iter(kinds))
    if kinds <= {"bigint", "double precision", "numeric"}:
        return "numeric" if "numeric" in kinds else "double precision"
    return "jsonb"


def _field_problem(field: str) -> str:
    """Why a field cannot be a column; empty if it can."""
    if field in _OWN_COLUMNS:
        return f"the field {field} has the name of one of Shoal's own columns"
    if not field or "\0" in field or len(field.encode()) > MAX_NAME_BYTES:
        return f"the field {field[:70]!r} is no name of a column; a name has 1 to {MAX_NAME_BYTES} bytes"
    return ""


def _check_declared(table: _Table, declared: Mapping[str, str]) -> None:
    for column, kind in declared.items():
        has = table.types.get(column, kind)
        if _family(has) != _family(kind):
            raise SinkFailed(
                f"The column {column} of {table.name} is {has}, but the record type of the stage declares {kind}.",
                remedy="Change the column's type or name in the database, or let the sink write to another table.",
            )


def _family(kind: str) -> str:
    """Types that take each other's values."""
    base = kind.partition("(")[0].strip()
    if base in ("text", "character varying", "character", "name"):
        return "text"
    if base in ("bigint", "integer", "smallint", "double precision", "real", "numeric"):
        return "number"
    return {"json": "jsonb", "timestamp without time zone": "timestamp with time zone"}.get(base, base)


def _fits(kind: str, values: Sequence[Any]) -> bool:
    """Whether all values of a column can be sent as they are; the usual case, without a call for each."""
    types = set(map(type, values)) - {NoneType}
    if kind == "text":
        return types <= {str} and not any("\0" in value for value in values if value)
    if kind == "bigint":
        given = [value for value in values if value is not None]
        return types <= {int} and (not given or (min(given) >= -_INT64 and max(given) < _INT64))
    return (kind == "boolean" and types <= {bool}) or (kind == "double precision" and types <= {float})


def _converted(
    column: str, kind: str, records: Sequence[ChangedRecord], values: Sequence[Any], reasons: dict[RecordRef, str]
) -> list[Any]:
    """The values as they are sent; those that do not fit are put into `reasons`."""
    convert = _converter(kind)
    found: list[Any] = []
    for record, value in zip(records, values, strict=True):
        try:
            found.append(None if value is None else convert(value))
        except _Refused as problem:
            found.append(None)
            reasons[record.ref] = f"{column} {problem}, but the column is {kind}"
    return found


def _converter(kind: str) -> Callable[[Any], Any]:
    """Converts a value to what is sent for a column of this type; raises _Refused."""
    base = kind.partition("(")[0].strip()
    if base in ("jsonb", "json"):
        return _as_json
    if base == "boolean":
        return _as_bool
    if base in _INT_LIMITS:
        return _as_int(_INT_LIMITS[base])
    if base in ("double precision", "real"):
        return _as_float
    if kind == "text":
        return _as_text
    if base == "numeric":
        return lambda value: str(_as_number(value))
    return _as_text


def _as_json(value: Any) -> str:
    text = _encode(value).decode()
    if "\\u0000" in text and "\0" in str(value):
        raise _Refused("contains a NUL character")
    return text


def _as_bool(value: Any) -> bool:
    if not isinstance(value, bool):
        raise _Refused(f"is {_short(value)}")
    return value


def _as_int(limit: int) -> Callable[[Any], int]:
    def convert(value: Any) -> int:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not -limit <= value < limit:
            raise _Refused(f"is {_short(value)}")
        return value

    return convert


def _as_number(value: Any) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _Refused(f"is {_short(value)}")
    return value


def _as_float(value: Any) -> float:
    try:
        return float(_as_number(value))
    except OverflowError:
        raise _Refused(f"is {_short(value)}") from None


def _as_text(value: Any) -> str:
    text = value if isinstance(value, str) else _encode(value).decode()
    if "\0" in text:
        raise _Refused("contains a NUL character")
    return text


def _short(value: Any) -> str:
    text = _encode(value).decode()
    return text if len(text) <= 60 else text[:57] + "..."


def _plain(name: str) -> str:
    return _PLAIN_TABLE.sub("_", name.replace(".", "_"))


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _unquoted(name: str) -> list[str]:
    """The parts of a table's name that `_quoted` made."""
    return [part.replace('""', '"') for part in re.findall(r'"((?:[^"]|"")*)"', name)] or [name]


def _index(table: str, what: str) -> str:
    plain = re.sub(r"\W+", "_", table).strip("_")
    return _quoted(f"shoal_{plain[:40]}_{what}")


def _first_line(error: BaseException) -> str:
    detail = getattr(error, "detail", None)
    text = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
    return f"{text} ({detail.rstrip('.')})" if detail else text
