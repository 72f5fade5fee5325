"""The options and the summary of a worker, and the state that its parts share; it refers to no part."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any

import msgspec

from shoal.autoscale.rules import LoadLimits
from shoal.define.records import DroppedRecords
from shoal.model.item import ClaimedItem, Lease
from shoal.model.worker import DEFAULT_LEASE_SECONDS, Scope
from shoal.observe.failures import FailureCount

RESUME_POLL_SECONDS = 0.02


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
    OUTDATED = "the ledger was upgraded"


class WorkSummary(msgspec.Struct, kw_only=True):
    """What one worker did. The counts are of committed attempts; `dropped` items were invalid.

    `dropped_by_hooks`: by hook, how many records it dropped, and why the first.
    `failures`: why attempts failed, the most frequent reason first.
    """

    stop_reason: StopReason = StopReason.NOTHING_LEFT
    worker: str = ""
    attempts: int = 0
    done: int = 0
    dead: int = 0
    skipped: int = 0
    retried: int = 0
    throttled: int = 0
    records: int = 0
    lost: int = 0
    given_back: int = 0
    dropped: int = 0
    first_dropped: str = ""
    dropped_by_hooks: dict[str, DroppedRecords] = {}
    seconds: float = 0.0
    failures: tuple[FailureCount, ...] = ()

    def log_fields(self) -> dict[str, Any]:
        """What is logged when the worker stops: all but the failures, which were logged before."""
        fields: dict[str, Any] = msgspec.to_builtins(self)
        del fields["failures"]
        return fields


class WorkerEvents:
    """Events that wake the parts of a worker.

    `items_wanted`: slots want more items. `work_changed`: something was committed or started, so a claim may find work.
    `stopping`: no more claims. `stop_immediately`: running attempts are not waited for.
    """

    def __init__(self) -> None:
        self.items_wanted = asyncio.Event()
        self.work_changed = asyncio.Event()
        self.stopping = asyncio.Event()
        self.stop_immediately = asyncio.Event()
        self.stop_reason: StopReason | None = None

    def wake_all(self) -> None:
        """Wake every part that waits for work."""
        self.items_wanted.set()
        self.work_changed.set()

    def stop(self, reason: StopReason) -> None:
        """Order the worker to stop. The first reason is kept."""
        if self.stop_reason is None:
            self.stop_reason = reason
            self.stopping.set()
            self.wake_all()


class WorkerIdentity:
    """The worker as the ledger knows it.

    `id`: its id; it changes when the ledger declared the worker dead and it registers again. `lost`: the ledger
    declared this id dead. `lease`: seconds without a heartbeat after which it does; its registration sets it. The
    heartbeat thread reads `id` and calls `record_beat`; everything else is for the loop.
    """

    def __init__(self, events: WorkerEvents) -> None:
        self.events = events
        self.id = ""
        self.lost = False
        self.lease = math.inf
        self._beat_at = boottime_seconds()

    def register_as(self, worker: str) -> None:
        """Continue under an id that the ledger has registered just now."""
        self.id = worker
        self.lost = False
        self._beat_at = boottime_seconds()

    def mark_lost(self, worker: str) -> None:
        """The ledger no longer knows this id. A report about an earlier id is ignored."""
        if worker == self.id:
            self.lost = True
            self.events.wake_all()

    def record_beat(self, worker: str, at: float) -> None:
        """The ledger accepted a heartbeat of this id; `at` is by `boottime_seconds`."""
        if worker == self.id:
            self._beat_at = at

    @property
    def may_be_lost(self) -> bool:
        """Whether the ledger may have given the items to others: no heartbeat was accepted for as long as the lease.

        Time that the process was stopped or the machine suspended counts.
        """
        return self.lost or boottime_seconds() - self._beat_at > self.lease

    async def wait_for_lease(self) -> bool:
        """Wait while it is unknown whether the leases are lost; a heartbeat finds out. False: they are."""
        while self.may_be_lost and not self.lost:  # noqa: ASYNC110 - a thread ends it
            await asyncio.sleep(RESUME_POLL_SECONDS)
        return not self.lost


class LeaseBuffer:
    """The leases of a worker, and the claimed items that wait for a slot.

    `leases`: every lease from its claim until it is committed or returned. `low_water`: with this many items or fewer
    in the buffer, slots ask for more. `plenty`: the last claim found as many items as it asked for. A lost lease may
    come back as another lease of the same item while the old attempt still runs, so nothing here goes by the item
    alone.
    """

    def __init__(self) -> None:
        self.leases: set[Lease] = set()
        self.low_water = 0
        self.plenty = False
        self._buffer: asyncio.Queue[tuple[ClaimedItem, float]] = asyncio.Queue()

    @property
    def buffered(self) -> int:
        return self._buffer.qsize()

    def add_claimed(self, claimed: Sequence[ClaimedItem]) -> None:
        now = time.monotonic()
        for item in claimed:
            self.leases.add(item.lease)
            self._buffer.put_nowait((item, now))

    async def next(self) -> tuple[ClaimedItem, float]:
        """Wait for an item; returns it with the time of its claim."""
        return await self._buffer.get()

    def drop(self, leases: Iterable[Lease]) -> None:
        """Forget leases that were committed, returned or lost."""
        self.leases.difference_update(leases)

    def pop_unstarted(self, *, keep: int = 0) -> list[Lease]:
        """Remove all items but the first `keep` from the buffer. The caller returns their leases to the ledger."""
        buffered = [self._buffer.get_nowait() for _ in range(self._buffer.qsize())]
        for entry in buffered[:keep]:
            self._buffer.put_nowait(entry)
        return [claimed.lease for claimed, _ in buffered[keep:]]


def boottime_seconds() -> float:
    """Seconds on a clock that advances while the machine is suspended, where the system has one."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()
