"""A small site for tests: it answers on this machine, keeps a log of its requests, and can fail on demand."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import nullcontext, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self, get_args
from urllib.parse import parse_qs, urlsplit

from multidict import CIMultiDict

from shoal.errors import UsageError
from shoal.fetch.page import Page, Request
from shoal.testing.fake_http import Answer, page_of
from shoal.testing.saved_pages import SUFFIX, load_page

# How a connection can break: closed without a response; a response that never comes; one that ends too early.
Breakage = Literal["reset", "stall", "truncate"]
_MAX_BODY = 64 << 20
_OWN_HEADERS = {"connection", "content-encoding", "content-length", "transfer-encoding"}


class SiteRequest(NamedTuple):
    """One request as the site saw it. `path` has the query; names of `headers` ignore case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    status: int

    @property
    def params(self) -> dict[str, list[str]]:
        """The parameters of the query."""
        return parse_qs(urlsplit(self.path).query, keep_blank_values=True)


class _Route(NamedTuple):
    answer: Answer
    status: int | None
    headers: Mapping[str, str]
    delay: float


class _Fault(NamedTuple):
    what: int | Breakage | None
    headers: Mapping[str, str]


class LocalSite:
    """Use it as a context, or by the pytest fixture `shoal_site`. Paths without a route answer 404.

    A route with a query answers exactly that; one without answers any query.
    """

    def __init__(self) -> None:
        self._routes: dict[str, _Route] = {}
        self._faults: dict[str, list[_Fault]] = {}
        self._lock = threading.Lock()
        self._iterating = threading.Lock()
        self._ended = threading.Event()
        self._requests: list[SiteRequest] = []
        self._server: _Server | None = None

    def __enter__(self) -> Self:
        self._server = _Server(self)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="shoal-site", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ended.set()
        assert self._server is not None
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        """Its address, without a slash at the end."""
        assert self._server is not None, "the site is not open"
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def requests(self) -> list[SiteRequest]:
        """The requests so far, in the order of their arrival; those for robots.txt are left out."""
        with self._lock:
            return [request for request in self._requests if request.path != "/robots.txt"]

    @property
    def paths(self) -> list[str]:
        """The paths of the requests, with their queries."""
        return [request.path for request in self.requests]

    def route(
        self,
        path: str,
        answer: Answer,
        *,
        status: int | None = None,
        headers: Mapping[str, str] | None = None,
        delay: float = 0.0,
    ) -> None:
        """Answer a path: with text (HTML), bytes, a dict or list (JSON), a status, a Page, or what a function returns.

        The function gets the `Request`. An iterator gives one answer for each request. `delay`: seconds before it.
        """
        _check_path(path)
        with self._lock:
            self._routes[path] = _Route(answer, status, dict(headers or {}), delay)

    def pages(self, folder: Path | str) -> None:
        """Serve the saved pages of a folder at the paths of their URLs, and other files by their names."""
        for file in sorted(Path(folder).iterdir()):
            if file.suffix == SUFFIX:
                page = load_page(file)
                parts = urlsplit(page.requested_url)
                self.route((parts.path or "/") + (f"?{parts.query}" if parts.query else ""), page)
            elif file.is_file():
                self.route(f"/{file.name}", load_page(file, url=f"{self.url}/{file.name}"))

    def fail(
        self, path: str, what: int | Breakage, *, times: int = 1, headers: Mapping[str, str] | None = None
    ) -> None:
        """Fail the next requests of a path: with a status, or "reset", "stall", "truncate" for a broken connection."""
        _check_path(path)
        if not isinstance(what, int) and what not in get_args(Breakage):
            raise UsageError(
                f"fail() cannot {what!r}.", remedy=f"Use a status or one of {', '.join(get_args(Breakage))}."
            )
        with self._lock:
            self._faults.setdefault(path, []).extend([_Fault(what, dict(headers or {}))] * times)

    def answer(self, request: Request, path: str) -> tuple[Page, Breakage | None]:
        """The page for a request, and how its connection breaks. Called by the server, in its threads."""
        keys = (path, path.partition("?")[0])
        with self._lock:
            faults = next((self._faults[key] for key in keys if self._faults.get(key)), None)
            what, headers = faults.pop(0) if faults else _Fault(None, {})
            route = next((self._routes[key] for key in keys if key in self._routes), None)
        if isinstance(what, int):
            page = Page.of(request.url, f"<h1>{what}</h1>", status=what, headers=headers)
            what = None
        else:
            page = self._routed_page(route, request)
        status = 0 if what in ("reset", "stall") else page.status
        seen = SiteRequest(request.method, path, CIMultiDict(request.headers), request.body or b"", status)
        with self._lock:
            self._requests.append(seen)
        if what == "stall":
            self._ended.wait()
        elif route is not None and route.delay and status == page.status:
            self._ended.wait(route.delay)
        return page, what

    def _routed_page(self, route: _Route | None, request: Request) -> Page:
        if route is None:
            return Page.of(request.url, "<h1>404</h1>", status=404)
        try:
            with self._iterating if isinstance(route.answer, Iterator) else nullcontext():
                page = page_of(route.answer, request)
        except Exception as error:  # of the author's function: the test sees it as a status and in the text
            return Page.of(request.url, f"<h1>500</h1><pre>{type(error).__name__}: {error}</pre>", status=500)
        if route.status is not None:
            page = page.replace(status=route.status)
        return page.replace(headers={**page.headers, **route.headers}) if route.headers else page


def _check_path(path: str) -> None:
    if not path.startswith("/"):
        raise UsageError(f"{path!r} is not a path.", remedy="Paths begin with a slash: /category/garden.")


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, site: LocalSite) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.site = site

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no error of the site."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 60
    disable_nagle_algorithm = True

    def handle_one_request(self) -> None:
        with suppress(ConnectionError, TimeoutError):
            return super().handle_one_request()
        self.close_connection = True

    def answer(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(min(length, _MAX_BODY)) if length else None
        site = self.server.site  # type: ignore[attr-defined]
        headers = CIMultiDict(self.headers.items())
        request = Request(url=site.url + self.path, method=self.command, headers=headers, body=body)
        page, breakage = site.answer(request, self.path)
        if breakage in ("reset", "stall"):
            self.close_connection = True
            return
        self.send_response(page.status)
        for name, value in page.headers.items():
            if name.lower() not in _OWN_HEADERS:
                self.send_header(name, value)
        if "Content-Type" not in page.headers and page.body:
            self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(page.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(page.body[: len(page.body) // 2] if breakage == "truncate" else page.body)
        if breakage == "truncate":
            self.close_connection = True

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = answer

    def log_message(self, *_: Any) -> None:
        """No access log: `requests` has it."""
