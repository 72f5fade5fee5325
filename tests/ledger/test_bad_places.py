"""Places where a ledger cannot live: one clear sentence with the remedy, and nothing acknowledged is lost."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from shoal.errors import (
    BadLedgerUrl,
    LedgerFull,
    LedgerNotMigrated,
    LedgerReadOnly,
    LedgerUnreachable,
    ShoalError,
)
from shoal.ledger.postgres.ledger import open_postgres
from shoal.ledger.sqlite.ledger import open_sqlite
from shoal.model.item import NewItem
from shoal.model.run import RunSpec, StageSpec
from shoal.model.worker import Scope, WorkerSpec
from shoal.testing.harness import done
from tests.support import missing

SPEC = RunSpec(scraper="s", stages=(StageSpec("a"),))


def says_what_to_do(error: ShoalError) -> None:
    assert error.message.endswith("."), error.message
    assert error.remedy.endswith("."), error.remedy
    assert "\n" not in str(error)


@pytest.mark.parametrize(
    "url",
    ["postgresql://127.0.0.1:1/none", "postgresql://postgres:wrong@127.0.0.1:1/none", "postgresql://[::1]:1/none"],
)
async def test_an_unreachable_server(url: str) -> None:
    with pytest.raises(LedgerUnreachable) as caught:
        await open_postgres(url, patience=0.5)
    says_what_to_do(caught.value)
    assert "wrong" not in str(caught.value), "passwords are not printed"


async def test_a_wrong_password_and_a_missing_database(postgres_url: str) -> None:
    for url in (postgres_url.replace("://shoal:", "://shoal:not-"), postgres_url + "_missing"):
        if url == postgres_url:
            pytest.skip("the server of SHOAL_TEST_DATABASE_URL has another user name")
        with pytest.raises(LedgerUnreachable) as caught:
            await open_postgres(url, patience=0.5)
        says_what_to_do(caught.value)


@pytest.mark.parametrize("url", ["postgresql://host:port/db", "postgresql://h:99999/db"])
async def test_an_address_that_is_none(url: str) -> None:
    with pytest.raises((BadLedgerUrl, LedgerUnreachable)) as caught:
        await open_postgres(url, patience=0.5)
    says_what_to_do(caught.value)


async def test_a_server_that_refuses_writes(postgres_url: str) -> None:
    ledger = await open_postgres(postgres_url)
    database = postgres_url.rsplit("/", 1)[1].split("?", maxsplit=1)[0]
    await ledger.db.fetch(f'alter database "{database}" set default_transaction_read_only = on')
    await ledger.close()
    ledger = await open_postgres(postgres_url)
    with pytest.raises(LedgerReadOnly, match="primary") as caught:
        await ledger.runs.create(SPEC)
    says_what_to_do(caught.value)
    await ledger.close()
    person = await asyncpg.connect(postgres_url)
    await person.execute("set default_transaction_read_only = off")
    await person.execute(f'alter database "{database}" reset default_transaction_read_only')
    await person.close()


async def test_a_user_without_rights(postgres_url: str) -> None:
    ledger = await open_postgres(postgres_url)
    await ledger.db.fetch("drop role if exists shoal_stranger")
    await ledger.db.fetch("create role shoal_stranger login password 'x'")
    stranger = await open_postgres(
        postgres_url.replace(postgres_url.split("://")[1].split("@", maxsplit=1)[0], "shoal_stranger:x")
    )
    with pytest.raises(LedgerReadOnly, match="Grant") as caught:
        await stranger.runs.create(SPEC)
    says_what_to_do(caught.value)
    await stranger.close()
    await ledger.db.fetch("drop role shoal_stranger")
    await ledger.close()


async def test_an_unreachable_server_raises_after_the_patience(postgres_url: str) -> None:
    ledger = await open_postgres(postgres_url, patience=0.6)
    database = postgres_url.rsplit("/", 1)[1].split("?", maxsplit=1)[0]
    admin = await asyncpg.connect(postgres_url.rsplit("/", 1)[0] + "/postgres")
    await admin.execute(f'alter database "{database}" allow_connections false')
    await admin.execute("select pg_terminate_backend(pid) from pg_stat_activity where datname = $1", database)
    with pytest.raises((LedgerUnreachable, ShoalError)) as caught:
        await ledger.runs.create(SPEC)
    says_what_to_do(caught.value)
    await admin.execute(f'alter database "{database}" allow_connections true')
    await admin.close()
    assert (await ledger.runs.create(SPEC)).scraper == "s", "the ledger works again when the server does"
    await ledger.close()


async def test_a_file_that_is_no_database(sqlite_path: Path) -> None:
    sqlite_path.write_text("This is a letter, not a database.\n" * 100)
    with pytest.raises(BadLedgerUrl) as caught:
        await open_sqlite(sqlite_path)
    says_what_to_do(caught.value)
    assert sqlite_path.read_text().startswith("This is a letter")


async def test_another_programs_database_is_left_alone(sqlite_path: Path) -> None:
    with sqlite3.connect(sqlite_path) as connection:
        connection.execute("create table theirs (a)")
    connection.close()
    before = sqlite_path.read_bytes()
    with pytest.raises(BadLedgerUrl) as caught:
        await open_sqlite(sqlite_path)
    says_what_to_do(caught.value)
    assert sqlite_path.read_bytes() == before


async def test_a_path_through_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(BadLedgerUrl) as caught:
        await open_sqlite(tmp_path / "file" / "ledger.db")
    says_what_to_do(caught.value)


async def test_an_unmigrated_file(sqlite_path: Path) -> None:
    ledger = await open_sqlite(sqlite_path)
    with pytest.raises(LedgerNotMigrated) as caught:
        await ledger.runs.create(SPEC)
    says_what_to_do(caught.value)
    await ledger.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of four megabytes."""
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(place)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        missing("a small file system needs root (mount)")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


async def test_a_read_only_place(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Root may write to every file, but not to a disk that is mounted read-only."""
    root = os.getuid() == 0
    place = request.getfixturevalue("small_disk") if root else tmp_path
    ledger = await open_sqlite(place / "ledger.db")
    await ledger.schema.migrate()
    await ledger.close()
    if root:
        await asyncio.to_thread(subprocess.run, ["mount", "-o", "remount,ro", str(place)], check=True)
    else:
        (place / "ledger.db").chmod(0o444)
    with pytest.raises(LedgerReadOnly) as caught:
        await create_run_at(place / "ledger.db")
    says_what_to_do(caught.value)


async def create_run_at(path: Path) -> None:
    ledger = await open_sqlite(path)
    try:
        await ledger.runs.create(SPEC)
    finally:
        await ledger.close()


async def test_a_full_disk_loses_nothing_that_was_acknowledged(small_disk: Path) -> None:
    ledger = await open_sqlite(small_disk / "ledger.db")
    await ledger.schema.migrate()
    run = await ledger.runs.create(SPEC)
    await ledger.workers.register(WorkerSpec(id="w", node="n", pid=1, lease_seconds=3600))
    acknowledged = 0
    refusal: LedgerFull | None = None
    while refusal is None:
        batch = [NewItem(key=f"k{acknowledged}-{n}", payload={"text": "x" * 500}) for n in range(50)]
        try:
            acknowledged += (await ledger.intake.enqueue(run.id, batch)).enqueued
        except LedgerFull as error:
            refusal = error
        assert acknowledged < 100_000, "four megabytes cannot hold that"
    says_what_to_do(refusal)
    assert acknowledged > 0
    assert (await ledger.reads.stats(run.id)).ready == acknowledged
    assert await ledger.upkeep.audit() == []
    await ledger.close()

    # The same file on a disk with room: everything is there and can be worked on.
    roomy = small_disk.parent / "roomy"
    shutil.copytree(small_disk, roomy)
    ledger = await open_sqlite(roomy / "ledger.db")
    assert (await ledger.reads.stats(run.id)).ready == acknowledged
    claimed = await ledger.claims.claim("w", Scope(), 10)
    assert (await ledger.commits.commit("w", [done(item) for item in claimed])).committed == 10
    assert await ledger.upkeep.audit() == []
    await ledger.close()
