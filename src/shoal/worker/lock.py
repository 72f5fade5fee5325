"""One process owns the runs of a scraper in single mode: a lock that ends with the process, however it ends."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shoal.errors import NotAllowed


@contextmanager
def owning(scraper: str, ledger: Path) -> Iterator[None]:
    """Hold the lock of a scraper beside its ledger. Raises NotAllowed when another process has it."""
    path = _path(scraper, ledger)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            owner = file.read(20).strip()
            raise NotAllowed(
                f"{scraper} is being run by another process{f' ({owner})' if owner else ''} on this ledger.",
                remedy="Wait for it, or help it with `shoal worker`.",
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        try:
            yield
        finally:
            file.truncate(0)


def was_left(scraper: str, ledger: Path) -> bool:
    """Whether a process has owned this scraper here and none does now."""
    try:
        with _path(scraper, ledger).open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _path(scraper: str, ledger: Path) -> Path:
    return ledger.parent / f"{ledger.name}.{scraper}.lock"
