"""`shoal doctor`: check everything that can be wrong, and name the remedy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.render.options import with_options
from shoal.cli.render.session import RED, Session
from shoal.observe.formatting import pluralize
from shoal.service.records import check_record

if TYPE_CHECKING:
    from shoal.observe.doctor import Check


@with_options
def doctor(
    session: Session,
    scraper: Annotated[
        str | None,
        typer.Argument(metavar="SCRAPER", help="Only what this scraper needs, and its browser.", show_default=False),
    ] = None,
) -> None:
    """Say whether all is well, and what to do if not.

    Checks the ledger, its server or disk, clocks, versions and workers, and every proxy, token and Tor that is
    configured. With SCRAPER: its ledger, its pools of exits, its browser. Something wrong: exit 1.
    """
    from shoal import __version__
    from shoal.service.database import diagnose

    if scraper is None:
        checks = session.wait(diagnose(session.settings, version=__version__, on_notice=session.note))
    else:
        from shoal.cli.scrapers import load

        found, settings = load(session, scraper)
        checks = session.wait(diagnose(settings, version=__version__, scraper=found, on_notice=session.note))
    width = max(12, *(len(check.name) for check in checks))
    for check in checks:
        if session.json:
            session.record(check_record(check))
        else:
            _print(session, check, width)
    failed = sum(not check.ok for check in checks)
    if failed:
        session.note(f"{failed} of {pluralize(len(checks), 'check')} found something wrong.")
        raise typer.Exit(1)


def _print(session: Session, check: Check, width: int) -> None:
    mark = "warn " if check.warning else "ok   " if check.ok else session.styled("wrong", RED)
    session.data(f"{mark}  {check.name:<{width}} {check.text}")
    if check.fix:
        session.data(f"       {'':<{width}} {check.fix}")
