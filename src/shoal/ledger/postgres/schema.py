"""The schema on PostgreSQL: tables from numbered migrations, functions and views from the current code.

A changed function needs a new migration too, even an empty one with its reason, because the version identifies the
functions of a database. A test compares the fingerprint below with the one in the newest migration.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache
from typing import Literal

from shoal.errors import InvalidScraper, LedgerError, LedgerUnreachable
from shoal.ledger.postgres.database import PostgresDatabase
from shoal.ledger.schema import (
    SqlView,
    are_views_current,
    check_version,
    load_migrations,
    load_scripts,
    pending_migrations,
    refuse_newer,
    view_mark,
)

# No lock of runs or stages: replacing a view waits for those who read it, and workers must not wait for that.
_VIEWS_LOCK = "21323, 0"


def migrations() -> list[tuple[int, str, str]]:
    return load_migrations(__package__)


def functions() -> list[str]:
    return [text for _, text in load_scripts(__package__, "functions")]


def functions_fingerprint() -> str:
    return hashlib.sha256("\n".join(functions()).encode()).hexdigest()[:16]


@cache
def code_version() -> int:
    return migrations()[-1][0]


class PostgresSchema:
    def __init__(self, db: PostgresDatabase) -> None:
        self._db = db

    async def version(self) -> int | None:
        if await self._db.value("select to_regclass('shoal.migration')") is None:
            return None
        version: int | None = await self._db.value("select max(version) from shoal.migration")
        return version

    @property
    def known_version(self) -> int:
        return code_version()

    async def pending(self) -> list[str]:
        return pending_migrations(migrations(), await self.version())

    async def migrate(self) -> tuple[int, int]:
        before = await self.version() or 0
        refuse_newer(before, code_version())
        if before == code_version():
            return before, before  # without needing any right to change the schema
        await self._require_utf8()
        try:
            await self._apply(before)
        except LedgerError:
            # Another process was faster. Its Shoal may be older or newer than this one.
            meanwhile = await self.version() or 0
            refuse_newer(meanwhile, code_version())
            if meanwhile == before:
                raise
            if meanwhile < code_version():
                await self._apply(meanwhile)
        return before, code_version()

    async def _apply(self, before: int) -> None:
        """Bring a schema of this version to that of this code, or change nothing."""
        # The lock is tied to the transaction: of two machines that migrate at once the second fails, and reads again.
        steps = [
            "select pg_advisory_xact_lock(21320, 0)",
            "create schema if not exists shoal",
            "create table if not exists shoal.migration "
            "(version int primary key, name text not null, applied_at timestamptz not null default now())",
        ]
        for version, name, text in migrations():
            if version > before:
                # One step, because a migration may be a comment only: asyncpg refuses a script without a statement.
                steps.append(f"{text}\n;insert into shoal.migration (version, name) values ({version}, '{name}')")
        await self._db.script([*steps, *functions()])

    @property
    def dialect(self) -> Literal["postgres"]:
        return "postgres"

    async def put_views(self, views: Sequence[SqlView]) -> bool:
        names = [view.name for view in views]
        # Not the ledger's own schema, which is the default of a user of the name `shoal`.
        schema = await self._db.value(
            "select (select s.name from unnest(current_schemas(false)) with ordinality as s(name, n) "
            "where s.name <> 'shoal' order by s.n limit 1)::text"
        )
        if schema is None:
            raise InvalidScraper(
                "Its views cannot be created: the search_path of the database has no schema but Shoal's own.",
                remedy="Add one to the search_path, such as public.",
            )
        rows = await self._db.fetch(
            "select n.name, coalesce(obj_description(c.oid, 'pg_class'), '') as description "
            "from unnest($1::text[]) as n(name) join pg_class c "
            "on c.oid in (to_regclass(quote_ident(n.name)), to_regclass(format('%I.%I', $2::text, n.name))) "
            "where not (c.relnamespace = 'shoal'::regnamespace and c.relkind = 'v')",
            names,
            schema,
        )
        found = {row["name"]: row["description"] for row in rows}
        if are_views_current(views, found):
            return False
        steps = [f"select pg_advisory_xact_lock({_VIEWS_LOCK})"]
        place = '"' + schema.replace('"', '""') + '"'
        steps += [f'drop view if exists {place}."{name}"' for name in reversed(names) if name in found]
        for view in views:
            steps.append(f'create or replace view {place}."{view.name}" as {view.select}')
            steps.append(f"""comment on view {place}."{view.name}" is '{view_mark(views)}'""")
        try:
            await self._db.script(steps)
        except LedgerUnreachable:
            raise
        except LedgerError as error:
            raise InvalidScraper(f"Its views cannot be created: {error.message}") from error
        return True

    async def require_current(self) -> None:
        check_version(await self.version(), code_version(), self._db.display_url)
        isolation = await self._db.value("show default_transaction_isolation")
        if isolation != "read committed":
            raise LedgerError(
                f"{self._db.display_url} has the default isolation level {isolation}; Shoal needs read committed.",
                remedy="Reset default_transaction_isolation for this database and user.",
            )
        await self._require_utf8()

    async def _require_utf8(self) -> None:
        """Records and URLs are Unicode; queries compare with characters that other encodings lack."""
        encoding = await self._db.value("show server_encoding")
        if encoding != "UTF8":
            raise LedgerError(
                f"The database {self._db.display_url} has the encoding {encoding}; Shoal needs UTF8.",
                remedy="Create another one: `createdb --encoding=UTF8 --template=template0 NAME`.",
            )
