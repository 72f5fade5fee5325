"""`shoal doctor`: check everything that can be wrong, and name the remedy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from shoal.cli.render.options import with_options
from shoal.cli.render.session import RED, Session
from shoal.observe.formatting import pluralize
from shoal.service.records import check_record

if TYPE_CHECKING:
    from shoal.observe.doctor import Check


@with_options
def doctor(session: Session) -> None:
    """Say whether all is well, and what to do if not.

    Checks the ledger, its server or disk, clocks, versions and workers, and every proxy, token, Tor and browser that is
    configured. Something wrong: exit 1.
    """
    from shoal import __version__
    from shoal.service.database import diagnose

    checks = session.wait(diagnose(session.settings, version=__version__))
    for check in checks:
        if session.json:
            session.record(check_record(check))
        else:
            _print(session, check)
    failed = sum(not check.ok for check in checks)
    if failed:
        session.note(f"{failed} of {pluralize(len(checks), 'check')} found something wrong.")
        raise typer.Exit(1)


def _print(session: Session, check: Check) -> None:
    mark = "warn " if check.warning else "ok   " if check.ok else session.styled("wrong", RED)
    session.data(f"{mark}  {check.name:<12} {check.text}")
    if check.fix:
        session.data(f"       {'':<12} {check.fix}")
