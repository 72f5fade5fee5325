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
Row = tuple[int, int, str]
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


class BareLoop:
    """Claim and commit, one transaction each."""

    def __init__(self, path: str) -> None:
        self._connection = connect(path)
        self._after = 0

    def seconds(self, total: int, batch: int) -> float:
        """The time that the next `total` items take."""
        began = time.perf_counter()
        done = 0
        while done < total:
            rows = self._claim(batch)
            self._commit(rows)
            done += len(rows)
        return time.perf_counter() - began

    def close(self) -> None:
        self._connection.close()

    def _claim(self, batch: int) -> list[Row]:
        db = self._connection
        db.execute("begin immediate")
        rows: list[Row] = db.execute(PICK, (self._after, batch)).fetchall()
        now = time.time()
        db.executemany("delete from ready where queue = 1 and priority = 0 and item = ?", [row[:1] for row in rows])
        db.executemany("insert into lease values (?, ?, 7, ?)", [(item, epoch, now) for item, epoch, _ in rows])
        db.execute("commit")
        self._after = rows[-1][0]
        return rows

    def _commit(self, rows: list[Row]) -> None:
        db = self._connection
        db.execute("begin immediate")
        now = time.time()
        held = db.executemany("delete from lease where item = ? and epoch = ?", [row[:2] for row in rows]).rowcount
        db.executemany("insert into outcome values (?, ?, 7, ?, null)", [(item, epoch, now) for item, epoch, _ in rows])
        db.execute("commit")
        if held != len(rows):
            raise RuntimeError(f"{len(rows)} items were handed in and {held} taken")
