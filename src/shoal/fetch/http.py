"""HTTP over aiohttp: one connection pool, redirects followed by hand so that every request passes the gate.

HTTP over aiohttp: one pool of connections, redirects followed by hand so that every request passes the gate.

What went wrong between us and a site, as one sentence that names the site and the cause.
"""

from __future__ import annotations

import asyncio
import errno
import os
import select
import ssl
from contextvars import ContextVar
from time import perf_counter
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import aiohttp
from aiohttp import hdrs

from shoal.errors import AttemptEnded, Permanent, Transient
from shoal.fetch import urls
from shoal.fetch.body import ACCEPT_ENCODING, read_body
from shoal.fetch.memory import GZIP, reservation
from shoal.fetch.page import Page
from shoal.fetch.redirects import REDIRECTS, Jars, Trip
from shoal.fetch.urls import PrivateAddress, public_socket
from shoal.model.url_key import shown

# What aiohttp and the network may raise while a request is under way.
WIRE_ERRORS = (aiohttp.ClientError, OSError, TimeoutError, ValueError)


if TYPE_CHECKING:
    from aiohttp.connector import Connection

    from shoal.fetch.protocols import Gate, Request

    _Watches = WeakKeyDictionary[asyncio.Protocol, select.poll]

_LONGEST_HEADER = 65_536
_DNS_SECONDS = 60
# A redirect's body is read to its end up to this size, so that its connection can be used again.
_SMALL_BODY = 65_536
# Safe to send a second time, because the first did nothing that the second would repeat.
_REPEATABLE = frozenset({"GET", "HEAD"})


class _Departure:
    """What `_ObservedRequest` tells of one request: whether its connection had served another one before."""

    __slots__ = ("gate", "hop", "reused", "watches")

    def __init__(self, gate: Gate | None, hop: int, watches: _Watches) -> None:
        self.gate = gate
        self.hop = hop
        self.watches = watches
        self.reused = False


_departure: ContextVar[_Departure] = ContextVar("departure")


class _Stale(aiohttp.ClientError):
    """The kept connection is no good; nothing was sent on it."""


class _ObservedRequest(aiohttp.ClientRequest):
    """A request that says when it left. aiohttp's tracing costs more and speaks before the bytes are written."""

    async def send(self, conn: Connection) -> aiohttp.ClientResponse:
        departure = _departure.get()
        protocol = conn.protocol
        if protocol is not None and conn.transport is not None:
            watch = departure.watches.get(protocol)
            departure.reused = watch is not None
            if watch is None:
                departure.watches[protocol] = _watch(conn.transport)
            elif protocol.should_close or watch.poll(0):
                # Something came while nobody had asked: the end of the connection, or bytes past the last answer,
                # which would be taken for the answer to this request.
                raise _Stale
        if departure.gate is not None:
            await departure.gate.departing(departure.hop)
            if protocol is not None and (conn.transport is None or protocol.should_close):
                raise _Stale  # it was closed while we waited
        response = await super().send(conn)
        if departure.gate is not None:
            # uvloop hands what was written to the kernel at the end of this turn of the loop; this runs after it.
            self.loop.call_soon(departure.gate.sent, departure.hop)
        return response


def _watch(transport: asyncio.Transport) -> select.poll:
    """Tells whether the connection has something to read. Made once, because finding the socket takes longer."""
    watch = select.poll()
    watch.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
    return watch


class HttpFetcher:
    """A Fetcher for http and https. Made anywhere, used inside one event loop.

    `idle_timeout` is the longest silence of a site, before its answer or within it; a slow but steady body is
    bounded by the caller. `deny_private` refuses hosts whose address is not public, after redirects too.
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
    ) -> None:
        self._connections = connections
        self._user_agent = user_agent
        self._max_body = max_body
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=connect_timeout, sock_read=idle_timeout)
        self._max_redirects = max_redirects
        self._deny_private = deny_private
        self._session: aiohttp.ClientSession | None = None
        self._jars = Jars()
        self._watches: _Watches = WeakKeyDictionary()

    async def fetch(
        self, request: Request, *, gate: Gate | None = None, jar: str | None = None, max_body: int | None = None
    ) -> Page:
        cap = self._max_body if max_body is None else max_body
        trip = Trip(request)
        memory = reservation()
        seconds = 0.0
        while True:
            cookies = "" if jar is None else self._jars.header(jar, trip.target)
            started, response = await self._answer(trip, gate, cookies)
            hop = trip.hop
            try:
                new_cookies = jar is not None and hdrs.SET_COOKIE in response.headers
                if jar is not None and new_cookies:
                    self._jars.keep(jar, trip.target, response.headers.getall(hdrs.SET_COOKIE))
                location = response.headers.get(hdrs.LOCATION) if response.status in REDIRECTS else None
                if location is None:
                    body = await read_body(response, cap, truncate=request.truncate, memory=memory)
                    break
                await _drain(response)
            except WIRE_ERRORS as error:
                response.close()
                raise explained(error, trip.url) from error
            except BaseException:
                response.close()
                raise
            finally:
                if gate is not None:
                    gate.done(hop)
            seconds += perf_counter() - started
            trip.redirect(response.status, location, limit=self._max_redirects, new_cookies=new_cookies)
        page = Page(
            trip.url,
            requested_url=request.url,
            method=trip.method,
            status=response.status,
            headers=response.headers,
            body=body,
            history=tuple(trip.history),
            seconds=seconds + perf_counter() - started,
        )
        if memory is not None:
            if body.startswith(GZIP):
                await memory.cover(len(body), page.content_type, beginning=GZIP)
            page._memory = memory
        return page

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def _answer(self, trip: Trip, gate: Gate | None, cookies: str) -> tuple[float, aiohttp.ClientResponse]:
        """When the request went out, and the head of its answer.

        A kept connection may close just as we write to it. Then the request is sent once more, on a new one.
        """
        may_repeat = trip.method in _REPEATABLE
        while True:
            if gate is not None:
                await gate.before(trip.url, trip.hop)
            departure = _Departure(gate, trip.hop, self._watches)
            _departure.set(departure)
            started = perf_counter()
            try:
                return started, await self._send(trip, cookies)
            except BaseException as error:
                if gate is not None:
                    gate.done(trip.hop)
                if not isinstance(error, WIRE_ERRORS):
                    raise
                closed_early = isinstance(error, (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError))
                if not (may_repeat and departure.reused and closed_early):
                    raise explained(error, trip.url) from error
            may_repeat = False
            trip.hop += 1

    async def _send(self, trip: Trip, cookies: str) -> aiohttp.ClientResponse:
        headers = trip.headers
        if cookies:
            own = headers.get(hdrs.COOKIE)
            headers = {**headers, hdrs.COOKIE: f"{own}; {cookies}" if own else cookies}
        session = self._session or self._open()
        while True:
            try:
                return await session.request(
                    trip.method, trip.target, headers=headers, data=trip.body, allow_redirects=False
                )
            except _Stale:  # Each one leaves the pool, so this comes to a good or a new connection.
                continue

    def _open(self) -> aiohttp.ClientSession:
        self._session = session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=self._connections,
                ttl_dns_cache=_DNS_SECONDS,
                socket_factory=public_socket if self._deny_private else None,
            ),
            headers={hdrs.USER_AGENT: self._user_agent, hdrs.ACCEPT_ENCODING: ACCEPT_ENCODING},
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=self._timeout,
            auto_decompress=False,
            request_class=_ObservedRequest,
            max_line_size=_LONGEST_HEADER,
            max_field_size=_LONGEST_HEADER,
        )
        # aiohttp would send a request again without asking the gate, and on new connections too.
        session._retry_connection = False
        return session


async def _drain(response: aiohttp.ClientResponse) -> None:
    length = response.content_length
    if length is not None and length <= _SMALL_BODY:
        await response.read()
    else:
        response.release()


def explained(error: BaseException, url: str) -> AttemptEnded:
    """The attempt's end that an error of the wire stands for."""
    site = _site(url)
    if isinstance(error, aiohttp.InvalidURL):
        return Permanent(f"{shown(url)} is not a URL that can be fetched")
    if isinstance(error, UnicodeError):
        return Permanent(f"{site} is no valid host name")
    if isinstance(error, aiohttp.ClientConnectorError) and isinstance(error.os_error, PrivateAddress):
        return Permanent(f"{site} has an address that is not public, which deny_private refuses")
    # A certificate error is a ValueError to Python, but none of the request.
    if isinstance(error, ValueError) and not isinstance(error, aiohttp.ClientError):
        return Permanent(f"the request to {site} cannot be sent: {_sentence(error)}")
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
            text = "the site stopped answering: nothing came for too long"
        case aiohttp.ServerDisconnectedError():
            text = "the site closed the connection without an answer"
        case aiohttp.ClientPayloadError():
            text = "the site broke off: the body is not complete"
        case aiohttp.ClientResponseError():
            text = f"the site does not answer in proper HTTP: {_first_line(error.message)}"
        case OSError():
            text = f"the connection broke: {_os_reason(error)}"
        case _:
            text = f"the connection broke: {_sentence(error)}"
    return text


def _site(url: str) -> str:
    parsed = urls.parsed(url)
    return parsed.host if parsed is not None and parsed.host else shown(url)


def _os_reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or _sentence(error)).replace("_", " ").lower()
    # The resolver's own numbers are negative or unknown to strerror, but they come with a text.
    if error.errno is not None and error.errno in errno.errorcode:
        return os.strerror(error.errno).lower()
    return (error.strerror or _sentence(error)).lower()


def _certificate_problem(error: Exception) -> str:
    return getattr(error, "verify_message", "") or _sentence(error)


def _first_line(text: str) -> str:
    lines = [line.strip(" :") for line in text.splitlines() if line.strip()]
    return lines[0][:120] if lines else "the answer makes no sense"


def _sentence(error: BaseException) -> str:
    return _first_line(str(error)) if str(error).strip() else type(error).__name__
