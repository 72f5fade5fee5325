"""The slots of a schedule: when they are due, the lock of each in the ledger, and which to start.

A cron expression is read in its time zone, as Debian's cron does where clocks change: one that names minutes and hours
(`30 2 * * *`) runs once a day, also on the day that has this hour twice, and at the end of the gap on the day that does
not have it; one whose minutes or hours begin with a star (`*/15 * * * *`) goes by the time that really passes.

Slots before a schedule was first seen are not missed, and intervals count from then. The ledger stores that time with
the rule of the schedule, so that a changed schedule starts anew.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
from cronsim import CronSim

from shoal.config.schedules import Overlap, ScheduleConfig
from shoal.errors import LedgerError
from shoal.ledger.protocols import Ledger, Locks
from shoal.model.views import LockView

# A slot that is found within this time is not a missed one.
GRACE = dt.timedelta(seconds=60)
MAX_BACKFILL = 100
_FIRST_WINDOW = dt.timedelta(minutes=1)
LOCK_SECONDS = 10.0
_STAMP = "%Y-%m-%dT%H:%M:%SZ"
_MANUAL = "+now"
MAX_LISTED = 50


class DueSlots(msgspec.Struct, frozen=True):
    """The slots to run, the oldest first. `has_dropped`: there were more, which will not run."""

    slots: tuple[dt.datetime, ...] = ()
    has_dropped: bool = False


class Timetable:
    """Of one schedule. `since`: when it was first seen; all slots are later."""

    def __init__(self, config: ScheduleConfig, since: dt.datetime) -> None:
        self._config = config
        self._since = _to_second(since)

    def after(self, moment: dt.datetime) -> Iterator[dt.datetime]:
        """All slots after a time, without end."""
        start = max(_to_second(moment), self._since)
        return self._interval_times(start) if self._config.every is not None else self._cron_times(start)

    def due(self, last_taken: dt.datetime | None, now: dt.datetime) -> DueSlots:
        """The slots to run now. `last_taken`: the last slot that a node took, None if none ever was."""
        start = self._since if last_taken is None else max(last_taken, self._since)
        most = MAX_BACKFILL if self._config.missed == "all" else 1
        slots = self._latest(start, now, most + 1)
        kept = slots[-most:]
        if self._config.missed == "skip":
            kept = [slot for slot in kept if now - slot <= GRACE]
        return DueSlots(tuple(kept), has_dropped=len(kept) < len(slots))

    def _latest(self, start: dt.datetime, now: dt.datetime, most: int) -> list[dt.datetime]:
        """The last slots after `start` up to now, at most `most`.

        Searched in windows that grow backwards, so that years without a node cost no more than a minute.
        """
        window = _FIRST_WINDOW
        while True:
            begin = max(start, now - window)
            found = list(_until(self.after(begin), now))
            if begin == start or len(found) >= most:
                return found[-most:]
            window *= 8

    def _interval_times(self, start: dt.datetime) -> Iterator[dt.datetime]:
        step = dt.timedelta(seconds=self._config.every or 1)
        number = (start - self._since) // step + 1
        while True:
            yield self._since + number * step
            number += 1

    def _cron_times(self, start: dt.datetime) -> Iterator[dt.datetime]:
        local = start.astimezone(ZoneInfo(self._config.timezone))
        for tick in CronSim(self._config.cron or "", local):
            moment = tick.astimezone(dt.UTC)
            # Started within the hour that occurs twice, it would find slots of the first of the two again.
            if moment > start:
                yield moment


def next_slots(table: Timetable, now: dt.datetime, number: int) -> list[dt.datetime]:
    return list(islice(table.after(now), number))


def _until(slots: Iterator[dt.datetime], end: dt.datetime) -> Iterator[dt.datetime]:
    for slot in slots:
        if slot > end:
            return
        yield slot


def _to_second(moment: dt.datetime) -> dt.datetime:
    return moment.astimezone(dt.UTC).replace(microsecond=0)


async def read_first_seen(ledger: Ledger, name: str, config: ScheduleConfig) -> dt.datetime | None:
    """None when no node has seen this schedule with its present rule."""
    found = await ledger.settings.get(_scope(name))
    return None if found is None or found[1].get("rule") != config.rule else _moment(found[1])


async def record_first_seen(
    ledger: Ledger, name: str, config: ScheduleConfig, now: dt.datetime, *, by: str
) -> dt.datetime | None:
    """When it was first seen, which is `now` if no node has seen it. None while another node records it.

    One node records at a time: two that see a new schedule together would count its intervals differently.
    """
    lock = f"schedule-first-seen:{name}"
    if not await ledger.locks.acquire(lock, by, LOCK_SECONDS):
        return None
    try:
        seen = await read_first_seen(ledger, name, config)
        if seen is None:
            seen = now.replace(microsecond=0)
            await ledger.settings.put(_scope(name), {"rule": config.rule, "since": seen.isoformat()}, by=by)
        return seen
    finally:
        with suppress(LedgerError):  # then it expires
            await ledger.locks.release(lock, by)


def _moment(value: dict[str, Any]) -> dt.datetime:
    return dt.datetime.fromisoformat(value["since"])


def _scope(name: str) -> str:
    return f"schedule:{name}"


class Slot(msgspec.Struct, frozen=True):
    """One start time of a schedule. `manual`: asked for by an operator, not by the timetable."""

    schedule: str
    at: dt.datetime
    manual: bool = False

    @property
    def name(self) -> str:
        return self.at.astimezone(dt.UTC).strftime(_STAMP) + (_MANUAL if self.manual else "")

    @property
    def lock_name(self) -> str:
        return lock_prefix(self.schedule) + self.name

    @property
    def idempotency_key(self) -> str:
        """Of its run."""
        return f"schedule {self.schedule} {self.name}"

    @property
    def log_name(self) -> str:
        return self.at.astimezone(dt.UTC).strftime("%Y%m%d_%H%M%S") + ".log"


class SlotReport(msgspec.Struct, frozen=True):
    """How a slot ended: what was stored with its lock. `state`: done, failed, skipped, interrupted, left or lost."""

    slot: Slot
    value: Mapping[str, Any]

    @property
    def state(self) -> str:
        return str(self.value["state"])

    @property
    def text(self) -> str:
        run = f", run {self.value['run_id']}" if self.value.get("run_id") else ""
        why = f": {self.value['why']}" if self.value.get("why") else ""
        return f"{self.slot.schedule}: the slot of {self.slot.name} is {self.state}{run}{why}."


def lock_prefix(schedule: str) -> str:
    """The prefix of a schedule's locks; the order of their names is the order of time."""
    return f"schedule:{schedule}:"


def parse_slot(schedule: str, lock: str) -> Slot:
    name = lock.removeprefix(lock_prefix(schedule))
    at = dt.datetime.strptime(name.removesuffix(_MANUAL), _STAMP).replace(tzinfo=dt.UTC)
    return Slot(schedule, at, name.endswith(_MANUAL))


class KnownSlots(msgspec.Struct, frozen=True):
    """The slots of a schedule that the ledger has, the last one first."""

    slots: tuple[tuple[Slot, LockView], ...] = ()

    @property
    def last_taken(self) -> dt.datetime | None:
        """The time of the last slot that a node took, however it ended."""
        return next((slot.at for slot, _ in self.slots if not slot.manual), None)

    @property
    def unfinished(self) -> list[tuple[Slot, LockView]]:
        """Those that have not ended, the oldest first."""
        return [(slot, lock) for slot, lock in reversed(self.slots) if lock.finished_at is None]


async def read_slots(locks: Locks, schedule: str) -> KnownSlots:
    """The newest slots, and the one that they were skipped for if that is older."""
    found = await locks.list(lock_prefix(schedule), limit=MAX_LISTED)
    behind = found[0].value.get("behind") if found else None
    if behind is not None and all(lock.name != behind for lock in found):
        earlier = await locks.get(behind)
        found += [earlier] if earlier is not None else []
    return KnownSlots(tuple((parse_slot(schedule, lock.name), lock) for lock in found))


class SlotDecision(msgspec.Struct, frozen=True, kw_only=True):
    """What to do, in this order.

    `resume`: a slot whose node has lost it. `begin`: the first of these whose lock can be acquired. `skip`: slots that
    are due while `blocked_by` is unfinished.
    """

    resume: Slot | None = None
    begin: tuple[Slot, ...] = ()
    skip: tuple[Slot, ...] = ()
    blocked_by: Slot | None = None


def decide(
    schedule: str, known: KnownSlots, due: Sequence[dt.datetime], overlap: Overlap, now: dt.datetime
) -> SlotDecision | None:
    """None when there is nothing to do."""
    unfinished = known.unfinished
    lost = next((slot for slot, lock in unfinished if lock.until <= now), None)
    if lost is not None:
        return SlotDecision(resume=lost)
    new = tuple(_slots(schedule, due))
    if not new or (unfinished and overlap == "wait"):
        return None
    return SlotDecision(skip=new, blocked_by=unfinished[0][0]) if unfinished else SlotDecision(begin=new)


def _slots(schedule: str, times: Iterable[dt.datetime]) -> Iterable[Slot]:
    return (Slot(schedule, time) for time in times)
