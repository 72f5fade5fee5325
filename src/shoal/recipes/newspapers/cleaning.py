"""Functions that clean a field: built-in ones, those of a `cleaning.py` beside the files, or `module:function`."""

from __future__ import annotations

import ast
import datetime as dt
import difflib
import html
import inspect
import re
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from shoal.define.author_code import error_summary, load_object
from shoal.define.yaml_scraper import YamlHeader, yaml_error
from shoal.errors import AttemptEnded, InvalidScraper, NotFound, Permanent
from shoal.recipes.newspapers.dates import read_day
from shoal.recipes.newspapers.settings import Newspaper, as_tuple

Function = Callable[[Any], Any]
OWN_FILE = "cleaning.py"


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


class _NotKnownYet(BaseException):
    """A filter asked for a field that only the article's page has. No `except Exception` of the filter catches it."""


class _PartialRecord(dict[str, Any]):
    """A record without the fields of its page. `incomplete`: something was asked for that may change."""

    incomplete = False

    def _refuse(self) -> _NotKnownYet:
        self.incomplete = True
        return _NotKnownYet()

    def __missing__(self, key: str) -> Any:
        raise self._refuse()

    def get(self, key: str, default: Any = None) -> Any:
        return self[key]

    def __contains__(self, key: object) -> bool:
        return dict.__contains__(self, key) or bool(self[str(key)])

    def _all(self) -> Any:
        raise self._refuse()

    __iter__ = keys = values = items = copy = __len__ = _all


class FieldCleaner:
    """The cleaning functions of a file. `files` are the Python files that they were loaded from."""

    def __init__(self, header: YamlHeader, paper: Newspaper) -> None:
        self.files: list[Path] = []
        self._language = paper.language
        self._functions = {
            field: [
                (name, self._find_function(header, field, name)) for name in as_tuple(getattr(paper.cleaning, field))
            ]
            for field in BUILTIN_FUNCTIONS
        }

    def clean(self, field: str, value: Any) -> Any:
        """The value of a field after all its functions; an empty one stays unchanged.

        Raises Permanent for a function that fails or returns another type.
        """
        for name, function in self._functions[field] if value else ():
            value = _checked(field, name, _call(field, name, function, value), value)
            if not value:
                break
        return value

    def day(self, text: str | None) -> str | None:
        """The day in a text, as YYYY-MM-DD."""
        cleaned = self.clean("date", text)
        day = read_day(str(cleaned), now=_now(), language=self._language) if cleaned else None
        return day.isoformat() if day else None

    def keeps(self, record: Mapping[str, Any]) -> bool:
        """Whether all filters accept the record. Raises Permanent for one that fails."""
        return all(
            _call("record_filter", name, function, record) for name, function in self._functions["record_filter"]
        )

    def may_keep(self, known: Mapping[str, Any]) -> bool:
        """Whether no filter refuses a record with these fields, whatever the others will be."""
        for name, function in self._functions["record_filter"]:
            record = _PartialRecord(known)
            try:
                kept = _waited_for_nothing("record_filter", name, function(record))
            except (_NotKnownYet, Exception):  # it is called again with the whole record, and reported then
                continue
            if not kept and not record.incomplete:
                return False
        return True

    def _find_function(self, header: YamlHeader, field: str, name: str) -> Function:
        if ":" in name:
            return self._load(header, field, name, name)
        for folder in _folders(header):
            if (folder / OWN_FILE).is_file() and _has_name(folder / OWN_FILE, name):
                return self._load(header, field, f"{folder.absolute() / OWN_FILE}:{name}", name)
        return self._find_named(header, field, name)

    def _load(self, header: YamlHeader, field: str, target: str, name: str) -> Function:
        try:
            function = load_object(target, header.folder)
        except (NotFound, InvalidScraper) as problem:
            message = f"cleaning.{field}: {problem.message}"
            raise yaml_error(header, ["cleaning", field], message, remedy=problem.remedy) from problem
        if not callable(function):
            raise yaml_error(header, ["cleaning", field], f"cleaning.{field}: {name} is no function.")
        if _is_asynchronous(function):
            message = f"cleaning.{field}: {name} is asynchronous, or a generator."
            raise yaml_error(
                header, ["cleaning", field], message, remedy="Write a plain function that returns a value."
            )
        if _returns_nothing(function):
            message = f"cleaning.{field}: {name} never returns a value."
            raise yaml_error(header, ["cleaning", field], message, remedy="Add the `return` that is missing.")
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
            remedy=f"Put one of your own into {OWN_FILE} beside the file or above, or write module:function.",
        )


def _folders(header: YamlHeader) -> list[Path]:
    """Where `cleaning.py` is searched: beside the file, then above it up to the folder Shoal was started in.

    Of a file elsewhere only one folder above it, which is that of the collection: further up may be anybody's code.
    """
    own, top = header.path.absolute().parent, header.folder.absolute()
    above = [folder for folder in own.parents if folder.is_relative_to(top)]
    return list(dict.fromkeys([own, *(above or own.parents[:1]), top]))


def _has_name(file: Path, name: str) -> bool:
    """Whether a Python file defines or imports this name. One that is not valid does: its error is reported then."""
    try:
        statements = ast.parse(file.read_bytes()).body
    except (SyntaxError, ValueError, OSError, RecursionError, MemoryError):
        return True
    found: set[str | None] = set()
    for statement in statements:
        match statement:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                found.add(statement.name)
            case ast.Import() | ast.ImportFrom():
                found |= {alias.asname or alias.name for alias in statement.names}
            case ast.Assign() | ast.AnnAssign():
                targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
                found |= {each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)}
    return name in found


def _returns_nothing(function: object) -> bool:
    """Whether it is a function without any `return VALUE`: what it computes would be lost."""
    if not inspect.isfunction(function) or function.__name__ == "<lambda>":
        return False
    try:
        code = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, SyntaxError):
        return False
    return not any(isinstance(node, ast.Return) and node.value is not None for node in ast.walk(code))


def _is_asynchronous(function: object) -> bool:
    """Whether its call returns something that would have to be run first, and counts as true."""
    kinds = (inspect.iscoroutinefunction, inspect.isasyncgenfunction, inspect.isgeneratorfunction)
    return any(is_kind(function) for is_kind in kinds)


def _waited_for_nothing(field: str, name: str, result: Any) -> Any:
    """The result of a function. Raises Permanent for one that somebody would have to wait for."""
    if not inspect.isawaitable(result):
        return result
    if inspect.iscoroutine(result):
        result.close()
    raise Permanent(f"cleaning.{field}: {name} is asynchronous; write a plain function")


def _call(field: str, name: str, function: Function, value: Any) -> Any:
    try:
        return _waited_for_nothing(field, name, function(value))
    except AttemptEnded:
        raise
    except Exception as error:
        raise Permanent(f"cleaning.{field}: {name} failed with {error_summary(error)}") from error


def _checked(field: str, name: str, value: Any, given: Any) -> Any:
    """The result of a cleaning function for a given value. Raises Permanent if a record could not have it."""
    if field == "date" and isinstance(value, dt.date):
        return value.isoformat()[:10]
    if field == "tags" and isinstance(value, list | tuple) and all(isinstance(tag, str) for tag in value):
        return list(value)
    if field == "url" and isinstance(value, str) and _is_web_url(given) and not _is_web_url(value):
        raise Permanent(f"cleaning.url: {name} returned {value!r}; it must return an absolute URL")
    if (value is None and field != "url") or (isinstance(value, str) and field != "tags"):
        return value
    wanted = "a list of texts" if field == "tags" else "a text"
    raise Permanent(f"cleaning.{field}: {name} returned {type(value).__name__}; it must return {wanted}")


def _is_web_url(text: str) -> bool:
    return text.startswith(("http://", "https://"))
