"""Loading of .sql files (queries, scripts, migrations), checks of the schema's version, views of scrapers.

In a file of named queries `-- name: claim` begins a query, and the comment below it says why it is written that way.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.resources import files

import msgspec

from shoal.errors import InvalidScraper, LedgerNotMigrated, LedgerTooNew

# Schemas of builds before the first release have its number and other tables; no migration leads from them.
EARLIER_BUILD = (
    "If a build before 0.2.0 made this ledger, it cannot be upgraded: make a new one, in another file or database, and "
    "enqueue again."
)
_NAME = re.compile(r"^-- name: (\w+)\s*$", re.MULTILINE)
# What tells a view that Shoal made from one of somebody else. Behind it comes a fingerprint.
_VIEW_MARK = "view of a scraper, made by shoal: "


def load_queries(package: str, *, translate: Callable[[str], str] = str) -> dict[str, str]:
    """The queries of a backend by name: its own, and those in ledger/queries/ that both backends share.

    Shared queries are written for PostgreSQL; `translate` turns one into the backend's dialect.
    """
    queries: dict[str, str] = {}
    own, shared = load_scripts(package, "queries"), load_scripts(__package__, "queries")
    for file, script in [*own, *((file, translate(script)) for file, script in shared)]:
        for name, text in _named_texts(script):
            if name in queries:
                raise ValueError(f"{file}.sql: the query {name} is defined twice")
            queries[name] = text
    return queries


def _named_texts(script: str) -> Iterator[tuple[str, str]]:
    parts = _NAME.split(script)
    return ((name, text.strip().rstrip(";")) for name, text in zip(parts[1::2], parts[2::2], strict=True))


class SqlView(msgspec.Struct, frozen=True):
    """A view that a scraper declares: its name and its select."""

    name: str
    select: str


def parse_views(script: str, file: str) -> list[SqlView]:
    """The views of a file with blocks of `-- name: NAME` and a select, in their order. Raises InvalidScraper.

    A file with nothing but comments declares none.
    """
    views = [SqlView(name, select) for name, select in _named_texts(script)]
    if not views and _without_comments(script).strip():
        raise InvalidScraper(f"{file} declares no view.", remedy="Write `-- name: NAME` above each select.")
    for view in views:
        code = _without_comments(view.select)
        if ";" in code or not re.match(r"\s*(select|with)\b", code, re.IGNORECASE):
            raise InvalidScraper(f"{view.name} in {file} is not one select.", remedy="Write one select for each view.")
    if len({view.name.lower() for view in views}) < len(views):
        raise InvalidScraper(f"{file} declares a view twice.")
    return views


def _without_comments(sql: str) -> str:
    return re.sub(r"--[^\n]*", "", sql)


def view_mark(views: Sequence[SqlView]) -> str:
    """The mark of a scraper's views: the same for all of them, because they may refer to each other."""
    texts = "\0".join(text for view in views for text in (view.name, view.select))
    return _VIEW_MARK + hashlib.sha256(texts.encode()).hexdigest()[:16]


def are_views_current(views: Sequence[SqlView], found: Mapping[str, str]) -> bool:
    """Whether all views exist as they are declared. `found`: what describes each name that is taken, by name.

    Raises InvalidScraper for a name that belongs to something that Shoal did not make: it is never replaced.
    """
    for name, description in found.items():
        if _VIEW_MARK not in description:
            raise InvalidScraper(
                f"The database has a table or view {name} that is not Shoal's; it was left as it is.",
                remedy="Rename one of the two, or use another database.",
            )
    mark = view_mark(views)
    return all(mark in found.get(view.name, "") for view in views)


def load_scripts(package: str, folder: str) -> list[tuple[str, str]]:
    """The .sql files in a folder of a package, as (file name without suffix, text), sorted by name."""
    return [
        (file.name.removesuffix(".sql"), file.read_text("utf-8"))
        for file in sorted((files(package) / folder).iterdir(), key=lambda entry: entry.name)
        if file.name.endswith(".sql")
    ]


def load_migrations(package: str) -> list[tuple[int, str, str]]:
    """(version, name, text) of a backend's migrations, oldest first."""
    return [(int(name[:4]), name[5:], text) for name, text in load_scripts(package, "migrations")]


def pending_migrations(migrations: Sequence[tuple[int, str, str]], found: int | None) -> list[str]:
    """The names of the migrations that a ledger of this version lacks. Raises LedgerTooNew."""
    before = found or 0
    refuse_newer(before, migrations[-1][0])
    return [f"{version:04}_{name}" for version, name, _ in migrations if version > before]


def check_version(found: int | None, known: int, place: str) -> None:
    """Raise unless a ledger has exactly the version that this code knows."""
    if found is None:
        raise LedgerNotMigrated(f"{place} has no Shoal schema yet.")
    if found < known:
        raise LedgerNotMigrated(f"{place} has schema version {found}; this code needs {known}.")
    refuse_newer(found, known)


def refuse_newer(found: int, known: int) -> None:
    if found > known:
        raise LedgerTooNew(f"The ledger has schema version {found}; this Shoal knows versions up to {known}.")
