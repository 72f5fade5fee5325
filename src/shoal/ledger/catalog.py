"""A cache of what rarely changes and is needed often: runs, their stages and queues, workers."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from shoal.errors import NotFound, UnknownStage, WorkerLost
from shoal.ledger.rows import Queryable
from shoal.model.run import check_key_version


class CachedRun(msgspec.Struct, frozen=True):
    """The parts of a run that never change."""

    no: int
    id: str
    stages: dict[str, int]
    first_stage: str

    def stage_id(self, name: str) -> int:
        if name not in self.stages:
            raise UnknownStage(f"The run {self.id} has no stage {name!r}; it has {', '.join(self.stages)}.")
        return self.stages[name]


class CachedQueue(msgspec.Struct, frozen=True):
    """A queue and the range of priorities that the ledger has stored for it."""

    id: int
    priority_min: int
    priority_max: int

    def covers(self, low: int, high: int) -> bool:
        return self.priority_min <= low and high <= self.priority_max

    def widened(self, low: int, high: int) -> tuple[int, int]:
        """A range that includes these too. It grows in powers of two, so that a queue is widened a few times only."""
        return (
            self.priority_min if self.priority_min <= low else _next_power_of_two(low),
            self.priority_max if high <= self.priority_max else _next_power_of_two(high),
        )


class Catalog:
    def __init__(self, db: Queryable, queries: Mapping[str, str]) -> None:
        self._db = db
        self._sql = queries
        self._runs: dict[str, CachedRun] = {}
        self._ids: dict[int, str] = {}
        self._queues: dict[tuple[int, str], CachedQueue] = {}
        self._workers: dict[str, int] = {}

    async def run(self, run_id: str) -> CachedRun:
        known = self._runs.get(run_id)
        if known is None:
            rows = await self._db.fetch(self._sql["run_stages"], run_id)
            if not rows:
                raise NotFound(f"There is no run {run_id!r}.")
            check_key_version(rows[0]["key_version"])
            stages = {row["name"]: row["stage"] for row in rows}
            known = self._runs[run_id] = CachedRun(rows[0]["no"], run_id, stages, rows[0]["name"])
            self._ids[known.no] = run_id
        return known

    async def run_by_no(self, no: int) -> CachedRun:
        if no not in self._ids:
            rows = await self._db.fetch(self._sql["run_id_of"], no)
            if not rows:
                raise NotFound(f"There is no run number {no}.")
            self._ids[no] = rows[0]["id"]
        return await self.run(self._ids[no])

    def check_run(self, run_id: str, no: int) -> None:
        """Drop a removed run from the cache if a newer run has its id, which can happen within a second."""
        known = self._runs.get(run_id)
        if known is not None and known.no != no:
            self.forget_run(run_id)

    def forget_run(self, run_id: str) -> None:
        facts = self._runs.pop(run_id, None)
        if facts is not None:
            self._ids.pop(facts.no, None)
            stages = set(facts.stages.values())
            self._queues = {key: queue for key, queue in self._queues.items() if key[0] not in stages}

    async def queues(self, wanted: Mapping[tuple[int, str], tuple[int, int]]) -> dict[tuple[int, str], int]:
        """Queue ids of (stage, partition) pairs for items of these priorities (min, max), created if needed."""
        missing: dict[tuple[int, str], tuple[int, int]] = {}
        for pair, span in wanted.items():
            known = self._queues.get(pair)
            if known is None:
                missing[pair] = span
            elif not known.covers(*span):
                missing[pair] = known.widened(*span)
        if missing:
            stages, partitions = [pair[0] for pair in missing], [pair[1] for pair in missing]
            lows, highs = [low for low, _ in missing.values()], [high for _, high in missing.values()]
            await self._db.fetch(self._sql["make_queues"], stages, partitions, lows, highs)
            for row in await self._db.fetch(self._sql["find_queues"], stages, partitions):
                self._queues[row["stage"], row["partition"]] = CachedQueue(
                    row["id"], row["priority_min"], row["priority_max"]
                )
        return {pair: self._queues[pair].id for pair in wanted}

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


def _next_power_of_two(priority: int) -> int:
    """The next power of two, away from zero."""
    size: int = 1 << abs(priority).bit_length()
    return size if priority > 0 else -size
