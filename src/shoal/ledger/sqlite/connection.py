"""A connection to the file and the thread that it lives in."""

from __future__ import annotations

import asyncio
import datetime as dt
import math
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

from shoal.errors import LedgerCorrupt, LedgerUnreachable
from shoal.ledger.sqlite.errors import APPLICATION_ID
from shoal.ledger.sqlite.integrity import find_damage
from shoal.ledger.sqlite.transaction import SqliteClock, micros, to_datetime

T = TypeVar("T")
CHECK_AFTER_SECONDS = 10.0
PROGRESS_STEPS = 1_000_000

# A job gets a function that says whether its caller was cancelled, so that it can roll back.
Job = Callable[[Callable[[], bool]], T]


class DatabaseThread:
    """Runs jobs one at a time for asyncio callers, with less overhead per call than an executor."""

    def __init__(self, name: str) -> None:
        self._jobs: SimpleQueue[tuple[asyncio.Future[Any], Job[Any]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    async def run(self, job: Job[T]) -> T:
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._jobs.put((future, job))
        return await future

    def stop(self) -> None:
        """End the thread after the jobs it has been given so far."""
        self._jobs.put(None)

    def _work(self) -> None:
        while (given := self._jobs.get()) is not None:
            future, job = given
            if future.cancelled():
                continue
            answer: Any = None
            problem: BaseException | None = None
            try:
                answer = job(future.cancelled)
            except BaseException as error:
                problem = error
            with suppress(RuntimeError):  # the event loop was closed
                future.get_loop().call_soon_threadsafe(_resolve, future, answer, problem)
            del given, future, job, answer, problem


def _resolve(future: asyncio.Future[Any], answer: Any, problem: BaseException | None) -> None:
    if future.cancelled():
        return
    if problem is not None:
        future.set_exception(problem)
    else:
        future.set_result(answer)


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
        self.thread = DatabaseThread(name)
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
