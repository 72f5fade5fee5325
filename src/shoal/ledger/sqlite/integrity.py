"""Checks whether a ledger's file is damaged: SQLite's own check, and further ones.

SQLite keeps no checksums. Its check detects broken pages, indexes that differ from their table, and values of a wrong
type. The further checks detect text that is not UTF-8, invalid JSON, impossible times, and keys with a wrong hash. A
flipped bit that changes one letter of a record, an error or a payload is not detected.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

from shoal.errors import InvalidItem
from shoal.model.outcome import OutcomeClass
from shoal.model.url_key import key_hash, url_key
from shoal.model.views import Finding

MAX_FINDINGS = 20
# How long a command that failed unexpectedly checks whether a damaged file is the cause.
QUICK_SECONDS = 20.0
_PROGRESS_STEPS = 100_000
_LAST_TIME = 253_402_300_799_000_000  # the end of the year 9999, in microseconds
_TIMES = {"since", "at", "blocked_until", "not_before"}
_JSON = {
    "run": ("settings",),
    "run_note": ("value",),
    "item": ("payload", "request"),
    "outcome": ("detail",),
    "attempt": ("detail",),
    "result": ("record",),
    "worker": ("scope",),
    "event": ("detail",),
    "setting": ("value",),
    "lock": ("value",),
}


def find_damage(path: Path, seconds: float = QUICK_SECONDS) -> str | None:
    """The first damage that SQLite's check finds within so many seconds; None when it finds none."""
    ends_at = time.monotonic() + seconds
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=1.0)) as connection:
            connection.set_progress_handler(lambda: time.monotonic() > ends_at, _PROGRESS_STEPS)
            return next(_integrity(connection), None)
    except UnicodeDecodeError:
        return "even what SQLite says about it cannot be read"
    except sqlite3.DatabaseError as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        return str(error) if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB) else None


def check_content(connection: sqlite3.Connection, schema: Mapping[str, str]) -> list[Finding]:
    """All damage that can be detected, at most MAX_FINDINGS of a kind.

    `schema`: the statements that create the tables, indexes and views of this version, by name.
    """
    found = [Finding("integrity", text) for text in _integrity(connection)]
    there = dict(tuple(row) for row in connection.execute("select name, sql from sqlite_schema where sql is not null"))
    found += [
        Finding("schema", f"{name} is not what it was made as") for name in schema if there.get(name) != schema[name]
    ]
    tables = [row[0] for row in connection.execute("select name from sqlite_schema where type = 'table' order by name")]
    for table in tables:
        try:
            found += _check_table(connection, table)
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            found.append(Finding("readable", f"{table}: {error}"))
    return found


def _integrity(connection: sqlite3.Connection) -> Iterator[str]:
    for row in connection.execute(f"pragma integrity_check({MAX_FINDINGS})"):
        if row[0] != "ok":
            yield " ".join(str(row[0]).removeprefix("*** in database main ***").split())


def _check_table(connection: sqlite3.Connection, table: str) -> Iterator[Finding]:
    columns = {row[1]: row[2].lower() for row in connection.execute(f"pragma table_info({table})")}
    for _ in connection.execute(f"select * from {table}"):
        pass  # reading is the check: it fails for text that is not UTF-8
    for column in _JSON.get(table, ()):
        yield from _rows(
            connection, table, f"{column} is not null and not json_valid({column})", f"{column} is no JSON"
        )
    for column, kind in columns.items():
        if kind == "integer" and (column in _TIMES or column.endswith("_at")):
            yield from _rows(connection, table, f"{column} not between 0 and {_LAST_TIME}", f"{column} is no time")
    if "outcome" in columns:
        known = ", ".join(f"'{outcome}'" for outcome in (*OutcomeClass, "cancelled"))
        yield from _rows(connection, table, f"outcome not in ({known})", "its outcome is unknown")
    if table == "item":
        for name in ("queue", "stage"):
            yield from _rows(connection, table, f"{name} not in (select id from {name})", f"its {name} is not there")
        yield from _wrong_keys(connection)


def _rows(connection: sqlite3.Connection, table: str, condition: str, what: str) -> Iterator[Finding]:
    for row in connection.execute(f"select * from {table} where {condition} limit {MAX_FINDINGS}"):
        yield Finding("content", f"{table} {row[0]}: {what}")


def _wrong_keys(connection: sqlite3.Connection) -> Iterator[Finding]:
    found = 0
    for item, key, url, stored in connection.execute("select id, key, url, key_hash from item"):
        try:
            is_right = key_hash(key if key is not None else url_key(url or "")) == stored
        except InvalidItem:
            is_right = False
        if not is_right:
            yield Finding("content", f"item {item}: its URL or key is not the one that was enqueued")
            found += 1
            if found == MAX_FINDINGS:
                return
