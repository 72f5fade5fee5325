"""Values that reads of the ledger return."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from typing import Any, Generic, TypeVar

import msgspec

from shoal.model.item import ItemState

T = TypeVar("T")
QUEUE_STATUSES = ("pending", "claimed", "completed", "failed", "remaining", "total")


class CursorPage(msgspec.Struct, Generic[T], frozen=True):
    """One page of a keyset list; `cursor` gets the next page, None means the end."""

    rows: tuple[T, ...]
    cursor: str | None


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """How many items are in each state, and how many records; the properties have the names of older systems.

    The last four are of records with a key: stored under a new key, replacing one that was different or the same, or
    dropped because their key was stored already.
    """

    ready: int = 0
    waiting: int = 0
    delayed: int = 0
    leased: int = 0
    done: int = 0
    dead: int = 0
    skipped: int = 0
    cancelled: int = 0
    results: int = 0
    duplicates: int = 0
    new_records: int = 0
    changed_records: int = 0
    unchanged_records: int = 0
    dropped_records: int = 0

    @property
    def wanted(self) -> int:
        """All but the skipped ones: what a share of dead or done items is of."""
        return self.total - self.skipped

    @property
    def pending(self) -> int:
        return self.ready + self.waiting + self.delayed

    @property
    def claimed(self) -> int:
        return self.leased

    @property
    def completed(self) -> int:
        return self.done

    @property
    def failed(self) -> int:
        return self.dead

    @property
    def remaining(self) -> int:
        return self.pending + self.leased

    @property
    def total(self) -> int:
        return self.remaining + self.done + self.dead + self.skipped + self.cancelled

    def by_status(self) -> dict[str, int]:
        """The counts of an older URL queue: pending, claimed, completed, failed, remaining and total."""
        return {status: getattr(self, status) for status in QUEUE_STATUSES}

    @property
    def ended(self) -> int:
        """Items that an attempt ended: done, dead or skipped."""
        return self.done + self.dead + self.skipped


def sum_counts(many: Iterable[Counts]) -> Counts:
    """The sum of several counts."""
    sums = dict.fromkeys(Counts.__struct_fields__, 0)
    for one in many:
        for name in sums:
            sums[name] += getattr(one, name)
    return Counts(**sums)


class IntakeReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an enqueue. `invalid_entries`: the first invalid entries, with position and reason."""

    enqueued: int
    duplicates: int
    invalid: int
    invalid_entries: tuple[tuple[int, str], ...] = ()


class CommitReport(msgspec.Struct, frozen=True, kw_only=True):
    """`lost`: items whose lease was lost, nothing of them was stored. `repeated`: items that were committed before.

    `dropped_records`: records that were not stored, because their key was stored before.
    """

    committed: int
    lost: tuple[int, ...]
    repeated: tuple[int, ...]
    enqueued: int
    duplicates: int
    dropped_records: int = 0

    def merge(self, other: CommitReport) -> CommitReport:
        return CommitReport(
            committed=self.committed + other.committed,
            lost=self.lost + other.lost,
            repeated=self.repeated + other.repeated,
            enqueued=self.enqueued + other.enqueued,
            duplicates=self.duplicates + other.duplicates,
            dropped_records=self.dropped_records + other.dropped_records,
        )


class ReplayReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a replay. `replayed`: False when the item changed meanwhile; then nothing was stored."""

    replayed: bool
    enqueued: int
    duplicates: int
    dropped_records: int


class ItemFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Selects items of a run. `error` matches a part of the message; `ids` selects them one by one.

    `lane`: the name of a lane, shared or of the run. `failure`: the number of a group of dead items. `text`: a part of
    the key or the URL; the item whose key or URL it is comes first.
    """

    ids: tuple[int, ...] = ()
    states: tuple[ItemState, ...] = ()
    stage: str | None = None
    partition: str | None = None
    lane: str | None = None
    outcome: str | None = None
    error: str | None = None
    failure: int | None = None
    text: str | None = None

    def __post_init__(self) -> None:
        # Programs may write states as text.
        msgspec.structs.force_setattr(self, "states", tuple(map(ItemState, self.states)))


class ItemCount(msgspec.Struct, frozen=True):
    """How many items match a filter; with `is_at_least` there may be more."""

    count: int
    is_at_least: bool


class ItemView(msgspec.Struct, frozen=True, kw_only=True):
    id: int
    stage: str
    partition: str
    key: str | None
    url: str | None
    payload: Mapping[str, Any] | None
    request: Mapping[str, Any] | None
    depth: int
    lane: str | None
    priority: int
    max_attempts: int
    state: ItemState
    since: dt.datetime
    due_at: dt.datetime | None
    worker: str | None
    tries: int
    rescues: int
    epoch: int
    outcome: str | None
    error: str | None
    parent: int | None


class AttemptView(msgspec.Struct, frozen=True, kw_only=True):
    epoch: int
    worker: str | None
    claimed_at: dt.datetime
    ended_at: dt.datetime
    seconds: float
    outcome: str
    error: str | None
    detail: Mapping[str, Any] | None


class FailedItem(msgspec.Struct, frozen=True, kw_only=True):
    """S1.18: `url` is the key for items without a URL; `retry_count` counts the tries after the first."""

    item: int
    stage: str
    url: str
    outcome: str
    error_message: str | None
    retry_count: int
    failed_at: dt.datetime


class AttemptError(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt that failed. `final`: its item is dead; otherwise it is tried again."""

    at: dt.datetime
    item: int
    stage: str
    name: str
    worker: str | None
    outcome: str
    error: str | None
    final: bool


class StaleClaim(msgspec.Struct, frozen=True, kw_only=True):
    item: int
    run_id: str
    name: str
    claimed_by: str
    started: dt.datetime
    minutes_ago: float


class OldestLease(msgspec.Struct, frozen=True, kw_only=True):
    """The item that a worker has had longest: its number, its URL or key, and since when it is claimed."""

    worker: str
    item: int
    name: str
    since: dt.datetime


class ResultRow(msgspec.Struct, frozen=True, gc=False):
    """The `n`-th record of an item, as JSON text, with the item's stage, key and URL.

    `record_key`: the JSON text of the record's own key, if its stage has one; `change`: whether the run stored it as
    `new`, or whether it replaced one of an earlier run that was different (`changed`) or not (`unchanged`).
    `record_scope`: where the key is unique, `run` or `scraper`.
    """

    item: int
    n: int
    stage: str
    key: str | None
    url: str | None
    record: str
    record_key: str | None = None
    change: str | None = None
    record_scope: str | None = None


class SortedResult(msgspec.Struct, frozen=True, gc=False):
    """A record in a list that is sorted by `place`: the same in all runs for what is the same record."""

    place: tuple[bytes, int]
    row: ResultRow


class WorkerProgress(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker has leased and what it ended. `attempts`: all that ended, with retries; `seconds`: they took."""

    worker: str
    leased: int
    done: int
    dead: int
    skipped: int
    attempts: int = 0
    seconds: float = 0.0


class PartitionProgress(msgspec.Struct, frozen=True, kw_only=True):
    """`rate`: items that ended per minute in the last minutes; None when it was not read."""

    stage: str
    partition: str
    counts: Counts
    rate: float | None = None

    @property
    def eta_seconds(self) -> float | None:
        """Until its items have ended at this rate; None when nobody can tell."""
        if not self.counts.remaining:
            return 0.0
        return 60 * self.counts.remaining / self.rate if self.rate else None


class ChildItem(msgspec.Struct, frozen=True, kw_only=True):
    """An item that another one enqueued."""

    id: int
    stage: str
    name: str
    state: ItemState


class HeldItem(msgspec.Struct, frozen=True, kw_only=True):
    """An item that a worker has leased."""

    id: int
    run_id: str
    name: str


class WaitReason(msgspec.Struct, frozen=True, kw_only=True):
    """One reason why something is not running: a code for programs, a sentence for people.

    `pool`: the egress that it waits for.
    """

    code: str
    text: str
    since: dt.datetime | None = None
    until: dt.datetime | None = None
    items: int | None = None
    pool: str | None = None


class RecentActivity(msgspec.Struct, frozen=True, kw_only=True):
    """Attempts of a run that ended recently. `seconds`: their total duration.

    `quiet_since`: when an attempt last ended or the run last changed its state, whichever is later.
    """

    done: int
    dead: int
    skipped: int
    retried: int
    throttled: int
    results: int
    seconds: float
    quiet_since: dt.datetime


class LockView(msgspec.Struct, frozen=True, kw_only=True):
    """A lock. `until`: when it expires, unless it is completed (`finished_at`)."""

    name: str
    taken_by: str
    taken_at: dt.datetime
    until: dt.datetime
    finished_at: dt.datetime | None
    value: Mapping[str, Any]


class StoredSettingsView(msgspec.Struct, frozen=True, kw_only=True):
    """The newest version of the settings of a scope, and who stored it."""

    scope: str
    version: int
    value: Mapping[str, Any]
    by: str
    at: dt.datetime


class AuditEvent(msgspec.Struct, frozen=True, kw_only=True):
    id: int
    at: dt.datetime
    run_id: str | None
    actor: str
    action: str
    subject: str
    detail: Mapping[str, Any]


class UpkeepReport(msgspec.Struct, frozen=True, kw_only=True):
    """What one round of upkeep did. `more`: it ran out of time, so the next round should follow at once."""

    promoted: int = 0
    lost_workers: tuple[str, ...] = ()
    rescued: int = 0
    quarantined: int = 0
    finished: tuple[str, ...] = ()
    more: bool = False


class Finding(msgspec.Struct, frozen=True):
    """A violation that the audit found."""

    rule: str
    detail: str


class HealthReport(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a ledger. `clock`: its time. The other fields describe a database server; None for SQLite.

    `lock_waits`: sessions that wait for a lock (S0.20). `longest_transaction`: the age of the oldest one, in seconds.
    """

    clock: dt.datetime
    sessions: int | None = None
    most_sessions: int | None = None
    lock_waits: int | None = None
    longest_transaction: float | None = None
