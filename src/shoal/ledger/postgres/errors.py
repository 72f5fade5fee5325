"""Errors of the PostgreSQL driver as errors of Shoal, each with a remedy."""

from __future__ import annotations

import socket
import ssl

import asyncpg

from shoal.errors import (
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
from shoal.ledger.schema import EARLIER_BUILD

# The connection broke, the server starts or stops, or two transactions collided: the call may be repeated.
TRANSIENT_ERRORS = (
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
# The server aborted the statement because others hold locks that it needs. It had no effect.
BUSY_ERRORS = (asyncpg.QueryCanceledError, asyncpg.LockNotAvailableError)
_NOT_MIGRATED_ERRORS = (
    asyncpg.UndefinedTableError,
    asyncpg.UndefinedFunctionError,
    asyncpg.InvalidSchemaNameError,
    asyncpg.UndefinedColumnError,
)


class ConnectionLost(LedgerError):
    """It is unknown whether the call took effect."""


class LedgerBusy(ConnectionLost):
    """The call had no effect, because others hold locks that it needs."""


class ClaimSuperseded(LedgerError):
    """The caller abandoned the claim before the server ran it; it took nothing."""


def to_shoal_error(error: asyncpg.PostgresError) -> ShoalError:  # noqa: PLR0911 - one case per kind of error
    """An error of the server as an error with a remedy."""
    match error.sqlstate:
        case "SH001":
            return WorkerLost("This worker was declared dead, or never registered.")
        case "SH002":
            return WrongState(
                f"The run is {first_line(error)}: it accepts no more items.", remedy="Resume it, or start it fresh."
            )
        case "SH003":
            return ClaimSuperseded("The claim was abandoned.")
        case "53100":
            return LedgerFull(f"The database server has no space left: {first_line(error)}.")
        case "XX001" | "XX002" | "58P01" | "58030":
            return LedgerCorrupt(f"The database or its disk is damaged: {first_line(error)}.")
        case "25006":
            return LedgerReadOnly(
                f"The database refuses writes: {first_line(error)}.",
                remedy="Connect to the primary server, not to a replica.",
            )
        case "42501":
            return LedgerReadOnly(
                f"Permission denied for the database user: {first_line(error)}.",
                remedy="Grant the user all rights on the schema shoal, or use its owner.",
            )
    if isinstance(error, _NOT_MIGRATED_ERRORS):
        return LedgerNotMigrated(
            f"The database has no Shoal schema of this version: {first_line(error)}.",
            remedy=f"{LedgerNotMigrated.remedy} {EARLIER_BUILD}",
        )
    return LedgerError(f"The database refused: {first_line(error)} ({error.sqlstate}).")


def is_transient(error: BaseException) -> bool:
    """Whether the same address may accept a connection a moment later."""
    if isinstance(error, socket.gaierror):
        return error.errno == socket.EAI_AGAIN
    return isinstance(error, TRANSIENT_ERRORS) and not isinstance(error, PermissionError)


def first_line(error: BaseException) -> str:
    """The first line of an error without its full stop; the details are in the server's log."""
    lines = str(error).splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__


def tls_error(error: BaseException, url: str, display_url: str) -> LedgerUnreachable | None:
    """The error to raise when a login failed because of TLS; None when it failed for another reason.

    The driver uses the same classes for an unreachable server, whose remedy would be misleading.
    """
    if isinstance(error, ConnectionError) and "rejected SSL" in str(error):
        return LedgerUnreachable(
            f"{display_url} does not support TLS, but `sslmode` requires it.",
            remedy="Enable TLS on the server, or set sslmode=prefer.",
        )
    if isinstance(error, ssl.SSLError):
        return LedgerUnreachable(
            f"{display_url} is not trusted: {error.strerror or error}.",
            remedy="Set sslrootcert=FILE in the address, or PGSSLROOTCERT, to the certificate of its authority.",
        )
    lacks_file = isinstance(error, asyncpg.ClientConfigurationError) and "certificate" in str(error)
    if lacks_file or (isinstance(error, FileNotFoundError) and "sslrootcert=" in url):
        return LedgerUnreachable(
            f"{display_url} cannot be verified: the certificate file of its authority does not exist.",
            remedy="Name that file with sslrootcert=FILE in the address or PGSSLROOTCERT, or set sslmode=require.",
        )
    return None
