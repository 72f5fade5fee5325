"""A proxy of our own on loopback between the browser and the proxy of an identity.

Chromium refuses SOCKS proxies with a password, and would resolve names and hide the reasons of failures by itself. It
gets this one instead, which knows the credentials, and lets in only who knows a secret of this process: other users of
the machine cannot use the identity's proxy. Nothing goes out by another way, also when the proxy is dead.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
from base64 import b64encode
from collections import OrderedDict
from contextlib import suppress
from time import perf_counter
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from yarl import URL

from shoal.errors import AttemptEnded, Permanent, Transient
from shoal.fetch.proxy import Evidence, RequestRoute, basic_credentials, connect_failure, connect_through
from shoal.fetch.urls import is_public, may_be_public

if TYPE_CHECKING:
    from shoal.fetch.environment import EnvironmentProxies
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
    """Accepts the browser's connections and passes them on through the proxy of an identity.

    `route`: which way, and as whom; without a proxy, that of the `environment` for a URL, or directly. `deny_private`
    refuses addresses that are not public. `evidence`: what decides whether a failure is the proxy's.
    """

    def __init__(
        self,
        route: RequestRoute,
        *,
        environment: EnvironmentProxies | None = None,
        deny_private: bool = False,
        evidence: Evidence | None = None,
    ) -> None:
        self.route = route
        self._environment = environment
        self._deny_private = deny_private
        self._evidence = evidence or Evidence()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._failures: OrderedDict[str, tuple[float, AttemptEnded]] = OrderedDict()

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
            host = host.strip("[]")
            upstream = await self._connect(self._way(f"https://{target}"), host, int(port), tunnel=True)
            if upstream is None:
                await _write(writer, _head("HTTP/1.1 502 Bad Gateway", ("Content-Length: 0", "Connection: close")))
                return
            await _write(writer, _head("HTTP/1.1 200 Connection established", ()))
            await self._join((reader, writer), upstream, host)
            return
        await self._serve_plain((reader, writer), method, target, headers)

    async def _serve_plain(
        self, browser: _Connection, method: str, target: str, headers: list[tuple[str, str]]
    ) -> None:
        """A request without TLS. Each has a connection of its own: the next one may be for another host."""
        parts = urlsplit(target)
        host, way, started = parts.hostname or "", self._way(target), perf_counter()
        upstream = await self._connect(way, host, parts.port or 80, tunnel=False)
        if upstream is None:
            return  # the connection closes without an answer, which no page can be mistaken for
        kept = [f"{name}: {value}" for name, value in headers if name.lower() not in _OF_CONNECTION]
        asked = way.proxy if way.sends_absolute_urls(tls=False) else None
        if asked is None:
            target = parts._replace(scheme="", netloc="").geturl() or "/"
        elif (credentials := basic_credentials(asked)) is not None:
            kept.append(f"Proxy-Authorization: {credentials}")
        reader, writer = upstream
        body = asyncio.ensure_future(_copy(browser[0], writer))
        try:
            await _write(writer, _head(f"{method} {target} HTTP/1.1", (*kept, "Connection: close")))
            try:
                async with asyncio.timeout(None if asked is None else _ANSWER_SECONDS):
                    await self._answer_head(reader, browser[1], asked)
            except AttemptEnded as ended:
                self._fail(host, ended)
                return
            except (OSError, EOFError, TimeoutError, asyncio.LimitOverrunError, ValueError):
                silent = Transient(f"{host}: the site closed the connection without an answer")
                self._fail(host, self._evidence.judge(silent, way, host, started, owes_answer=asked is not None))
                return
            self._evidence.record_delivery(way, host)
            await _copy(reader, browser[1])
        finally:
            body.cancel()
            await asyncio.gather(body, return_exceptions=True)
            writer.close()

    async def _answer_head(
        self, upstream: asyncio.StreamReader, browser: asyncio.StreamWriter, asked: ProxyAddress | None
    ) -> None:
        """Pass on the head of a response, and tell the browser that its connection ends with it.

        Raises ExitFailed if the proxy that was asked wants credentials.
        """
        is_final = False
        while not is_final:
            first, headers = _parse_head(await upstream.readuntil(b"\r\n\r\n"))
            version, status, *_ = first.split(" ", 2)
            if not version.startswith("HTTP/") or not status.isdigit():
                raise ValueError("no HTTP")
            wanted = {name.lower() for name, _ in headers}
            if asked is not None and (status == "407" or (status == "401" and "proxy-authenticate" in wanted)):
                raise connect_failure(asked, int(status), "")
            kept = [f"{name}: {value}" for name, value in headers if name.lower() not in _OF_CONNECTION]
            is_final = not status.startswith("1")
            await _write(browser, _head(first, [*kept, "Connection: close"] if is_final else kept))

    def _way(self, url: str) -> RequestRoute:
        if self.route.proxy is not None or self._environment is None:
            return self.route
        return RequestRoute(self.route.key, self._environment.proxy(URL(url)))

    async def _connect(self, way: RequestRoute, host: str, port: int, *, tunnel: bool) -> _Connection | None:
        """A connection to the site; None when there is none, which is remembered."""
        started = perf_counter()
        try:
            if way.proxy is None:
                return await self._connect_directly(host, port)
            if self._deny_private and not may_be_public(f"http://[{host}]/" if ":" in host else f"http://{host}/"):
                raise _private(host)
            return await connect_through(way.proxy, host, port, tunnel=tunnel, seconds=_CONNECT_SECONDS)
        except AttemptEnded as ended:
            self._fail(host, self._evidence.judge(ended, way, host, started, owes_answer=False))
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
                raise _private(host)
            for address in addresses[:-1]:
                with suppress(OSError):
                    return await asyncio.open_connection(address, port, limit=_MAX_HEAD)
            return await asyncio.open_connection(addresses[-1], port, limit=_MAX_HEAD)

    async def _join(self, browser: _Connection, upstream: _Connection, host: str) -> None:
        """Pass bytes on in both directions until one side ends."""

        async def receive() -> None:
            first = await upstream[0].read(_BLOCK)
            if first:
                self._evidence.record_delivery(self.route, host)
                await _write(browser[1], first)
                await _copy(upstream[0], browser[1])

        ways = {asyncio.ensure_future(_copy(browser[0], upstream[1])), asyncio.ensure_future(receive())}
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            upstream[1].close()

    def _fail(self, host: str, error: AttemptEnded) -> None:
        self._failures[host] = perf_counter(), error
        self._failures.move_to_end(host)
        if len(self._failures) > _MAX_FAILURES:
            self._failures.popitem(last=False)


def _private(host: str) -> Permanent:
    return Permanent(f"{host} has an address that is not public, which deny_private refuses")


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
