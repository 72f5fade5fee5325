"""The day that a newspaper means: in one of the many ways to write it."""

from __future__ import annotations

import datetime as dt
import re

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH = r"(?P<month>jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.?"
_DAY = r"(?P<day>\d{1,2})(?:st|nd|rd|th)?"
_WRITTEN = (
    re.compile(r"(?<!\d)(?P<year>(?:19|20)\d\d)[-/.](?P<month>\d{1,2})[-/.](?P<day>\d{1,2})(?!\d)"),
    re.compile(rf"\b{_DAY}(?:\s+of)?[\s\-.,]+{_MONTH}[\s\-,]+(?P<year>\d{{4}})\b", re.IGNORECASE),
    re.compile(rf"\b{_MONTH}\s*{_DAY}[\s,\-]+(?P<year>\d{{4}})\b", re.IGNORECASE),
    re.compile(r"(?<!\d)(?P<year>(?:19|20)\d\d)(?P<month>\d\d)(?P<day>\d\d)(?!\d)"),
    re.compile(r"(?P<year>\d{4})\s*年\s*(?P<month>\d{1,2})\s*月\s*(?P<day>\d{1,2})\s*日"),
)
_NUMBERS = re.compile(r"(?<!\d)(\d{1,2})[-/.](\d{1,2})[-/.](\d{4}|\d{2})(?!\d)")
_AGO = re.compile(r"\b(\d{1,9}|an?)\s+(second|sec|minute|min|hour|hr|day|week|month|year)s?\s+ago\b", re.IGNORECASE)
_SECONDS = {"sec": 1, "min": 60, "hou": 3_600, "hr": 3_600, "day": 86_400, "wee": 604_800}
_EPOCH = re.compile(r"\d{10}(?:\d{3})?(?:\.\d+)?")


def read_day(text: str, *, now: dt.datetime, month_first: bool = False) -> dt.date | None:
    """The day in a text, None if there is none. 3/4/2024 is in April unless `month_first` says otherwise.

    A date with a time zone is taken as it is written: the paper's own day.
    """
    text = " ".join(text.split())
    if _EPOCH.fullmatch(text):
        seconds = float(text)
        return dt.datetime.fromtimestamp(seconds / 1_000 if seconds > 1e11 else seconds, dt.UTC).date()
    for form in _WRITTEN:
        if found := form.search(text):
            month = found["month"]
            number = int(month) if month.isdigit() else _MONTHS.index(month.lower()) + 1
            return _day(int(found["year"]), number, int(found["day"]))
    if found := _NUMBERS.search(text):
        first, second, year = (int(number) for number in found.groups())
        year += 2000 if year < 70 else 1900 if year < 100 else 0
        day, month_number = (second, first) if month_first else (first, second)
        # 25/12 can only be meant one way.
        return _day(year, month_number, day) or _day(year, day, month_number)
    return _relative(text, now)


def _relative(text: str, now: dt.datetime) -> dt.date | None:
    lower = text.lower()
    if "yesterday" in lower:
        return (now - dt.timedelta(days=1)).date()
    if "today" in lower or "just now" in lower:
        return now.date()
    found = _AGO.search(text)
    if found is None:
        return None
    count = int(found[1]) if found[1].isdigit() else 1
    seconds = _SECONDS.get(found[2].lower()[:3])
    # "3 months ago" names no day.
    return None if seconds is None or count > 10_000 else (now - dt.timedelta(seconds=count * seconds)).date()


def _day(year: int, month: int, day: int) -> dt.date | None:
    try:
        return dt.date(year, month, day)
    except ValueError:
        return None
