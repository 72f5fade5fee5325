"""Releases: what each of them froze, and the small ledgers that it wrote, kept in tests/fixtures/releases.

`make freeze` writes those of the version in pyproject.toml, and again as long as CHANGELOG.md calls it unreleased. From
its release on they never change: migrations are only added, and every later build upgrades these ledgers.
"""

from __future__ import annotations

import asyncio
import hashlib
import lzma
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from contextlib import closing
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal
from urllib.parse import urlsplit

import asyncpg
import msgspec

from shoal.ledger.postgres import schema as postgres_schema
from shoal.ledger.postgres.ledger import open_postgres
from shoal.ledger.protocols import Ledger
from shoal.ledger.sqlite.ledger import open_sqlite
from tests.support.full_ledger import fill_every_table
from tests.support.postgres import PostgresServer

Backend = Literal["sqlite", "postgres"]
BACKENDS: tuple[Backend, ...] = ("sqlite", "postgres")
ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "tests" / "fixtures" / "releases"
_LEDGERS = {"sqlite": "ledger.sqlite3.xz", "postgres": "ledger.postgres.sql.xz"}
# Rows of these tables live for seconds, or exist only after an error.
SHORT_LIVED = {"count_delta", "void_claim", "receipt", "slow_lane"}


class Release(msgspec.Struct, frozen=True, kw_only=True):
    """What a version of Shoal froze.

    `schema`: the version of the schema. `migrations`: by backend and name, the checksum of each file. `functions`: the
    fingerprint of the PostgreSQL functions and views. `runs`: by backend and id of a run, its items by state.
    """

    version: str
    schema: int
    migrations: dict[str, dict[str, str]]
    functions: str
    runs: dict[str, dict[str, dict[str, int]]]

    @property
    def folder(self) -> Path:
        return FOLDER / self.version

    def put_sqlite(self, path: Path) -> None:
        """Write its SQLite ledger to a new file."""
        path.write_bytes(lzma.decompress((self.folder / _LEDGERS["sqlite"]).read_bytes()))

    async def put_postgres(self, url: str) -> None:
        """Write its PostgreSQL ledger into an empty database."""
        script = lzma.decompress((self.folder / _LEDGERS["postgres"]).read_bytes()).decode()
        connection = await asyncpg.connect(url)
        try:
            await connection.execute(script)
        finally:
            await connection.close()


def current_version() -> str:
    version: str = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    return version


def is_released(version: str) -> bool:
    """Whether CHANGELOG.md gives the version a date."""
    noted = re.search(rf"^## {re.escape(version)} \((.*)\)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    return noted is not None and noted[1] != "unreleased"


def releases() -> list[Release]:
    """Oldest first."""
    found = [msgspec.json.decode(file.read_bytes(), type=Release) for file in FOLDER.glob("*/release.json")]
    return sorted(found, key=lambda release: [int(part) for part in release.version.split(".")])


def migration_checksums(backend: Backend) -> dict[str, str]:
    """The checksum of each migration of this build, by its name."""
    folder = files(f"shoal.ledger.{backend}") / "migrations"
    return {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(folder.iterdir(), key=lambda entry: entry.name)
        if file.name.endswith(".sql")
    }


def edited_migrations(release: Release, found: dict[str, dict[str, str]], functions: str, schema: int) -> Iterable[str]:
    """One sentence for each thing that a release froze and that is different now.

    `found`, `functions`, `schema`: migrations by backend, fingerprint of the functions and schema version of the build.
    """
    for backend, migrations in release.migrations.items():
        for name, checksum in migrations.items():
            if found[backend].get(name) != checksum:
                yield (
                    f"{backend}/migrations/{name} is not as Shoal {release.version} released it: "
                    "undo the change and write a new migration."
                )
    if release.schema == schema and release.functions != functions:
        yield (
            f"A PostgreSQL function or view is not as Shoal {release.version} released it in schema version {schema}: "
            "add a migration, which may contain only a comment with the reason."
        )


def freeze() -> str:
    """Write checksums and ledgers of the current version. Raises SystemExit when it has been released."""
    version = current_version()
    folder = FOLDER / version
    if is_released(version) and folder.exists():
        raise SystemExit(f"Shoal {version} has been released and stays as it is: raise the version in pyproject.toml.")
    with TemporaryDirectory() as scratch:
        sqlite, sqlite_runs = asyncio.run(_write_sqlite(Path(scratch) / "ledger.sqlite3"))
        with PostgresServer() as server:
            postgres, postgres_runs = _write_postgres(server)
    release = Release(
        version=version,
        schema=postgres_schema.code_version(),
        migrations={backend: migration_checksums(backend) for backend in BACKENDS},
        functions=postgres_schema.functions_fingerprint(),
        runs={"sqlite": sqlite_runs, "postgres": postgres_runs},
    )
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "release.json").write_bytes(msgspec.json.format(msgspec.json.encode(release), indent=2) + b"\n")
    for backend, content in (("sqlite", sqlite), ("postgres", postgres)):
        (folder / _LEDGERS[backend]).write_bytes(lzma.compress(content, preset=9))
    return f"Wrote checksums and ledgers of Shoal {version} to {folder.relative_to(ROOT)}."


async def _write_sqlite(path: Path) -> tuple[bytes, dict[str, dict[str, int]]]:
    ledger = await open_sqlite(path)
    try:
        await ledger.schema.migrate()
        await fill_every_table(ledger)
        runs = await run_counts(ledger)
    finally:
        await ledger.close()
    with closing(sqlite3.connect(path)) as connection:
        names = [row[0] for row in connection.execute("select name from sqlite_schema where type = 'table'")]
        rows = {name: connection.execute(f'select count(*) from "{name}"').fetchone()[0] for name in names}
        connection.execute("vacuum")
    _require_rows(rows)
    return path.read_bytes(), runs


def _write_postgres(server: PostgresServer) -> tuple[bytes, dict[str, dict[str, int]]]:
    server.create_database("released")
    url = server.url("released")
    runs, rows = asyncio.run(_fill_postgres(url))
    _require_rows(rows)
    # Inserts instead of copies, so that any client can load them.
    options = ["--schema=shoal", "--no-owner", "--no-privileges", "--inserts", "--rows-per-insert=200"]
    environment = {**os.environ, "PGPASSWORD": urlsplit(url).password or ""}
    command = [str(server.programs / "pg_dump"), *options, url]
    dumped = subprocess.run(command, env=environment, check=True, capture_output=True).stdout
    # Lines for psql, and settings that other versions of the server do not have.
    lines = [
        line for line in dumped.splitlines(keepends=True) if not line.startswith((b"\\", b"SET transaction_timeout"))
    ]
    return b"".join(lines), runs


async def _fill_postgres(url: str) -> tuple[dict[str, dict[str, int]], dict[str, int]]:
    ledger = await open_postgres(url)
    try:
        await ledger.schema.migrate()
        await fill_every_table(ledger)
        runs = await run_counts(ledger)
        names = await ledger.db.fetch("select tablename from pg_tables where schemaname = 'shoal'")
        rows = {name: await ledger.db.value(f'select count(*) from shoal."{name}"') for (name,) in names}
        return runs, rows
    finally:
        await ledger.close()


def _require_rows(rows: dict[str, int]) -> None:
    empty = {name for name, count in rows.items() if not count} - SHORT_LIVED
    if empty:
        raise SystemExit(f"tests/support/full_ledger.py writes nothing into {', '.join(sorted(empty))}.")


async def run_counts(ledger: Ledger) -> dict[str, dict[str, int]]:
    """The items of each run by state, and its records, without zeros."""
    states = ("ready", "waiting", "delayed", "leased", "done", "dead", "skipped", "cancelled", "results")
    counts = {}
    for run in (await ledger.runs.list(limit=100)).rows:
        found = await ledger.reads.stats(run.id)
        counts[run.id] = {state: number for state in states if (number := getattr(found, state))}
    return counts


if __name__ == "__main__":
    sys.stdout.write(freeze() + "\n")
