"""The state of a run at one point in time, what limits it, and which versions work on it.

A run at one moment, as the ledger tells it. A few small reads, none of which counts rows.

What holds a run back, from the gates that the ledger names: one phrase, its share of the open items, and a sentence.

Some gates stop everything (a paused run, no live worker, a full disk); they win. Otherwise the largest group of open
items names the reason: behind their lanes, delayed, held by dead workers, ready without anybody to take them, or simply
being worked on.

Old and new side by side: which versions of Shoal and of a scraper's code work at the same time.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from shoal.ledger.protocols import Ledger
from shoal.model.run import Run, RunState
from shoal.model.views import Counts, PartitionProgress, WaitReason, sum_counts
from shoal.model.worker import WorkerView

ENDED = (RunState.FINISHED, RunState.CANCELLED)
# Gates before which nothing of the run moves, and how to name them in a few words.
_BLOCKING_GATES = {
    "run_paused": "the run is paused",
    "run_finished": "nothing",
    "run_cancelled": "nothing",
    "unsealed": "more items",
    "nothing_left": "nothing",
}
_EMPTY_GATES = ("unsealed", "nothing_left")
_LANE_GATES = {
    "lane_paused": "paused lane",
    "lane_blocked": "rate limit of the site",
    "lane_order": "earlier items of their groups",
    "lane_limit": "host limit",
    "lane_delay": "host delay",
}
_DELAYS = {
    "delayed_retry": "retries",
    "delayed_throttled": "rate limit of the site",
    "delayed_not_before": "a set time",
    "delayed_blocked": "rate limit of the site",
    "delayed_order": "earlier items of their groups",
    "delayed_lane": "host delay",
}
# Items that keep their place in a lane stand in the same line as those behind them.
_IN_LANES = ("delayed_blocked", "delayed_order", "delayed_lane")
_LANES = "lanes"
_DEAD = "held_by_dead"
REMEDY = "Unless this is an upgrade under way, stop the old ones (`shoal workers stop`): each finishes first."


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """`counts` is the sum of `partitions`, so the two never disagree. `gates`: what holds the run back, worst first.

    `at` is when it was looked at, by this machine's clock: good enough to show, not to decide by.
    """

    at: dt.datetime
    run: Run
    counts: Counts
    partitions: tuple[PartitionProgress, ...]
    gates: tuple[WaitReason, ...]

    @property
    def ended(self) -> bool:
        return self.run.state in ENDED

    @property
    def stages(self) -> dict[str, Counts]:
        """Counts per stage, in the order of the run's stages."""
        return {
            stage: sum_counts(part.counts for part in self.partitions if part.stage == stage)
            for stage in self.run.stages
        }


async def take_snapshot(ledger: Ledger, run_id: str, *, gates: Sequence[WaitReason] | None = None) -> Snapshot:
    """The run now. Given `gates`, those are used again: asking why is the dearest of the reads."""
    run = await ledger.runs.get(run_id)
    partitions = tuple(await ledger.reads.partitions(run_id))
    if gates is None:
        gates = await ledger.reads.why_run(run_id)
    counts = sum_counts(part.counts for part in partitions)
    return Snapshot(at=dt.datetime.now(dt.UTC), run=run, counts=counts, partitions=partitions, gates=tuple(gates))


class Bottleneck(msgspec.Struct, frozen=True):
    """`cause` in a few words; `share` of the open items it holds, if it can be counted; `text` says it in full.

    `blocks_run`: nothing of the run moves until somebody does something about it, so nobody can tell when it will end.
    """

    cause: str
    share: float | None = None
    text: str = ""
    blocks_run: bool = False


def find_bottleneck(counts: Counts, gates: Sequence[WaitReason]) -> Bottleneck:
    """The one thing to name. `gates` are those of `why_run`, the most important first."""
    by_code: dict[str, WaitReason] = {}
    for gate in gates:
        by_code.setdefault(gate.code, gate)
    for code, cause in _BLOCKING_GATES.items():
        if counts.remaining and code in _EMPTY_GATES:
            continue  # the gates are a moment older than the counts
        if code in by_code:
            return Bottleneck(cause, text=by_code[code].text, blocks_run=code == "run_paused")
    if counts.remaining == 0:
        return Bottleneck("nothing")
    if "ledger_full" in by_code:
        return Bottleneck("space on the ledger's disk", text=by_code["ledger_full"].text, blocks_run=True)
    if "no_worker" in by_code and counts.leased <= _held_by_dead(by_code):
        text = " ".join(by_code[code].text for code in ("no_worker", _DEAD) if code in by_code)
        return Bottleneck("a live worker", text=text, blocks_run=True)
    return _largest_group(counts, by_code)


def _held_by_dead(by_code: dict[str, WaitReason]) -> int:
    return (by_code[_DEAD].items or 0) if _DEAD in by_code else 0


def _largest_group(counts: Counts, by_code: dict[str, WaitReason]) -> Bottleneck:
    dead = min(counts.leased, _held_by_dead(by_code))
    groups = {"leased": counts.leased - dead, _DEAD: dead, "ready": counts.ready, _LANES: counts.waiting}
    for code in _DELAYS:
        if code in by_code:
            group = _LANES if code in _IN_LANES else code
            groups[group] = groups.get(group, 0) + (by_code[code].items or 0)
    largest = max(groups, key=lambda group: groups[group])
    # The delayed are counted up to a limit only, and the counts may be a moment older.
    share = min(1.0, groups[largest] / counts.remaining)
    match largest:
        case "leased":
            return Bottleneck("nothing", text=by_code["leased"].text if "leased" in by_code else "")
        case "held_by_dead":
            return Bottleneck("items of dead workers", share, by_code[_DEAD].text)
        case "ready":
            gate = by_code.get("no_worker", by_code.get("ready"))
            return Bottleneck("free workers", share, gate.text if gate else "")
        case "lanes":
            return _lane_bottleneck(by_code, share)
        case code:
            return Bottleneck(_DELAYS[code], share, by_code[code].text)


def _lane_bottleneck(by_code: dict[str, WaitReason], share: float) -> Bottleneck:
    """The busiest lane speaks for all: the ledger names it first, and a stop before a limit."""
    for code, gate in by_code.items():
        if code in _LANE_GATES:
            return Bottleneck(_LANE_GATES[code], share, gate.text)
    for code in _IN_LANES:
        if code in by_code:
            return Bottleneck(_DELAYS[code], share, by_code[code].text)
    # The gates are a moment older than the counts: which rule of the lanes it is, the next look says.
    return Bottleneck("their lanes", share, by_code["waiting"].text if "waiting" in by_code else "")


class VersionSkew(msgspec.Struct, frozen=True, kw_only=True):
    """How many workers have which version of Shoal, and which code. Workers that do not say are left out."""

    versions: dict[str, int]
    codes: dict[str, int]

    @property
    def lines(self) -> list[str]:
        """A sentence for each kind of difference; none when all are alike."""
        sentences = []
        if len(self.versions) > 1:
            sentences.append(f"Workers run different versions of Shoal: {format_counts(self.versions)}.")
        if len(self.codes) > 1:
            sentences.append(f"Workers run different code: {format_counts(self.codes)}.")
        return sentences


def version_skew(workers: Iterable[WorkerView]) -> VersionSkew:
    known = list(workers)
    return VersionSkew(
        versions=dict(Counter(worker.version for worker in known if worker.version).most_common()),
        codes=dict(Counter(worker.code for worker in known if worker.code).most_common()),
    )


def live_workers(workers: Sequence[WorkerView], run: Run) -> list[WorkerView]:
    """Those that are alive and take items of this run."""
    return [worker for worker in workers if worker.alive and worker.scope.includes_run(run.id, run.scraper)]


def format_counts(kinds: dict[str, int]) -> str:
    """`0.2 (3 workers), 0.1 (1 worker)`"""
    return ", ".join(f"{kind} ({count} {'worker' if count == 1 else 'workers'})" for kind, count in kinds.items())
