"""The state of a run at one point in time, its bottleneck, and the versions of its workers.

The bottleneck is derived from the gates (wait reasons) that the ledger reports. A gate that blocks the whole run
(paused, no live worker, full disk) comes first; otherwise the largest group of open items decides.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from shoal.ledger.protocols import Ledger
from shoal.model.causes import (
    ANY_LANE,
    DEAD_WORKERS,
    DELAY_CAUSES,
    DISK_FULL,
    EGRESS,
    FREE_WORKERS,
    LANE_CAUSES,
    NO_WORKER,
    RUN_CAUSES,
    egress_cause,
)
from shoal.model.egress import PoolView
from shoal.model.run import Run, RunState
from shoal.model.views import Counts, PartitionProgress, WaitReason, sum_counts
from shoal.model.worker import WorkerView
from shoal.observe.formatting import format_time, pluralize

ENDED = (RunState.FINISHED, RunState.CANCELLED)
_NO_ITEMS_GATES = ("unsealed", "nothing_left")
# Delayed items that keep their place in a lane are counted with the items waiting for that lane.
_IN_LANES = ("delayed_blocked", "delayed_order", "delayed_lane")
_LANES = "lanes"
_DEAD = "held_by_dead"
VERSION_SKEW_REMEDY = (
    "Unless an upgrade is in progress, stop the old workers (`shoal workers stop`); each finishes its items first."
)


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A run with its counts. `counts` is the sum of `partitions`; `gates` are its wait reasons, most important first.

    `at`: when it was read, by the ledger's clock. `egress`: the pools of exits that live workers use.
    """

    at: dt.datetime
    run: Run
    counts: Counts
    partitions: tuple[PartitionProgress, ...]
    gates: tuple[WaitReason, ...]
    egress: tuple[PoolView, ...] = ()

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

    def of_stage(self, stage: str) -> Snapshot:
        """The same of the items of one stage."""
        partitions = tuple(part for part in self.partitions if part.stage == stage)
        return msgspec.structs.replace(self, counts=self.stages[stage], partitions=partitions)


async def take_snapshot(ledger: Ledger, run_id: str, *, gates: Sequence[WaitReason] | None = None) -> Snapshot:
    """Read the run. Given `gates` are reused: reading them is the slowest query."""
    run = await ledger.runs.get(run_id)
    partitions = tuple(await ledger.reads.partitions(run_id))
    if gates is None:
        gates = await ledger.reads.why_run(run_id)
    counts = sum_counts(part.counts for part in partitions)
    pools = () if run.state in ENDED else tuple(pool for pool in await ledger.exits.pools() if pool.members)
    # By the ledger's clock, as everything that it is compared with; this machine's may be wrong.
    at = dt.datetime.fromtimestamp(await ledger.lanes.clock(), dt.UTC)
    return Snapshot(at=at, run=run, counts=counts, partitions=partitions, gates=tuple(gates), egress=pools)


class Bottleneck(msgspec.Struct, frozen=True):
    """What limits a run: `cause` in a few words, the `share` of open items it affects if countable, `text` in full.

    `blocks_run`: nothing proceeds until an operator acts, so there is no ETA.
    """

    cause: str
    share: float | None = None
    text: str = ""
    blocks_run: bool = False


def find_bottleneck(counts: Counts, gates: Sequence[WaitReason]) -> Bottleneck:
    """The main cause. `gates` come from `why_run`, most important first."""
    by_code: dict[str, WaitReason] = {}
    for gate in gates:
        by_code.setdefault(gate.code, gate)
    for code, cause in RUN_CAUSES.items():
        if counts.remaining and code in _NO_ITEMS_GATES:
            continue  # the gates are slightly older than the counts
        if code in by_code:
            return Bottleneck(cause, text=by_code[code].text, blocks_run=code == "run_paused")
    if counts.remaining == 0:
        return Bottleneck("nothing")
    if "ledger_full" in by_code:
        return Bottleneck(DISK_FULL, text=by_code["ledger_full"].text, blocks_run=True)
    if "no_worker" in by_code and counts.leased <= _held_by_dead(by_code):
        text = " ".join(by_code[code].text for code in ("no_worker", _DEAD) if code in by_code)
        return Bottleneck(NO_WORKER, text=text, blocks_run=True)
    return _largest_group(counts, by_code, [gate for gate in gates if gate.code == EGRESS])


def _held_by_dead(by_code: dict[str, WaitReason]) -> int:
    return (by_code[_DEAD].items or 0) if _DEAD in by_code else 0


def _largest_group(counts: Counts, by_code: dict[str, WaitReason], no_exit: Sequence[WaitReason]) -> Bottleneck:
    dead = min(counts.leased, _held_by_dead(by_code))
    # Items that no worker can take, because it has no exit, are ready or wait for their lanes.
    held = min(sum(gate.items or 0 for gate in no_exit), counts.ready + counts.waiting)
    groups = {
        "leased": counts.leased - dead,
        _DEAD: dead,
        EGRESS: held,
        "ready": max(0, counts.ready - held),
        _LANES: counts.waiting - max(0, held - counts.ready),
    }
    for code in DELAY_CAUSES:
        if code in by_code:
            group = _LANES if code in _IN_LANES else EGRESS if code == "delayed_egress" else code
            groups[group] = groups.get(group, 0) + (by_code[code].items or 0)
    largest = max(groups, key=lambda group: groups[group])
    # Delayed items are counted up to a limit, and the counts may be slightly older.
    share = min(1.0, groups[largest] / counts.remaining)
    match largest:
        case "leased":
            return Bottleneck("nothing", text=by_code["leased"].text if "leased" in by_code else "")
        case "held_by_dead":
            return Bottleneck(DEAD_WORKERS, share, by_code[_DEAD].text)
        case "ready":
            gate = by_code.get("no_worker", by_code.get("ready"))
            return Bottleneck(FREE_WORKERS, share, gate.text if gate else "")
        case "lanes":
            return _lane_bottleneck(by_code, share)
        case "egress":
            return _egress_bottleneck(by_code, share)
        case code:
            return Bottleneck(DELAY_CAUSES[code], share, by_code[code].text)


def _egress_bottleneck(by_code: dict[str, WaitReason], share: float) -> Bottleneck:
    """The pool with most items, with the time when it may go on."""
    gate = by_code.get(EGRESS, by_code.get("delayed_egress"))
    if gate is None:
        return Bottleneck(EGRESS, share)
    text = gate.text
    if gate.until is not None:
        text += f" It may go on at {format_time(gate.until)}."
    elif gate.since is not None:
        text += f" It has waited since {format_time(gate.since)}."
    return Bottleneck(egress_cause(gate) if gate.code == EGRESS else EGRESS, share, text)


def _lane_bottleneck(by_code: dict[str, WaitReason], share: float) -> Bottleneck:
    """The cause at the busiest lane, which the ledger lists first."""
    for code, gate in by_code.items():
        if code in LANE_CAUSES:
            return Bottleneck(LANE_CAUSES[code], share, gate.text)
    for code in _IN_LANES:
        if code in by_code:
            return Bottleneck(DELAY_CAUSES[code], share, by_code[code].text)
    # The gates are slightly older than the counts: the next snapshot names the cause.
    return Bottleneck(ANY_LANE, share, by_code["waiting"].text if "waiting" in by_code else "")


class VersionSkew(msgspec.Struct, frozen=True, kw_only=True):
    """Number of workers per version of Shoal and per version of the scraper's code. Unknown versions are left out."""

    versions: dict[str, int]
    codes: dict[str, int]

    @property
    def lines(self) -> list[str]:
        """One sentence per kind of difference; empty when there is none."""
        sentences = []
        if len(self.versions) > 1:
            sentences.append(f"Workers run different versions of Shoal: {format_counts(self.versions)}.")
        if len(self.codes) > 1:
            sentences.append(f"Workers run different code: {format_counts(self.codes)}.")
        return sentences


def version_skew(workers: Iterable[WorkerView]) -> VersionSkew:
    workers = list(workers)
    return VersionSkew(
        versions=dict(Counter(worker.version for worker in workers if worker.version).most_common()),
        codes=dict(Counter(worker.code for worker in workers if worker.code).most_common()),
    )


def live_workers(workers: Sequence[WorkerView], run: Run) -> list[WorkerView]:
    """The workers that are alive and claim items of this run."""
    return [worker for worker in workers if worker.alive and worker.scope.includes_run(run.id, run.scraper)]


def format_counts(versions: dict[str, int]) -> str:
    """`0.2 (3 workers), 0.1 (1 worker)`"""
    return ", ".join(f"{version} ({pluralize(count, 'worker')})" for version, count in versions.items())
