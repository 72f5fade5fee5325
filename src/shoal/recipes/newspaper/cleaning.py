"""Functions that put a field in order: a few by name, others as `module:function`."""

from __future__ import annotations

import datetime as dt
import difflib
import html
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from shoal.define.declared import Declared
from shoal.define.modules import load_object
from shoal.define.typed import wrong
from shoal.errors import InvalidScraper, NotFound
from shoal.recipes.newspaper.dates import read_day
from shoal.recipes.newspaper.settings import Newspaper, many

Function = Callable[[Any], Any]
FIELDS = ("url", "title", "date", "body", "tags")


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


def one_line(text: str) -> str:
    return " ".join(text.split())


def plain_text(text: str) -> str:
    """Without the tags and entities of HTML."""
    without_tags = re.sub(r"<[^<>]*>", "", text)
    # No character has so long a number, and Python refuses to read very long ones.
    return html.unescape(re.sub(r"&#[xX]?[0-9a-fA-F]{10,};?", "\ufffd", without_tags)).strip()


def without_query(url: str) -> str:
    return url.partition("#")[0].partition("?")[0]


def https(url: str) -> str:
    return "https://" + url.removeprefix("http://") if url.startswith("http://") else url


def day_first(text: str) -> str:
    """3/4/2024 is the third of April, as it is without this."""
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


def as_it_is(value: str) -> str:
    """Addresses are absolute and days are read anyway; files of older systems say so with these names."""
    return value


NAMED: Mapping[str, Mapping[str, Function]] = {
    "url": {"without_query": without_query, "https": https, "clean_url": as_it_is},
    "title": {"one_line": one_line, "plain_text": plain_text},
    "date": {"day_first": day_first, "month_first": month_first, "handle_mixed_dates": as_it_is},
    "body": {"one_line": one_line, "plain_text": plain_text},
    "tags": {"split_commas": split_commas, "lower_case": lower_case},
    "record_filter": {
        "has_title": lambda record: bool(record["title"]),
        "has_date": lambda record: bool(record["date"]),
        "has_tags": lambda record: bool(record["tags"]),
    },
}


class Cleaner:
    """The functions that a file names, found and ready. `files` are those that they were loaded from."""

    def __init__(self, declared: Declared, paper: Newspaper) -> None:
        self.files: list[Path] = []
        self._functions = {
            field: [self._found(declared, field, name) for name in many(getattr(paper.cleaning, field))]
            for field in NAMED
        }

    def clean(self, field: str, value: Any) -> Any:
        """The value of a field after all its functions; an empty one is left alone."""
        for function in self._functions[field] if value else ():
            value = function(value)
        return value

    def day(self, text: str | None) -> str | None:
        """The day that a text means, as YYYY-MM-DD."""
        cleaned = self.clean("date", text)
        day = read_day(str(cleaned), now=_now()) if cleaned else None
        return day.isoformat() if day else None

    def keeps(self, record: Mapping[str, Any]) -> bool:
        return all(function(record) for function in self._functions["record_filter"])

    def _found(self, declared: Declared, field: str, name: str) -> Function:
        if ":" not in name:
            return self._named(declared, field, name)
        try:
            function = load_object(name, declared.folder)
        except (NotFound, InvalidScraper) as problem:
            message = f"cleaning.{field}: {problem.message}"
            raise wrong(declared, ["cleaning", field], message, remedy=problem.remedy) from problem
        if not callable(function):
            raise wrong(declared, ["cleaning", field], f"cleaning.{field}: {name} is no function.")
        if code := getattr(function, "__code__", None):
            self.files.append(Path(code.co_filename))
        return function  # type: ignore[no-any-return]

    def _named(self, declared: Declared, field: str, name: str) -> Function:
        known = NAMED[field]
        if name in known:
            return known[name]
        near = difflib.get_close_matches(name, known, 1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}."
        raise wrong(
            declared,
            ["cleaning", field],
            f"cleaning.{field} has no function {name!r}; {hint}",
            remedy="For one of your own write module:function.",
        )
