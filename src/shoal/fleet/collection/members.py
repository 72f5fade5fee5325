"""The members of a collection: the scrapers in a folder, which of them are chosen, and which form a group.

A member is a YAML file such as `configs/fiji/fijitimes.yaml`, or a Python file that makes a `Scraper`. Its section is
the folder it lies in, unless the YAML names another. Members with the same name in several sections form a group: the
name that their YAML states, else that of their file. A YAML may name another group, also for those of its name that
name none.
"""

from __future__ import annotations

import ast
import os
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path

import msgspec

from shoal.define.yaml_scraper import DEFAULT_SCRAPER, SECTION_LABEL, SUFFIXES, YamlHeader, read_yaml_header, slug
from shoal.errors import NotFound, ShoalError, UsageError

TEMPLATES = {"template.yaml", "template.yml"}
PYTHON = ".py"


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """One scraper of a collection.

    `key` is `section/title`, where the title is the name of its file; `name` is the scraper of its runs. `labels`: what
    `--where` chooses by. `group`: members of one group run one after another. `priority`: smaller goes first.
    `timeout`, `stale`, `memory`: its own limits, None for the collection's. `updates`: a run of it
    stores only what is new, which may be nothing, and writes files of its own. `broken`: why its file cannot be used;
    with `clashes` because another file has its key or its name.
    """

    path: Path
    section: str
    title: str
    name: str
    labels: Mapping[str, str] = {}
    group: str | None = None
    priority: int = 0
    timeout: float | None = None
    stale: float | None = None
    memory: int | None = None
    updates: bool = False
    broken: str | None = None
    clashes: bool = False

    @property
    def key(self) -> str:
        return f"{self.section}/{self.title}"

    @property
    def is_yaml(self) -> bool:
        return self.path.suffix in SUFFIXES

    @property
    def own_name(self) -> str:
        """What it is called in every section: by its YAML, or by its file."""
        return self.name.removeprefix(f"{self.section}.")


class MemberFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which members to run: those with one of the values of each label, included (all if nothing is), not excluded.

    Patterns such as `fiji/*` or `*times` are compared with the key and with the title.
    """

    where: Mapping[str, Sequence[str]] = {}
    include: Sequence[str] = ()
    exclude: Sequence[str] = ()

    @property
    def is_set(self) -> bool:
        return bool(self.where or self.include or self.exclude)

    def matches(self, member: Member) -> bool:
        return (
            all(member.labels.get(label) in {slug(value) for value in values} for label, values in self.where.items())
            and (not self.include or _matches(member, self.include))
            and not _matches(member, self.exclude)
        )


class CollectionPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The members to run: singles, and groups in the order of their members."""

    singles: tuple[Member, ...]
    groups: dict[str, tuple[Member, ...]]

    @property
    def members(self) -> list[Member]:
        """In the order they start when not all can start at once: by priority, then groups, the longest first.

        The members of a group wait for each other, so a group that starts late would end last.
        """
        groups = [member for group in self.groups.values() for member in group]
        sizes = {name: len(group) for name, group in self.groups.items()}
        return sorted([*groups, *self.singles], key=lambda member: (member.priority, -sizes.get(member.group or "", 0)))

    def only(self, keys: Collection[str]) -> CollectionPlan:
        """The plan for the members with these keys."""
        groups = {name: tuple(m for m in group if m.key in keys) for name, group in self.groups.items()}
        return CollectionPlan(
            singles=tuple(member for member in self.singles if member.key in keys),
            groups={name: group for name, group in groups.items() if group},
        )


def discover(folder: Path) -> list[Member]:
    """Every enabled member of the folder. A file that cannot be used, or has the name of another, is a broken member.

    Raises NotFound when there is no member.
    """
    members = [member for path in _files(folder) if (member := _member(path)) is not None]
    if not members:
        raise NotFound(
            f"There is no scraper in {folder}.",
            remedy=f"Put some there, such as {folder / 'fiji' / 'fijitimes.yaml'}, or Python files with a Scraper.",
        )
    return _mark_name_clashes(members)


def plan_members(members: Iterable[Member], member_filter: MemberFilter) -> CollectionPlan:
    """The chosen members in the order they start: by priority, then as on disk. Raises UsageError if none is chosen."""
    all_members = sorted(members, key=lambda member: member.priority)
    grouped = [_with_group(member, all_members) for member in all_members]
    chosen = [member for member in grouped if member_filter.matches(member)]
    if not chosen:
        known = ", ".join(sorted({member.section for member in all_members}))
        raise UsageError(
            "The options select no scraper of the folder.",
            remedy=f"Check --where, --include and --exclude; it has {known}.",
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
            folders.clear()  # a link to a folder above it
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
    """Whether it is a file; a link to a missing file counts."""
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
    except Exception as error:  # one unreadable file must not stop the others
        return msgspec.structs.replace(plain, broken=f"{path} cannot be read: {type(error).__name__}: {error}.")
    return _from_header(header, plain.title) if header.enabled else None


def _member_from_path(path: Path) -> Member:
    section, title = slug(path.absolute().parent.name) or "x", slug(path.stem) or "x"
    labels = {SECTION_LABEL: section}
    return Member(path=path, section=section, title=title, name=f"{section}.{title}", labels=labels)


def _mark_name_clashes(members: Sequence[Member]) -> list[Member]:
    """Of several files with the same key or name, one keeps it; the others are broken, with their file name as title.

    The one whose folder is its section keeps it, else the first by path.
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
                f"{member.path} and {other.path} are both {clash}: rename one of them, or change its {SECTION_LABEL}: "
                f"or name:."
            )
            broken = _broken_member(member.path, why, taken)
            renamed[member.path] = msgspec.structs.replace(broken, clashes=member.broken is None)
    return [renamed.get(member.path, member) for member in members]


def _has_custom_name(member: Member) -> bool:
    by_file = _member_from_path(member.path)
    return (member.key, member.name) != (by_file.key, by_file.name)


def _broken_member(path: Path, why: str, taken: dict[str, Member]) -> Member:
    """`tonga/times.yaml`: a key that no other member has."""
    plain, file, number = _member_from_path(path), f"{slug(path.stem) or 'x'}{path.suffix}", 1
    title = file
    while f"{plain.section}/{title}" in taken:
        number += 1
        title = f"{file}_{number}"
    member = msgspec.structs.replace(plain, title=title, name=f"{plain.section}.{title}", broken=why)
    taken[member.key] = taken[member.name] = member
    return member


def _from_header(header: YamlHeader, title: str) -> Member:
    return Member(
        path=header.path,
        section=header.section,
        title=title,
        name=header.scraper_name,
        labels=header.labels,
        group=None if header.group is None else slug(header.group),
        priority=header.priority,
        timeout=header.timeout,
        stale=header.stale,
        memory=header.memory,
        updates=header.scraper == DEFAULT_SCRAPER,
    )


def _calls_scraper_class(path: Path) -> bool:
    """Whether the code calls `Scraper(...)`; other Python files are modules that members import.

    A file that is not valid Python counts, so that its error is reported.
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


def syntax_problem(path: Path) -> str | None:
    """Why a file is no valid Python; its code is not run."""
    try:
        compile(path.read_bytes(), path, "exec", dont_inherit=True)
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}."
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return f"it is not valid Python: {error}"
    return None


def _with_group(member: Member, all_members: Sequence[Member]) -> Member:
    """With its group: the one it names, else one that a namesake names, else its name if several have it."""
    if member.group is not None:
        return member
    namesakes = [other for other in all_members if other.own_name == member.own_name]
    named = next((other.group for other in namesakes if other.group is not None), None)
    return msgspec.structs.replace(member, group=named or member.own_name) if len(namesakes) > 1 else member


def _matches(member: Member, patterns: Sequence[str]) -> bool:
    texts = [member.key, member.title]
    if member.title.endswith((*SUFFIXES, PYTHON)):  # a broken member with its file name as title
        texts += [text.removesuffix(member.path.suffix) for text in texts]
    return any(fnmatch(text, pattern.lower()) for pattern in patterns for text in texts)
