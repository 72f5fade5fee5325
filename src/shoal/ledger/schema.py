"""Named SQL, numbered migrations and schema versions.

Named queries from .sql files: `-- name: claim` starts one, the comment lines below it say why it is as it is.

Schema versions: what is the same on both ledgers.
"""

from __future__ import annotations

import re
from importlib.resources import files

from shoal.errors import LedgerNotMigrated, LedgerTooNew

_NAME = re.compile(r"^-- name: (\w+)\s*$", re.MULTILINE)


def load_queries(package: str) -> dict[str, str]:
    """Every query in the package's .sql files, by name."""
    queries: dict[str, str] = {}
    for file in sorted(files(package).iterdir(), key=lambda entry: entry.name):
        if not file.name.endswith(".sql"):
            continue
        parts = _NAME.split(file.read_text("utf-8"))
        for name, text in zip(parts[1::2], parts[2::2], strict=True):
            if name in queries:
                raise ValueError(f"{file.name}: the query {name} is defined twice")
            queries[name] = text.strip().rstrip(";")
    return queries


def load_scripts(package: str) -> list[tuple[str, str]]:
    """Whole .sql files of a package, as (file name without ending, text), in order."""
    return [
        (file.name[:-4], file.read_text("utf-8"))
        for file in sorted(files(package).iterdir(), key=lambda entry: entry.name)
        if file.name.endswith(".sql")
    ]


def load_migrations(package: str) -> list[tuple[int, str, str]]:
    """(version, name, text) of a backend's migrations, oldest first."""
    return [(int(name[:4]), name[5:], text) for name, text in load_scripts(f"{package}.migrations")]


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
