"""Connections through proxies: HTTP, HTTPS and SOCKS5. Host names of sites are resolved by the proxy, never here.

Which failures are the proxy's: everything up to the tunnel, such as a refused connection, silence, other credentials
or an answer that is none. A proxy that reports that it cannot reach the site means the site. A connection that breaks
later, a TLS error and a proxy's 502 may be both: see `Evidence`.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import os
import socket
import ssl
from base64 import b64encode
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

import aiohappyeyeballs
import aiohttp

from shoal.errors import AttemptEnded, Blocked, ExitFailed, Transient

if TYPE_CHECKING:
    from aiohttp.client_proto import ResponseHandler
    from aiohttp.connector import Connection

    from shoal.model.egress import ProxyAddress

_Value = TypeVar("_Value")
# Above this, the connection that has been idle for the longest is closed. A pool may have more exits than this process
# may have sockets.
MAX_IDLE = 256
_MAX_HEAD = 16_384
_MAX_REMEMBERED = 10_000
_SOCKS_NO_LOGIN, _SOCKS_LOGIN, _SOCKS_REFUSED = 0, 2, 0xFF
# Replies that are about the site. Those of Tor (0xF0 ...) are about onion services.
_SOCKS_SITE = {
    3: "the network is unreachable",
    4: "the host is unreachable",
    5: "the connection was refused",
    6: "no connection in time",
    0xF0: "the onion service is unknown",
    0xF1: "the descriptor of the onion service is not valid",
    0xF2: "the onion service did not meet",
    0xF3: "the onion service did not meet",
    0xF4: "the onion service wants a key",
    0xF5: "the onion service wants another key",
    0xF6: "the onion address is not valid",
    0xF7: "the onion service did not answer in time",
}
_SOCKS_NOT_ALLOWED = 2
_SOCKS_WAY = {1: "general failure", 7: "it cannot connect", 8: "it does not know this kind of address"}
# Faults of this machine, whatever the proxy.
_LOCAL_ERRORS = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL, errno.ENETUNREACH, errno.ENETDOWN}
)


class RequestRoute:
    """Which way a request goes, and as whom. Connections of different routes are never shared.

    `proxy`: None for a request that goes out directly. A route is equal only to itself, which is cheap to find out;
    `RequestRoutes` has that of an identity.
    """

    __slots__ = ("key", "proxy")

    def __init__(self, key: str, proxy: ProxyAddress | None) -> None:
        self.key = key
        self.proxy = proxy

    def sends_absolute_urls(self, *, tls: bool) -> bool:
        """Whether the proxy itself is asked for the page, which only HTTP proxies without TLS to the site are."""
        return self.proxy is not None and not tls and not self.proxy.is_socks


class RequestRoutes:
    """The routes of identities. Above the limit the least recently used one is forgotten, with its connections."""

    def __init__(self, limit: int = _MAX_REMEMBERED) -> None:
        self._limit = limit
        self._routes: OrderedDict[tuple[str, ProxyAddress | None], RequestRoute] = OrderedDict()

    def get(self, key: str, proxy: ProxyAddress | None) -> RequestRoute:
        route = self._routes.get((key, proxy))
        if route is None:
            route = self._routes[key, proxy] = RequestRoute(key, proxy)
            if len(self._routes) > self._limit:
                self._routes.popitem(last=False)
        else:
            self._routes.move_to_end((key, proxy))
        return route


class ConnectingRequest(Protocol):
    """The parts of a request of aiohttp that a connection needs."""

    route: RequestRoute
    host: str
    port: int | None

    def is_ssl(self) -> bool: ...


def proxy_name(proxy: ProxyAddress) -> str:
    """How errors name a proxy: without credentials."""
    return f"proxy {proxy.address.partition('//')[2]}"


def basic_credentials(proxy: ProxyAddress) -> str | None:
    """The value of Proxy-Authorization; None for a proxy without credentials."""
    if not proxy.username and not proxy.password:
        return None
    return "Basic " + b64encode(f"{proxy.username}:{proxy.password}".encode()).decode()


class ProxyConnector(aiohttp.TCPConnector):
    """Opens connections along the routes of requests, and keeps at most `MAX_IDLE` of them for later requests.

    A request without a proxy goes out as with TCPConnector. Raises ExitFailed, Blocked or Transient when a proxy does
    not lead to the site, and errors of aiohttp when TLS with the site fails.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._idle: OrderedDict[ResponseHandler, Any] = OrderedDict()

    async def _create_connection(self, req: Any, traces: Any, timeout: Any) -> ResponseHandler:  # noqa: ASYNC109
        request: ConnectingRequest = req
        proxy = request.route.proxy
        if proxy is None:
            return await super()._create_connection(req, traces, timeout)
        seconds = timeout.sock_connect
        sock = await self._connect_proxy(proxy, seconds)
        if proxy.scheme == "https":
            return await self._connect_over_tls(sock, proxy, req, timeout)
        try:
            if proxy.is_socks:
                async with _handshake(proxy, "the SOCKS request", seconds):
                    await _socks5(_SocketPipe(self._loop, sock), proxy, request.host, request.port or 80)
            elif request.is_ssl():
                async with _handshake(proxy, "CONNECT", seconds):
                    await _http_connect(_SocketPipe(self._loop, sock), proxy, request.host, request.port or 443)
        except BaseException:
            sock.close()
            raise
        if request.is_ssl():
            _, protocol = await self._wrap_existing_connection(
                self._factory,
                req=req,
                timeout=timeout,
                sock=sock,
                ssl=self._get_ssl_context(req),
                server_hostname=_tls_name(request.host),
            )
        else:
            _, protocol = await self._loop.create_connection(self._factory, sock=sock)
        return protocol

    async def _connect_proxy(self, proxy: ProxyAddress, seconds: float) -> socket.socket:
        """A connected socket. The name of the proxy itself is resolved here, and cached."""
        name = proxy_name(proxy)
        try:
            async with asyncio.timeout(seconds):
                found = await self._resolve_host(proxy.host, proxy.port)
                return await aiohappyeyeballs.start_connection(
                    self._convert_hosts_to_addr_infos(found), loop=self._loop
                )
        except TimeoutError as error:
            raise ExitFailed(f"{name} did not accept the connection in time") from error
        except OSError as error:
            raise unreachable_proxy(proxy, error) from error

    async def _connect_over_tls(
        self, sock: socket.socket, proxy: ProxyAddress, req: Any, limits: aiohttp.ClientTimeout
    ) -> ResponseHandler:
        """A connection to an https:// proxy: TLS with the proxy, and inside it TLS with the site if that has it."""
        request: ConnectingRequest = req
        context = aiohttp.connector._SSL_CONTEXT_VERIFIED
        name, seconds = _tls_name(proxy.host), limits.sock_connect
        if not request.is_ssl():
            async with _handshake(proxy, "TLS", seconds):
                _, protocol = await self._loop.create_connection(
                    self._factory, sock=sock, ssl=context, server_hostname=name
                )
            return protocol
        reader = asyncio.StreamReader(limit=_MAX_HEAD, loop=self._loop)
        async with _handshake(proxy, "TLS", seconds):
            transport, _ = await self._loop.create_connection(
                lambda: asyncio.StreamReaderProtocol(reader, loop=self._loop),
                sock=sock,
                ssl=context,
                server_hostname=name,
            )
        try:
            async with _handshake(proxy, "CONNECT", seconds):
                await _http_connect(_StreamPipe(reader, transport), proxy, request.host, request.port or 443)
        except BaseException:
            transport.abort()
            raise
        _, protocol = await self._start_tls_connection(transport, req=req, timeout=limits)
        return protocol

    async def _get(self, key: Any, traces: Any) -> Connection | None:
        connection = await super()._get(key, traces)
        if connection is not None and connection.protocol is not None:
            self._idle.pop(connection.protocol, None)
        return connection

    def _release(self, key: Any, protocol: ResponseHandler, *, should_close: bool = False) -> None:
        super()._release(key, protocol, should_close=should_close)
        kept = self._conns.get(key)
        if not kept or kept[-1][0] is not protocol:
            return
        self._idle[protocol] = key
        if len(self._idle) > MAX_IDLE:
            self._close_oldest()

    def _close_oldest(self) -> None:
        oldest, key = self._idle.popitem(last=False)
        kept = self._conns.get(key, ())
        for entry in kept:
            if entry[0] is oldest:
                self._conns[key].remove(entry)
                if not self._conns[key]:
                    del self._conns[key]
                break
        oldest.close()  # it may have been closed after its keep-alive time


class _Pipe(Protocol):
    """A connection to a proxy before anything else uses it."""

    async def send(self, data: bytes) -> None: ...

    async def receive(self, limit: int) -> bytes:
        """At most so many bytes; empty at the end."""


class _SocketPipe:
    def __init__(self, loop: asyncio.AbstractEventLoop, sock: socket.socket) -> None:
        self._loop = loop
        self._sock = sock

    async def send(self, data: bytes) -> None:
        await self._loop.sock_sendall(self._sock, data)

    async def receive(self, limit: int) -> bytes:
        return await self._loop.sock_recv(self._sock, limit)


class _StreamPipe:
    def __init__(self, reader: asyncio.StreamReader, transport: asyncio.Transport) -> None:
        self._reader = reader
        self._transport = transport

    async def send(self, data: bytes) -> None:
        self._transport.write(data)  # a few hundred bytes; a StreamWriter would close the connection when it is deleted

    async def receive(self, limit: int) -> bytes:
        return await self._reader.read(limit)


@asynccontextmanager
async def _handshake(proxy: ProxyAddress, step: str, seconds: float | None) -> AsyncIterator[None]:
    """Whatever goes wrong inside is a failure of the proxy."""
    name = proxy_name(proxy)
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as error:
        raise ExitFailed(f"{name} did not answer {step} in time") from error
    except ssl.SSLError as error:
        problem = getattr(error, "verify_message", "") or (error.reason or "no TLS").replace("_", " ").lower()
        raise ExitFailed(f"{name}: TLS with the proxy failed: {problem}") from error
    except (OSError, EOFError) as error:
        raise ExitFailed(f"{name} closed the connection instead of answering {step}") from error


async def _receive_exactly(pipe: _Pipe, size: int) -> bytes:
    data = b""
    while len(data) < size:
        received = await pipe.receive(size - len(data))
        if not received:
            raise EOFError
        data += received
    return data


async def check_socks(proxy: ProxyAddress, seconds: float) -> None:
    """Connect to a SOCKS5 proxy and log in, without asking for a connection to a site. Raises ExitFailed."""
    connector = ProxyConnector()
    try:
        with await connector._connect_proxy(proxy, seconds) as sock:
            async with _handshake(proxy, "the SOCKS request", seconds):
                await _socks_login(_SocketPipe(asyncio.get_running_loop(), sock), proxy)
    finally:
        await connector.close()


async def _socks_login(pipe: _Pipe, proxy: ProxyAddress) -> None:
    """Agree with a SOCKS5 proxy on how to log in, and do so (RFC 1928, RFC 1929)."""
    name = proxy_name(proxy)
    username, password = proxy.username.encode(), proxy.password.encode()
    login = bool(username or password)
    await pipe.send(bytes([5, 2, _SOCKS_NO_LOGIN, _SOCKS_LOGIN] if login else [5, 1, _SOCKS_NO_LOGIN]))
    version, method = await _receive_exactly(pipe, 2)
    if version != 5 or method not in (_SOCKS_NO_LOGIN, _SOCKS_LOGIN, _SOCKS_REFUSED):
        raise ExitFailed(f"{name} does not speak SOCKS5")
    if method == _SOCKS_REFUSED or (method == _SOCKS_LOGIN and not login):
        raise ExitFailed(f"{name} wants {'other ' if login else ''}credentials")
    if method == _SOCKS_LOGIN:
        if len(username) > 255 or len(password) > 255:
            raise ExitFailed(f"{name}: a user name or password above 255 bytes cannot be sent by SOCKS5")
        await pipe.send(bytes([1, len(username)]) + username + bytes([len(password)]) + password)
        if (await _receive_exactly(pipe, 2))[1] != 0:
            raise ExitFailed(f"{name} wants other credentials")


async def _socks5(pipe: _Pipe, proxy: ProxyAddress, host: str, port: int) -> None:
    """Ask a SOCKS5 proxy for a connection to the site."""
    name = proxy_name(proxy)
    await _socks_login(pipe, proxy)
    await pipe.send(b"\x05\x01\x00" + _socks_address(host) + port.to_bytes(2, "big"))
    version, reply, _, kind = await _receive_exactly(pipe, 4)
    if version != 5:
        raise ExitFailed(f"{name} does not speak SOCKS5")
    if reply != 0:
        raise socks_failure(proxy, reply, host)
    # The address that the proxy connected from; nobody needs it.
    size = {1: 4, 4: 16}.get(kind)
    if size is None:
        if kind != 3:
            raise ExitFailed(f"{name} does not speak SOCKS5")
        [size] = await _receive_exactly(pipe, 1)
    await _receive_exactly(pipe, size + 2)


def socks_failure(proxy: ProxyAddress, reply: int, host: str) -> AttemptEnded:
    """What a SOCKS5 reply other than 0 means."""
    name = proxy_name(proxy)
    if reply == _SOCKS_NOT_ALLOWED:
        return Blocked(f"{name} does not allow connections to {host}")
    if reply in _SOCKS_SITE:
        return UnreachableSite(f"{host}: no connection: {_SOCKS_SITE[reply]}, says {name}")
    return ExitFailed(f"{name}: SOCKS: {_SOCKS_WAY.get(reply, f'unknown reply {reply}')}")


def _socks_address(host: str) -> bytes:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        text = host.encode("ascii")
        if len(text) > 255:
            raise UnicodeError("a host name above 255 bytes") from None
        return bytes([3, len(text)]) + text
    return bytes([1 if address.version == 4 else 4]) + address.packed


async def _http_connect(pipe: _Pipe, proxy: ProxyAddress, host: str, port: int) -> None:
    """Ask an HTTP proxy for a tunnel to the site. Nothing of the request itself is sent to the proxy."""
    name = proxy_name(proxy)
    authority = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    credentials = basic_credentials(proxy)
    login = f"Proxy-Authorization: {credentials}\r\n" if credentials is not None else ""
    await pipe.send(f"CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n{login}\r\n".encode())
    head = b""
    while b"\r\n\r\n" not in head:
        received = await pipe.receive(4_096)
        if not received:
            raise EOFError
        head += received
        if not head.startswith(b"HTTP/1."[: len(head)]) or len(head) > _MAX_HEAD:
            raise ExitFailed(f"{name} answered CONNECT with something else than HTTP")
    line, *_ = head.split(b"\r\n", 1)
    words = line.split(b" ", 2)
    if len(words) < 2 or not words[1].isdigit():
        raise ExitFailed(f"{name} answered CONNECT with something else than HTTP")
    status = int(words[1])
    if 200 <= status < 300:
        if not head.endswith(b"\r\n\r\n") or head.count(b"\r\n\r\n") > 1:
            # The site says nothing before it is asked: these bytes are a page of the proxy's own.
            raise ExitFailed(f"{name} answered CONNECT with a page of its own")
    else:
        raise connect_failure(proxy, status, host)


def connect_failure(proxy: ProxyAddress, status: int, host: str) -> AttemptEnded:
    """What an answer to CONNECT other than 2xx means."""
    name = proxy_name(proxy)
    if status in (401, 407):
        return ExitFailed(f"{name} wants {'other ' if basic_credentials(proxy) else ''}credentials ({status})")
    if status in (403, 451):
        return Blocked(f"{name} does not allow connections to {host} ({status})")
    if status >= 500:
        return UnreachableSite(f"{host}: no connection: {name} answered CONNECT with {status}")
    return ExitFailed(f"{name} answered CONNECT with {status}")


def unreachable_proxy(proxy: ProxyAddress, error: OSError) -> AttemptEnded:
    """What it means that there is no connection to a proxy."""
    name = proxy_name(proxy)
    if error.errno in _LOCAL_ERRORS:
        return Transient(f"{name}: no connection: {_reason(error)}")
    if isinstance(error, socket.gaierror):
        return ExitFailed(f"{name}: its name could not be resolved")
    if isinstance(error, ConnectionRefusedError):
        return ExitFailed(f"{name} refused the connection")
    return ExitFailed(f"{name} cannot be reached: {_reason(error)}")


async def connect_through(
    proxy: ProxyAddress, host: str, port: int, *, tunnel: bool, seconds: float
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection to a site, for whoever sends its own bytes; without `tunnel` one to the HTTP proxy itself.

    Raises ExitFailed, Blocked or Transient.
    """
    options: dict[str, Any] = {}
    if proxy.scheme == "https":
        options = {"ssl": aiohttp.connector._SSL_CONTEXT_VERIFIED, "server_hostname": _tls_name(proxy.host)}
    try:
        async with asyncio.timeout(seconds):
            reader, writer = await asyncio.open_connection(proxy.host, proxy.port, limit=1 << 16, **options)
    except TimeoutError as error:
        raise ExitFailed(f"{proxy_name(proxy)} did not accept the connection in time") from error
    except ssl.SSLError as error:
        raise ExitFailed(f"{proxy_name(proxy)}: TLS with the proxy failed") from error
    except OSError as error:
        raise unreachable_proxy(proxy, error) from error
    pipe = _StreamPipe(reader, cast("asyncio.Transport", writer.transport))
    try:
        if proxy.is_socks:
            async with _handshake(proxy, "the SOCKS request", seconds):
                await _socks5(pipe, proxy, host, port)
        elif tunnel:
            async with _handshake(proxy, "CONNECT", seconds):
                await _http_connect(pipe, proxy, host, port)
    except BaseException:
        writer.close()
        raise
    return reader, writer


class UnreachableSite(Transient):
    """A proxy reports that it cannot reach the site. This may be its own fault."""


class Evidence:
    """Decides whether a failure that may be the site's or the proxy's counts as the proxy's.

    It does if the site has delivered a page by another route since the failures of this one began. Without such
    evidence it counts as the site's: a dead site must not get every proxy banned.
    """

    def __init__(self) -> None:
        self._hosts: OrderedDict[str, tuple[float, str]] = OrderedDict()
        self._delivered: OrderedDict[str, None] = OrderedDict()
        self._failing_since: OrderedDict[str, float] = OrderedDict()

    def record_delivery(self, route: RequestRoute | None, host: str) -> None:
        """A complete response has come by this route."""
        if route is None or route.proxy is None:
            return
        _remember(self._hosts, host, (perf_counter(), route.key))
        _remember(self._delivered, route.key, None)
        self._failing_since.pop(route.key, None)

    def judge(
        self, ended: AttemptEnded, route: RequestRoute, host: str, started: float, *, owes_answer: bool
    ) -> AttemptEnded:
        """The error, as an ExitFailed if it counts as the proxy's. `started`: when the request was sent.

        `owes_answer`: the proxy was asked for the page and has not answered at all, also not that the site is silent.
        Then it is to blame as well if it has never delivered anything.
        """
        if route.proxy is None or not isinstance(ended, Transient) or isinstance(ended, ExitFailed):
            return ended
        since = self._failing_since.get(route.key)
        if since is None:
            since = started
            _remember(self._failing_since, route.key, started)
        delivered, by = self._hosts.get(host, (0.0, route.key))
        if (delivered > since and by != route.key) or (owes_answer and route.key not in self._delivered):
            return ExitFailed(f"{proxy_name(route.proxy)}: {ended.message}")
        return ended


def _remember(kept: OrderedDict[str, _Value], key: str, value: _Value) -> None:
    kept[key] = value
    kept.move_to_end(key)
    if len(kept) > _MAX_REMEMBERED:
        kept.popitem(last=False)


def _tls_name(host: str) -> str:
    """The name in the certificate, which has no dot at its end."""
    return host.rstrip(".")


def _reason(error: OSError) -> str:
    if error.errno is not None and error.errno in errno.errorcode:
        return os.strerror(error.errno).lower()
    return "no address answers"
