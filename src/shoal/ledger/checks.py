"""What both ledgers refuse before they touch the database."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.errors import InvalidRecord, InvalidSetting, UsageError
from shoal.model.item import MAX_NAME_BYTES, Lease
from shoal.model.json_text import json_text
from shoal.model.lane import LanePolicy
from shoal.model.outcome import FinishedAttempt
from shoal.model.url_key import check_text
from shoal.model.worker import WorkerSpec

MAX_DETAIL_BYTES = 64 << 10
MAX_PAGE = 100_000


def check_limit(limit: int) -> None:
    if type(limit) is not int or not 1 <= limit <= MAX_PAGE:
        raise InvalidSetting(
            f"The limit is {limit!r}; it must be from 1 to {MAX_PAGE}.", remedy="Ask for less at once."
        )


def int_cursor(cursor: str | None) -> int | None:
    """A cursor that is one number."""
    if cursor is None:
        return None
    return cursor_parts(cursor, 1)[0]


def cursor_parts(cursor: str, count: int) -> list[int]:
    parts = cursor.split(".")
    if len(parts) != count or not all(part.isdecimal() and len(part) < 19 for part in parts):
        raise UsageError(f"{cursor!r} is no cursor of this list.", remedy="Use the cursor of the page before, or none.")
    return [int(part) for part in parts]


def check_worker(spec: WorkerSpec) -> None:
    if not 1 <= spec.lease_seconds <= 86_400:
        raise InvalidSetting(f"lease_seconds is {spec.lease_seconds!r}; it must be from 1 to 86400.")
    if not spec.id or len(spec.id) > 255:
        raise InvalidSetting("A worker id must have 1 to 255 characters.")


def check_finished(finished: Sequence[FinishedAttempt]) -> None:
    """Refuse a batch before any of it is stored."""
    seen: set[Lease] = set()
    for end in finished:
        if end.lease in seen:
            raise UsageError(f"The item {end.lease.item} appears twice in one commit.")
        seen.add(end.lease)
        for record in end.records:
            if not record.startswith("{"):
                raise InvalidRecord("A record must be the JSON text of an object: use record_text(value).")


def detail_text(end: FinishedAttempt) -> str | None:
    return None if end.detail is None else json_text(end.detail, "detail", MAX_DETAIL_BYTES, InvalidRecord)


def check_lane_change(key: str, limit: int | None, delay: tuple[float, float] | None) -> None:
    check_text("lane", key, MAX_NAME_BYTES)
    delay_min, delay_max = delay if delay is not None else (0.0, 0.0)
    LanePolicy(limit=1 if limit is None else limit, delay_min=delay_min, delay_max=delay_max).checked()
