"""Runs the application: uvicorn in this thread's event loop, or in a thread beside a run.

Beside a run it has its own thread and event loop: a handler that parses for 50 ms must not delay the dashboard, and a
request must not delay heartbeats. It has its own connections to the ledger for the same reason.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import resource
import socket
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import msgspec
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from shoal.config import Settings
from shoal.control.access import ControlOptions, is_loopback, parse_network
from shoal.control.app import build_app
from shoal.control.live import stop_live_updates
from shoal.errors import LedgerError, ShoalError, UsageError
from shoal.model.log import Log
from shoal.service.jobs import find_job_scraper, out_of_bounds
from shoal.service.work import handled_signals
from shoal.wiring import event_loop_factory, open_ledger, sqlite_path

# Requests may end for so long after a signal; WebSockets are closed at once.
STOP_SECONDS = 3
START_SECONDS = 30.0
MAX_WEBSOCKET_BYTES = 64 << 10
MAX_HEADER_BYTES = 32 << 10
# A client sends the head of a request within so many seconds, and reads what it asked for without a longer pause.
HEAD_SECONDS = 30.0
STUCK_SECONDS = 30.0
# Connections at once, as far as the process may open files; some of them are left for the ledger and for logs.
MAX_CONNECTIONS = 4_000
FILES_LEFT = 100


class Listening(msgspec.Struct, frozen=True, kw_only=True):
    """A server that accepts connections."""

    url: str
    host: str
    port: int


def options_from(settings: Settings) -> ControlOptions:
    """The options of the server that the settings name. Raises InvalidSetting."""
    options = ControlOptions(
        host=settings.serve_host,
        port=settings.serve_port,
        root_path="/" + settings.serve_root_path.strip("/") if settings.serve_root_path.strip("/") else "",
        trust_proxy=tuple(settings.serve_trust_proxy.split()),
        allow_host=tuple(settings.serve_allow_host.split()),
        require_token=settings.serve_require_token,
        jobs=settings.serve_jobs or None,
    )
    for text in options.trust_proxy:
        parse_network(text)
    return options


def check_jobs(settings: Settings, options: ControlOptions) -> list[str]:
    """What of the configuration the paths `/jobs` would refuse, a sentence each.

    Raises NotFound when the project has not the scraper that they are for.
    """
    return [] if options.jobs is None else out_of_bounds(settings, find_job_scraper(settings, options.jobs))


async def check_tokens(settings: Settings, options: ControlOptions) -> None:
    """Raise UsageError when nobody could use the server because there is no token.

    A ledger that is away cannot be asked: the server starts, and refuses everybody until it is back.
    """
    if not options.needs_token:
        return
    try:
        ledger = await open_ledger(msgspec.structs.replace(settings, patience=1.0))
    except LedgerError:
        return
    try:
        has_token = await ledger.access.has_token()
    finally:
        await ledger.close()
    if not has_token:
        with listen(msgspec.structs.replace(options, port=0)):
            pass  # an address that this machine does not have needs no token
        if is_loopback(options.host):
            why = "With --require-token, --trust-proxy or --root-path everybody needs a token"
            otherwise = "leave the option out"
        else:
            why, otherwise = f"Other machines can reach {options.host}", "serve on 127.0.0.1 only"
        raise UsageError(
            f"{why}, and there is no token.",
            remedy=f"Add one with `shoal serve token add NAME --role operator`, or {otherwise}.",
        )


async def serve(
    settings: Settings,
    options: ControlOptions,
    *,
    log: Log,
    on_listening: Callable[[Listening], object],
    on_change: Callable[[str], object] = str,
) -> None:
    """Serve until SIGINT or SIGTERM. Raises UsageError when the address cannot be used."""
    sqlite_path(settings.ledger)  # raises for what is no address
    await check_tokens(settings, options)
    with listen(options) as bound:
        server = make_server(build_app(settings, options, log=log, on_change=on_change), log)
        on_listening(listening_at(bound, options))
        with _stopped_by_signals(server):
            await server.serve([bound])


@contextlib.contextmanager
def listen(options: ControlOptions) -> Iterator[socket.socket]:
    """A socket that is bound to the address, so that the real port is known."""
    try:
        found = socket.getaddrinfo(options.host, options.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError):
        raise UsageError(f"{options.host!r} is no address of this machine.", remedy="Use 127.0.0.1.") from None
    family, kind, protocol, _, address = found[0]
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6 and options.host == "::":
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        try:
            bound.bind(address)
            bound.listen(1024)
        except OSError as error:
            raise _bind_error(options, error) from None
        yield bound
    finally:
        bound.close()


def _bind_error(options: ControlOptions, error: OSError) -> UsageError:
    place = f"{options.host}:{options.port}"
    if error.errno == errno.EADDRINUSE:
        return UsageError(
            f"{place} is in use by another program.", remedy="Choose another port with --port; 0 takes a free one."
        )
    if error.errno == errno.EACCES:
        return UsageError(
            f"{place} is not allowed for this user.", remedy="Choose a port above 1023, and a proxy for the others."
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return UsageError(f"{options.host} is no address of this machine.", remedy="Use 127.0.0.1, or 0.0.0.0 for all.")
    return UsageError(f"{place} cannot be used: {error.strerror or error}.", remedy="Choose another address.")


def listening_at(bound: socket.socket, options: ControlOptions) -> Listening:
    host, port = bound.getsockname()[:2]
    name = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return Listening(url=f"http://{name}:{port}{options.root_path}/", host=host, port=port)


def max_connections() -> int:
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return MAX_CONNECTIONS
    return max(FILES_LEFT, min(MAX_CONNECTIONS, files - FILES_LEFT))


class _MustRead(asyncio.Protocol):
    """Ends a connection whose client does not read what is sent to it: it would hold the answer in memory for ever."""

    transport: asyncio.Transport
    _stuck: asyncio.TimerHandle | None = None

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stuck = asyncio.get_running_loop().call_later(STUCK_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._forget_stuck()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_stuck()
        super().connection_lost(exc)

    def _forget_stuck(self) -> None:
        if self._stuck is not None:
            self._stuck.cancel()
            self._stuck = None


class HttpConnection(_MustRead, H11Protocol):
    """A connection of a client that must send, and read, within a time: uvicorn would wait for ever."""

    _head: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > max_connections():
            transport.abort()
        else:
            self._wait_for_head()

    def handle_events(self) -> None:
        before = self.cycle
        super().handle_events()
        if self.cycle is not before and not self.cycle.response_complete:
            self._end_wait()

    def handle_websocket_upgrade(self, event: Any) -> None:
        self._end_wait()
        super().handle_websocket_upgrade(event)

    def on_response_complete(self) -> None:
        self._wait_for_head()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_wait()
        super().connection_lost(exc)

    def _wait_for_head(self) -> None:
        self._end_wait()
        self._head = self.loop.call_later(HEAD_SECONDS, self.transport.abort)

    def _end_wait(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None


class WebSocketConnection(_MustRead, WebSocketsSansIOProtocol):
    """A WebSocket whose client must read."""


class ControlServer(uvicorn.Server):
    """A server that leaves the signals of the process to its caller."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # Streams never end by themselves, and would be waited for.
        stop_live_updates(self.config.app)
        await super().shutdown(sockets)
        if self.force_exit:
            await self.lifespan.shutdown()  # uvicorn leaves it out then; the ledger is closed all the same


def make_server(app: FastAPI, log: Log) -> ControlServer:
    _log_warnings_of_uvicorn(log)
    config = uvicorn.Config(
        app,
        lifespan="on",
        http=HttpConnection,
        ws=WebSocketConnection,
        log_config=None,
        access_log=False,
        proxy_headers=False,  # access.py decides whom to believe
        server_header=False,
        timeout_graceful_shutdown=STOP_SECONDS,
        timeout_keep_alive=30,
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        ws_max_size=MAX_WEBSOCKET_BYTES,
        ws_max_queue=16,
        ws_per_message_deflate=False,  # each client would need its own compressor
    )
    return ControlServer(config)


class ServerThread:
    """The server beside other work of this process, in a thread with its own event loop.

    If the port is taken, a free one is used: the link says which. A server that cannot start is no reason to fail: the
    work goes on, and `start` raises the error for the caller to report.
    """

    def __init__(self, settings: Settings, options: ControlOptions, *, log: Log) -> None:
        self._settings = settings
        self._options = options
        self._log = log
        self._server: ControlServer | None = None
        self._listening: Listening | None = None
        self._error: BaseException | None = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="shoal-serve", daemon=True)

    def start(self) -> Listening:
        """Start it and wait until it accepts connections."""
        self._thread.start()
        self._ready.wait(START_SECONDS)
        if self._error is not None:
            raise self._error
        if self._listening is None:
            raise UsageError(f"The dashboard did not start within {START_SECONDS:g} s.", remedy="Use `shoal serve`.")
        return self._listening

    def stop(self) -> None:
        """Stop it, within seconds although connections are open."""
        if self._server is not None:
            self._server.should_exit = True
        self._thread.join(STOP_SECONDS + 5)

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=event_loop_factory()) as runner:
                runner.run(self._serve())
        except BaseException as error:
            self._error = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        await check_tokens(self._settings, self._options)
        with self._listen() as bound:
            self._server = make_server(build_app(self._settings, self._options, log=self._log), self._log)
            self._listening = listening_at(bound, self._options)
            self._ready.set()
            await self._server.serve([bound])

    @contextlib.contextmanager
    def _listen(self) -> Iterator[socket.socket]:
        with contextlib.ExitStack() as stack:
            try:
                bound = stack.enter_context(listen(self._options))
            except ShoalError:
                bound = stack.enter_context(listen(msgspec.structs.replace(self._options, port=0)))
            yield bound


@contextlib.contextmanager
def _stopped_by_signals(server: ControlServer) -> Iterator[None]:
    """The first SIGINT or SIGTERM lets requests end, the second does not wait for them, a third ends the process."""
    count = 0

    def on_signal(number: int, frame: FrameType | None) -> None:
        nonlocal count
        count += 1
        server.should_exit = True
        server.force_exit = count > 1
        if count > 2:
            os._exit(130)

    with handled_signals(on_signal):
        yield


class _UvicornLog(logging.Handler):
    """Passes warnings of uvicorn, such as about invalid requests, to the log of the server."""

    def __init__(self, log: Log) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        self._log.warning("uvicorn", text=record.getMessage(), exc_info=record.exc_info)


def _log_warnings_of_uvicorn(log: Log) -> None:
    logger = logging.getLogger("uvicorn")
    logger.handlers[:] = [_UvicornLog(log)]
    logger.propagate = False
    logger.setLevel(logging.WARNING)
