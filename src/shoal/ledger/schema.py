"""Loading of .sql files (named queries, scripts, numbered migrations) and checks of the schema's version.

In a file of named queries `-- name: claim` begins a query, and the comment below it says why it is written that way.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.resources import files

from shoal.errors import LedgerNotMigrated, LedgerTooNew

_NAME = re.compile(r"^-- name: (\w+)\s*$", re.MULTILINE)


def load_queries(package: str, *, translate: Callable[[str], str] = str) -> dict[str, str]:
    """The queries of a backend by name: its own, and those in ledger/queries/ that both backends share.

    Shared queries are written for PostgreSQL; `translate` turns one into the backend's dialect.
    """
    queries: dict[str, str] = {}
    own, shared = load_scripts(package, "queries"), load_scripts(__package__, "queries")
    for file, script in [*own, *((file, translate(script)) for file, script in shared)]:
        parts = _NAME.split(script)
        for name, text in zip(parts[1::2], parts[2::2], strict=True):
            if name in queries:
                raise ValueError(f"{file}.sql: the query {name} is defined twice")
            queries[name] = text.strip().rstrip(";")
    return queries


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
