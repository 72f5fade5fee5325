"""Where the benchmarks run: one PostgreSQL server with fsync on, and SQLite files on the same disk."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

import asyncpg

from shoal.ledger.postgres.ledger import open_postgres
from shoal.ledger.protocols import Ledger
from shoal.ledger.sqlite.ledger import open_sqlite
from tests.support.postgres import PostgresServer, unique_name

# Room for the data and no checkpoint in the middle of a measurement; everything else is PostgreSQL's default.
SERVER_SETTINGS = {"shared_buffers": "1GB", "max_wal_size": "8GB", "checkpoint_timeout": "30min"}


class Place(Protocol):
    """A backend that hands out ledgers, each gone at the end of its block."""

    name: str

    def fresh(self) -> AbstractContextManager[str]:
        """The address of an empty, migrated ledger."""

    def copy(self, address: str) -> AbstractContextManager[str]:
        """The address of a copy of a ledger that nobody has open: filling once is enough for many rounds."""

    def settle(self, address: str) -> None:
        """Bring a filled ledger to rest, as it would be after a while."""


class PostgresPlace:
    name = "postgres"

    def __init__(self, server: PostgresServer) -> None:
        self.server = server
        self._template = unique_name("bench_template")
        server.create_database(self._template)
        asyncio.run(_migrate(server.url(self._template)))

    def fresh(self) -> AbstractContextManager[str]:
        return self._database(self._template)

    def empty(self) -> AbstractContextManager[str]:
        """A database without Shoal, for bare loops and peers."""
        return self._database(None)

    def copy(self, address: str) -> AbstractContextManager[str]:
        return self._database(urlsplit(address).path.removeprefix("/"))

    def settle(self, address: str) -> None:
        asyncio.run(_execute(address, "vacuum analyze", "checkpoint"))

    @contextmanager
    def _database(self, template: str | None) -> Iterator[str]:
        name = unique_name("bench")
        self.server.create_database(name, template)
        try:
            yield self.server.url(name)
        finally:
            self.server.drop_database(name)


class SqlitePlace:
    name = "sqlite"

    @contextmanager
    def fresh(self) -> Iterator[str]:
        with self.empty() as path:
            asyncio.run(_migrate(path))
            yield path

    @contextmanager
    def empty(self) -> Iterator[str]:
        """A path where nothing is yet, for bare loops."""
        with tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder:
            yield str(Path(folder) / "ledger.sqlite3")

    @contextmanager
    def copy(self, address: str) -> Iterator[str]:
        with self.empty() as path:
            for ending in ("", "-wal", "-shm"):
                if Path(address + ending).exists():
                    shutil.copy(address + ending, path + ending)
            yield path

    def settle(self, address: str) -> None:
        """Closing the last connection has done it."""


async def open_ledger(address: str) -> Ledger:
    if address.startswith("postgresql://"):
        return await open_postgres(address)
    return await open_sqlite(Path(address))


async def _migrate(address: str) -> None:
    ledger = await open_ledger(address)
    try:
        await ledger.schema.migrate()
    finally:
        await ledger.close()


async def _execute(url: str, *statements: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        for statement in statements:
            await connection.execute(statement, timeout=600)
    finally:
        await connection.close()
