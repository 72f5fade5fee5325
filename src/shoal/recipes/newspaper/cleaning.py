"""Functions that clean a field, by name or as `module:function`; and the parser of dates in the formats that newspapers
use.
"""

from __future__ import annotations

import datetime as dt
import difflib
import html
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from shoal.define.author_code import load_object
from shoal.define.yaml_scraper import YamlHeader, yaml_error
from shoal.errors import InvalidScraper, NotFound
from shoal.recipes.newspaper.settings import Newspaper, as_tuple

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH = r"(?P<month>jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.?"
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
Function = Callable[[Any], Any]
FIELDS = ("url", "title", "date", "body", "tags")


def read_day(text: str, *, now: dt.datetime, month_first: bool = False) -> dt.date | None:
    """The day in a text, None if there is none. 3/4/2024 is in April unless `month_first` is set.

    A time zone is ignored: the day is the one that is written.
    """
    text = " ".join(text.split())
    if _EPOCH.fullmatch(text):
        seconds = float(text)
        return dt.datetime.fromtimestamp(seconds / 1_000 if seconds > 1e11 else seconds, dt.UTC).date()
    for form in _DATE_FORMATS:
        if found := form.search(text):
            month = found["month"]
            number = int(month) if month.isdigit() else _MONTHS.index(month.lower()) + 1
            return _day(int(found["year"]), number, int(found["day"]))
    if found := _NUMBERS.search(text):
        first, second, year = (int(number) for number in found.groups())
        year += 2000 if year < 70 else 1900 if year < 100 else 0
        day, month_number = (second, first) if month_first else (first, second)
        # 25/12 is valid in one order only.
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
    # "3 months ago" is not an exact day.
    return None if seconds is None or count > 10_000 else (now - dt.timedelta(seconds=count * seconds)).date()


def _day(year: int, month: int, day: int) -> dt.date | None:
    try:
        return dt.date(year, month, day)
    except ValueError:
        return None


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


def one_line(text: str) -> str:
    return " ".join(text.split())


def plain_text(text: str) -> str:
    """Without the tags and entities of HTML."""
    without_tags = re.sub(r"<[^<>]*>", "", text)
    # No character has so long a number, and Python refuses to parse very long ones.
    return html.unescape(re.sub(r"&#[xX]?[0-9a-fA-F]{10,};?", "\ufffd", without_tags)).strip()


def without_query(url: str) -> str:
    return url.partition("#")[0].partition("?")[0]


def https(url: str) -> str:
    return "https://" + url.removeprefix("http://") if url.startswith("http://") else url


def day_first(text: str) -> str:
    """3/4/2024 is the third of April, which is also the default."""
    day = read_day(text, now=_now())
    return day.isoformat() if day else text


def month_first(text: str) -> str:
    """3/4/2024 is the fourth of March."""
    day = read_day(text, now=_now(), month_first=True)
    return day.isoformat() if day else text


def split_commas(tags: list[str]) -> list[str]:
    return [part.strip() for tag in tags for part in tag.split(",") if part.strip()]


def lower_case(tags: list[str]) -> list[str]:
    return [tag.lower() for tag in tags]


def unchanged(value: str) -> str:
    """URLs are absolute and dates are parsed in any case; existing files use these names."""
    return value


BUILTIN_FUNCTIONS: Mapping[str, Mapping[str, Function]] = {
    "url": {"without_query": without_query, "https": https, "clean_url": unchanged},
    "title": {"one_line": one_line, "plain_text": plain_text},
    "date": {"day_first": day_first, "month_first": month_first, "handle_mixed_dates": unchanged},
    "body": {"one_line": one_line, "plain_text": plain_text},
    "tags": {"split_commas": split_commas, "lower_case": lower_case},
    "record_filter": {
        "has_title": lambda record: bool(record["title"]),
        "has_date": lambda record: bool(record["date"]),
        "has_tags": lambda record: bool(record["tags"]),
    },
}


class FieldCleaner:
    """The cleaning functions of a file. `files` are the Python files that they were loaded from."""

    def __init__(self, header: YamlHeader, paper: Newspaper) -> None:
        self.files: list[Path] = []
        self._functions = {
            field: [self._find_function(header, field, name) for name in as_tuple(getattr(paper.cleaning, field))]
            for field in BUILTIN_FUNCTIONS
        }

    def clean(self, field: str, value: Any) -> Any:
        """The value of a field after all its functions; an empty one stays unchanged."""
        for function in self._functions[field] if value else ():
            value = function(value)
        return value

    def day(self, text: str | None) -> str | None:
        """The day in a text, as YYYY-MM-DD."""
        cleaned = self.clean("date", text)
        day = read_day(str(cleaned), now=_now()) if cleaned else None
        return day.isoformat() if day else None

    def keeps(self, record: Mapping[str, Any]) -> bool:
        return all(function(record) for function in self._functions["record_filter"])

    def _find_function(self, header: YamlHeader, field: str, name: str) -> Function:
        if ":" not in name:
            return self._find_named(header, field, name)
        try:
            function = load_object(name, header.folder)
        except (NotFound, InvalidScraper) as problem:
            message = f"cleaning.{field}: {problem.message}"
            raise yaml_error(header, ["cleaning", field], message, remedy=problem.remedy) from problem
        if not callable(function):
            raise yaml_error(header, ["cleaning", field], f"cleaning.{field}: {name} is no function.")
        if code := getattr(function, "__code__", None):
            self.files.append(Path(code.co_filename))
        return function  # type: ignore[no-any-return]

    def _find_named(self, header: YamlHeader, field: str, name: str) -> Function:
        known = BUILTIN_FUNCTIONS[field]
        if name in known:
            return known[name]
        close = difflib.get_close_matches(name, known, 1)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}."
        raise yaml_error(
            header,
            ["cleaning", field],
            f"cleaning.{field} has no function {name!r}; {hint}",
            remedy="For one of your own write module:function.",
        )
