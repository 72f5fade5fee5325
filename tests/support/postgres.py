"""A real PostgreSQL: databases on a running server, and a server of our own that may be crashed."""

import asyncio
import contextlib
import os
import secrets
import shutil
import signal
from collections.abc import Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, Literal, Self, TypeVar
from urllib.parse import urlsplit

import asyncpg

from tests.support.account import Account
from tests.support.binaries import postgres_programs
from tests.support.server import LOOPBACK, Host, ServerProcess, free_port

StopMode = Literal["smart", "fast", "immediate"]

_STOP_SIGNALS: Final[dict[StopMode, signal.Signals]] = {
    "smart": signal.SIGTERM,
    "fast": signal.SIGINT,
    "immediate": signal.SIGQUIT,
}
_USER: Final = "shoal"
_Result = TypeVar("_Result")


def unique_name(prefix: str = "shoal_test") -> str:
    """Return a database name that no other test, process or earlier session uses."""
    return f"{prefix}_{secrets.token_hex(6)}"


class PostgresDatabases:
    """The databases of a running server, which need not be ours; we must be allowed to create databases.

    The methods block and may be called from anywhere, a running event loop included.
    """

    def __init__(self, admin_url: str) -> None:
        self.admin_url = admin_url

    def url(self, database: str) -> str:
        return urlsplit(self.admin_url)._replace(path=f"/{database}").geturl()

    def create_database(self, name: str, template: str | None = None, *, encoding: str = "") -> None:
        """Create a database, as a copy of `template` if given; nobody may be connected to the template."""
        source = "" if template is None else f" TEMPLATE {_quoted(template)}"
        if encoding:
            source = f" TEMPLATE template0 ENCODING '{encoding}' LOCALE 'C'"
        # In memory, copying files takes 17 ms and writing them through the log 26 ms; on disk they are equal.
        self._execute(f"CREATE DATABASE {_quoted(name)}{source} STRATEGY FILE_COPY")

    def drop_database(self, name: str) -> None:
        """Drop a database if it exists, and disconnect whoever is in it."""
        self._execute(f"DROP DATABASE IF EXISTS {_quoted(name)} WITH (FORCE)")

    def terminate_backends(self, database: str) -> int:
        """Disconnect every client of a database, as a failing network would; return how many there were."""
        return _run_apart(self._terminate_backends(database))

    def _execute(self, statement: str) -> None:
        _run_apart(self._execute_async(statement))

    async def _execute_async(self, statement: str) -> None:
        connection = await asyncpg.connect(self.admin_url)
        try:
            await connection.execute(statement)
        finally:
            await connection.close()

    async def _terminate_backends(self, database: str) -> int:
        connection = await asyncpg.connect(self.admin_url)
        try:
            return int(
                await connection.fetchval(
                    "SELECT count(*) FILTER (WHERE pg_terminate_backend(pid, 10000))"
                    " FROM pg_stat_activity WHERE datname = $1 AND pid <> pg_backend_pid()",
                    database,
                )
            )
        finally:
            await connection.close()


class PostgresServer(PostgresDatabases):
    """A server of our own on 127.0.0.1, or on a node, in a temporary folder, gone when we are gone.

    `fsync=False` is for tests that ask what happens, and keeps the files in memory where it can: creating a
    database writes 300 files, which takes 17 ms there and up to 220 ms on disk. Whoever asks what *survives*
    a crash, or how fast it is, needs True. `settings` are further server settings by name.
    """

    def __init__(
        self,
        *,
        fsync: bool = False,
        max_connections: int = 250,
        settings: Mapping[str, str] | None = None,
        host: Host = LOOPBACK,
    ) -> None:
        durable = "on" if fsync else "off"
        self.port = free_port()
        self._password = secrets.token_hex(8)
        place = f"{host.address}:{self.port}/postgres"
        if host.sockets is not None:
            place = f"/postgres?host={host.sockets}&port={self.port}"
        super().__init__(f"postgresql://{_USER}:{self._password}@{place}")
        self._settings = {
            "listen_addresses": host.address,
            "port": str(self.port),
            "unix_socket_directories": str(host.sockets or ""),
            "max_connections": str(max_connections),
            "fsync": durable,
            "full_page_writes": durable,
            "log_line_prefix": "%m [%p] %d ",
            **(settings or {}),
        }
        self._in_memory = not fsync
        self._account = Account.unprivileged()
        self._host = host
        self._folder: Path | None = None
        self._programs = Path()
        self._process: ServerProcess | None = None

    def start(self) -> None:
        """Start the server and wait until it answers; the first start creates its files."""
        if self._folder is None:
            self._folder = self._create_folder()
        options = [option for name, value in self._settings.items() for option in ("-c", f"{name}={value}")]
        process = ServerProcess(
            [*self._host.entry, str(self._programs / "postgres"), "-D", str(self._data), *options],
            account=Account() if self._host.entry else self._account,
            folder=self._home,
            farewell=_STOP_SIGNALS["immediate"],
        )
        process.wait_until(lambda: self._is_ready(process.pid))
        self._process = process

    def stop(self, mode: StopMode = "fast") -> None:
        """Stop the server as pg_ctl would; "immediate" is a crash: the next start recovers from the log."""
        if self._process is not None:
            self._process.stop(_STOP_SIGNALS[mode])
            self._process = None

    def freeze(self) -> None:
        """Stop all its processes without ending them: connections stay open and nothing is answered."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None, "the server is not running"
        family = [self._process.pid, *child_processes(self._process.pid)]
        for pid in family if number == signal.SIGSTOP else reversed(family):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def restart_immediate(self) -> None:
        """Crash the server under its clients and bring it back on the same port."""
        self.stop("immediate")
        self.start()

    def remove(self) -> None:
        """Stop the server and delete its files."""
        self.stop("immediate")
        if self._folder is not None:
            shutil.rmtree(self._folder)
            self._folder = None

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    @property
    def log(self) -> Path:
        """What the server has said, over all its starts."""
        return self._home / "server.log"

    @property
    def programs(self) -> Path:
        """The folder of its programs, `pg_dump` among them."""
        return self._programs

    @property
    def _data(self) -> Path:
        return self._home / "data"

    @property
    def _home(self) -> Path:
        if self._folder is None:
            raise RuntimeError("this PostgresServer has no files: call start() first")
        return self._folder

    def _create_folder(self) -> Path:
        folder = self._account.scratch_folder("shoal-postgres-", in_memory=self._in_memory)
        try:
            self._programs = postgres_programs(self._account, folder)
            password_file = folder / "password"
            password_file.write_text(self._password)
            self._account.give(password_file)
            initdb = self._account.run(
                [
                    str(self._programs / "initdb"),
                    *("--pgdata", str(folder / "data")),
                    *("--username", _USER),
                    *("--pwfile", str(password_file)),
                    *("--auth", "scram-sha-256"),
                    *("--encoding", "UTF8"),
                    *("--locale", "C"),
                    "--no-sync",
                ]
            )
            if initdb.returncode != 0:
                raise RuntimeError(f"initdb failed:\n{initdb.stdout}")
        except BaseException:
            shutil.rmtree(folder)
            raise
        return folder

    def _is_ready(self, pid: int) -> bool:
        """Read postmaster.pid as pg_ctl does; one left behind by a crash names another process."""
        try:
            lines = (self._data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        return len(lines) >= 8 and lines[0] == str(pid) and lines[7].strip() == "ready"


def child_processes(pid: int) -> list[int]:
    """The pids of the children of a process, and of theirs."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with contextlib.suppress(OSError, IndexError, ValueError):
                parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    found, left = list[int](), [pid]
    while left:
        parent = left.pop()
        children = [child for child, its_parent in parents.items() if its_parent == parent]
        found += children
        left += children
    return found


def external_databases() -> PostgresDatabases | None:
    """The server that SHOAL_TEST_DATABASE_URL names, if it is set."""
    url = os.environ.get("SHOAL_TEST_DATABASE_URL")
    return PostgresDatabases(url) if url else None


def _quoted(identifier: str) -> str:
    return '"' + identifier.replace('"', '""') + '"'


def _run_apart(work: Coroutine[Any, Any, _Result]) -> _Result:
    """Run a coroutine in a thread with a loop of its own: the caller may be inside a running loop."""
    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(asyncio.run, work).result()
