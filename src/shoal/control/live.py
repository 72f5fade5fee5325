"""Live updates for browsers and programs: a WebSocket, and server-sent events with the same frames."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec
from fastapi import APIRouter, FastAPI, Query, Request, WebSocket, WebSocketDisconnect
from fastapi.requests import HTTPConnection
from fastapi.responses import StreamingResponse

from shoal.config import Settings
from shoal.control.access import Principal, Viewer, check_websocket, is_still_allowed
from shoal.control.answers import ApiError
from shoal.control.connection import LedgerConnection
from shoal.errors import LedgerError, UsageError
from shoal.model.log import Log
from shoal.service.live import LiveFrame, LiveHub, Subscription, check_topics

MAX_CLIENTS = 2_000
MAX_TOPICS = 20
MAX_MESSAGE_CHARACTERS = 16_384
# So many messages within so many seconds.
MAX_MESSAGES, MESSAGES_SECONDS = 50, 10.0
FRAME_SECONDS = 1.0
# The first frame waits so long for topics that are not read yet.
FIRST_FRAME_SECONDS = 0.5
EMPTY_FRAME_SECONDS = 15.0
ACCESS_SECONDS = 15.0
# Close codes; those from 4000 on are ours. A client that does not read is disconnected without one (server.py).
NOT_ALLOWED, TOO_LARGE, RESTARTING, TOO_MANY_CLIENTS, BAD_MESSAGE = 1008, 1009, 1012, 1013, 4000

# How a connection ends: a close code, or None when the client has gone; and a reason.
End = tuple[int | None, str]

router = APIRouter()


class LiveMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a client sends. `subscribe`: the topics from now on; `cursor`: of the last frame that it has."""

    subscribe: list[str] | None = None
    cursor: str | None = None
    pause: bool | None = None


_decode = msgspec.json.Decoder(LiveMessage).decode


class LiveClients:
    """The live clients of a server, and the hub that reads for them."""

    def __init__(self, hub: LiveHub) -> None:
        self.hub = hub
        self._clients: set[LiveClient] = set()
        self._stopping = False

    @property
    def count(self) -> int:
        return len(self._clients)

    @property
    def is_full(self) -> bool:
        return self._stopping or len(self._clients) >= MAX_CLIENTS

    def stop(self) -> None:
        """Disconnect all: the server stops."""
        self._stopping = True
        for client in self._clients:
            client.end(RESTARTING, "The server stops.")

    @asynccontextmanager
    async def client(self, connection: HTTPConnection, principal: Principal) -> AsyncIterator[LiveClient]:
        client = LiveClient(self.hub.open(), connection, principal)
        self._clients.add(client)
        try:
            yield client
        finally:
            self._clients.discard(client)
            client.close()

    async def watch_access(self) -> None:
        """Check again and again who may stay; until cancelled."""
        while True:
            await asyncio.sleep(ACCESS_SECONDS)
            with suppress(LedgerError):  # they are looked up again later
                await self.check_access()

    async def check_access(self) -> None:
        """Disconnect clients whose token or session has ended. One look-up serves all that use it."""
        by_credentials: dict[object, list[LiveClient]] = {}
        for client in self._clients:
            by_credentials.setdefault(client.credentials, []).append(client)
        for group in by_credentials.values():
            if not await is_still_allowed(group[0].connection, group[0].principal):
                for client in group:
                    client.end(NOT_ALLOWED, "The token or the session has ended.")


class LiveClient:
    """One client: which frame it gets next, and when. `ended`: why the server ends the connection."""

    def __init__(self, subscription: Subscription, connection: HTTPConnection, principal: Principal) -> None:
        self.connection = connection
        self.principal = principal
        self.ended: asyncio.Future[End] = asyncio.get_running_loop().create_future()
        self._subscription = subscription
        self._playing = asyncio.Event()
        self._playing.set()
        self._sent_at = -FRAME_SECONDS
        self._first = True

    @property
    def credentials(self) -> object:
        headers = self.connection.headers
        return self.principal, headers.get("authorization"), headers.get("cookie")

    def end(self, code: int, reason: str) -> None:
        if not self.ended.done():
            self.ended.set_result((code, reason))

    def close(self) -> None:
        self._subscription.close()

    def subscribe(self, topics: tuple[str, ...], cursor: str | None) -> None:
        self._subscription.subscribe(topics, cursor)
        self._first = True

    def pause(self, paused: bool) -> None:
        if paused:
            self._playing.clear()
        else:
            self._playing.set()

    async def next_frame(self) -> LiveFrame:
        """The next frame: what changed, a second after the last one at the earliest; or now and then an empty one."""
        subscription = self._subscription
        empty_at = time.monotonic() + EMPTY_FRAME_SECONDS
        while True:
            try:
                async with asyncio.timeout(max(0.0, empty_at - time.monotonic())):
                    await self._playing.wait()
                    await subscription.changed.wait()
            except TimeoutError:
                return subscription.empty_frame()
            await asyncio.sleep(self._sent_at + FRAME_SECONDS - time.monotonic())
            if self._first:
                await self._wait_until_ready()
            if self._playing.is_set() and (frame := subscription.take()) is not None:
                self._sent_at = time.monotonic()
                return frame

    async def _wait_until_ready(self) -> None:
        """Topics that were just subscribed come with one frame, if they are read soon."""
        with suppress(TimeoutError):
            async with asyncio.timeout(FIRST_FRAME_SECONDS):
                while not self._subscription.ready:
                    self._subscription.changed.clear()
                    await self._subscription.changed.wait()
        self._first = False


@asynccontextmanager
async def live_updates(app: FastAPI, connection: LedgerConnection, settings: Settings, log: Log) -> AsyncIterator[None]:
    """Live updates of an application, for the length of a block."""
    hub = LiveHub(lambda: connection.ledger, settings, warn=log.warning)
    app.state.live = clients = LiveClients(hub)
    watching = asyncio.create_task(clients.watch_access(), name="live access")
    try:
        yield
    finally:
        clients.stop()
        watching.cancel()
        await hub.close()


def stop_live_updates(app: object) -> None:
    """Disconnect the live clients of an application, if it was started."""
    clients = getattr(getattr(app, "state", None), "live", None)
    if isinstance(clients, LiveClients):
        clients.stop()


def live_clients(connection: HTTPConnection) -> LiveClients:
    found: LiveClients = connection.app.state.live
    return found


@router.websocket("/api/v1/live")
async def live_socket(websocket: WebSocket) -> None:
    async with connected(websocket) as client:
        if client is not None:
            await run_until_first(websocket, client, _receive(websocket, client), _send(websocket, client))


@asynccontextmanager
async def connected(websocket: WebSocket) -> AsyncIterator[LiveClient | None]:
    """Accept a WebSocket of somebody who may read, as one of the live clients; None when there are too many."""
    principal = await check_websocket(websocket)
    clients = live_clients(websocket)
    await websocket.accept()
    if clients.is_full:
        await websocket.close(TOO_MANY_CLIENTS, "The server has too many live clients. Try again later.")
        yield None
        return
    async with clients.client(websocket, principal) as client:
        yield client


async def run_until_first(websocket: WebSocket, client: LiveClient, *works: Coroutine[Any, Any, End]) -> None:
    """Serve a client until one of these returns, or the server ends the connection; then close it."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        await asyncio.wait({*tasks, client.ended}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    if client.ended.done():
        results.insert(0, client.ended.result())
    for result in results:
        if isinstance(result, tuple):
            await _close(websocket, *result)
            return


async def _close(websocket: WebSocket, code: int | None, reason: str) -> None:
    if code is not None:
        # A client that does not read does not read this either.
        with suppress(WebSocketDisconnect, RuntimeError, TimeoutError):
            async with asyncio.timeout(FRAME_SECONDS):
                await websocket.close(code, reason)


async def ignore_messages(websocket: WebSocket) -> End:
    """Read what a client sends that has nothing to say. Returns how the connection ends."""
    return await _read_messages(websocket, lambda text: None)


async def _receive(websocket: WebSocket, client: LiveClient) -> End:
    """Do what the client asks for. Returns how the connection ends."""

    def obey(text: str) -> None:
        wanted = _decode(text)
        if wanted.subscribe is not None:
            client.subscribe(check_topics(wanted.subscribe, MAX_TOPICS), wanted.cursor)
        if wanted.pause is not None:
            client.pause(wanted.pause)

    return await _read_messages(websocket, obey)


async def _read_messages(websocket: WebSocket, obey: Callable[[str], None]) -> End:
    times: deque[float] = deque(maxlen=MAX_MESSAGES)
    while True:
        message = await websocket.receive()
        if message["type"] != "websocket.receive":
            return None, ""
        now = time.monotonic()
        if len(times) == MAX_MESSAGES and now - times[0] < MESSAGES_SECONDS:
            return BAD_MESSAGE, "Too many messages."
        times.append(now)
        text = message.get("text")
        if text is None:
            return BAD_MESSAGE, "Send text, not bytes."
        if len(text) > MAX_MESSAGE_CHARACTERS:
            return TOO_LARGE, f"A message has {MAX_MESSAGE_CHARACTERS} characters at most."
        try:
            obey(text)
        except (msgspec.DecodeError, UsageError) as error:
            return BAD_MESSAGE, _short(str(error))


async def _send(websocket: WebSocket, client: LiveClient) -> End:
    while True:
        frame = await client.next_frame()
        try:
            await websocket.send_text(frame.text)
        except (WebSocketDisconnect, RuntimeError):
            return None, ""


def _short(reason: str) -> str:
    """A reason fits a close frame: 123 bytes."""
    return reason.encode()[:120].decode(errors="ignore")


@router.get(
    "/api/v1/live",
    tags=["live"],
    summary="Live updates as server-sent events",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {}}}},
)
async def live_events(
    request: Request,
    principal: Viewer,
    topics: str = Query("overview", max_length=MAX_MESSAGE_CHARACTERS, description="Topics, separated by commas."),
    cursor: str | None = Query(None, max_length=100, description="Continue here, as Last-Event-ID does."),
) -> StreamingResponse:
    """The frames of the WebSocket at the same address, each as the data of an event; its id is the cursor."""
    clients = live_clients(request)
    if clients.is_full:
        raise ApiError(
            503,
            "too_many_clients",
            "The server has too many live clients.",
            "Try again later.",
            headers={"Retry-After": "10"},
        )
    wanted = check_topics([name for part in topics.split(",") if (name := part.strip())], MAX_TOPICS)
    clients.hub.check_room(wanted)
    after = request.headers.get("last-event-id") or cursor
    return StreamingResponse(
        _events(request, principal, clients, wanted, after),
        media_type="text/event-stream",
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )


async def _events(
    request: Request, principal: Principal, clients: LiveClients, topics: tuple[str, ...], cursor: str | None
) -> AsyncIterator[str]:
    async with clients.client(request, principal) as client:
        client.subscribe(topics, cursor)
        yield "retry: 2000\n\n"
        while not client.ended.done():
            next_frame = asyncio.create_task(client.next_frame())
            try:
                waiting: set[asyncio.Future[Any]] = {next_frame, client.ended}
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            finally:
                next_frame.cancel()
            if next_frame.done() and not next_frame.cancelled():
                frame = next_frame.result()
                yield f"id: {frame.cursor}\ndata: {frame.text}\n\n"
