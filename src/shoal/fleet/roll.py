"""The workers of a pool as the ledger knows them: found by their process, buried when that has died, and counted."""

from __future__ import annotations

import datetime as dt
import socket
from collections.abc import Collection, Iterable

import msgspec

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

    async def bury(self, pid: int) -> int:
        """This process is dead: what it held is free at once. Returns how many items that were."""
        freed = 0
        for worker in await self._ledger.workers.list():
            if self._is_ours(worker, pid):
                freed += (await self._ledger.workers.bury(worker.id)).rescued
        return freed

    async def held_by(self, pids: Collection[int]) -> int:
        """How many items these processes have."""
        workers = await self._ledger.workers.list()
        return sum(worker.leased for worker in workers if any(self._is_ours(worker, pid) for pid in pids))

    async def tallies(self, processes: Iterable[tuple[int, int]]) -> dict[int, Tally]:
        """What was done, by the number of the worker; `processes` says which number each process had."""
        now = (await self._ledger.health.examine()).clock
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
