"""What all answers have in common: errors as `{"error": {"code", "message", "hint"}}`, headers, entity tags, time-outs,
and idempotency keys: a write that is sent twice with the same key is done once.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import secrets
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.datastructures import Headers, MutableHeaders, QueryParams
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shoal.control.connection import LedgerConnection
from shoal.errors import (
    FeedUnavailable,
    LedgerError,
    NotAllowed,
    NotFound,
    ShoalError,
    StorageUnavailable,
    UsageError,
    WrongState,
)
from shoal.ledger.coordination import REQUEST_KEY_PREFIX
from shoal.ledger.protocols import Ledger
from shoal.model.log import Log
from shoal.model.redaction import redacted

# The first class that fits decides.
_STATUSES: tuple[tuple[type[ShoalError], int], ...] = (
    (WrongState, 409),
    (NotAllowed, 409),
    (UsageError, 422),
    (NotFound, 404),
    (LedgerError, 503),
    (FeedUnavailable, 503),
    (StorageUnavailable, 503),
)
_HTTP_CODES = {
    400: "bad_request",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    413: "too_large",
    415: "unsupported_media_type",
    429: "too_many_requests",
}


# Requests that are worked on at once, and how long a read may take until its answer begins.
MAX_REQUESTS = 64
# Whoever restarts processes asks these. A server whose ledger is slow has many requests, and must not be restarted.
PROBES = ("/healthz", "/readyz")
READ_SECONDS = 10.0
MAX_TAGGED_BYTES = 1 << 20
KEY_HEADER = "idempotency-key"
MAX_KEY_LENGTH = 255
# A server that dies while it does a write holds the key for so long.
KEY_SECONDS = 30.0
MAX_KEPT_BYTES = 256 << 10
_RUNNING = "shoal.running"
SECURITY_HEADERS = {
    "content-security-policy": "default-src 'self'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; object-src 'none'; base-uri 'self'; form-action 'self'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}

# `?preview=true` of a write: it changes nothing and says what it would change.
Preview = Annotated[bool, Query(description="Change nothing; answer what would be changed.")]


class ApiError(Exception):
    """An answer other than success that no error of Shoal stands for."""

    def __init__(
        self, status: int, code: str, message: str, hint: str = "", *, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.hint = hint
        self.headers = headers


def error_response(
    status: int, code: str, message: str, hint: str = "", headers: dict[str, str] | None = None
) -> JSONResponse:
    return JSONResponse(
        {"error": {"code": code, "message": redacted(message), "hint": redacted(hint)}}, status, headers
    )


def error_code(error: ShoalError) -> str:
    """`WrongState` -> `wrong_state`"""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", type(error).__name__).lower()


def status_of(error: ShoalError) -> int:
    return next((status for kind, status in _STATUSES if isinstance(error, kind)), 500)


def shoal_error_response(error: ShoalError, secrets: Iterable[str] = ()) -> JSONResponse:
    status = status_of(error)
    headers = {"Retry-After": "2"} if status == 503 else None
    message, remedy = (redacted(text, secrets) for text in (error.message, error.remedy))
    return error_response(status, error_code(error), message, remedy, headers)


def api_error_response(error: ApiError) -> JSONResponse:
    return error_response(error.status, error.code, error.message, error.hint, error.headers)


def install(app: FastAPI) -> None:
    """Answer errors of Shoal, of the request and of the framework in one form."""

    @app.exception_handler(ShoalError)
    async def on_shoal_error(request: Request, error: ShoalError) -> JSONResponse:
        return shoal_error_response(error, request.app.state.control.settings.secrets())

    @app.exception_handler(ApiError)
    async def on_api_error(request: Request, error: ApiError) -> JSONResponse:
        return api_error_response(error)

    @app.exception_handler(RequestValidationError)
    async def on_invalid_request(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        message = f"{place}: {first['msg']}."
        if first["type"] == "json_invalid":  # its place is a position in the text
            message = f"The body is not JSON: {first['ctx']['error']} at character {first['loc'][-1]}."
        return error_response(422, "invalid_request", message, "See /api/v1/openapi.json for what is accepted.")

    @app.exception_handler(HTTPException)
    async def on_http_error(request: Request, error: HTTPException) -> JSONResponse:
        code = _HTTP_CODES.get(error.status_code, "http_error")
        headers = None if error.headers is None else dict(error.headers)
        return error_response(error.status_code, code, str(error.detail), headers=headers)


class FrameMiddleware:
    """Around everything: headers that browsers obey, an answer to every error, and bounds on requests and their time.

    A read ends with 503 when its answer has not begun within READ_SECONDS, or as soon as the ledger is lost. A request
    counts until its answer begins, so streams and WebSockets do not use up the number of requests, and neither do
    clients that are slow to send (`waiting_for_client`).
    """

    def __init__(self, app: ASGIApp, connection: LedgerConnection, log: Log) -> None:
        self._app = app
        self._connection = connection
        self._log = log
        self._running = _Running()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] == "websocket":
            await self._websocket(scope, receive, send)
            return
        if self._running.count >= MAX_REQUESTS and scope["path"] not in PROBES:
            await _overloaded()(scope, receive, _with_headers(send))
            return
        self._running.count += 1
        scope[_RUNNING] = self._running
        has_begun = False

        async def begin(message: Message) -> None:
            nonlocal has_begun
            if message["type"] == "http.response.start" and not has_begun:
                has_begun = True
                self._running.count -= 1
                ended.close()  # a stream that has begun says itself that the ledger is lost
                with suppress(RuntimeError):  # it has just expired
                    deadline.reschedule(None)
                _add_headers(message)
            await send(message)

        # Probes have a bound and an answer of their own.
        is_bounded = scope["method"] in ("GET", "HEAD") and scope["path"] not in PROBES
        deadline = asyncio.timeout(READ_SECONDS if is_bounded else None)
        ended = ExitStack()
        try:
            with ended:
                async with deadline:
                    if deadline.when() is not None:
                        ended.enter_context(self._connection.ends_when_lost(deadline))
                    await self._app(scope, receive, begin)
        except Exception as error:
            expired = isinstance(error, TimeoutError) and deadline.expired()
            response = self._late() if expired else self._unexpected(scope, error)
            if has_begun:
                raise  # the connection is closed, so that nobody takes the answer for complete
            await response(scope, receive, begin)
        finally:
            if not has_begun:
                self._running.count -= 1

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._app(scope, receive, _with_headers(send))
        except Exception as error:
            self._unexpected(scope, error)
            with suppress(Exception):
                await send({"type": "websocket.close", "code": 1011})

    def _late(self) -> Response:
        problem = self._connection.problem
        if problem is not None:
            return error_response(503, error_code(problem), problem.message, problem.remedy, {"Retry-After": "2"})
        message = f"The ledger is slow: this was not read within {READ_SECONDS:g} s."
        return error_response(503, "slow", message, "Try again later.", {"Retry-After": "5"})

    def _unexpected(self, scope: Scope, error: Exception) -> Response:
        """Nothing about the error but its id is answered: its text may hold anything."""
        id = secrets.token_hex(6)
        self._log.error(
            "request failed", error_id=id, method=scope.get("method", ""), path=scope["path"][:500], exc_info=error
        )
        return error_response(
            500, "internal", f"Something unexpected happened (error {id}).", f"The log of the server says what: {id}."
        )


class _Running:
    """How many requests are worked on."""

    count = 0


@contextmanager
def waiting_for_client(scope: Scope) -> Iterator[None]:
    """For the length of a block, a request that waits for its client does not count as one that is worked on."""
    running: _Running = scope[_RUNNING]
    running.count -= 1
    try:
        yield
    finally:
        running.count += 1


class AnswerMiddleware:
    """Entity tags of reads, and idempotency keys of writes. `owner_of` says whose keys a request may use; None: it has
    no use for one.
    """

    def __init__(
        self, app: ASGIApp, connection: LedgerConnection, owner_of: Callable[[Scope, Headers], Awaitable[str | None]]
    ) -> None:
        self._app = app
        self._connection = connection
        self._owner_of = owner_of

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        try:
            if scope["method"] == "GET":
                await self._app(scope, receive, _Tagged(headers.get("if-none-match"), send))
            elif KEY_HEADER in headers and not _is_preview(scope):
                await self._once(scope, headers, receive, send)
            else:
                await self._app(scope, receive, send)
        except ApiError as error:
            await api_error_response(error)(scope, receive, send)
        except ShoalError as error:
            await shoal_error_response(error)(scope, receive, send)

    async def _once(self, scope: Scope, headers: Headers, receive: Receive, send: Send) -> None:
        key = headers[KEY_HEADER]
        if not key or len(key) > MAX_KEY_LENGTH or not key.isprintable():
            raise ApiError(422, "invalid_request", f"An Idempotency-Key has 1 to {MAX_KEY_LENGTH} plain characters.")
        owner = await self._owner_of(scope, headers)
        if owner is None:
            await self._app(scope, receive, send)
            return
        message = await receive()
        body: bytes = message.get("body", b"")
        request = _digest(scope["method"], scope["path"], scope["query_string"], body)
        ledger = self._connection.ledger
        name = REQUEST_KEY_PREFIX + _digest(owner, key)
        # The owner of the lock names the request, so that another one with the same key is told apart at once.
        holder = f"{request} {secrets.token_hex(8)}"
        if not await ledger.locks.acquire(name, holder, KEY_SECONDS):
            await _stored_response(await _known_answer(ledger, name, request))(scope, receive, send)
            return
        kept = _Kept()
        renewing = asyncio.create_task(_renew(ledger, name, holder))
        try:
            await self._app(scope, _first(message, receive), kept)
        except BaseException:
            await _quietly(ledger.locks.release(name, holder))
            raise
        finally:
            renewing.cancel()
        # A request that was refused has changed nothing: the next one with this key is done.
        if kept.status < 400:
            await _quietly(ledger.locks.complete(name, holder, kept.value(request)))
        else:
            await _quietly(ledger.locks.release(name, holder))
        # Last: whoever asks again because the answer was lost, the server with it, gets the same one.
        for each in kept.messages:
            await send(each)


class _Tagged:
    """Gives short answers of reads an entity tag, and answers 304 when the client has them."""

    def __init__(self, known: str | None, send: Send) -> None:
        self._known = known
        self._send = send
        self._start: Message | None = None

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(raw=message["headers"])
            is_json = headers.get("content-type", "").startswith("application/json")
            if message["status"] == 200 and is_json and "etag" not in headers:
                self._start = message
                return
        elif self._start is not None:
            start, self._start = self._start, None
            if not message.get("more_body", False) and len(message.get("body", b"")) <= MAX_TAGGED_BYTES:
                headers = MutableHeaders(raw=start["headers"])
                tag = f'W/"{hashlib.sha256(message.get("body", b"")).hexdigest()[:24]}"'
                headers["etag"] = tag
                if _has_tag(self._known, tag):
                    del headers["content-length"]
                    del headers["content-type"]
                    start["status"], message = 304, {**message, "body": b""}
                start["headers"] = headers.raw
            await self._send(start)
        await self._send(message)


class _Kept:
    """Keeps the answer to a write, which is short."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._type = "application/json"
        self._chunks: list[bytes] = []
        self._size = 0
        self.status = 500

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self._type = Headers(raw=message["headers"]).get("content-type", self._type)
        elif message["type"] == "http.response.body":
            chunk = message.get("body", b"")
            self._size += len(chunk)
            if self._size <= MAX_KEPT_BYTES:
                self._chunks.append(chunk)
        self.messages.append(message)

    def value(self, request: str) -> dict[str, Any]:
        is_whole = self._size <= MAX_KEPT_BYTES
        text = b"".join(self._chunks).decode(errors="replace") if is_whole else ""
        return {"request": request, "status": self.status, "type": self._type, "body": text, "whole": is_whole}


async def _known_answer(ledger: Ledger, name: str, request: str) -> Mapping[str, Any]:
    """The stored answer to this request. Raises ApiError while it is not answered, and for another request."""
    lock = await ledger.locks.get(name)
    if lock is not None and lock.taken_by.partition(" ")[0] != request:
        raise ApiError(
            *(422, "idempotency_key_reused", "This Idempotency-Key was used for another request."),
            hint="Use a new key for each request.",
        )
    if lock is None or lock.finished_at is None:
        raise ApiError(
            *(409, "in_progress", "A request with this Idempotency-Key is in progress."),
            hint="Try again in a moment.",
            headers={"Retry-After": "1"},
        )
    return lock.value


def _stored_response(answer: Mapping[str, Any]) -> Response:
    body = answer["body"] if answer["whole"] else '{"text":"It was done; its answer was too long to be kept."}'
    headers = {"Idempotent-Replayed": "true"}
    return Response(body, int(answer["status"]), headers, media_type=str(answer["type"]))


async def _renew(ledger: Ledger, name: str, holder: str) -> None:
    """Keep the key of a long write; until cancelled."""
    while True:
        await asyncio.sleep(KEY_SECONDS / 3)
        await _quietly(ledger.locks.renew(name, holder, KEY_SECONDS))


async def _quietly(work: Awaitable[object]) -> None:
    """The ledger may be lost after the write was done: the key then expires."""
    with suppress(LedgerError):
        await work


def _first(message: Message, receive: Receive) -> Receive:
    left = [message]

    async def replay() -> Message:
        return left.pop() if left else await receive()

    return replay


def _is_preview(scope: Scope) -> bool:
    """As routes read it: the last value counts, and these words are true."""
    given = QueryParams(scope["query_string"]).get("preview", "")
    return given.lower() in ("1", "on", "t", "true", "y", "yes")


def _has_tag(known: str | None, tag: str) -> bool:
    if known is None:
        return False
    given = [each.strip().removeprefix("W/") for each in known.split(",")]
    return "*" in given or tag.removeprefix("W/") in given


def _digest(*parts: str | bytes) -> str:
    hashed = hashlib.sha256()
    for part in parts:
        data = part.encode(errors="replace") if isinstance(part, str) else part
        hashed.update(len(data).to_bytes(8, "big") + data)
    return hashed.hexdigest()


def _add_headers(message: Message) -> None:
    headers = MutableHeaders(raw=message["headers"])
    for name, value in SECURITY_HEADERS.items():
        headers.setdefault(name, value)
    headers.setdefault("cache-control", "no-store")
    message["headers"] = headers.raw


def _with_headers(send: Send) -> Send:
    async def wrapped(message: Message) -> None:
        if message["type"] in ("http.response.start", "websocket.http.response.start"):
            _add_headers(message)
        await send(message)

    return wrapped


def _overloaded() -> Response:
    message = f"The server works on {MAX_REQUESTS} requests already."
    return error_response(503, "overloaded", message, "Try again in a moment.", {"Retry-After": "1"})
