"""Real brokers of our own on 127.0.0.1: RabbitMQ and Redis; both may be killed, and started again on the same data."""

import secrets
import shutil
import signal
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Self

from redis.asyncio import Redis

from tests.support.account import Account
from tests.support.binaries import rabbitmq_programs, redis_program
from tests.support.server import ServerProcess, free_port

_USER: Final = "shoal"
# The first start on a cold disk reads a thousand files of Erlang code.
_START_SECONDS: Final = 180.0


class _Broker:
    """A server in a temporary folder, gone when we are gone."""

    def __init__(self) -> None:
        self.port = free_port()
        self.password = secrets.token_hex(8)
        self._account = Account.unprivileged()
        self._folder: Path | None = None
        self._process: ServerProcess | None = None

    @property
    def log(self) -> Path:
        return self._home / "server.log"

    def start(self) -> None:
        """Start and wait until it answers; the data of the last start are kept."""
        command = self._command()
        process = ServerProcess(command, account=self._account, folder=self._home, farewell=signal.SIGKILL)
        process.wait_until(self._answers, _START_SECONDS)
        self._process = process

    def kill(self) -> None:
        """As `kill -9` or a power failure of the broker does; clients see their connections reset."""
        if self._process is not None:
            self._process.stop(signal.SIGKILL)
            self._process = None

    def restart(self) -> None:
        self.kill()
        self.start()

    def remove(self) -> None:
        """Kill it, and delete the files."""
        self.kill()
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
    def _home(self) -> Path:
        if self._folder is None:
            self._folder = self._account.scratch_folder("shoal-broker-")
        return self._folder

    def _command(self) -> list[str]:
        raise NotImplementedError

    def _answers(self) -> bool:
        raise NotImplementedError

    def _ask(self, question: bytes) -> bytes:
        """The first bytes of an answer over a connection of its own; nothing when there is none."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=5) as client:
                client.sendall(question)
                return client.recv(64)
        except OSError:
            return b""


class RabbitServer(_Broker):
    """A RabbitMQ without plugins, with an Erlang port mapper of its own, so that no other node is met."""

    def __init__(self) -> None:
        super().__init__()
        self._mapper_port = free_port()
        self._node_port = free_port()
        self._mapper: ServerProcess | None = None

    def start(self) -> None:
        mapper = str(rabbitmq_programs().mapper)
        if self._mapper is None:
            self._write_config()
            self._mapper = ServerProcess(
                [mapper, "-port", str(self._mapper_port), "-address", "127.0.0.1"],
                account=self._account,
                folder=self._home,
                farewell=signal.SIGKILL,
            )
        super().start()

    def remove(self) -> None:
        self.kill()
        if self._mapper is not None:
            self._mapper.stop(signal.SIGKILL)
            self._mapper = None
        super().remove()

    def url(self, query: str = "", *, port: int | None = None, password: bool = True) -> str:
        """The address of the default virtual host, with a query such as `queue=urls`."""
        login = f"{_USER}:{self.password}" if password else _USER
        return f"amqp://{login}@127.0.0.1:{port or self.port}/{f'?{query}' if query else ''}"

    def wait_until_written(self, queue: str) -> None:
        """Wait until a queue is on disk: RabbitMQ answers its declaration up to some seconds before.

        Its name comes first; the end of the log, which says that the queue is valid, may still be in memory then.
        """
        deadline = time.monotonic() + _START_SECONDS
        while not any(
            path.suffix in (".LOG", ".DCL", ".DCD") and queue.encode() in path.read_bytes()
            for path in (self._home / "data").rglob("*")
        ):
            assert time.monotonic() < deadline, f"{queue} is not on disk"
            time.sleep(0.05)
        self.control("eval", "ok = mnesia:sync_log(), mnesia:dump_log().")

    def control(self, *arguments: str) -> str:
        """Run `rabbitmqctl`; it takes about two seconds."""
        done = self._account.run(
            [*self._environment(), str(rabbitmq_programs().control), "--node", self._node, *arguments]
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    @property
    def _node(self) -> str:
        return f"shoal-{self.port}@localhost"

    def _write_config(self) -> None:
        lines = {
            "default_user": _USER,
            "default_pass": self.password,
            "disk_free_limit.absolute": "1MB",
            "log.console": "true",
            "log.console.level": "warning",
            "log.file": "false",
        }
        config = self._home / "rabbitmq.conf"
        config.write_text("".join(f"{name} = {value}\n" for name, value in lines.items()))
        self._account.give(config)

    def _environment(self) -> list[str]:
        home = self._home
        return _env(
            {
                "HOME": str(home),
                "LANG": "C.UTF-8",
                "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                "ERL_EPMD_ADDRESS": "127.0.0.1",
                "ERL_EPMD_PORT": str(self._mapper_port),
                "RABBITMQ_NODENAME": self._node,
                "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
                "RABBITMQ_NODE_PORT": str(self.port),
                "RABBITMQ_DIST_PORT": str(self._node_port),
                "RABBITMQ_MNESIA_BASE": str(home / "data"),
                "RABBITMQ_LOG_BASE": str(home / "logs"),
                "RABBITMQ_CONFIG_FILE": str(home / "rabbitmq"),
                "RABBITMQ_CONF_ENV_FILE": str(home / "no-such-file"),
                "RABBITMQ_ENABLED_PLUGINS_FILE": str(home / "plugins"),
                "RABBITMQ_PID_FILE": str(home / "pid"),
                "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
                # Makes the start script exec Erlang instead of waiting beside it: our signals reach the broker.
                "RUNNING_UNDER_SYSTEMD": "true",
            }
        )

    def _command(self) -> list[str]:
        return [*self._environment(), str(rabbitmq_programs().server)]

    def _answers(self) -> bool:
        # The answer to a protocol header is a method frame.
        return self._ask(b"AMQP\x00\x00\x09\x01").startswith(b"\x01")


class RedisServer(_Broker):
    """A Redis that writes everything to its log before it answers; `settings` are further ones by name."""

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self._settings = dict(settings or {})

    def client(self, **options: Any) -> Redis:
        """A client that waits for a busy machine."""
        return Redis.from_url(self.url(), socket_timeout=60, socket_connect_timeout=60, **options)

    def url(self, query: str = "", *, port: int | None = None, password: bool = True) -> str:
        """The address of database 0, with a query such as `stream=urls`."""
        login = f":{self.password}@" if password else ""
        return f"redis://{login}127.0.0.1:{port or self.port}/0{f'?{query}' if query else ''}"

    def _command(self) -> list[str]:
        settings = {
            "bind": "127.0.0.1",
            "port": str(self.port),
            "dir": str(self._home),
            "requirepass": self.password,
            "appendonly": "yes",
            "appendfsync": "always",
            "save": "",
            **self._settings,
        }
        options = [option for name, value in settings.items() for option in (f"--{name}", value)]
        return [str(redis_program()), *options]

    def _answers(self) -> bool:
        # While it reads its log, it answers LOADING.
        login = f"AUTH {self.password}\r\nPING\r\n".encode()
        return b"PONG" in self._ask(login)


def _env(variables: Mapping[str, str]) -> list[str]:
    """What to put before a command, so that it runs with these variables and no others."""
    return ["/usr/bin/env", "-i", *(f"{name}={value}" for name, value in variables.items())]
