"""The same work without Shoal on SQLite: plain tables, the sqlite3 module, the same journal and durability."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable

SCHEMA = """
create table item (id integer primary key, url text);
create table ready (queue int, priority int, item int, primary key (queue, priority, item)) without rowid;
create table lease (item integer primary key, epoch int, worker int, claimed_at real);
create table outcome (item integer primary key, epoch int, worker int, ended_at real, error text);
"""
PICK = """
select r.item, 1, i.url from ready r join item i on i.id = r.item
where r.queue = 1 and (r.priority, r.item) > (0, ?) order by r.priority, r.item limit ?
"""


def connect(path: str) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("pragma journal_mode = wal")
    connection.execute("pragma synchronous = full")
    return connection


def fill(path: str, urls: Iterable[str]) -> None:
    connection = connect(path)
    connection.executescript(SCHEMA)
    connection.execute("begin")
    connection.executemany("insert into item values (?, ?)", enumerate(urls, 1))
    connection.execute("insert into ready select 1, 0, id from item")
    connection.execute("commit")
    connection.close()


def consume(path: str, total: int, batch: int) -> float:
    """Seconds for `total` items through claim and commit, one transaction each."""
    connection = connect(path)
    began = time.perf_counter()
    done = after = 0
    while done < total:
        connection.execute("begin immediate")
        rows = connection.execute(PICK, (after, batch)).fetchall()
        now = time.time()
        connection.executemany("delete from ready where queue = 1 and priority = 0 and item = ?", [r[:1] for r in rows])
        connection.executemany("insert into lease values (?, ?, 7, ?)", [(r[0], r[1], now) for r in rows])
        connection.execute("commit")
        after = rows[-1][0]

        connection.execute("begin immediate")
        now = time.time()
        held = connection.executemany("delete from lease where item = ? and epoch = ?", [r[:2] for r in rows]).rowcount
        connection.executemany("insert into outcome values (?, ?, 7, ?, null)", [(r[0], r[1], now) for r in rows])
        connection.execute("commit")
        if held != len(rows):
            raise RuntimeError(f"{len(rows)} items were handed in and {held} taken")
        done += len(rows)
    seconds = time.perf_counter() - began
    connection.close()
    return seconds
