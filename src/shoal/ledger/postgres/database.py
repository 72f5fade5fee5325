"""Connections to PostgreSQL: pooling, retries, and errors put into Shoal's words.

No session state is needed on these connections (no SET, no session locks), so a PgBouncer in transaction mode may stand
in between. Statements are prepared, which saves a round trip each, unless a pooler is seen: then the process id that
came with the login is not that of the server's process.
"""

from __future__ import annotations

import asyncio
import random
import socket
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from shoal.errors import (
    BadLedgerUrl,
    LedgerCorrupt,
    LedgerError,
    LedgerFull,
    LedgerNotMigrated,
    LedgerReadOnly,
    LedgerUnavailable,
    LedgerUnreachable,
    ShoalError,
    WorkerLost,
    WrongState,
)
from shoal.ledger.postgres.tls import tls_error
from shoal.model.ledger_url import redacted_address, split_connect_timeout

Record = asyncpg.Record
PREPARED_STATEMENTS = 200
LISTEN_AGAIN_SECONDS = 10.0
IDLE_CONNECTION_SECONDS = 30.0
# After the server said that it has no connection left: how long we make do with one, and how long we keep it.
LIMITED_SECONDS = 30.0
MAX_HOLD_SECONDS = 5.0
# Servers that were asked whether a pooler stands before them. A process asks once.
_IS_DIRECT: dict[str, bool] = {}
LOGIN_SECONDS = 10.0

# The connection broke, the server starts or stops, or two transactions collided: the call may be made again.
_TRANSIENT_ERRORS = (
    asyncpg.PostgresConnectionError,
    asyncpg.ConnectionDoesNotExistError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.DeadlockDetectedError,
    asyncpg.SerializationError,
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.TooManyConnectionsError,
    asyncpg.ProtocolViolationError,
    OSError,
    TimeoutError,
)
# The server gave the statement up, so it has had no effect: others hold what it needs.
_BUSY_ERRORS = (asyncpg.QueryCanceledError, asyncpg.LockNotAvailableError)
_NOT_MIGRATED_ERRORS = (
    asyncpg.UndefinedTableError,
    asyncpg.UndefinedFunctionError,
    asyncpg.InvalidSchemaNameError,
    asyncpg.UndefinedColumnError,
)


class StatelessConnection(asyncpg.Connection):
    """A connection that needs no clean-up between two uses, because nothing of ours outlives its transaction.

    The pool's usual clean-up is a round trip after every call, and one that PgBouncer would send to any server.
    """

    def get_reset_query(self) -> str:
        return ""


class ConnectionLost(LedgerError):
    """The answer is unknown: the call may or may not have taken effect."""


class LedgerBusy(ConnectionLost):
    """The call did not take effect, because others hold locks that it needs."""


class ClaimSuperseded(LedgerError):
    """The claim was given up before it was carried out; it took nothing."""


class PostgresDatabase:
    """A small pool, and calls that survive restarts of the server for as long as `patience` lasts.

    A connection that is not used is closed soon. When the server has none left, everybody who finds out makes do with
    one, gives it up now and then so that others get a turn, and does not listen; see `_limit_connections`. `warn` hears
    of that.
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
                min_size=0,  # with a floor the pool reconnects by itself, and reports every failure of that on stderr
                max_size=self._pool_size,
                connection_class=StatelessConnection,
                statement_cache_size=PREPARED_STATEMENTS if self._prepare else 0,
                command_timeout=self._command_timeout,
                max_inactive_connection_lifetime=IDLE_CONNECTION_SECONDS,
                timeout=self._connect_timeout,
            )
        except (ValueError, asyncpg.ClientConfigurationError) as error:
            raise tls_error(error, self.url, self.display_url) or BadLedgerUrl(
                f"{self.display_url} is not a PostgreSQL address: {_text(error)}."
            ) from None
        except (asyncpg.InvalidAuthorizationSpecificationError, asyncpg.InvalidCatalogNameError) as error:
            raise LedgerUnreachable(f"{self.display_url} refused us: {_text(error)}.") from None
        except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            kind = LedgerUnavailable if _is_transient(error) else LedgerUnreachable
            raise tls_error(error, self.url, self.display_url) or kind(
                f"{self.display_url} does not answer: {_text(error)}."
            ) from None

    async def _is_direct_with_retry(self) -> bool:
        """Whether no pooler stands in between. A server without a free connection is asked again, as others leave."""
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
        """Rows of one statement. For statements that may be made twice, as all of ours are but for claims."""
        return await self._fetch_with_retry(sql, args)

    async def try_row(self, sql: str, *args: object) -> Record | None:
        """The first row, or None when others hold what it needs. For what can as well be done later."""
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
        """Rows of one statement, or ConnectionLost when nobody can say whether it took effect."""
        if self._pool is None:
            raise LedgerUnreachable("The ledger is closed.", remedy="Open it again.")
        try:
            async with self._connection(self._pool) as connection:
                rows: list[Record] = await connection.fetch(sql, *args)
                return rows
        except _BUSY_ERRORS as error:
            raise LedgerBusy(_text(error)) from error
        except asyncpg.TooManyConnectionsError as error:
            self._limit_connections(error)
            raise ConnectionLost(_text(error)) from error
        except _TRANSIENT_ERRORS as error:
            raise ConnectionLost(_text(error)) from error
        except asyncpg.UniqueViolationError as error:
            # The same call, sent twice, met itself: asked again, it finds its receipt.
            if error.constraint_name == "receipt_pkey":
                raise ConnectionLost(_text(error)) from error
            raise to_shoal_error(error) from error
        except asyncpg.PostgresError as error:
            raise to_shoal_error(error) from error

    @asynccontextmanager
    async def _connection(self, pool: asyncpg.Pool) -> AsyncIterator[asyncpg.pool.PoolConnectionProxy]:
        now = time.monotonic()
        if now >= self._limited_until:
            async with pool.acquire(timeout=self._command_timeout) as connection:
                yield connection
            return
        async with self._single_connection_lock:
            if now - self._connection_expired_at > MAX_HOLD_SECONDS:
                self._connection_expired_at = now
                await pool.expire_connections()
            async with pool.acquire(timeout=self._command_timeout) as connection:
                yield connection

    def _limit_connections(self, error: BaseException) -> None:
        """The server has no connection left: need as few as possible for a while."""
        now = time.monotonic()
        if now >= self._limited_until:
            self._connection_expired_at = now
            self.warn(
                f"The database server has no connection left ({_text(error)}): this process makes do with one and "
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
        """Several statements in one transaction, each possibly holding many commands. Not repeated."""
        if self._pool is None:
            raise LedgerUnreachable("The ledger is closed.", remedy="Open it again.")
        try:
            async with self._pool.acquire() as connection, connection.transaction():
                for statement in statements:
                    await connection.execute(statement, timeout=600)
        except (*_BUSY_ERRORS, *_TRANSIENT_ERRORS) as error:
            raise LedgerUnreachable(f"{self.display_url} broke off: {_text(error)}.") from error
        except asyncpg.PostgresError as error:
            raise to_shoal_error(error) from error

    async def wait_for_notification(self, seconds: float) -> None:
        """Sleep until somebody notifies, at most so long. Behind PgBouncer no hint comes, and the sleep is all."""
        until = time.monotonic() + seconds
        if (listening := self._ensure_listening()) is not None:
            # A task of its own: callers are cancelled as they please, and must not leave a half-made connection behind.
            await asyncio.wait((listening,), timeout=seconds)
        self._woken.clear()
        try:
            await asyncio.wait_for(self._woken.wait(), max(0.0, until - time.monotonic()))
        except TimeoutError:
            return

    def _ensure_listening(self) -> asyncio.Task[None] | None:
        """The task that begins to listen, if that is under way; it is begun when nobody listens."""
        begun = self._listen_task
        if begun is not None and not begun.done():
            return begun
        if (self._listener is not None and not self._listener.is_closed()) or time.monotonic() < self._listen_retry_at:
            return None
        self._listen_retry_at = time.monotonic() + LISTEN_AGAIN_SECONDS
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
        except (*_BUSY_ERRORS, *_TRANSIENT_ERRORS, asyncpg.PostgresError):
            return
        finally:
            if connection is not None:
                connection.terminate()


def to_shoal_error(error: asyncpg.PostgresError) -> ShoalError:  # noqa: PLR0911 - one line per kind of complaint
    """A server's complaint as an error with a remedy."""
    match error.sqlstate:
        case "SH001":
            return WorkerLost("This worker was declared dead, or never registered.")
        case "SH002":
            return WrongState(
                f"The run is {_text(error)}: it takes no more items.", remedy="Resume it, or start it fresh."
            )
        case "SH003":
            return ClaimSuperseded("The claim was given up.")
        case "53100":
            return LedgerFull(f"The database server has no space left: {_text(error)}.")
        case "XX001" | "XX002" | "58P01" | "58030":
            return LedgerCorrupt(f"The database is damaged, or its disk is: {_text(error)}.")
        case "25006":
            return LedgerReadOnly(
                f"The database refuses writes: {_text(error)}.",
                remedy="Connect to the primary server, not to a replica.",
            )
        case "42501":
            return LedgerReadOnly(
                f"The database refuses this user: {_text(error)}.",
                remedy="Grant the user all rights on the schema shoal, or use its owner.",
            )
    if isinstance(error, _NOT_MIGRATED_ERRORS):
        return LedgerNotMigrated(f"The database has no Shoal schema of this version: {_text(error)}.")
    return LedgerError(f"The database refused: {_text(error)} ({error.sqlstate}).")


def _is_transient(error: BaseException) -> bool:
    """Whether a connection that failed like this may be had a moment later, with the same address."""
    if isinstance(error, socket.gaierror):
        return error.errno == socket.EAI_AGAIN
    return isinstance(error, _TRANSIENT_ERRORS) and not isinstance(error, PermissionError)


def _text(error: BaseException) -> str:
    """The first line of a complaint, without its full stop; details are for the server's log."""
    lines = str(error).splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__
