"""Finds all mistakes of all files of a folder: a mistake is noted, its key left out, and the file is read again."""

from __future__ import annotations

import copy
import difflib
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import msgspec

from shoal.define.load import load_scraper
from shoal.define.yaml_file import InvalidYaml, YamlFile, read_yaml
from shoal.define.yaml_scraper import DEFAULT_SCRAPER, HEADER_KEYS, YamlHeader, read_yaml_header
from shoal.errors import ShoalError
from shoal.fleet.collection.members import Member, discover, syntax_problem
from shoal.recipes.newspapers.kind import NewspaperContext
from shoal.recipes.newspapers.selectors import class_reading
from shoal.recipes.newspapers.settings import Listing

# A file with more mistakes is shown with this many, and a note that there are more.
MAX_PROBLEMS = 50
# A mistake may take several rounds; a file whose mistakes cannot be left out ends with these.
MAX_ROUNDS = 4 * MAX_PROBLEMS
# `body: #content`, also with a comment behind it; other comments have a space behind their #.
SELECTOR_IN_COMMENT = re.compile(r"(?P<before>[:-]\s+)(?P<selector>#[A-Za-z_-].*?)(?P<after>\s+#\s.*|\s*)$")
# Stand in for required keys that are missing or wrong, so that the rest of the file can be checked.
_PLACEHOLDERS: dict[tuple[str, ...], Any] = {
    ("base_url",): "https://paper.example",
    ("listing",): {"type": "pagination", "url_template": "/{num}"},
    ("listing", "start_date"): "2000-01-01",
    ("listing", "pagination_type"): "page",
    ("listing", "json_paths"): {"collection": "$", "url": "url"},
    ("listing", "json_paths", "collection"): "$",
    ("listing", "json_paths", "url"): "url",
    ("selectors",): {"thumbnail": {"container": "a", "url": "a"}, "article": {"body": "p"}},
    ("selectors", "thumbnail"): {"container": "a", "url": "a"},
    ("selectors", "thumbnail", "container"): "a",
    ("selectors", "thumbnail", "url"): "a",
    ("selectors", "article"): {"body": "p"},
    ("selectors", "article", "body"): "p",
}
# The keys of each type of listing.
_LISTING_KEYS: dict[str, frozenset[str]] = {
    str(kind.__struct_config__.tag): frozenset(kind.__struct_fields__) for kind in get_args(Listing)
}


class FileProblem(msgspec.Struct, frozen=True, kw_only=True):
    """A mistake in a file, or with `note` something that works but may not be meant. `keys`: what it is about."""

    path: Path
    line: int
    message: str
    remedy: str
    note: bool = False
    keys: tuple[str | int, ...] = ()


class CheckedFolder(msgspec.Struct, frozen=True, kw_only=True):
    """What was found in a folder: how many newspapers and other scrapers there are, and their problems in the order of
    the files.
    """

    newspapers: int
    others: int = 0
    problems: tuple[FileProblem, ...]

    @property
    def mistakes(self) -> list[FileProblem]:
        return [problem for problem in self.problems if not problem.note]


def check_folder(folder: Path, start: Path) -> CheckedFolder:
    """Check every member of a collection. Code that files name is searched from `start`. Raises NotFound."""
    if folder.is_file():
        return CheckedFolder(newspapers=1, problems=tuple(check_file(folder, start)))
    members = discover(folder)
    problems = [problem for member in members for problem in _check_member(member, start)]
    # Of a file that cannot be read nobody knows the kind.
    newspapers = sum(member.updates or (member.is_yaml and member.broken is not None) for member in members)
    return CheckedFolder(newspapers=newspapers, others=len(members) - newspapers, problems=tuple(problems))


def check_file(path: Path, start: Path) -> Iterator[FileProblem]:
    """The mistakes and notes of one file in the order of its lines, and whether it has more mistakes."""
    mistakes = list(itertools.islice(_mistakes(path, start), MAX_PROBLEMS + 1))
    mistaken = {problem.keys for problem in mistakes}
    notes = [problem for problem in _notes(path) if problem.keys not in mistaken]
    yield from sorted([*mistakes[:MAX_PROBLEMS], *notes], key=lambda problem: problem.line)
    if len(mistakes) > MAX_PROBLEMS:
        message = f"there are more mistakes than these {MAX_PROBLEMS}."
        yield FileProblem(
            path=path, line=mistakes[-1].line, message=message, remedy="Correct these, then check again.", note=True
        )


def _check_member(member: Member, start: Path) -> Iterator[FileProblem]:
    if member.is_yaml:
        yield from check_file(member.path, start)
    elif (problem := syntax_problem(member.path)) is not None:
        yield FileProblem(path=member.path, line=1, message=problem, remedy="Correct it.")
    if member.clashes and member.broken is not None:
        remedy = "Rename one of the two files, or give it another name: or country:."
        yield FileProblem(path=member.path, line=1, message=member.broken, remedy=remedy)


def _mistakes(path: Path, start: Path) -> Iterator[FileProblem]:
    ignored: list[str] = []
    while True:
        try:
            header = read_yaml_header(path, start, ignore=ignored)
            break
        except InvalidYaml as error:
            yield _problem(error)
            if not error.keys or error.keys[0] not in HEADER_KEYS or error.keys[0] in ignored:
                return
            ignored.append(str(error.keys[0]))
        except ShoalError as error:
            yield FileProblem(path=path, line=1, message=error.message, remedy=error.remedy)
            return
    if header.scraper != DEFAULT_SCRAPER:
        yield from _mistake_of_other_kind(path, start)
        return
    yield from _setting_mistakes(header)


def _mistake_of_other_kind(path: Path, start: Path) -> Iterator[FileProblem]:
    try:
        load_scraper(str(path), {}, start)
    except InvalidYaml as error:
        yield _problem(error)
    except ShoalError as error:
        yield FileProblem(path=path, line=1, message=error.message, remedy=error.remedy)


def _setting_mistakes(header: YamlHeader) -> Iterator[FileProblem]:
    settings: dict[str, Any] = copy.deepcopy(dict(header.settings))
    in_comments = {problem.keys: problem for problem in _selectors_in_comments(read_yaml(header.path))}
    replaced: set[tuple[str | int, ...]] = set()
    for _ in range(MAX_ROUNDS):
        try:
            NewspaperContext(msgspec.structs.replace(header, settings=settings))
            return
        except InvalidYaml as error:
            keys = _missing_key(error) or error.keys
            is_known = any(keys[: len(known)] == known for known in replaced)
            is_unused = error.problem.startswith("there is no key")
            if not is_known and not (is_unused and _belongs_to_a_listing(keys, header.settings)):
                in_comment = in_comments.get(keys)
                yield _problem(error) if in_comment is None else msgspec.structs.replace(in_comment, note=False)
            while keys in replaced:  # its replacement is refused too, so the table that has it is replaced
                keys = keys[:-1]
            replaced.add(keys)
            if not _replace(settings, keys):
                return


def _missing_key(error: InvalidYaml) -> tuple[str | int, ...] | None:
    """The key that a message calls missing: `selectors.article.body is missing.`"""
    name, found, _ = error.problem.partition(" is missing")
    return tuple(name.split(".")) if found and " " not in name else None


def _replace(settings: dict[str, Any], keys: Sequence[str | int]) -> bool:
    """Leave a value out, or replace it with a placeholder where one is required. False if that changes nothing."""
    if not keys:
        return False
    inner: Any = settings
    for key in keys[:-1]:
        if isinstance(key, str) and isinstance(inner, dict) and inner.get(key) is None:
            inner[key] = {}
        try:
            inner = inner[key]
        except (KeyError, IndexError, TypeError):
            return False
    last, placeholder = keys[-1], _placeholder(settings, tuple(str(key) for key in keys))
    if isinstance(inner, list) and isinstance(last, int) and last < len(inner):
        # A list keeps its length, so that later positions stay right; templates differ from each other.
        template = _placeholder(settings, tuple(str(key) for key in keys[:-1]))
        inner[last] = f"/{last}{template}" if isinstance(template, str) and template.startswith("/") else "a"
        return True
    if not isinstance(inner, dict):
        return False
    if placeholder is not None:
        inner[str(last)] = copy.deepcopy(placeholder)
        return True
    return inner.pop(str(last), None) is not None


def _placeholder(settings: Mapping[str, Any], keys: tuple[str, ...]) -> Any:
    """What stands in for a required key; None for one that may be left out."""
    listing = settings.get("listing")
    table = listing if isinstance(listing, dict) else {}
    if keys == ("listing", "type"):
        return _probable_type(table)
    if keys == ("listing", "url_template"):
        return "/{year}{month}{day}" if table.get("type") == "archive" else "/{num}"
    return _PLACEHOLDERS.get(keys)


def _probable_type(listing: Mapping[str, Any]) -> str:
    """The type that was probably meant: the one with a similar name, or the one that has most of the given keys."""
    return _similar_type(listing) or max(_LISTING_KEYS, key=lambda name: len(_LISTING_KEYS[name] & {*listing}))


def _similar_type(listing: Mapping[str, Any]) -> str | None:
    return next(iter(difflib.get_close_matches(str(listing.get("type")), _LISTING_KEYS, n=1)), None)


def _belongs_to_a_listing(keys: Sequence[str | int], settings: Mapping[str, Any]) -> bool:
    """Whether this key is right for some type of listing, and the file does not say which type it has."""
    listing = settings.get("listing")
    if len(keys) != 2 or keys[0] != "listing" or not isinstance(listing, dict) or _similar_type(listing) is not None:
        return False
    return any(keys[1] in names for names in _LISTING_KEYS.values())


def _notes(path: Path) -> Iterator[FileProblem]:
    """What works, but may not be meant."""
    try:
        file = read_yaml(path)
    except ShoalError:  # a mistake, which is reported as one
        return
    cleaning = file.values.get("cleaning")
    if isinstance(cleaning, dict) and "content" in cleaning:
        message = "cleaning.content has no effect: the text of an article is the field body."
        keys: tuple[str | int, ...] = ("cleaning", "content")
        yield FileProblem(
            path=path, line=file.line_of(keys), message=message, remedy="Remove it.", note=True, keys=keys
        )
    for keys, selector in _given_selectors(file):
        # What is no text is a mistake.
        if isinstance(selector, str) and (read := class_reading(selector)) is not None:
            yield FileProblem(
                path=path,
                line=file.line_of(keys),
                message=f"{'.'.join(map(str, keys[:3]))} is {selector!r}: where that matches nothing, {read!r} is.",
                remedy=f"Write {read!r} if it was a class attribute.",
                note=True,
                keys=keys,
            )
    yield from _selectors_in_comments(file)


def _selectors_in_comments(file: YamlFile) -> Iterator[FileProblem]:
    """Selectors that begin with # and are not in quotes: YAML does not read them."""
    lines = file.path.read_text(encoding="utf-8-sig").splitlines()
    for keys, selector in _given_selectors(file):
        line = file.line_of(keys)
        found = SELECTOR_IN_COMMENT.search(lines[line - 1]) if selector is None else None
        if found is not None:
            yield FileProblem(
                path=file.path,
                line=line,
                message=f"{'.'.join(map(str, keys[:3]))} has no value: {found['selector']} is a comment in YAML.",
                remedy="Put a selector that begins with # in quotes.",
                note=True,
                keys=keys,
            )


def _given_selectors(file: YamlFile) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Each value below `selectors` with its keys, also each of a list."""
    tables = file.values.get("selectors")
    for table, fields in tables.items() if isinstance(tables, dict) else ():
        for field, value in fields.items() if isinstance(fields, dict) else ():
            if isinstance(value, list):
                yield from ((("selectors", table, field, position), each) for position, each in enumerate(value))
            else:
                yield ("selectors", table, field), value


def _problem(error: InvalidYaml) -> FileProblem:
    return FileProblem(path=error.path, line=error.line, message=error.problem, remedy=error.remedy, keys=error.keys)
