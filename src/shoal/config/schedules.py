"""When something is to be run by itself: `schedule = "0 2 * * *"`, or a table with more to say.

The same for every table that may have a schedule.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, cast

import msgspec

from shoal.config.sources import Origin, RawValue
from shoal.config.values import ChoiceSetting
from shoal.errors import InvalidSetting

Missed = Literal["once", "skip", "all"]
Overlap = Literal["skip", "wait"]
Action = Literal["run", "enqueue"]

UTC = "UTC"
LONGEST_EVERY = 366 * 86_400
_EVERY = re.compile(r"(\d{1,9})\s*(s|m|min|h|d)", re.ASCII)
_SECONDS = {"s": 1, "m": 60, "min": 60, "h": 3_600, "d": 86_400}
CHOICES = {
    "missed": ChoiceSetting(("once", "skip", "all")),
    "overlap": ChoiceSetting(("skip", "wait")),
    "action": ChoiceSetting(("run", "enqueue")),
}
SCHEDULE_NAMES = ("cron", "every", "timezone", *CHOICES)
_CRON_MEANING = 'a cron expression that comes due some day, such as "0 2 * * *" (minute hour day month weekday)'
_EVERY_MEANING = 'a span of 1 s to 366 d, such as "30s", "15m", "24h" or "7d"'


class ScheduleConfig(msgspec.Struct, frozen=True, kw_only=True):
    """When, and what of it. One of `cron` and `every` (in seconds) is given.

    `missed`: of the slots that nobody was there for, the last one is made up for, none, or each. `overlap`: a slot that
    comes while an earlier one is still going is skipped, or waits. `action`: work the run off, or only store it for
    workers that are there anyway.
    """

    cron: str | None = None
    every: int | None = None
    timezone: str = UTC
    missed: Missed = "once"
    overlap: Overlap = "skip"
    action: Action = "run"

    @property
    def rule(self) -> str:
        """When, in one line. Another rule is another schedule."""
        return f"{self.cron} {self.timezone}" if self.cron is not None else f"every {self.every}s"

    def __str__(self) -> str:
        return f"{self.rule}, missed {self.missed}, overlap {self.overlap}, action {self.action}"


class ScheduleSetting(NamedTuple):
    """A cron expression, or a table."""

    def read(self, name: str, given: RawValue) -> ScheduleConfig:
        table = {"cron": given.value} if isinstance(given.value, str) else given.value
        if not isinstance(table, dict):
            raise given.invalid(name, str(self))
        for key in table:
            if key not in SCHEDULE_NAMES:
                raise InvalidSetting(
                    f"{_origin(given, key)} is not a setting.",
                    remedy=f"A schedule has {', '.join(SCHEDULE_NAMES[:-1])} and {SCHEDULE_NAMES[-1]}.",
                )
        parts = {key: RawValue(value, _origin(given, key)) for key, value in table.items()}
        if given.value is not table:  # the short form: its value stands under the schedule's own name
            parts = {"cron": given}
        return _validated(name, given, parts)

    def __str__(self) -> str:
        return 'a cron expression such as "0 2 * * *", or a table with cron or every'


def _validated(name: str, given: RawValue, parts: Mapping[str, RawValue]) -> ScheduleConfig:
    if ("cron" in parts) == ("every" in parts):
        both = "both cron and every" if "cron" in parts else "neither cron nor every"
        raise InvalidSetting(f"{given.origin} has {both}.", remedy="Give one of the two.")
    found: dict[str, Any] = {key: kind.read(key, parts[key]) for key, kind in CHOICES.items() if key in parts}
    if "every" in parts:
        if "timezone" in parts:
            raise InvalidSetting(
                f"{parts['timezone'].origin} means nothing beside every.", remedy="Remove it, or give a cron."
            )
        found["every"] = _every(parts["every"])
    else:
        found["timezone"] = _zone(parts["timezone"]) if "timezone" in parts else UTC
        found["cron"] = _cron(name, parts["cron"], found["timezone"])
    return ScheduleConfig(**{**found, "overlap": _overlap(parts, found)})


def _overlap(parts: Mapping[str, RawValue], found: Mapping[str, Any]) -> Overlap:
    """When each slot is wanted, those that come together wait for one another."""
    if found.get("missed") != "all":
        return cast("Overlap", found.get("overlap", "skip"))
    if found.get("overlap") == "skip":
        raise InvalidSetting(
            f"{parts['overlap'].origin} is skip, but {parts['missed'].origin} asks for every slot.",
            remedy='Leave overlap out, or choose missed = "once".',
        )
    return "wait"


def _every(given: RawValue) -> int:
    match = _EVERY.fullmatch(given.value.strip().lower()) if isinstance(given.value, str) else None
    seconds = int(match[1]) * _SECONDS[match[2]] if match is not None else 0
    if not 1 <= seconds <= LONGEST_EVERY:
        raise given.invalid("every", _EVERY_MEANING)
    return seconds


def _zone(given: RawValue) -> str:
    meaning = "the name of a time zone, such as Europe/Berlin"
    name = given.text("timezone", meaning)
    from zoneinfo import ZoneInfo

    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # unknown; no name at all; a folder of names such as Europe
        raise given.invalid("timezone", meaning) from None
    return name


def _cron(name: str, given: RawValue, timezone: str) -> str:
    text = " ".join(given.text(name, _CRON_MEANING).split())
    from zoneinfo import ZoneInfo

    from cronsim import CronSim, CronSimError

    try:
        # The 30th of February is refused at once, a fifth Monday in February 2001 only by looking for it.
        next(CronSim(text, dt.datetime.now(ZoneInfo(timezone))))
    except (CronSimError, StopIteration):
        raise given.invalid(name, _CRON_MEANING) from None
    return text


def _origin(given: RawValue, key: str) -> Origin:
    return Origin(given.origin.kind, f"{given.origin.name}.{key}")
