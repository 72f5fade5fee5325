"""One process owns the runs of a scraper in single mode: a lock that ends with the process, however it ends."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path

from shoal.errors import LedgerFull, LedgerReadOnly, NotAllowed


@contextmanager
def owning(scraper: str, ledger: Path) -> Iterator[None]:
    """Hold the lock of a scraper beside its ledger. Raises NotAllowed when another process has it."""
    with _opened(_path(scraper, ledger)) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            owner = (file.read(20) or b"").decode().strip()
            raise NotAllowed(
                f"{scraper} is being run by another process{f' ({owner})' if owner else ''} on this ledger.",
                remedy="Wait for it, or help it with `shoal worker`.",
            ) from None
        with suppress(OSError):  # who owns it is only told to people; on a full disk it is not
            file.truncate(0)
            file.write(str(os.getpid()).encode())
        try:
            yield
        finally:
            with suppress(OSError):
                file.truncate(0)


def _opened(path: Path) -> FileIO:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return FileIO(path, "a+")
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise LedgerFull(f"There is no space left for {path}.") from None
        raise LedgerReadOnly(f"The lock file {path} cannot be written: {error.strerror}.") from None


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
