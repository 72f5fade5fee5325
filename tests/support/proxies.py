"""Real proxies of our own on loopback, each with a source address of its own: microsocks, tinyproxy, squid.

A site on loopback sees a proxy's requests come from that address (`Visit.peer`), so that it can tell exits apart.
"""

import itertools
import random
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar, Final, Self

from shoal.model.egress import ProxyAddress, ProxyScheme
from tests.support import MissingPartError
from tests.support.account import Account
from tests.support.binaries import proxy_program, squid_programs
from tests.support.server import ServerProcess, free_port

# One network per test process: processes beside each other do not share a source address.
_SOURCES: Final = (
    f"127.{network}.{third}.{fourth}"
    for network in itertools.repeat(random.SystemRandom().randint(16, 250))
    for third in range(1, 255)
    for fourth in range(1, 255)
)


def new_source() -> str:
    """An address of 127.0.0.0/8 that no other proxy of these tests has."""
    return next(_SOURCES)


class RealProxy:
    """A proxy in a temporary folder, listening on its own source address; gone when we are gone.

    `login`: it wants a user name and a password (made up here). `hosts`: addresses by name that only this proxy can
    resolve. It may be stopped, killed and started again; the port stays.
    """

    scheme: ClassVar[ProxyScheme] = "http"
    farewell: ClassVar[signal.Signals] = signal.SIGKILL

    def __init__(
        self, *, source: str | None = None, login: bool = False, hosts: Mapping[str, str] | None = None
    ) -> None:
        self.source = source or new_source()
        self.port = free_port()
        self.username = "fish" if login else ""
        self.password = f"pw-{secrets.token_hex(8)}" if login else ""
        self._hosts = dict(hosts or {})
        self._account = Account.unprivileged()
        self._folder: Path | None = None
        self._process: ServerProcess | None = None

    @property
    def address(self) -> ProxyAddress:
        return ProxyAddress(self.scheme, self.source, self.port, self.username, self.password)

    @property
    def url(self) -> str:
        """As a line of a proxy list, with the password."""
        login = f"{self.username}:{self.password}@" if self.username else ""
        return f"{self.scheme}://{login}{self.source}:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> str:
        """What it has printed so far."""
        return (self._home / "server.log").read_text(errors="replace")

    def start(self) -> None:
        """Start it and wait until it listens."""
        process = ServerProcess(
            [*self._resolving(), *self.command()],
            account=self._account,
            folder=self._home,
            farewell=self.farewell,
        )
        process.wait_until(self.is_listening)
        self._process = process

    def stop(self, how: signal.Signals = signal.SIGKILL) -> None:
        """End it, by default as `kill -9` does: its clients see their connections closed, and then refused."""
        if self._process is not None:
            self._process.stop(how)
            self._process = None

    def remove(self) -> None:
        """End it, and delete the files."""
        self.stop(self.farewell)
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

    def is_listening(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((self.source, self.port)) == 0

    def command(self) -> list[str]:
        raise NotImplementedError

    @property
    def _home(self) -> Path:
        if self._folder is None:
            self._folder = self._account.scratch_folder("shoal-proxy-")
        return self._folder

    def _write(self, name: str, text: str) -> Path:
        path = self._home / name
        path.write_text(text)
        self._account.give(path)
        return path

    def _write_hosts(self) -> Path:
        return self._write("hosts", "".join(f"{address} {name}\n" for name, address in self._hosts.items()))

    def _resolving(self) -> list[str]:
        """What to put before the command, so that it alone sees another /etc/hosts."""
        if not self._hosts:
            return []
        script = f'mount --bind {shlex.quote(str(self._write_hosts()))} /etc/hosts && exec "$@"'
        probe = self._account.run(["unshare", "-rm", "sh", "-c", script, "sh", "true"])
        if probe.returncode != 0:
            raise MissingPartError(f"this machine allows no user namespaces: {probe.stdout.strip()}")
        return ["unshare", "-rm", "sh", "-c", script, "sh"]


class MicroSocks(RealProxy):
    """SOCKS5. It resolves names itself, and answers "general failure" for those that do not exist."""

    scheme = "socks5"

    def command(self) -> list[str]:
        login = ["-u", self.username, "-P", self.password] if self.username else []
        return [str(proxy_program("microsocks")), "-i", self.source, "-p", str(self.port), *login, "-b", self.source]


class TinyProxy(RealProxy):
    """HTTP and CONNECT to any port; adds a Via header."""

    def command(self) -> list[str]:
        lines = {
            "Port": str(self.port),
            "Listen": self.source,
            "Bind": self.source,
            "Timeout": "60",
            "MaxClients": "200",
            "LogLevel": "Connect",
            "DisableViaHeader": "No",
        }
        if self.username:
            lines["BasicAuth"] = f"{self.username} {self.password}"
        config = self._write("tinyproxy.conf", "".join(f"{name} {value}\n" for name, value in lines.items()))
        return [str(proxy_program("tinyproxy")), "-d", "-c", str(config)]


class Squid(RealProxy):
    """HTTP and CONNECT to any port, with Basic authentication; it tells sites the client's address in its headers."""

    farewell = signal.SIGTERM  # it removes its shared memory

    def stop(self, how: signal.Signals = signal.SIGKILL) -> None:
        super().stop(signal.SIGKILL)  # its own way takes a second
        for file in Path("/dev/shm").glob(f"shoal{self.port}-*"):
            file.unlink()

    def command(self) -> list[str]:
        programs = squid_programs()
        home = self._home
        lines = [
            f"http_port {self.source}:{self.port}",
            f"tcp_outgoing_address {self.source}",
            f"pid_filename {home / 'squid.pid'}",
            f"coredump_dir {home}",
            f"cache_log {home / 'cache.log'}",
            "access_log none",
            "cache deny all",
            "cache_mem 1 MB",
            "pinger_enable off",
            "shutdown_lifetime 0 seconds",
            "forward_max_tries 1",
        ]
        if self._account.uid is not None:
            lines += ["cache_effective_user nobody", "cache_effective_group nogroup"]
        if self._hosts:
            lines.append(f"hosts_file {self._write_hosts()}")
        if self.username:
            hashed = subprocess.run(
                ["openssl", "passwd", "-apr1", "-stdin"],
                input=self.password,
                capture_output=True,
                text=True,
                check=True,
            ).stdout
            users = self._write("users", f"{self.username}:{hashed}")
            lines += [
                f"auth_param basic program {programs.basic_auth} {users}",
                "auth_param basic children 1",
                "acl known proxy_auth REQUIRED",
                "http_access allow known",
                "http_access deny all",
            ]
        else:
            lines.append("http_access allow all")
        config = self._write("squid.conf", "\n".join(lines) + "\n")
        # Its name for shared memory must be its own, or it refuses to run beside another squid.
        return [str(programs.squid), "-N", "-n", f"shoal{self.port}", "-f", str(config)]

    def _resolving(self) -> list[str]:
        return []


@contextmanager
def running(proxies: Sequence[RealProxy]) -> Iterator[None]:
    """All of them, started one after the other."""
    started: list[RealProxy] = []
    try:
        for proxy in proxies:
            started.append(proxy)
            proxy.start()
        yield
    finally:
        for proxy in started:
            proxy.remove()


class MicroSocksGroup:
    """Many microsocks with one keeper, which is cheaper; `addresses` has one for each. They end together."""

    def __init__(self, count: int) -> None:
        self.proxies = [MicroSocks() for _ in range(count)]
        self._account = Account.unprivileged()
        self._folder: Path | None = None
        self._process: ServerProcess | None = None

    @property
    def addresses(self) -> list[ProxyAddress]:
        return [proxy.address for proxy in self.proxies]

    def __enter__(self) -> Self:
        self._folder = self._account.scratch_folder("shoal-proxies-")
        starts = "\n".join(f'{shlex.join(proxy.command())} & pids="$pids $!"' for proxy in self.proxies)
        script = f"trap 'kill -9 $pids; wait; exit' TERM\n{starts}\nwait\n"
        self._process = ServerProcess(
            ["sh", "-c", script], account=self._account, folder=self._folder, farewell=signal.SIGTERM
        )
        self._process.wait_until(lambda: all(proxy.is_listening() for proxy in self.proxies))
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.stop(signal.SIGTERM)
        if self._folder is not None:
            shutil.rmtree(self._folder)
