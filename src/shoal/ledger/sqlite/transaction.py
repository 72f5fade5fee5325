"""What an operation sees of the database while it holds the write lock."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import Any

import msgspec

decoded = msgspec.json.Decoder().decode


class Transaction:
    """Named queries on the writing connection. `now` is the ledger's time, read after the lock was won."""

    def __init__(self, connection: sqlite3.Connection, queries: Mapping[str, str], now: int) -> None:
        self._execute = connection.execute
        self._sql = queries
        self.now = now
        self.wakes = False  # set when there may be new work, so that sleepers of this process look

    def run(self, name: str, *args: object) -> int:
        """A statement that changes rows; returns how many."""
        return self._execute(self._sql[name], args).rowcount

    def rows(self, name: str, *args: object) -> list[sqlite3.Row]:
        return self._execute(self._sql[name], args).fetchall()

    def value(self, name: str, *args: object) -> Any:
        """The first column of the first row; None when there is none."""
        rows = self._execute(self._sql[name], args).fetchall()
        return rows[0][0] if rows else None

    def json(self, name: str, *args: object) -> Any:
        """The value of a query that answers with one JSON text."""
        return decoded(self.value(name, *args))

    def note(self, run_no: int | None, actor: str, action: str, subject: str, detail: Mapping[str, Any]) -> None:
        self.run("note_event", run_no, actor, action, subject, json_text(detail))


def json_text(value: Any) -> str:
    return msgspec.json.encode(value).decode()
