"""A consistent copy of the file while others work: SQLite's online backup within one read transaction.

Without the transaction the backup would restart whenever another process writes, and never end while workers are busy.
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from shoal.errors import UsageError
from shoal.ledger.sqlite.database import SqliteDatabase
from shoal.ledger.sqlite.errors import to_shoal_error
from shoal.model.ledger_url import redacted_address

Progress = Callable[[int, int], None]
STEP_PAGES = 2_000


async def back_up(db: SqliteDatabase, target: Path, progress: Progress) -> None:
    """Copy the ledger into a new file, which gets its name only when it is complete and synced to disk."""
    _check_target(target)
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        await db.read(lambda source: _copy(source, part, progress))
        _publish(part, target)
    finally:
        part.unlink(missing_ok=True)


def _copy(source: sqlite3.Connection, part: Path, progress: Progress) -> None:
    source.execute("begin")
    try:
        source.execute("select count(*) from sqlite_schema").fetchone()  # this fixes the snapshot
        with closing(sqlite3.connect(part)) as copy:
            source.backup(copy, pages=STEP_PAGES, progress=lambda _, left, total: progress(left, total), sleep=0)
    except sqlite3.Error as error:
        raise to_shoal_error(error, part) from error
    finally:
        source.execute("rollback")


def _check_target(target: Path) -> None:
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", str(target)):  # a path has lost one slash of ://
        raise UsageError(
            f"{redacted_address(str(target))} is an address; a backup is a file on this machine.",
            remedy="Name a file, and copy it there afterwards.",
        )
    if target.exists():
        raise UsageError(f"{target} exists already.", remedy="Choose another name, or remove the file first.")
    if not target.parent.is_dir():
        raise UsageError(f"There is no folder {target.parent}.", remedy="Create it, or choose another path.")


def _publish(part: Path, target: Path) -> None:
    try:
        _sync(part)
        part.rename(target)
        _sync(target.parent)
    except OSError as error:
        raise UsageError(f"{target} cannot be created: {error.strerror}.", remedy="Choose another place.") from None


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
