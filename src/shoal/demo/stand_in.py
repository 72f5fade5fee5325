"""Stand-in sites: each imitates a real site on the loopback for demos and tests, and logs every visit.

A site is made from a seed, so two runs see the same pages. Its faults are switched on by name. It is served by one
thread with its own event loop. `POST /_stand_in/faults/NAME` and `DELETE` of the same path switch a fault on and off
from another process, `GET /_stand_in/log` is the log in JSON Lines.
"""

from __future__ import annotations

import argparse
import asyncio
import errno
import signal
import socket
import sys
import threading
import time
import urllib.request
import zlib
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, ClassVar, Generic, Self, TypeVar
from urllib.parse import parse_qs

import msgspec

from shoal.errors import InvalidSetting, ShoalError

if TYPE_CHECKING:
    from aiohttp import web

LOOPBACK = "127.0.0.1"
Running = TypeVar("Running")
HTML, JSON, TEXT = "text/html; charset=utf-8", "application/json; charset=utf-8", "text/plain; charset=utf-8"
# Limits the memory of a site that runs for days.
LOG_LENGTH = 500_000
_CONTROL_PATH = "/_stand_in/"
_PORT_TRIES = 20
# Time for requests that are still being answered at shutdown.
_SHUTDOWN_SECONDS = 1.0
_SWITCH_SECONDS = 10.0


class Visit(msgspec.Struct, frozen=True, kw_only=True):
    """One request as the site saw it: `at` and `ended` by the monotonic clock, `host` without its port.

    `note` is what the site adds, such as the name of the token that the request carried.
    """

    at: float
    ended: float
    host: str
    path: str
    status: int
    peer: str
    user_agent: str
    method: str = "GET"
    note: str = ""


class StandInRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request to a stand-in. `path` is without the query, `query` has the first value of each name.

    Names of `headers` ignore case. `peer` is the address that the request came from.
    """

    method: str
    host: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    peer: str


class StandInResponse(msgspec.Struct, frozen=True, kw_only=True):
    """What a stand-in answers. `seconds`: wait so long before; `reset`: close the connection without an answer."""

    body: bytes | str = b""
    status: int = 200
    content_type: str = HTML
    headers: Mapping[str, str] = {}
    seconds: float = 0.0
    reset: bool = False
    note: str = ""


class StandIn(ABC):
    """A site made from a seed. Subclasses answer requests; `FAULTS` says which faults can be switched on.

    `latency`: the least and the most seconds of a response, constant for each path.
    """

    name: ClassVar[str]
    FAULTS: ClassVar[Mapping[str, str]] = {}
    default_port: ClassVar[int] = 8002

    def __init__(
        self, *, seed: int = 7, latency: tuple[float, float] = (0.0, 0.0), faults: Collection[str] = ()
    ) -> None:
        check_latency(latency)
        self.seed = seed
        self.latency = latency
        self.faults: set[str] = set()
        self.url = ""  # set while it is served
        for fault in faults:
            self.switch(fault)

    @abstractmethod
    async def answer(self, request: StandInRequest) -> StandInResponse:
        """The response to a request. It runs in the event loop of the site: one at a time up to an `await`."""

    def switch(self, fault: str, on: bool = True) -> None:
        """Switch a fault on or off. Raises InvalidSetting for one that this site does not have."""
        if fault not in self.FAULTS:
            known = ", ".join(self.FAULTS) or "none"
            raise InvalidSetting(f"{self.name} has no fault {fault!r}.", remedy=f"Its faults: {known}.")
        (self.faults.add if on else self.faults.discard)(fault)

    @contextmanager
    def serving(self, *, port: int = 0, hosts: Sequence[str] = (LOOPBACK,)) -> Iterator[RunningStandIn[Self]]:
        """Serve the site on these addresses of the loopback, on one port, with an empty log."""
        sockets = listen(hosts, port)
        bound = sockets[0].getsockname()[1]
        urls = {host: f"http://{host}:{bound}" for host in hosts}
        self.url = urls[hosts[0]]
        visits: deque[Visit] = deque(maxlen=LOG_LENGTH)
        with serve_in_thread(_Responder(self, visits).respond, sockets, name=self.name):
            yield RunningStandIn(self, urls, visits)


Site_co = TypeVar("Site_co", bound=StandIn, covariant=True)


class RunningStandIn(Generic[Site_co]):
    """A stand-in that is being served, with its log. `urls` has its address for each of its hosts."""

    def __init__(self, site: Site_co, urls: Mapping[str, str], visits: deque[Visit]) -> None:
        self.site = site
        self.urls = urls
        self.url = next(iter(urls.values()))
        self._visits = visits

    def log(self) -> list[Visit]:
        """The visits that have ended, in that order: at most the last 500,000."""
        return list(self._visits)

    def switch(self, fault: str, on: bool = True) -> None:
        self.site.switch(fault, on)


class _Responder:
    """Turns requests of the server into those of a site, and logs them."""

    def __init__(self, site: StandIn, visits: deque[Visit]) -> None:
        self._site = site
        self._visits = visits

    async def respond(self, request: web.BaseRequest) -> web.StreamResponse:
        from aiohttp import web

        at = time.monotonic()
        if request.path.startswith(_CONTROL_PATH):
            return self._control(request)
        asked = StandInRequest(
            method=request.method,
            host=request.host.partition(":")[0],
            path=request.path,
            query={name: values[0] for name, values in parse_qs(request.query_string, keep_blank_values=True).items()},
            headers=request.headers,
            body=await request.read(),
            peer=request.remote or "",
        )
        answer = await self._site.answer(asked)
        await asyncio.sleep(latency_of(request.raw_path, self._site.latency) + answer.seconds)
        self._visits.append(
            Visit(
                at=at,
                ended=time.monotonic(),
                host=asked.host,
                path=request.raw_path,
                status=0 if answer.reset else answer.status,
                peer=asked.peer,
                user_agent=asked.headers.get("User-Agent", ""),
                method=asked.method,
                note=answer.note,
            )
        )
        if answer.reset and request.transport is not None:
            request.transport.abort()
        body = answer.body.encode() if isinstance(answer.body, str) else answer.body
        return web.Response(
            body=body, status=answer.status, headers={"Content-Type": answer.content_type, **answer.headers}
        )

    def _control(self, request: web.BaseRequest) -> web.Response:
        from aiohttp import web

        what, _, fault = request.path.removeprefix(_CONTROL_PATH).partition("/")
        if what == "log":
            lines = b"".join(msgspec.json.encode(visit) + b"\n" for visit in self._visits)
            return web.Response(body=lines, content_type="application/jsonl")
        if what == "faults" and request.method in ("POST", "DELETE"):
            try:
                self._site.switch(fault, request.method == "POST")
            except ShoalError as error:
                return web.Response(text=f"{error}\n", status=404)
        return web.json_response({"faults": sorted(self._site.faults), "known": dict(self._site.FAULTS)})


def latency_of(path: str, latency: tuple[float, float]) -> float:
    """The seconds that a path takes: always the same for one path."""
    return latency[0] + (latency[1] - latency[0]) * (zlib.crc32(path.encode()) % 1000) / 1000


def check_latency(latency: tuple[float, float]) -> None:
    if not 0 <= latency[0] <= latency[1]:
        raise InvalidSetting(f"Pages cannot take from {latency[0]} to {latency[1]} seconds.")


def check_port(port: int) -> None:
    if not 0 <= port <= 65_535:
        raise InvalidSetting(f"There is no port {port}.", remedy="Choose one up to 65535, or 0 for any that is free.")


class CannotBind(InvalidSetting):
    """An address of the loopback that a site cannot listen on; `taken`: another program does."""

    remedy = "Choose another port, or 0 for any that is free."

    def __init__(self, host: str, port: int, error: OSError) -> None:
        super().__init__(f"The site cannot open {host}:{port}: {error.strerror}.")
        self.taken = error.errno == errno.EADDRINUSE


def listen(hosts: Sequence[str], port: int) -> list[socket.socket]:
    """A socket for each host, all on one port; port 0 is any that is free on all of them. Raises InvalidSetting."""
    check_port(port)
    for tries_left in reversed(range(_PORT_TRIES)):
        sockets: list[socket.socket] = []
        try:
            for host in hosts:
                sockets.append(_bind(host, sockets[0].getsockname()[1] if sockets else port))
        except CannotBind as error:
            for opened in sockets:
                opened.close()
            if port or not error.taken or not tries_left:
                raise
        else:
            break
    return sockets


def _bind(host: str, port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise CannotBind(host, port, error) from error
    listener.listen(512)
    return listener


@contextmanager
def serve_in_thread(
    respond: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]], sockets: Sequence[socket.socket], *, name: str
) -> Iterator[None]:
    """Answer requests in a thread with its own event loop, for the length of a block."""
    opened: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()
    thread = threading.Thread(target=_run, args=(respond, sockets, opened), name=name, daemon=True)
    thread.start()
    loop, closing = opened.result()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(closing.set)
        thread.join()


def _run(
    respond: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
    sockets: Sequence[socket.socket],
    opened: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]],
) -> None:
    async def serve() -> None:
        from aiohttp import web

        closing = asyncio.Event()
        runner = web.ServerRunner(web.Server(respond, access_log=None), shutdown_timeout=_SHUTDOWN_SECONDS)
        await runner.setup()
        sites = [web.SockSite(runner, listener) for listener in sockets]
        for site in sites:
            await site.start()
        opened.set_result((asyncio.get_running_loop(), closing))
        await closing.wait()
        for site in sites:
            await site.stop()
        # A connection that was accepted last is known to the server two steps of the loop later; only then cleanup
        # closes it.
        for _ in range(3):
            await asyncio.sleep(0)
        await runner.cleanup()

    try:
        asyncio.run(serve())
    except BaseException as error:
        if opened.done():
            raise
        opened.set_exception(error)


async def close_servers(*servers: asyncio.Server) -> None:
    """Close servers that have an event loop of their own, and cancel every other task of it: their connections.

    A task that is cancelled before its first step would not close its connection, so each has taken that step.
    """
    for server in servers:
        server.close()
    this, cancelled = asyncio.current_task(), set[asyncio.Task[object]]()
    while tasks := asyncio.all_tasks() - {this}:
        await asyncio.sleep(0)
        for task in tasks - cancelled:
            task.cancel()
        cancelled |= tasks
        await asyncio.wait(tasks, timeout=0.05)


def main(kind: type[StandIn], arguments: Sequence[str] | None = None) -> int:
    """`python -m MODULE --port 8002 --seed 7 --fault NAME`: serve a stand-in until Ctrl-C.

    With `--running URL` the faults are switched on in one that is served already.
    """
    options = argparse.ArgumentParser(description=f"Serve the stand-in {kind.name} on the loopback until Ctrl-C.")
    options.add_argument(
        "--port", type=int, default=kind.default_port, help="the port; 0 takes any that is free (default: %(default)s)"
    )
    options.add_argument("--seed", type=int, default=7, help="another seed has other data (default: %(default)s)")
    options.add_argument(
        "--latency", type=float, default=0.05, metavar="SECONDS", help="of a response (default: %(default)s)"
    )
    options.add_argument(
        "--fault",
        action="append",
        default=[],
        choices=list(kind.FAULTS),
        help="; ".join(f"{name}: {meaning}" for name, meaning in kind.FAULTS.items()) or "there are none",
    )
    options.add_argument(
        "--running", metavar="URL", help="switch the faults on in the stand-in that is served there, and end"
    )
    chosen = options.parse_args(arguments)
    if chosen.running is not None:
        return _switch_on(chosen.running.rstrip("/"), chosen.fault)
    try:
        site = kind(seed=chosen.seed, latency=(chosen.latency, chosen.latency), faults=chosen.fault)
        serve_until_signal(site.serving(port=chosen.port), lambda running: f"{kind.name} is at {running.url}/")
    except ShoalError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


def _switch_on(url: str, faults: Sequence[str]) -> int:
    """Switch faults on in a stand-in of another process. Returns the exit code."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # it is on this machine
    for name in faults:
        request = urllib.request.Request(f"{url}{_CONTROL_PATH}faults/{name}", method="POST")
        try:
            opener.open(request, timeout=_SWITCH_SECONDS).close()
        except OSError as error:
            print(f"{name} was not switched on at {url}: {error}", file=sys.stderr)
            return 1
    return 0


def serve_until_signal(serving: AbstractContextManager[Running], describe: Callable[[Running], str]) -> None:
    """Keep a site up until SIGINT or SIGTERM; print where it is."""
    stops = {signal.SIGINT, signal.SIGTERM}
    # Blocked before the server's thread starts, so that sigwait receives the signal.
    signal.pthread_sigmask(signal.SIG_BLOCK, stops)
    with serving as running:
        print(describe(running), flush=True)
        print("Stop it with Ctrl-C.", flush=True)
        signal.sigwait(stops)
