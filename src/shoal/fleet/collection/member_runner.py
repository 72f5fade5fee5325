"""Runs each member of a collection in a child process within its limits, and derives its status from the ledger."""

from __future__ import annotations

import asyncio
import datetime as dt
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec

from shoal.define.counters import KNOWN, LEFT_OUT, NEW
from shoal.errors import AttemptEnded, LedgerError, NotAllowed, Permanent, ShoalError, Transient, UsageError
from shoal.export import export_run
from shoal.export.coverage import CoverageRules, check_coverage, has_only_failures, summarize_warnings
from shoal.fleet.collection.members import Member
from shoal.fleet.pool_workers import PoolWorkers
from shoal.fleet.process import (
    ChildCommand,
    ChildProcess,
    ProcessExit,
    ProcessLimits,
    SessionMemory,
    wait_within_limits,
)
from shoal.ledger.protocols import Ledger
from shoal.model.item import ItemState
from shoal.model.log import Log
from shoal.model.run import COLLECTION_KEY_PREFIX, DeadLimit, Run, RunState
from shoal.model.views import Counts, ItemFilter
from shoal.observe.failures import read_failures
from shoal.observe.formatting import pluralize

BUSY_SECONDS = 3.0
KILL_SECONDS = 3.0
_DEAD = ItemFilter(states=(ItemState.DEAD,))


class MemberStatus(StrEnum):
    """How a member that was run ended."""

    SUCCESS = "success"
    WARNING = "warning"
    FAILED = "failed"


class MemberOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """`reason`: why it is not a success."""

    status: MemberStatus
    reason: str = ""
    counts: Counts = Counts()


async def member_outcome(
    ledger: Ledger, run: Run, max_dead: DeadLimit, rules: CoverageRules, *, updates: bool = False
) -> MemberOutcome:
    """Success: all items done or skipped, with records; with `updates` also when nothing was new.

    Warning: dead items within `max_dead`, no records, or fields that are empty in too many of them. With `updates` no
    records are one when everything was left out and nothing is known. Failed: more dead items, or only dead ones.
    """
    counts = await ledger.reads.stats(run.id)
    if run.state is RunState.CANCELLED:
        return MemberOutcome(status=MemberStatus.FAILED, reason="its run was cancelled", counts=counts)
    if run.state is not RunState.FINISHED:
        left = f"unfinished, {pluralize(counts.remaining, 'item')} left"
        return MemberOutcome(status=MemberStatus.FAILED, reason=left, counts=counts)
    empty = summarize_warnings(await check_coverage(ledger, run, rules), 2)
    if counts.dead:
        groups = (await read_failures(ledger, run.id)).groups
        main = f": {groups[0].outcome}, {groups[0].display_text}" if groups else ""
        dead = f"{counts.dead} of {pluralize(counts.total, 'item')} dead{main}"
        too_many = max_dead.exceeded(counts.dead, counts.wanted) or await has_only_failures(ledger, run.id, counts)
        return MemberOutcome(
            status=MemberStatus.FAILED if too_many else MemberStatus.WARNING,
            reason=f"{dead}; {empty}" if empty else dead,
            counts=counts,
        )
    if not counts.results and (reason := await _why_no_records(ledger, run) if updates else "no records"):
        return MemberOutcome(status=MemberStatus.WARNING, reason=reason, counts=counts)
    if empty:
        return MemberOutcome(status=MemberStatus.WARNING, reason=empty, counts=counts)
    return MemberOutcome(status=MemberStatus.SUCCESS, counts=counts)


async def _why_no_records(ledger: Ledger, run: Run) -> str:
    """Why a run that stores only what is new has no records; empty if that may be right."""
    counted = await ledger.reads.author_counts(run.id)
    if counted.get(KNOWN) or not (counted.get(NEW) or counted.get(LEFT_OUT)):
        return ""
    return "no records: everything was left out"


class MemberDefaults(msgspec.Struct, frozen=True, kw_only=True):
    """The options of all members; a member may have limits of its own.

    `stop_timeout`: seconds from the first stop signal to SIGKILL. `pause`: seconds after each member of a group.
    `foreground`: children write to the terminal instead of a log file. `output`: the folder that records are exported
    to, None for no export. `coverage`: when fields are empty too often.
    """

    limits: ProcessLimits
    stop_timeout: float
    max_dead: DeadLimit
    logs: Path
    pause: float
    foreground: bool
    output: Path | None
    coverage: CoverageRules


class MemberRunner:
    """Runs each member in a child process. `environment`: that of the member whose runs have this name."""

    def __init__(
        self, ledger: Ledger, environment: Callable[[str], Mapping[str, str]], defaults: MemberDefaults
    ) -> None:
        self._ledger = ledger
        self._environment = environment
        self._defaults = defaults
        self._running: set[ChildProcess] = set()
        self._memory = SessionMemory()

    async def run_member(self, member: Member, collection_run: str, log: Log) -> dict[str, Any]:
        """One attempt on a member; returns its report.

        A failed member raises Permanent when another attempt cannot help, else Transient; `detail` of both has the log
        file and the seconds.
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
            outcome = await self._read_outcome(member, run)
            if outcome.status is not MemberStatus.FAILED:  # the process that ran it died before it stored the report
                if member.updates and self._defaults.output is not None:
                    await self._process(member, idempotency_key, file, log, began)  # it writes its files again
                return await self._export_and_report(member, outcome, run, file, 0.0)
            await self._ledger.steering.retry(run.id, _DEAD, by="shoal run")
        ended = await self._process(member, idempotency_key, file, log, began)
        while ended.code == NotAllowed.exit_code and await self._seconds_since(began) < self._limits_of(member).timeout:
            # Another process runs it, for example one whose parent was killed and that still drains.
            await asyncio.sleep(BUSY_SECONDS)
            ended = await self._process(member, idempotency_key, file, log, began)
        run = await self._ledger.runs.by_idempotency_key(idempotency_key)
        outcome = await self._outcome(member, run, ended, file)
        seconds = await self._seconds_since(began)
        log.info("member ended", status=outcome.status.value, seconds=round(seconds, 1))
        if outcome.status is MemberStatus.FAILED:
            raise (Permanent if ended.code == UsageError.exit_code and run is None else Transient)(outcome.reason)
        return await self._export_and_report(member, outcome, run, file, seconds)

    async def pause(self) -> None:
        """After a member of a group."""
        await asyncio.sleep(self._defaults.pause)

    def stop_now(self) -> None:
        """Members that drain give back what runs; those that do not exit then are killed."""
        for child in self._running:
            child.stop_within(KILL_SECONDS)

    async def wait_stopped(self) -> None:
        """Until every process has ended that was stopped."""
        await asyncio.gather(*(child.wait() for child in self._running))
        self._running.clear()

    @property
    def running(self) -> int:
        """How many member processes there are."""
        return len(self._running)

    async def _export_and_report(
        self, member: Member, outcome: MemberOutcome, run: Run | None, file: Path, seconds: float
    ) -> dict[str, Any]:
        """The report of a member that did not fail; its records are exported first."""
        own_files = member.updates
        if self._defaults.output is not None and run is not None and outcome.counts.results and not own_files:
            path = self._defaults.output / member.section / member.title / f"{run.id}.jsonl"
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                await export_run(self._ledger, run.id, path)
            except OSError as error:
                raise Transient(f"its records cannot be exported to {path}: {error.strerror}") from None
            except ShoalError as error:
                raise Transient(f"export failed: {error.message}") from None
        return _record(member, outcome, run, self._log_location(file), seconds)

    async def _process(
        self, member: Member, idempotency_key: str, file: Path, log: Log, began: dt.datetime
    ) -> ProcessExit:
        command = member_command(member, self._defaults.output)
        child = await self._start((*command, "--idempotency-key", idempotency_key), member.name, file)
        log.info("member started", pid=child.pid, log=str(file))
        self._running.add(child)

        async def seconds_without_progress() -> float | None:
            run = await self._ledger.runs.by_idempotency_key(idempotency_key)
            if run is None:
                return None
            return await self._seconds_since((await self._ledger.reads.recent(run.id)).quiet_since)

        try:
            ended = await wait_within_limits(child, self._limits_of(member), self._memory, seconds_without_progress)
        except asyncio.CancelledError:
            # It drains; `wait_stopped` waits for it. A foreground child has received the signal from the terminal.
            child.stop(notify=not self._defaults.foreground)
            raise
        self._running.discard(child)
        if ended.code < 0:
            await self._mark_dead(child, idempotency_key, began)
        return ended

    async def _start(self, arguments: tuple[str, ...], name: str, file: Path) -> ChildProcess:
        foreground = self._defaults.foreground
        own = {"SHOAL_LOG_DIR": str(file.parent)} if foreground else {}
        child = ChildProcess(
            ChildCommand(
                arguments=arguments,
                environment={**self._environment(name), **own},
                stop_timeout=self._defaults.stop_timeout,
                log=None if foreground else file,
            )
        )
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            await child.start()
        except OSError as error:
            raise Transient(f"its process cannot be started: {error.strerror} ({error.filename or ''})") from None
        return child

    def _write_log(self, file: Path, text: str) -> None:
        """The log of a member that no process was started for."""
        with suppress(OSError):  # the reason is in the ledger too
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{text}\n", encoding="utf-8", errors="backslashreplace")

    def _log_location(self, file: Path) -> str:
        """The log file; for a foreground child its folder, where the log has the name of the run."""
        return str(file.parent if self._defaults.foreground else file)

    async def _mark_dead(self, child: ChildProcess, idempotency_key: str, began: dt.datetime) -> None:
        """Release the leases of a process that was killed."""
        with suppress(LedgerError):
            if (run := await self._ledger.runs.by_idempotency_key(idempotency_key)) is not None:
                await PoolWorkers(self._ledger, run.id, since=began).mark_dead(child.pid)

    async def _read_outcome(self, member: Member, run: Run) -> MemberOutcome:
        defaults = self._defaults
        return await member_outcome(self._ledger, run, defaults.max_dead, defaults.coverage, updates=member.updates)

    async def _outcome(self, member: Member, run: Run | None, ended: ProcessExit, file: Path) -> MemberOutcome:
        exit_reason = ended.limit or _exit_text(ended.code)
        if run is None:
            return MemberOutcome(
                status=MemberStatus.FAILED, reason=f"{exit_reason} before its run began{_last_log_line(file)}"
            )
        outcome = await self._read_outcome(member, run)
        if ended.limit is not None or run.state is not RunState.FINISHED:
            return msgspec.structs.replace(
                outcome, status=MemberStatus.FAILED, reason=f"{exit_reason}; {outcome.reason}"
            )
        return outcome

    def _limits_of(self, member: Member) -> ProcessLimits:
        own = {name: getattr(member, name) for name in ("timeout", "stale", "memory")}
        return msgspec.structs.replace(
            self._defaults.limits, **{name: value for name, value in own.items() if value is not None}
        )

    def _log_file(self, member: Member, began: dt.datetime) -> Path:
        folder = self._defaults.logs / member.section / member.title
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
    """Of a member's run: every attempt resumes the same run."""
    return f"{COLLECTION_KEY_PREFIX}{collection_run} {key}"


def member_command(member: Member, output: Path | None = None) -> tuple[str, ...]:
    """The arguments of `shoal` that run this member alone. `output`: the folder for those that write their files."""
    own_files = ("-o", f"{output}/") if member.updates and output is not None else ()
    return ("run", str(member.path), "--name", member.name, *own_files)


def _record(member: Member, outcome: MemberOutcome, run: Run | None, log: str, seconds: float) -> dict[str, Any]:
    return {
        "member": member.key,
        "status": outcome.status.value,
        "reason": outcome.reason,
        "scraper": member.name,
        "run_id": None if run is None else run.id,
        "done": outcome.counts.done,
        "dead": outcome.counts.dead,
        "skipped": outcome.counts.skipped,
        "records": outcome.counts.results,
        "seconds": round(seconds, 1),
        "log": log,
    }


def _exit_text(code: int) -> str:
    return f"it was killed by signal {-code}" if code < 0 else f"it ended with exit code {code}"


def _last_log_line(file: Path) -> str:
    """The last line of the log, as a hint for the operator; nothing is decided by it."""
    try:
        with file.open("rb") as log:
            log.seek(max(0, file.stat().st_size - 4096))
            lines = log.read().decode(errors="replace").split("\n")
    except OSError:
        return ""
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f"; its log ends with: {last}" if last else ""
