"""Finds the project that a folder lies in, upwards, as git finds its repository.

Every command does this, `shoal --help` too: nothing heavy is imported here.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

SQLITE_LEDGER = ".shoal/ledger.db"
# Files that may belong to other programs, with the text that makes them Shoal's.
_SHARED_FILES = {"pyproject.toml": b"tool.shoal", ".env": b"SHOAL_"}


def find_project(folder: Path, environ: Mapping[str, str]) -> Path:
    """The nearest folder, from this one upwards, that has settings of Shoal or a ledger; without any the folder itself.

    The home folder, the root, and folders that everybody may write to (such as /tmp) end the search: they are looked at
    only when they are the folder itself.
    """
    folder = folder.absolute()
    return next((each for each in (folder, *_parents(folder, environ)) if _is_project(each)), folder)


def find_ledger_above(folder: Path, environ: Mapping[str, str]) -> Path | None:
    """The default ledger of the nearest parent that has one, within the bounds of `find_project`."""
    ledgers = (parent / SQLITE_LEDGER for parent in _parents(folder.absolute(), environ))
    return next((file for file in ledgers if _exists(file)), None)


def _parents(folder: Path, environ: Mapping[str, str]) -> Iterator[Path]:
    home = environ.get("HOME")
    for parent in folder.parents:
        if parent == parent.parent or (home and parent == Path(home)) or _anybody_may_write(parent):
            return
        yield parent


def _is_project(folder: Path) -> bool:
    if _exists(folder / "shoal.toml") or _exists(folder / SQLITE_LEDGER):
        return True
    return any(text in _content(folder / name) for name, text in _SHARED_FILES.items())


def _anybody_may_write(folder: Path) -> bool:
    try:
        return bool(folder.stat().st_mode & stat.S_IWOTH)
    except OSError:
        return False


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # in a folder that may not be searched
        return False


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
