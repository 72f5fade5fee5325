"""A connection with its thread, its write transactions, and the ledger's clock.

There is one clock for all processes on the file, without jumps: the kernel's time since boot (CLOCK_BOOTTIME, which
continues during suspend) plus an offset stored in the ledger for each boot. The first process after a boot sets the
offset so that the time is that of the wall clock, or the latest time stored in the ledger if the wall clock is behind
it. So ledger time never goes back; a change of the wall clock takes effect after the next boot.
"""

from __future__ import annotations

import datetime as dt
import math
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from shoal.errors import LedgerCorrupt, LedgerUnreachable
from shoal.ledger.sqlite.errors import APPLICATION_ID
from shoal.ledger.sqlite.integrity import find_damage
from shoal.model.exit_health import exit_state
from shoal.model.lane import is_loopback_lane
from shoal.model.latency import add_buckets
from shoal.threads import ThreadRunner

T = TypeVar("T")
MICRO = 1_000_000
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_KERNEL_CLOCK: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
decoded = msgspec.json.Decoder().decode
CHECK_AFTER_SECONDS = 10.0
PROGRESS_STEPS = 1_000_000


class SqliteClock:
    """Ledger time in microseconds since 1970. `source` (seconds since 1970) replaces it in tests."""

    def __init__(self, queries: Mapping[str, str], source: Callable[[], float] | None = None) -> None:
        self._sql = queries
        self._source = source
        self._offset: int | None = None

    @property
    def is_set(self) -> bool:
        return self._source is not None or self._offset is not None

    def now(self) -> int:
        if self._source is not None:
            return round(self._source() * MICRO)
        if self._offset is None:
            raise RuntimeError("the ledger's clock was read before its offset was set")
        return since_boot() + self._offset

    def load_offset(self, connection: sqlite3.Connection) -> bool:
        """Use the offset stored for this boot. False: there is none, or it would make time go back."""
        known = connection.execute(self._sql["clock_offset"], (boot_id(),)).fetchone()
        if known is None or since_boot() + known[0] < self._last_seen(connection):
            return False
        self._offset = known[0]
        return True

    def set_offset(self, connection: sqlite3.Connection) -> None:
        """Load the offset of this boot, or set it. Called within a write transaction, so that all processes agree."""
        if not self.load_offset(connection):
            # A new boot, or the file was used on a machine whose clock is ahead of ours.
            offset = max(self._last_seen(connection), time.time_ns() // 1000) - since_boot()
            connection.execute(self._sql["set_clock_offset"], (boot_id(), offset))
            self._offset = offset

    def _last_seen(self, connection: sqlite3.Connection) -> int:
        seen: int = connection.execute(self._sql["last_seen"]).fetchone()[0]
        return seen


def since_boot() -> int:
    return time.clock_gettime_ns(_KERNEL_CLOCK) // 1000


def boot_id() -> str:
    """Identifies a boot. Without the kernel's id it is the approximate time of the boot; setting the wall clock then
    looks like a new boot, and time still does not go back."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return f"about-{round((time.time() - time.monotonic()) / 60)}"


def to_datetime(microseconds: int) -> dt.datetime:
    return _EPOCH + dt.timedelta(microseconds=microseconds)


def micros(seconds: float) -> int:
    return round(seconds * MICRO)


class Transaction:
    """Named queries on the writing connection. `now` is the ledger's time, read after the write lock was acquired."""

    def __init__(self, connection: sqlite3.Connection, queries: Mapping[str, str], now: int) -> None:
        self._execute = connection.execute
        self._sql = queries
        self.now = now
        self.should_notify = False  # set when there may be new work, to wake waiting tasks of this process

    def run(self, name: str, *args: object) -> int:
        """Run a statement that changes rows; returns how many."""
        return self._execute(self._sql[name], args).rowcount

    def rows(self, name: str, *args: object) -> list[sqlite3.Row]:
        return self._execute(self._sql[name], args).fetchall()

    def value(self, name: str, *args: object) -> Any:
        """The first column of the first row; None when there is none."""
        rows = self._execute(self._sql[name], args).fetchall()
        return rows[0][0] if rows else None

    def json(self, name: str, *args: object) -> Any:
        """The decoded value of a query that returns one JSON text."""
        return decoded(self.value(name, *args))

    def record_event(
        self, run_no: int | None, actor: str, action: str, subject: str, detail: Mapping[str, Any]
    ) -> None:
        self.run("insert_event", run_no, actor, action, subject, json_text(detail))


def json_text(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _parse_time(raw: bytes) -> dt.datetime:
    try:
        return to_datetime(int(raw))
    except (ValueError, OverflowError):
        raise LedgerCorrupt(f"The ledger holds an invalid time: {raw[:40]!r}.") from None


sqlite3.register_converter("moment", _parse_time)


def _add_buckets(first: str, second: str) -> str:
    """The sum of two histograms, which are JSON lists; shoal.add_buckets on PostgreSQL."""
    return json_text(add_buckets(decoded(first), decoded(second)))


class _SumBuckets:
    """Aggregate: the sum of histograms."""

    def __init__(self) -> None:
        self._sums: list[int] = []

    def step(self, buckets: Any, /) -> None:
        self._sums = add_buckets(self._sums, decoded(buckets))

    def finalize(self) -> Any:
        return json_text(self._sums)


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
        self._callers = 0
        self._is_running = False

    @property
    def load(self) -> int:
        """How much waits for this connection; a query whose caller was cancelled counts until it ends."""
        return self._callers + self._is_running

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count the caller for the length of a block."""
        self._callers += 1
        try:
            yield
        finally:
            self._callers -= 1

    def query(self, query: Callable[[sqlite3.Connection], T]) -> T:
        """Run a query; in the connection's thread."""
        self._is_running = True
        try:
            return query(self.for_statement())
        finally:
            self._is_running = False

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
        connection.create_function("is_loopback_lane", 1, is_loopback_lane, deterministic=True)
        connection.create_function("exit_state", 3, exit_state, deterministic=True)
        connection.create_function("add_buckets", 2, _add_buckets, deterministic=True)
        connection.create_aggregate("sum_buckets", 1, _SumBuckets)
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
