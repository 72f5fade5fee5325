"""Connections to PostgreSQL: pooling, retries, notifications.

The connections need no session state (no SET, no session locks), so PgBouncer may be used in transaction mode.
Statements are prepared, which saves a round trip each, unless a pooler is detected: then the process id reported at
login is not that of the server's process.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import asyncpg

from shoal.errors import BadLedgerUrl, LedgerUnavailable, LedgerUnreachable
from shoal.ledger.postgres.errors import (
    BUSY_ERRORS,
    TRANSIENT_ERRORS,
    ConnectionLost,
    LedgerBusy,
    first_line,
    is_transient,
    tls_error,
    to_shoal_error,
)
from shoal.model.ledger_url import redacted_address, split_connect_timeout

Record = asyncpg.Record
PREPARED_STATEMENTS = 200
LISTEN_RETRY_SECONDS = 10.0
IDLE_CONNECTION_SECONDS = 30.0
# After the server has reported that it has no connection left: how long we use a single one, and how long we keep it.
LIMITED_SECONDS = 30.0
MAX_HOLD_SECONDS = 5.0
# Whether a URL leads to a server without a pooler in between. Determined once per process.
_IS_DIRECT: dict[str, bool] = {}
LOGIN_SECONDS = 10.0
CANCEL_SECONDS = 1.0


class StatelessConnection(asyncpg.Connection):
    """A connection that is not reset between two uses, because Shoal leaves nothing behind after a transaction.

    The pool's usual reset costs a round trip per call, and PgBouncer might send it to another server.
    """

    def get_reset_query(self) -> str:
        return ""


class PostgresDatabase:
    """A small pool whose calls are retried for up to `patience` seconds, so that they survive restarts of the server.

    Idle connections are closed soon. When the server has no connection left, a process uses a single one, closes it
    every few seconds for the benefit of others, and does not listen; see `_limit_connections`. `warn` is called then.
    """

    def __init__(self, url: str, *, pool_size: int, patience: float, command_timeout: float) -> None:
        self.url, connect_timeout = split_connect_timeout(url)
        self._connect_timeout = connect_timeout or LOGIN_SECONDS
        self.warn: Callable[[str], object] = str
        self.patience = patience
        self._pool_size = pool_size
        self._command_timeout = command_timeout
        self._pool: asyncpg.Pool | None = None
        self._prepare = False
        self._listener: asyncpg.Connection | None = None
        self._woken = asyncio.Event()
        self._listen_task: asyncio.Task[None] | None = None
        self._listen_retry_at = 0.0
        self._limited_until = 0.0
        self._connection_expired_at = 0.0
        self._single_connection_lock = asyncio.Lock()

    @property
    def display_url(self) -> str:
        return redacted_address(self.url)

    async def connect(self) -> None:
        try:
            self._prepare = await self._is_direct_with_retry()
            self._pool = await asyncpg.create_pool(
                self.url,
                min_size=0,  # otherwise the pool reconnects by itself and reports every failure on stderr
                max_size=self._pool_size,
                connection_class=StatelessConnection,
                statement_cache_size=PREPARED_STATEMENTS if self._prepare else 0,
                command_timeout=self._command_timeout,
                max_inactive_connection_lifetime=IDLE_CONNECTION_SECONDS,
                timeout=self._connect_timeout,
            )
        except (ValueError, asyncpg.ClientConfigurationError) as error:
            raise tls_error(error, self.url, self.display_url) or BadLedgerUrl(
                f"{self.display_url} is not a PostgreSQL address: {first_line(error)}."
            ) from None
        except (asyncpg.InvalidAuthorizationSpecificationError, asyncpg.InvalidCatalogNameError) as error:
            raise LedgerUnreachable(f"{self.display_url} refused us: {first_line(error)}.") from None
        except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            kind = LedgerUnavailable if is_transient(error) else LedgerUnreachable
            raise tls_error(error, self.url, self.display_url) or kind(
                f"{self.display_url} does not answer: {first_line(error)}."
            ) from None

    async def _is_direct_with_retry(self) -> bool:
        """Whether there is no pooler in between. Retried while the server has no free connection."""
        if (known := _IS_DIRECT.get(self.url)) is not None:
            return known
        deadline = time.monotonic() + self.patience
        while True:
            try:
                _IS_DIRECT[self.url] = await self._is_direct()
                return _IS_DIRECT[self.url]
            except asyncpg.TooManyConnectionsError as error:
                if time.monotonic() > deadline:
                    raise
                self._limit_connections(error)
            await asyncio.sleep(random.uniform(0.1, 0.5))

    async def _is_direct(self) -> bool:
        connection = await asyncpg.connect(self.url, statement_cache_size=0, timeout=self._connect_timeout)
        try:
            server_pid: int = await connection.fetchval("select pg_backend_pid()")
            return server_pid == connection.get_server_pid()
        finally:
            connection.terminate()

    async def close(self) -> None:
        if self._listen_task is not None:
            self._listen_task.cancel()
            await asyncio.gather(self._listen_task, return_exceptions=True)
        if self._listener is not None:
            self._listener.terminate()
            self._listener = None
        if self._pool is not None:
            try:
                await asyncio.wait_for(self._pool.close(), 5)
            except TimeoutError:
                self._pool.terminate()
            self._pool = None

    async def fetch(self, sql: str, *args: object) -> list[Record]:
        """Rows of one statement, which may be executed twice; all of ours but the claim allow that."""
        return await self._fetch_with_retry(sql, args)

    async def try_row(self, sql: str, *args: object) -> Record | None:
        """The first row, or None when others hold locks it needs. For work that can be done later."""
        try:
            return (await self._fetch_with_retry(sql, args, retry_busy=False))[0]
        except LedgerBusy:
            return None

    async def _fetch_with_retry(self, sql: str, args: Sequence[object], *, retry_busy: bool = True) -> list[Record]:
        deadline = time.monotonic() + self.patience
        pause = 0.02
        while True:
            try:
                return await self.fetch_once(sql, *args)
            except ConnectionLost as error:
                if isinstance(error, LedgerBusy) and not retry_busy:
                    raise
                if time.monotonic() + pause > deadline:
                    raise LedgerUnreachable(
                        f"{self.display_url} has not answered for {self.patience:g} s: {error.message}."
                    ) from error
                await asyncio.sleep(pause * (0.5 + random.random()))
                pause = min(pause * 2, 1.0)

    async def fetch_once(self, sql: str, *args: object) -> list[Record]:
        """Rows of one statement; ConnectionLost when it is unknown whether it took effect."""
        if self._pool is None:
            raise LedgerUnreachable("The ledger is closed.", remedy="Open it again.")
        try:
            async with self._connection(self._pool) as connection:
                rows: list[Record] = await connection.fetch(sql, *args)
                return rows
        except BUSY_ERRORS as error:
            raise LedgerBusy(first_line(error)) from error
        except asyncpg.TooManyConnectionsError as error:
            self._limit_connections(error)
            raise ConnectionLost(first_line(error)) from error
        except TRANSIENT_ERRORS as error:
            raise ConnectionLost(first_line(error)) from error
        except asyncpg.UniqueViolationError as error:
            # The same call was sent twice at once. Repeated, it finds the receipt.
            if error.constraint_name == "receipt_pkey":
                raise ConnectionLost(first_line(error)) from error
            raise to_shoal_error(error) from error
        except asyncpg.PostgresError as error:
            raise to_shoal_error(error) from error

    @asynccontextmanager
    async def _connection(self, pool: asyncpg.Pool) -> AsyncIterator[asyncpg.pool.PoolConnectionProxy]:
        now = time.monotonic()
        if now >= self._limited_until:
            async with self._acquired(pool) as connection:
                yield connection
            return
        async with self._single_connection_lock:
            if now - self._connection_expired_at > MAX_HOLD_SECONDS:
                self._connection_expired_at = now
                await pool.expire_connections()
            async with self._acquired(pool) as connection:
                yield connection

    @asynccontextmanager
    async def _acquired(self, pool: asyncpg.Pool) -> AsyncIterator[asyncpg.pool.PoolConnectionProxy]:
        """A connection of the pool. A statement that is given up is cancelled at the server, if that answers soon.

        Otherwise its connection is closed: whoever gave up must not wait for a server that hangs.
        """
        connection = await pool.acquire(timeout=self._command_timeout)
        try:
            yield connection
        except BaseException:
            with suppress(TimeoutError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
                await pool.release(connection, timeout=CANCEL_SECONDS)
            raise
        await pool.release(connection)

    def _limit_connections(self, error: BaseException) -> None:
        """The server has no connection left: use a single one for a while."""
        now = time.monotonic()
        if now >= self._limited_until:
            self._connection_expired_at = now
            self.warn(
                f"The database server has no connection left ({first_line(error)}): this process makes do with one and "
                "takes turns with others. Start fewer workers, use PgBouncer, or raise max_connections."
            )
        self._limited_until = now + LIMITED_SECONDS
        self._listen_retry_at = self._limited_until
        if self._listener is not None:
            self._listener.terminate()
            self._listener = None

    async def row(self, sql: str, *args: object) -> Record:
        return (await self.fetch(sql, *args))[0]

    async def value(self, sql: str, *args: object) -> Any:
        return (await self.fetch(sql, *args))[0][0]

    async def script(self, statements: Sequence[str]) -> None:
        """Several statements, each of one or more commands, in one transaction. Not retried."""
        if self._pool is None:
            raise LedgerUnreachable("The ledger is closed.", remedy="Open it again.")
        try:
            async with self._pool.acquire() as connection, connection.transaction():
                for statement in statements:
                    await connection.execute(statement, timeout=600)
        except (*BUSY_ERRORS, *TRANSIENT_ERRORS) as error:
            raise LedgerUnreachable(f"{self.display_url} broke off: {first_line(error)}.") from error
        except asyncpg.PostgresError as error:
            raise to_shoal_error(error) from error

    async def wait_for_notification(self, seconds: float) -> None:
        """Sleep until a notification, at most so long. Behind PgBouncer there are none, so it only sleeps."""
        until = time.monotonic() + seconds
        if (listening := self._ensure_listening()) is not None:
            # A separate task: a cancelled caller must not leave a half-open connection behind.
            await asyncio.wait((listening,), timeout=seconds)
        self._woken.clear()
        try:
            await asyncio.wait_for(self._woken.wait(), max(0.0, until - time.monotonic()))
        except TimeoutError:
            return

    def _ensure_listening(self) -> asyncio.Task[None] | None:
        """The task that opens the listening connection, started if there is none; None when nothing is to wait for."""
        task = self._listen_task
        if task is not None and not task.done():
            return task
        if (self._listener is not None and not self._listener.is_closed()) or time.monotonic() < self._listen_retry_at:
            return None
        self._listen_retry_at = time.monotonic() + LISTEN_RETRY_SECONDS
        self._listen_task = asyncio.create_task(self._listen(), name="listen")
        return self._listen_task

    async def _listen(self) -> None:
        connection: asyncpg.Connection | None = None
        try:
            connection = await asyncpg.connect(self.url, statement_cache_size=0, timeout=5)
            await connection.add_listener("shoal_wake", lambda *_: self._woken.set())
            self._listener, connection = connection, None
        except asyncpg.TooManyConnectionsError as error:
            self._limit_connections(error)
        except (*BUSY_ERRORS, *TRANSIENT_ERRORS, asyncpg.PostgresError):
            return
        finally:
            if connection is not None:
                connection.terminate()
