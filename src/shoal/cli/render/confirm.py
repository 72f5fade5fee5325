"""Confirmation before a change that cannot be undone."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from shoal.cli.render.session import Session
from shoal.errors import UsageError

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking.")]


def confirm(session: Session, question: str, *, yes: bool) -> None:
    """Return after a yes, exit with 1 after a no. Raises UsageError with --no-input or without a terminal."""
    if not (yes or says_yes(session, question)):
        session.complain("Nothing was changed.")
        raise typer.Exit(1)


def says_yes(session: Session, question: str) -> bool:
    """As `confirm`, but return the answer: for callers that clean up after a no."""
    if session.no_input or not sys.stdin.isatty():
        raise UsageError(f"{question} Nobody is there to confirm it.", remedy="Add --yes to do it without asking.")
    print(session.redacted(f"{question} Go on? [y/N] "), end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
