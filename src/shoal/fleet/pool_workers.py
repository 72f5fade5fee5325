"""The worker processes of a pool: how they are started, one slot for each, and their rows in the ledger."""

from __future__ import annotations

import asyncio
import datetime as dt
import socket
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path

import msgspec

from shoal.fleet.process import ChildCommand, ChildProcess
from shoal.ledger.protocols import Ledger
from shoal.model.log import LogNames
from shoal.model.worker import WorkerView


class WorkerTotals(msgspec.Struct, frozen=True, kw_only=True):
    """Items that a worker finished, and its attempts, with those that are repeated."""

    done: int = 0
    dead: int = 0
    skipped: int = 0
    attempts: int = 0


class PoolWorkers:
    """The workers of one run on this machine, matched by process id. `since`: the ledger's time when the pool began."""

    def __init__(self, ledger: Ledger, run_id: str, since: dt.datetime) -> None:
        self._ledger = ledger
        self._run_id = run_id
        self._since = since
        self._node = socket.gethostname()

    async def mark_dead(self, pid: int) -> int:
        """Release the leases of a process that has ended; returns how many items that were."""
        freed = 0
        for worker in await self._ledger.workers.list():
            if self._is_ours(worker, pid):
                freed += (await self._ledger.workers.mark_dead(worker.id)).rescued
        return freed

    async def are_outdated(self) -> bool:
        """Whether the ledger was upgraded beyond what this Shoal knows, so that no process of it may work on it."""
        return (await self._ledger.schema.version() or 0) > self._ledger.schema.known_version

    async def count_leases(self, pids: Collection[int]) -> int:
        """How many items these processes have leased."""
        workers = await self._ledger.workers.list()
        return sum(worker.leased for worker in workers if any(self._is_ours(worker, pid) for pid in pids))

    async def count_by_worker(self, processes: Iterable[tuple[int, int]]) -> dict[int, WorkerTotals]:
        """Totals by worker number. `processes`: pairs of a worker's number and the id of one of its processes."""
        now = (await self._ledger.health.check()).clock
        # The ledger counts by whole minutes; the one in which the pool began is included.
        minutes = int((now - self._since).total_seconds() // 60) + 2
        work = {row.worker: row for row in await self._ledger.reads.workers(self._run_id, minutes=minutes)}
        workers = await self._ledger.workers.list(present=False)
        sums: dict[int, WorkerTotals] = {}
        for number, pid in processes:
            before = sums.get(number, WorkerTotals())
            mine = [work[worker.id] for worker in workers if worker.id in work and self._is_ours(worker, pid)]
            sums[number] = WorkerTotals(
                done=before.done + sum(row.done for row in mine),
                dead=before.dead + sum(row.dead for row in mine),
                skipped=before.skipped + sum(row.skipped for row in mine),
                attempts=before.attempts + sum(row.attempts for row in mine),
            )
        return sums

    def _is_ours(self, worker: WorkerView, pid: int) -> bool:
        return (
            worker.pid == pid
            and worker.node == self._node
            and worker.scope.run_ids == (self._run_id,)
            and worker.started_at >= self._since
        )


class WorkerLauncher:
    """Builds the worker processes of one run.

    `target` is the scraper as `shoal worker` finds it. `stop_timeout`: seconds from a worker's first stop signal to
    SIGKILL. `only`: workers take nothing but their own partitions. `options_of`: further options of a worker, by its
    number, as one that starts now gets them.
    """

    def __init__(
        self,
        target: str,
        run_id: str,
        environment: Mapping[str, str],
        logs: Path,
        names: LogNames,
        *,
        stop_timeout: float,
        only: bool = False,
        options_of: Callable[[int], Sequence[str]] = lambda number: (),
    ) -> None:
        self.options_of = options_of
        self._target = target
        self._run_id = run_id
        self._environment = environment
        self._logs = logs
        self._names = names
        self._stop_timeout = stop_timeout
        self._only = only

    def log_file(self, number: int) -> Path:
        return self._logs / self._names.of_worker(number)

    def build(
        self, number: int, partitions: Sequence[str], options: Sequence[str], *, on_kill: Callable[[], None]
    ) -> ChildProcess:
        own = (*(f"--partition={name}" for name in partitions), *(("--only",) if self._only else ()))
        command = ChildCommand(
            arguments=("worker", self._target, "--run-id", self._run_id, *own, *options),
            environment=self._environment,
            stop_timeout=self._stop_timeout,
            log=self.log_file(number),
        )
        return ChildProcess(command, on_kill=on_kill)


class SlotState(StrEnum):
    """What a slot's worker does, or why the slot has none."""

    RUNNING = "at work"
    COMPLETED = "nothing left to do"
    STOPPED = "stopped"
    GAVE_UP = "gave up"
    HANDLER_FAILING = "its handler fails every time"
    OUTDATED = "the ledger was upgraded"


class PoolSlot:
    """The place of one worker: its processes, one after another, and how the last one ended.

    `wanted`: a worker shall run here. `options`: what the last process was started with, from `options_of`. `pids`: of
    all its processes so far. `changed` is set when one starts or ends.
    """

    def __init__(self, number: int, partitions: tuple[str, ...]) -> None:
        self.number = number
        self.partitions = partitions
        self.wanted = True
        self.options: Sequence[str] | None = None
        self.restarts = 0
        self.pids: list[int] = []
        self.state = SlotState.RUNNING
        self.changed = asyncio.Event()
        self._child: ChildProcess | None = None

    @property
    def is_empty(self) -> bool:
        """No process is running here."""
        return self._child is None or not self._child.is_running

    @property
    def stop_requested(self) -> bool:
        """The last process was asked to stop."""
        return self._child is not None and self._child.stop_requested

    async def start(self, child: ChildProcess) -> None:
        """Raises OSError. A stop request that arrives meanwhile takes effect when the process has started."""
        self._child = child
        await child.start()
        self.pids.append(child.pid)
        self.changed.set()

    async def wait(self) -> int:
        """Until the process has ended; returns its exit code."""
        assert self._child is not None
        try:
            return await self._child.wait()
        finally:
            self.changed.set()

    def stop(self) -> None:
        """The first call drains the worker, a second one makes it give back what runs."""
        self.changed.set()
        if self._child is not None:
            self._child.stop()
