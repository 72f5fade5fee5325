"""The real parts are what the other tests take them for."""

import asyncio
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import pytest

from tests import conftest
from tests.support import OPTIONAL, MissingPartError, binaries, missing
from tests.support.account import Account
from tests.support.pgbouncer import PgBouncer
from tests.support.postgres import PostgresDatabases, PostgresServer, unique_name

REPOSITORY = Path(__file__).parents[2]


async def fetch_value(url: str, query: str) -> object:
    """Ask one question over a connection of its own."""
    connection = await asyncpg.connect(url, statement_cache_size=0)
    try:
        return await connection.fetchval(query)
    finally:
        await connection.close()


async def execute(url: str, statements: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(statements)
    finally:
        await connection.close()


def test_every_system_part_is_installed() -> None:
    """`make parts` has one list; what is missing here is skipped elsewhere."""
    found = re.search(r"^PARTS = ((?:.*\\\n)*.*)", (REPOSITORY / "Makefile").read_text(), re.MULTILINE)
    assert found is not None
    programs = [part.partition(":")[0] for part in found[1].replace("\\\n", "").split()]
    assert {"pgbouncer", "microsocks", "tinyproxy", "squid", "tor", "nginx", "nft"} < set(programs)
    try:
        for program in programs:
            assert os.access(binaries.proxy_program(program), os.X_OK)
    except MissingPartError as error:
        missing(str(error))


@pytest.mark.parametrize(("reason", "outcome"), [("no such server", "failed"), (f"{OPTIONAL}kubectl", "skipped")])
def test_in_ci_nothing_is_skipped_but_for_what_no_part_installs(
    reason: str, outcome: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", "true")
    place = ("test_it.py", 1, f"Skipped: {reason}")
    report = pytest.TestReport("test_it", ("test_it.py", 1, "test_it"), {}, "skipped", place, "call")
    conftest.pytest_runtest_logreport(report)
    assert report.outcome == outcome


async def test_each_test_gets_an_empty_database_of_its_own(postgres_url: str) -> None:
    tables = "SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace"
    assert await fetch_value(postgres_url, tables) == 0
    assert await fetch_value(postgres_url, "SELECT current_database()") == urlsplit(postgres_url).path[1:]


async def test_server_speaks_utf8_and_sorts_by_bytes(durable_postgres_url: str) -> None:
    assert await fetch_value(durable_postgres_url, "SHOW server_encoding") == "UTF8"
    assert await fetch_value(durable_postgres_url, "SELECT 'B' < 'a'") is True


async def test_wrong_password_is_refused(durable_postgres: PostgresServer) -> None:
    login = urlsplit(durable_postgres.admin_url)
    wrong = login._replace(netloc=f"{login.username}:wrong@127.0.0.1:{durable_postgres.port}").geturl()
    with pytest.raises(asyncpg.InvalidPasswordError):
        await fetch_value(wrong, "SELECT 1")


async def test_template_is_copied(postgres_server: PostgresDatabases) -> None:
    template, copy = unique_name("template"), unique_name()
    postgres_server.create_database(template)
    try:
        await execute(postgres_server.url(template), "CREATE TABLE fish AS SELECT 7 AS size")
        postgres_server.create_database(copy, template=template)
        assert await fetch_value(postgres_server.url(copy), "SELECT size FROM fish") == 7
    finally:
        postgres_server.drop_database(copy)
        postgres_server.drop_database(template)


async def test_drop_database_disconnects_its_clients(postgres_server: PostgresDatabases) -> None:
    name = unique_name()
    postgres_server.create_database(name)
    client = await asyncpg.connect(postgres_server.url(name))
    postgres_server.drop_database(name)
    with pytest.raises(asyncpg.PostgresConnectionError):
        await client.fetchval("SELECT 1")
    with pytest.raises(asyncpg.InvalidCatalogNameError):
        await fetch_value(postgres_server.url(name), "SELECT 1")


async def test_terminate_backends_ends_the_clients_of_one_database(
    postgres_server: PostgresDatabases, postgres_url: str
) -> None:
    database = urlsplit(postgres_url).path[1:]
    clients = [await asyncpg.connect(postgres_url) for _ in range(3)]
    assert await asyncio.to_thread(postgres_server.terminate_backends, database) == 3
    for client in clients:
        with pytest.raises((asyncpg.PostgresConnectionError, asyncpg.InterfaceError)):
            await client.fetchval("SELECT 1")
    assert await fetch_value(postgres_url, "SELECT 1") == 1


async def test_committed_data_survives_a_crash(durable_postgres: PostgresServer, durable_postgres_url: str) -> None:
    assert await fetch_value(durable_postgres_url, "SHOW fsync") == "on"
    await execute(durable_postgres_url, "CREATE TABLE fish AS SELECT generate_series(1, 1000) AS size")
    client = await asyncpg.connect(durable_postgres_url)
    transaction = client.transaction()
    await transaction.start()
    await client.execute("INSERT INTO fish VALUES (-1)")

    await asyncio.to_thread(durable_postgres.restart_immediate)

    with pytest.raises((asyncpg.PostgresConnectionError, asyncpg.InterfaceError)):
        await client.fetchval("SELECT 1")
    assert await fetch_value(durable_postgres_url, "SELECT count(*) FROM fish") == 1000
    assert "automatic recovery in progress" in durable_postgres.log.read_text()


async def test_server_holds_200_connections(durable_postgres_url: str) -> None:
    async with (
        asyncio.timeout(60),
        asyncpg.create_pool(durable_postgres_url, min_size=200, max_size=200) as pool,
    ):
        assert pool.get_size() == 200


async def test_pgbouncer_serves_more_clients_than_it_has_backends(
    postgres_server: PostgresDatabases, postgres_url: str
) -> None:
    database = urlsplit(postgres_url).path[1:]
    try:
        with PgBouncer(postgres_server, default_pool_size=5) as bouncer:
            clients = [await asyncpg.connect(bouncer.url(database), statement_cache_size=0) for _ in range(60)]
            query = "SELECT pg_backend_pid() FROM pg_sleep(0.01)"
            backends = await asyncio.gather(*(client.fetchval(query) for client in clients))
            await asyncio.gather(*(client.close() for client in clients))
    except MissingPartError as error:
        missing(str(error))
    assert len(backends) == 60
    assert len(set(backends)) <= 5


async def test_pgbouncer_fixture_reaches_the_same_database(postgres_url: str, pgbouncer_url: str) -> None:
    await execute(postgres_url, "CREATE TABLE fish AS SELECT 7 AS size")
    assert await fetch_value(pgbouncer_url, "SELECT size FROM fish") == 7


async def test_pgbouncer_follows_a_server_that_crashed(
    durable_postgres: PostgresServer, durable_postgres_url: str
) -> None:
    database = urlsplit(durable_postgres_url).path[1:]
    try:
        with PgBouncer(durable_postgres) as bouncer:
            assert await fetch_value(bouncer.url(database), "SELECT 1") == 1
            await asyncio.to_thread(durable_postgres.restart_immediate)
            async with asyncio.timeout(60):
                assert await _first_answer(bouncer.url(database)) == 1
    except MissingPartError as error:
        missing(str(error))


async def _first_answer(url: str) -> object:
    """PgBouncer may hand out a connection that died in the crash before it notices."""
    while True:
        try:
            return await fetch_value(url, "SELECT 1")
        except (asyncpg.PostgresError, OSError):
            await asyncio.sleep(0.05)


def test_no_server_outlives_a_killed_process() -> None:
    script = (
        "from tests.support.postgres import PostgresServer\n"
        "server = PostgresServer()\n"
        "server.start()\n"
        "print(server.log.parent, flush=True)\n"
        "input()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as user:
        assert user.stdout is not None
        folder = Path(user.stdout.readline().strip())
        postmaster = (folder / "data" / "postmaster.pid").read_text().split()[0]
        user.kill()
    deadline = time.monotonic() + 30
    while folder.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not folder.exists()
    assert not Path("/proc", postmaster).exists()


def test_programs_in_a_private_folder_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A virtual environment under root's home is closed to `nobody`."""
    account = Account.unprivileged()
    if account.uid is None:
        pytest.skip("only root runs servers as somebody else")
    install = binaries.wheel_installs()[0]
    site_packages = install.parents[1]
    tmp_path.chmod(0o700)
    (tmp_path / "site").symlink_to(site_packages)
    private_install = tmp_path / "site" / install.relative_to(site_packages)
    monkeypatch.setattr(binaries, "wheel_installs", lambda: [private_install])
    scratch = account.scratch_folder("shoal-test-")
    try:
        programs = binaries.postgres_programs(account, scratch)
        assert programs.is_relative_to(scratch)
        assert account.can_run(programs / "postgres")
    finally:
        shutil.rmtree(scratch)
