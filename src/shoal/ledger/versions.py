"""Schema versions: what is the same on both ledgers."""

from __future__ import annotations

from shoal.errors import LedgerNotMigrated, LedgerTooNew
from shoal.ledger.sqltext import load_scripts


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
