"""`shoal config`: what this process would work with."""

from __future__ import annotations

from typing import Annotated

import typer

from shoal.cli.options import with_options
from shoal.cli.session import Session

app = typer.Typer(help="Show the configuration.", no_args_is_help=True)


@app.callback()
def config() -> None:
    """Show the configuration."""


@app.command()
@with_options
def show(
    session: Session,
    origin: Annotated[bool, typer.Option("--origin", help="Say where each value came from.")] = False,
) -> None:
    """Print every setting with its value, passwords blotted out."""
    settings = session.settings
    rows = [(name, value, str(settings.origins[name])) for name, value in settings.shown().items()]
    columns = ("name", "value", "origin") if origin else ("name", "value")
    if session.json:
        for row in rows:
            session.record(dict(zip(columns, row, strict=False)))
    else:
        session.table([column.upper() for column in columns], [row[: len(columns)] for row in rows])
