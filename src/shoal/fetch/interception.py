"""The requests of one tab of a browser: each is held until it may be sent, or is refused.

A navigation (of the page, of a frame, by a redirect, by a click) passes the gate as a plain request does, robots.txt
included. What a page loads from its own host belongs to the visit. What it loads from another host passes the lane of
that host if it has one. Everything else of the browser, such as pop-ups and background requests, is refused.
"""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING, Any

import msgspec
from multidict import CIMultiDict

from shoal.errors import Permanent, Throttled
from shoal.fetch.classify import classify_page
from shoal.fetch.page import Page, Request
from shoal.fetch.redirects import REDIRECTS, RedirectChain
from shoal.model.url_key import host_or_none, quoted

if TYPE_CHECKING:
    from shoal.fetch.page import Identity, PageGate, RequestGate

MAX_REDIRECTS = 10
# Without these a page is not complete, so a host that asks to wait ends the attempt; others are left out.
_ESSENTIAL = frozenset({"Document", "Stylesheet", "Script", "XHR", "Fetch"})
_CALLS = frozenset({"XHR", "Fetch"})
# Guesses of the browser about the next page.
_UNWANTED = frozenset({"Prefetch"})
_WEB = ("http://", "https://")
_LOCAL = ("data:", "blob:", "about:")

Event = Mapping[str, Any]
Send = Callable[[str, dict[str, Any]], Coroutine[Any, Any, Any]]


class Document(msgspec.Struct, frozen=True):
    """The response that a main frame shows. `url`: as the browser asked for it."""

    url: str
    status: int
    headers: Mapping[str, str]


class Navigation:
    """One fetch: a navigation of the main frame, with redirects of the site and of the page itself."""

    def __init__(self, request: Request, gate: RequestGate | None) -> None:
        self.requested_url = request.url
        self.chain = RedirectChain(request)
        self.gate = gate
        self.first_url = ""
        self.network_id = ""
        self.history: list[str] = []
        self.document: Document | None = None
        self.started = perf_counter()
        self._hop = -1
        self._is_open = False

    @property
    def method(self) -> str:
        return self.chain.method

    def is_redirect_of(self, event: Event) -> bool:
        return bool(self.network_id) and event.get("networkId") == self.network_id

    async def admit(self, url: str) -> int:
        """Pass the gate with the next request. Returns its hop."""
        self.done()
        self._hop += 1
        if self.gate is not None:
            await self.gate.before_request(url, self._hop)
            self._is_open = True
        return self._hop

    def done(self) -> None:
        """The response of the last request has been read, or there will be none."""
        if self._is_open and self.gate is not None:
            self._is_open = False
            self.gate.request_done(self._hop)


class PageRequests:
    """Decides about the requests of one tab while an attempt uses it.

    `send` talks to the browser. `block`:
    types of requests that are refused. `on_call` is told about the first request of a script. `error`: what refused a
    request that the page needs. `asked`: the last document of the main frame, and when it was asked for.
    """

    def __init__(
        self,
        send: Send,
        main_frame: str,
        *,
        gate: PageGate | None,
        identity: Identity | None,
        block: frozenset[str],
        on_call: Callable[[], None],
    ) -> None:
        self._send = send
        self._main_frame = main_frame
        self._gate = gate
        self._identity = identity
        self._block = block
        self._on_call = on_call
        self._has_calls = False
        self._is_closed = False
        self._tasks: set[asyncio.Task[None]] = set()
        # Gates of requests that have been sent: of documents by frame, of others by the id of their pause.
        self._sent: dict[str, RequestGate] = {}
        self._visited_hosts: set[str | None] = set()
        self._is_gate_used = False
        self.navigation: Navigation | None = None
        self.document: Document | None = None
        self.error: BaseException | None = None
        self.asked: tuple[str, float] | None = None

    def begin(self, request: Request, gate: RequestGate | None) -> Navigation:
        """The next navigation of the main frame is this request."""
        self.error = None
        self._is_gate_used = True
        self.navigation = navigation = Navigation(request, gate)
        return navigation

    def end(self) -> None:
        """The fetch is over; later navigations are those of the page and of the author's clicks."""
        if self.navigation is not None:
            self.navigation.done()
        self.navigation = None

    async def close(self) -> None:
        """Refuse everything from now on, and give back what the gates have."""
        self._is_closed = True
        self.end()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for gate in self._sent.values():
            gate.request_done(0)
        self._sent.clear()

    def on_paused(self, event: Event) -> None:
        """The browser holds a request, or its response, until it is told what to do."""
        if self._is_closed:
            self._spawn(self._refuse(event))
        elif "responseStatusCode" in event or "responseErrorReason" in event:
            self._spawn(self._decide(event, self._on_response))
        elif event["resourceType"] == "Document":
            self._spawn(self._decide(event, self._admit_document))
        else:
            self._on_resource(event)

    def on_frame_stopped(self, frame: str) -> None:
        """A frame has loaded its document, or has given up."""
        gate = self._sent.pop(frame, None)
        if gate is not None:
            gate.request_done(0)

    def _on_resource(self, event: Event) -> None:
        kind, url = event["resourceType"], event["request"]["url"]
        if kind.lower() in self._block or kind in _UNWANTED or not url.startswith((*_WEB, *_LOCAL)):
            self._spawn(self._refuse(event))
            return
        if kind in _CALLS and not self._has_calls:
            self._has_calls = True
            self._on_call()
        if self._gate is None or host_or_none(url) in self._visited_hosts:
            self._spawn(self._pass(event))
        else:
            self._spawn(self._decide(event, self._admit_resource))

    async def _decide(self, event: Event, decide: Callable[[Event], Coroutine[Any, Any, None]]) -> None:
        try:
            await decide(event)
        except asyncio.CancelledError:
            if not self._is_closed:
                raise
        except BaseException as error:
            is_main = event["frameId"] == self._main_frame
            if event["resourceType"] in _ESSENTIAL and (is_main or event["resourceType"] != "Document"):
                self.error = self.error or error
            await self._refuse(event)

    async def _admit_document(self, event: Event) -> None:
        url, frame = event["request"]["url"], event["frameId"]
        if not url.startswith(_WEB):
            raise Permanent(f"{quoted(url)} is not opened: only http and https are")
        if frame == self._main_frame:
            self.asked = url, perf_counter()
        navigation = self.navigation if frame == self._main_frame else None
        if navigation is None:
            await self._admit_other_document(event, url, frame)
            return
        chain = navigation.chain
        if navigation.is_redirect_of(event):
            url = chain.url
        elif navigation.network_id:
            # A script or a <meta> of the page leads on.
            navigation.history.append(navigation.document.url if navigation.document else navigation.chain.url)
            if len(navigation.history) > MAX_REDIRECTS:
                raise Permanent(f"{quoted(chain.url)} leads on more than {MAX_REDIRECTS} times")
            navigation.network_id = event["networkId"]
            navigation.chain = chain = RedirectChain(Request(url=url))
            if navigation.gate is not None:
                await navigation.gate.on_redirect(url, "GET")
        else:
            navigation.network_id, navigation.first_url, url = event["networkId"], url, chain.url
        hop = await navigation.admit(url)
        changes = await self._own_headers(url, hop)
        headers = CIMultiDict(chain.headers)
        headers.update(changes)
        override: dict[str, Any] = {}
        if headers:
            override["headers"] = _merged_headers(event["request"]["headers"], headers)
        if chain.method != event["request"]["method"] or chain.body is not None:
            override["method"] = chain.method
            override["postData"] = b64encode(chain.body or b"").decode()
        await self._send_held(event, navigation.gate, hop, override)
        self._visited_hosts.add(host_or_none(url))

    async def _admit_other_document(self, event: Event, url: str, frame: str) -> None:
        """A navigation that a click or a script causes, or a frame of the page."""
        self.on_frame_stopped(frame)
        gate: RequestGate | None = self._gate
        if gate is not None and self._gate is not None and (self._is_gate_used or frame != self._main_frame):
            gate = await self._gate.for_page_request(url, navigation=True)
        self._is_gate_used = True
        if gate is not None:
            await gate.before_request(url, 0)
        with self._admitted(frame, gate):
            headers = await self._own_headers(url, 0) if frame == self._main_frame else {}
            override = {"headers": _merged_headers(event["request"]["headers"], headers)} if headers else {}
            await self._send_held(event, gate, 0, override)
        self._visited_hosts.add(host_or_none(url))

    async def _admit_resource(self, event: Event) -> None:
        assert self._gate is not None
        url = event["request"]["url"]
        gate = await self._gate.for_page_request(url, navigation=False)
        if gate is None:
            await self._pass(event)
            return
        await gate.before_request(url, 0)
        with self._admitted(event["requestId"], gate):
            await self._send_held(event, gate, 0, {})

    @contextmanager
    def _admitted(self, key: str, gate: RequestGate | None) -> Iterator[None]:
        """For the sending of a request that its gate has admitted. One that is not sent has no response to wait for."""
        if gate is None:
            yield
            return
        self._sent[key] = gate
        try:
            yield
        except BaseException:
            if self._sent.get(key) is gate:
                del self._sent[key]
                gate.request_done(0)
            raise

    async def _own_headers(self, url: str, hop: int) -> Mapping[str, str]:
        return {} if self._identity is None else await self._identity.before_request(url, hop)

    async def _send_held(self, event: Event, gate: RequestGate | None, hop: int, override: dict[str, Any]) -> None:
        if gate is not None:
            await gate.before_send(hop)
        # The response is held as well: its status and headers are not to be had otherwise before the page has them.
        order = {"requestId": event["requestId"], "interceptResponse": True, **override}
        await self._send("Fetch.continueRequest", order)
        if gate is not None:
            gate.after_send(hop)

    async def _on_response(self, event: Event) -> None:
        url, frame, is_main = event["request"]["url"], event["frameId"], event["frameId"] == self._main_frame
        status = event.get("responseStatusCode", 0)
        headers = CIMultiDict((each["name"], each["value"]) for each in event.get("responseHeaders", ()))
        if event["resourceType"] != "Document":
            gate = self._sent.pop(event["requestId"], None)
            if gate is not None:
                # Its body is still on the way; the browser tells nobody when it is there.
                gate.request_done(0)
            await self._on_throttled(url, status, headers)
            await self._pass(event)
            return
        location = headers.get("Location") if status in REDIRECTS else None
        if is_main and status and self._identity is not None:
            self._identity.on_response(url, status, headers)
        navigation = self.navigation if is_main else None
        if location is not None:
            if navigation is not None:
                await self._follow_redirect(navigation, status, location, has_cookies="Set-Cookie" in headers)
            else:
                self.on_frame_stopped(frame)
        elif is_main and status:
            self.document = Document(url, status, headers)
            if navigation is not None:
                navigation.document = self.document
        if navigation is None:
            await self._on_throttled(url, status, headers)
        await self._pass(event)

    async def _follow_redirect(self, navigation: Navigation, status: int, location: str, *, has_cookies: bool) -> None:
        navigation.done()
        chain = navigation.chain
        navigation.history.append(chain.url)
        chain.redirect(status, location, limit=MAX_REDIRECTS, new_cookies=has_cookies)
        if navigation.gate is not None:
            await navigation.gate.on_redirect(chain.url, chain.method)

    async def _on_throttled(self, url: str, status: int, headers: Mapping[str, str]) -> None:
        """A part of the page asks to wait: its host is closed for all workers."""
        if status in (429, 503) and self._gate is not None:
            ended = classify_page(Page(url, status=status, headers=headers, body=b""))
            if isinstance(ended, Throttled):
                await self._gate.on_throttled(ended)

    async def _pass(self, event: Event) -> None:
        await self._send("Fetch.continueRequest", {"requestId": event["requestId"]})

    async def _refuse(self, event: Event) -> None:
        reason = "BlockedByClient"
        await self._send("Fetch.failRequest", {"requestId": event["requestId"], "errorReason": reason})

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _merged_headers(sent: Mapping[str, str], own: Mapping[str, str]) -> list[dict[str, str]]:
    merged = CIMultiDict(sent)
    for name, value in own.items():
        merged[name] = value
    return [{"name": name, "value": value} for name, value in merged.items()]
