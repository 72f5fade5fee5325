"""The setting `schedule`: a cron expression such as `"0 2 * * *"`, or a table with cron or every and options."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from typing import Any, Literal, cast

import msgspec

from shoal.config.sources import Origin, RawValue
from shoal.config.values import CustomType, read_value
from shoal.errors import InvalidSetting

Missed = Literal["once", "skip", "all"]
Overlap = Literal["skip", "wait"]
Action = Literal["run", "enqueue"]

UTC = "UTC"
MAX_EVERY = 366 * 86_400
_EVERY = re.compile(r"(\d{1,9})\s*(s|m|min|h|d)", re.ASCII)
_SECONDS = {"s": 1, "m": 60, "min": 60, "h": 3_600, "d": 86_400}
_CHOICES = {"missed": Missed, "overlap": Overlap, "action": Action}
SCHEDULE_NAMES = ("cron", "every", "timezone", *_CHOICES)
_CRON_TEXT = 'a cron expression that matches some day, such as "0 2 * * *" (minute hour day month weekday)'
_EVERY_TEXT = 'a span of 1 s to 366 d, such as "30s", "15m", "24h" or "7d"'


class ScheduleConfig(msgspec.Struct, frozen=True, kw_only=True):
    """When a scraper is started, and how. One of `cron` and `every` (in seconds) is given.

    `missed`: of the slots that passed while no scheduler ran, the last one is run, none, or each. `overlap`: a slot
    that is due while an earlier one still runs is skipped, or waits. `action`: execute the run, or only enqueue it
    for workers that run already.
    """

    cron: str | None = None
    every: int | None = None
    timezone: str = UTC
    missed: Missed = "once"
    overlap: Overlap = "skip"
    action: Action = "run"

    @property
    def rule(self) -> str:
        """The times in one line. A changed rule is a new schedule."""
        return f"{self.cron} {self.timezone}" if self.cron is not None else f"every {self.every}s"

    def __str__(self) -> str:
        return f"{self.rule}, missed {self.missed}, overlap {self.overlap}, action {self.action}"


def _read_schedule(name: str, given: RawValue) -> ScheduleConfig:
    if isinstance(given.value, str):
        return _validated(name, given, {"cron": given})
    if not isinstance(given.value, dict):
        raise given.invalid(name, SCHEDULE.accepted)
    for key in given.value:
        if key not in SCHEDULE_NAMES:
            raise InvalidSetting(
                f"{_origin(given, key)} is not a setting.",
                remedy=f"A schedule has {', '.join(SCHEDULE_NAMES[:-1])} and {SCHEDULE_NAMES[-1]}.",
            )
    return _validated(name, given, {key: RawValue(value, _origin(given, key)) for key, value in given.value.items()})


SCHEDULE = CustomType(_read_schedule, 'a cron expression such as "0 2 * * *", or a table with cron or every')


def _validated(name: str, given: RawValue, parts: Mapping[str, RawValue]) -> ScheduleConfig:
    if ("cron" in parts) == ("every" in parts):
        both = "both cron and every" if "cron" in parts else "neither cron nor every"
        raise InvalidSetting(f"{given.origin} has {both}.", remedy="Give one of the two.")
    found: dict[str, Any] = {key: read_value(key, kind, parts[key]) for key, kind in _CHOICES.items() if key in parts}
    if "every" in parts:
        if "timezone" in parts:
            raise InvalidSetting(
                f"{parts['timezone'].origin} has no effect with every.", remedy="Remove it, or give a cron."
            )
        found["every"] = _every(parts["every"])
    else:
        found["timezone"] = _zone(parts["timezone"]) if "timezone" in parts else UTC
        found["cron"] = _cron(name, parts["cron"], found["timezone"])
    return ScheduleConfig(**{**found, "overlap": _overlap(parts, found)})


def _overlap(parts: Mapping[str, RawValue], found: Mapping[str, Any]) -> Overlap:
    """When every slot must run, those that are due together wait for one another."""
    if found.get("missed") != "all":
        return cast("Overlap", found.get("overlap", "skip"))
    if found.get("overlap") == "skip":
        raise InvalidSetting(
            f"{parts['overlap'].origin} is skip, but {parts['missed'].origin} requires every slot.",
            remedy='Leave overlap out, or choose missed = "once".',
        )
    return "wait"


def _every(given: RawValue) -> int:
    match = _EVERY.fullmatch(given.value.strip().lower()) if isinstance(given.value, str) else None
    seconds = int(match[1]) * _SECONDS[match[2]] if match is not None else 0
    if not 1 <= seconds <= MAX_EVERY:
        raise given.invalid("every", _EVERY_TEXT)
    return seconds


def _zone(given: RawValue) -> str:
    accepted = "the name of a time zone, such as Europe/Berlin"
    name = given.text("timezone", accepted)
    from zoneinfo import ZoneInfo

    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # unknown; not a name; a folder of names such as Europe
        raise given.invalid("timezone", accepted) from None
    return name


def _cron(name: str, given: RawValue, timezone: str) -> str:
    text = " ".join(given.text(name, _CRON_TEXT).split())
    from zoneinfo import ZoneInfo

    from cronsim import CronSim, CronSimError

    try:
        # The 30th of February is refused by the parser, a fifth Monday in February 2001 only by the search.
        next(CronSim(text, dt.datetime.now(ZoneInfo(timezone))))
    except (CronSimError, StopIteration):
        raise given.invalid(name, _CRON_TEXT) from None
    return text


def _origin(given: RawValue, key: str) -> Origin:
    return Origin(given.origin.kind, f"{given.origin.name}.{key}")
