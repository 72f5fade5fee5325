"""The schema on PostgreSQL: tables from numbered migrations, functions and views from the current code.

A changed function needs a new migration too, even an empty one with its reason, because the version identifies the
functions of a database. A test compares the fingerprint below with the one in the newest migration.
"""

from __future__ import annotations

import hashlib

from shoal.errors import LedgerError
from shoal.ledger.postgres.database import PostgresDatabase
from shoal.ledger.schema import check_version, load_migrations, load_scripts, refuse_newer


def migrations() -> list[tuple[int, str, str]]:
    return load_migrations(__package__)


def functions() -> list[str]:
    return [text for _, text in load_scripts(__package__, "functions")]


def functions_fingerprint() -> str:
    return hashlib.sha256("\n".join(functions()).encode()).hexdigest()[:16]


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

    async def migrate(self) -> tuple[int, int]:
        before = await self.version() or 0
        refuse_newer(before, code_version())
        if before == code_version():
            return before, before  # without needing any right to change the schema
        # The lock is tied to the transaction: two machines may migrate at once, the second finds nothing to do.
        steps = [
            "select pg_advisory_xact_lock(21320, 0)",
            "create schema if not exists shoal",
            "create table if not exists shoal.migration "
            "(version int primary key, name text not null, applied_at timestamptz not null default now())",
        ]
        for version, name, text in migrations():
            if version > before:
                steps.append(f"insert into shoal.migration (version, name) values ({version}, '{name}')")
                steps.append(text)
        try:
            await self._db.script([*steps, *functions()])
        except LedgerError:
            if await self.version() == code_version():
                return before, code_version()  # another process was faster
            raise
        return before, code_version()

    async def require_current(self) -> None:
        check_version(await self.version(), code_version(), self._db.display_url)
        isolation = await self._db.value("show default_transaction_isolation")
        if isolation != "read committed":
            raise LedgerError(
                f"{self._db.display_url} has the default isolation level {isolation}; Shoal needs read committed.",
                remedy="Reset default_transaction_isolation for this database and user.",
            )
