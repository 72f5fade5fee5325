"""A connection to the file and the thread that it lives in."""

from __future__ import annotations

import datetime as dt
import math
import sqlite3
import time
from pathlib import Path

from shoal.errors import LedgerCorrupt, LedgerUnreachable
from shoal.ledger.sqlite.errors import APPLICATION_ID
from shoal.ledger.sqlite.integrity import find_damage
from shoal.ledger.sqlite.transaction import SqliteClock, micros, to_datetime
from shoal.threads import ThreadRunner

CHECK_AFTER_SECONDS = 10.0
PROGRESS_STEPS = 1_000_000


def _parse_time(raw: bytes) -> dt.datetime:
    try:
        return to_datetime(int(raw))
    except (ValueError, OverflowError):
        raise LedgerCorrupt(f"The ledger holds an invalid time: {raw[:40]!r}.") from None


sqlite3.register_converter("moment", _parse_time)


class SqliteConnection:
    """A connection that is used in one thread only.

    In a damaged file, pages that refer to each other keep a statement running forever. So the first statement that
    takes long is interrupted if SQLite's integrity check finds damage.
    """

    def __init__(self, path: Path, name: str, clock: SqliteClock) -> None:
        self.thread = ThreadRunner(name, max_threads=1)
        self._path = path
        self._clock = clock
        self._sqlite: sqlite3.Connection | None = None
        self._check_at = math.inf
        self._examined = False

    def for_statement(self) -> sqlite3.Connection:
        """The connection, for the next statement: the time that it may take starts now."""
        self._check_at = time.monotonic() + CHECK_AFTER_SECONDS
        return self.sqlite

    def _should_interrupt(self) -> bool:
        if self._examined or time.monotonic() < self._check_at:
            return False
        self._examined = True
        return find_damage(self._path) is not None

    @property
    def sqlite(self) -> sqlite3.Connection:
        if self._sqlite is None:
            raise LedgerUnreachable("The ledger is closed.", remedy="Open it again.")
        return self._sqlite

    def open(self) -> None:
        connection = sqlite3.connect(
            self._path,
            timeout=0,
            isolation_level=None,
            detect_types=sqlite3.PARSE_COLNAMES,
            cached_statements=512,
        )
        self._sqlite = connection
        connection.row_factory = sqlite3.Row
        connection.create_function("clock", 0, self._clock.now)
        connection.create_function("seconds", 1, micros)
        connection.set_progress_handler(self._should_interrupt, PROGRESS_STEPS)

    def close(self) -> None:
        if self._sqlite is not None:
            self._sqlite.close()
            self._sqlite = None


def is_foreign(connection: sqlite3.Connection) -> bool:
    """Whether the file is a database of another program."""
    # In this order, because another process may create tables and id between the two queries.
    if not connection.execute("select exists (select 1 from sqlite_schema)").fetchone()[0]:
        return False
    application: int = connection.execute("pragma application_id").fetchone()[0]
    return application != APPLICATION_ID


def has_shoal_tables(connection: sqlite3.Connection) -> bool:
    names = "'run', 'stage', 'item', 'ready', 'waiting', 'delayed', 'lease', 'outcome'"
    found: int = connection.execute(f"select count(*) from sqlite_schema where name in ({names})").fetchone()[0]
    return found == 8
