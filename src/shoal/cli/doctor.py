"""`shoal doctor`: is everything well, and if not, what to do about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from shoal.cli.render.options import with_options
from shoal.cli.render.session import RED, Session

if TYPE_CHECKING:
    from shoal.observe.doctor import Check


@with_options
def doctor(session: Session) -> None:
    """Say whether all is well, and what to do if not.

    Checks the ledger, its server or disk, clocks, versions and workers. Something wrong: exit 1.
    """
    checks = session.wait(_examine(session))
    for check in checks:
        if session.json:
            session.record(check)
        else:
            _print(session, check)
    wrong = sum(not check.ok for check in checks)
    if wrong:
        session.note(f"{wrong} of {len(checks)} checks found something wrong.")
        raise typer.Exit(1)


async def _examine(session: Session) -> list[Check]:
    from shoal import __version__
    from shoal.errors import LedgerError
    from shoal.observe.doctor import Check, check_disk, check_ledger
    from shoal.wiring import connect_ledger, sqlite_path

    path = sqlite_path(session.settings.ledger)
    try:
        ledger = await connect_ledger(session.settings, create=False)
    except LedgerError as error:
        return [Check(name="ledger", ok=False, text=error.message, fix=error.remedy)]
    try:
        checks = await check_ledger(ledger, version=__version__)
    finally:
        await ledger.close()
    return checks if path is None else [*checks, check_disk(path)]


def _print(session: Session, check: Check) -> None:
    mark = "ok   " if check.ok else session.styled("wrong", RED)
    session.data(f"{mark}  {check.name:<12} {check.text}")
    if check.fix:
        session.data(f"       {'':<12} {check.fix}")
