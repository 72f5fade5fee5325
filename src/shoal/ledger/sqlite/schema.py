"""The schema on SQLite: numbered migrations, all in one transaction. The version is the file's user_version."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import cache
from typing import Literal

from shoal.errors import InvalidScraper
from shoal.ledger.schema import (
    SqlView,
    are_views_current,
    check_version,
    load_migrations,
    pending_migrations,
    refuse_newer,
    view_mark,
)
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

    @property
    def known_version(self) -> int:
        return code_version()

    async def pending(self) -> list[str]:
        return pending_migrations(migrations(), await self.version())

    async def migrate(self) -> tuple[int, int]:
        found = await self.version() or 0
        refuse_newer(found, code_version())
        if found == code_version():
            return found, found
        # The version is read again under the write lock: of two processes, the second finds nothing to do.
        return await self._db.change_schema(_migrate), code_version()

    @property
    def dialect(self) -> Literal["sqlite"]:
        return "sqlite"

    async def put_views(self, views: Sequence[SqlView]) -> bool:
        if await self._db.read(lambda connection: are_views_current(views, _find_views(connection, views))):
            return False
        return await self._db.change_schema(lambda connection: _put_views(connection, views))

    async def require_current(self) -> None:
        check_version(await self.version(), code_version(), self._db.display_url)


def _find_views(connection: sqlite3.Connection, views: Sequence[SqlView]) -> dict[str, str]:
    names = {view.name for view in views}
    rows = connection.execute("select name, coalesce(sql, '') from sqlite_schema").fetchall()
    return {name: text for name, text in rows if name in names}


def _put_views(connection: sqlite3.Connection, views: Sequence[SqlView]) -> bool:
    """Their mark is a comment in their text, which SQLite keeps."""
    found = _find_views(connection, views)
    if are_views_current(views, found):
        return False  # another process was faster
    for view in reversed(views):
        if view.name in found:
            connection.execute(f'drop view "{view.name}"')
    for view in views:
        connection.execute(f'create view "{view.name}" as /* {view_mark(views)} */ {view.select}')
    for view in views:
        try:
            connection.execute(f'select * from "{view.name}" limit 0')  # SQLite checks a select when it is used
        except sqlite3.OperationalError as error:
            raise InvalidScraper(f"Its view {view.name} cannot be created: {error}.") from error
    return True


def _version(connection: sqlite3.Connection) -> int:
    version: int = connection.execute("pragma user_version").fetchone()[0]
    return version


def _migrate(connection: sqlite3.Connection) -> int:
    before = _version(connection)
    refuse_newer(before, code_version())
    for version, _, text in migrations():
        if version > before:
            for statement in statements(text):
                connection.execute(statement)
            connection.execute(f"pragma user_version = {version}")
    connection.execute(f"pragma application_id = {APPLICATION_ID}")
    return before


def statements(script: str) -> Iterator[str]:
    """The statements of a script one by one: executescript would end the transaction first."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
    if any(line.strip() and not line.lstrip().startswith("--") for line in statement.splitlines()):
        raise ValueError(f"the last statement has no semicolon: {statement.strip()[:80]}")
