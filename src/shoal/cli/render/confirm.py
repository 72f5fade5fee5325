"""Asking before something is done that cannot be undone."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from shoal.cli.render.session import Session
from shoal.errors import UsageError

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking.")]


def confirm(session: Session, what: str, *, yes: bool) -> None:
    """Go on only after a yes. With --no-input, or without a terminal, nobody can give one: refused with exit code 2."""
    if not (yes or says_yes(session, what)):
        session.complain("Nothing was changed.")
        raise typer.Exit(1)


def says_yes(session: Session, what: str) -> bool:
    """As `confirm`, for who has to tidy up after a no."""
    if session.no_input or not sys.stdin.isatty():
        raise UsageError(f"{what} Nobody is there to confirm it.", remedy="Add --yes to do it without asking.")
    print(session.redacted(f"{what} Go on? [y/N] "), end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
