"""`shoal shell`: a Python prompt with a fetched page; an event loop in a thread fetches more."""

from __future__ import annotations

import code
import mimetypes
import sys
import tempfile
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, Self

import typer

from shoal.cli.render.options import with_options
from shoal.cli.render.session import Session
from shoal.cli.scrapers import load
from shoal.config import Settings
from shoal.define.scraper import Scraper
from shoal.errors import AttemptEnded, Skipped, Throttled
from shoal.fetch.page import Fetcher, Page, Request
from shoal.fetch.robots import Robots
from shoal.model.redaction import redacted
from shoal.model.url_key import host_or_none, url_host
from shoal.observe.logs import open_logs
from shoal.service.blocking import LoopThread
from shoal.wiring import build_browser, build_fetcher, build_pool
from shoal.worker.egress import IdentityFetcher

JAR = "shell"
HELP = """\
  page            the page: page.css(...), page.xpath(...), page.json(), page.join(...), page.headers
  css, xpath      the same for short: css("h1::text").get()
  text, links     its text, and the URLs it links to
  fetch(url)      get another page, and make it `page`
  view()          write the page to a file, to look at it in a browser
Leave with Ctrl-D."""


class Visitor:
    """Fetches pages for code that is not asynchronous, as a scraper would. Use it as a context.

    `browser`: pages are rendered by a browser. `egress`: the pool of exits that requests go out through; None: that of
    the scraper's first stage, if it has one.
    """

    def __init__(
        self, settings: Settings, scraper: Scraper | None, *, browser: bool = False, egress: str | None = None
    ) -> None:
        self.scraper = scraper
        if egress is None and scraper is not None:
            egress = scraper.first_stage.egress
        silent = open_logs(format="console", level="error", file=None, stream=None).log
        self._pool = build_pool(settings, egress, "shell", log=silent, alone=True) if egress else None
        http = build_fetcher(settings)
        self._fetcher: Fetcher = build_browser(settings, http) if browser else http
        self._opened = (self._fetcher, http) if browser else (http,)
        obeys = settings.robots if scraper is None or scraper.robots is None else scraper.robots
        self._robots = Robots(http, settings.agent) if obeys else None
        self._http = http
        self._headers = scraper.headers if scraper is not None else {}

    def __enter__(self) -> Self:
        self._loop = LoopThread()
        if self._pool is not None:
            try:
                self._loop.run(self._pool.start())
            except BaseException:
                self._loop.close()
                raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for fetcher in self._opened:
            self._loop.run(fetcher.close())
        if self._pool is not None:
            self._loop.run(self._pool.close())
        self._loop.close()

    def fetch(self, url: str) -> Page:
        """The page, whatever its status. Raises AttemptEnded when there is none."""
        return self._loop.run(self._fetch(Request(url=url, headers=self._headers)))

    async def _fetch(self, request: Request) -> Page:
        fetcher, http, jar = self._fetcher, self._http, JAR
        if self._pool is not None:
            identity = self._pool.choose(host_or_none(request.url) or "")
            fetcher, http, jar = IdentityFetcher(fetcher, identity), IdentityFetcher(http, identity), identity.key
        gate = None if self._robots is None else _RobotsGate(self._robots, http)
        return await fetcher.fetch(request, gate=gate, jar=jar)


def prompt(visitor: Visitor, page: Page, print_note: Callable[[str], None], banner: Callable[[Page], str]) -> bool:
    """Let a person, or a pipe, work on the page. False when a line of a pipe failed."""
    names: dict[str, Any] = {"__name__": "__console__", "__doc__": None}
    if visitor.scraper is not None:
        names |= {"scraper": visitor.scraper, **visitor.scraper.stages}

    def show(page: Page) -> None:
        names.update(page=page, css=page.css, xpath=page.xpath, text=page.text, links=page.links())

    def fetch(url: str) -> None:
        try:
            got = visitor.fetch(names["page"].join(url))
        except AttemptEnded as ended:
            # A sentence; a page of the fetcher's own code would say less.
            print(redacted(f"{url} cannot be fetched: {ended}.") + " `page` is the one from before.", file=sys.stderr)
            return
        show(got)
        print_note(banner(got))

    def view() -> None:
        print(_written(names["page"]))

    names |= {"fetch": fetch, "view": view}
    show(page)
    if not sys.stdin.isatty():
        return _work_through(names)
    _interact(names)
    return True


def _work_through(names: dict[str, Any]) -> bool:
    """The lines of stdin as if they were typed, without prompts between the answers."""
    console = _Console(names)
    for line in sys.stdin:
        console.push(line.rstrip("\r\n"))
    console.push("")
    return not console.failed


class _Console(code.InteractiveConsole):
    failed = False

    def showtraceback(self) -> None:
        self.failed = True
        super().showtraceback()

    def showsyntaxerror(self, *args: Any, **more: Any) -> None:
        self.failed = True
        super().showsyntaxerror(*args, **more)


def _interact(names: dict[str, Any]) -> None:
    # Looked for, not tried: errors at a prompt inside `except` would all be shown as consequences of it.
    if find_spec("IPython") is not None:
        import_module("IPython").start_ipython(argv=["--no-banner"], user_ns=names)
    else:
        _complete_with_tab(names)
        _Console(names).interact(banner="", exitmsg="")


def _complete_with_tab(names: dict[str, Any]) -> None:
    try:
        import readline
        import rlcompleter
    except ImportError:  # a Python without them still has a prompt
        return
    readline.set_completer(rlcompleter.Completer(names).complete)
    readline.parse_and_bind("tab: complete")


def _written(page: Page) -> Path:
    """A file with the page as it was sent, its ending what a browser expects."""
    ending = mimetypes.guess_extension(page.content_type) or ".html"
    with tempfile.NamedTemporaryFile(prefix="shoal-page-", suffix=ending, delete=False) as file:
        file.write(page.body)
    return Path(file.name)


class _RobotsGate:
    """Lets through what robots.txt allows. One person at a prompt needs no pace."""

    def __init__(self, robots: Robots, fetcher: Fetcher) -> None:
        self._robots = robots
        self._fetcher = fetcher

    async def before_request(self, url: str, hop: int) -> None:
        rules = await self._robots.rules(url, fetcher=self._fetcher)
        if not rules.allowed(url):
            raise Skipped(f"robots.txt of {url_host(url)} forbids it")

    async def on_redirect(self, url: str, method: str) -> None:
        """Every page may be looked at again."""

    async def before_send(self, hop: int) -> None:
        """Nothing to wait for."""

    def after_send(self, hop: int) -> None:
        """Requests are not counted here."""

    def request_done(self, hop: int) -> None:
        """Nothing waits for it."""

    async def on_throttled(self, ended: Throttled) -> None:
        """The person sees the answer."""


@with_options
def shell(
    session: Session,
    url: Annotated[str, typer.Argument(metavar="URL", help="The page to look at.")],
    target: Annotated[
        str | None,
        typer.Argument(metavar="[SCRAPER]", help="Ask as this scraper does: its headers, cookies, settings."),
    ] = None,
    browser: Annotated[bool, typer.Option("--browser", help="Render pages in a browser, with their scripts.")] = False,
    egress: Annotated[
        str | None, typer.Option(metavar="NAME", help="Go out through [egress.NAME]; else as the scraper does.")
    ] = None,
) -> None:
    """Fetch a page and open a Python prompt on it. Lines from a pipe work too; one that fails: exit 1.

    robots.txt is obeyed; --set robots=false looks anyway.
    """
    from shoal.errors import AttemptEnded

    scraper: Scraper | None = None
    settings: Settings = session.settings
    if target is not None:
        scraper, settings = load(session, target, uses_ledger=False)
    with Visitor(settings, scraper, browser=browser, egress=egress) as visitor:
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
