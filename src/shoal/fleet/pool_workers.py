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


class Tally(msgspec.Struct, frozen=True, kw_only=True):
    done: int = 0
    dead: int = 0


class Roll:
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

    async def held_by(self, pids: Collection[int]) -> int:
        """How many items these processes have."""
        workers = await self._ledger.workers.list()
        return sum(worker.leased for worker in workers if any(self._is_ours(worker, pid) for pid in pids))

    async def tallies(self, processes: Iterable[tuple[int, int]]) -> dict[int, Tally]:
        """What was done, by the number of the worker; `processes` says which number each process had."""
        now = (await self._ledger.health.check()).clock
        # The ledger counts by whole minutes: the one in which the pool began belongs to it too.
        minutes = int((now - self._since).total_seconds() // 60) + 2
        work = {row.worker: row for row in await self._ledger.reads.workers(self._run_id, minutes=minutes)}
        workers = await self._ledger.workers.list(present=False)
        sums: dict[int, Tally] = {}
        for number, pid in processes:
            before = sums.get(number, Tally())
            mine = [work[worker.id] for worker in workers if worker.id in work and self._is_ours(worker, pid)]
            sums[number] = Tally(
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


class Ended(StrEnum):
    """How a place came to be empty for good."""

    NO = "at work"
    LEFT = "nothing left to do"
    SENT_HOME = "stopped"
    GAVE_UP = "gave up"
    BROKEN = "its handler fails every time"


class Place:
    """`wanted`: somebody is to work here. `told`: the process that is here was asked to leave."""

    def __init__(self, number: int, partitions: tuple[str, ...]) -> None:
        self.number = number
        self.partitions = partitions
        self.wanted = True
        self.told = False
        self.restarts = 0
        self.pids: list[int] = []
        self.ended = Ended.NO
        self.changed = asyncio.Event()
        self._child: Child | None = None
        self._end: asyncio.TimerHandle | None = None

    @property
    def is_empty(self) -> bool:
        return self._child is None

    async def filled_by(self, child: Child) -> int:
        """Until the process has ended; returns its exit code."""
        self._child = child
        self.pids.append(child.pid)
        self.changed.set()
        try:
            return await child.wait()
        finally:
            self._child = None
            if self._end is not None:
                self._end.cancel()
            self.changed.set()

    def ask_to_leave(self, patience: float, tell: Callable[[str], None]) -> None:
        """Asked once, the worker finishes what runs; asked again, it gives that back; after `patience` it is killed."""
        self.changed.set()
        if self._child is None:
            return
        child, first = self._child, not self.told
        self.told = True
        # A worker counts both alike. Two of the same kind that come close together would reach it as one.
        child.tell(signal.SIGTERM if first else signal.SIGINT)
        if first:
            self._end = asyncio.get_running_loop().call_later(patience, self._kill, child, tell)

    def _kill(self, child: Child, tell: Callable[[str], None]) -> None:
        tell(f"Worker {self.number} does not leave and is killed.")
        child.tell(signal.SIGKILL)
