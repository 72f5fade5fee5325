"""The sessions of logins that this machine and the ledger keep: listed without their content, and forgotten."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from shoal.config import Settings
from shoal.errors import LedgerNotMigrated
from shoal.ledger.protocols import Ledger
from shoal.wiring import ledger_context
from shoal.worker.session_store import SessionFile, list_session_files


class KeptSession(msgspec.Struct, frozen=True, kw_only=True):
    """A session. `place`: its file, or "ledger". `age`: seconds since it began or, in a file, was last written."""

    scraper: str
    login: str
    identity: str
    place: str
    age: float


async def list_sessions(settings: Settings, scraper: str | None = None) -> list[KeptSession]:
    """Those of one scraper, or of all. A project without a ledger has those in files only."""
    found = [
        KeptSession(scraper=file.scraper, login=file.login, identity=file.identity, place=str(file.path), age=file.age)
        for file in _files(settings, scraper)
    ]
    async with _ledger(settings) as ledger:
        shared = [] if ledger is None else await ledger.sessions.list(scraper=scraper)
    for view in shared:
        login, _, identity = view.identity.partition(" ")
        found.append(KeptSession(scraper=view.scraper, login=login, identity=identity, place="ledger", age=view.age))
    return found


async def forget_sessions(settings: Settings, scraper: str | None = None) -> int:
    """Remove those of one scraper, or of all. Returns how many. Workers that run keep theirs."""
    files = _files(settings, scraper)
    for file in files:
        file.path.unlink(missing_ok=True)
    count = len(files)
    async with _ledger(settings) as ledger:
        while ledger is not None and (views := await ledger.sessions.list(scraper=scraper)):
            for view in views:
                count += await ledger.sessions.remove(view.scraper, view.identity)
    return count


def _files(settings: Settings, scraper: str | None) -> list[SessionFile]:
    return list_session_files(Path(settings.sessions).expanduser(), scraper) if settings.sessions else []


@asynccontextmanager
async def _ledger(settings: Settings) -> AsyncIterator[Ledger | None]:
    try:
        context = ledger_context(settings, migrate=False)
        ledger = await context.__aenter__()
    except LedgerNotMigrated:
        yield None
        return
    try:
        yield ledger
    finally:
        await context.__aexit__(None, None, None)
