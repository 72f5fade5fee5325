"""Reads the day out of the texts that newspapers write dates in: English ones here, other languages by dateparser."""

from __future__ import annotations

import datetime as dt
import re
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dateparser.date import DateDataParser

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH = (
    r"(?P<month>jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|"
    r"oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)\.?"
)
_DAY = r"(?P<day>\d{1,2})(?:st|nd|rd|th)?"
_DATE_FORMATS = (
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
# A day, a word or two, and a year, with or without other words around it.
_IN_WORDS = re.compile(r"\d{1,2}(?:\.|er|º|ª|°)?\s+(?:d[eu']\s*)?[^\W\d_]{3,}\.?,?(?:\s+del?)?\s+\d{4}", re.IGNORECASE)
# Thailand counts from the year 543 before ours.
THAI_YEARS = 543
# Further ahead no newspaper dates its articles.
MAX_DAYS_AHEAD = 366
# Longer texts are no dates, and would be slow.
MAX_FOREIGN_CHARACTERS = 60


def read_day(text: str, *, now: dt.datetime, month_first: bool = False, language: str | None = None) -> dt.date | None:
    """The day in a text, None if there is none. 3/4/2024 is in April unless `month_first` is set.

    `language`: the code of the text's language; without it many are tried. A time zone is ignored: the day is the one
    that is written. A day more than a year ahead is none, unless it is one of the Thai calendar.
    """
    day = _written_day(text, now, month_first, language)
    latest = now.date() + dt.timedelta(days=MAX_DAYS_AHEAD)
    if day is None or day <= latest:
        return day
    thai = _day(day.year - THAI_YEARS, day.month, day.day)
    return thai if thai is not None and now.year - 100 <= thai.year and thai <= latest else None


def _written_day(text: str, now: dt.datetime, month_first: bool, language: str | None) -> dt.date | None:
    text = " ".join(text.split())
    if _EPOCH.fullmatch(text):
        seconds = float(text)
        return dt.datetime.fromtimestamp(seconds / 1_000 if seconds > 1e11 else seconds, dt.UTC).date()
    for form in _DATE_FORMATS:
        if found := form.search(text):
            month = found["month"]
            number = int(month) if month.isdigit() else _MONTHS.index(month.lower()[:3]) + 1
            return _day(int(found["year"]), number, int(found["day"]))
    if found := _NUMBERS.search(text):
        first, second, year = (int(number) for number in found.groups())
        year += 2000 if year < 70 else 1900 if year < 100 else 0
        day, month_number = (second, first) if month_first else (first, second)
        # 25/12 is valid in one order only.
        return _day(year, month_number, day) or _day(year, day, month_number)
    return _relative(text, now) if _AGO.search(text) else _relative(text, now) or _foreign(text, now, language)


def known_language(code: str) -> bool:
    """Whether dates can be read in this language."""
    from dateparser.data.languages_info import language_order

    return code in language_order


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
    # "3 months ago" is not an exact day.
    return None if seconds is None or count > 10_000 else (now - dt.timedelta(seconds=count * seconds)).date()


def _foreign(text: str, now: dt.datetime, language: str | None) -> dt.date | None:
    found = _IN_WORDS.search(text)
    part = found[0] if found else text
    if len(part) > MAX_FOREIGN_CHARACTERS or not any(letter.isdigit() for letter in part):
        return None
    # By the hour: a parser is slow to make, and dates of one hour share it.
    return _parse_foreign(part, now.replace(tzinfo=None, minute=0, second=0, microsecond=0), language)


@lru_cache(maxsize=1_024)
def _parse_foreign(text: str, hour: dt.datetime, language: str | None) -> dt.date | None:
    try:
        found = _foreign_parser(hour, language).get_date_data(text).date_obj
    except (ValueError, OverflowError):
        return None
    return None if found is None else found.date()


@lru_cache(maxsize=4)
def _foreign_parser(hour: dt.datetime, language: str | None) -> DateDataParser:
    from dateparser.date import DateDataParser

    return DateDataParser(
        languages=None if language is None else [language],
        settings={"DATE_ORDER": "DMY", "REQUIRE_PARTS": ["day", "month", "year"], "RELATIVE_BASE": hour},
    )


def _day(year: int, month: int, day: int) -> dt.date | None:
    try:
        return dt.date(year, month, day)
    except ValueError:
        return None
