"""Connections to PostgreSQL: pooling, retries, and errors put into Shoal's words.

No session state is needed on these connections (no SET, no session locks), so a PgBouncer in transaction mode may stand
in between. Statements are prepared, which saves a round trip each, unless a pooler is seen: then the process id that
came with the login is not that of the server's process.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from typing import Any

import asyncpg

from shoal.errors import (
    BadLedgerUrl,
    LedgerCorrupt,
    LedgerError,
    LedgerFull,
    LedgerNotMigrated,
    LedgerReadOnly,
    LedgerUnreachable,
    ShoalError,
    WorkerLost,
    WrongState,
)
from shoal.ledger.postgres.tls import tls_trouble
from shoal.model.address import for_driver, shown_address

Record = asyncpg.Record
PREPARED_STATEMENTS = 200
LOGIN_SECONDS = 10.0

# The connection broke, the server starts or stops, or two transactions collided: the call may be made again.
_PASSING = (
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
    asyncpg.QueryCanceledError,
    asyncpg.LockNotAvailableError,
    asyncpg.ProtocolViolationError,
    OSError,
    TimeoutError,
)
_NOT_MIGRATED = (
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


class ConnectionBroke(LedgerError):
    """The answer is unknown: the call may or may not have taken effect."""


class ClaimOutOfDate(LedgerError):
    """The claim was given up before it was carried out; it took nothing."""


class Database:
    """A small pool, and calls that survive restarts of the server for as long as `patience` lasts."""

    def __init__(self, url: str, *, pool_size: int, patience: float, command_timeout: float) -> None:
        self.url, connect_timeout = for_driver(url)
        self._connect_timeout = connect_timeout or LOGIN_SECONDS
        self.patience = patience
        self._pool_size = pool_size
        self._command_timeout = command_timeout
        self._pool: asyncpg.Pool | None = None
        self._prepare = False
        self._listener: asyncpg.Connection | None = None
        self._woken = asyncio.Event()
        self._listen_retry_at = 0.0

    @property
    def shown_url(self) -> str:
        return shown_address(self.url)

    async def connect(self) -> None:
        try:
            self._prepare = await self._is_direct()
            self._pool = await asyncpg.create_pool(
                self.url,
                min_size=1,
                max_size=self._pool_size,
                connection_class=StatelessConnection,
                statement_cache_size=PREPARED_STATEMENTS if self._prepare else 0,
                command_timeout=self._command_timeout,
                timeout=self._connect_timeout,
            )
        except (ValueError, asyncpg.ClientConfigurationError) as error:
            raise tls_trouble(error, self.url, self.shown_url) or BadLedgerUrl(
                f"{self.shown_url} is not a PostgreSQL address: {_text(error)}."
            ) from None
        except (asyncpg.InvalidAuthorizationSpecificationError, asyncpg.InvalidCatalogNameError) as error:
            raise LedgerUnreachable(f"{self.shown_url} refused us: {_text(error)}.") from None
        except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            raise tls_trouble(error, self.url, self.shown_url) or LedgerUnreachable(
                f"{self.shown_url} does not answer: {_text(error)}."
            ) from None

    async def _is_direct(self) -> bool:
        connection = await asyncpg.connect(self.url, statement_cache_size=0, timeout=self._connect_timeout)
        try:
            server_pid: int = await connection.fetchval("select pg_backend_pid()")
            return server_pid == connection.get_server_pid()
        finally:
            connection.terminate()

    async def close(self) -> None:
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
        give_up_at = time.monotonic() + self.patience
        pause = 0.02
        while True:
            try:
                return await self.fetch_once(sql, *args)
            except ConnectionBroke as error:
                if time.monotonic() + pause > give_up_at:
                    raise LedgerUnreachable(
                        f"{self.shown_url} has not answered for {self.patience:.0f} s: {error.message}."
                    ) from error
                await asyncio.sleep(pause * (0.5 + random.random()))
                pause = min(pause * 2, 1.0)

    async def fetch_once(self, sql: str, *args: object) -> list[Record]:
        """Rows of one statement, or ConnectionBroke when nobody can say whether it took effect."""
        if self._pool is None:
            raise LedgerUnreachable("The ledger is closed.", remedy="Open it again.")
        try:
            async with self._pool.acquire(timeout=self._command_timeout) as connection:
                rows: list[Record] = await connection.fetch(sql, *args)
                return rows
        except _PASSING as error:
            raise ConnectionBroke(_text(error)) from error
        except asyncpg.UniqueViolationError as error:
            # The same call, sent twice, met itself: asked again, it finds its receipt.
            if error.constraint_name == "receipt_pkey":
                raise ConnectionBroke(_text(error)) from error
            raise translated(error) from error
        except asyncpg.PostgresError as error:
            raise translated(error) from error

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
        except _PASSING as error:
            raise LedgerUnreachable(f"{self.shown_url} broke off: {_text(error)}.") from error
        except asyncpg.PostgresError as error:
            raise translated(error) from error

    async def wait_for_wake(self, seconds: float) -> None:
        """Sleep until somebody notifies, at most so long. Behind PgBouncer no hint comes, and the sleep is all."""
        await self._listen()
        self._woken.clear()
        try:
            await asyncio.wait_for(self._woken.wait(), seconds)
        except TimeoutError:
            return

    async def _listen(self) -> None:
        if (self._listener is not None and not self._listener.is_closed()) or time.monotonic() < self._listen_retry_at:
            return
        self._listen_retry_at = time.monotonic() + 10
        try:
            self._listener = await asyncpg.connect(self.url, statement_cache_size=0, timeout=5)
            await self._listener.add_listener("shoal_wake", lambda *_: self._woken.set())
        except (*_PASSING, asyncpg.PostgresError):
            self._listener = None


def translated(error: asyncpg.PostgresError) -> ShoalError:  # noqa: PLR0911 - one line per kind of complaint
    """A server's complaint as an error with a remedy."""
    match error.sqlstate:
        case "SH001":
            return WorkerLost("This worker was declared dead, or never registered.")
        case "SH002":
            return WrongState(
                f"The run is {_text(error)}: it takes no more items.", remedy="Resume it, or start it fresh."
            )
        case "SH003":
            return ClaimOutOfDate("The claim was given up.")
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
    if isinstance(error, _NOT_MIGRATED):
        return LedgerNotMigrated(f"The database has no Shoal schema of this version: {_text(error)}.")
    return LedgerError(f"The database refused: {_text(error)} ({error.sqlstate}).")


def _text(error: BaseException) -> str:
    """The first line of a complaint, without its full stop; details are for the server's log."""
    lines = str(error).splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__
