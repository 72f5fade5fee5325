"""A live tab of the browser for one attempt, and what stages say about their pages.

`Tab` is Playwright's page with additions: `page()` renders it again, `save()` downloads. Playwright itself is imported
only by those who use a browser.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec
from multidict import CIMultiDict

from shoal.errors import AttemptEnded, ExitFailed, Permanent, Throttled, Transient
from shoal.fetch import urls
from shoal.fetch.body import too_large_error
from shoal.fetch.classify import classify_page
from shoal.fetch.download import DEFAULT_NAME, Download, Downloads
from shoal.fetch.interception import Document, Navigation
from shoal.fetch.memory import reservation
from shoal.fetch.page import BrowserOptions, Page, PageCall, Request
from shoal.model.url_key import host_or_none, quoted

if TYPE_CHECKING:
    from playwright.async_api import Page as PlaywrightPage
    from playwright.async_api import Response

    from shoal.fetch.live_page import LivePage
    from shoal.fetch.page import Fetcher, Identity, LinkSource, PageGate, RequestGate, ResponseStream
    from shoal.fetch.store import FileStore
else:
    PlaywrightPage = object

LOAD_STATES = ("load", "networkidle")
MAX_CALLS = 100
MAX_CALL_BYTES = 4 << 20
MAX_CALLS_BYTES = 16 << 20
_CALL_SECONDS = 2.0
_CAPTURE_SECONDS = 10.0
_DOWNLOAD_SECONDS = 30.0
# A page that leads on while it is read is read again; how often it may lead on is limited elsewhere.
_RENDER_TRIES = 50
# So long a page may still take to load after it has started a download.
_AFTER_DOWNLOAD_SECONDS = 1.0
# How long an error page may take to become what the stage waits for.
_ERROR_PAGE_SECONDS = 3.0
_HTML = frozenset({"", "text/html", "application/xhtml+xml"})
_NET_ERROR = re.compile(r"net::(ERR_[A-Z0-9_]+)")
_CAUSES = {
    "ERR_NAME_NOT_RESOLVED": "the host name could not be resolved",
    "ERR_CONNECTION_REFUSED": "no connection: connection refused",
    "ERR_CONNECTION_TIMED_OUT": "no connection in time",
    "ERR_TIMED_OUT": "no connection in time",
    "ERR_ADDRESS_UNREACHABLE": "no connection: no route to host",
    "ERR_CONNECTION_RESET": "the connection broke: connection reset by peer",
    "ERR_CONNECTION_CLOSED": "the site closed the connection without an answer",
    "ERR_EMPTY_RESPONSE": "the site closed the connection without an answer",
    "ERR_INVALID_HTTP_RESPONSE": "the response is not valid HTTP",
    "ERR_CONTENT_LENGTH_MISMATCH": "the body is not complete: the connection closed early",
    "ERR_INCOMPLETE_CHUNKED_ENCODING": "the body is not complete: the connection closed early",
    "ERR_SSL_PROTOCOL_ERROR": "the TLS handshake failed",
}
# In a world of its own, where scripts of the page cannot change what the functions of the browser do.
_RENDER = """(limit => {
  const type = document.doctype ? new XMLSerializer().serializeToString(document.doctype) + "\\n" : "";
  const text = type + (document.documentElement ? document.documentElement.outerHTML : "");
  return [location.href, document.contentType, text.length, text.length > limit ? text.slice(0, limit) : text];
})(%d)"""


class TabContext(msgspec.Struct, frozen=True, kw_only=True):
    """What a tab is opened for. `http`: sends downloads. `max_body`: of a rendered page."""

    gate: PageGate | None
    jar: str | None
    identity: Identity | None
    options: BrowserOptions
    deadline: asyncio.Timeout | None
    http: Fetcher
    downloads: Downloads | None
    store: FileStore | None
    max_body: int


class Tab(PlaywrightPage):
    """The live page of an attempt, for clicks and scripts: it has everything that Playwright's `Page` has.

    It is closed when the attempt ends. Its navigations obey robots.txt and the lanes of their hosts. Dialogs are
    dismissed, and pop-ups and downloads that nobody asked for are closed.
    """

    def __init__(self, live: LivePage, context: TabContext) -> None:
        self._live = live
        self._context = context
        self._requests = live.requests
        self._calls: list[PageCall] = []
        self._pending_calls: set[asyncio.Task[None]] = set()
        self._call_bytes = 0
        self._reads_calls = False
        self._link_source: LinkSource | None = None  # the item of the attempt, for `page.follow_links`
        self._waiting_download: asyncio.Future[Any] | None = None
        # A page that answered, and that only Shoal has used, can be used for another attempt.
        self.is_touched = False
        self.is_rendered = False
        self.captured: dict[str, str] = {}
        # A failure of the way that the author's own navigation has met; nobody knows of it yet.
        self.way_failure: ExitFailed | None = None

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_"):
                raise AttributeError(name)
            self.is_touched = True
            return getattr(self._live.page, name)

    def __repr__(self) -> str:
        return f"<Tab {self._live.page.url}>"

    async def goto(self, url: str, **options: Any) -> Response | None:
        """Playwright's `goto`; only http and https are opened."""
        parsed = urls.parse_url(url)
        if parsed is None or not (urls.is_http(parsed) or url == "about:blank"):
            raise Permanent(f"{quoted(url)} is not opened: only http and https are")
        self.is_touched = True
        return await self._live.page.goto(url, **options)

    async def page(self, *, wait_for: str | Callable[[Tab], Awaitable[Any]] | None = None, check: bool = True) -> Page:
        """The page as it is now, rendered. A response that failed ends the attempt, unless `check=False`.

        `wait_for`: a selector, "load", "networkidle" or a function of the tab, to wait for first.
        """
        started = perf_counter()
        if wait_for is not None:
            await self._wait(wait_for)
        self._raise_error()
        document = self._requests.document
        page = await self._render(document, self._context.max_body, truncate=False, started=started)
        if check and document is not None and (ended := classify_page(page)) is not None:
            if isinstance(ended, Throttled) and self._context.gate is not None:
                await self._context.gate.on_throttled(ended)
            raise ended
        return page

    async def save(
        self,
        what: str | Callable[[], Awaitable[Any]],
        *,
        name: str = DEFAULT_NAME,
        max_bytes: int | None = None,
        sha256: str | None = None,
    ) -> Download:
        """Download into the place of the setting `files`: a URL, or what a function such as a click starts.

        `await tab.save("/report.pdf")`; `await tab.save(lambda: tab.click("#export"))`.
        """
        context = self._context
        if context.downloads is None:
            raise Permanent("a tab saves a file, but there is no folder for files")
        if isinstance(what, str):
            base = urls.parse_url(self._live.page.url)
            url = (urls.resolve(base, what) if base is not None else what) or what
            return await context.downloads.save(
                _AsIdentity(context.http, context.identity),
                Request(url=url, headers=await self._headers_for(url)),
                gate=context.gate,
                name=name,
                max_bytes=max_bytes,
                sha256=sha256,
                deadline=context.deadline,
            )
        async with self._download_of(what) as (url, filename, path):
            headers = {"Content-Disposition": f"attachment; filename*=UTF-8''{quote(filename)}"}
            source = _FileSource(url, path, headers)
            request = Request(url=url)
            return await context.downloads.save(
                source, request, name=name, max_bytes=max_bytes, sha256=sha256, deadline=context.deadline
            )

    async def fetch(self, request: Request, *, gate: RequestGate | None = None, max_body: int | None = None) -> Page:
        """Open a request in this tab, wait as the stage says, and return the rendered page.

        `gate` controls the requests of this navigation in place of the tab's own. Raises as `Fetcher.fetch`.
        """
        context = self._context
        limit = context.max_body if max_body is None else max_body
        navigation = self._requests.begin(request, context.gate if gate is None else gate)
        self._calls, self._call_bytes, self.is_rendered = [], 0, False
        started = perf_counter()
        try:
            response = await self._open(navigation)
            self._raise_error()
            if navigation.document is None:
                raise Transient(f"{quoted(request.url)}: the browser shows no response")
            page = await self._render(
                navigation.document,
                limit,
                truncate=request.truncate,
                started=started,
                response=response,
                navigation=navigation,
            )
            self._raise_error()
            self.is_rendered = True
        finally:
            self._requests.end()
        is_plain = request.method.upper() == "GET" and request.body is None
        is_kept = context.store is not None and is_plain and not request.private
        if is_kept and context.store is not None and page.status == 200 and classify_page(page) is None:
            await context.store.put(page, request.variant)
        return page

    async def capture(self) -> dict[str, str]:
        """A screenshot and the HTML of the page, kept in the place of the setting `files`: where they are."""
        downloads = self._context.downloads
        page, kept = self._live.page, {}
        url = page.url
        if downloads is None or self._live.is_crashed or not url.startswith("http"):
            return {}
        mark = "&" if "?" in url else "?"
        with suppress(Exception):
            async with asyncio.timeout(_CAPTURE_SECONDS):
                for name, content_type, content in (
                    ("html", "text/plain", self._content()),
                    ("screenshot", "image/png", page.screenshot(timeout=_CAPTURE_SECONDS * 1000)),
                ):
                    body = await content
                    source = _BytesSource(f"{url}{mark}capture={name}", body, {"Content-Type": content_type})
                    ending = "html" if name == "html" else "png"
                    stored = await downloads.save(
                        source, Request(url=source.url), name=f"captures/{{host}}/{{sha256}}.{ending}"
                    )
                    kept[name] = stored.path
        self.captured = kept
        return kept

    async def _content(self) -> bytes:
        _, _, _, text = await self._evaluate(self._context.max_body)
        return text.encode("utf-8", "replace")

    async def _open(self, navigation: Navigation) -> Response | None:
        """Navigate, and wait as the stage says. Returns the response; None for one that the browser does not show."""
        from playwright.async_api import Error

        wait_for = self._context.options.wait_for
        state: Any = wait_for if wait_for in LOAD_STATES else "commit"
        try:
            response = await self._goto(str(navigation.chain.target), state)
            if wait_for not in LOAD_STATES:
                await self._wait_for_content(wait_for, navigation)
            return response
        except Error as error:
            self._raise_error()
            if "Download is starting" in str(error):
                raise Permanent(
                    f"{quoted(navigation.chain.url)} is a file to download, not a page: "
                    "use a stage with save=True, or tab.save()"
                ) from None
            document, cause = navigation.document, _net_error(error)
            if document is not None and cause in ("ERR_HTTP_RESPONSE_CODE_FAILURE", "ERR_ABORTED"):
                return None  # a response without a body
            raise self._ended(error, navigation) from error

    async def _wait_for_content(self, wait_for: str | Callable[[Tab], Awaitable[Any]], navigation: Navigation) -> None:
        """Wait as the stage says, but only shortly on an error page, which is then taken as it is.

        A challenge may still let the visitor in; what a 404 lacks never appears.
        """
        if navigation.document is None or navigation.document.status < 400:
            await self._wait(wait_for)
            return
        with suppress(TimeoutError, Transient):
            async with asyncio.timeout(_ERROR_PAGE_SECONDS):
                await self._wait(wait_for)

    async def _goto(self, url: str, state: Any) -> Response | None:
        """Navigate and wait for the state; a page that starts a download may never reach it, and is taken as it is."""
        opening = asyncio.ensure_future(self._live.page.goto(url, wait_until=state, timeout=0))
        download = asyncio.ensure_future(self._live.downloaded.wait())
        try:
            await asyncio.wait({opening, download}, return_when=asyncio.FIRST_COMPLETED)
            if not opening.done():
                await asyncio.wait({opening}, timeout=_AFTER_DOWNLOAD_SECONDS)
            return await opening if opening.done() else None
        finally:
            download.cancel()
            opening.cancel()

    async def _wait(self, wait_for: str | Callable[[Tab], Awaitable[Any]]) -> None:
        from playwright.async_api import Error
        from playwright.async_api import TimeoutError as WaitTimeout

        page = self._live.page
        milliseconds = self._left_seconds() * 1000
        try:
            if callable(wait_for):
                await wait_for(self)
            elif wait_for in LOAD_STATES:
                state: Any = wait_for
                await page.wait_for_load_state(state, timeout=milliseconds)
            else:
                await page.wait_for_selector(wait_for, state="attached", timeout=milliseconds)
        except WaitTimeout:
            self._raise_error()
            what = "the function of wait_for" if callable(wait_for) else repr(wait_for)
            raise Transient(f"{quoted(page.url)}: waited for {what} in vain") from None
        except Error as error:
            self._raise_error()
            raise Transient(f"{quoted(page.url)}: {_first_line(error)}") from error

    def _left_seconds(self) -> float:
        """How long a wait may take, so that it says what it waited for before the attempt times out."""
        deadline = self._context.deadline
        ends_at = None if deadline is None else deadline.when()
        if ends_at is None:
            return 0.0
        left = ends_at - asyncio.get_running_loop().time()
        return max(0.1, left - min(0.5, left / 10))

    async def _render(
        self,
        document: Document | None,
        limit: int,
        *,
        truncate: bool,
        started: float,
        response: Response | None = None,
        navigation: Navigation | None = None,
    ) -> Page:
        headers = CIMultiDict({} if document is None else document.headers)
        media = headers.get("Content-Type", "").partition(";")[0].strip().lower()
        url = self._live.page.url
        is_shown = response is not None or self._live.downloaded.is_set()
        if navigation is not None and (not is_shown or headers.get("Content-Length") == "0"):
            url, body = navigation.chain.url, b""
        elif media not in _HTML and response is not None:
            body = await self._raw_body(response)
        else:
            url, media, size, text = await self._evaluate(limit)
            if size > limit and not truncate:
                raise too_large_error(url, limit)
            body = text.encode("utf-8", "replace")
            headers["Content-Type"] = f"{media}; charset=utf-8"
        if len(body) > limit:
            if not truncate:
                raise too_large_error(url, limit)
            body = body[:limit]
        headers.popall("Content-Encoding", None)
        headers.popall("Content-Length", None)
        history: tuple[str, ...] = ()
        requested = None
        if navigation is not None:
            history, requested = tuple(navigation.history), navigation.requested_url
            if not history and url.partition("#")[0] == navigation.first_url:
                url = requested
        page = Page(
            url,
            requested_url=requested,
            method="GET" if navigation is None else navigation.method,
            status=200 if document is None else document.status,
            headers=headers,
            body=body,
            history=history,
            seconds=perf_counter() - started,
        )
        memory = reservation()
        if memory is not None:
            await memory.reserve(len(body), page.content_type)
            page._memory = memory
        page.calls = await self._finished_calls()
        page._link_source = self._link_source
        return page

    async def _raw_body(self, response: Response) -> bytes:
        from playwright.async_api import Error

        try:
            return await response.body()
        except Error as error:
            self._raise_error()
            raise Transient(f"{quoted(response.url)}: the body is not complete: {_first_line(error)}") from error

    async def _evaluate(self, limit: int) -> tuple[str, str, int, str]:
        """URL, media type, size and text of the page."""
        from playwright.async_api import Error

        for _ in range(_RENDER_TRIES):
            try:
                result: tuple[str, str, int, str] = await self._live.evaluate(_RENDER % limit)
            except Error as error:
                self._raise_error()
                problem = error
                # The page leads on: its next document is rendered instead.
                with suppress(Error):
                    await self._live.page.wait_for_load_state("domcontentloaded", timeout=5_000)
            else:
                return result
        raise Transient(f"{quoted(self._live.page.url)}: the page cannot be read: {_first_line(problem)}") from problem

    def _raise_error(self) -> None:
        """Raise what has refused a request of the page, or has ended it."""
        if self._live.crash is not None:
            raise self._live.crash
        if self._requests.error is not None:
            raise self._requests.error

    def cause(self) -> BaseException | None:
        """Why Playwright has failed in the author's code: a refused request, or the way to the site; None: neither."""
        if self._requests.error is not None:
            return self._requests.error
        failure = None if self._requests.asked is None else self._live.way_failure(*self._requests.asked)
        self.way_failure = failure if isinstance(failure, ExitFailed) else None
        return failure

    def _ended(self, error: Exception, navigation: Navigation) -> AttemptEnded:
        """The outcome of an attempt whose page could not be opened."""
        url = navigation.chain.url
        host = host_or_none(url) or quoted(url)
        failure = self._live.way_failure(url, navigation.started)
        if failure is not None:
            return failure
        cause = _net_error(error)
        if cause.startswith(("ERR_PROXY", "ERR_TUNNEL", "ERR_SOCKS")):
            return ExitFailed(f"{host}: the proxy failed: {cause}")
        if cause.startswith("ERR_CERT"):
            return Transient(f"{host}: the certificate could not be verified: {cause}")
        text = _CAUSES.get(cause, f"the page could not be opened: {cause or _first_line(error)}")
        return Transient(f"{host}: {text}")

    # --- calls of the page

    def on_call(self) -> None:
        """The page is about to send its first request by a script: have responses reported from now on."""
        self._live.page.on("response", self._on_response)
        self._reads_calls = True

    def stop_calls(self) -> None:
        """Have no more responses reported."""
        if self._reads_calls:
            self._live.page.remove_listener("response", self._on_response)
        for task in self._pending_calls:
            task.cancel()

    def _on_response(self, response: Response) -> None:
        if response.request.resource_type not in ("xhr", "fetch") or len(self._calls) >= MAX_CALLS:
            return
        media = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if media != "application/json" and not media.endswith("+json"):
            return
        task = asyncio.ensure_future(self._read_call(response))
        self._pending_calls.add(task)
        task.add_done_callback(self._pending_calls.discard)

    async def _read_call(self, response: Response) -> None:
        with suppress(Exception):  # the page has left, or the answer never ends
            length = response.headers.get("content-length", "0")
            if length.isdigit() and int(length) > MAX_CALL_BYTES:
                return
            body = await response.body()
            if len(body) > MAX_CALL_BYTES or self._call_bytes + len(body) > MAX_CALLS_BYTES:
                return
            self._call_bytes += len(body)
            if len(self._calls) < MAX_CALLS:
                method, status = response.request.method, response.status
                self._calls.append(PageCall(url=response.url, method=method, status=status, body=body))

    async def _finished_calls(self) -> tuple[PageCall, ...]:
        if self._pending_calls:
            await asyncio.wait(set(self._pending_calls), timeout=_CALL_SECONDS)
        return tuple(self._calls)

    # --- downloads

    async def _headers_for(self, url: str) -> Mapping[str, str]:
        """What a download looks like to the site: the cookies and the agent of this browser."""
        page = self._live.page
        headers = {"User-Agent": self._live.user_agent} if self._live.user_agent else {}
        cookies = await page.context.cookies(url)
        if cookies:
            headers["Cookie"] = "; ".join(f"{each.get('name')}={each.get('value')}" for each in cookies)
        if page.url.startswith("http"):
            headers["Referer"] = page.url
        return headers

    def on_download(self, download: Any) -> bool:
        """Take a download that `save` waits for. False: nobody asked for it."""
        waiting, self._waiting_download = self._waiting_download, None
        if waiting is None or waiting.done():
            return False
        waiting.set_result(download)
        return True

    @asynccontextmanager
    async def _download_of(self, start: Callable[[], Awaitable[Any]]) -> AsyncIterator[tuple[str, str, Path]]:
        """The file that a click starts: its URL, its name and where the browser has put it."""
        from playwright.async_api import Error

        self._waiting_download = waiting = asyncio.get_running_loop().create_future()
        download = None
        try:
            await start()
            async with asyncio.timeout(_DOWNLOAD_SECONDS):
                download = await waiting
            path = await download.path()
            # What a script has made has no URL of its own.
            url = download.url if download.url.startswith("http") else self._live.page.url
            yield url, download.suggested_filename, Path(path)
        except TimeoutError:
            if download is not None or waiting.done():
                raise
            raise Transient(f"{quoted(self._live.page.url)}: no download began in {_DOWNLOAD_SECONDS:g} s") from None
        except Error as error:
            self._raise_error()
            raise Transient(f"{quoted(self._live.page.url)}: the download failed: {_first_line(error)}") from error
        finally:
            self._waiting_download = None
            if download is not None:
                with suppress(Error):
                    await download.delete()


class TabFetcher:
    """A Fetcher whose pages are opened in one tab; what is streamed goes out by `http`."""

    def __init__(self, tab: Tab, http: Fetcher) -> None:
        self._tab = tab
        self._http = http

    async def fetch(
        self,
        request: Request,
        *,
        gate: RequestGate | None = None,
        jar: str | None = None,
        max_body: int | None = None,
        identity: Identity | None = None,
    ) -> Page:
        """The tab has its cookies and its identity already."""
        return await self._tab.fetch(request, gate=gate, max_body=max_body)

    def stream(
        self,
        request: Request,
        *,
        gate: RequestGate | None = None,
        jar: str | None = None,
        identity: Identity | None = None,
    ) -> AbstractAsyncContextManager[ResponseStream]:
        return self._http.stream(request, gate=gate, jar=jar, identity=identity)

    async def close(self) -> None:
        """The tab is closed when its attempt ends."""


class _AsIdentity:
    """Streams that go out as an identity."""

    def __init__(self, http: Fetcher, identity: Identity | None) -> None:
        self._http = http
        self._identity = identity
        self.fetch = http.fetch

    def stream(
        self, request: Request, *, gate: RequestGate | None = None, jar: str | None = None, identity: Any = None
    ) -> AbstractAsyncContextManager[ResponseStream]:
        return self._http.stream(request, gate=gate, jar=jar, identity=self._identity)

    async def close(self) -> None:
        """The fetcher belongs to the worker."""


class _BytesSource:
    """A fetcher that answers with bytes of this process, so that they are stored as downloads are."""

    def __init__(self, url: str, body: bytes, headers: Mapping[str, str]) -> None:
        self.url = url
        self.status = 200
        self.headers: Mapping[str, str] = CIMultiDict(headers)
        self.content_length: int | None = len(body)
        self._body = body

    async def fetch(self, request: Request, **_: Any) -> Page:
        raise NotImplementedError("only streams are asked for")

    @asynccontextmanager
    async def stream(self, request: Request, **_: Any) -> AsyncIterator[ResponseStream]:
        yield self

    async def read(self) -> bytes:
        body, self._body = self._body, b""
        return body

    async def close(self) -> None:
        """There is nothing to close."""


class _FileSource(_BytesSource):
    """The same with the bytes of a file."""

    def __init__(self, url: str, path: Path, headers: Mapping[str, str]) -> None:
        super().__init__(url, b"", headers)
        self._file = path.open("rb")
        self.content_length = path.stat().st_size

    async def read(self) -> bytes:
        block = await asyncio.to_thread(self._file.read, 1 << 20)
        if not block:
            self._file.close()
        return block


def _net_error(error: Exception) -> str:
    found = _NET_ERROR.search(str(error))
    return found[1] if found else ""


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:200] if lines else type(error).__name__
