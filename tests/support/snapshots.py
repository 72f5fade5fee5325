"""Moments made by hand."""

from __future__ import annotations

import datetime as dt
from typing import Any

import msgspec

from shoal.model.run import Run, RunState
from shoal.model.views import Counts, PartitionProgress, WaitReason, sum_counts
from shoal.observe.snapshot import Snapshot

NOON = dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC)


def run_like(**fields: Any) -> Run:
    known: dict[str, Any] = {
        "no": 1,
        "id": "20260131_120000",
        "scraper": "shop",
        "state": RunState.ACTIVE,
        "sealed": True,
        "settings": {},
        "code_version": None,
        "key_version": 1,
        "max_attempts": 4,
        "max_rescues": 3,
        "created_at": NOON,
        "finished_at": None,
        "stages": ("page",),
        "idempotency_key": None,
    }
    return Run(**(known | fields))


def moment(*gates: WaitReason, state: RunState = RunState.ACTIVE, sealed: bool = True, **counts: int) -> Snapshot:
    """One stage, one partition."""
    made = parted({("page", ""): Counts(**counts)}, *gates, state=state)
    return msgspec.structs.replace(made, run=msgspec.structs.replace(made.run, sealed=sealed))


def parted(
    parts: dict[tuple[str, str], Counts], *gates: WaitReason, state: RunState = RunState.ACTIVE, at: dt.datetime = NOON
) -> Snapshot:
    progress = tuple(PartitionProgress(stage=s, partition=p, counts=counts) for (s, p), counts in parts.items())
    return Snapshot(
        at=at,
        run=run_like(state=state, stages=tuple(dict.fromkeys(stage for stage, _ in parts))),
        counts=sum_counts(parts.values()),
        partitions=progress,
        gates=gates,
    )
