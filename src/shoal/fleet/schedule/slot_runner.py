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
from shoal.fleet.process import Child, start_tied
from shoal.fleet.schedule.slots import Slot
from shoal.ledger.protocols import Locks

KEPT_PER_LEASE = 4
# Beyond the seconds that running items get to end, so long may a run take to say goodbye.
FAREWELL_SECONDS = 10.0
MOST_READ = 1 << 20
STOPPED = 130
REFUSED = 71  # as the system names it: it cannot fork
FIRST_PAUSE, LONGEST_PAUSE = 2.0, 60.0
TELL_AGAIN_SECONDS = 1.0


async def keep_until_lost(locks: Locks, name: str, by: str, seconds: float) -> None:
    """Say again and again that it is ours. Returns when it is somebody else's, or may be: the ledger has not answered
    for as long as others would wait.
    """
    heard = time.monotonic()
    while (left := heard + seconds - time.monotonic()) > 0:
        await asyncio.sleep(min(left, seconds / KEPT_PER_LEASE))
        asked = time.monotonic()
        try:
            async with asyncio.timeout(max(0.0, heard + seconds - asked)):
                if not await locks.renew(name, by, seconds):
                    return
                heard = asked
        except (TimeoutError, LedgerError):
            continue


class Outcome(msgspec.Struct, frozen=True):
    """How the process ended, and what it said about the run (the last JSON value it wrote)."""

    code: int
    report: Mapping[str, Any] = {}


class Outing:
    """The processes of one slot, one after another. `drain`: seconds that what runs gets when it is to end."""

    def __init__(self, slot: Slot, action: str, environment: Mapping[str, str], logs: Path, drain: float) -> None:
        self._arguments = (action, slot.schedule, "--idempotency-key", slot.idempotency_key, "--json")
        self._environment = environment
        self._drain = drain
        self._child: Child | None = None
        self._orders = 0
        self.log_file = logs / slot.schedule / slot.log_name
        self.stopped = asyncio.Event()

    async def run(self) -> Outcome:
        """One process from its start to its end. Raises OSError when it cannot be started."""
        self.log_file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile() as said, self.log_file.open("ab") as log:
            self._child = await start_tied(
                self._arguments,
                self._environment,
                stdout=said,
                stderr=log,
                patience=self._drain + FAREWELL_SECONDS,
            )
            if self.stopped.is_set():  # it was told to stop while its process was being made
                self._child.tell(signal.SIGTERM)
            try:
                code = await self._child.wait()
            finally:
                self._child = None
            return Outcome(code, _last_value(said))

    def stop(self) -> None:
        """What runs is finished, the rest goes back; told again, what runs goes back too; in the end it is killed."""
        self._orders += 1
        self.stopped.set()
        if self._child is None:
            return
        # Both are counted alike, but two of the same kind that come close together would arrive as one.
        self._child.tell(signal.SIGTERM if self._orders == 1 else signal.SIGINT)
        if self._orders == 1:
            asyncio.get_running_loop().call_later(self._drain + FAREWELL_SECONDS, self._kill, self._child)

    def _kill(self, child: Child) -> None:
        if child is self._child:
            child.tell(signal.SIGKILL)


def _last_value(said: IO[bytes]) -> Mapping[str, Any]:
    size = said.seek(0, 2)
    said.seek(max(0, size - MOST_READ))
    for line in reversed(said.read().splitlines()):
        try:
            value = msgspec.json.decode(line)
        except msgspec.DecodeError:
            continue
        if isinstance(value, dict):
            return value
    return {}


class Ways(msgspec.Struct, frozen=True, kw_only=True):
    """How this node carries slots out.

    `me`: its name in the ledger. `lease`: seconds that a slot stays ours when the ledger hears nothing from us.
    `drain`: seconds that what runs gets when it is to end. `environment`: what the processes find.
    """

    me: str
    lease: float
    drain: float
    logs: Path
    environment: Mapping[str, str]


class Duty:
    """Its lock must have been taken.

    `wanted` says whether the slot is still to be run after it had to wait. `resumable`: when this node is told to stop,
    another goes on with the slot.
    """

    def __init__(
        self,
        slot: Slot,
        config: ScheduleConfig,
        ways: Ways,
        locks: Locks,
        wanted: Callable[[], bool],
        *,
        resumable: bool = True,
    ) -> None:
        self.slot = slot
        self._config = config
        self._ways = ways
        self._locks = locks
        self._wanted = wanted
        self._resumable = resumable
        self._outing = Outing(slot, config.action, ways.environment, ways.logs, ways.drain)

    @property
    def log_file(self) -> Path:
        return self._outing.log_file

    def stop(self) -> None:
        self._outing.stop()

    async def carry_out(self) -> dict[str, Any]:
        """Until it has ended or is no longer ours. Returns what the ledger was told: `state` says how it ended."""
        keeping = asyncio.create_task(
            keep_until_lost(self._locks, self.slot.lock_name, self._ways.me, self._ways.lease)
        )
        working = asyncio.create_task(self._work())
        try:
            await asyncio.wait((keeping, working), return_when=asyncio.FIRST_COMPLETED)
            if not working.done():  # others go on with the run by now
                self._outing.stop()
                await asyncio.wait((working,))
                keeping.result()  # a defect there must not look like a slot that went to another node
                return {"state": "lost", "node": socket.gethostname()}
            return await self._tell(working.result(), keeping)
        finally:
            for task in (keeping, working):
                task.cancel()
            await asyncio.gather(keeping, working, return_exceptions=True)

    async def _work(self) -> dict[str, Any]:
        pause = FIRST_PAUSE
        while True:
            try:
                outcome = await self._outing.run()
            except OSError as error:
                return self._value("failed", Outcome(REFUSED), why=f"it cannot be started: {error.strerror}")
            if self._outing.stopped.is_set() and outcome.code not in (0, 1):
                return self._value(self._stopped_state, outcome)
            if outcome.code != NotAllowed.exit_code:
                state = {0: "done", STOPPED: "interrupted"}.get(outcome.code, "failed")
                return self._value(state, outcome)
            if not outcome.report.get("own"):  # else a process of this very slot is about to leave
                if self._config.overlap == "skip" or self.slot.by_hand:
                    return self._value("skipped", outcome, why=_still_going(outcome))
                if not self._wanted():
                    return self._value("skipped", outcome, why=f"{_still_going(outcome)}; its time has passed")
            try:
                await asyncio.wait_for(self._outing.stopped.wait(), pause)
                return self._value(self._stopped_state, outcome)
            except TimeoutError:
                pause = min(LONGEST_PAUSE, pause * 2)

    @property
    def _stopped_state(self) -> str:
        return "left" if self._resumable else "interrupted"

    def _value(self, state: str, outcome: Outcome, *, why: str | None = None) -> dict[str, Any]:
        own = {"run_id": outcome.report.get("run_id"), "exit_code": outcome.code} if state != "skipped" else {}
        told = {"state": state, **own, "node": socket.gethostname(), "log": str(self.log_file)}
        return told if why is None else {**told, "why": why}

    async def _tell(self, value: dict[str, Any], keeping: asyncio.Task[None]) -> dict[str, Any]:
        """Finish the lock, or give up what is left to other nodes."""
        while not keeping.done():
            try:
                if value["state"] == "left":
                    await self._locks.release(self.slot.lock_name, self._ways.me)
                elif not await self._locks.complete(self.slot.lock_name, self._ways.me, value):
                    break
                return value
            except LedgerError:
                await asyncio.wait((keeping,), timeout=TELL_AGAIN_SECONDS)
        return {**value, "state": "lost"}


def _still_going(outcome: Outcome) -> str:
    run = outcome.report.get("run_id")
    return f"run {run} is still going" if run else "another process is at it"
