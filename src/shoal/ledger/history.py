"""The history of runs on both ledgers: reading it, and sampling how runs stand.

Attempts are counted when they end. How a run stands is sampled about once a minute by one process of the fleet: its
counts, and what its open items wait for. Both are kept by the minute for two days of a run, then by the hour.
"""

from __future__ import annotations

import datetime as dt
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

import msgspec

from shoal.errors import InvalidSetting, NotFound, UsageError
from shoal.ledger.catalog import Catalog
from shoal.ledger.explain import lane_code
from shoal.ledger.protocols import Reads
from shoal.ledger.rows import Queryable, array_from
from shoal.model.causes import open_items_by_cause
from shoal.model.history import MAX_HISTORY_POINTS, MINUTE_SECONDS, HistoryPoint
from shoal.model.item import ItemState
from shoal.model.latency import BUCKETS, CODE_BASE, UNKNOWN_WAIT, LatencyHistogram, add_buckets
from shoal.model.views import Counts, WaitReason

# Shorter than a minute, so that every minute has a sample although upkeep is a little late each time.
SAMPLE_SECONDS = 55.0
RUNS_PER_STEP = 50
LANES_SAMPLED = 1_000
_STATES = tuple(state.value for state in ItemState)
_SUMS = ("done", "dead", "skipped", "retried", "throttled", "results", "seconds")


class _Step:
    """Sums of one step of a history."""

    __slots__ = ("state", "sums", "waits", "works")

    def __init__(self) -> None:
        self.sums: dict[str, float] = dict.fromkeys(_SUMS, 0)
        self.waits: list[int] = []
        self.works: list[int] = []
        self.state: tuple[Counts, dict[str, int]] | None = None

    def point(self, at: int) -> HistoryPoint:
        counts, waiting_for = self.state or (None, None)
        whole = {name: int(self.sums[name]) for name in ("done", "dead", "skipped", "retried", "throttled")}
        return HistoryPoint(
            at=dt.datetime.fromtimestamp(at, dt.UTC),
            counts=counts,
            waiting_for=waiting_for,
            records=int(self.sums["results"]),
            seconds=self.sums["seconds"],
            wait=LatencyHistogram(tuple(self.waits)),
            work=LatencyHistogram(tuple(self.works)),
            **whole,
        )


async def read_points(
    db: Queryable, queries: Mapping[str, str], run_no: int, *, until: float, seconds: float, step: int
) -> list[HistoryPoint]:
    """A point for each step of the time that ends with the step that `until` is in."""
    if step < MINUTE_SECONDS or step % MINUTE_SECONDS or not 0 < seconds <= MAX_HISTORY_POINTS * step:
        raise InvalidSetting(
            f"{seconds:g} seconds in steps of {step} are not a history.",
            remedy=f"Use whole minutes as steps, at most {MAX_HISTORY_POINTS} of them: `history_step` chooses them.",
        )
    end = (int(until) // step + 1) * step
    begin = end - -int(-seconds // step) * step
    steps = [_Step() for _ in range(begin, end, step)]
    for row in await db.fetch(queries["history_activity"], run_no, begin, end):
        into = steps[(row["at"] - begin) // step]
        for name in _SUMS:
            into.sums[name] += row[name]
        into.waits = add_buckets(into.waits, array_from(row["waits"]))
        into.works = add_buckets(into.works, array_from(row["works"]))
    if "history_unfolded" in queries:
        await _add_unfolded(db, queries, run_no, begin, end, steps, step)
    for row in await db.fetch(queries["history_state"], run_no, begin, end):
        counts = Counts(**{state: row[state] for state in _STATES})
        steps[(row["at"] - begin) // step].state = counts, msgspec.json.decode(row["waiting_for"])
    return [each.point(begin + n * step) for n, each in enumerate(steps)]


async def _add_unfolded(
    db: Queryable, queries: Mapping[str, str], run_no: int, begin: int, end: int, steps: Sequence[_Step], step: int
) -> None:
    """What was committed since the counts were last folded."""
    for row in await db.fetch(queries["history_unfolded"], run_no, begin, end):
        into = steps[(row["at"] - begin) // step]
        for name in _SUMS:
            into.sums[name] += row[name]
    for row in await db.fetch(queries["history_unfolded_latencies"], run_no, begin, end):
        into = steps[(row["at"] - begin) // step]
        wait, work = divmod(row["code"], CODE_BASE)
        if wait != UNKNOWN_WAIT:
            into.waits = add_buckets(into.waits, _one_bucket(wait, row["n"]))
        into.works = add_buckets(into.works, _one_bucket(work, row["n"]))


def _one_bucket(bucket: int, count: int) -> list[int]:
    return [0] * min(bucket, BUCKETS - 1) + [count]


class RunSampler(ABC):
    """Stores how open runs stand. A round that runs out of time continues with the next run in the next round."""

    def __init__(self, queryable: Queryable, queries: Mapping[str, str], catalog: Catalog, reads: Reads) -> None:
        self._queryable = queryable
        self._sql = queries
        self._catalog = catalog
        self._reads = reads
        self._last_run = 0

    @abstractmethod
    async def _put(self, run_no: int, counts: list[int], waiting_for: str) -> None:
        """Store a sample, and shorten the run's history."""

    async def sample_open_runs(self, has_time: Callable[[], bool] = lambda: True) -> int:
        """Sample every open run, or as many as there is time for. Returns how many."""
        sampled = 0
        while True:
            runs = await self._queryable.fetch(self._sql["runs_to_sample"], self._last_run, RUNS_PER_STEP)
            for run in runs:
                await self.sample(run["id"])
                sampled += 1
                self._last_run = run["no"]
                if not has_time():
                    return sampled
            if len(runs) < RUNS_PER_STEP:
                self._last_run = 0
                return sampled

    async def sample(self, run_id: str) -> None:
        """Sample one run. Nothing happens when it is gone."""
        try:
            run = await self._catalog.run(run_id)
            counts = await self._reads.stats(run_id)
            waiting_for = await count_causes(self._reads, run_id, counts)
        except (NotFound, UsageError):  # being removed, or of another version of the code
            return
        await self._put(
            run.no, [getattr(counts, state) for state in _STATES], msgspec.json.encode(waiting_for).decode()
        )


async def count_causes(
    reads: Reads, run_id: str, counts: Counts, reasons: Sequence[WaitReason] | None = None
) -> dict[str, int]:
    """The open items of a run by what they wait for. `reasons`: of the run, if they are known already."""
    if not counts.remaining:
        return {}
    if reasons is None:
        reasons = await reads.why_run(run_id)
    lanes: dict[str, int] = {}
    if counts.waiting:
        for lane in await reads.waiting_lanes(run_id, limit=LANES_SAMPLED):
            code = lane_code(lane)
            lanes[code] = lanes.get(code, 0) + lane.waiting
    return open_items_by_cause(counts, reasons, lanes)
