"""`shoal sessions`: the sessions of logins, without their content."""

from __future__ import annotations

from typing import Annotated

import typer

from shoal.cli.render.options import with_options
from shoal.cli.render.session import Session

app = typer.Typer()

Name = Annotated[str | None, typer.Argument(metavar="SCRAPER", help="The name of a scraper; all of them without it.")]


@app.command()
@with_options
def ls(session: Session, scraper: Name = None) -> None:
    """List the sessions that this machine and the ledger keep."""
    from shoal.observe.formatting import format_duration
    from shoal.service.sessions import list_sessions

    found = session.wait(list_sessions(session.settings, scraper))
    if session.json:
        for kept in found:
            session.record(kept)
    elif found:
        session.table(
            ["SCRAPER", "LOGIN", "IDENTITY", "AGE", "PLACE"],
            [(kept.scraper, kept.login, kept.identity, format_duration(kept.age), kept.place) for kept in found],
        )
    else:
        session.note("There are no sessions; a login makes the first.")


@app.command()
@with_options
def forget(session: Session, scraper: Name = None) -> None:
    """Remove sessions, so that the next start logs in. Workers that run keep theirs."""
    from shoal.observe.formatting import pluralize
    from shoal.service.sessions import forget_sessions

    count = session.wait(forget_sessions(session.settings, scraper))
    if session.json:
        session.record({"forgotten": count})
    else:
        session.note(f"Forgotten: {pluralize(count, 'session')}.")
