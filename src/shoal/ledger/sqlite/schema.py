"""The schema on SQLite: numbered migrations, all in one transaction. The version is the file's user_version."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from functools import cache

from shoal.ledger.schema import check_version, load_migrations, refuse_newer
from shoal.ledger.sqlite.database import SqliteDatabase
from shoal.ledger.sqlite.errors import APPLICATION_ID


@cache
def migrations() -> list[tuple[int, str, str]]:
    return load_migrations(__package__)


def code_version() -> int:
    return migrations()[-1][0]


@cache
def expected_schema() -> dict[str, str]:
    """The statements that create this version's tables, indexes and views, by name."""
    with closing(sqlite3.connect(":memory:")) as connection:
        _migrate(connection)
        return dict(connection.execute("select name, sql from sqlite_schema where sql is not null").fetchall())


class SqliteSchema:
    def __init__(self, db: SqliteDatabase) -> None:
        self._db = db

    async def version(self) -> int | None:
        return await self._db.read(_version) or None

    async def migrate(self) -> tuple[int, int]:
        found = await self.version() or 0
        refuse_newer(found, code_version())
        if found == code_version():
            return found, found
        # The version is read again under the write lock: of two processes, the second finds nothing to do.
        return await self._db.change_schema(_migrate), code_version()

    async def require_current(self) -> None:
        check_version(await self.version(), code_version(), self._db.display_url)


def _version(connection: sqlite3.Connection) -> int:
    version: int = connection.execute("pragma user_version").fetchone()[0]
    return version


def _migrate(connection: sqlite3.Connection) -> int:
    before = _version(connection)
    refuse_newer(before, code_version())
    for version, _, text in migrations():
        if version > before:
            for statement in _statements(text):
                connection.execute(statement)
            connection.execute(f"pragma user_version = {version}")
    connection.execute(f"pragma application_id = {APPLICATION_ID}")
    return before


def _statements(script: str) -> Iterator[str]:
    """The statements of a script one by one: executescript would end the transaction first."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
