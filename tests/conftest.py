"""Fixtures for all tests: real databases, started on first use, once per test process; projects; the command line."""

import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import pytest

from tests.support import OPTIONAL, MissingPartError, fork_server, missing
from tests.support.brokers import RabbitServer, RedisServer
from tests.support.certificates import Certificate
from tests.support.marks import starts_process, uses
from tests.support.object_store import PART_BYTES, S3Server
from tests.support.pgbouncer import PgBouncer
from tests.support.postgres import PostgresDatabases, PostgresServer, external_databases, unique_name
from tests.support.project import Finished, Project, Shoal, clean_environment, migrate
from tests.support.proxies import MicroSocks, Squid, TinyProxy
from tests.support.tor_network import TorNetwork

# Whoever works behind a proxy still tests on loopback.
for variable in [name for name in os.environ if name.upper().endswith("_PROXY")]:
    del os.environ[variable]

# A shell without job control starts background jobs with SIGINT ignored, nohup ignores SIGHUP, and whatever they start
# would ignore them too.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Asserts of the public suite explain themselves as those of our own tests do.
pytest.register_assert_rewrite("shoal.testing")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Iterator[None]:
    """Mark what needs PostgreSQL or starts processes: `make quick` leaves it out."""
    for item in items:
        if uses(item, "postgres", "postgres_server", "durable_postgres"):
            item.add_marker(pytest.mark.postgres)
        if starts_process(item) or uses(item, "rabbitmq", "redis_server", "redis_stream", "redis_list"):
            item.add_marker(pytest.mark.process)
        if uses(item, "rabbitmq"):
            # It takes seconds to start: one test process has it, if they are distributed by groups.
            item.add_marker(pytest.mark.xdist_group("rabbitmq"))
    yield
    for item in items:
        # xdist marks a group in the name of a test; where pytest 9.2 keeps names, xdist 3.8 does not know.
        if hasattr(item, "_id") and (grouped := vars(item).get("_nodeid")):
            item._id = type(item._id).parse(grouped)


def pytest_unconfigure() -> None:
    fork_server.stop()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """In CI nothing may be left out quietly, but for programs that are not among the parts."""
    if not report.skipped or not os.environ.get("CI") or hasattr(report, "wasxfail"):
        return
    if OPTIONAL not in str(report.longrepr):
        report.outcome = "failed"


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresDatabases]:
    """A running PostgreSQL, not to be stopped: that of SHOAL_TEST_DATABASE_URL, or our own with fsync off."""
    external = external_databases()
    if external is not None:
        yield external
        return
    try:
        with PostgresServer() as server:
            yield server
    except MissingPartError as error:
        missing(str(error))


@pytest.fixture(scope="session")
def durable_postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL of our own with fsync on, for tests that crash it; leave it running."""
    try:
        with PostgresServer(fsync=True) as server:
            yield server
    except MissingPartError as error:
        missing(str(error))


@pytest.fixture(scope="session")
def pgbouncer(postgres_server: PostgresDatabases) -> Iterator[PgBouncer]:
    """A PgBouncer in transaction mode in front of `postgres_server`."""
    try:
        with PgBouncer(postgres_server) as bouncer:
            yield bouncer
    except MissingPartError as error:
        missing(str(error))


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """An S3 server on loopback, with one bucket."""
    server = S3Server()
    yield server
    server.stop()


@pytest.fixture
def s3(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """The S3 server, empty; this process's environment points to it."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in s3_server.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("shoal.storage.objects.PART_BYTES", PART_BYTES)
    yield s3_server
    s3_server.clear()


@pytest.fixture(scope="session")
def rabbitmq() -> Iterator[RabbitServer]:
    """A RabbitMQ; name queues by `unique_name`. It may be killed; leave it running."""
    try:
        with RabbitServer() as server:
            yield server
    except MissingPartError as error:
        missing(str(error))


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """A Redis; name keys by `unique_name`. It may be killed; leave it running."""
    try:
        with RedisServer() as server:
            yield server
    except MissingPartError as error:
        missing(str(error))


@pytest.fixture(scope="session")
def microsocks() -> Iterator[MicroSocks]:
    """A SOCKS5 proxy with a password, which resolves shop.test to 127.0.0.1; leave it running."""
    try:
        with MicroSocks(login=True, hosts={"shop.test": "127.0.0.1"}) as proxy:
            yield proxy
    except MissingPartError as error:
        missing(str(error))


@pytest.fixture(scope="session")
def tinyproxy() -> Iterator[TinyProxy]:
    """An HTTP proxy with a password, which resolves shop.test to 127.0.0.1; leave it running."""
    try:
        with TinyProxy(login=True, hosts={"shop.test": "127.0.0.1"}) as proxy:
            yield proxy
    except MissingPartError as error:
        missing(str(error))


@pytest.fixture(scope="session")
def squid() -> Iterator[Squid]:
    """Another one, which keeps connections open; leave it running."""
    try:
        with Squid(login=True, hosts={"shop.test": "127.0.0.1"}) as proxy:
            yield proxy
    except MissingPartError as error:
        missing(str(error))


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    """A certificate of shop.test and the loopback addresses, which nobody trusts by default."""
    try:
        return Certificate(tmp_path_factory.mktemp("certificate"))
    except MissingPartError as error:
        missing(str(error))


@pytest.fixture(scope="session")
def postgres_template() -> str | None:
    """The database that `postgres_url` copies; None means empty. The conftest of a folder may override it."""
    return None


@pytest.fixture
def postgres_url(postgres_server: PostgresDatabases, postgres_template: str | None) -> Iterator[str]:
    """The URL of a fresh database, dropped after the test."""
    yield from _fresh_database(postgres_server, postgres_template)


@pytest.fixture
def durable_postgres_url(durable_postgres: PostgresServer) -> Iterator[str]:
    """The URL of a fresh, empty database on the server that may be crashed, dropped after the test."""
    yield from _fresh_database(durable_postgres, None)


@pytest.fixture
async def person(postgres_url: str) -> AsyncIterator[asyncpg.Connection]:
    """Somebody with psql, beside Shoal's own connections."""
    connection = await asyncpg.connect(postgres_url)
    yield connection
    await connection.close()


@pytest.fixture
def pgbouncer_url(pgbouncer: PgBouncer, postgres_url: str) -> str:
    """The database of `postgres_url`, reached through PgBouncer."""
    return pgbouncer.url(urlsplit(postgres_url).path.removeprefix("/"))


@pytest.fixture
def sqlite_path(tmp_path: Path) -> Path:
    """Where a SQLite ledger may be created; nothing is there yet."""
    return tmp_path / "ledger.sqlite3"


@pytest.fixture
def shoal(tmp_path: Path) -> Shoal:
    """Run `shoal` with these arguments in `tmp_path`; keywords are environment variables. `fresh`: by exec."""

    def run(*arguments: str, fresh: bool = False, **variables: str) -> Finished:
        return fork_server.run(arguments, tmp_path, clean_environment(tmp_path, **variables), fresh=fresh)

    return run


@pytest.fixture(scope="session")
def migrated_template(postgres_server: PostgresDatabases) -> Iterator[str]:
    """A database with Shoal's schema, to be copied."""
    name = unique_name()
    postgres_server.create_database(name)
    migrate(postgres_server.url(name))
    yield name
    postgres_server.drop_database(name)


@pytest.fixture
def migrated_postgres(postgres_server: PostgresDatabases, migrated_template: str) -> Iterator[str]:
    """The URL of a fresh ledger on PostgreSQL."""
    name = unique_name()
    postgres_server.create_database(name, migrated_template)
    yield postgres_server.url(name)
    postgres_server.drop_database(name)


@pytest.fixture(scope="session")
def starting_tor_network() -> Iterator[Callable[[], TorNetwork]]:
    """A private Tor network, started beside other tests; the value waits for its start."""
    network = TorNetwork()
    with ThreadPoolExecutor(max_workers=1) as thread:
        starting = thread.submit(network.__enter__)
        try:
            yield starting.result
        finally:
            if starting.exception() is None:
                network.__exit__(None, None, None)


@pytest.fixture
def tor_network(starting_tor_network: Callable[[], TorNetwork]) -> TorNetwork:
    try:
        network = starting_tor_network()
    except MissingPartError as error:
        missing(str(error))
    network.wait_until_ready()
    return network


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    """A folder with a scraper and a SQLite ledger."""
    with Project(tmp_path) as project:
        yield project


@pytest.fixture
def fleet(tmp_path: Path, migrated_postgres: str) -> Iterator[Project]:
    """A folder with a scraper and a ledger on PostgreSQL."""
    with Project(tmp_path, ledger=migrated_postgres) as project:
        yield project


@pytest.fixture(params=["sqlite", "postgres"])
def either(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Project]:
    """A project on either ledger, one after the other."""
    ledger = request.getfixturevalue("migrated_postgres") if request.param == "postgres" else None
    with Project(tmp_path, ledger) as project:
        yield project


def _fresh_database(server: PostgresDatabases, template: str | None) -> Iterator[str]:
    name = unique_name()
    server.create_database(name, template)
    yield server.url(name)
    server.drop_database(name)
