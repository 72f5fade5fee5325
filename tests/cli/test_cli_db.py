"""`shoal db` and `shoal config` through real processes, on both ledgers."""

import asyncio
import json
import socket
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import asyncpg
import pytest

from shoal.config import Settings
from shoal.model.run import RunSpec, StageSpec
from shoal.wiring import ledger_context
from tests.support.postgres import PostgresDatabases
from tests.support.project import Shoal

FUTURE = 999


class Database:
    """A ledger's address, and a way around Shoal to spoil what is in it."""

    def __init__(self, address: str, execute: Callable[[str], None], prefix: str) -> None:
        self.address = address
        self.execute = execute
        self.prefix = prefix

    def make_too_new(self) -> None:
        if self.prefix:
            self.execute(f"insert into shoal.migration (version, name) values ({FUTURE}, 'future')")
        else:
            self.execute(f"pragma user_version = {FUTURE}")


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest) -> Database:
    """An empty place for a ledger."""
    if request.param == "postgres":
        url: str = request.getfixturevalue("postgres_url")
        return Database(url, lambda statement: asyncio.run(_execute_postgres(url, statement)), "shoal.")
    path: Path = request.getfixturevalue("sqlite_path")
    return Database(str(path), lambda statement: _execute_sqlite(path, statement), "")


async def _execute_postgres(url: str, statement: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


def _execute_sqlite(path: Path, statement: str) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        connection.execute(statement)
    finally:
        connection.close()


def fill(address: str, scrapers: int = 1) -> list[str]:
    """One run for each scraper, with three items and a duplicate; returns the runs' ids."""

    async def enqueue() -> list[str]:
        ids = []
        async with ledger_context(Settings(ledger=address)) as ledger:
            for number in range(scrapers):
                run = await ledger.runs.create(RunSpec(scraper=f"shop{number}", stages=(StageSpec("page"),)))
                await ledger.intake.enqueue(run.id, [f"https://example.com/{n % 3}" for n in range(4)])
                ids.append(run.id)
        return ids

    return asyncio.run(enqueue())


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_migrate_then_check_then_show(shoal: Shoal, database: Database) -> None:
    first = shoal("db", "migrate", "--json", SHOAL_LEDGER=database.address)
    assert first.returncode == 0, first.stderr
    migrated = lines(first.stdout)[0]
    assert migrated["before"] == 0
    assert migrated["after"] >= 1
    again = lines(shoal("db", "migrate", "--json", SHOAL_LEDGER=database.address).stdout)[0]
    assert again["before"] == again["after"] == migrated["after"]

    check = lines(shoal("db", "check", "--deep", "--json", SHOAL_LEDGER=database.address).stdout)[0]
    assert (check["reachable"], check["current"], check["findings"]) == (True, True, [])
    assert check["schema"] == migrated["after"]
    assert 0 < check["latency_ms"] < 10_000

    empty = shoal("db", "show", SHOAL_LEDGER=database.address)
    assert (empty.returncode, empty.stdout) == (0, "")
    assert "no runs yet" in empty.stderr


def test_show_lists_runs_with_their_counts(shoal: Shoal, database: Database) -> None:
    shoal("db", "migrate", SHOAL_LEDGER=database.address)
    ids = fill(database.address, scrapers=3)
    rows = lines(shoal("db", "show", "--json", SHOAL_LEDGER=database.address).stdout)
    assert [row["run_id"] for row in rows] == ids[::-1]
    assert {(row["total"], row["ready"], row["done"], row["duplicates"]) for row in rows} == {(3, 3, 0, 1)}

    table = shoal("db", "show", "--limit", "2", SHOAL_LEDGER=database.address)
    header, *body = table.stdout.splitlines()
    assert header.split()[:4] == ["RUN", "SCRAPER", "STATE", "READY"]
    assert [line.split()[:4] for line in body] == [[ids[2], "shop2", "active", "3"], [ids[1], "shop1", "active", "3"]]
    assert "--limit" in table.stderr

    one = lines(shoal("db", "show", "--scraper", "shop0", "--json", SHOAL_LEDGER=database.address).stdout)
    assert [row["run_id"] for row in one] == ids[:1]


def test_deep_check_finds_what_must_not_be(shoal: Shoal, database: Database) -> None:
    shoal("db", "migrate", SHOAL_LEDGER=database.address)
    fill(database.address)
    database.execute(f"delete from {database.prefix}ready")
    shallow = shoal("db", "check", SHOAL_LEDGER=database.address)
    assert shallow.returncode == 0
    deep = shoal("db", "check", "--deep", "--json", SHOAL_LEDGER=database.address)
    assert deep.returncode == 1
    assert lines(deep.stdout)[0]["findings"]
    assert "findings" in deep.stderr


def test_a_newer_schema_is_refused_by_every_command(shoal: Shoal, database: Database) -> None:
    shoal("db", "migrate", SHOAL_LEDGER=database.address)
    database.make_too_new()
    for command in ("migrate", "check", "show"):
        refused = shoal("db", command, SHOAL_LEDGER=database.address)
        assert refused.returncode == 3
        assert f"schema version {FUTURE}" in refused.stderr
        assert "Upgrade Shoal" in refused.stderr


def test_postgres_must_be_migrated_by_hand(shoal: Shoal, postgres_url: str) -> None:
    for command in ("show", "check"):
        refused = shoal("db", command, SHOAL_LEDGER=postgres_url)
        assert refused.returncode == 3
        assert "Run `shoal db migrate`." in refused.stderr
        assert "Traceback" not in refused.stderr


def test_a_database_that_is_not_utf8_is_refused(
    shoal: Shoal, postgres_server: PostgresDatabases, postgres_url: str
) -> None:
    """Its URLs and records would be bytes, and lists that end at the last character of Unicode fail."""
    name = urlsplit(postgres_url).path[1:] + "_ascii"
    postgres_server.create_database(name, encoding="SQL_ASCII")
    try:
        refused = shoal("db", "migrate", SHOAL_LEDGER=postgres_server.url(name))
    finally:
        postgres_server.drop_database(name)
    assert refused.returncode == 3
    (line,) = refused.stderr.splitlines()
    assert f"/{name} has the encoding SQL_ASCII; Shoal needs UTF8. Create another one: `createdb " in line
    # As a ledger of an earlier build may be.
    shoal("db", "migrate", SHOAL_LEDGER=postgres_url)
    asyncio.run(
        _execute_postgres(postgres_url, "update pg_database set encoding = 0 where datname = current_database()")
    )
    checked = shoal("doctor", SHOAL_LEDGER=postgres_url)
    assert "has the encoding SQL_ASCII; Shoal needs UTF8." in checked.stdout


def test_looking_at_a_missing_file_does_not_create_it(shoal: Shoal, sqlite_path: Path) -> None:
    for command in ("show", "check"):
        refused = shoal("db", command, "--ledger", str(sqlite_path))
        assert refused.returncode == 3
        assert f"There is no ledger at {sqlite_path}" in refused.stderr
        assert not sqlite_path.exists()


def test_the_default_ledger_is_under_the_current_folder(shoal: Shoal, tmp_path: Path) -> None:
    assert shoal("db", "migrate").returncode == 0
    assert (tmp_path / ".shoal" / "ledger.db").exists()


def test_a_sqlite_url_names_the_same_file_as_a_path(shoal: Shoal, sqlite_path: Path) -> None:
    assert shoal("db", "migrate", "--ledger", f"sqlite://{sqlite_path}").returncode == 0
    assert shoal("db", "check", "--ledger", str(sqlite_path)).returncode == 0


@pytest.mark.parametrize(
    "address",
    ["mysql://me:s3cret@h/db", "sqlite://relative.db", ":memory:", "/", "postgresql://me:s3/cret@h/db", "http://x"],
)
def test_addresses_that_are_no_ledger(shoal: Shoal, address: str) -> None:
    refused = shoal("db", "check", "--ledger", address)
    assert refused.returncode == 2
    assert refused.stdout == ""
    assert refused.stderr.startswith("Error: ")
    assert len(refused.stderr.splitlines()) == 1
    assert "s3" not in refused.stderr


def test_nobody_at_the_address(shoal: Shoal) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        refused = shoal("db", "check", "--db-host", "127.0.0.1", "--db-port", str(unused.getsockname()[1]))
    assert refused.returncode == 3
    assert "does not answer" in refused.stderr
    assert refused.stdout == ""


def test_a_server_that_never_answers_is_given_up_after_the_patience(shoal: Shoal) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        began = time.monotonic()
        refused = shoal(
            "db", "check", SHOAL_LEDGER=f"postgresql://127.0.0.1:{silent.getsockname()[1]}/x", SHOAL_PATIENCE="1"
        )
    assert refused.returncode == 3
    assert "has not answered for 1 s" in refused.stderr
    assert time.monotonic() - began < 9  # the driver's own limit is 10 s


def test_the_password_is_never_printed(shoal: Shoal, postgres_url: str) -> None:
    password = "Fish&Ch!ps@9"
    address = urlsplit(postgres_url)
    host = address.netloc.rpartition("@")[2]
    for login in (quote(password, safe=""), password):
        wrong = address._replace(netloc=f"{address.username}:{login}@{host}").geturl()
        for arguments in (["db", "check", "-v"], ["db", "migrate"], ["config", "show", "--origin"]):
            said = shoal(*arguments, SHOAL_LEDGER=wrong)
            assert said.returncode == (0 if arguments[0] == "config" else 3)
            assert "***" in said.stdout + said.stderr
            for part in (password, quote(password, safe=""), "Fish", "ps@9"):
                assert part not in said.stdout + said.stderr


def test_postgres_by_parts(shoal: Shoal, postgres_url: str) -> None:
    address = urlsplit(postgres_url)
    flags = ["--db-host", str(address.hostname), "--db-port", str(address.port), "--db-name", address.path[1:]]
    assert address.username
    assert address.password
    migrated = shoal("db", "migrate", *flags, "--db-user", address.username, PGPASSWORD=address.password)
    assert migrated.returncode == 0, migrated.stderr
    assert address.password not in migrated.stdout
    assert shoal("db", "check", SHOAL_LEDGER=postgres_url).returncode == 0


def test_sqlite_does_not_import_the_postgres_driver(shoal: Shoal, sqlite_path: Path) -> None:
    said = shoal("db", "migrate", SHOAL_LEDGER=str(sqlite_path), PYTHONPROFILEIMPORTTIME="1")
    assert said.returncode == 0
    assert "shoal.ledger.sqlite" in said.stderr
    assert "asyncpg" not in said.stderr


@pytest.mark.parametrize("begun", [False, True])
def test_a_dry_run_begins_no_file(sqlite_path: Path, shoal: Shoal, begun: bool) -> None:
    """Neither where there is none nor in one that is empty."""
    if begun:
        sqlite_path.touch()
    finished = shoal("db", "migrate", "--dry-run", SHOAL_LEDGER=str(sqlite_path))
    assert finished.returncode == 0, finished.stderr
    assert "would go from schema version 0 to" in finished.stdout
    found = {path.name: path.stat().st_size for path in sqlite_path.parent.glob(f"{sqlite_path.name}*")}
    assert found == ({sqlite_path.name: 0} if begun else {})


def test_a_dry_run_creates_no_schema_on_postgres(postgres_url: str, shoal: Shoal) -> None:
    finished = shoal("db", "migrate", "--dry-run", SHOAL_LEDGER=postgres_url)
    assert finished.returncode == 0, finished.stderr
    assert "would go from schema version 0 to" in finished.stdout

    async def schemas() -> int:
        connection = await asyncpg.connect(postgres_url)
        try:
            found: int = await connection.fetchval("select count(*) from pg_namespace where nspname = 'shoal'")
            return found
        finally:
            await connection.close()

    assert asyncio.run(schemas()) == 0
