"""The slots of a schedule, as times in UTC to the second. Pure functions.

A cron expression is read in its time zone, as Debian's cron does where clocks change: one that names minutes and hours
(`30 2 * * *`) runs once a day, also on the day that has this hour twice, and at the end of the gap on the day that does
not have it; one whose minutes or hours begin with a star (`*/15 * * * *`) goes by the time that really passes.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from itertools import islice
from zoneinfo import ZoneInfo

import msgspec
from cronsim import CronSim

from shoal.config.schedules import ScheduleConfig

# A slot that is found within this time is not a missed one.
GRACE = dt.timedelta(seconds=60)
MAX_BACKFILL = 100
_FIRST_WINDOW = dt.timedelta(minutes=1)


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
