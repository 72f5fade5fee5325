"""Lanes for operators: how far each one is, which will finish last, and what ran in them."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from shoal.errors import InvalidSetting
from shoal.model.lane import LaneProgress, LaneSpan, lane_eta
from shoal.model.views import CursorPage
from shoal.service.lookup import find_run, find_run_id, ledger_now

if TYPE_CHECKING:
    from shoal.ledger.protocols import Ledger

ORDERS = ("name", "slowest")
MAX_TIMELINE_LANES = 30
MAX_SPANS = 100
# The lane that finishes last is searched among so many of the slowest.
CRITICAL_AMONG = 20
WORK_MINUTES = 5
MAX_BACK_MINUTES = 10_080


class LaneStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A lane and its items. `eta_seconds`: until they have ended, at least and at most. `critical`: it ends last."""

    progress: LaneProgress
    eta_seconds: tuple[float, float] | None
    critical: bool = False


class LaneRow(msgspec.Struct, frozen=True, kw_only=True):
    """A lane with the attempts that ran in it."""

    status: LaneStatus
    spans: tuple[LaneSpan, ...]


class LaneTimeline(msgspec.Struct, frozen=True, kw_only=True):
    """What ran in the lanes of a run between two times of the ledger's clock; `end`: now, or when the run ended."""

    begin: dt.datetime
    end: dt.datetime
    lanes: tuple[LaneRow, ...]


async def list_lane_progress(
    ledger: Ledger,
    *,
    run: str | None = None,
    order: str = "name",
    prefix: str = "",
    cursor: str | None = None,
    limit: int = 50,
) -> CursorPage[LaneStatus]:
    """Return the shared lanes, or those that a run uses, by name or the slowest first, with their ETA."""
    if order not in ORDERS:
        raise InvalidSetting(f"{order!r} is not one of {', '.join(ORDERS)}.", remedy="Choose one of them.")
    run_id = await find_run_id(ledger, run)
    work = await _work_seconds(ledger, run_id)
    page = await ledger.lanes.progress(
        run_id=run_id, slowest=order == "slowest", prefix=prefix, cursor=cursor, limit=limit
    )
    first = page.rows if order == "slowest" and cursor is None and not prefix else None
    critical = await _critical_lane(ledger, run_id, work, first)
    return CursorPage(tuple(_status(progress, work, critical) for progress in page.rows), page.cursor)


async def read_lane_timeline(
    ledger: Ledger, run: str, *, lanes: Sequence[str] | None = None, minutes: int = 60, limit: int = MAX_TIMELINE_LANES
) -> LaneTimeline:
    """Return the recent attempts in the lanes of a run: the named ones, or the slowest."""
    if not 1 <= limit <= MAX_TIMELINE_LANES or len(lanes or ()) > MAX_TIMELINE_LANES:
        raise InvalidSetting(f"A timeline has from 1 to {MAX_TIMELINE_LANES} lanes.", remedy="Name fewer lanes.")
    found_run = await find_run(ledger, run)
    run_id = found_run.id
    work, slowest = await _work_seconds(ledger, run_id), None
    if lanes:
        found = [
            progress
            for name in lanes
            for progress in (await ledger.lanes.progress(run_id=run_id, prefix=name, limit=1)).rows
            if progress.lane.key == name
        ]
    else:
        slowest = (await ledger.lanes.progress(run_id=run_id, slowest=True, limit=limit)).rows
        found = list(slowest)
        if len(found) < limit:
            # Lanes without waiting items come after those that wait.
            names = {progress.lane.key for progress in found}
            more = (await ledger.lanes.progress(run_id=run_id, limit=limit)).rows
            found += [progress for progress in more if progress.lane.key not in names][: limit - len(found)]
    critical = await _critical_lane(ledger, run_id, work, slowest)
    now = await ledger_now(ledger)
    end = min(now, found_run.finished_at or now)
    # The ledger counts back from now.
    back = min(MAX_BACK_MINUTES, minutes + math.ceil((now - end).total_seconds() / 60))
    spans = await ledger.lanes.timeline(
        run_id, [progress.lane.key for progress in found], minutes=back, spans=MAX_SPANS
    )
    return LaneTimeline(
        begin=end - dt.timedelta(minutes=minutes),
        end=end,
        lanes=tuple(
            LaneRow(status=_status(progress, work, critical), spans=spans.get(progress.lane.key, ()))
            for progress in found
        ),
    )


async def _work_seconds(ledger: Ledger, run_id: str | None) -> float | None:
    """How long attempts of a run took on average in the last minutes."""
    if run_id is None:
        return None
    recent = await ledger.reads.recent(run_id, minutes=WORK_MINUTES)
    attempts = recent.done + recent.dead + recent.skipped + recent.retried + recent.throttled
    return recent.seconds / attempts if attempts else None


async def _critical_lane(
    ledger: Ledger, run_id: str | None, work: float | None, slowest: Sequence[LaneProgress] | None
) -> tuple[str | None, str] | None:
    """The lane of a run that will finish last; a paused lane is none, because an operator decides when it ends.

    `slowest`: the first of the slowest lanes, if they were just read.
    """
    if run_id is None:
        return None
    if slowest is None or len(slowest) < CRITICAL_AMONG:
        slowest = (await ledger.lanes.progress(run_id=run_id, slowest=True, limit=CRITICAL_AMONG)).rows
    rows = slowest[:CRITICAL_AMONG]
    known = [(eta, row.lane) for row in rows if row.waiting and (eta := _eta(row, work)) is not None]
    if not known:
        return None
    last = max(known, key=lambda pair: pair[0][1])[1]
    return last.run_id, last.key


def _eta(progress: LaneProgress, work: float | None) -> tuple[float, float] | None:
    return lane_eta(msgspec.structs.replace(progress.lane, waiting=progress.waiting), work)


def _status(progress: LaneProgress, work: float | None, critical: tuple[str | None, str] | None) -> LaneStatus:
    lane = progress.lane
    return LaneStatus(
        progress=progress,
        eta_seconds=_eta(progress, work),
        critical=critical == (lane.run_id, lane.key),
    )
