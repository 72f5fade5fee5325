"""A proxy of our own on loopback between the browser and the proxy of an identity.

Chromium refuses SOCKS proxies with a password, and would resolve names and hide the reasons of failures by itself. It
gets this one instead, which knows the credentials, and lets in only who knows a secret of this process: other users of
the machine cannot use the identity's proxy. Nothing goes out by another way, also when the proxy is dead.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
import ssl
from base64 import b64encode
from collections import OrderedDict
from contextlib import suppress
from time import perf_counter
from typing import TYPE_CHECKING, cast
from urllib.parse import urlsplit

from shoal.errors import AttemptEnded, ExitFailed, Permanent, Transient
from shoal.fetch.proxy import _handshake, _http_connect, _socks5, _StreamPipe, basic_credentials, proxy_name
from shoal.fetch.urls import is_public

if TYPE_CHECKING:
    from shoal.model.egress import ProxyAddress

USERNAME = "shoal"
PASSWORD = secrets.token_urlsafe(24)
_LOGIN = "Basic " + b64encode(f"{USERNAME}:{PASSWORD}".encode()).decode()
_CONNECT_SECONDS = 15.0
# An HTTP proxy that was asked for a page has to begin its answer in this time.
_ANSWER_SECONDS = 30.0
_HEAD_SECONDS = 30.0
_MAX_HEAD = 64 << 10
_BLOCK = 64 << 10
_MAX_FAILURES = 1_000
_OF_CONNECTION = frozenset({"connection", "keep-alive", "proxy-connection", "proxy-authorization"})

_Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class ProxyForwarder:
    """Accepts the browser's connections and passes them on through `proxy`; None: directly.

    `deny_private` refuses direct connections to addresses that are not public.
    """

    def __init__(self, proxy: ProxyAddress | None, *, deny_private: bool = False) -> None:
        self.proxy = proxy
        self._deny_private = deny_private
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._failures: OrderedDict[str, tuple[float, AttemptEnded]] = OrderedDict()
        self._has_delivered = False

    @property
    def address(self) -> str:
        assert self._server is not None, "it is started"
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=_MAX_HEAD)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def failure(self, host: str, since: float) -> AttemptEnded | None:
        """How the way to a host has failed since then, by `perf_counter`; None if it has not."""
        at, error = self._failures.get(host, (0.0, None))
        return error if at >= since else None

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._serve(reader, writer)
        except (OSError, EOFError, asyncio.LimitOverrunError, ValueError, TimeoutError):
            pass  # the browser or the site has gone
        except asyncio.CancelledError:
            # The browser is closed; asyncio's server would report it as an error.
            if self._server is not None and self._server.is_serving():
                raise
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(_HEAD_SECONDS):
            first, headers = _parse_head(await reader.readuntil(b"\r\n\r\n"))
        method, target, _ = first.split(" ", 2)
        given = next((value for name, value in headers if name.lower() == "proxy-authorization"), "")
        if not secrets.compare_digest(given, _LOGIN):
            lines = ("Proxy-Authenticate: Basic realm=shoal", "Content-Length: 0", "Connection: close")
            await _write(writer, _head("HTTP/1.1 407 Proxy Authentication Required", lines))
            return
        if method == "CONNECT":
            host, _, port = target.rpartition(":")
            upstream = await self._connect(host.strip("[]"), int(port), tunnel=True)
            if upstream is None:
                await _write(writer, _head("HTTP/1.1 502 Bad Gateway", ("Content-Length: 0", "Connection: close")))
                return
            await _write(writer, _head("HTTP/1.1 200 Connection established", ()))
            await _join((reader, writer), upstream)
            return
        await self._serve_plain((reader, writer), method, target, headers)

    async def _serve_plain(
        self, browser: _Connection, method: str, target: str, headers: list[tuple[str, str]]
    ) -> None:
        """A request without TLS. Each has a connection of its own: the next one may be for another host."""
        parts = urlsplit(target)
        host = parts.hostname or ""
        upstream = await self._connect(host, parts.port or 80, tunnel=False)
        if upstream is None:
            return  # the connection closes without an answer, which no page can be mistaken for
        kept = [f"{name}: {value}" for name, value in headers if name.lower() not in _OF_CONNECTION]
        if self._asks_proxy:
            assert self.proxy is not None
            if (credentials := basic_credentials(self.proxy)) is not None:
                kept.append(f"Proxy-Authorization: {credentials}")
        else:
            target = parts._replace(scheme="", netloc="").geturl() or "/"
        try:
            await _write(upstream[1], _head(f"{method} {target} HTTP/1.1", (*kept, "Connection: close")))
            answer = asyncio.ensure_future(self._answer(upstream[0], browser[1], host))
            body = asyncio.ensure_future(_copy(browser[0], upstream[1]))
            try:
                await answer
            finally:
                body.cancel()
                await asyncio.gather(body, return_exceptions=True)
        finally:
            upstream[1].close()

    async def _answer(self, upstream: asyncio.StreamReader, browser: asyncio.StreamWriter, host: str) -> None:
        """Pass on a response, and tell the browser that its connection ends with it."""
        while True:
            try:
                async with asyncio.timeout(_ANSWER_SECONDS if self._asks_proxy else None):
                    head = await upstream.readuntil(b"\r\n\r\n")
            except (EOFError, OSError, TimeoutError, asyncio.LimitOverrunError):
                if self._asks_proxy and not self._has_delivered:
                    assert self.proxy is not None
                    self._fail(host, ExitFailed(f"{proxy_name(self.proxy)} did not answer"))
                raise
            first, headers = _parse_head(head)
            status = first.split(" ", 2)[1]
            if self._asks_proxy and status == "407":
                assert self.proxy is not None
                self._fail(host, ExitFailed(f"{proxy_name(self.proxy)} wants other credentials (407)"))
                return
            kept = [f"{name}: {value}" for name, value in headers if name.lower() not in _OF_CONNECTION]
            is_final = not status.startswith("1")
            await _write(browser, _head(first, (*kept, "Connection: close") if is_final else kept))
            if is_final:
                break
        self._has_delivered = True
        await _copy(upstream, browser)

    @property
    def _asks_proxy(self) -> bool:
        """Whether requests without TLS are sent to the proxy, and not through it."""
        return self.proxy is not None and not self.proxy.is_socks

    async def _connect(self, host: str, port: int, *, tunnel: bool) -> _Connection | None:
        """A connection to the site; None when there is none, which is remembered."""
        try:
            if self.proxy is None:
                return await self._connect_directly(host, port)
            return await _connect_through(self.proxy, host, port, tunnel=tunnel)
        except AttemptEnded as ended:
            self._fail(host, ended)
        except (OSError, TimeoutError, UnicodeError) as error:
            self._fail(host, Transient(f"{host}: no connection: {str(error) or type(error).__name__}"))
        return None

    async def _connect_directly(self, host: str, port: int) -> _Connection:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(_CONNECT_SECONDS):
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            addresses = [str(address[0]) for *_, address in found]
            if self._deny_private:
                addresses = [address for address in addresses if is_public(address)]
                if not addresses:
                    raise Permanent(f"{host} has an address that is not public, which deny_private refuses")
            for address in addresses[:-1]:
                with suppress(OSError):
                    return await asyncio.open_connection(address, port, limit=_MAX_HEAD)
            return await asyncio.open_connection(addresses[-1], port, limit=_MAX_HEAD)

    def _fail(self, host: str, error: AttemptEnded) -> None:
        self._failures[host] = perf_counter(), error
        self._failures.move_to_end(host)
        if len(self._failures) > _MAX_FAILURES:
            self._failures.popitem(last=False)


async def _connect_through(proxy: ProxyAddress, host: str, port: int, *, tunnel: bool) -> _Connection:
    """A connection to the site through a proxy; without `tunnel` one to an HTTP proxy itself. Raises AttemptEnded."""
    context = ssl.create_default_context() if proxy.scheme == "https" else None
    try:
        async with asyncio.timeout(_CONNECT_SECONDS):
            reader, writer = await asyncio.open_connection(
                proxy.host, proxy.port, limit=_MAX_HEAD, ssl=context, server_hostname=proxy.host if context else None
            )
    except TimeoutError as error:
        raise ExitFailed(f"{proxy_name(proxy)} did not accept the connection in time") from error
    except ConnectionRefusedError as error:
        raise ExitFailed(f"{proxy_name(proxy)} refused the connection") from error
    except OSError as error:
        raise ExitFailed(f"{proxy_name(proxy)} cannot be reached: {error.strerror or 'no address answers'}") from error
    pipe = _StreamPipe(reader, cast("asyncio.Transport", writer.transport))
    try:
        if proxy.is_socks:
            async with _handshake(proxy, "the SOCKS request", _CONNECT_SECONDS):
                await _socks5(pipe, proxy, host, port)
        elif tunnel:
            async with _handshake(proxy, "CONNECT", _CONNECT_SECONDS):
                await _http_connect(pipe, proxy, host, port)
    except BaseException:
        writer.close()
        raise
    return reader, writer


def _parse_head(head: bytes) -> tuple[str, list[tuple[str, str]]]:
    first, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    headers = [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines)]
    return first, headers


def _head(first: str, lines: tuple[str, ...] | list[str]) -> bytes:
    return "\r\n".join((first, *lines, "", "")).encode("latin-1")


async def _write(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(data)
    await writer.drain()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while block := await reader.read(_BLOCK):
        await _write(writer, block)


async def _join(one: _Connection, other: _Connection) -> None:
    """Pass bytes on in both directions until one side ends."""
    ways = {asyncio.ensure_future(_copy(one[0], other[1])), asyncio.ensure_future(_copy(other[0], one[1]))}
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        other[1].close()
