"""The lock of single mode: one process at a time runs a scraper on a ledger.

Beside a SQLite file it is a file lock, which ends with the process. In PostgreSQL it is a lock in the ledger, which
expires soon unless its owner renews it.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from io import FileIO
from pathlib import Path

from shoal.errors import LedgerError, LedgerFull, LedgerReadOnly, NotAllowed
from shoal.ledger.protocols import Ledger
from shoal.model.worker import new_worker_id

# The lock of a process that died is free this long after its last renewal; leases fence its items anyway.
LOCK_SECONDS = 10.0
RENEW_SECONDS = 2.0
POLL_SECONDS = 0.25


@contextmanager
def hold_file_lock(scraper: str, ledger: Path) -> Iterator[None]:
    """Hold the file lock of a scraper beside its ledger. Raises NotAllowed when another process has it."""
    with _open_lock_file(_path(scraper, ledger)) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            owner = (file.read(20) or b"").decode().strip()
            raise _already_running_error(scraper, owner) from None
        with suppress(OSError):  # the owner's process id is only for messages; a full disk may prevent it
            file.truncate(0)
            file.write(str(os.getpid()).encode())
        try:
            yield
        finally:
            with suppress(OSError):
                file.truncate(0)


@asynccontextmanager
async def hold_ledger_lock(scraper: str, ledger: Ledger, report: Callable[[str], None]) -> AsyncIterator[None]:
    """Hold the lock of a scraper in the ledger. Raises NotAllowed when another process has it and renews it.

    The lock of a process that died is waited for until it expires.
    """
    name, owner_id = f"single:{scraper}", new_worker_id()
    await _acquire(name, owner_id, scraper, ledger, report)
    renewing = asyncio.create_task(_renew(name, owner_id, ledger))
    try:
        yield
    finally:
        renewing.cancel()
        await asyncio.gather(renewing, return_exceptions=True)
        with suppress(LedgerError):  # then it expires
            await ledger.locks.release(name, owner_id)


async def _acquire(name: str, owner_id: str, scraper: str, ledger: Ledger, report: Callable[[str], None]) -> None:
    first = None
    while not await ledger.locks.acquire(name, owner_id, LOCK_SECONDS):
        held = await ledger.locks.get(name)
        if held is None:
            continue
        if first is None:
            first = held
        elif (held.taken_by, held.until) != (first.taken_by, first.until):
            raise _already_running_error(scraper, held.taken_by)
        else:
            await asyncio.sleep(POLL_SECONDS)
        if held is first:
            report(f"{held.taken_by} ran {scraper} a moment ago; checking whether it still does.")


async def _renew(name: str, owner_id: str, ledger: Ledger) -> None:
    while True:
        await asyncio.sleep(RENEW_SECONDS)
        with suppress(LedgerError):
            if not await ledger.locks.renew(name, owner_id, LOCK_SECONDS):
                # It expired while this process or the ledger was stopped. Another process may have it now.
                await ledger.locks.acquire(name, owner_id, LOCK_SECONDS)


def _already_running_error(scraper: str, owner: str) -> NotAllowed:
    return NotAllowed(
        f"{scraper} is already running in another process{f' ({owner})' if owner else ''} on this ledger.",
        remedy='Wait until it ends, add workers with `shoal worker`, or share it: mode = "distributed".',
    )


def _open_lock_file(path: Path) -> FileIO:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return FileIO(path, "a+")
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise LedgerFull(f"There is no space left for {path}.") from None
        raise LedgerReadOnly(f"The lock file {path} cannot be written: {error.strerror}.") from None


def was_abandoned(scraper: str, ledger: Path) -> bool:
    """Whether a process has held the file lock of this scraper and none does now."""
    try:
        with _path(scraper, ledger).open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _path(scraper: str, ledger: Path) -> Path:
    return ledger.parent / f"{ledger.name}.{scraper}.lock"
