"""Child processes: the one way to start, watch and stop another `shoal` command, within limits.

A background child has a session of its own, so Ctrl-C at the terminal does not reach it, and is tied to this process by
a pipe (`parent_watch`): when this process is gone, however it ended, the child drains and exits. A foreground child
shares the terminal and receives Ctrl-C there. `ProcessLimits` ends a child that takes too long or too much memory.
"""

from __future__ import annotations

import asyncio
import math
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Container, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import msgspec

from shoal.config.settings import ENV_PREFIX, NAMES
from shoal.errors import EXIT_INTERRUPTED

POLL_SECONDS = 0.5
PROGRESS_POLL_SECONDS = 2.0
_MEGABYTE = 1 << 20
# A child gets its drain time to finish running items, and this long to exit after that.
EXIT_SECONDS = 10.0
# Exit codes: stopped by a signal; the system could not start the process (named so in sysexits.h).
EX_OSERR = 71
# What an operator is told at the first and at the second signal.
DRAINING = "Stopping: running items are finished, the rest is returned. Press Ctrl-C again to stop at once."
STOPPING_NOW = "Returning the running items."
_STDERR = 2


class ProcessLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds that it may take, seconds that it may go without progress, megabytes that it may use."""

    timeout: float
    stale: float
    memory: int


class ProcessExit(msgspec.Struct, frozen=True, kw_only=True):
    """`code`: the exit code, negative for a signal. `limit`: which limit was exceeded, if one was."""

    code: int
    limit: str | None = None


async def wait_within_limits(
    child: ChildProcess,
    limits: ProcessLimits,
    memory: SessionMemory,
    seconds_without_progress: Callable[[], Awaitable[float | None]],
) -> ProcessExit:
    """Wait for its end; a child that exceeds a limit is stopped, one that uses too much memory is killed at once.

    `seconds_without_progress` returns None while the child has no run. Cancelling leaves the child alone.
    """
    began = asked_at = time.monotonic()
    exceeded: str | None = None
    ending = asyncio.create_task(child.wait())
    try:
        while not ending.done():
            await asyncio.wait((ending,), timeout=POLL_SECONDS)
            if exceeded is not None or ending.done():
                continue
            now = time.monotonic()
            if now - began > limits.timeout:
                exceeded = f"timed out after {limits.timeout:g} s"
            elif (used := await memory.used_by(child.pid) // _MEGABYTE) > limits.memory:
                exceeded = f"used {used} MB of memory, more than the {limits.memory} MB it may"
                child.kill()  # while it drained, it would go on growing
                continue
            elif now - began > limits.stale and now - asked_at > PROGRESS_POLL_SECONDS:
                asked_at = now
                quiet = await seconds_without_progress()
                if quiet is None or quiet > limits.stale:
                    exceeded = f"made no progress for {limits.stale:g} s"
            if exceeded is not None:
                child.stop()
        return ProcessExit(code=ending.result(), limit=exceeded)
    finally:
        ending.cancel()


class SessionMemory:
    """Memory by process session. One reading of the process table serves everybody who asks within half a second."""

    def __init__(self) -> None:
        self._used: dict[int, int] = {}
        self._read_at = -math.inf
        self._reading: asyncio.Task[None] | None = None

    async def used_by(self, session: int) -> int:
        """Bytes that the processes of a session hold together; 0 where the system has no /proc."""
        if time.monotonic() - self._read_at >= POLL_SECONDS:
            if self._reading is None or self._reading.done():
                self._reading = asyncio.create_task(self._read())
            await asyncio.shield(self._reading)
        return self._used.get(session, 0)

    async def _read(self) -> None:
        # Reading the table takes milliseconds, more on a machine with many processes: too long for the event loop.
        self._used = await asyncio.to_thread(memory_by_session)
        self._read_at = time.monotonic()


def memory_by_session() -> dict[int, int]:
    """Bytes of memory by session, of all processes of this machine; empty where the system has no /proc."""
    pages: dict[int, int] = {}
    try:
        names = [name for name in os.listdir("/proc") if name.isdecimal()]
    except OSError:
        return {}
    for name in names:
        try:
            with open(f"/proc/{name}/stat", "rb", buffering=0) as file:
                fields = file.read(4096).rpartition(b")")[2].split()
        except OSError:
            continue  # it has ended meanwhile
        session = int(fields[3])
        pages[session] = pages.get(session, 0) + int(fields[21])
    page = os.sysconf("SC_PAGE_SIZE")
    return {session: count * page for session, count in pages.items()}


class ChildCommand(msgspec.Struct, frozen=True, kw_only=True):
    """What to start: `shoal` with these arguments.

    `log`: the file that its output is appended to; None starts it in the foreground, on this process's terminal.
    `stop_timeout`: seconds from the first `stop` to SIGKILL, and from the end of this process to the child's.
    """

    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    stop_timeout: float
    log: Path | None = None


class ChildProcess:
    """One process of a command, started once. `on_kill` is called when it is killed because it did not stop in time."""

    def __init__(self, command: ChildCommand, *, on_kill: Callable[[], None] | None = None) -> None:
        self._command = command
        self._on_kill = on_kill
        self._process: asyncio.subprocess.Process | None = None
        self._parent_pipe: int | None = None
        self._kill_timer: asyncio.TimerHandle | None = None
        self.stop_requested = False

    @property
    def pid(self) -> int:
        """Of a child that was started."""
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def start(self, stdout: IO[bytes] | None = None) -> None:
        """Raises OSError. `stdout` replaces the log file for standard output. A `stop` from before takes effect now."""
        if self._command.log is None:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "shoal", *self._command.arguments), env=self._command.environment
            )
        else:
            with self._command.log.open("ab") as log:
                self._process = await self._start_in_background(stdout or log, log)
        if self.stop_requested:
            self._send_signal(signal.SIGTERM)
            self._kill_after(self._command.stop_timeout)

    def stop(self, *, notify: bool = True) -> None:
        """The first call drains the child (SIGTERM), each further one makes it give back what runs (SIGINT).

        It is killed `stop_timeout` seconds after the first. `notify=False`: the terminal has sent it a signal already.
        """
        if self._process is not None and not self.is_running:
            return
        first, self.stop_requested = not self.stop_requested, True
        if self._process is None:
            return
        # A child counts both signals alike, but two equal ones that arrive close together would count as one.
        if first and notify:
            self._send_signal(signal.SIGTERM)
        elif not first:
            self._send_signal(signal.SIGINT)
        if first:
            self._kill_after(self._command.stop_timeout)

    def stop_within(self, seconds: float) -> None:
        """Make it give back what runs (SIGINT), and kill it after so many seconds."""
        if self.is_running:
            self.stop_requested = True
            self._send_signal(signal.SIGINT)
            self._kill_after(seconds)

    def kill(self) -> None:
        """At once; a background child with all processes that it has started."""
        if not self.is_running:
            return
        if self._command.log is None:
            self._send_signal(signal.SIGKILL)
        else:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    async def wait(self) -> int:
        """Its exit code; negative for the signal that killed it. Processes that it left behind are killed."""
        assert self._process is not None
        code = await self._process.wait()
        if self._kill_timer is not None:
            self._kill_timer.cancel()
        if self._parent_pipe is not None:
            os.close(self._parent_pipe)
            self._parent_pipe = None
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
        return code

    async def _start_in_background(self, stdout: IO[bytes], stderr: IO[bytes]) -> asyncio.subprocess.Process:
        # Not a pipe of asyncio: it would stay open for grandchildren that have inherited its other end.
        child_stdin, parent_pipe = os.pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "shoal.fleet.parent_watch", str(self._command.stop_timeout)),
                *self._command.arguments,
                stdin=child_stdin,
                stdout=stdout,
                stderr=stderr,
                env=self._command.environment,
                start_new_session=True,
            )
        except BaseException:
            os.close(parent_pipe)
            raise
        finally:
            os.close(child_stdin)
        self._parent_pipe = parent_pipe
        return process

    def _send_signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)

    def _kill_after(self, seconds: float) -> None:
        if self._kill_timer is not None:
            self._kill_timer.cancel()
        self._kill_timer = asyncio.get_running_loop().call_later(seconds, self._kill_late)

    def _kill_late(self) -> None:
        if self._on_kill is not None and self.is_running:
            self._on_kill()
        self.kill()


async def start_detached(arguments: tuple[str, ...], environment: Mapping[str, str], log: Path) -> DetachedProcess:
    """Start `shoal` with these arguments in a session of its own: it goes on when this process ends. Raises OSError."""
    with log.open("ab") as output:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "shoal", *arguments),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
            start_new_session=True,
        )
    return DetachedProcess(process)


class DetachedProcess:
    """A process that `start_detached` started, as long as its starter lives."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative for a signal."""
        return self._process.returncode


def machine_identity() -> str:
    """This machine since its start and, in a container, this container: where a pid means the same process."""
    return f"{_read_text('/proc/sys/kernel/random/boot_id')}:{_link('/proc/self/ns/pid')}"


def process_identity(pid: int) -> str | None:
    """A text that no other process ever has, also when the pid is used again; None when there is no such process."""
    if (started := _process_start(pid)) is None:
        return None
    return f"{machine_identity()}:{started}"


def _process_start(pid: int) -> str | None:
    """When the process began, in clock ticks since boot, or as `ps` writes it; None for one that has exited."""
    if os.path.isdir("/proc/self"):
        fields = _read_text(f"/proc/{pid}/stat").rpartition(")")[2].split()
        return None if not fields or fields[0] in "ZX" else fields[19]
    import subprocess

    told = subprocess.run(["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    state, _, started = told.stdout.strip().partition(" ")
    return None if not started or state.startswith("Z") else started.strip()


def _read_text(path: str) -> str:
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:
        return ""


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def child_environment(
    overrides: Mapping[str, str | None], *, ledger: str | None, exclude: Container[str] = ()
) -> dict[str, str]:
    """This process's environment with the settings that flags gave as variables, without those in `exclude`.

    `ledger`: the one that children must use; None leaves it to their settings. Variables, because a command line can be
    read by everybody on the machine.
    """
    given = {name: value for name, value in overrides.items() if name in NAMES and name not in exclude}
    if ledger is not None:
        given["ledger"] = ledger
    return {
        **os.environ,
        **setting_variables(given),
        ENV_PREFIX + "LOG_DIR": "",  # each child writes to a log file already
        "PYTHONUNBUFFERED": "1",
    }


def setting_variables(values: Mapping[str, str | bool | None]) -> dict[str, str]:
    """The environment variables of settings that have a value."""
    texts = {name: ("yes" if value else "no") if isinstance(value, bool) else value for name, value in values.items()}
    return {ENV_PREFIX + name.upper(): text for name, text in texts.items() if text is not None}


@contextmanager
def stop_on_signals(
    stop: Callable[[], None], notify: Callable[[str], None], reload: Callable[[], None] | None = None
) -> Iterator[None]:
    """Call `stop` at the first and second SIGINT or SIGTERM, which drain and give back; the third ends this process.

    SIGHUP calls `reload`, or `stop` when there is none or the terminal is gone. `notify` gets a sentence for each.
    """
    on_stop = _escalating((DRAINING, STOPPING_NOW), stop, notify)
    had_terminal = os.isatty(_STDERR)

    def on_hangup() -> None:
        if reload is None or (had_terminal and not os.isatty(_STDERR)):
            stop()
        else:
            reload()

    with _signal_handlers({signal.SIGINT: on_stop, signal.SIGTERM: on_stop, signal.SIGHUP: on_hangup}):
        yield


@contextmanager
def give_up_on_signals(give_up: Callable[[], None], notify: Callable[[str], None]) -> Iterator[None]:
    """While children that were stopped are waited for: one more SIGINT or SIGTERM calls `give_up`, the next exits."""
    on_stop = _escalating((STOPPING_NOW,), give_up, notify)
    with _signal_handlers({signal.SIGINT: on_stop, signal.SIGTERM: on_stop}):
        yield


def _escalating(texts: tuple[str, ...], stop: Callable[[], None], notify: Callable[[str], None]) -> Callable[[], None]:
    remaining = iter(texts)

    def on_stop() -> None:
        text = next(remaining, None)
        if text is None:
            os._exit(EXIT_INTERRUPTED)  # the children notice that this process is gone, and exit
        notify(text)
        stop()

    return on_stop


@contextmanager
def _signal_handlers(handlers: Mapping[signal.Signals, Callable[[], None]]) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    for number, handler in handlers.items():
        loop.add_signal_handler(number, handler)
    try:
        yield
    finally:
        for number in handlers:
            loop.remove_signal_handler(number)
