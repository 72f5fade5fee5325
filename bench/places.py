"""Where the benchmarks run: one PostgreSQL server with fsync on, and SQLite files on the same disk."""

from __future__ import annotations

import asyncio
import importlib
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, cast

import asyncpg

from shoal.ledger.postgres.ledger import open_postgres
from shoal.ledger.protocols import Ledger, Schema
from tests.parts.postgres import PostgresServer, unique_name

# Room for the data and no checkpoint in the middle of a measurement; everything else is PostgreSQL's default.
SERVER_SETTINGS = {"shared_buffers": "1GB", "max_wal_size": "8GB", "checkpoint_timeout": "30min"}
_TEMPLATE = "bench_template"


class BenchLedger(Ledger, Protocol):
    schema: Schema


class Place(Protocol):
    """A backend that can hand out empty, migrated ledgers."""

    name: str

    def fresh(self) -> _GeneratorAddress:
        """The address of a new ledger, gone at the end of the block."""

    def settle(self, address: str) -> None:
        """Bring the files to rest before a measurement."""


class _GeneratorAddress(Protocol):
    def __enter__(self) -> str: ...

    def __exit__(self, *_: object) -> bool | None: ...


class PostgresPlace:
    name = "postgres"

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        server.create_database(_TEMPLATE)
        asyncio.run(_migrate(server.url(_TEMPLATE)))

    @contextmanager
    def fresh(self) -> Iterator[str]:
        with self._database(_TEMPLATE) as url:
            yield url

    @contextmanager
    def empty(self) -> Iterator[str]:
        """A database without Shoal, for bare loops and peers."""
        with self._database(None) as url:
            yield url

    def settle(self, address: str) -> None:
        asyncio.run(_execute(address, "vacuum analyze", "checkpoint"))

    @contextmanager
    def _database(self, template: str | None) -> Iterator[str]:
        name = unique_name("bench")
        self._server.create_database(name, template)
        try:
            yield self._server.url(name)
        finally:
            self._server.drop_database(name)


class SqlitePlace:
    name = "sqlite"

    @contextmanager
    def fresh(self) -> Iterator[str]:
        with self.empty() as path:
            asyncio.run(_migrate(path))
            yield path

    @contextmanager
    def empty(self) -> Iterator[str]:
        with tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder:
            yield str(Path(folder) / "ledger.sqlite3")

    def settle(self, address: str) -> None:
        return


def sqlite_place() -> SqlitePlace | None:
    """None while Shoal has no SQLite ledger."""
    try:
        _open_sqlite()
    except ImportError:
        return None
    return SqlitePlace()


async def open_ledger(address: str) -> BenchLedger:
    if address.startswith("postgresql://"):
        # Its roles are classes of their own; as attributes mypy calls them invariant.
        return cast(BenchLedger, await open_postgres(address))
    return await _open_sqlite()(address)


def _open_sqlite() -> Callable[[str], Awaitable[BenchLedger]]:
    module = importlib.import_module("shoal.ledger.sqlite.ledger")
    try:
        return cast("Callable[[str], Awaitable[BenchLedger]]", module.open_sqlite)
    except AttributeError as error:
        raise ImportError(str(error)) from error


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
