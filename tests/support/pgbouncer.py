"""A real PgBouncer in transaction mode in front of a PostgreSQL."""

import shutil
import signal
import socket
from pathlib import Path
from typing import Final, Self
from urllib.parse import parse_qs, urlsplit

from tests.support.account import Account
from tests.support.binaries import pgbouncer_program
from tests.support.postgres import PostgresDatabases
from tests.support.server import LOOPBACK, Host, ServerProcess, free_port

# auth_type=plain makes PgBouncer keep the password in the clear, which is what it needs to log in by SCRAM.
# server_login_retry: after a crash of PostgreSQL the default would keep clients waiting for 15 s.
_CONFIG: Final = """\
[databases]
* = host={host} port={port}

[pgbouncer]
listen_addr = {listen_addr}
listen_port = {listen_port}
unix_socket_dir = {sockets}
auth_type = plain
auth_file = {auth_file}
pool_mode = transaction
max_client_conn = {max_client_conn}
default_pool_size = {default_pool_size}
server_login_retry = 1
"""


class PgBouncer:
    """A PgBouncer of our own on 127.0.0.1 or on a node; it serves every database of `server` by the same name.

    Clients cannot keep session state; asyncpg needs `statement_cache_size=0`.
    """

    def __init__(
        self,
        server: PostgresDatabases,
        *,
        max_client_conn: int = 500,
        default_pool_size: int = 20,
        host: Host = LOOPBACK,
    ) -> None:
        self._server = urlsplit(server.admin_url)
        self._host = host
        self._max_client_conn = max_client_conn
        self._default_pool_size = default_pool_size
        self.port = free_port()
        self._account = Account.unprivileged()
        self._folder: Path | None = None
        self._process: ServerProcess | None = None

    def start(self) -> None:
        """Start PgBouncer and wait until it listens."""
        program = pgbouncer_program()
        if self._folder is None:
            self._folder = self._create_folder()
        process = ServerProcess(
            [*self._host.entry, str(program), "--quiet", str(self._folder / "pgbouncer.ini")],
            account=Account() if self._host.entry else self._account,
            folder=self._folder,
            farewell=signal.SIGTERM,
        )
        process.wait_until(self._is_listening)
        self._process = process

    @property
    def pid(self) -> int:
        assert self._process is not None, "PgBouncer is not running"
        return self._process.pid

    @property
    def has_crashed(self) -> bool:
        """Whether it ended though nobody stopped it."""
        return self._process is not None and self._process.has_ended

    def stop(self) -> None:
        """Disconnect every client at once and stop."""
        if self._process is not None:
            self._process.stop(signal.SIGTERM)
            self._process = None

    def remove(self) -> None:
        """Stop, and delete the files."""
        self.stop()
        if self._folder is not None:
            shutil.rmtree(self._folder)
            self._folder = None

    def url(self, database: str) -> str:
        login = f"{self._server.username}:{self._server.password}"
        return f"postgresql://{login}@{self._host.address}:{self.port}/{database}"

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def _create_folder(self) -> Path:
        folder = self._account.scratch_folder("shoal-pgbouncer-")
        auth_file = folder / "users.txt"
        named = parse_qs(self._server.query)
        auth_file.write_text(f'"{self._server.username}" "{self._server.password}"\n')
        (folder / "pgbouncer.ini").write_text(
            _CONFIG.format(
                host=self._server.hostname or named["host"][0],
                port=self._server.port or named.get("port", ["5432"])[0],
                listen_addr=self._host.address,
                listen_port=self.port,
                sockets=self._host.sockets or "",
                auth_file=auth_file,
                max_client_conn=self._max_client_conn,
                default_pool_size=self._default_pool_size,
            )
        )
        self._account.give(folder)
        return folder

    def _is_listening(self) -> bool:
        if self._host.sockets is not None:
            with socket.socket(socket.AF_UNIX) as probe:
                return probe.connect_ex(str(self._host.sockets / f".s.PGSQL.{self.port}")) == 0
        with socket.socket() as probe:
            return probe.connect_ex((self._host.address, self.port)) == 0
