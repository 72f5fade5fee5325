"""A run over time, and how it goes on: points and marks for charts, and when it may end."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from shoal.errors import InvalidSetting
from shoal.ledger.history import count_causes
from shoal.model.history import MAX_HISTORY_POINTS, HistoryPoint, history_step
from shoal.model.lane import lane_eta
from shoal.model.run import Run
from shoal.model.views import AuditEvent, Counts, WaitReason
from shoal.observe.formatting import format_duration, pluralize
from shoal.observe.meter import GROWING_RATIO, MAX_ETA_SECONDS, MIN_ETA_SPREAD, MIN_RATE_SECONDS, Reading
from shoal.observe.snapshot import Bottleneck, Snapshot, find_bottleneck, take_snapshot
from shoal.service.lookup import find_run, ledger_now

if TYPE_CHECKING:
    from shoal.ledger.protocols import Ledger

MAX_MARKS = 200
MAX_EVENTS_READ = 1_000
MAX_LANES_READ = 1_000
# The pace of a run is that of its last minutes.
PACE_SECONDS, NEWEST_MINUTES = 15 * 60, 3
MAX_RATE_SPREAD = 4
MIN_HISTORY_MINUTES, MAX_HISTORY_MINUTES = 15, 10_080


class HistoryMark(msgspec.Struct, frozen=True, kw_only=True):
    """Something that was done to a run and that its charts may show: `text` says what."""

    at: dt.datetime
    actor: str
    action: str
    text: str


class History(msgspec.Struct, frozen=True, kw_only=True):
    """A run over time. `points`: one for every `step_seconds`, oldest first. `marks`: oldest first."""

    run: Run
    step_seconds: int
    points: tuple[HistoryPoint, ...]
    marks: tuple[HistoryMark, ...]


class RunOutlook(msgspec.Struct, frozen=True, kw_only=True):
    """What limits a run, since when, and when it may end.

    `text`: one sentence. `until`: when the main reason ends, if that is known. `eta_seconds`: the shortest and the
    longest expected time; None when it cannot be estimated. `growing`: items are found as fast as others end, so there
    is no estimate. `critical_lane`: the lane that will end last; `critical_seconds`: how long it takes at its pace.
    """

    run: Run
    text: str
    since: dt.datetime | None
    until: dt.datetime | None
    reasons: tuple[WaitReason, ...]
    bottleneck: Bottleneck
    eta_seconds: tuple[float, float] | None
    growing: bool
    critical_lane: str | None
    critical_seconds: tuple[float, float] | None = None


async def read_history(ledger: Ledger, run: str, minutes: int = 60) -> History:
    """Return a run over its last minutes: until now, or until it ended. Raises InvalidSetting for too many or few."""
    if not MIN_HISTORY_MINUTES <= minutes <= MAX_HISTORY_MINUTES:
        raise InvalidSetting(
            f"{minutes} minutes of history were asked for; "
            f"it must be from {MIN_HISTORY_MINUTES} to {MAX_HISTORY_MINUTES}.",
            remedy="Ask for another time.",
        )
    found = await find_run(ledger, run)
    now = await ledger_now(ledger)
    until = now if found.finished_at is None else min(now, found.finished_at)
    step = history_step(minutes * 60)
    points = await ledger.reads.history(found.id, seconds=minutes * 60, step=step, until=until)
    if points and points[-1].counts is None and found.finished_at is None:
        counts = await ledger.reads.stats(found.id)
        # Of a run that was never sampled, also what it waits for; the next sample is at most a minute ahead.
        new = all(point.waiting_for is None for point in points)
        causes = await count_causes(ledger.reads, found.id, counts) if new else None
        points[-1] = msgspec.structs.replace(points[-1], counts=counts, waiting_for=causes)
    begin = points[0].at if points else until
    return History(
        run=found, step_seconds=step, points=tuple(points), marks=tuple(await _marks(ledger, found, begin, step))
    )


async def _marks(ledger: Ledger, run: Run, begin: dt.datetime, step: int) -> list[HistoryMark]:
    """Events since `begin` that change the pace of a run, its own and those of shared lanes and workers.

    The same change by the same actor within one step is one mark. Only the newest events are read.
    """
    events = [event for event in await _events(ledger, run.id, begin) if event.action in _MARK_TEXTS]
    events += [event for event in await _events(ledger, None, begin) if event.action in _SHARED_MARKS]
    groups: dict[tuple[str, str, int], list[AuditEvent]] = {}
    for event in sorted(events, key=lambda event: event.id):
        if event.action == "scaled" and event.detail.get("from") == event.detail.get("to"):
            continue
        groups.setdefault((event.action, event.actor, int(event.at.timestamp() // step)), []).append(event)
    marks = [
        HistoryMark(at=same[-1].at, actor=same[-1].actor, action=same[-1].action, text=_mark_text(same))
        for same in groups.values()
    ]
    return sorted(marks, key=lambda mark: mark.at)[-MAX_MARKS:]


async def _events(ledger: Ledger, run_id: str | None, begin: dt.datetime) -> list[AuditEvent]:
    """The newest events of a run, or those that belong to none."""
    page = await ledger.reads.events(run_id=run_id, limit=MAX_EVENTS_READ)
    return [event for event in page.rows if event.at >= begin and event.run_id == run_id]


def _mark_text(events: Sequence[AuditEvent]) -> str:
    last = events[-1]
    text = _MARK_TEXTS[last.action](last)
    subjects = {event.subject for event in events}
    return text if len(subjects) == 1 else f"{text}, and {pluralize(len(subjects) - 1, 'more change')}"


def _set_lane_text(event: AuditEvent) -> str:
    detail = event.detail
    parts = [f"limit {detail['limit']}"] if detail.get("limit") is not None else []
    if (low := detail.get("delay_min")) is not None:
        high = detail.get("delay_max", low)
        parts.append(f"delay {low:g} s" if low == high else f"delay {low:g} to {high:g} s")
    if (paused := detail.get("paused")) is not None:
        parts.append("paused" if paused else "resumed")
    return f"lane {event.subject}: {', '.join(parts) or 'set'}"


def _blocked_lane_text(event: AuditEvent) -> str:
    seconds, why = event.detail.get("seconds") or 0, event.detail.get("why") or ""
    if not seconds:
        return f"lane {event.subject}: block lifted"
    return f"lane {event.subject}: blocked for {format_duration(seconds)}" + (f" ({why})" if why else "")


def _scaled_text(event: AuditEvent) -> str:
    detail = event.detail
    change = f"{detail.get('from')} to {detail.get('to')} {detail.get('what') or 'workers'}"
    return f"{event.subject}: {change}" + (f" ({detail['why']})" if detail.get("why") else "")


def _pool_scaled_text(event: AuditEvent) -> str:
    """Of `pool.scaled`: an operator asked for so many workers."""
    workers = event.detail.get("to", event.detail.get("workers"))
    wanted = "as many workers as needed" if workers is None else pluralize(workers, "worker")
    before = event.detail.get("from", event.detail.get("present"))
    return f"pool: {wanted}" + (f" instead of {before}" if before is not None else "")


_MARK_TEXTS: dict[str, Callable[[AuditEvent], str]] = {
    "run.created": lambda event: "run created",
    "run.sealed": lambda event: "input complete",
    "run.paused": lambda event: "paused" + (f": {event.detail['because']}" if event.detail.get("because") else ""),
    "run.active": lambda event: "resumed" if not event.detail.get("because") else f"active: {event.detail['because']}",
    "run.cancelled": lambda event: "cancelled",
    "run.finished": lambda event: "finished",
    "scaled": _scaled_text,
    "pool.scaled": _pool_scaled_text,
    "pool.started": lambda event: f"pool started with {pluralize(event.detail.get('workers') or 0, 'worker')}",
    "pool.stopped": lambda event: "pool stopped",
    "lane.set": _set_lane_text,
    "lane.blocked": _blocked_lane_text,
    "lane.slowed": lambda event: f"lane {event.subject}: delay of {event.detail.get('floor')} s or more",
    "items.retried": lambda event: f"{pluralize(event.detail.get('items') or 0, 'item')} retried",
    "items.cancelled": lambda event: f"{pluralize(event.detail.get('items') or 0, 'item')} cancelled",
    "items.replayed": lambda event: "items replayed",
    "leases.released": lambda event: f"{pluralize(event.detail.get('items') or 0, 'claim')} released",
    "worker.draining": lambda event: f"worker {event.subject} drains",
}
_SHARED_MARKS = ("lane.set", "lane.blocked", "lane.slowed", "leases.released", "worker.draining")


async def explain_progress(ledger: Ledger, run: str, *, snapshot: Snapshot | None = None) -> RunOutlook:
    """Return what limits a run, since when, and an honest estimate of its end. `snapshot`: if just taken."""
    if snapshot is None:
        snapshot = await take_snapshot(ledger, (await find_run(ledger, run)).id)
    found = snapshot.run
    bottleneck = find_bottleneck(snapshot.counts, snapshot.gates)
    reason = next((gate for gate in snapshot.gates if gate.text and gate.text in bottleneck.text), None)
    now = await ledger_now(ledger)
    pace = Pace(snapshot.counts, await ledger.reads.history(found.id, seconds=PACE_SECONDS, step=60, until=now), now)
    since = pace.waiting_since(bottleneck.cause)
    if since is not None and since <= now - dt.timedelta(seconds=PACE_SECONDS - 120):
        # It began before these minutes.
        longer = await ledger.reads.history(found.id, seconds=MAX_HISTORY_POINTS * 60, step=60, until=now)
        since = Pace(snapshot.counts, longer, now).waiting_since(bottleneck.cause)
    critical = None if snapshot.ended else await _critical_lane(ledger, snapshot, pace.item_seconds)
    growing = not bottleneck.blocks_run and not snapshot.ended and pace.is_growing
    lane, lane_seconds = critical or (None, None)
    return RunOutlook(
        run=found,
        text=_outlook_text(snapshot, bottleneck),
        since=(None if reason is None else reason.since) or since,
        until=None if reason is None else reason.until,
        reasons=snapshot.gates,
        bottleneck=bottleneck,
        eta_seconds=None if growing else _eta(snapshot, bottleneck, pace, lane_seconds),
        growing=growing,
        critical_lane=lane,
        critical_seconds=lane_seconds,
    )


def until_last_lane(reading: Reading, outlook: RunOutlook) -> Reading:
    """A reading whose estimate is no shorter than the lane takes that will end last."""
    if reading.eta is None or outlook.critical_seconds is None:
        return reading
    ends = zip(reading.eta, outlook.critical_seconds, strict=True)
    low, high = (max(own, of_lane) for own, of_lane in ends)
    return msgspec.structs.replace(reading, eta=(low, min(high, MAX_ETA_SECONDS)))


class Pace:
    """How fast a run went in the last minutes: `points` are these minutes, the last one goes on."""

    def __init__(self, counts: Counts, points: Sequence[HistoryPoint], now: dt.datetime) -> None:
        self._counts = counts
        self._points = points
        self._now = now

    @property
    def item_seconds(self) -> float | None:
        """How long an attempt took on average; None when none ended."""
        attempts = sum(point.work.count for point in self._points)
        return sum(point.seconds for point in self._points) / attempts if attempts else None

    @property
    def rates(self) -> tuple[float, float] | None:
        """Items ended per second, lowest and highest: since the first that ended, and in the newest minutes.

        None: nothing ended lately.
        """
        first = next((n for n, point in enumerate(self._points) if _ended(point)), None)
        if first is None:
            return None
        rates = []
        for begin in {first, max(first, len(self._points) - NEWEST_MINUTES)}:
            part = self._points[begin:]
            seconds = max(MIN_RATE_SECONDS, (self._now - part[0].at).total_seconds())
            rates.append(sum(_ended(point) for point in part) / seconds)
        return (min(rates), max(rates))

    @property
    def added_per_ended(self) -> float:
        """How many items were added for each one that ended since the first sample of these minutes."""
        before = next((point.counts for point in self._points if point.counts is not None), None)
        if before is None or (ended := self._counts.ended - before.ended) <= 0:
            return 0.0
        return max(0, self._counts.total - before.total) / ended

    @property
    def is_growing(self) -> bool:
        return self._counts.remaining > 0 and self.added_per_ended >= GROWING_RATIO

    def waiting_since(self, cause: str) -> dt.datetime | None:
        """Since when most items have waited for this, by the samples without a gap; None when not even the last did."""
        since = None
        for point in reversed(self._points):
            if point.waiting_for is None:
                if since is None and point is self._points[-1]:
                    continue  # this minute has no sample yet
                break
            if max(point.waiting_for, key=lambda each: (point.waiting_for or {})[each], default="") != cause:
                break
            since = point.at
        return since


def _ended(point: HistoryPoint) -> int:
    return point.done + point.dead + point.skipped


async def _critical_lane(
    ledger: Ledger, snapshot: Snapshot, item_seconds: float | None
) -> tuple[str, tuple[float, float]] | None:
    """The lane that will end last at its own pace. A paused lane has no end, and is a reason of its own."""
    if not snapshot.counts.waiting:
        return None
    lanes = await ledger.reads.waiting_lanes(snapshot.run.id, limit=MAX_LANES_READ)
    ends = [(lane.key, eta) for lane in lanes if (eta := lane_eta(lane, item_seconds)) is not None]
    return max(ends, key=lambda end: end[1][1], default=None)


def _eta(
    snapshot: Snapshot, bottleneck: Bottleneck, pace: Pace, lane_seconds: tuple[float, float] | None
) -> tuple[float, float] | None:
    """From the best recent rate without new items to the worst one with items added as before.

    No shorter than the critical lane takes. None when nothing has ended lately, or nothing proceeds.
    """
    remaining = snapshot.counts.remaining
    if snapshot.ended or (remaining == 0 and snapshot.run.sealed):
        return 0.0, 0.0
    if bottleneck.blocks_run or not remaining or (rates := pace.rates) is None:
        return None
    slow, fast = rates
    low, high = remaining / fast, remaining / max(slow, fast / MAX_RATE_SPREAD)
    high /= max(1 - GROWING_RATIO, 1 - pace.added_per_ended)
    middle = (low + high) / 2
    low, high = min(low, middle * (1 - MIN_ETA_SPREAD)), max(high, middle * (1 + MIN_ETA_SPREAD))
    if lane_seconds is not None:
        low, high = max(low, lane_seconds[0]), max(high, lane_seconds[1])
    return None if low > MAX_ETA_SECONDS else (low, min(high, MAX_ETA_SECONDS))


def _outlook_text(snapshot: Snapshot, bottleneck: Bottleneck) -> str:
    if bottleneck.text:
        return bottleneck.text
    if snapshot.ended:
        return f"The run is {snapshot.run.state}."
    return "Nothing holds it back." if bottleneck.cause == "nothing" else f"It waits for {bottleneck.cause}."
