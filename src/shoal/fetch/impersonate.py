"""`client="chrome"`: requests whose TLS handshake, HTTP/2 frames and headers are those of Chrome, by curl_cffi.

Redirects, cookies, size caps and the judgement of failures are those of `HttpFetcher`. libcurl is driven here and not
by curl_cffi's own session, which takes three times as long, reads bodies without a bound, and hides when a request is
sent, so that it could not pass the gate.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections import OrderedDict
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

import aiohttp
from aiohttp import hdrs
from multidict import CIMultiDict, CIMultiDictProxy

from shoal.errors import AttemptEnded, ExitFailed, UsageError
from shoal.fetch import urls
from shoal.fetch.http import FailedTransfer, HttpFetcher, SendContext, send_context
from shoal.fetch.proxy import MAX_IDLE, connect_failure, proxy_name, socks_failure, unreachable_proxy
from shoal.fetch.urls import PrivateAddress

try:
    import brotli  # noqa: F401 - Chrome accepts both, and body.py decompresses them
    import zstandard  # noqa: F401
    from curl_cffi import AsyncCurl, Curl, CurlECode, CurlError, CurlHttpVersion, CurlInfo, CurlMOpt, CurlOpt, ffi, lib
    from curl_cffi.curl import DEFAULT_CACERT
    from curl_cffi.requests.impersonate import DEFAULT_CHROME
except ImportError as error:
    raise UsageError(f'client="chrome" cannot be used: {error}.', remedy="Run `pip install 'shoal[chrome]'`.") from None

if TYPE_CHECKING:
    from yarl import URL

    from shoal.fetch.proxy import RequestRoute
    from shoal.fetch.redirects import RedirectChain
    from shoal.model.egress import ProxyAddress

_RESOLVED_SECONDS = 60.0
_MAX_RESOLVED = 10_000
_MAX_SITES = 10_000
# Sites keep an idle connection for at least so long.
_KEPT_SECONDS = 15.0
# What Chrome sends otherwise to a site without TLS; a name without a value leaves the header out.
_WITHOUT_TLS = {
    "Connection": b"Connection: keep-alive",
    "Accept-Encoding": b"Accept-Encoding: gzip, deflate",
    **{f"sec-ch-ua{part}": f"sec-ch-ua{part}:".encode() for part in ("", "-mobile", "-platform")},
    **{f"Sec-Fetch-{part}": f"Sec-Fetch-{part}:".encode() for part in ("Site", "Mode", "User", "Dest")},
}
_ORDER_WITHOUT_TLS = (
    b"Host,Connection,Upgrade-Insecure-Requests,User-Agent,Accept,Referer,Accept-Encoding,Accept-Language,Cookie"
)
_SEND, _ABORT = 0, 1  # what a pre-request callback may answer
_PAUSE = 0x10000001  # what a write callback answers that takes no data now
# libcurl's numbers (CURLPX_...) of replies of a SOCKS5 proxy, and of other failures of its handshake.
_SOCKS_REPLIES = {17: 8, 18: 7, 19: 5, 20: 1, 21: 4, 22: 3, 23: 2, 24: 6}
_SOCKS_UNASSIGNED_REPLY = 25
_SOCKS_CREDENTIALS = frozenset({10, 11, 12, 33})
_SOCKS_OTHER_PROTOCOL = frozenset({1, 2, 32})
_BROKEN_CONNECTION = frozenset({CurlECode.GOT_NOTHING, CurlECode.RECV_ERROR, CurlECode.SEND_ERROR})
_BROKEN_BODY = frozenset({*_BROKEN_CONNECTION, CurlECode.PARTIAL_FILE, CurlECode.HTTP2, CurlECode.HTTP2_STREAM})
_CAUSES = {
    CurlECode.COULDNT_CONNECT: "no connection",
    CurlECode.PEER_FAILED_VERIFICATION: "the certificate could not be verified",
    CurlECode.SSL_CONNECT_ERROR: "the TLS handshake failed",
    CurlECode.RECV_ERROR: "the connection broke",
    CurlECode.SEND_ERROR: "the connection broke",
}
_BROKEN_TLS = frozenset({CurlECode.SSL_CONNECT_ERROR, CurlECode.PEER_FAILED_VERIFICATION})


@lru_cache(maxsize=256)
def _long(value: int) -> Any:
    return ffi.new("long *", value)


def _set(curl: Curl, option: CurlOpt, value: Any) -> None:
    """Set an option, in a fraction of the time that `Curl.setopt` takes."""
    code = lib._curl_easy_setopt(curl._curl, option, _long(value) if isinstance(value, int) else value)
    if code:
        raise ValueError(f"libcurl refuses the option {option.name} ({code})")


@ffi.callback("size_t(char *, size_t, size_t, void *)", error=0)  # type: ignore[untyped-decorator]
def _on_header(data: Any, size: int, count: int, transfer: Any) -> int:
    return cast("_Transfer", ffi.from_handle(transfer)).on_header(ffi.buffer(data, size * count)[:])


@ffi.callback("size_t(char *, size_t, size_t, void *)", error=0)  # type: ignore[untyped-decorator]
def _on_body(data: Any, size: int, count: int, transfer: Any) -> int:
    return cast("_Transfer", ffi.from_handle(transfer)).on_body(ffi.buffer(data, size * count)[:])


@ffi.callback("int(void *, char *, char *, int, int)", error=_ABORT)  # type: ignore[untyped-decorator]
def _before_sending(transfer: Any, *_: Any) -> int:
    """libcurl calls it with an open connection, right before it writes the request."""
    return cast("_Transfer", ffi.from_handle(transfer)).on_send()


_CALLBACKS = (
    (CurlOpt.PREREQFUNCTION, _before_sending),
    (CurlOpt.HEADERFUNCTION, _on_header),
    (CurlOpt.WRITEFUNCTION, _on_body),
)
_CALLBACK_DATA = (CurlOpt.PREREQDATA, CurlOpt.HEADERDATA, CurlOpt.WRITEDATA)


class _Handle(Curl):
    """A handle of libcurl. `shape`: what its last request had besides the URL; None if that cannot be repeated."""

    def __init__(self) -> None:
        super().__init__()
        self.shape: tuple[Any, ...] | None = None

    def forget(self) -> None:
        """Set every option to its default."""
        self.shape = None
        self.clean_handles_and_buffers()
        self.reset()
        self._skip_cacert = True  # curl_cffi would set it for each request


class _OpenSite:
    """When the connection to a site was used. `lock`: one request opens it for all."""

    __slots__ = ("lock", "used_at")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.used_at = float("-inf")


class _Connections(AsyncCurl):
    """The connections and TLS sessions of one route. `requests`: how many use them now."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.requests = 0
        self._sites: dict[str, _OpenSite] = {}
        # Without it libcurl closes idle connections. `setopt` hands it the address of the number.
        lib.curl_multi_setopt(self._curlm, CurlMOpt.MAXCONNECTS, ffi.cast("void *", limit))

    def site(self, origin: str) -> _OpenSite:
        if len(self._sites) >= _MAX_SITES:
            self._sites.clear()
        return self._sites.setdefault(origin, _OpenSite())

    async def close(self) -> None:
        await super().close()  # type: ignore[no-untyped-call]

    async def _force_timeout(self) -> None:
        """Does nothing. libcurl says when it wants to be called; calling it ten times a second adds up over routes."""


class _Transfer:
    """A request and its response, which `HttpFetcher` reads like one of aiohttp. It closes itself at its end.

    libcurl is paused while more than two `buffer` are unread. `opens_only`: it ends when the connection is open.
    """

    def __init__(
        self,
        fetcher: ImpersonatingFetcher,
        connections: _Connections,
        curl: _Handle,
        context: SendContext,
        *,
        buffer: int = 0,
        opens_only: bool = False,
    ) -> None:
        self.status = 0
        self._version = b""
        self.headers: CIMultiDictProxy[str] = CIMultiDictProxy(CIMultiDict())
        self.content = self
        self.is_sent = False
        self.is_repeated = False
        self.is_open = False
        self.uses_http2 = False
        self._opens_only = opens_only
        self._fetcher = fetcher
        self._connections = connections
        self.curl: _Handle | None = curl
        self.proxy = None if context.route is None else context.route.proxy
        self._context = context
        self._limit = 2 * buffer
        self._loop = asyncio.get_running_loop()
        self._lines: list[bytes] = []
        self._has_head = False
        self._unread: list[bytes] = []
        self._unread_size = 0
        self._is_paused = False
        self._error: BaseException | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._active_at = 0.0
        self._idle_timer: asyncio.TimerHandle | None = None
        connections.requests += 1

    async def start(self, chain: RedirectChain) -> None:
        """Send the request, and wait for the head of the response."""
        self.method = chain.method
        self.url = chain.target
        self._handle = ffi.new_handle(self)
        curl = self.curl
        assert curl is not None
        for option in _CALLBACK_DATA:
            _set(curl, option, self._handle)
        self._connections.add_handle(curl).add_done_callback(self._on_end)
        while not self._has_head:
            if self.curl is None:
                raise self._error or aiohttp.ClientConnectionError("the client was closed")
            await self._wait()

    @property
    def content_length(self) -> int | None:
        length = self.headers.get(hdrs.CONTENT_LENGTH)
        return int(length) if length is not None and length.isdecimal() else None

    async def readany(self) -> bytes:
        while not self._unread:
            if self.curl is None:
                if self._error is not None:
                    raise self._error
                return b""
            await self._wait()
        data = self._unread[0] if len(self._unread) == 1 else b"".join(self._unread)
        self._unread.clear()
        self._unread_size = 0
        if self._is_paused and self.curl is not None:
            self._is_paused = False
            self._active_at = self._loop.time()
            self.curl.pause(0)
        return data

    async def read(self) -> bytes:
        pieces = []
        while piece := await self.readany():
            pieces.append(piece)
        return b"".join(pieces)

    def close(self) -> None:
        """Give up what is not read yet, and its connection."""
        if self.curl is not None:
            self._connections.remove_handle(self.curl)
            self._release()

    release = close

    def on_send(self) -> int:
        self.is_open = True
        if self._opens_only:
            return _ABORT
        if self.is_sent:
            # The connection was closed, and libcurl would send the request again, without asking the gate.
            self.is_repeated = True
            return _ABORT
        self.is_sent = True
        self._active_at = self._loop.time()
        self._idle_timer = self._loop.call_later(self._fetcher.idle_timeout, self._check_idle)
        if self._context.gate is not None:
            # libcurl writes the request when this returns.
            self._loop.call_soon(self._context.gate.after_send, self._context.hop)
        return _SEND

    def on_header(self, line: bytes) -> int:
        self._active_at = self._loop.time()
        if self._has_head:
            return len(line)  # a trailer
        if line.startswith(b"HTTP/"):
            self._version, status = line.split(None, 2)[:2]
            self.status = int(status)
            self._lines.clear()
        elif line.strip(b"\r\n"):
            self._lines.append(line)
        elif self.status >= 200:
            self.headers = self._parse_headers()
            self._has_head = True
            self.uses_http2 = self._version.startswith(b"HTTP/2")
            self._wake()
        return len(line)

    def on_body(self, data: bytes) -> int:
        if self._unread_size > self._limit:
            self._is_paused = True
            return _PAUSE
        self._active_at = self._loop.time()
        self._unread.append(data)
        self._unread_size += len(data)
        self._wake()
        return len(data)

    def _parse_headers(self) -> CIMultiDictProxy[str]:
        headers: CIMultiDict[str] = CIMultiDict()
        for line in self._lines:
            name, _, value = line.decode("utf-8", "surrogateescape").partition(":")
            headers.add(name, value.strip())
        return CIMultiDictProxy(headers)

    def _check_idle(self) -> None:
        if self.curl is None:
            return
        now = self._loop.time()
        idle = 0.0 if self._is_paused else now - self._active_at
        if idle >= self._fetcher.idle_timeout:
            self._error = TimeoutError()
            self.close()
            self._wake()
        else:
            self._idle_timer = self._loop.call_at(now + self._fetcher.idle_timeout - idle, self._check_idle)

    def _on_end(self, ended: asyncio.Future[None]) -> None:
        if self.curl is None or ended.cancelled():
            return
        error = ended.exception()
        if isinstance(error, CurlError):
            error = self._network_error(int(error.code), str(error).partition(") ")[2].partition(". See http")[0])
        self._error = error
        self._context.reused = self.is_repeated or not self._number(CurlInfo.NUM_CONNECTS)
        self._release()
        self._wake()

    def _release(self) -> None:
        assert self.curl is not None
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        self._connections.requests -= 1
        self._fetcher.take_back(self.curl)
        self.curl = self._handle = None

    async def _wait(self) -> None:
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _network_error(self, code: int, text: str) -> BaseException:
        """What an error of libcurl is to `HttpFetcher`, so that both clients give the same sentences."""
        if self.proxy is not None and not self.is_sent:
            failure = self._proxy_failure(self.proxy, code, text)
            if failure is not None:
                return failure
        if self._has_head and code in _BROKEN_BODY:
            return aiohttp.ClientPayloadError()
        if self.is_repeated or code == CurlECode.GOT_NOTHING:
            return aiohttp.ServerDisconnectedError()
        if code == CurlECode.OPERATION_TIMEDOUT:
            return TimeoutError() if self.is_sent else aiohttp.ConnectionTimeoutError()
        if code == CurlECode.URL_MALFORMAT:
            return aiohttp.InvalidURL(self.url)
        if code == CurlECode.COULDNT_RESOLVE_HOST:
            return _unresolved(self.url.host or "")
        cause = _CAUSES.get(cast("CurlECode", code), "the response is not valid HTTP")
        return FailedTransfer(f"{cause}: {_tls_reason(text) if code in _BROKEN_TLS else self._os_reason(text)}")

    def _proxy_failure(self, proxy: ProxyAddress, code: int, text: str) -> AttemptEnded | None:
        """What an error before the request was sent says about the proxy; None: nothing."""
        host = self.url.host or ""
        status = self._number(CurlInfo.HTTP_CONNECTCODE)
        if 200 <= status < 300:
            # Behind an open tunnel it is the site that fails, unless there is no TLS at all.
            own_page = code == CurlECode.SSL_CONNECT_ERROR and "WRONG_VERSION_NUMBER" in text
            return ExitFailed(f"{proxy_name(proxy)} answered CONNECT with a page of its own") if own_page else None
        if status:
            return connect_failure(proxy, status, host)
        if code == CurlECode.PROXY:
            return self._socks_failure(proxy, host, text)
        if code == CurlECode.COULDNT_RESOLVE_PROXY:
            return unreachable_proxy(proxy, socket.gaierror())
        if code == CurlECode.COULDNT_CONNECT:
            number = self._number(CurlInfo.OS_ERRNO)
            return unreachable_proxy(proxy, OSError(number, os.strerror(number)))
        problem = None
        if code == CurlECode.OPERATION_TIMEDOUT:
            problem = f" did not answer {'the SOCKS request' if proxy.is_socks else 'CONNECT'} in time"
        elif code in _BROKEN_TLS and proxy.scheme == "https":
            problem = f": TLS with the proxy failed: {_tls_reason(text)}"
        elif code in _BROKEN_CONNECTION and not proxy.is_socks:
            problem = " closed the connection instead of answering CONNECT"
        return None if problem is None else ExitFailed(proxy_name(proxy) + problem)

    def _socks_failure(self, proxy: ProxyAddress, host: str, text: str) -> AttemptEnded:
        name = proxy_name(proxy)
        kind = self._number(CurlInfo.PROXY_ERROR)
        if kind == _SOCKS_UNASSIGNED_REPLY:
            number = text.rpartition("(")[2].rstrip(").")
            return socks_failure(proxy, int(number) if number.isdecimal() else -1, host)
        if kind in _SOCKS_REPLIES:
            return socks_failure(proxy, _SOCKS_REPLIES[kind], host)
        if kind in _SOCKS_CREDENTIALS:
            return ExitFailed(f"{name} wants {'other ' if proxy.username else ''}credentials")
        if kind in _SOCKS_OTHER_PROTOCOL:
            return ExitFailed(f"{name} does not speak SOCKS5")
        return ExitFailed(f"{name} closed the connection instead of answering the SOCKS request")

    def _number(self, option: CurlInfo) -> int:
        assert self.curl is not None
        return int(cast("int", self.curl.getinfo(option)))

    def _os_reason(self, text: str) -> str:
        number = self._number(CurlInfo.OS_ERRNO)
        return os.strerror(number).lower() if number else text


class ImpersonatingFetcher(HttpFetcher):
    """An HttpFetcher whose requests look like those of Chrome. Its user agent is Chrome's, not Shoal's.

    The gate is asked before a connection is opened to a site that is not known to speak HTTP/2: such a request is sent
    later than the gate allowed, by the time of the handshake.
    """

    def __init__(self, *, connections: int, **options: Any) -> None:
        super().__init__(connections=connections, **options)
        assert self._timeout.sock_read is not None
        self.idle_timeout = self._timeout.sock_read
        self._free = asyncio.Semaphore(connections)
        self._handles: list[_Handle] = []
        self._routes: OrderedDict[RequestRoute | None, _Connections] = OrderedDict()
        self._http2_sites: set[str] = set()
        self._resolved: dict[tuple[str, int], tuple[float, str]] = {}
        self._authorities = (ssl.get_default_verify_paths().cafile or DEFAULT_CACERT).encode()

    async def close(self) -> None:
        for connections in self._routes.values():
            await connections.close()
        self._routes.clear()
        await super().close()

    def take_back(self, curl: _Handle) -> None:
        """A request has ended."""
        self._handles.append(curl)
        self._free.release()

    async def _send(
        self, chain: RedirectChain, headers: Mapping[str, str], cookies: str, buffer: int
    ) -> aiohttp.ClientResponse:
        context = send_context.get()
        proxy = None if context.route is None else context.route.proxy
        address = None
        if self._deny_private and proxy is None:
            address = await self._public_address(chain.target)
        connections = await self._take_connections(context.route)
        try:
            origin = str(chain.target.origin())
            site = connections.site(origin)
            if origin in self._http2_sites:
                await self._open_site(site, connections, chain, context, address)
            await self._free.acquire()
            try:
                if context.gate is not None:
                    await context.gate.before_send(context.hop)
                transfer = _Transfer(self, connections, self._take_handle(), context, buffer=buffer)
            except BaseException:
                self._free.release()
                raise
            await self._start(transfer, chain, headers, cookies, address)
        finally:
            connections.requests -= 1
        site.used_at = asyncio.get_running_loop().time()
        if transfer.uses_http2 and origin not in self._http2_sites:
            if len(self._http2_sites) >= _MAX_SITES:
                self._http2_sites.clear()
            self._http2_sites.add(origin)
        return cast("aiohttp.ClientResponse", transfer)

    async def _open_site(
        self,
        site: _OpenSite,
        connections: _Connections,
        chain: RedirectChain,
        context: SendContext,
        address: str | None,
    ) -> None:
        """Open a connection if there is none, so that the gate is asked when the request can be sent at once.

        libcurl keeps a connection on which nothing was sent for HTTP/2 only, so it is done for sites that speak it.
        """
        async with site.lock:
            now = asyncio.get_running_loop().time()
            if now < site.used_at + _KEPT_SECONDS:
                return
            await self._free.acquire()
            transfer = _Transfer(self, connections, self._take_handle(), context, opens_only=True)
            try:
                await self._start(transfer, chain, {}, "", address)
            except aiohttp.ClientError:
                if not transfer.is_open:
                    raise
            site.used_at = now

    async def _start(
        self, transfer: _Transfer, chain: RedirectChain, headers: Mapping[str, str], cookies: str, address: str | None
    ) -> None:
        try:
            assert transfer.curl is not None
            self._prepare(transfer.curl, chain, transfer.proxy, headers, cookies, address)
            await transfer.start(chain)
        except BaseException:
            transfer.close()
            raise

    def _prepare(
        self,
        curl: _Handle,
        chain: RedirectChain,
        proxy: ProxyAddress | None,
        headers: Mapping[str, str],
        cookies: str,
        address: str | None,
    ) -> None:
        """Set what to send, and the way. Raises ValueError for a header that cannot be sent.

        Most requests differ from the one before in their URL only, and then only that is set.
        """
        url = chain.target
        shape = None
        if chain.body is None:
            shape = (chain.method, url.scheme, proxy, address, cookies, tuple(headers.items()))
        if shape is None or shape != curl.shape:
            curl.forget()
            _set_request(curl, chain, headers, cookies)
            _set_way(curl, proxy, tunnel=url.scheme == "https", connect_timeout=self._timeout.sock_connect or 0.0)
            if url.scheme == "https" or proxy is not None:
                _set(curl, CurlOpt.CAINFO, self._authorities)
                _set(curl, CurlOpt.PROXY_CAINFO, self._authorities)
            if address is not None:
                curl.setopt(CurlOpt.RESOLVE, [address])
            curl.shape = shape
        target = url.raw_path_qs
        whole = f"{url.scheme}://{url.raw_authority}{target}".encode()
        asks_proxy = proxy is not None and not proxy.is_socks and url.scheme == "http"
        _set(curl, CurlOpt.URL, whole)
        # libcurl would change the case of escapes.
        _set(curl, CurlOpt.REQUEST_TARGET, whole if asks_proxy else target.encode())

    def _take_handle(self) -> _Handle:
        return self._handles.pop() if self._handles else _Handle()

    async def _take_connections(self, route: RequestRoute | None) -> _Connections:
        """The connections of a route, with one request more."""
        if route not in self._routes and len(self._routes) >= MAX_IDLE:
            await self._close_oldest()
        connections = self._routes.get(route)
        if connections is None:
            connections = self._routes[route] = _Connections(self._connections)
        self._routes.move_to_end(route)
        connections.requests += 1
        return connections

    async def _close_oldest(self) -> None:
        """Close the connections of the route that has been idle for the longest."""
        for route, connections in self._routes.items():
            if not connections.requests:
                del self._routes[route]
                await connections.close()
                return

    async def _public_address(self, url: URL) -> str:
        """What libcurl is to connect to for this host. Raises PrivateAddress if one of its addresses is not public."""
        host, port = url.raw_host or "", url.port or 0
        until, address = self._resolved.get((host, port), (0.0, ""))
        loop = asyncio.get_running_loop()
        if loop.time() >= until:
            try:
                found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            except OSError as error:
                raise _unresolved(host, (error.strerror or str(error)).lower()) from error
            addresses = dict.fromkeys(str(entry[4][0]) for entry in found)
            if not all(map(urls.is_public, addresses)):
                raise PrivateAddress
            address = f"+{host}:{port}:{','.join(addresses)}"
            if len(self._resolved) >= _MAX_RESOLVED:
                self._resolved.clear()
            self._resolved[host, port] = loop.time() + _RESOLVED_SECONDS, address
        return address


def _set_request(curl: Curl, chain: RedirectChain, headers: Mapping[str, str], cookies: str) -> None:
    """Set what to send. Raises ValueError for a header that cannot be sent."""
    curl.impersonate(DEFAULT_CHROME)
    for option, callback in _CALLBACKS:
        _set(curl, option, callback)
    is_secure = chain.target.scheme == "https"
    _set(curl, CurlOpt.HTTP_VERSION, CurlHttpVersion.V2TLS if is_secure else CurlHttpVersion.V1_1)
    _set(curl, CurlOpt.PIPEWAIT, 1)  # requests at the same time share one connection, if it is HTTP/2
    _set(curl, CurlOpt.PATH_AS_IS, 1)
    if chain.body is not None:
        curl.setopt(CurlOpt.POSTFIELDS, chain.body)
        _set(curl, CurlOpt.POSTFIELDSIZE, len(chain.body))
    if chain.method == "HEAD":
        _set(curl, CurlOpt.NOBODY, 1)
    elif chain.method != "GET" or chain.body is not None:
        _set(curl, CurlOpt.CUSTOMREQUEST, chain.method.encode())
    merged = CIMultiDict(headers)
    if cookies:
        own = merged.get(hdrs.COOKIE)
        merged[hdrs.COOKIE] = f"{own}; {cookies}" if own else cookies
    if chain.body is not None:
        merged.setdefault(hdrs.CONTENT_TYPE, "application/octet-stream")
    lines = [_header_line(name, value) for name, value in merged.items()]
    if chain.body is not None:
        lines.append(b"Expect:")
    if not is_secure:
        lines += [line for name, line in _WITHOUT_TLS.items() if name not in merged]
        _set(curl, CurlOpt.HTTPHEADER_ORDER, _ORDER_WITHOUT_TLS)
    if lines:
        curl.setopt(CurlOpt.HTTPHEADER, lines)


def _set_way(curl: Curl, proxy: ProxyAddress | None, *, tunnel: bool, connect_timeout: float) -> None:
    """Set the way. Without a proxy, an empty name keeps libcurl from reading the environment."""
    _set(curl, CurlOpt.CONNECTTIMEOUT_MS, int(connect_timeout * 1_000))
    _set(curl, CurlOpt.SUPPRESS_CONNECT_HEADERS, 1)
    _set(curl, CurlOpt.NOPROXY, b"")
    if proxy is None:
        _set(curl, CurlOpt.PROXY, b"")
        return
    # With socks5h, the proxy resolves the names of sites.
    _set(curl, CurlOpt.PROXY, proxy.address.replace("socks5://", "socks5h://").encode())
    if (proxy.is_socks or tunnel) and (proxy.username or proxy.password):
        _set(curl, CurlOpt.PROXYUSERNAME, proxy.username.encode())
        _set(curl, CurlOpt.PROXYPASSWORD, proxy.password.encode())


def _header_line(name: str, value: str) -> bytes:
    if any(character in f"{name}{value}" for character in "\r\n\0"):
        raise ValueError("a header contains a line break or a NUL")
    # A header without a value is written so; after a colon it would be left out.
    return (f"{name}: {value}" if value else f"{name};").encode("utf-8", "surrogateescape")


def _tls_reason(text: str) -> str:
    """The last part of `TLS connect error: error:100000f7:SSL routines:OPENSSL_internal:WRONG_VERSION_NUMBER`."""
    return text.partition(" (")[0].rpartition(":")[2].replace("_", " ").strip().lower()


def _unresolved(host: str, reason: str = "name or service not known") -> Exception:
    try:
        host.encode("idna")
    except UnicodeError as error:
        return error
    return FailedTransfer(f"the host name could not be resolved: {reason}")
