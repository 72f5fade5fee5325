"""Runs one slot of a schedule in a child process under a renewed lock.

Keeping a lock while it is being done, and noticing when it is lost.

The process of one slot: a `shoal run` or `shoal enqueue` of its own, with a log of its own.

One slot that this node has taken, from its process to what the ledger is told about it.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

import msgspec

from shoal.config.schedules import ScheduleConfig
from shoal.errors import LedgerError, NotAllowed
from shoal.fleet.process import Child, start_child
from shoal.fleet.schedule.slots import Slot
from shoal.ledger.protocols import Locks

RENEWALS_PER_LEASE = 4
# Beyond the seconds that running items get to end, so long may a run take to say goodbye.
EXIT_SECONDS = 10.0
MAX_READ = 1 << 20
STOPPED = 130
EX_OSERR = 71  # as the system names it: it cannot fork
FIRST_PAUSE, LONGEST_PAUSE = 2.0, 60.0
RETRY_SECONDS = 1.0


async def renew_until_lost(locks: Locks, name: str, by: str, seconds: float) -> None:
    """Say again and again that it is ours. Returns when it is somebody else's, or may be: the ledger has not answered
    for as long as others would wait.
    """
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


class ProcessExit(msgspec.Struct, frozen=True):
    """How the process ended, and what it said about the run (the last JSON value it wrote)."""

    code: int
    report: Mapping[str, Any] = {}


class SlotProcess:
    """The processes of one slot, one after another. `drain`: seconds that what runs gets when it is to end."""

    def __init__(self, slot: Slot, action: str, environment: Mapping[str, str], logs: Path, drain: float) -> None:
        self._arguments = (action, slot.schedule, "--idempotency-key", slot.idempotency_key, "--json")
        self._environment = environment
        self._drain = drain
        self._child: Child | None = None
        self._stop_requests = 0
        self.log_file = logs / slot.schedule / slot.log_name
        self.stopped = asyncio.Event()

    async def run(self) -> ProcessExit:
        """One process from its start to its end. Raises OSError when it cannot be started."""
        self.log_file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile() as stdout_file, self.log_file.open("ab") as log:
            self._child = await start_child(
                self._arguments,
                self._environment,
                stdout=stdout_file,
                stderr=log,
                stop_timeout=self._drain + EXIT_SECONDS,
            )
            if self.stopped.is_set():  # it was told to stop while its process was being made
                self._child.send_signal(signal.SIGTERM)
            try:
                code = await self._child.wait()
            finally:
                self._child = None
            return ProcessExit(code, _last_json_object(stdout_file))

    def stop(self) -> None:
        """What runs is finished, the rest goes back; told again, what runs goes back too; in the end it is killed."""
        self._stop_requests += 1
        self.stopped.set()
        if self._child is None:
            return
        # Both are counted alike, but two of the same kind that come close together would arrive as one.
        self._child.send_signal(signal.SIGTERM if self._stop_requests == 1 else signal.SIGINT)
        if self._stop_requests == 1:
            asyncio.get_running_loop().call_later(self._drain + EXIT_SECONDS, self._kill, self._child)

    def _kill(self, child: Child) -> None:
        if child is self._child:
            child.send_signal(signal.SIGKILL)


def _last_json_object(stdout_file: IO[bytes]) -> Mapping[str, Any]:
    size = stdout_file.seek(0, 2)
    stdout_file.seek(max(0, size - MAX_READ))
    for line in reversed(stdout_file.read().splitlines()):
        try:
            value = msgspec.json.decode(line)
        except msgspec.DecodeError:
            continue
        if isinstance(value, dict):
            return value
    return {}


class SlotOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How this node carries slots out.

    `owner`: its name in the ledger. `lease`: seconds that a slot stays ours when the ledger hears nothing from us.
    `drain`: seconds that what runs gets when it is to end. `environment`: what the processes find.
    """

    owner: str
    lease: float
    drain: float
    logs: Path
    environment: Mapping[str, str]


class SlotRunner:
    """Its lock must have been taken.

    `wanted` says whether the slot is still to be run after it had to wait. `resumable`: when this node is told to stop,
    another goes on with the slot.
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

    async def run_to_end(self) -> dict[str, Any]:
        """Until it has ended or is no longer ours. Returns what the ledger was told: `state` says how it ended."""
        renewing = asyncio.create_task(
            renew_until_lost(self._locks, self.slot.lock_name, self._options.owner, self._options.lease)
        )
        running = asyncio.create_task(self._run_process())
        try:
            await asyncio.wait((renewing, running), return_when=asyncio.FIRST_COMPLETED)
            if not running.done():  # others go on with the run by now
                self._process.stop()
                await asyncio.wait((running,))
                renewing.result()  # a defect there must not look like a slot that went to another node
                return {"state": "lost", "node": socket.gethostname()}
            return await self._complete(running.result(), renewing)
        finally:
            for task in (renewing, running):
                task.cancel()
            await asyncio.gather(renewing, running, return_exceptions=True)

    async def _run_process(self) -> dict[str, Any]:
        pause = FIRST_PAUSE
        while True:
            try:
                outcome = await self._process.run()
            except OSError as error:
                return self._result_of("failed", ProcessExit(EX_OSERR), why=f"it cannot be started: {error.strerror}")
            if self._process.stopped.is_set() and outcome.code not in (0, 1):
                return self._result_of(self._stopped_state, outcome)
            if outcome.code != NotAllowed.exit_code:
                state = {0: "done", STOPPED: "interrupted"}.get(outcome.code, "failed")
                return self._result_of(state, outcome)
            if not outcome.report.get("own"):  # else a process of this very slot is about to leave
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
                pause = min(LONGEST_PAUSE, pause * 2)

    @property
    def _stopped_state(self) -> str:
        return "left" if self._resumable else "interrupted"

    def _result_of(self, state: str, outcome: ProcessExit, *, why: str | None = None) -> dict[str, Any]:
        own = {"run_id": outcome.report.get("run_id"), "exit_code": outcome.code} if state != "skipped" else {}
        stored = {"state": state, **own, "node": socket.gethostname(), "log": str(self.log_file)}
        return stored if why is None else {**stored, "why": why}

    async def _complete(self, value: dict[str, Any], renewing: asyncio.Task[None]) -> dict[str, Any]:
        """Finish the lock, or give up what is left to other nodes."""
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


def _still_running_text(outcome: ProcessExit) -> str:
    run = outcome.report.get("run_id")
    return f"run {run} is still going" if run else "another process is at it"
