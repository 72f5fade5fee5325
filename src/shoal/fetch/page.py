"""Requests and pages, and the contracts of fetchers and of the gates that their callers pass.

A page is decoded and parsed on first use.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, Protocol

import msgspec
from multidict import CIMultiDict

from shoal.errors import Permanent
from shoal.fetch import urls
from shoal.fetch.link_filter import NON_PAGE_SUFFIXES, LinkFilter
from shoal.model.item import NewItem
from shoal.model.url_key import host_or_none

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    import can_ada
    from parsel import Selector, SelectorList

    from shoal.errors import Throttled
    from shoal.fetch.article import Article
    from shoal.fetch.form import Form
    from shoal.fetch.metadata import Metadata
    from shoal.fetch.tab import Tab
    from shoal.model.egress import ProxyAddress

_HTML_TYPES = frozenset({"", "text/html", "application/xhtml+xml"})


class LinkTarget(Protocol):
    """A stage that links lead to."""

    def item(self, target: str, /) -> NewItem: ...


class LinkSource(Protocol):
    """The item that a page belongs to: its URL and depth, and the items that links become."""

    @property
    def url(self) -> str | None: ...
    @property
    def depth(self) -> int: ...
    def item(self, url: str, to: str | None) -> NewItem:
        """The item for a link, in the stage of that name or in the page's own."""


class PageCall(msgspec.Struct, frozen=True, kw_only=True):
    """A JSON answer that a page in a browser fetched by itself."""

    url: str
    method: str
    status: int
    body: bytes

    def json(self) -> Any:
        """The decoded body. Raises Permanent if it is not JSON."""
        return Page(self.url, status=self.status, headers={}, body=self.body).json()

    def __repr__(self) -> str:
        return f"<PageCall {self.method} {self.status} {self.url} {len(self.body)} bytes>"


class Page:
    """A response with any status.

    `url` is the URL after the redirects in `history`; `requested_url` the one of the request. `headers` ignore case.
    `seconds` is the time of the requests, redirects included. `calls`: JSON that a browser's page fetched by itself.
    """

    __slots__ = (
        "_base",
        "_encoding",
        "_link_source",
        "_media_type",
        "_memory",
        "_selector",
        "_text",
        "body",
        "calls",
        "from_store",
        "headers",
        "history",
        "method",
        "not_modified",
        "requested_url",
        "seconds",
        "status",
        "url",
    )

    def __init__(
        self,
        url: str,
        *,
        status: int,
        headers: Mapping[str, str],
        body: bytes,
        requested_url: str | None = None,
        method: str = "GET",
        history: tuple[str, ...] = (),
        seconds: float = 0.0,
    ) -> None:
        self.url = url
        self.requested_url = url if requested_url is None else requested_url
        self.method = method
        self.status = status
        self.headers = headers
        self.body = body
        self.history = history
        self.seconds = seconds
        self.from_store = False
        self.not_modified = False
        self.calls: tuple[PageCall, ...] = ()
        self._link_source: LinkSource | None = None  # the item that it was fetched for
        self._memory: object = None  # the fetcher's reservation, released with the page
        self._base: can_ada.URL | None = None
        self._encoding: str | None = None
        self._text: str | None = None
        self._selector: Selector | None = None
        self._media_type: str | None = None

    @classmethod
    def of(
        cls, url: str, body: str | bytes = b"", *, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> Page:
        """A page for tests. Text is encoded as UTF-8; without a Content-Type it counts as HTML."""
        content = body.encode() if isinstance(body, str) else body
        return cls(url, status=status, headers=CIMultiDict(headers or {}), body=content)

    def replace(
        self,
        *,
        status: int | None = None,
        headers: Mapping[str, str] | None = None,
        body: str | bytes | None = None,
        url: str | None = None,
    ) -> Page:
        """A copy with other values, for an `after_response` hook. Text is encoded in the page's encoding."""
        if isinstance(body, str):
            body = body.encode(self.encoding, "xmlcharrefreplace" if self.content_type in _HTML_TYPES else "replace")
        page = Page(
            self.url if url is None else url,
            status=self.status if status is None else status,
            headers=self.headers if headers is None else CIMultiDict(headers),
            body=self.body if body is None else body,
            requested_url=self.requested_url,
            method=self.method,
            history=self.history,
            seconds=self.seconds,
        )
        page.from_store, page.not_modified, page._memory = self.from_store, self.not_modified, self._memory
        page._link_source, page.calls = self._link_source, self.calls
        return page

    def __repr__(self) -> str:
        return f"<Page {self.status} {self.url} {len(self.body)} bytes>"

    @property
    def content_type(self) -> str:
        """The media type in lower case, without parameters; empty if the site sent none."""
        if self._media_type is None:
            self._media_type = self.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        return self._media_type

    @property
    def encoding(self) -> str:
        if self._encoding is None:
            self._decode()
        assert self._encoding is not None
        return self._encoding

    @property
    def text(self) -> str:
        if self._text is None:
            self._decode()
        assert self._text is not None
        return self._text

    @property
    def selector(self) -> Selector:
        """The parsed page: HTML, XML or JSON by its media type.

        Raises Permanent for a page whose tree would be too deep, or take too long to build.
        """
        if self._selector is None:
            self._selector = self._build_selector()
        return self._selector

    @property
    def parsed(self) -> bool:
        """Whether its tree has been built."""
        return self._selector is not None

    def check(self) -> None:
        """Raise what a response other than a success means for an item, as Shoal does for the item's own page.

        For pages that were asked for with `check=False`: 404 raises Permanent, 429 Throttled, 503 Transient.
        """
        from shoal.fetch.classify import classify_page

        if (ended := classify_page(self)) is not None:
            raise ended

    def parse(self) -> None:
        """Build the tree now, for example in a thread, so that `css` and `xpath` need not."""
        _ = self.selector

    def css(self, query: str) -> SelectorList[Selector]:
        return self.selector.css(query)

    def xpath(self, query: str) -> SelectorList[Selector]:
        return self.selector.xpath(query)

    def json(self) -> Any:
        """The decoded JSON body. Raises Permanent if it is not JSON."""
        try:
            return msgspec.json.decode(self.body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            pass
        except RecursionError:
            raise Permanent(f"{self.url} nests its JSON too deeply to be read") from None
        try:
            # A byte order mark or another encoding than UTF-8 is not valid JSON, but sites send it.
            return msgspec.json.decode(self.text)
        except (msgspec.DecodeError, UnicodeError) as error:
            raise Permanent(f"{self.url} is not JSON: {error}") from None

    def join(self, href: str) -> str:
        """The absolute URL of a link on this page, as a browser would resolve it.

        A link that no browser could resolve is returned unchanged; enqueuing it is refused as an invalid URL.
        """
        href = href.strip(urls.HTML_WHITESPACE)
        return urls.resolve(self._base or self._find_base(), href) or href

    def links(self) -> list[str]:
        """The targets of <a> and <area> of an HTML page: absolute, without fragments, each once, in order."""
        if self.content_type not in _HTML_TYPES:
            return []
        from shoal.fetch import html_links

        base = self._base or self._find_base()
        found: dict[str, None] = {}
        for tag, written in html_links.links(self.text):
            href = written.strip(urls.HTML_WHITESPACE)
            if tag == "base" or href.startswith("#"):
                continue
            url = urls.resolve(base, href)
            if url is not None and url.startswith(("http://", "https://")):
                found[url.partition("#")[0]] = None
        return list(found)

    def form(self, css: str | None = None, *, name: str | None = None, index: int = 0) -> Form:
        """A form of the page with the values it has: the first, or by a selector of it or of something in it, by its
        name or id, by its position. Raises Permanent when there is none.
        """
        from shoal.fetch.form import find_form

        return find_form(self, css, name, index)

    def follow_links(
        self,
        *,
        to: str | LinkTarget | None = None,
        same_host: bool = True,
        prefix: str | tuple[str, ...] = (),
        allow: str | None = None,
        deny: str | None = None,
        depth: int | None = None,
        css: str | None = None,
        skip: tuple[str, ...] = NON_PAGE_SUFFIXES,
    ) -> list[NewItem]:
        """Items for the links of this page, to be yielded; the filters are those of `Follow`.

        `to`: a stage or its name, by default the stage of the handler. A page that a test made belongs to no item: its
        depth is 0, and its items name no stage unless `to` does.
        """
        prefixes = (prefix,) if isinstance(prefix, str) else tuple(prefix)
        rules = _link_filter(same_host, prefixes, allow, deny, depth, css, tuple(skip))
        source = self._link_source
        url, at_depth = (None, 0) if source is None else (source.url, source.depth)
        found = rules.select(self, url, at_depth)
        if to is not None and not isinstance(to, str):
            return [to.item(url) for url in found]
        if source is not None:
            return [source.item(url, to) for url in found]
        return [NewItem(url=url, stage=to, lane=host_or_none(url)) for url in found]

    def metadata(self) -> Metadata:
        """What the page says about itself: JSON-LD, microdata, OpenGraph, Twitter cards, <meta>, canonical link, title.

        Broken parts are left out. Empty for a page that is not HTML.
        """
        from shoal.fetch.metadata import read_metadata

        return read_metadata(self)

    def article(
        self,
        *,
        comments: bool = False,
        tables: bool = True,
        links: bool = False,
        favor: Literal["precision", "recall"] | None = None,
    ) -> Article:
        """The article of the page: its text without navigation and advertisements, title, author, date.

        It takes tens of milliseconds of processor time, so call it in a plain `def` stage, which runs in a thread.
        Needs `shoal[articles]`. Raises Permanent for a page without an article.
        """
        from shoal.fetch.article import read_article

        return read_article(self, comments=comments, tables=tables, links=links, favor=favor)

    def _build_selector(self) -> Selector:
        from parsel import Selector

        from shoal.fetch import html_links

        kind = _selector_type(self.content_type)
        if kind == "json":
            return Selector(text=self.text, type=kind)
        if html_links.has_overlong_tag(self.text):
            limit = html_links.MAX_ATTRIBUTES
            raise Permanent(f"{self.url} cannot be parsed: an element has more than {limit} attributes")
        selector = Selector(text=self.text, type=kind)
        # The parser stops at its limits and keeps the part before: without this check, records would be incomplete.
        problem = selector.root.getroottree().parser.error_log.last_error
        if problem is not None and problem.type_name == "ERR_RESOURCE_LIMIT":
            reason = problem.message.partition(", use ")[0]
            raise Permanent(f"{self.url} cannot be parsed: {reason[:1].lower()}{reason[1:]}")
        return selector

    def _decode(self) -> None:
        # Imported late: `shoal --help` loads this module.
        from shoal.fetch.body import decode

        media = self.content_type
        markup = media in _HTML_TYPES or _is_xml(media)
        self._encoding, self._text = decode(self.body, self.headers.get("Content-Type", ""), markup=markup)

    def _find_base(self) -> can_ada.URL:
        """The base of relative links: <base href> if there is one, else the page's own URL."""
        base = urls.parse_url(self.url)
        if base is None:
            raise Permanent(f"{self.url} is not an absolute URL, so its links cannot be resolved")
        body = self.body
        if (b"<base" in body or b"<BASE" in body or b"<Base" in body) and self.content_type in _HTML_TYPES:
            from shoal.fetch import html_links

            written = next((link.href for link in html_links.links(self.text) if link.tag == "base"), None)
            if written is not None:
                declared = urls.parse_url(urls.resolve(base, written.strip(urls.HTML_WHITESPACE)) or "")
                if declared is not None and urls.is_http(declared):
                    base = declared
        self._base = base
        return base


@lru_cache(maxsize=256)
def _link_filter(
    same_host: bool,
    prefix: tuple[str, ...],
    allow: str | None,
    deny: str | None,
    depth: int | None,
    css: str | None,
    skip: tuple[str, ...],
) -> LinkFilter:
    """Kept, so that the expressions of a handler are compiled once."""
    return LinkFilter(
        same_host=same_host, prefix=prefix, allow=allow, deny=deny, depth=depth, css=css, skip=skip
    ).checked("follow_links: ")


def _selector_type(media: str) -> str:
    if media == "application/json" or media.endswith("+json"):
        return "json"
    return "xml" if _is_xml(media) else "html"


def _is_xml(media: str) -> bool:
    return media != "application/xhtml+xml" and media.endswith(("/xml", "+xml"))


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One request. `truncate` cuts a body above the size cap instead of refusing it.

    `variant`: tells requests of one URL with different headers apart in the page store. `private`: the response has
    secrets, such as that of a login, and is not kept.
    """

    url: str
    method: str = "GET"
    headers: Mapping[str, str] = {}
    body: bytes | None = None
    truncate: bool = False
    variant: str = ""
    private: bool = False

    def replace(self, **changes: Any) -> Request:
        """A copy with other values: `request.replace(url=...)`."""
        return msgspec.structs.replace(self, **changes)

    def with_headers(self, headers: Mapping[str, str]) -> Request:
        """A copy with these headers in place of its own of the same names, whatever their case."""
        merged = CIMultiDict(self.headers)
        for name, value in headers.items():
            merged[name] = value
        return msgspec.structs.replace(self, headers=merged)


class RequestGate(Protocol):
    """Callbacks with which the caller controls when a request is sent.

    `hop` counts the requests of one fetch: 0 first, one more for each redirect and for the repetition after a pooled
    connection turned out to be closed.
    """

    async def before_request(self, url: str, hop: int) -> None:
        """Called before each request. It may wait, and it may raise AttemptEnded to end the fetch."""

    async def on_redirect(self, url: str, method: str) -> None:
        """Called when a response redirects, before `before_request` for its target. It may raise AttemptEnded."""

    async def before_send(self, hop: int) -> None:
        """Called with an open connection, right before the request is written. It may wait for the exact start time."""

    def after_send(self, hop: int) -> None:
        """Called once per hop, as soon as the request's headers are sent; never if they are not."""

    def request_done(self, hop: int) -> None:
        """Called once per hop that `before_request` admitted: its response has been read, or there will be none."""

    async def on_throttled(self, ended: Throttled) -> None:
        """Called by the reader of a response that requests a wait."""


@contextmanager
def suspended(deadline: asyncio.Timeout | None) -> Iterator[None]:
    """The timeout of an attempt stands still inside: it waits for others than its site and its handler.

    Several requests of an attempt may be inside at once: the first one stops the timeout until it leaves, and one that
    stays longer extends it.
    """
    if deadline is None:
        yield
        return
    now = asyncio.get_running_loop().time
    began, ends_at = now(), deadline.when()
    if ends_at is not None:
        deadline.reschedule(None)
    try:
        yield
    finally:
        ends_at = ends_at or deadline.when()
        if ends_at is not None:
            with suppress(RuntimeError):  # the attempt has ended; a request of its browser page is cancelled behind it
                deadline.reschedule(ends_at + now() - began)


class PageGate(RequestGate, Protocol):
    """The gate of a page that a browser shows, which makes requests of its own, several at once."""

    async def for_page_request(self, url: str, *, navigation: bool) -> RequestGate | None:
        """A gate for one request of the page; None when it needs none.

        `navigation`: it opens a document, by a click or in a frame. Other requests need a gate only if their host has a
        lane of its own.
        """


# Types of requests that a stage may block, by the names that browsers give them.
BLOCKABLE = ("stylesheet", "image", "media", "font", "script", "texttrack", "xhr", "fetch", "eventsource", "ping")


class BrowserOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a stage with `client="browser"` says about its pages; see `StageOptions`."""

    wait_for: str | Callable[[Tab], Awaitable[Any]] = "load"
    block: frozenset[str] = frozenset()
    viewport: tuple[int, int] | None = None
    capture: bool = False


class Identity(Protocol):
    """What the requests of an attempt go out as. Without one, a request goes out directly.

    `key` tells identities apart: connections, cookies and browser profiles belong to one of them. `proxy`: the way to
    every site; None for an identity that has only credentials. A fetcher must never use another way.
    """

    key: str
    proxy: ProxyAddress | None

    async def before_request(self, url: str, hop: int) -> Mapping[str, str]:
        """Headers to add to a request, such as a token. Called for each hop, after the gate has admitted it; it may
        wait, and it may raise AttemptEnded.
        """

    def on_response(self, url: str, status: int, headers: Mapping[str, str]) -> None:
        """Called for each response of a site, redirects too, as soon as its headers are there."""


class ResponseStream(Protocol):
    """A response whose body is read piece by piece. `url` is the URL after redirects."""

    url: str
    status: int
    headers: Mapping[str, str]

    @property
    def content_length(self) -> int | None:
        """The size of the body as it is sent; None if the site does not tell."""

    async def read(self) -> bytes:
        """The next bytes as they were sent, compressed or not; empty at the end. Raises Transient when it breaks."""


class Fetcher(Protocol):
    async def fetch(
        self,
        request: Request,
        *,
        gate: RequestGate | None = None,
        jar: str | None = None,
        max_body: int | None = None,
        identity: Identity | None = None,
    ) -> Page:
        """Get the page, whatever its status. Raises AttemptEnded when there is no complete response, and ExitFailed
        when the identity's proxy is the reason.

        `jar` names the cookies to send and keep; None keeps none. `max_body` replaces the fetcher's own size cap.
        """

    def stream(
        self,
        request: Request,
        *,
        gate: RequestGate | None = None,
        jar: str | None = None,
        identity: Identity | None = None,
    ) -> AbstractAsyncContextManager[ResponseStream]:
        """The response, whatever its status, with a body that is not read yet and of any size. Raises as `fetch`."""

    async def close(self) -> None:
        """Close the connections. The fetcher cannot be used afterwards."""
