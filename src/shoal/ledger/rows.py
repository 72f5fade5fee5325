"""Rows of either ledger as values, and the limits and cursors of pages.

Both ledgers use the same column names and return times as aware datetimes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Protocol, TypeVar

import msgspec

from shoal.errors import InvalidSetting, LedgerCorrupt, UsageError
from shoal.ledger.explain import Scaling
from shoal.model.access import AccessGrant, AccessToken, Role
from shoal.model.egress import ExitState, ExitView
from shoal.model.item import ItemState
from shoal.model.lane import LanePolicy, LaneView
from shoal.model.run import Run, RunState
from shoal.model.views import AttemptView, AuditEvent, ItemView, LockView
from shoal.model.worker import Scope, WorkerPoolView, WorkerReport, WorkerState, WorkerView

T = TypeVar("T")
MAX_PAGE = 100_000


class Row(Protocol):
    """A row with access to columns by name."""

    def __getitem__(self, column: str, /) -> Any: ...


class Queryable(Protocol):
    """Runs one statement; arguments are positional, lists where the query expects an array."""

    async def fetch(self, sql: str, *args: object) -> list[Any]: ...

    async def row(self, sql: str, *args: object) -> Any: ...

    async def value(self, sql: str, *args: object) -> Any: ...


def _checked_read(read: Callable[[Row], T]) -> Callable[[Row], T]:
    """Raise LedgerCorrupt when a row cannot be read: Shoal wrote it, so it was damaged since."""

    @wraps(read)
    def checked(row: Row) -> T:
        try:
            return read(row)
        except (ValueError, TypeError, KeyError, OverflowError) as problem:
            what = read.__name__.removesuffix("_from")
            raise LedgerCorrupt(f"The ledger contains an invalid row ({what}): {problem}.") from problem

    return checked


@_checked_read
def run_from(row: Row) -> Run:
    return Run(
        no=row["no"],
        id=row["id"],
        scraper=row["scraper"],
        state=RunState(row["state"]),
        sealed=bool(row["sealed"]),
        settings=msgspec.json.decode(row["settings"]),
        code_version=row["code_version"],
        key_version=row["key_version"],
        max_attempts=row["max_attempts"],
        max_rescues=row["max_rescues"],
        created_at=row["created_at"],
        finished_at=row["finished_at"],
        idempotency_key=row["idempotency_key"],
        stages=tuple(array_from(row["stages"])),
    )


@_checked_read
def lane_from(row: Row) -> LaneView:
    return LaneView(
        key=row["key"],
        run_id=row["run_id"],
        policy=LanePolicy(
            limit=row["max_active"],
            delay_min=round(row["delay_min"], 6),
            delay_max=round(row["delay_max"], 6),
            ordered=bool(row["ordered"]),
            shared=row["run"] == 0,
        ),
        paused=bool(row["paused"]),
        blocked_seconds=row["blocked_seconds"] or 0.0,
        blocked_why=row["blocked_why"],
        next_seconds=row["next_seconds"] or 0.0,
        taken=row["taken"],
        unstarted=row["unstarted"],
        waiting=row["waiting"],
        set_by_operator=bool(row["by_operator"]),
        floor=row["floor"],
        floor_why=row["floor_why"],
        visiting=row["slots_granted"],
    )


@_checked_read
def item_from(row: Row) -> ItemView:
    return ItemView(
        id=row["id"],
        stage=row["stage"],
        partition=row["partition"],
        key=row["key"],
        url=row["url"],
        payload=msgspec.json.decode(row["payload"]) if row["payload"] else None,
        request=msgspec.json.decode(row["request"]) if row["request"] else None,
        depth=row["depth"],
        lane=row["lane"],
        priority=row["priority"],
        max_attempts=row["max_attempts"],
        state=ItemState(row["state"]),
        since=row["since"],
        due_at=row["due_at"],
        worker=row["worker"],
        tries=row["tries"],
        rescues=row["rescues"],
        epoch=row["epoch"],
        outcome=row["outcome"],
        error=row["error"],
        parent=row["parent"],
    )


@_checked_read
def attempt_from(row: Row) -> AttemptView:
    return AttemptView(
        epoch=row["epoch"],
        worker=row["worker"],
        claimed_at=row["claimed_at"],
        ended_at=row["ended_at"],
        seconds=row["seconds"],
        outcome=row["outcome"],
        error=row["error"],
        detail=msgspec.json.decode(row["detail"]) if row["detail"] else None,
    )


@_checked_read
def token_from(row: Row) -> AccessToken:
    return AccessToken(
        id=row["id"],
        name=row["name"],
        role=Role(row["role"]),
        created_at=row["created_at"],
        created_by=row["created_by"],
        expires_at=row["expires_at"],
        used_at=row["used_at"],
        expired=bool(row["expired"]),
    )


@_checked_read
def grant_from(row: Row) -> AccessGrant:
    return AccessGrant(
        token_id=row["token_id"],
        name=row["name"],
        role=Role(row["role"]),
        expires_at=row["expires_at"],
        idle_seconds=row["idle_seconds"],
    )


@_checked_read
def event_from(row: Row) -> AuditEvent:
    return AuditEvent(
        id=row["id"],
        at=row["at"],
        run_id=row["run_id"],
        actor=row["actor"],
        action=row["action"],
        subject=row["subject"],
        detail=msgspec.json.decode(row["detail"]),
    )


@_checked_read
def lock_from(row: Row) -> LockView:
    return LockView(
        name=row["name"],
        taken_by=row["owner"],
        taken_at=row["acquired_at"],
        until=row["expires_at"],
        finished_at=row["finished_at"],
        value=msgspec.json.decode(row["value"]),
    )


@_checked_read
def worker_pool_from(row: Row) -> WorkerPoolView:
    fields = {name: row[name] for name in WorkerPoolView.__struct_fields__}
    return WorkerPoolView(**{**fields, "stopping": bool(fields["stopping"])})


@_checked_read
def scaling_from(row: Row) -> Scaling:
    detail = msgspec.json.decode(row["detail"])
    return Scaling(
        subject=row["subject"],
        at=row["at"],
        seconds_ago=row["seconds_ago"],
        before=detail["from"],
        after=detail["to"],
        most=detail["most"],
        what=detail["what"],
        why=detail["why"],
    )


@_checked_read
def exit_from(row: Row) -> ExitView:
    state = ExitState(row["state_now"])
    is_good = state is ExitState.GOOD
    return ExitView(
        pool=row["pool"],
        kind=row["kind"],
        key=row["key"],
        label=row["label"],
        state=state,
        until=exit_until(state, row["until_seconds"], row["trial_seconds"]),
        why="" if is_good else row["why"],
        by="" if is_good else row["set_by"],
        succeeded=row["succeeded"],
        failed=row["failed"],
        failures_in_row=row["failures_in_row"],
        error=row["error"],
        used_seconds=row["used_seconds"],
        listed=row["unlisted_at"] is None,
    )


def exit_until(state: str, until: float | None, trial: float | None) -> float | None:
    """Seconds until an exit's state changes. A trial can be had at once, or when the worker that has it is late."""
    if state == ExitState.TRIAL:
        return max(0.0, trial or 0.0)
    return None if until is None or state == ExitState.GOOD else max(0.0, until)


@_checked_read
def worker_from(row: Row) -> WorkerView:
    return WorkerView(
        id=row["id"],
        node=row["node"],
        pid=row["pid"],
        version=row["version"],
        code=row["code"],
        state=WorkerState(row["state"]),
        started_at=row["started_at"],
        silent_seconds=row["silent_seconds"],
        lease_seconds=row["lease_seconds"],
        leased=row["leased"],
        scope=msgspec.json.decode(row["scope"], type=Scope),
        report=msgspec.json.decode(row["report"], type=WorkerReport) if row["report"] else None,
        report_seconds=row["report_seconds"],
    )


def array_from(value: Any) -> list[Any]:
    """An array column; on SQLite it is JSON text."""
    return msgspec.json.decode(value) if isinstance(value, str) else list(value)


def check_limit(limit: int) -> None:
    if type(limit) is not int or not 1 <= limit <= MAX_PAGE:
        raise InvalidSetting(
            f"The limit is {limit!r}; it must be from 1 to {MAX_PAGE}.", remedy="Request fewer at once."
        )


def int_cursor(cursor: str | None) -> int | None:
    """A cursor that is one number."""
    return None if cursor is None else cursor_parts(cursor, 1)[0]


def cursor_parts(cursor: str, count: int) -> list[int]:
    parts = cursor.split(".")
    if len(parts) != count or not all(part.isdecimal() and len(part) < 19 for part in parts):
        raise UsageError(
            f"{cursor!r} is not a cursor of this list.", remedy="Use the cursor of the previous page, or none."
        )
    return [int(part) for part in parts]
