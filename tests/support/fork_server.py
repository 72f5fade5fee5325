"""Starts `shoal` commands by fork, from a process that has imported everything: no test pays for Python's start-up.

A forked command is a process of its own: pid, session, signals, streams, working directory, environment and exit code
are those of a command that a shell starts. Two things differ. Variables that Python or a C library reads at start-up
have no effect; `start` uses exec for those. And commands of one server share the seed of `hash()`.

Workers, slots and members that a forked command starts are forked by the same server.

Protocol, on SOCK_SEQPACKET sockets: a request is JSON with four descriptors (answer socket, stdin, stdout, stderr). On
the answer socket the server sends the pid with a pidfd, and later the exit code.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from runpy import run_module
from tempfile import TemporaryFile
from typing import Any, NoReturn, Protocol

REPOSITORY = Path(__file__).resolve().parents[2]
COMMAND = [str(Path(sys.executable).with_name("shoal"))]
EXEC_VARIABLES = ("PYTHON", "LC_", "LANG", "LD_", "MALLOC_", "SSL_")
_MAX_REQUEST = 200_000
_STREAMS = ("stdin", "stdout", "stderr")
_CHILD_MODULE = "shoal.fleet.parent_watch"
# Its first entry of sys.path is free for the path that commands expect there.
_SERVER = """
import sys
sys.path.insert(1, sys.argv[1])
from tests.support import fork_server
del sys.path[1]
fork_server.main()
"""
# What no command imports, or few and slowly.
_NOT_IMPORTED = ("shoal.testing", "shoal.templates.", "shoal.notify.apprise_process", _CHILD_MODULE)


class Process(Protocol):
    """The part of `subprocess.Popen` that forked commands have too."""

    @property
    def pid(self) -> int: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, sig: int) -> None: ...
    def kill(self) -> None: ...


def start(
    arguments: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    *,
    stdin: int = subprocess.DEVNULL,
    stdout: int,
    stderr: int,
    entry: tuple[str, ...] = (),
    fresh: bool = False,
) -> Process:
    """Start `shoal` with these arguments in a session of its own.

    `entry` is a command that runs the one behind it on another node. `fresh` starts a new interpreter, by exec.
    """
    if fresh or not _can_fork(environment):
        return subprocess.Popen(
            [*at(entry, folder), *COMMAND, *arguments],
            cwd=folder,
            env=dict(environment),
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )
    prepare(entry)
    return _servers[entry].start(arguments, folder, environment, (stdin, stdout, stderr))


def _can_fork(environment: Mapping[str, str]) -> bool:
    """Shoal reads PYTHONUNBUFFERED itself, in whatever way it was started."""
    names = environment.keys() - {"PYTHONUNBUFFERED"}
    return hasattr(os, "pidfd_open") and not any(name.startswith(EXEC_VARIABLES) for name in names)


def prepare(entry: tuple[str, ...] = ()) -> None:
    """Start the server of a node, unless it runs. It needs a second or so; commands wait for it."""
    if entry not in _servers:
        _servers[entry] = ForkServer(entry)


def at(entry: tuple[str, ...], folder: Path) -> tuple[str, ...]:
    """What is put before a command to run it on the node, in this folder as the node sees it."""
    return (*entry, "env", f"--chdir={folder}") if entry else ()


def run(
    arguments: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    *,
    stdin: str = "",
    timeout: float = 60.0,
    fresh: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run `shoal` to its end and return its output, as `subprocess.run` does."""
    with TemporaryFile() as given, TemporaryFile() as out, TemporaryFile() as err:
        given.write(stdin.encode())
        given.seek(0)
        process = start(
            arguments,
            folder,
            environment,
            stdin=given.fileno() if stdin else subprocess.DEVNULL,
            stdout=out.fileno(),
            stderr=err.fileno(),
            fresh=fresh,
        )
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        for file in (out, err):
            file.seek(0)
        texts = (file.read().decode().replace("\r\n", "\n") for file in (out, err))
        return subprocess.CompletedProcess([*COMMAND, *arguments], code, *texts)


def stop() -> None:
    """End the servers. Commands that still run are not affected."""
    while _servers:
        _servers.popitem()[1].close()


class ForkedProcess:
    """A process that the server has forked for us."""

    def __init__(self, pid: int, pidfd: int, answers: socket.socket) -> None:
        self.pid = pid
        self._pidfd = pidfd
        self._answers = answers
        self._code: int | None = None

    def fileno(self) -> int:
        """A descriptor that can be read once the process has ended."""
        return self._answers.fileno()

    def poll(self) -> int | None:
        return self._read_code(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._read_code(None if timeout is None else timeout * 1000)
        if code is None:
            raise subprocess.TimeoutExpired(COMMAND, timeout or 0.0)
        return code

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has ended; its exit code is on the way
                signal.pidfd_send_signal(self._pidfd, sig)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _read_code(self, milliseconds: float | None) -> int | None:
        if self._code is None:
            poll = select.poll()
            poll.register(self._answers, select.POLLIN)
            if poll.poll(milliseconds):
                answer = self._answers.recv(64)
                self._answers.close()
                os.close(self._pidfd)
                if not answer:
                    raise RuntimeError("the fork server ended before the command did")
                self._code = int(answer)
        return self._code


class ForkServer:
    """The server, seen from the process that uses it."""

    def __init__(self, entry: tuple[str, ...]) -> None:
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [*entry, sys.executable, "-c", _SERVER, str(REPOSITORY), str(theirs.fileno())],
                cwd="/",
                env={"PATH": os.environ["PATH"]},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

    def start(
        self, arguments: Sequence[str], folder: Path, environment: Mapping[str, str], streams: Sequence[int]
    ) -> ForkedProcess:
        return _request(self._requests, None, arguments, folder, environment, streams)

    def close(self) -> None:
        self._requests.close()
        self._process.wait()


# Of this test process, by the entry of their node; started on first use.
_servers: dict[tuple[str, ...], ForkServer] = {}


def _request(
    requests: socket.socket,
    module: str | None,
    arguments: Sequence[str],
    folder: Path | str,
    environment: Mapping[str, str],
    streams: Sequence[int],
) -> ForkedProcess:
    """Ask for a process that runs a module, or the command `shoal` when `module` is None."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    # JSON escapes everything but ASCII, lone surrogates of undecodable bytes included.
    request = json.dumps([module, list(arguments), str(folder), dict(environment)]).encode()
    with theirs, open(os.devnull, "rb") as nothing:
        given = [nothing.fileno() if stream == subprocess.DEVNULL else stream for stream in streams]
        try:
            socket.send_fds(requests, [request], [theirs.fileno(), *given])
        except BrokenPipeError:
            raise RuntimeError("the fork server has ended; what it printed says why") from None
    pid, fds, _, _ = socket.recv_fds(ours, 64, 1)
    if not fds:
        raise RuntimeError("the fork server could not start the command")
    return ForkedProcess(int(pid), fds[0], ours)


# The server's side


def serve(requests: socket.socket) -> None:
    """Fork for each request until the tests, which hold the other end of `requests`, are gone."""
    wake_out, wake_in = os.pipe()
    for descriptor in (wake_out, wake_in):
        os.set_blocking(descriptor, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_in)
    clients = [requests]  # the tests, and each command that runs: it may start others
    running: dict[int, socket.socket] = {}
    while True:
        sources: list[Any] = [wake_out, *clients]
        ready, _, _ = select.select(sources, [], [])
        if wake_out in ready:
            os.read(wake_out, 4096)
            _report_exits(running)
        for client in [client for client in clients if client in ready]:
            request, fds, _, _ = socket.recv_fds(client, _MAX_REQUEST, 4)
            if request:
                clients.append(_fork(json.loads(request), fds, running))
            elif client is requests:
                return
            else:
                clients.remove(client)
                client.close()


def _report_exits(running: dict[int, socket.socket]) -> None:
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        with running.pop(pid) as answers, suppress(OSError):  # the process that started it may be gone
            answers.send(str(os.waitstatus_to_exitcode(status)).encode())


def _fork(request: list[Any], fds: list[int], running: dict[int, socket.socket]) -> socket.socket:
    """Start a process for a request. Returns our end of its connection: it may ask for processes, too."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid == 0:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        _become(request, fds[1:], theirs.detach())
    theirs.close()
    for descriptor in fds[1:]:
        os.close(descriptor)
    answers = running[pid] = socket.socket(fileno=fds[0])
    pidfd = os.pidfd_open(pid)
    with suppress(OSError):  # the process that asked may be gone
        socket.send_fds(answers, [str(pid).encode()], [pidfd])
    os.close(pidfd)
    return ours


def _become(request: list[Any], streams: list[int], server: int) -> NoReturn:
    """Turn the forked process into the command, and run it to its end."""
    module, arguments, folder, environment = request
    os.setsid()
    # As exec leaves them, and as an interpreter sets them: the tests may run where SIGINT is ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.dup2(server, 3, inheritable=False)
    os.closerange(4, 1024)
    for number, name in enumerate(_STREAMS):
        _reopen(number, name)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    asyncio.create_subprocess_exec = _Children(socket.socket(fileno=3)).start  # type: ignore[assignment]
    if module is not None:
        sys.path[0] = folder
        sys.argv = [module, *arguments]
        run_module(module, run_name="__main__", alter_sys=True)
        sys.exit()
    sys.path[0] = str(Path(COMMAND[0]).parent)
    sys.argv = [*COMMAND, *arguments]
    from shoal.cli.main import main

    sys.exit(main())


def _reopen(number: int, name: str) -> None:
    """Open a standard stream as the interpreter does at start-up."""
    old = getattr(sys, name)
    new = open(  # noqa: SIM115 - open as long as the process lives
        number,
        "r" if name == "stdin" else "w",
        encoding=old.encoding,
        errors=old.errors,
        buffering=1 if name == "stderr" else -1,
        closefd=False,
    )
    setattr(sys, name, new)
    setattr(sys, f"__{name}__", new)


class _Children:
    """`asyncio.create_subprocess_exec` of a forked command: asks the server for another `shoal`."""

    def __init__(self, server: socket.socket) -> None:
        self._server = server
        self._exec = asyncio.create_subprocess_exec

    async def start(self, program: str, *arguments: str, **options: Any) -> Any:
        environment = options.get("env") or os.environ
        module = arguments[1] if (program, arguments[0]) == (sys.executable, "-m") else None
        inherits = not options.keys() >= {*_STREAMS}
        if module not in (_CHILD_MODULE, "shoal") or inherits or not _can_fork(environment):
            return await self._exec(program, *arguments, **options)
        streams = [options[name] if isinstance(options[name], int) else options[name].fileno() for name in _STREAMS]
        return _Child(_request(self._server, module, arguments[2:], os.getcwd(), environment, streams))


class _Child:
    """The part of `asyncio.subprocess.Process` that Shoal uses."""

    def __init__(self, process: ForkedProcess) -> None:
        self._process = process
        self.pid = process.pid
        self._ended = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().add_reader(process.fileno(), self._end)

    @property
    def returncode(self) -> int | None:
        return self._ended.result() if self._ended.done() else None

    def send_signal(self, sig: int) -> None:
        if self._ended.done():
            raise ProcessLookupError
        self._process.send_signal(sig)

    async def wait(self) -> int:
        code: int = await asyncio.shield(self._ended)
        return code

    def _end(self) -> None:
        asyncio.get_running_loop().remove_reader(self._process.fileno())
        self._ended.set_result(self._process.wait())


def import_everything() -> None:
    """Import what commands import sooner or later. No import may start a thread: that would not survive a fork."""
    from importlib import import_module

    import shoal

    package = Path(shoal.__file__).parent
    for file in sorted(package.rglob("*.py")):
        if not (file.parent / "__init__.py").exists():
            continue  # a file for users to copy
        name = ".".join(("shoal", *file.relative_to(package).with_suffix("").parts)).removesuffix(".__init__")
        if not name.startswith(_NOT_IMPORTED) and not name.endswith("__main__"):
            import_module(name)
    for name in ("aiohttp", "asyncpg", "lxml.html", "rich.live", "uvloop"):
        import_module(name)
    with suppress(ImportError):
        import_module("typer._adapters")  # newer versions import it, and pydantic, when they parse an option


def main() -> None:
    """Be the server."""
    import_everything()
    assert len(os.listdir("/proc/self/task")) == 1, "an import has started a thread"
    gc.collect()
    gc.freeze()
    serve(socket.socket(fileno=int(sys.argv[2])))
