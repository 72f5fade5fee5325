"""The options of a worker, why it stops, and the summary of its work."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from shoal.autoscale.rules import LoadLimits
from shoal.model.worker import DEFAULT_LEASE_SECONDS, Scope


class WorkerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of one worker.

    `concurrency`: items processed at once; with `min_concurrency` it varies between the two, as load and backlog allow
    (`limits`). `batch_size`: the maximum of items per claim. `prefetch`: claim items ahead. `lease`: seconds without a
    heartbeat after which other workers get the items. `drain`: seconds that running items get after a stop. `limit`:
    leave after so many items. `stop_when_idle`: leave when nothing is claimable now, though the run has not ended.
    `forever`: stay when nothing is left. `patience`: seconds to wait for a full disk. `version`: of Shoal; `code`: the
    fingerprint of the scraper's code.
    """

    scope: Scope
    concurrency: int = 16
    min_concurrency: int | None = None
    limits: LoadLimits = LoadLimits()
    batch_size: int = 50
    lease: float = DEFAULT_LEASE_SECONDS
    drain: float = 30.0
    limit: int | None = None
    stop_when_idle: bool = False
    forever: bool = False
    prefetch: bool = True
    patience: float = 60.0
    version: str = ""
    code: str | None = None

    @property
    def initial_concurrency(self) -> int:
        """Items processed at once at the start."""
        return self.concurrency if self.min_concurrency is None else self.min_concurrency


class StopReason(StrEnum):
    """Why a worker left."""

    NOTHING_LEFT = "nothing left"
    LIMIT = "limit reached"
    STOPPED = "stopped"
    ORDERED = "drained by request"
    TIMED_OUT = "timed out"
    BROKEN = "its handler fails every time"


class WorkSummary(msgspec.Struct, kw_only=True):
    """What one worker did. The counts are of committed attempts; `dropped` items were invalid."""

    stop_reason: StopReason = StopReason.NOTHING_LEFT
    worker: str = ""
    attempts: int = 0
    done: int = 0
    dead: int = 0
    retried: int = 0
    throttled: int = 0
    records: int = 0
    lost: int = 0
    given_back: int = 0
    dropped: int = 0
    first_dropped: str = ""
    seconds: float = 0.0
