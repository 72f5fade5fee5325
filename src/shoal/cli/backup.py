"""Backing up a ledger, with progress; or the command that does it for a database server."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.errors import UsageError

if TYPE_CHECKING:
    from shoal.cli.render.session import Session

NOTE_SECONDS = 2.0


async def back_up(session: Session, file: Path) -> None:
    from shoal.ledger.protocols import Backup
    from shoal.wiring import ledger_context, sqlite_path

    if sqlite_path(session.settings.ledger) is None:
        raise UsageError("PostgreSQL has its own tool for backups.", remedy=f"Run: {pg_dump(session, file)}")
    async with ledger_context(session.settings, migrate=False) as ledger:
        if not isinstance(ledger, Backup):
            raise UsageError("This ledger cannot copy itself.", remedy="Use the tools of its database.")
        await ledger.back_up(file, _Progress(session).heard)


def pg_dump(session: Session, file: Path) -> str:
    """What to type. The password is not in it: PGPASSWORD or ~/.pgpass gives it."""
    from shoal.model.ledger_url import without_password

    where = without_password(session.settings.ledger)
    return shlex.join(["pg_dump", "--schema=shoal", "--format=custom", f"--file={file}", where])


class _Progress:
    """A note now and then; the backup's own thread calls it."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._next_at = time.monotonic() + NOTE_SECONDS

    def heard(self, left: int, total: int) -> None:
        if time.monotonic() >= self._next_at and total:
            self._next_at = time.monotonic() + NOTE_SECONDS
            self._session.note(f"copied {100 * (total - left) // total}% of {total} pages")
