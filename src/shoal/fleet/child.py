"""One worker process of a pool."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path


class Child:
    """A `shoal worker` in a session of its own: what is typed at the pool's terminal does not reach it."""

    def __init__(self, process: asyncio.subprocess.Process, tether: int) -> None:
        self._process = process
        self._tether = tether

    @property
    def pid(self) -> int:
        return self._process.pid

    def tell(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            self._process.send_signal(number)

    async def wait(self) -> int:
        """Its exit code; less than 0 is the signal that killed it."""
        code = await self._process.wait()
        os.close(self._tether)
        return code


class Launcher:
    """Starts the workers of one run. `target` is what `shoal worker` is told, `environment` what it finds."""

    def __init__(self, target: str, run_id: str, environment: Mapping[str, str], logs: Path, name: str) -> None:
        self._target = target
        self._run_id = run_id
        self._environment = environment
        self._logs = logs
        self._name = name

    def log_file(self, number: int) -> Path:
        return self._logs / f"{self._name}_worker_{number}.log"

    async def launch(self, number: int, partitions: Sequence[str]) -> Child:
        """Raises OSError when the machine refuses another process or the log file."""
        own = [f"--partition={name}" for name in partitions]
        # Not a pipe of asyncio's: that one would wait for grandchildren who have inherited its other end.
        end_of_child, tether = os.pipe()
        try:
            with self.log_file(number).open("ab") as log:
                process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    *("-m", "shoal.fleet.tether", "worker", self._target, "--run-id", self._run_id, *own),
                    stdin=end_of_child,
                    stdout=log,
                    stderr=log,
                    env=self._environment,
                    start_new_session=True,
                )
        except BaseException:
            os.close(tether)
            raise
        finally:
            os.close(end_of_child)
        return Child(process, tether)
