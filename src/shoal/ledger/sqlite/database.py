"""The database file: one connection that writes and one or more that read, each in its own thread.

Several processes may use the file. Each write is one short transaction that takes the write lock at its beginning
(BEGIN IMMEDIATE). Waiting for the lock is implemented here, because the pauses of SQLite's busy handler grow to 100 ms:
here they are short and become shorter the longer a process has waited, so that none starves.
"""

from __future__ import annotations

import asyncio
import math
import random
import sqlite3
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from shoal.errors import BadLedgerUrl, LedgerCorrupt, LedgerReadOnly, LedgerUnreachable, UsageError
from shoal.ledger.schema import load_scripts
from shoal.ledger.sqlite.connection import (
    CHECK_AFTER_SECONDS,
    SqliteClock,
    SqliteConnection,
    Transaction,
    has_shoal_tables,
    is_foreign,
)
from shoal.ledger.sqlite.errors import busy_error, corrupt_error, is_busy, to_shoal_error
from shoal.ledger.sqlite.integrity import find_damage

T = TypeVar("T")
WATCH_SECONDS = 0.05
# When the write lock was held for so long, heartbeats of other processes have been waiting too.
STALL_SECONDS = 1.0
# FULL: what was acknowledged survives a power cut. The rest keeps the write-ahead log useful and bounded.
_SETTINGS = (
    "synchronous = full",
    "temp_store = memory",
    "cache_size = -16384",
    "wal_autocheckpoint = 4000",
    "journal_size_limit = 67108864",
)
_READS = ("select", "with", "pragma")


class SqliteDatabase:
    def __init__(
        self, path: Path, queries: Mapping[str, str], *, busy_timeout: float, clock: SqliteClock, readers: int = 1
    ) -> None:
        self.path = path
        self._sql = queries
        self._busy_timeout = busy_timeout
        self._clock = clock
        self._closed = False
        self._inode = 0
        self._woken = asyncio.Event()
        self._waited = 0.0
        self._examined = False
        self._stalled_at = -math.inf
        self._writer = SqliteConnection(path, "shoal-ledger-write", clock)
        self._readers = [SqliteConnection(path, "shoal-ledger-read", clock) for _ in range(readers)]

    @property
    def display_url(self) -> str:
        return str(self.path)

    @property
    def has_just_stalled(self) -> bool:
        """Whether another process held the write lock for long until a moment ago."""
        return time.monotonic() - self._stalled_at < STALL_SECONDS

    async def connect(self) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise BadLedgerUrl(f"{self.path.parent} is not a folder.") from None
        except OSError as error:
            raise LedgerReadOnly(f"The folder {self.path.parent} cannot be created: {error.strerror}.") from None
        await self._writer.thread.run(lambda: self._translate_errors(self._open_writer))
        for reader in self._readers:
            await reader.thread.run(lambda reader=reader: self._translate_errors(lambda: self._open(reader)))  # type: ignore[misc]
        self._inode = self.path.stat().st_ino

    def check_still_there(self) -> None:
        """Raise LedgerUnreachable when the file was removed or replaced: further writes would be lost."""
        try:
            is_there = self.path.stat().st_ino == self._inode
        except OSError:
            is_there = False
        if not is_there:
            raise LedgerUnreachable(
                f"The ledger file {self.path} was removed or replaced while it was in use.",
                remedy="Its data is lost unless you restore the file. Then start again.",
            )

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            for connection in (*self._readers, self._writer):
                await connection.thread.run(connection.close)
                connection.thread.close()

    async def fetch(self, sql: str, *args: object) -> list[sqlite3.Row]:
        """Rows of one statement. Lists go as JSON text."""
        params = [_encode(arg) if type(arg) is list else arg for arg in args]
        if sql.startswith(_READS):
            if not self._clock.is_set and not await self.read(self._clock.load_offset):
                await self.write(lambda _: None)  # any write sets the clock's offset
            return await self.read(lambda connection: connection.execute(sql, params).fetchall())
        rows: list[sqlite3.Row] = await self._do(
            lambda cancelled: self._in_transaction(lambda c: c.execute(sql, params).fetchall(), cancelled)
        )
        return rows

    async def row(self, sql: str, *args: object) -> sqlite3.Row:
        return (await self.fetch(sql, *args))[0]

    async def value(self, sql: str, *args: object) -> Any:
        return (await self.fetch(sql, *args))[0][0]

    async def read(self, query: Callable[[sqlite3.Connection], T]) -> T:
        """Query a reading connection, the one that is free if there are several. Does not need the schema."""
        reader = self._readers[0] if len(self._readers) == 1 else min(self._readers, key=lambda reader: reader.load)
        return await self._read_with(reader, query)

    async def _read_with(self, reader: SqliteConnection, query: Callable[[sqlite3.Connection], T]) -> T:
        self._check_open()
        with reader.counted():
            return await reader.thread.run(
                lambda: self._translate_errors(lambda: self._retry_while_busy(lambda: reader.query(query)))
            )

    async def write(self, operation: Callable[[Transaction], T]) -> T:
        """Run an operation in its own transaction."""

        def work(connection: sqlite3.Connection) -> tuple[T, bool]:
            transaction = Transaction(connection, self._sql, self._clock.now())
            return operation(transaction), transaction.should_notify

        answer, should_notify = await self._do(lambda cancelled: self._in_transaction(work, cancelled))
        if should_notify:
            self._waited = 0.0
            self.wake()
        return answer

    async def change_schema(self, change: Callable[[sqlite3.Connection], T]) -> T:
        """Change the schema: a transaction that needs neither the schema nor its clock."""
        return await self._do(lambda cancelled: self._in_transaction(change, cancelled, needs_clock=False))

    def wake(self) -> None:
        woken, self._woken = self._woken, asyncio.Event()
        woken.set()

    async def wait_for_notification(self, seconds: float) -> None:
        """Sleep until this process wrote something of interest, or another process wrote anything; at most so long."""
        woken = self._woken
        await self._check_if_stuck()
        began = time.monotonic()
        reader = self._readers[0]  # each connection has a version of its own
        seen = await self._read_with(reader, _data_version)
        while (left := began + seconds - time.monotonic()) > 0:
            try:
                await asyncio.wait_for(woken.wait(), min(left, WATCH_SECONDS))
                return
            except TimeoutError:
                if await self._read_with(reader, _data_version) != seen:
                    break
        self._waited += time.monotonic() - began

    async def _check_if_stuck(self) -> None:
        """A damaged file may hide work: after a long wait without any, it is checked once."""
        if self._waited > CHECK_AFTER_SECONDS and not self._examined:
            self._examined = True
            if (finding := await asyncio.to_thread(find_damage, self.path)) is not None:
                raise corrupt_error(self.path, finding)

    async def _do(self, job: Callable[[Callable[[], bool]], T]) -> T:
        self._check_open()
        return await self._writer.thread.run_cancellable(
            lambda cancelled: self._translate_errors(lambda: job(cancelled))
        )

    def _check_open(self) -> None:
        if self._closed:
            raise LedgerUnreachable("The ledger is closed.", remedy="Open it again.")

    def _translate_errors(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except sqlite3.OperationalError as error:
            if getattr(error, "sqlite_errorcode", 0) != sqlite3.SQLITE_INTERRUPT:
                raise to_shoal_error(error, self.path) from error
            raise corrupt_error(self.path, find_damage(self.path) or "a statement does not end") from error
        except sqlite3.Error as error:
            raise to_shoal_error(error, self.path) from error
        except LedgerCorrupt as error:
            raise corrupt_error(self.path, error.message.removesuffix(".")) from error
        except msgspec.DecodeError as error:
            raise corrupt_error(self.path, f"a stored value cannot be read: {error}") from error
        except MemoryError as error:
            if (finding := find_damage(self.path)) is None:
                raise
            raise corrupt_error(self.path, finding) from error
        except UnicodeDecodeError as error:
            raise corrupt_error(self.path, "even what SQLite says about it cannot be read") from error
        except UnicodeEncodeError:
            raise UsageError("The text is not valid Unicode.") from None

    def _in_transaction(
        self, work: Callable[[sqlite3.Connection], T], cancelled: Callable[[], bool], *, needs_clock: bool = True
    ) -> T:
        self._retry_while_busy(lambda: self._writer.for_statement().execute("begin immediate"))
        connection = self._writer.for_statement()
        try:
            if needs_clock and not self._clock.is_set:
                self._clock.set_offset(connection)
            answer = work(connection)
            # The caller would never learn the result, such as the items of a claim: undo it.
            connection.execute("rollback" if cancelled() else "commit")
            return answer
        finally:
            if connection.in_transaction:
                connection.execute("rollback")

    def _retry_while_busy(self, attempt: Callable[[], T]) -> T:
        since: float | None = None
        while True:
            try:
                answer = attempt()
                if since is not None and time.monotonic() - since > STALL_SECONDS:
                    self._stalled_at = time.monotonic()
                return answer
            except sqlite3.OperationalError as error:
                if not is_busy(error):
                    raise
                now = time.monotonic()
                since = since or now
                if now - since > self._busy_timeout:
                    raise busy_error(self.path, self._busy_timeout) from error
                time.sleep(random.uniform(0.5, 1.5) * max(0.0002, 0.002 - (now - since) / 10))

    def _open(self, connection: SqliteConnection) -> None:
        connection.open()
        for setting in _SETTINGS:
            # These fail too while another process switches a new file to the write-ahead log.
            self._retry_while_busy(lambda setting=setting: connection.sqlite.execute(f"pragma {setting}"))  # type: ignore[misc]

    def _open_writer(self) -> None:
        self._open(self._writer)
        connection = self._writer.sqlite
        if self._retry_while_busy(lambda: is_foreign(connection)):
            if self._retry_while_busy(lambda: has_shoal_tables(connection)):
                raise corrupt_error(self.path, "the number in its header that says whose it is was changed")
            raise BadLedgerUrl(f"{self.path} is another program's database.", remedy="Choose another file.")
        self._retry_while_busy(lambda: connection.execute("pragma journal_mode = wal").fetchall())
        for _, text in load_scripts(__package__, "scratch"):
            connection.executescript(text)


def _data_version(connection: sqlite3.Connection) -> int:
    version: int = connection.execute("pragma data_version").fetchone()[0]
    return version


def _encode(values: object) -> str:
    return msgspec.json.encode(values).decode()
