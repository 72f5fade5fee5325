"""Where members are worked on: a process for each, watched, with its log, and a verdict at its end."""

from __future__ import annotations

import asyncio
import datetime as dt
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from shoal.collection.limits import Ended, Limits, Memory, watch
from shoal.collection.members import Member
from shoal.collection.verdict import Status, Verdict, verdict_on
from shoal.config.deadlimit import DeadLimit
from shoal.errors import AttemptEnded, LedgerError, NotAllowed, Permanent, ShoalError, Transient, UsageError
from shoal.export import export_run
from shoal.fleet.child import Child, start_here, start_tied
from shoal.fleet.roll import Roll
from shoal.ledger.protocols import Ledger
from shoal.model.item import ItemState
from shoal.model.log import Log
from shoal.model.run import OF_A_COLLECTION, Run, RunState
from shoal.model.views import ItemFilter

BUSY_SECONDS = 3.0
HURRY_SECONDS = 3.0
_DEAD = ItemFilter(states=(ItemState.DEAD,))


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """What holds for every member that does not say otherwise.

    `pause`: seconds between two members of a group. `in_front`: children have the terminal, instead of a log file.
    `output`: the folder that records are exported to, if they are.
    """

    limits: Limits
    max_dead: DeadLimit
    logs: Path
    pause: float
    in_front: bool
    output: Path | None


class Office:
    """Works members off, as many at once as it is asked to. `environment` is what their processes find."""

    def __init__(self, ledger: Ledger, environment: Mapping[str, str], terms: Terms) -> None:
        self._ledger = ledger
        self._environment = environment
        self._terms = terms
        self._present: set[Child] = set()
        self._memory = Memory()

    async def work_on(self, member: Member, collection_run: str, log: Log) -> dict[str, Any]:
        """One attempt on a member; what came of it, unless it failed.

        Raises Permanent when another attempt would not help, Transient when it might; both with the log file and the
        seconds in their `detail`.
        """
        began, started = await self._now(), time.monotonic()
        file = self._log_file(member, began)
        try:
            return await self._attempt(member, occasion_of(collection_run, member.key), file, log, began)
        except AttemptEnded as failed:
            failed.detail = {"log": self._told_log(file), "seconds": round(time.monotonic() - started, 1)}
            raise

    async def _attempt(self, member: Member, occasion: str, file: Path, log: Log, began: dt.datetime) -> dict[str, Any]:
        if member.broken is not None:
            self._write_log(file, member.broken)
            raise Permanent(member.broken)
        run = await self._ledger.runs.of_occasion(occasion)
        if run is not None and run.state is RunState.FINISHED:
            verdict = await verdict_on(self._ledger, run, self._terms.max_dead)
            if verdict.status is not Status.FAILED:  # whoever ran it died before it could say so
                return await self._reported(member, verdict, run, file, 0.0)
            await self._ledger.steering.retry(run.id, _DEAD, by="shoal run")
        ended = await self._process(member, occasion, file, log, began)
        while ended.code == NotAllowed.exit_code and await self._seconds_since(began) < self._limits_of(member).timeout:
            # Somebody else runs it: one that outlived a parent that was killed, and still finishes what it has.
            await asyncio.sleep(BUSY_SECONDS)
            ended = await self._process(member, occasion, file, log, began)
        run = await self._ledger.runs.of_occasion(occasion)
        verdict = await self._verdict(run, ended, file)
        seconds = await self._seconds_since(began)
        log.info("ended", status=verdict.status.value, seconds=round(seconds, 1))
        if verdict.status is Status.FAILED:
            raise (Permanent if ended.code == UsageError.exit_code and run is None else Transient)(verdict.reason)
        return await self._reported(member, verdict, run, file, seconds)

    async def pause(self) -> None:
        """Between two members of a group."""
        await asyncio.sleep(self._terms.pause)

    def hurry(self) -> None:
        """Those that were told to leave give back what runs; who does not even do that is killed."""
        for child in self._present:
            child.tell(signal.SIGINT)
        asyncio.get_running_loop().call_later(HURRY_SECONDS, self._kill_all)

    def _kill_all(self) -> None:
        for child in self._present:
            child.kill()

    async def all_gone(self) -> None:
        """Until every process has left that was told to."""
        patience = self._terms.limits.patience
        waits = [asyncio.create_task(child.wait()) for child in self._present]
        if not waits:
            return
        _, late = await asyncio.wait(waits, timeout=patience)
        if late:
            self._kill_all()
            await asyncio.wait(late)
        self._present.clear()

    @property
    def present(self) -> int:
        return len(self._present)

    async def _reported(
        self, member: Member, verdict: Verdict, run: Run | None, file: Path, seconds: float
    ) -> dict[str, Any]:
        """What is stored about a member that did not fail; its records are exported first."""
        if self._terms.output is not None and run is not None and verdict.counts.results:
            path = self._terms.output / member.country / member.newspaper / f"{run.id}.jsonl"
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                await export_run(self._ledger, run.id, path)
            except OSError as error:
                raise Transient(f"its records cannot be exported to {path}: {error.strerror}") from None
            except ShoalError as error:
                raise Transient(f"its records are not exported: {error.message}") from None
        return _record(member, verdict, run, self._told_log(file), seconds)

    async def _process(self, member: Member, occasion: str, file: Path, log: Log, began: dt.datetime) -> Ended:
        arguments = (*command_of(member), "--occasion", occasion)
        child = await self._start(arguments, file)
        log.info("starts", pid=child.pid, log=str(file))
        self._present.add(child)

        async def quiet_seconds() -> float | None:
            run = await self._ledger.runs.of_occasion(occasion)
            if run is None:
                return None
            return await self._seconds_since((await self._ledger.reads.recent(run.id)).quiet_since)

        try:
            ended = await watch(child, self._limits_of(member), self._memory, quiet_seconds)
        except asyncio.CancelledError:
            # It finishes what it has under way; whoever waits for all of them waits for this one too.
            if not self._terms.in_front:  # one at the terminal has heard of it there
                child.tell(signal.SIGTERM)
            raise
        self._present.discard(child)
        if ended.code < 0:
            await self._bury(child, occasion, began)
        return ended

    async def _start(self, arguments: Sequence[str], file: Path) -> Child:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            if self._terms.in_front:
                return await start_here(arguments, {**self._environment, "SHOAL_LOG_DIR": str(file.parent)})
            with file.open("ab") as log:
                patience = self._terms.limits.patience
                return await start_tied(arguments, self._environment, stdout=log, stderr=log, patience=patience)
        except OSError as error:
            raise Transient(f"its process cannot be started: {error.strerror} ({error.filename or ''})") from None

    def _write_log(self, file: Path, text: str) -> None:
        """The log of a member that has no process to write one."""
        with suppress(OSError):  # the reason is in the ledger too
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{text}\n", encoding="utf-8", errors="backslashreplace")

    def _told_log(self, file: Path) -> str:
        """Where a person finds the log: one that runs in front writes into the folder, under the name of its run."""
        return str(file.parent if self._terms.in_front else file)

    async def _bury(self, child: Child, occasion: str, began: dt.datetime) -> None:
        """It was killed: what it held need not wait for the end of its lease."""
        with suppress(LedgerError):
            if (run := await self._ledger.runs.of_occasion(occasion)) is not None:
                await Roll(self._ledger, run.id, since=began).bury(child.pid)

    async def _verdict(self, run: Run | None, ended: Ended, file: Path) -> Verdict:
        told = ended.why or _end(ended.code)
        if run is None:
            return Verdict(status=Status.FAILED, reason=f"{told} before its run began{_last_words(file)}")
        verdict = await verdict_on(self._ledger, run, self._terms.max_dead)
        if ended.why is not None or run.state is not RunState.FINISHED:
            return msgspec.structs.replace(verdict, status=Status.FAILED, reason=f"{told}; {verdict.reason}")
        return verdict

    def _limits_of(self, member: Member) -> Limits:
        own = {name: getattr(member, name) for name in ("timeout", "stale", "memory")}
        return msgspec.structs.replace(
            self._terms.limits, **{name: value for name, value in own.items() if value is not None}
        )

    def _log_file(self, member: Member, began: dt.datetime) -> Path:
        folder = self._terms.logs / member.country / member.newspaper
        stamp = f"{began:%Y%m%d_%H%M%S}"
        file, tried = folder / f"{stamp}.log", 1
        while file.exists():
            tried += 1
            file = folder / f"{stamp}_{tried}.log"
        return file

    async def _now(self) -> dt.datetime:
        return (await self._ledger.health.examine()).clock

    async def _seconds_since(self, moment: dt.datetime) -> float:
        return (await self._now() - moment).total_seconds()


def occasion_of(collection_run: str, key: str) -> str:
    """What a member's run is made for: the same one again, however often it is attempted."""
    return f"{OF_A_COLLECTION}{collection_run} {key}"


def command_of(member: Member) -> tuple[str, ...]:
    """What `shoal` is told to run this member alone."""
    return ("run", str(member.path), "--name", member.name)


def _record(member: Member, verdict: Verdict, run: Run | None, log: str, seconds: float) -> dict[str, Any]:
    return {
        "member": member.key,
        "status": verdict.status.value,
        "reason": verdict.reason,
        "run_id": None if run is None else run.id,
        "done": verdict.counts.done,
        "dead": verdict.counts.dead,
        "records": verdict.counts.results,
        "seconds": round(seconds, 1),
        "log": log,
    }


def _end(code: int) -> str:
    return f"it was killed by signal {-code}" if code < 0 else f"it ended with exit code {code}"


def _last_words(file: Path) -> str:
    """The last line it wrote, as a hint for people; nothing is decided by it."""
    try:
        with file.open("rb") as log:
            log.seek(max(0, file.stat().st_size - 4096))
            lines = log.read().decode(errors="replace").split("\n")
    except OSError:
        return ""
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f"; its log ends with: {last}" if last else ""
