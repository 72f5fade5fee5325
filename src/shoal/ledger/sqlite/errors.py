"""Errors of SQLite as errors of Shoal, each with a remedy."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from shoal.errors import (
    BadLedgerUrl,
    LedgerCorrupt,
    LedgerError,
    LedgerFull,
    LedgerNotMigrated,
    LedgerReadOnly,
    LedgerUnreachable,
    ShoalError,
)
from shoal.ledger.schema import EARLIER_BUILD

APPLICATION_ID = 0x53484F4C  # "SHOL", as `file` shows it
_FULL_BELOW_BYTES = 1 << 20


def is_busy(error: sqlite3.Error) -> bool:
    return _code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def busy_error(path: Path, seconds: float) -> LedgerUnreachable:
    return LedgerUnreachable(
        f"Another process has held the write lock of {path} for more than {seconds:g} s.",
        remedy="Find the process with `fuser -v` (a stopped process, or an open transaction), then try again.",
    )


def to_shoal_error(error: sqlite3.Error, path: Path) -> ShoalError:  # noqa: PLR0911 - one case per kind of error
    """An error of SQLite as an error with a remedy."""
    match _code(error):
        case sqlite3.SQLITE_FULL:
            return LedgerFull(f"There is no space left for {path}.")
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM | sqlite3.SQLITE_AUTH:
            return LedgerReadOnly(f"{path} cannot be written: {error}.")
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return LedgerUnreachable(
                f"{path} is locked: {error}.", remedy="Find the other process that uses it (`fuser -v`)."
            )
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_TOOBIG | sqlite3.SQLITE_MISMATCH:
            return corrupt_error(path, str(error))
        case sqlite3.SQLITE_CONSTRAINT:
            # Shoal's own writes violate no constraint unless the tables hold invalid rows.
            return corrupt_error(path, str(error))
        case sqlite3.SQLITE_NOTADB:
            return BadLedgerUrl(
                f"{path} is not an SQLite database, or its header is damaged.",
                remedy="Choose another file; if this one was a ledger, copy it and restore the last backup.",
            )
        case sqlite3.SQLITE_CANTOPEN:
            return _cannot_open(error, path)
        case sqlite3.SQLITE_IOERR if _no_space(path):
            return LedgerFull(f"There is no space left for {path}: {error}.")
        case sqlite3.SQLITE_IOERR:
            return LedgerError(f"{path} cannot be read or written: {error}.", remedy="Check the disk and its logs.")
    text = str(error)
    if text.startswith(("Could not decode", "malformed JSON")):
        return corrupt_error(path, text)
    if text.startswith(("no such table", "no such column", "no such view")) or " has no column named " in text:
        if _header_says_shoal(path):
            return _incomplete_error(path, text)
        return LedgerNotMigrated(
            f"{path} has no Shoal schema of this version: {error}.",
            remedy=f"{LedgerNotMigrated.remedy} {EARLIER_BUILD}",
        )
    return LedgerError(f"{path} refused: {error} ({getattr(error, 'sqlite_errorname', type(error).__name__)}).")


def no_space_message(path: Path) -> str | None:
    """A sentence when there is no space left for the file; None when there is."""
    return f"There is no space left for {path}." if _no_space(path) else None


def corrupt_error(path: Path, finding: str) -> LedgerCorrupt:
    return LedgerCorrupt(
        f"The ledger {path} is damaged: {' '.join(finding.split())}.",
        remedy=(
            "Stop the workers, copy the damaged file, and restore the last backup "
            f"(`shoal db backup`); without one, `sqlite3 {path} .recover` saves what can still be read."
        ),
    )


def _incomplete_error(path: Path, finding: str) -> LedgerCorrupt:
    """The file says that it has this schema, and a part of it is not there."""
    damaged = corrupt_error(path, finding)
    return LedgerCorrupt(
        f"The ledger {path} is damaged, or a build before 0.2.0 made it: {finding}.",
        remedy=f"{EARLIER_BUILD} Otherwise: {damaged.remedy}",
    )


def _header_says_shoal(path: Path) -> bool:
    """Whether the file's header says that it has Shoal's schema: then a missing table was lost."""
    try:
        with path.open("rb") as file:
            header = file.read(100)
    except OSError:
        return False
    return int.from_bytes(header[60:64]) > 0 and int.from_bytes(header[68:72]) == APPLICATION_ID


def _cannot_open(error: sqlite3.Error, path: Path) -> ShoalError:
    if path.is_dir():
        return BadLedgerUrl(f"{path} is a folder; a ledger is a file.")
    if path.exists() and not os.access(path, os.R_OK):
        return LedgerReadOnly(f"{path} cannot be read: {error}.")
    if path.parent.is_dir() and not os.access(path.parent, os.W_OK | os.X_OK):
        return LedgerReadOnly(f"The folder {path.parent} cannot be written: {error}.")
    if path.parent.is_dir() and _no_space(path):
        return LedgerFull(f"There is no space left for {path}: {error}.")
    return LedgerUnreachable(
        f"{path} cannot be opened: {error}.", remedy="Check the path and the permissions of its folder."
    )


def _no_space(path: Path) -> bool:
    try:
        disk = os.statvfs(path.parent)
    except OSError:
        return False
    if disk.f_blocks == 0:  # not a disk, such as /proc
        return False
    return disk.f_bavail * disk.f_frsize < _FULL_BELOW_BYTES or (disk.f_files > 0 and disk.f_favail == 0)


def _code(error: sqlite3.Error) -> int:
    """The primary result code, without its extension."""
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
