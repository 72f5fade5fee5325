"""Runs each member of a collection in a child process, within its limits, and reports its status.

A member's process under its limits: so long, so long without progress, so much memory.

What became of a member's run, from the ledger alone: never from words in a log.

Where members are worked on: a process for each, watched, with its log, and a verdict at its end.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import math
import os
import signal
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec

from shoal.errors import AttemptEnded, LedgerError, NotAllowed, Permanent, ShoalError, Transient, UsageError
from shoal.export import export_run
from shoal.fleet.collection.members import Member
from shoal.fleet.pool_workers import PoolWorkers
from shoal.fleet.process import Child, start_child, start_foreground_child
from shoal.ledger.protocols import Ledger
from shoal.model.item import ItemState
from shoal.model.log import Log
from shoal.model.run import COLLECTION_KEY_PREFIX, DeadLimit, Run, RunState
from shoal.model.views import Counts, ItemFilter
from shoal.observe.failures import read_failures
from shoal.observe.formatting import pluralize

POLL_SECONDS = 0.5
PROGRESS_SECONDS = 2.0
_MEGABYTE = 1 << 20
BUSY_SECONDS = 3.0
KILL_SECONDS = 3.0
_DEAD = ItemFilter(states=(ItemState.DEAD,))


class MemberLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds that it may take, seconds that it may be without progress, megabytes that it may use.

    `stop_timeout`: seconds that it gets to leave by itself once it is told to.
    """

    timeout: float
    stale: float
    memory: int
    stop_timeout: float


class MemberExit(msgspec.Struct, frozen=True, kw_only=True):
    """`code`: its exit code, less than 0 for a signal. `why`: the limit that ended it, if one did."""

    code: int
    why: str | None = None


async def enforce_limits(
    child: Child,
    limits: MemberLimits,
    memory: SessionMemory,
    seconds_without_progress: Callable[[], Awaitable[float | None]],
) -> MemberExit:
    """Until the process has ended, by itself or because a limit was passed.

    `seconds_without_progress` says how long its run has made no progress, None while that is unknown.
    """
    began = asked_at = time.monotonic()
    why: str | None = None
    kill_at = float("inf")
    ending = asyncio.create_task(child.wait())
    try:
        while not ending.done():
            await asyncio.wait((ending,), timeout=POLL_SECONDS)
            now = time.monotonic()
            if now >= kill_at:
                child.kill()
            if why is not None or ending.done():
                continue
            if now - began > limits.timeout:
                why = f"timed out after {limits.timeout:g} s"
            elif (used := await memory.used_by(child.pid) // _MEGABYTE) > limits.memory:
                why = f"used {used} MB of memory, more than the {limits.memory} MB it may"
                kill_at = now  # asked to leave, it would go on growing
            elif now - began > limits.stale and now - asked_at > PROGRESS_SECONDS:
                asked_at = now
                quiet = await seconds_without_progress()
                if quiet is None or quiet > limits.stale:
                    why = f"made no progress for {limits.stale:g} s"
            if why is not None and kill_at > now:
                child.send_signal(signal.SIGTERM)
                kill_at = now + limits.stop_timeout
            elif why is not None:
                child.kill()
        return MemberExit(code=ending.result(), why=why)
    finally:
        ending.cancel()


class SessionMemory:
    """How much memory sessions of processes hold. One look at the system's table of processes serves all who ask."""

    def __init__(self) -> None:
        self._used: dict[int, int] = {}
        self._looked_at = -math.inf
        self._looking: asyncio.Task[None] | None = None

    async def used_by(self, session: int) -> int:
        """Bytes that the processes of a session hold together, half a second ago at most. 0 where nobody tells."""
        if time.monotonic() - self._looked_at >= POLL_SECONDS:
            if self._looking is None or self._looking.done():
                self._looking = asyncio.create_task(self._read())
            await asyncio.shield(self._looking)
        return self._used.get(session, 0)

    async def _read(self) -> None:
        # Reading the table takes milliseconds, more on a machine with many processes: too long for the event loop.
        self._used = await asyncio.to_thread(memory_by_session)
        self._looked_at = time.monotonic()


def memory_by_session() -> dict[int, int]:
    """Bytes of memory by session, of all processes of this machine. Empty where the system does not tell."""
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
            continue  # it ended meanwhile
        session = int(fields[3])
        pages[session] = pages.get(session, 0) + int(fields[21])
    page = os.sysconf("SC_PAGE_SIZE")
    return {session: count * page for session, count in pages.items()}


class MemberStatus(StrEnum):
    SUCCESS = "success"
    WARNING = "warning"
    FAILED = "failed"


class MemberOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """`reason`: why it is no plain success."""

    status: MemberStatus
    reason: str = ""
    counts: Counts = Counts()


async def member_outcome(ledger: Ledger, run: Run, max_dead: DeadLimit) -> MemberOutcome:
    """Success: all done, with records. Warning: done within the limits, but not all, or without a record."""
    counts = await ledger.reads.stats(run.id)
    if run.state is RunState.CANCELLED:
        return MemberOutcome(status=MemberStatus.FAILED, reason="its run was cancelled", counts=counts)
    if run.state is not RunState.FINISHED:
        left = f"unfinished, {pluralize(counts.remaining, 'item')} left"
        return MemberOutcome(status=MemberStatus.FAILED, reason=left, counts=counts)
    if counts.dead:
        groups = (await read_failures(ledger, run.id)).groups
        main = f": {groups[0].outcome}, {groups[0].display_text}" if groups else ""
        reason = f"{counts.dead} of {pluralize(counts.total, 'item')} dead{main}"
        too_many = max_dead.exceeded(counts.dead, counts.total)
        return MemberOutcome(
            status=MemberStatus.FAILED if too_many else MemberStatus.WARNING, reason=reason, counts=counts
        )
    if not counts.results:
        return MemberOutcome(status=MemberStatus.WARNING, reason="no records", counts=counts)
    return MemberOutcome(status=MemberStatus.SUCCESS, counts=counts)


class MemberDefaults(msgspec.Struct, frozen=True, kw_only=True):
    """What holds for every member that does not say otherwise.

    `pause`: seconds between two members of a group. `foreground`: children have the terminal, instead of a log file.
    `output`: the folder that records are exported to, if they are.
    """

    limits: MemberLimits
    max_dead: DeadLimit
    logs: Path
    pause: float
    foreground: bool
    output: Path | None


class MemberRunner:
    """Works members off, as many at once as it is asked to. `environment` is what their processes find."""

    def __init__(self, ledger: Ledger, environment: Mapping[str, str], defaults: MemberDefaults) -> None:
        self._ledger = ledger
        self._environment = environment
        self._defaults = defaults
        self._running: set[Child] = set()
        self._memory = SessionMemory()

    async def run_member(self, member: Member, collection_run: str, log: Log) -> dict[str, Any]:
        """One attempt on a member; what came of it, unless it failed.

        Raises Permanent when another attempt would not help, Transient when it might; both with the log file and the
        seconds in their `detail`.
        """
        began, started = await self._now(), time.monotonic()
        file = self._log_file(member, began)
        try:
            return await self._attempt(member, idempotency_key_of(collection_run, member.key), file, log, began)
        except AttemptEnded as failed:
            failed.detail = {"log": self._log_location(file), "seconds": round(time.monotonic() - started, 1)}
            raise

    async def _attempt(
        self, member: Member, idempotency_key: str, file: Path, log: Log, began: dt.datetime
    ) -> dict[str, Any]:
        if member.broken is not None:
            self._write_log(file, member.broken)
            raise Permanent(member.broken)
        run = await self._ledger.runs.by_idempotency_key(idempotency_key)
        if run is not None and run.state is RunState.FINISHED:
            outcome = await member_outcome(self._ledger, run, self._defaults.max_dead)
            if outcome.status is not MemberStatus.FAILED:  # whoever ran it died before it could say so
                return await self._export_and_report(member, outcome, run, file, 0.0)
            await self._ledger.steering.retry(run.id, _DEAD, by="shoal run")
        ended = await self._process(member, idempotency_key, file, log, began)
        while ended.code == NotAllowed.exit_code and await self._seconds_since(began) < self._limits_of(member).timeout:
            # Somebody else runs it: one that outlived a parent that was killed, and still finishes what it has.
            await asyncio.sleep(BUSY_SECONDS)
            ended = await self._process(member, idempotency_key, file, log, began)
        run = await self._ledger.runs.by_idempotency_key(idempotency_key)
        outcome = await self._outcome(run, ended, file)
        seconds = await self._seconds_since(began)
        log.info("member ended", status=outcome.status.value, seconds=round(seconds, 1))
        if outcome.status is MemberStatus.FAILED:
            raise (Permanent if ended.code == UsageError.exit_code and run is None else Transient)(outcome.reason)
        return await self._export_and_report(member, outcome, run, file, seconds)

    async def pause(self) -> None:
        """Between two members of a group."""
        await asyncio.sleep(self._defaults.pause)

    def stop_now(self) -> None:
        """Those that were told to leave give back what runs; who does not even do that is killed."""
        for child in self._running:
            child.send_signal(signal.SIGINT)
        asyncio.get_running_loop().call_later(KILL_SECONDS, self._kill_all)

    def _kill_all(self) -> None:
        for child in self._running:
            child.kill()

    async def wait_stopped(self) -> None:
        """Until every process has left that was told to."""
        stop_timeout = self._defaults.limits.stop_timeout
        waits = [asyncio.create_task(child.wait()) for child in self._running]
        if not waits:
            return
        _, late = await asyncio.wait(waits, timeout=stop_timeout)
        if late:
            self._kill_all()
            await asyncio.wait(late)
        self._running.clear()

    @property
    def running(self) -> int:
        return len(self._running)

    async def _export_and_report(
        self, member: Member, outcome: MemberOutcome, run: Run | None, file: Path, seconds: float
    ) -> dict[str, Any]:
        """What is stored about a member that did not fail; its records are exported first."""
        if self._defaults.output is not None and run is not None and outcome.counts.results:
            path = self._defaults.output / member.country / member.newspaper / f"{run.id}.jsonl"
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                await export_run(self._ledger, run.id, path)
            except OSError as error:
                raise Transient(f"its records cannot be exported to {path}: {error.strerror}") from None
            except ShoalError as error:
                raise Transient(f"its records are not exported: {error.message}") from None
        return _record(member, outcome, run, self._log_location(file), seconds)

    async def _process(
        self, member: Member, idempotency_key: str, file: Path, log: Log, began: dt.datetime
    ) -> MemberExit:
        arguments = (*member_command(member), "--idempotency-key", idempotency_key)
        child = await self._start(arguments, file)
        log.info("member started", pid=child.pid, log=str(file))
        self._running.add(child)

        async def seconds_without_progress() -> float | None:
            run = await self._ledger.runs.by_idempotency_key(idempotency_key)
            if run is None:
                return None
            return await self._seconds_since((await self._ledger.reads.recent(run.id)).quiet_since)

        try:
            ended = await enforce_limits(child, self._limits_of(member), self._memory, seconds_without_progress)
        except asyncio.CancelledError:
            # It finishes what it has under way; whoever waits for all of them waits for this one too.
            if not self._defaults.foreground:  # one at the terminal has heard of it there
                child.send_signal(signal.SIGTERM)
            raise
        self._running.discard(child)
        if ended.code < 0:
            await self._mark_dead(child, idempotency_key, began)
        return ended

    async def _start(self, arguments: Sequence[str], file: Path) -> Child:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            if self._defaults.foreground:
                return await start_foreground_child(arguments, {**self._environment, "SHOAL_LOG_DIR": str(file.parent)})
            with file.open("ab") as log:
                stop_timeout = self._defaults.limits.stop_timeout
                return await start_child(
                    arguments, self._environment, stdout=log, stderr=log, stop_timeout=stop_timeout
                )
        except OSError as error:
            raise Transient(f"its process cannot be started: {error.strerror} ({error.filename or ''})") from None

    def _write_log(self, file: Path, text: str) -> None:
        """The log of a member that has no process to write one."""
        with suppress(OSError):  # the reason is in the ledger too
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{text}\n", encoding="utf-8", errors="backslashreplace")

    def _log_location(self, file: Path) -> str:
        """Where a person finds the log: one that runs in front writes into the folder, under the name of its run."""
        return str(file.parent if self._defaults.foreground else file)

    async def _mark_dead(self, child: Child, idempotency_key: str, began: dt.datetime) -> None:
        """It was killed: what it held need not wait for the end of its lease."""
        with suppress(LedgerError):
            if (run := await self._ledger.runs.by_idempotency_key(idempotency_key)) is not None:
                await PoolWorkers(self._ledger, run.id, since=began).mark_dead(child.pid)

    async def _outcome(self, run: Run | None, ended: MemberExit, file: Path) -> MemberOutcome:
        exit_reason = ended.why or _exit_text(ended.code)
        if run is None:
            return MemberOutcome(
                status=MemberStatus.FAILED, reason=f"{exit_reason} before its run began{_last_log_line(file)}"
            )
        outcome = await member_outcome(self._ledger, run, self._defaults.max_dead)
        if ended.why is not None or run.state is not RunState.FINISHED:
            return msgspec.structs.replace(
                outcome, status=MemberStatus.FAILED, reason=f"{exit_reason}; {outcome.reason}"
            )
        return outcome

    def _limits_of(self, member: Member) -> MemberLimits:
        own = {name: getattr(member, name) for name in ("timeout", "stale", "memory")}
        return msgspec.structs.replace(
            self._defaults.limits, **{name: value for name, value in own.items() if value is not None}
        )

    def _log_file(self, member: Member, began: dt.datetime) -> Path:
        folder = self._defaults.logs / member.country / member.newspaper
        stamp = f"{began:%Y%m%d_%H%M%S}"
        file, tried = folder / f"{stamp}.log", 1
        while file.exists():
            tried += 1
            file = folder / f"{stamp}_{tried}.log"
        return file

    async def _now(self) -> dt.datetime:
        return (await self._ledger.health.check()).clock

    async def _seconds_since(self, moment: dt.datetime) -> float:
        return (await self._now() - moment).total_seconds()


def idempotency_key_of(collection_run: str, key: str) -> str:
    """What a member's run is made for: the same one again, however often it is attempted."""
    return f"{COLLECTION_KEY_PREFIX}{collection_run} {key}"


def member_command(member: Member) -> tuple[str, ...]:
    """What `shoal` is told to run this member alone."""
    return ("run", str(member.path), "--name", member.name)


def _record(member: Member, outcome: MemberOutcome, run: Run | None, log: str, seconds: float) -> dict[str, Any]:
    return {
        "member": member.key,
        "status": outcome.status.value,
        "reason": outcome.reason,
        "run_id": None if run is None else run.id,
        "done": outcome.counts.done,
        "dead": outcome.counts.dead,
        "records": outcome.counts.results,
        "seconds": round(seconds, 1),
        "log": log,
    }


def _exit_text(code: int) -> str:
    return f"it was killed by signal {-code}" if code < 0 else f"it ended with exit code {code}"


def _last_log_line(file: Path) -> str:
    """The last line it wrote, as a hint for people; nothing is decided by it."""
    try:
        with file.open("rb") as log:
            log.seek(max(0, file.stat().st_size - 4096))
            lines = log.read().decode(errors="replace").split("\n")
    except OSError:
        return ""
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f"; its log ends with: {last}" if last else ""
