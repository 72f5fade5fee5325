"""The worker processes of a pool: one per slot, matched with their rows in the ledger.

The workers of a pool as the ledger knows them: found by their process, buried when that has died, and counted.

A worker's place in a pool: which process has it, how often it was filled anew, and how it ended.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import signal
import socket
from collections.abc import Callable, Collection, Iterable
from enum import StrEnum

import msgspec

from shoal.fleet.process import Child
from shoal.ledger.protocols import Ledger
from shoal.model.worker import WorkerView


class WorkerTotals(msgspec.Struct, frozen=True, kw_only=True):
    done: int = 0
    dead: int = 0


class PoolWorkers:
    """Of one run, on this machine. `since`: the ledger's time when the pool began."""

    def __init__(self, ledger: Ledger, run_id: str, since: dt.datetime) -> None:
        self._ledger = ledger
        self._run_id = run_id
        self._since = since
        self._node = socket.gethostname()

    async def mark_dead(self, pid: int) -> int:
        """This process is dead: what it held is free at once. Returns how many items that were."""
        freed = 0
        for worker in await self._ledger.workers.list():
            if self._is_ours(worker, pid):
                freed += (await self._ledger.workers.mark_dead(worker.id)).rescued
        return freed

    async def count_leases(self, pids: Collection[int]) -> int:
        """How many items these processes have."""
        workers = await self._ledger.workers.list()
        return sum(worker.leased for worker in workers if any(self._is_ours(worker, pid) for pid in pids))

    async def count_by_worker(self, processes: Iterable[tuple[int, int]]) -> dict[int, WorkerTotals]:
        """What was done, by the number of the worker; `processes` says which number each process had."""
        now = (await self._ledger.health.check()).clock
        # The ledger counts by whole minutes: the one in which the pool began belongs to it too.
        minutes = int((now - self._since).total_seconds() // 60) + 2
        work = {row.worker: row for row in await self._ledger.reads.workers(self._run_id, minutes=minutes)}
        workers = await self._ledger.workers.list(present=False)
        sums: dict[int, WorkerTotals] = {}
        for number, pid in processes:
            before = sums.get(number, WorkerTotals())
            mine = [work[worker.id] for worker in workers if worker.id in work and self._is_ours(worker, pid)]
            sums[number] = WorkerTotals(
                done=before.done + sum(row.done for row in mine), dead=before.dead + sum(row.dead for row in mine)
            )
        return sums

    def _is_ours(self, worker: WorkerView, pid: int) -> bool:
        return (
            worker.pid == pid
            and worker.node == self._node
            and worker.scope.run_ids == (self._run_id,)
            and worker.started_at >= self._since
        )


class SlotState(StrEnum):
    """How a place came to be empty for good."""

    RUNNING = "at work"
    COMPLETED = "nothing left to do"
    STOPPED = "stopped"
    GAVE_UP = "gave up"
    HANDLER_FAILING = "its handler fails every time"


class PoolSlot:
    """`wanted`: somebody is to work here. `stop_requested`: the process that is here was asked to leave."""

    def __init__(self, number: int, partitions: tuple[str, ...]) -> None:
        self.number = number
        self.partitions = partitions
        self.wanted = True
        self.stop_requested = False
        self.restarts = 0
        self.pids: list[int] = []
        self.state = SlotState.RUNNING
        self.changed = asyncio.Event()
        self._child: Child | None = None
        self._kill_timer: asyncio.TimerHandle | None = None

    @property
    def is_empty(self) -> bool:
        return self._child is None

    async def run_process(self, child: Child) -> int:
        """Until the process has ended; returns its exit code."""
        self._child = child
        self.pids.append(child.pid)
        self.changed.set()
        try:
            return await child.wait()
        finally:
            self._child = None
            if self._kill_timer is not None:
                self._kill_timer.cancel()
            self.changed.set()

    def request_stop(self, stop_timeout: float, print_line: Callable[[str], None]) -> None:
        """Asked once, the worker finishes what runs; asked again, it gives that back; after `stop_timeout` it is
        killed.
        """
        self.changed.set()
        if self._child is None:
            return
        child, first = self._child, not self.stop_requested
        self.stop_requested = True
        # A worker counts both alike. Two of the same kind that come close together would reach it as one.
        child.send_signal(signal.SIGTERM if first else signal.SIGINT)
        if first:
            self._kill_timer = asyncio.get_running_loop().call_later(stop_timeout, self._kill, child, print_line)

    def _kill(self, child: Child, print_line: Callable[[str], None]) -> None:
        print_line(f"Worker {self.number} does not leave and is killed.")
        child.send_signal(signal.SIGKILL)
