"""HTTP over aiohttp: one connection pool, and redirects followed here so that every request passes the gate. Network
errors become one sentence with the site and the cause.
"""

from __future__ import annotations

import asyncio
import errno
import os
import select
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import aiohttp
from aiohttp import hdrs
from multidict import CIMultiDict

from shoal.errors import AttemptEnded, ExitFailed, Permanent, Transient
from shoal.fetch import urls
from shoal.fetch.body import ACCEPT_ENCODING, GZIP_MAGIC, read_body
from shoal.fetch.memory import reservation
from shoal.fetch.page import Page
from shoal.fetch.proxy import (
    Evidence,
    ProxyConnector,
    RequestRoute,
    RequestRoutes,
    UnreachableSite,
    basic_credentials,
    proxy_name,
)
from shoal.fetch.redirects import REDIRECTS, CookieJars, RedirectChain
from shoal.fetch.urls import PrivateAddress, public_socket
from shoal.model.url_key import quoted

# What aiohttp and the network may raise during a request.
NETWORK_ERRORS = (aiohttp.ClientError, OSError, TimeoutError, ValueError)

if TYPE_CHECKING:
    from aiohttp.client_reqrep import ConnectionKey
    from aiohttp.connector import Connection

    from shoal.fetch.environment import EnvironmentProxies
    from shoal.fetch.page import Identity, Request, RequestGate, ResponseStream

    _Pollers = WeakKeyDictionary[asyncio.Protocol, select.poll]

_MAX_HEADER_BYTES = 65_536
_DNS_SECONDS = 60
# A redirect's body is read to its end up to this size, so that its connection can be used again.
_SMALL_BODY = 65_536
# How much of a body aiohttp reads ahead; twice as much at most.
_BUFFER = 64 << 10
_STREAM_BUFFER = 512 << 10
# Safe to send a second time.
_REPEATABLE = frozenset({"GET", "HEAD"})


class SendContext:
    """Shared by one request and its `_ObservedRequest`; `reused`: its connection had served another request before."""

    __slots__ = ("gate", "hop", "pollers", "reused", "route")

    def __init__(self, gate: RequestGate | None, hop: int, pollers: _Pollers, route: RequestRoute | None) -> None:
        self.gate = gate
        self.hop = hop
        self.pollers = pollers
        self.route = route
        self.reused = False


send_context: ContextVar[SendContext] = ContextVar("context")


class FailedTransfer(aiohttp.ClientError):
    """An error of another client than aiohttp; its text is the cause, without the site."""


class _StaleConnection(aiohttp.ClientError):
    """The pooled connection cannot be used; nothing was sent on it."""


class _ObservedRequest(aiohttp.ClientRequest):
    """Calls the gate around sending. aiohttp's tracing costs more and fires before the bytes are written."""

    async def send(self, conn: Connection) -> aiohttp.ClientResponse:
        context = send_context.get()
        protocol = conn.protocol
        if protocol is not None and conn.transport is not None:
            poller = context.pollers.get(protocol)
            context.reused = poller is not None
            if poller is None:
                context.pollers[protocol] = _make_poller(conn.transport)
            elif protocol.should_close or poller.poll(0):
                # Unexpected input: the end of the connection, or bytes behind the last response, which would be
                # parsed as the response to this request.
                raise _StaleConnection
        if context.gate is not None:
            await context.gate.before_send(context.hop)
            if protocol is not None and (conn.transport is None or protocol.should_close):
                raise _StaleConnection  # it was closed during the wait
        response = await super().send(conn)
        if context.gate is not None:
            # uvloop passes written bytes to the kernel at the end of this loop iteration; this runs after it.
            self.loop.call_soon(context.gate.after_send, context.hop)
        return response


class _RoutedRequest(_ObservedRequest):
    """A request of an identity. Its connection belongs to its route."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        route = send_context.get().route
        assert route is not None
        self.route = route
        super().__init__(*arguments, **options)

    @property
    def connection_key(self) -> ConnectionKey:
        key = super().connection_key
        return tuple.__new__(type(key), (*key[:6], self.route, key.server_hostname))  # in place of proxy_headers_hash

    async def send(self, conn: Connection) -> aiohttp.ClientResponse:
        if self.route.sends_absolute_urls(tls=self.is_ssl()):
            self.proxy = (
                self.url
            )  # aiohttp then writes the whole URL into the request line; it uses it for nothing else
        return await super().send(conn)


def _make_poller(transport: asyncio.Transport) -> select.poll:
    """A poller for input on the connection. Made once per connection, because finding the socket takes longer."""
    poller = select.poll()
    poller.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
    return poller


class HttpStream:
    """The body of a response, piece by piece; at most two of aiohttp's buffers are in memory."""

    def __init__(
        self,
        url: str,
        response: aiohttp.ClientResponse,
        failure: Callable[[BaseException], AttemptEnded],
        delivered: Callable[[], None],
    ) -> None:
        self.url = url
        self.status = response.status
        self.headers: Mapping[str, str] = response.headers
        self._response = response
        self._failure = failure
        self._delivered = delivered

    @property
    def content_length(self) -> int | None:
        return self._response.content_length

    async def read(self) -> bytes:
        try:
            data = await self._response.content.readany()
        except NETWORK_ERRORS as error:
            raise self._failure(error) from error
        if not data:
            self._delivered()
        return data


class HttpFetcher:
    """A Fetcher for http and https. Created anywhere, used inside one event loop.

    `idle_timeout` is the longest time without data, before the response or within it; the caller limits the total
    time. `deny_private` refuses hosts whose address is not public, after redirects too; of a request through a proxy,
    which resolves the name, only an address in the URL. `environment`: the proxies of requests whose identity has none.
    """

    def __init__(
        self,
        *,
        connections: int,
        user_agent: str,
        max_body: int = 32 << 20,
        connect_timeout: float = 15.0,
        idle_timeout: float = 30.0,
        max_redirects: int = 10,
        deny_private: bool = False,
        environment: EnvironmentProxies | None = None,
    ) -> None:
        self._connections = connections
        self._user_agent = user_agent
        self._max_body = max_body
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=connect_timeout, sock_read=idle_timeout)
        self._max_redirects = max_redirects
        self._deny_private = deny_private
        self._environment = environment
        self._session: aiohttp.ClientSession | None = None
        self._routed_session: aiohttp.ClientSession | None = None
        self.jars = CookieJars()
        self._pollers: _Pollers = WeakKeyDictionary()
        self._known_routes = RequestRoutes()
        self._evidence = Evidence()

    async def fetch(
        self,
        request: Request,
        *,
        gate: RequestGate | None = None,
        jar: str | None = None,
        max_body: int | None = None,
        identity: Identity | None = None,
    ) -> Page:
        cap = self._max_body if max_body is None else max_body
        chain = RedirectChain(request)
        memory = reservation()
        seconds = 0.0
        while True:
            started, response, location, new_cookies, route = await self._next_response(chain, gate, jar, identity)
            try:
                if location is None:
                    body = await read_body(response, cap, truncate=request.truncate, memory=memory)
                    if route is not None and route.proxy is not None:
                        self._evidence.record_delivery(route, _host_of(chain.url))
                    break
                await _drain(response)
            except NETWORK_ERRORS as error:
                response.close()
                raise self._failure(error, chain.url, route, started) from error
            except BaseException:
                response.close()
                raise
            finally:
                if gate is not None:
                    gate.request_done(chain.hop)
            seconds += perf_counter() - started
            chain.redirect(response.status, location, limit=self._max_redirects, new_cookies=new_cookies)
            if gate is not None:
                await gate.on_redirect(chain.url, chain.method)
        page = Page(
            chain.url,
            requested_url=request.url,
            method=chain.method,
            status=response.status,
            headers=response.headers,
            body=body,
            history=tuple(chain.history),
            seconds=seconds + perf_counter() - started,
        )
        if memory is not None:
            if body.startswith(GZIP_MAGIC):
                await memory.reserve(len(body), page.content_type, beginning=GZIP_MAGIC)
            page._memory = memory
        return page

    @asynccontextmanager
    async def stream(
        self,
        request: Request,
        *,
        gate: RequestGate | None = None,
        jar: str | None = None,
        identity: Identity | None = None,
    ) -> AsyncIterator[ResponseStream]:
        chain = RedirectChain(request)
        while True:
            started, response, location, new_cookies, route = await self._next_response(
                chain, gate, jar, identity, _STREAM_BUFFER
            )
            try:
                if location is None:
                    yield HttpStream(
                        chain.url,
                        response,
                        partial(self._failure, url=chain.url, route=route, started=started),
                        partial(self._evidence.record_delivery, route, _host_of(chain.url)),
                    )
                    return
                try:
                    await _drain(response)
                except NETWORK_ERRORS as error:
                    raise self._failure(error, chain.url, route, started) from error
            finally:
                response.close()  # a connection whose body was read to its end is in the pool already
                if gate is not None:
                    gate.request_done(chain.hop)
            chain.redirect(response.status, location, limit=self._max_redirects, new_cookies=new_cookies)

    async def close(self) -> None:
        for session in (self._session, self._routed_session):
            if session is not None:
                await session.close()

    async def _next_response(
        self,
        chain: RedirectChain,
        gate: RequestGate | None,
        jar: str | None,
        identity: Identity | None,
        buffer: int = _BUFFER,
    ) -> tuple[float, aiohttp.ClientResponse, str | None, bool, RequestRoute | None]:
        """When the request was sent, the response without its body, where it redirects to, if it set cookies, and the
        way it went; None: directly.
        """
        cookies = "" if jar is None else self.jars.header(jar, chain.target)
        route = None if identity is None and self._environment is None else self._route(chain, identity)
        started, response = await self._request(chain, gate, cookies, buffer, identity, route)
        new_cookies = jar is not None and hdrs.SET_COOKIE in response.headers
        if jar is not None and new_cookies:
            self.jars.store(jar, chain.target, response.headers.getall(hdrs.SET_COOKIE))
        location = response.headers.get(hdrs.LOCATION) if response.status in REDIRECTS else None
        return started, response, location, new_cookies, route

    def _route(self, chain: RedirectChain, identity: Identity | None) -> RequestRoute | None:
        """The way of a request; None: directly, and as nobody. Raises Permanent for what `deny_private` refuses."""
        proxy = None if identity is None else identity.proxy
        if proxy is None and self._environment is not None:
            proxy = self._environment.proxy(chain.target)
        if proxy is not None and self._deny_private and not urls.may_be_public(chain.url):
            raise Permanent(f"{_host_of(chain.url)} has an address that is not public, which deny_private refuses")
        if proxy is None and identity is None:
            return None
        return self._known_routes.get("" if identity is None else identity.key, proxy)

    async def _request(
        self,
        chain: RedirectChain,
        gate: RequestGate | None,
        cookies: str,
        buffer: int,
        identity: Identity | None,
        route: RequestRoute | None,
    ) -> tuple[float, aiohttp.ClientResponse]:
        """The time at which the request was sent, and the response without its body.

        A pooled connection may close during the write. Then the request is sent once more, on a new connection.
        """
        may_repeat = chain.method in _REPEATABLE
        while True:
            if gate is not None:
                await gate.before_request(chain.url, chain.hop)
            context = SendContext(gate, chain.hop, self._pollers, route)
            send_context.set(context)
            started = perf_counter()
            try:
                if route is None:
                    return started, await self._send(chain, chain.headers, cookies, buffer)
                headers = chain.headers
                if identity is not None:
                    headers = _with_headers(headers, await identity.before_request(chain.url, chain.hop))
                    started = perf_counter()
                return started, await self._send_routed(chain, headers, cookies, buffer, identity, route)
            except BaseException as error:
                if gate is not None:
                    gate.request_done(chain.hop)
                if not isinstance(error, (*NETWORK_ERRORS, UnreachableSite)):
                    raise
                closed_early = isinstance(error, (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError))
                if not (may_repeat and context.reused and closed_early):
                    raise self._failure(error, chain.url, route, started, answered=False) from error
            may_repeat = False
            chain.hop += 1

    async def _send_routed(
        self,
        chain: RedirectChain,
        headers: Mapping[str, str],
        cookies: str,
        buffer: int,
        identity: Identity | None,
        route: RequestRoute,
    ) -> aiohttp.ClientResponse:
        """The response of the site. Raises ExitFailed if the proxy answers instead, for want of credentials."""
        proxy = route.proxy
        asks_proxy = proxy is not None and route.sends_absolute_urls(tls=chain.target.scheme == "https")
        credentials = None
        if proxy is not None and asks_proxy:
            credentials = basic_credentials(proxy)
            if credentials is not None:
                headers = _with_headers(headers, {hdrs.PROXY_AUTHORIZATION: credentials})
        response = await self._send(chain, headers, cookies, buffer)
        if proxy is not None and asks_proxy and _wants_proxy_credentials(response):
            response.close()
            raise ExitFailed(
                f"{proxy_name(proxy)} wants {'other ' if credentials else ''}credentials ({response.status})"
            )
        if identity is not None:
            identity.on_response(chain.url, response.status, response.headers)
        return response

    async def _send(
        self, chain: RedirectChain, headers: Mapping[str, str], cookies: str, buffer: int
    ) -> aiohttp.ClientResponse:
        if cookies:
            own = headers.get(hdrs.COOKIE)
            headers = {**headers, hdrs.COOKIE: f"{own}; {cookies}" if own else cookies}
        if send_context.get().route is None:
            session = self._session or self._open()
        else:
            session = self._routed_session or self._open_routed()
        while True:
            try:
                return await session.request(
                    chain.method,
                    chain.target,
                    headers=headers,
                    data=chain.body,
                    allow_redirects=False,
                    read_bufsize=buffer,
                )
            except _StaleConnection:  # it has left the pool, so this ends with a usable or a new connection
                continue

    def _failure(
        self, error: BaseException, url: str, route: RequestRoute | None, started: float, *, answered: bool = True
    ) -> AttemptEnded:
        """How an error of a request ends the attempt. `answered`: the response had begun."""
        ended = error if isinstance(error, AttemptEnded) else to_attempt_error(error, url)
        if route is None:
            return ended
        owes_answer = not answered and route.sends_absolute_urls(tls=url.startswith("https:"))
        return self._evidence.judge(ended, route, _host_of(url), started, owes_answer=owes_answer)

    def _open(self) -> aiohttp.ClientSession:
        self._session = session = self._make_session(aiohttp.TCPConnector, _ObservedRequest)
        return session

    def _open_routed(self) -> aiohttp.ClientSession:
        self._routed_session = session = self._make_session(ProxyConnector, _RoutedRequest)
        return session

    def _make_session(
        self, connector: type[aiohttp.TCPConnector], request_class: type[_ObservedRequest]
    ) -> aiohttp.ClientSession:
        session = aiohttp.ClientSession(
            connector=connector(
                limit=self._connections,
                ttl_dns_cache=_DNS_SECONDS,
                socket_factory=public_socket if self._deny_private else None,
            ),
            headers={hdrs.USER_AGENT: self._user_agent, hdrs.ACCEPT_ENCODING: ACCEPT_ENCODING},
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=self._timeout,
            auto_decompress=False,
            request_class=request_class,
            max_line_size=_MAX_HEADER_BYTES,
            max_field_size=_MAX_HEADER_BYTES,
        )
        # aiohttp would repeat a request without passing the gate, and on new connections too.
        session._retry_connection = False
        return session


def _wants_proxy_credentials(response: aiohttp.ClientResponse) -> bool:
    """Whether this is an answer of the proxy itself. tinyproxy says 401 to a wrong password, as sites do."""
    if response.status == 401:
        return response.headers.get(hdrs.SERVER, "").startswith("tinyproxy/") and hdrs.VIA not in response.headers
    return response.status == 407


def _with_headers(headers: Mapping[str, str], others: Mapping[str, str]) -> Mapping[str, str]:
    """The headers with others in place of those of the same names."""
    if not others:
        return headers
    merged = CIMultiDict(headers)
    for name, value in others.items():
        merged[name] = value
    return merged


async def _drain(response: aiohttp.ClientResponse) -> None:
    length = response.content_length
    if length is not None and length <= _SMALL_BODY:
        await response.read()
    else:
        response.release()


def to_attempt_error(error: BaseException, url: str) -> AttemptEnded:
    """The outcome of an attempt that a network error stands for."""
    site = _host_of(url)
    if isinstance(error, aiohttp.InvalidURL):
        return Permanent(f"{quoted(url)} is not a URL that can be fetched")
    if isinstance(error, UnicodeError):
        return Permanent(f"{site} is not a valid host name")
    if isinstance(getattr(error, "os_error", error), PrivateAddress):
        return Permanent(f"{site} has an address that is not public, which deny_private refuses")
    # A certificate error is a ValueError too, but not an error of the request.
    if isinstance(error, ValueError) and not isinstance(error, aiohttp.ClientError):
        return Permanent(f"the request to {site} cannot be sent: {_error_text(error)}")
    return Transient(f"{site}: {_cause(error)}")


def _cause(error: BaseException) -> str:
    match error:
        case aiohttp.ClientConnectorCertificateError():
            text = f"the certificate could not be verified: {_certificate_problem(error.certificate_error)}"
        case aiohttp.ClientConnectorDNSError():
            text = f"the host name could not be resolved: {_os_reason(error.os_error)}"
        case aiohttp.ClientConnectorSSLError():
            text = f"the TLS handshake failed: {_os_reason(error.os_error)}"
        case aiohttp.ClientConnectorError():
            text = f"no connection: {_os_reason(error.os_error)}"
        case aiohttp.ConnectionTimeoutError():
            text = "no connection in time"
        case TimeoutError():
            text = "the site stopped answering: no data for too long"
        case aiohttp.ServerDisconnectedError():
            text = "the site closed the connection without an answer"
        case FailedTransfer():
            text = str(error)
        case aiohttp.ClientPayloadError():
            text = "the body is not complete: the connection closed early"
        case aiohttp.ClientResponseError():
            text = f"the response is not valid HTTP: {_first_line(error.message)}"
        case OSError():
            text = f"the connection broke: {_os_reason(error)}"
        case _:
            text = f"the connection broke: {_error_text(error)}"
    return text


def _host_of(url: str) -> str:
    parsed = urls.parse_url(url)
    return parsed.host if parsed is not None and parsed.host else quoted(url)


def _os_reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or _error_text(error)).replace("_", " ").lower()
    # The resolver's error numbers are negative or unknown to strerror, but they have a text.
    if error.errno is not None and error.errno in errno.errorcode:
        return os.strerror(error.errno).lower()
    return (error.strerror or _error_text(error)).lower()


def _certificate_problem(error: Exception) -> str:
    return getattr(error, "verify_message", "") or _error_text(error)


def _first_line(text: str) -> str:
    lines = [line.strip(" :") for line in text.splitlines() if line.strip()]
    return lines[0][:120] if lines else "the response is invalid"


def _error_text(error: BaseException) -> str:
    return _first_line(str(error)) if str(error).strip() else type(error).__name__
