"""Which scrapers a folder holds, which of them are meant, and which belong to a group.

A member is a file: `configs/fiji/fijitimes.yaml`, or a Python file in which a `Scraper` is made. Its country is the
folder it lies in, unless the YAML says otherwise. A newspaper with members in several countries is a group; a YAML may
name another group.
"""

from __future__ import annotations

import ast
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path

import msgspec

from shoal.define.declared import SUFFIXES, Declared, read_declared, slug
from shoal.errors import InvalidScraper, NotFound, UsageError

TEMPLATES = {"template.yaml", "template.yml"}
PYTHON = ".py"


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """One scraper of a collection.

    `key` is `country/newspaper`, where the newspaper is the file's name; `name` is what its runs are called in the
    ledger. `group`: one after another with the
    others of that name. `priority`: smaller goes first. `timeout`, `stale`, `memory`: its own limits, None for the
    collection's. `broken`: why its file cannot be used.
    """

    path: Path
    country: str
    newspaper: str
    name: str
    group: str | None = None
    priority: int = 0
    timeout: float | None = None
    stale: float | None = None
    memory: int | None = None
    broken: str | None = None

    @property
    def key(self) -> str:
        return f"{self.country}/{self.newspaper}"


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """Which members are meant: of these countries (all if none is named), included (all if nothing is), not excluded.

    Patterns such as `fiji/*` or `*times` are compared with the key and with the newspaper.
    """

    countries: Sequence[str] = ()
    include: Sequence[str] = ()
    exclude: Sequence[str] = ()

    @property
    def says_something(self) -> bool:
        return bool(self.countries or self.include or self.exclude)

    def takes(self, member: Member) -> bool:
        return (
            (not self.countries or member.country in {slug(country) for country in self.countries})
            and (not self.include or _matches(member, self.include))
            and not _matches(member, self.exclude)
        )


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be run: singles, and groups in the order of their members."""

    singles: tuple[Member, ...]
    groups: dict[str, tuple[Member, ...]]

    @property
    def members(self) -> list[Member]:
        return [*self.singles, *(member for group in self.groups.values() for member in group)]


def discover(folder: Path) -> list[Member]:
    """Every member of the folder, disabled ones left out. Files that cannot be used are members too: broken ones.

    Raises NotFound when there is none, UsageError when two files are the same member.
    """
    members = [member for path in _files(folder) if (member := _member(path)) is not None]
    if not members:
        raise NotFound(
            f"There is no scraper in {folder}.",
            remedy=f"Put some there, such as {folder / 'fiji' / 'fijitimes.yaml'}, or Python files with a Scraper.",
        )
    seen: dict[str, Member] = {}
    for member in members:
        for name in (member.key, member.name):
            if (other := seen.setdefault(name, member)) is not member:
                raise UsageError(
                    f"{other.path} and {member.path} are both {name}.", remedy="Rename one of them, or its name:."
                )
    return members


def plan(members: Iterable[Member], choice: Choice) -> Plan:
    """The chosen members in the order they start: by priority, then by name. Raises UsageError when none is chosen."""
    everyone = sorted(members, key=lambda member: (member.priority, member.key))
    grouped = [_grouped(member, everyone) for member in everyone]
    chosen = [member for member in grouped if choice.takes(member)]
    if not chosen:
        known = ", ".join(sorted({member.country for member in everyone}))
        raise UsageError(
            "No scraper of the folder is chosen.", remedy=f"Look at --country, --include and --exclude; it has {known}."
        )
    groups: dict[str, list[Member]] = defaultdict(list)
    for member in chosen:
        if member.group is not None:
            groups[member.group].append(member)
    return Plan(
        singles=tuple(member for member in chosen if member.group is None),
        groups={name: tuple(group) for name, group in sorted(groups.items())},
    )


def _files(folder: Path) -> Iterator[Path]:
    if not folder.is_dir():
        raise NotFound(f"There is no folder {folder}.", remedy="Check the path.")
    seen: set[str] = set()
    for place, folders, files in os.walk(folder, followlinks=True):
        if (real := os.path.realpath(place)) in seen:
            folders.clear()  # a link that leads back
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith((".", "_")))
        for path in sorted(Path(place) / name for name in files):
            if path.name.startswith((".", "_")) or path.name in TEMPLATES or not path.is_file():
                continue
            if path.suffix in SUFFIXES or (path.suffix == PYTHON and not _is_test(path)):
                yield path


def _is_test(path: Path) -> bool:
    return path.name == "conftest.py" or path.name.startswith("test_") or path.stem.endswith("_test")


def _member(path: Path) -> Member | None:
    country, newspaper = slug(path.absolute().parent.name) or "x", slug(path.stem) or "x"
    plain = Member(path=path, country=country, newspaper=newspaper, name=f"{country}.{newspaper}")
    if path.suffix == PYTHON:
        return plain if _makes_a_scraper(path) else None
    try:
        declared = read_declared(path)
    except (InvalidScraper, NotFound) as error:
        return msgspec.structs.replace(plain, broken=error.message)
    return _of_declared(declared, newspaper) if declared.enabled else None


def _of_declared(declared: Declared, newspaper: str) -> Member:
    return Member(
        path=declared.path,
        country=slug(declared.country),
        newspaper=newspaper,
        name=declared.scraper_name,
        group=None if declared.group is None else slug(declared.group),
        priority=declared.priority,
        timeout=declared.timeout,
        stale=declared.stale,
        memory=declared.memory,
    )


def _makes_a_scraper(path: Path) -> bool:
    """Whether the code calls `Scraper(...)`; other files beside the members are theirs to import.

    A file that is not even Python counts: whoever wrote it wants to hear of it.
    """
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, OSError):
        return True
    calls = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    return any(
        (isinstance(called, ast.Name) and called.id == "Scraper")
        or (isinstance(called, ast.Attribute) and called.attr == "Scraper")
        for called in calls
    )


def _grouped(member: Member, everyone: Sequence[Member]) -> Member:
    """With its group: the one it names, or its newspaper if that is in several countries."""
    if member.group is not None:
        return member
    namesakes = sum(other.newspaper == member.newspaper and other.group is None for other in everyone)
    return msgspec.structs.replace(member, group=member.newspaper) if namesakes > 1 else member


def _matches(member: Member, patterns: Sequence[str]) -> bool:
    return any(fnmatch(text, pattern.lower()) for pattern in patterns for text in (member.key, member.newspaper))
