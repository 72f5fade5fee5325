"""What readers of the log of result changes get: records with a stable id, cursors, and how far behind they are."""

from __future__ import annotations

import datetime as dt

import msgspec


class ChangePosition(msgspec.Struct, frozen=True, order=True):
    """A position in the log: changes before `change` are done, and of that one the records up to (item, n).

    With item 0 the whole change is done.
    """

    change: int = 0
    item: int = 0
    n: int = 0

    def __str__(self) -> str:
        return f"{self.change}.{self.item}.{self.n}" if self.item else str(self.change)


LOG_BEGIN = ChangePosition()


class ChangeFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Selects records by the names of scrapers and stages, and by run; an empty tuple means all."""

    scrapers: tuple[str, ...] = ()
    stages: tuple[str, ...] = ()
    run_id: str | None = None


EVERY_RECORD = ChangeFilter()


class RecordRef(msgspec.Struct, frozen=True, order=True):
    """Names one record; `str` is its stable id, `run:item:n`."""

    run_id: str
    item: int
    n: int

    def __str__(self) -> str:
        return f"{self.run_id}:{self.item}:{self.n}"


class ChangedRecord(msgspec.Struct, frozen=True, gc=False):
    """A stored record as JSON text, with the key and URL of its item. `record_key`: what the stage's option says."""

    run_id: str
    scraper: str
    stage: str
    item: int
    n: int
    key: str | None
    url: str | None
    record: str
    record_key: str | None

    @property
    def id(self) -> str:
        """Stable: the same record has the same id however often it is delivered."""
        return f"{self.run_id}:{self.item}:{self.n}"

    @property
    def ref(self) -> RecordRef:
        return RecordRef(self.run_id, self.item, self.n)


class ReplacedItem(msgspec.Struct, frozen=True):
    """An item whose records were replaced. Records from number `count` on no longer exist."""

    run_id: str
    scraper: str
    stage: str
    item: int
    count: int


class ChangePage(msgspec.Struct, frozen=True, kw_only=True):
    """Records from one position of the log to another. `more`: there may be more behind `end` now.

    A page may have no records although its end is ahead: what it passed was filtered out or removed.
    """

    records: tuple[ChangedRecord, ...]
    replaced: tuple[ReplacedItem, ...]
    end: ChangePosition
    more: bool


class ChangeLag(msgspec.Struct, frozen=True, kw_only=True):
    """What is behind a position. `at_least`: so many changes were looked at, and there are more."""

    changes: int
    records: int
    oldest: dt.datetime | None
    seconds: float
    at_least: bool


class ResultCursor(msgspec.Struct, frozen=True, kw_only=True):
    """A named cursor. `dead_letters` counts up to 1,000. `state`: what its owner keeps with it."""

    name: str
    position: ChangePosition
    delivered: int
    dead_letters: int
    created_at: dt.datetime
    moved_at: dt.datetime | None
    failing_since: dt.datetime | None
    last_error: str | None
    state: str = ""


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A record that a sink refused."""

    ref: RecordRef
    at: dt.datetime
    reason: str
