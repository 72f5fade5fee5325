"""Which scrapers a folder holds, which of them are meant, and which belong to a group.

A member is a file: `configs/fiji/fijitimes.yaml`, or a Python file in which a `Scraper` is made. Its country is the
folder it lies in, unless the YAML says otherwise. A newspaper with members in several countries is a group; a YAML may
name another group.
"""

from __future__ import annotations

import ast
import os
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path

import msgspec

from shoal.define.yaml_scraper import SUFFIXES, YamlHeader, read_yaml_header, slug
from shoal.errors import NotFound, ShoalError, UsageError

TEMPLATES = {"template.yaml", "template.yml"}
PYTHON = ".py"


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """One scraper of a collection.

    `key` is `country/newspaper`, where the newspaper is the file's name; `name` is what its runs are called in the
    ledger. `group`: one after another with the others of that name. `priority`: smaller goes first. `timeout`, `stale`,
    `memory`: its own limits, None for the collection's. `broken`: why its file cannot be used.
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


class MemberFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which members are meant: of these countries (all if none is named), included (all if nothing is), not excluded.

    Patterns such as `fiji/*` or `*times` are compared with the key and with the newspaper.
    """

    countries: Sequence[str] = ()
    include: Sequence[str] = ()
    exclude: Sequence[str] = ()

    @property
    def is_set(self) -> bool:
        return bool(self.countries or self.include or self.exclude)

    def matches(self, member: Member) -> bool:
        return (
            (not self.countries or member.country in {slug(country) for country in self.countries})
            and (not self.include or _matches(member, self.include))
            and not _matches(member, self.exclude)
        )


class CollectionPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be run: singles, and groups in the order of their members."""

    singles: tuple[Member, ...]
    groups: dict[str, tuple[Member, ...]]

    @property
    def members(self) -> list[Member]:
        """In the order they start when not all can start at once: by priority, then groups, the longest first.

        The members of a group have to wait for each other, so a group that starts late ends last.
        """
        groups = [member for group in self.groups.values() for member in group]
        sizes = {name: len(group) for name, group in self.groups.items()}
        return sorted([*groups, *self.singles], key=lambda member: (member.priority, -sizes.get(member.group or "", 0)))

    def only(self, keys: Collection[str]) -> CollectionPlan:
        """The same without the members that have other keys."""
        groups = {name: tuple(m for m in group if m.key in keys) for name, group in self.groups.items()}
        return CollectionPlan(
            singles=tuple(member for member in self.singles if member.key in keys),
            groups={name: group for name, group in groups.items() if group},
        )


def discover(folder: Path) -> list[Member]:
    """Every member of the folder, disabled ones left out. Files that cannot be used are members too: broken ones.

    So are files that claim the name of another member. Raises NotFound when there is no member.
    """
    members = [member for path in _files(folder) if (member := _member(path)) is not None]
    if not members:
        raise NotFound(
            f"There is no scraper in {folder}.",
            remedy=f"Put some there, such as {folder / 'fiji' / 'fijitimes.yaml'}, or Python files with a Scraper.",
        )
    return _mark_name_clashes(members)


def plan_members(members: Iterable[Member], member_filter: MemberFilter) -> CollectionPlan:
    """The chosen members in the order they start: by priority, then by name. Raises UsageError when none is chosen."""
    all_members = sorted(members, key=lambda member: (member.priority, member.key))
    grouped = [_with_group(member, all_members) for member in all_members]
    chosen = [member for member in grouped if member_filter.matches(member)]
    if not chosen:
        known = ", ".join(sorted({member.country for member in all_members}))
        raise UsageError(
            "No scraper of the folder is chosen.", remedy=f"Look at --country, --include and --exclude; it has {known}."
        )
    groups: dict[str, list[Member]] = defaultdict(list)
    for member in chosen:
        if member.group is not None:
            groups[member.group].append(member)
    return CollectionPlan(
        singles=tuple(member for member in chosen if member.group is None),
        groups={name: tuple(group) for name, group in sorted(groups.items())},
    )


def _files(folder: Path) -> Iterator[Path]:
    if not folder.is_dir():
        raise NotFound(f"There is no folder {folder}.", remedy="Check the path.")
    seen: set[str] = set()
    unreadable: list[OSError] = []
    for place, folders, files in os.walk(folder, followlinks=True, onerror=unreadable.append):
        if (real := os.path.realpath(place)) in seen:
            folders.clear()  # a link that leads back
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith((".", "_")))
        for path in sorted(Path(place) / name for name in files):
            if path.name.startswith((".", "_")) or path.name in TEMPLATES or not _is_file(path):
                continue
            if path.suffix in SUFFIXES or (path.suffix == PYTHON and not _is_test(path)):
                yield path
    yield from (Path(error.filename) for error in unreadable)


def _is_file(path: Path) -> bool:
    """Whether it is a file, or was meant to be one: a link that leads nowhere counts."""
    try:
        return path.is_file() or (path.is_symlink() and not path.exists())
    except OSError:
        return True


def _is_test(path: Path) -> bool:
    return path.name == "conftest.py" or path.name.startswith("test_") or path.stem.endswith("_test")


def _member(path: Path) -> Member | None:
    plain = _member_from_path(path)
    if path.suffix == PYTHON:
        return plain if _calls_scraper_class(path) else None
    try:
        header = read_yaml_header(path)
    except ShoalError as error:
        return msgspec.structs.replace(plain, broken=error.message)
    except Exception as error:  # whatever is wrong with one file, the others are run
        return msgspec.structs.replace(plain, broken=f"{path} cannot be read: {type(error).__name__}: {error}.")
    return _from_header(header, plain.newspaper) if header.enabled else None


def _member_from_path(path: Path) -> Member:
    country, newspaper = slug(path.absolute().parent.name) or "x", slug(path.stem) or "x"
    return Member(path=path, country=country, newspaper=newspaper, name=f"{country}.{newspaper}")


def _mark_name_clashes(members: Sequence[Member]) -> list[Member]:
    """Of several files with one key or one name, one keeps it and the others are broken, under the name of their file.

    The one that lies where its name says keeps it, else the first by its path.
    """
    taken: dict[str, Member] = {}
    renamed: dict[Path, Member] = {}
    for member in sorted(members, key=lambda member: (member.broken is not None, _has_custom_name(member))):
        clash = next((name for name in (member.key, member.name) if name in taken), None)
        if clash is None:
            taken[member.key] = taken[member.name] = member
        else:
            other = taken[clash]
            why = member.broken or (
                f"{member.path} and {other.path} are both {clash}: rename one of them, or change its country: or name:."
            )
            renamed[member.path] = _broken_member(member.path, why, taken)
    return [renamed.get(member.path, member) for member in members]


def _has_custom_name(member: Member) -> bool:
    by_file = _member_from_path(member.path)
    return (member.key, member.name) != (by_file.key, by_file.name)


def _broken_member(path: Path, why: str, taken: dict[str, Member]) -> Member:
    """`tonga/times.yaml`: a key that no other member has."""
    country, file, number = _member_from_path(path).country, f"{slug(path.stem) or 'x'}{path.suffix}", 1
    newspaper = file
    while f"{country}/{newspaper}" in taken:
        number += 1
        newspaper = f"{file}_{number}"
    member = Member(path=path, country=country, newspaper=newspaper, name=f"{country}.{newspaper}", broken=why)
    taken[member.key] = taken[member.name] = member
    return member


def _from_header(header: YamlHeader, newspaper: str) -> Member:
    return Member(
        path=header.path,
        country=slug(header.country),
        newspaper=newspaper,
        name=header.scraper_name,
        group=None if header.group is None else slug(header.group),
        priority=header.priority,
        timeout=header.timeout,
        stale=header.stale,
        memory=header.memory,
    )


def _calls_scraper_class(path: Path) -> bool:
    """Whether the code calls `Scraper(...)`; other files beside the members are theirs to import.

    A file that is not even Python counts: whoever wrote it wants to hear of it.
    """
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, OSError, RecursionError, MemoryError):
        return True
    calls = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    return any(
        (isinstance(called, ast.Name) and called.id == "Scraper")
        or (isinstance(called, ast.Attribute) and called.attr == "Scraper")
        for called in calls
    )


def _with_group(member: Member, all_members: Sequence[Member]) -> Member:
    """With its group: the one it names, or its newspaper if that is in several countries."""
    if member.group is not None:
        return member
    same_name = sum(other.newspaper == member.newspaper and other.group is None for other in all_members)
    return msgspec.structs.replace(member, group=member.newspaper) if same_name > 1 else member


def _matches(member: Member, patterns: Sequence[str]) -> bool:
    texts = [member.key, member.newspaper]
    if member.newspaper.endswith((*SUFFIXES, PYTHON)):  # broken, under the name of its file
        texts += [text.removesuffix(member.path.suffix) for text in texts]
    return any(fnmatch(text, pattern.lower()) for pattern in patterns for text in texts)
