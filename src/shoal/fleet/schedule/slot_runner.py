"""Runs one slot of a schedule: a `shoal run` or `shoal enqueue` in a child process, under a lock that is renewed."""

from __future__ import annotations

import asyncio
import socket
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

import msgspec

from shoal.config.schedules import ScheduleConfig
from shoal.errors import EXIT_INTERRUPTED, LedgerError, NotAllowed
from shoal.fleet.process import EX_OSERR, EXIT_SECONDS, ChildCommand, ChildProcess
from shoal.fleet.schedule.slots import Slot, SlotReport
from shoal.ledger.protocols import Locks

RENEWALS_PER_LEASE = 4
MAX_READ = 1 << 20
MIN_BACKOFF, MAX_BACKOFF = 2.0, 60.0
RETRY_SECONDS = 1.0


async def renew_until_lost(locks: Locks, name: str, by: str, seconds: float) -> None:
    """Renew the lock until it is lost: another owner has it, or the ledger has not answered for `seconds`."""
    renewed_at = time.monotonic()
    while (left := renewed_at + seconds - time.monotonic()) > 0:
        await asyncio.sleep(min(left, seconds / RENEWALS_PER_LEASE))
        asked = time.monotonic()
        try:
            async with asyncio.timeout(max(0.0, renewed_at + seconds - asked)):
                if not await locks.renew(name, by, seconds):
                    return
                renewed_at = asked
        except (TimeoutError, LedgerError):
            continue


class SlotExit(msgspec.Struct, frozen=True):
    """The exit code of a slot's process, and the last JSON value that it wrote: its report about the run."""

    code: int
    report: Mapping[str, Any] = {}


class SlotProcess:
    """The processes of one slot, one after another, with one log file. `drain`: seconds for running items at a stop."""

    def __init__(self, slot: Slot, action: str, environment: Mapping[str, str], logs: Path, drain: float) -> None:
        self.log_file = logs / slot.schedule / slot.log_name
        self.stopped = asyncio.Event()
        self._command = ChildCommand(
            arguments=(action, slot.schedule, "--idempotency-key", slot.idempotency_key, "--json"),
            environment=environment,
            stop_timeout=drain + EXIT_SECONDS,
            log=self.log_file,
        )
        self._child: ChildProcess | None = None

    async def run(self) -> SlotExit:
        """One process from its start to its end. Raises OSError when it cannot be started."""
        self.log_file.parent.mkdir(parents=True, exist_ok=True)
        self._child = ChildProcess(self._command)
        if self.stopped.is_set():
            self._child.stop()
        with tempfile.TemporaryFile() as output:
            await self._child.start(stdout=output)
            return SlotExit(await self._child.wait(), _last_json_object(output))

    def stop(self) -> None:
        """The first call drains the process, a second one makes it give back what runs."""
        self.stopped.set()
        if self._child is not None:
            self._child.stop()


def _last_json_object(output: IO[bytes]) -> Mapping[str, Any]:
    size = output.seek(0, 2)
    output.seek(max(0, size - MAX_READ))
    for line in reversed(output.read().splitlines()):
        try:
            value = msgspec.json.decode(line)
        except msgspec.DecodeError:
            continue
        if isinstance(value, dict):
            return value
    return {}


class SlotOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a node runs slots.

    `owner`: its name in the ledger. `lease`: seconds that a lock lasts without renewal. `drain`: seconds for
    running items at a stop. `environment`: of the child processes.
    """

    owner: str
    lease: float
    drain: float
    logs: Path
    environment: Mapping[str, str]


class SlotRunner:
    """Runs one slot whose lock this node has acquired.

    `wanted` says whether the slot shall still run after it had to wait for another run. `resumable`: when this node is
    stopped, another one resumes the slot.
    """

    def __init__(
        self,
        slot: Slot,
        config: ScheduleConfig,
        options: SlotOptions,
        locks: Locks,
        wanted: Callable[[], bool],
        *,
        resumable: bool = True,
    ) -> None:
        self.slot = slot
        self._config = config
        self._options = options
        self._locks = locks
        self._wanted = wanted
        self._resumable = resumable
        self._process = SlotProcess(slot, config.action, options.environment, options.logs, options.drain)

    @property
    def log_file(self) -> Path:
        return self._process.log_file

    def stop(self) -> None:
        self._process.stop()

    async def run_to_end(self) -> SlotReport:
        """Until it has ended or its lock is lost."""
        renewing = asyncio.create_task(
            renew_until_lost(self._locks, self.slot.lock_name, self._options.owner, self._options.lease)
        )
        running = asyncio.create_task(self._run_process())
        try:
            await asyncio.wait((renewing, running), return_when=asyncio.FIRST_COMPLETED)
            if not running.done():  # another node resumes the run
                self._process.stop()
                await asyncio.wait((running,))
                renewing.result()  # an unexpected error there is not a lost lock
                return SlotReport(self.slot, {"state": "lost", "node": socket.gethostname()})
            return SlotReport(self.slot, await self._complete(running.result(), renewing))
        finally:
            for task in (renewing, running):
                task.cancel()
            await asyncio.gather(renewing, running, return_exceptions=True)

    async def _run_process(self) -> dict[str, Any]:
        pause = MIN_BACKOFF
        while True:
            try:
                outcome = await self._process.run()
            except OSError as error:
                return self._result_of("failed", SlotExit(EX_OSERR), why=f"it cannot be started: {error.strerror}")
            if self._process.stopped.is_set() and outcome.code not in (0, 1):
                return self._result_of(self._stopped_state, outcome)
            if outcome.code != NotAllowed.exit_code:
                state = {0: "done", EXIT_INTERRUPTED: "interrupted"}.get(outcome.code, "failed")
                return self._result_of(state, outcome)
            if not outcome.report.get("own"):  # otherwise an earlier process of this slot is about to exit
                if self._config.overlap == "skip" or self.slot.manual:
                    return self._result_of("skipped", outcome, why=_still_running_text(outcome))
                if not self._wanted():
                    return self._result_of(
                        "skipped", outcome, why=f"{_still_running_text(outcome)}; its time has passed"
                    )
            try:
                await asyncio.wait_for(self._process.stopped.wait(), pause)
                return self._result_of(self._stopped_state, outcome)
            except TimeoutError:
                pause = min(MAX_BACKOFF, pause * 2)

    @property
    def _stopped_state(self) -> str:
        return "left" if self._resumable else "interrupted"

    def _result_of(self, state: str, outcome: SlotExit, *, why: str | None = None) -> dict[str, Any]:
        own = {"run_id": outcome.report.get("run_id"), "exit_code": outcome.code} if state != "skipped" else {}
        stored = {"state": state, **own, "node": socket.gethostname(), "log": str(self.log_file)}
        return stored if why is None else {**stored, "why": why}

    async def _complete(self, value: dict[str, Any], renewing: asyncio.Task[None]) -> dict[str, Any]:
        """Complete the lock, or release it when another node shall resume the slot."""
        while not renewing.done():
            try:
                if value["state"] == "left":
                    await self._locks.release(self.slot.lock_name, self._options.owner)
                elif not await self._locks.complete(self.slot.lock_name, self._options.owner, value):
                    break
                return value
            except LedgerError:
                await asyncio.wait((renewing,), timeout=RETRY_SECONDS)
        return {**value, "state": "lost"}


def _still_running_text(outcome: SlotExit) -> str:
    run = outcome.report.get("run_id")
    return f"run {run} is still running" if run else "another process runs it"
