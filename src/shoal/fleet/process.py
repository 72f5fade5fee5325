"""A `shoal` that another process starts and that leaves with it: a worker, a slot of a schedule, a member."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO


class Child:
    """A `shoal`. Tied to its parent it has a session of its own: what is typed at the terminal does not reach it."""

    def __init__(self, process: asyncio.subprocess.Process, parent_pipe: int | None) -> None:
        self._process = process
        self._parent_pipe = parent_pipe

    @property
    def pid(self) -> int:
        return self._process.pid

    def send_signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            self._process.send_signal(number)

    def kill(self) -> None:
        """At once, with all that it has started."""
        if self._parent_pipe is None:
            self.send_signal(signal.SIGKILL)
        elif self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    async def wait(self) -> int:
        """Its exit code; less than 0 is the signal that killed it."""
        code = await self._process.wait()
        if self._parent_pipe is not None:
            os.close(self._parent_pipe)
            self._parent_pipe = None
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)  # what it has started and left behind
        return code


class Launcher:
    """Starts the workers of one run. `target` is what `shoal worker` is told, `environment` what it finds.

    `stop_timeout`: seconds that a worker gets to leave when the pool is gone. `only`: workers take nothing but their
    own partitions.
    """

    def __init__(
        self,
        target: str,
        run_id: str,
        environment: Mapping[str, str],
        logs: Path,
        name: str,
        *,
        stop_timeout: float,
        only: bool = False,
    ) -> None:
        self._stop_timeout = stop_timeout
        self._only = only
        self._target = target
        self._run_id = run_id
        self._environment = environment
        self._logs = logs
        self._name = name

    def log_file(self, number: int) -> Path:
        return self._logs / f"{self._name}_worker_{number}.log"

    async def launch(self, number: int, partitions: Sequence[str]) -> Child:
        """Raises OSError when the machine refuses another process or the log file."""
        own = [*(f"--partition={name}" for name in partitions), *(["--only"] if self._only else [])]
        with self.log_file(number).open("ab") as log:
            return await start_child(
                ("worker", self._target, "--run-id", self._run_id, *own),
                self._environment,
                stdout=log,
                stderr=log,
                stop_timeout=self._stop_timeout,
            )


async def start_child(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    *,
    stdout: IO[bytes],
    stderr: IO[bytes],
    stop_timeout: float,
) -> Child:
    """A `shoal` with these arguments that drains when this process is gone, for at most `stop_timeout` seconds.

    Raises OSError.
    """
    # Not a pipe of asyncio's: that one would wait for grandchildren who have inherited its other end.
    child_stdin, parent_pipe = os.pipe()
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "shoal.fleet.parent_watch", str(stop_timeout), *arguments),
            stdin=child_stdin,
            stdout=stdout,
            stderr=stderr,
            env=environment,
            start_new_session=True,
        )
    except BaseException:
        os.close(parent_pipe)
        raise
    finally:
        os.close(child_stdin)
    return Child(process, parent_pipe)


async def start_foreground_child(arguments: Sequence[str], environment: Mapping[str, str]) -> Child:
    """A `shoal` with these arguments in the foreground: it has our terminal, and hears Ctrl-C as we do."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "shoal", *arguments, env=environment)
    return Child(process, None)
