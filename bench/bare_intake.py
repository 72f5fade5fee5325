"""Loading URLs without Shoal: COPY, or executemany, into a table of exactly the shape of Shoal's `item`."""

from __future__ import annotations

import datetime as dt
import sqlite3
import time
from collections.abc import Iterable, Iterator
from typing import Any

import asyncpg

from shoal.model.url_key import key_hash, url_key

Row = tuple[str, bytes]


def rows_of(urls: Iterable[str]) -> Iterator[Row]:
    return ((url, key_hash(url_key(url))) for url in urls)


async def copy_seconds(shoal_url: str, rows: Iterable[Row]) -> float:
    """COPY into a twin of shoal.item, indexes included; `shoal_url` is a migrated database."""
    connection = await asyncpg.connect(shoal_url)
    try:
        await connection.execute(
            "create table public.bare_item (like shoal.item including all);"
            "alter table public.bare_item alter id set default nextval('shoal.item_id')"
        )
        now = dt.datetime.now(dt.UTC)
        began = time.perf_counter()
        await connection.copy_records_to_table(
            "bare_item",
            schema_name="public",
            records=((now, 1, 1, 1, 0, hash_, url) for url, hash_ in rows),
            columns=["created_at", "run", "stage", "queue", "priority", "key_hash", "url"],
        )
        return time.perf_counter() - began
    finally:
        await connection.close()


def executemany_seconds(path: str, shape_from: str, rows: Iterable[Row]) -> float:
    """executemany in one transaction into a twin of the `item` table of the ledger at `shape_from`."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("pragma journal_mode = wal")
    connection.execute("pragma synchronous = full")
    columns = _same_shape(connection, shape_from)
    names = [*columns, "key_hash", "url"]
    values = [*(repr(value) for value in columns.values()), "?1", "?2"]
    sql = f"insert into item ({', '.join(names)}) values ({', '.join(values)})"
    began = time.perf_counter()
    connection.execute("begin immediate")
    connection.executemany(sql, ((hash_, url) for url, hash_ in rows))
    connection.execute("commit")
    seconds = time.perf_counter() - began
    connection.close()
    return seconds


def _same_shape(connection: sqlite3.Connection, shape_from: str) -> dict[str, Any]:
    """Create the same table and indexes; returns the columns that must have a value besides key_hash and url."""
    model = sqlite3.connect(shape_from)
    statements = model.execute(
        "select sql from sqlite_master where tbl_name = 'item' and type in ('table', 'index') and sql is not null"
        " order by type desc"
    ).fetchall()
    for (statement,) in statements:
        connection.execute(statement)
    required = {
        name: 0
        for _, name, _, not_null, default, key in model.execute("pragma table_info(item)")
        if not_null and not key and default is None and name not in ("key_hash", "url")
    }
    model.close()
    return required
