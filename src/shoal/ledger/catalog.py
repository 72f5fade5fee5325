"""What rarely changes and is looked up often: runs, their stages and queues, workers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from shoal.errors import NotFound, UnknownStage, WorkerLost
from shoal.ledger.rows import Queryable
from shoal.model.run import check_key_version


class RunFacts(msgspec.Struct, frozen=True):
    """The parts of a run that never change."""

    no: int
    id: str
    stages: dict[str, int]
    first_stage: str

    def stage_id(self, name: str) -> int:
        if name not in self.stages:
            raise UnknownStage(f"The run {self.id} has no stage {name!r}; it has {', '.join(self.stages)}.")
        return self.stages[name]


class Catalog:
    def __init__(self, db: Queryable, queries: Mapping[str, str]) -> None:
        self._db = db
        self._sql = queries
        self._runs: dict[str, RunFacts] = {}
        self._ids: dict[int, str] = {}
        self._queues: dict[tuple[int, str], int] = {}
        self._workers: dict[str, int] = {}

    async def run(self, run_id: str) -> RunFacts:
        known = self._runs.get(run_id)
        if known is None:
            rows = await self._db.fetch(self._sql["run_facts"], run_id)
            if not rows:
                raise NotFound(f"There is no run {run_id!r}.")
            check_key_version(rows[0]["key_version"])
            stages = {row["name"]: row["stage"] for row in rows}
            known = self._runs[run_id] = RunFacts(rows[0]["no"], run_id, stages, rows[0]["name"])
            self._ids[known.no] = run_id
        return known

    async def run_by_no(self, no: int) -> RunFacts:
        if no not in self._ids:
            rows = await self._db.fetch(self._sql["run_id_of"], no)
            if not rows:
                raise NotFound(f"There is no run number {no}.")
            self._ids[no] = rows[0]["id"]
        return await self.run(self._ids[no])

    def forget_run(self, run_id: str) -> None:
        facts = self._runs.pop(run_id, None)
        if facts is not None:
            self._ids.pop(facts.no, None)
            stages = set(facts.stages.values())
            self._queues = {key: queue for key, queue in self._queues.items() if key[0] not in stages}

    async def queues(self, wanted: Iterable[tuple[int, str]]) -> dict[tuple[int, str], int]:
        """Queue ids of (stage, partition) pairs, made if need be."""
        pairs = set(wanted)
        missing = [pair for pair in pairs if pair not in self._queues]
        if missing:
            stages, partitions = [pair[0] for pair in missing], [pair[1] for pair in missing]
            await self._db.fetch(self._sql["make_queues"], stages, partitions)
            for row in await self._db.fetch(self._sql["find_queues"], stages, partitions):
                self._queues[row["stage"], row["partition"]] = row["id"]
        return {pair: self._queues[pair] for pair in pairs}

    async def worker_no(self, worker: str) -> int:
        no = self._workers.get(worker)
        if no is None:
            rows = await self._db.fetch(self._sql["worker_no"], worker)
            if not rows:
                raise WorkerLost(f"There is no worker {worker!r}.")
            no = self._workers[worker] = rows[0]["no"]
        return no

    def forget_worker(self, worker: str) -> None:
        self._workers.pop(worker, None)
