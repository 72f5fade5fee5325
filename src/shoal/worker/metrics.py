"""What a worker measures about itself, for whoever exports it. Nothing here is stored in the ledger."""

from __future__ import annotations

from collections import Counter

from shoal.model.latency import LatencyRecorder
from shoal.model.outcome import OutcomeClass


class WorkerMetrics:
    """Counters and histograms since the worker started; they only grow.

    `claim_seconds`, `commit_seconds`: how long the ledger took for each call, those that failed included.
    `wait_seconds`: from the time an item became claimable until its attempt began; `work_seconds`: how long attempts
    took. `claimed_items`, `committed_items`: items of these calls; `lost_items`: committed too late, their leases were
    lost. `claim_errors`, `commit_errors`: calls that raised. `attempts`: committed attempts by outcome.

    Changed by the worker's event loop only; a thread that exports it may read it at any time.
    """

    __slots__ = (
        "attempts",
        "claim_errors",
        "claim_seconds",
        "claimed_items",
        "commit_errors",
        "commit_seconds",
        "committed_items",
        "lost_items",
        "wait_seconds",
        "work_seconds",
    )

    def __init__(self) -> None:
        self.claim_seconds = LatencyRecorder()
        self.commit_seconds = LatencyRecorder()
        self.wait_seconds = LatencyRecorder()
        self.work_seconds = LatencyRecorder()
        self.claimed_items = 0
        self.committed_items = 0
        self.lost_items = 0
        self.claim_errors = 0
        self.commit_errors = 0
        self.attempts: Counter[OutcomeClass] = Counter()
