"""`shoal config`: show the settings that are in force, and where each came from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.cli.render.options import with_options
from shoal.cli.render.session import Session

if TYPE_CHECKING:
    from shoal.config import Settings

    Row = tuple[str, Any, str]

app = typer.Typer(help="Show the configuration.", no_args_is_help=True)


@app.callback()
def config() -> None:
    """Show the configuration."""


@app.command()
@with_options
def show(
    session: Session,
    scraper: Annotated[
        str | None, typer.Argument(help="A scraper with a table of its own: show what holds for it.")
    ] = None,
    origin: Annotated[bool, typer.Option("--origin", help="Say where each value came from.")] = False,
) -> None:
    """Print every setting with its value, passwords redacted."""
    settings = session.settings
    rows = list(_rows(settings)) if scraper is None else list(_scraper_rows(settings, scraper))
    columns = ("name", "value", "origin") if origin else ("name", "value")
    if session.json:
        for row in rows:
            session.record(dict(zip(columns, row, strict=False)))
    else:
        headers = [column.upper() for column in columns]
        session.table(headers, [(name, _text(value), place)[: len(columns)] for name, value, place in rows])


def _rows(settings: Settings) -> Iterator[Row]:
    """Every setting, then the tables of single scrapers in the files."""
    from shoal.service.stored_settings import effective_settings

    for each in effective_settings(settings):
        yield each.name, each.value, each.origin


def _scraper_rows(settings: Settings, scraper: str) -> Iterator[Row]:
    """The settings in force for one scraper."""
    from shoal.errors import NotFound

    if scraper not in settings.scrapers:
        known = ", ".join(settings.scrapers) or "none"
        raise NotFound(
            f"No configuration file has a table [scrapers.{scraper}].",
            remedy=f"Omit the name to see the settings of all other scrapers; scrapers with a table: {known}.",
        )
    table, effective = settings.scrapers[scraper], settings.for_scraper(scraper)
    yield "mode", effective.mode, str(effective.origins["mode"])
    for name, value in effective.shown().items():
        yield name, value, str(effective.origins[name])
    for name, value in table.shown().items():
        if name not in effective.origins:
            yield name, value, str(table.origins[name])


def _text(value: Any) -> Any:
    """The value as a configuration file would have it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.15g}"
    return list(value) if isinstance(value, tuple) else value
