"""`shoal shell`: a Python prompt with a page in it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.render.options import with_options
from shoal.cli.render.session import Session
from shoal.cli.scrapers import load

if TYPE_CHECKING:
    from shoal.config import Settings
    from shoal.define.scraper import Scraper
    from shoal.fetch.page import Page

HELP = """\
  page            the page: page.css(...), page.xpath(...), page.json(), page.join(...), page.headers
  css, xpath      the same for short: css("h1::text").get()
  text, links     its text, and the URLs it links to
  fetch(url)      get another page, and make it `page`
  view()          write the page to a file, to look at it in a browser
Leave with Ctrl-D."""


@with_options
def shell(
    session: Session,
    url: Annotated[str, typer.Argument(metavar="URL", help="The page to look at.")],
    target: Annotated[
        str | None,
        typer.Argument(metavar="[SCRAPER]", help="Ask as this scraper does: its headers, cookies, settings."),
    ] = None,
) -> None:
    """Fetch a page and open a Python prompt on it. Lines from a pipe work too; one that fails: exit 1.

    robots.txt is obeyed; --set robots=false looks anyway.
    """
    from shoal.cli.prompt import Visitor, prompt
    from shoal.errors import AttemptEnded

    scraper: Scraper | None = None
    settings: Settings = session.settings
    if target is not None:
        scraper, settings = load(session, target)
    with Visitor(settings, scraper) as visitor:
        try:
            page = visitor.fetch(url)
        except AttemptEnded as ended:
            session.complain(_refused(ended, url))
            raise typer.Exit(1) from None
        session.note(_banner(page))
        if sys.stdin.isatty():
            session.note(HELP)
        if not prompt(visitor, page, session.note, _banner):
            raise typer.Exit(1)


def _refused(ended: Exception, url: str) -> str:
    text = f"{url} cannot be fetched: {ended}."
    return f"{text} Add --set robots=false to look at it anyway." if str(ended).endswith("forbids it") else text


def _banner(page: Page) -> str:
    """Two lines: what was answered, and the title of what came."""
    from http import HTTPStatus

    try:
        status = f"{page.status} {HTTPStatus(page.status).phrase}"
    except ValueError:
        status = str(page.status)
    size = len(page.body) / 1000
    facts = f"{status}  {page.url}  {page.content_type or 'no type'}  {size:.1f} KB in {page.seconds:.2f} s"
    title = _title(page)
    return f"{facts}\n{title}" if title else facts


def _title(page: Page) -> str:
    if page.content_type not in ("", "text/html", "application/xhtml+xml"):
        return ""
    found = " ".join(page.css("title::text").get("").split())
    return "".join(char if char.isprintable() else "?" for char in found)
