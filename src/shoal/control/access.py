"""Who may: every route needs a principal, and every write an operator, unless it is marked with `open_to_all`.

Routes that need the principal declare a parameter of type `Viewer` or `Operator`. WebSockets call `check_websocket`
before they accept, and `is_still_allowed` about every 30 s, because a token may be revoked while they are open.

A request is checked in this order: its Host (DNS rebinding), whether another site sent it (CSRF), its token or cookie,
its role, the size of its body. docs/howto/security.md has the reasons.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Annotated, Literal, TypeVar
from urllib.parse import urlsplit

import msgspec
from fastapi import Depends, WebSocket
from fastapi.requests import HTTPConnection
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shoal.control.answers import ApiError, api_error_response, shoal_error_response, waiting_for_client
from shoal.control.connection import LedgerConnection
from shoal.errors import InvalidSetting, LedgerError
from shoal.ledger.protocols import Ledger
from shoal.model.access import AccessGrant, Role
from shoal.model.log import Log
from shoal.service import access

Endpoint = TypeVar("Endpoint", bound=Callable[..., object])
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

COOKIE = "shoal_session"
SESSION_PATH = "/api/v1/session"
CSRF_HEADER = "x-shoal-csrf"
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
LOOPBACK_NAMES = ("localhost", "ip6-localhost", "localhost.localdomain")
# What proxies add. A request with one of them did not begin on this machine, whatever its peer is.
PROXY_HEADERS = (
    *("x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-forwarded-server", "x-real-ip", "forwarded"),
    *("via", "x-client-ip", "x-cluster-client-ip", "true-client-ip", "cf-connecting-ip", "fastly-client-ip"),
)
# What forms of other sites can send without asking (CORS).
FORM_TYPES = ("application/x-www-form-urlencoded", "multipart/form-data", "text/plain")
MAX_BODY_BYTES = 1 << 20
# Whoever logs in is a stranger.
MAX_LOGIN_BYTES = 4 << 10
MAX_QUERY_BYTES = 8 << 10
MAX_JSON_DEPTH = 32
BODY_SECONDS = 15.0
# Of one address in a minute: log-ins that fail, and tokens that do not exist, which programs try again and again. There
# is no limit for all addresses together: it would let anybody lock out everybody.
MAX_FAILED_LOGINS = 10
MAX_WRONG_TOKENS = 60
# Log-ins that succeed leave a session and an event.
MAX_LOGINS = 60
MAX_ADDRESSES = 10_000

_PRINCIPAL = "shoal.principal"


class ControlOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How the server is started.

    `root_path`: the sub-path under which a reverse proxy serves it. `trust_proxy`: addresses or networks of proxies
    whose X-Forwarded-For and X-Forwarded-Proto are believed. `allow_host`: names by which browsers reach it.
    `require_token`: requests from this machine need a token too. `jobs`: the scraper that the paths `/jobs/...` belong
    to; without it the only one of the project.
    """

    host: str = "127.0.0.1"
    port: int = 8642
    root_path: str = ""
    trust_proxy: tuple[str, ...] = ()
    allow_host: tuple[str, ...] = ()
    require_token: bool = False
    jobs: str | None = None

    @property
    def trusts_loopback(self) -> bool:
        """Whether requests of this machine need no token. Behind a proxy, every request seems to be one."""
        return not (self.require_token or self.trust_proxy or self.root_path)

    @property
    def needs_token(self) -> bool:
        """Whether nobody could use the server without a token."""
        return not (self.trusts_loopback and is_loopback(self.host))


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    """Who sends a request. `by`: loopback, token or session."""

    name: str
    role: Role
    by: Literal["loopback", "token", "session"]
    address: str
    token_id: int | None = None
    expires_at: dt.datetime | None = None

    @property
    def actor(self) -> str:
        """How audit events name it: NAME@ADDRESS."""
        return f"{self.name}@{self.address}"


class Limiter:
    """Counts what each address did in the current minute. IPv6 addresses count as their /64 network."""

    def __init__(
        self,
        most: int,
        message: str = "Too many tokens were refused.",
        *,
        seconds: float = 60.0,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most = most
        self._message = message
        self._seconds = seconds
        self._now = now
        self._began = now()
        self._counts: OrderedDict[str, int] = OrderedDict()

    def check(self, address: str) -> None:
        """Raise ApiError 429 with the seconds to wait when it did that too often."""
        left = self._began + self._seconds - self._now()
        if left <= 0:
            self._began, left = self._now(), self._seconds
            self._counts.clear()
        if self._counts.get(_network_of(address), 0) >= self._most:
            seconds = int(left) + 1
            raise ApiError(
                *(429, "too_many_requests", self._message),
                hint=f"Try again in {seconds} s.",
                headers={"Retry-After": str(seconds)},
            )

    def add(self, address: str) -> None:
        network = _network_of(address)
        self._counts[network] = self._counts.get(network, 0) + 1
        if len(self._counts) > MAX_ADDRESSES:
            self._counts.popitem(last=False)


class Client(msgspec.Struct, frozen=True):
    """Where a request comes from: its address, whether it came directly from this machine, and its scheme."""

    address: str
    is_local: bool
    scheme: str


class Gate:
    """The checks of requests, with the options of the server. Raises ApiError."""

    def __init__(self, options: ControlOptions, connection: LedgerConnection, log: Log) -> None:
        self.options = options
        self._connection = connection
        self._log = log
        self._proxies = [parse_network(text) for text in options.trust_proxy]
        self._names = {name.lower() for name in options.allow_host}
        self._bound = _ip(options.host)
        self.failed_logins = Limiter(MAX_FAILED_LOGINS)
        self.logins = Limiter(MAX_LOGINS, "There were too many log-ins.")
        self.tokens = Limiter(MAX_WRONG_TOKENS)
        self._recording: set[asyncio.Task[None]] = set()

    def check_host(self, headers: Headers) -> None:
        """Refuse names that are not ours: a site could let its own name lead to this server (DNS rebinding)."""
        given = headers.get("host", "")
        name = _host_of(given)
        if name is None:
            raise ApiError(400, "bad_request", "The header Host is missing or not valid.")
        if not self._knows(name, given):
            raise ApiError(
                *(421, "unknown_host", f"This server is not {name[:100]!r}."),
                hint=f"If it is to be reached by this name, start it with --allow-host {name[:100]}.",
            )

    def _knows(self, name: str, given: str) -> bool:
        if name in self._names or given.lower() in self._names or name == self.options.host.lower():
            return True
        address, bound = _ip(name), self._bound
        is_any = bound is not None and bound.is_unspecified
        if address is None:
            is_loopback_name = name in LOOPBACK_NAMES or name.endswith(".localhost")
            return is_loopback_name and (is_any or is_loopback(self.options.host))
        # An address is no name: no site can let it lead elsewhere.
        return is_any or address == bound or (address.is_loopback and is_loopback(self.options.host))

    def check_origin(self, scope: Scope, headers: Headers) -> None:
        """Refuse what a page of another site sent: writes, WebSockets, and reads by its scripts."""
        is_write = scope["type"] == "websocket" or scope["method"] not in SAFE_METHODS
        site, origin = headers.get("sec-fetch-site"), headers.get("origin")
        if origin is not None and not self._is_own(origin, scope, headers) and (is_write or site is None):
            raise _cross_site(f"The request was sent by a page of {origin[:100]!r}.")
        if site not in (None, "same-origin", "none") and (is_write or headers.get("sec-fetch-mode") != "navigate"):
            raise _cross_site("The request was sent by a page of another site.")
        if not is_write or scope["type"] == "websocket" or "authorization" in headers:
            return  # no other site can make a browser send a token
        if headers.get("content-type", "").partition(";")[0].strip().lower() in FORM_TYPES:
            raise _cross_site(
                "A write is sent as application/json, not as a form.",
                hint="Send the header Content-Type: application/json, or a token in the header Authorization.",
            )
        is_same = site == "same-origin" or origin is not None or CSRF_HEADER in headers
        referer = headers.get("referer")
        if referer is not None and not is_same and not self._is_own(referer, scope, headers):
            raise _cross_site("The request was sent by a page of another site.")
        # Every browser says where a write comes from. What says nothing is a program, and has no cookie of a browser.
        if not is_same and session_cookie(headers):
            raise _cross_site(f"A write with a cookie needs the header Origin or {CSRF_HEADER}.")

    def _is_own(self, origin: str, scope: Scope, headers: Headers) -> bool:
        try:
            parts = urlsplit(origin)
            port = parts.port
        except ValueError:
            return False
        if parts.scheme not in ("http", "https") or not parts.hostname:
            return False
        if parts.scheme == "http" and self.client_of(scope, headers).scheme == "https":
            return False  # anybody on the way may have written that page
        default = 443 if parts.scheme == "https" else 80
        name = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        full = f"{name}:{port or default}"
        shown = name if port in (None, default) else full
        return headers.get("host", "").lower() in (shown, full) or full in self._names

    def client_of(self, scope: Scope, headers: Headers) -> Client:
        """The client behind the proxies that we trust. `is_local`: it is this machine, and nothing says otherwise."""
        peer = scope["client"][0] if scope.get("client") else "unknown"
        scheme = "https" if scope["scheme"] in ("https", "wss") else "http"
        if self._is_proxy(peer):
            forwarded = [part for value in headers.getlist("x-forwarded-for") for part in value.split(",")]
            given = [_without_port(part.strip()) for part in forwarded if part.strip()]
            address = next((each for each in reversed(given) if not self._is_proxy(each)), given[0] if given else peer)
            given_scheme = headers.get("x-forwarded-proto", "").rpartition(",")[2].strip().lower()
            return Client(
                address if _ip(address) is not None else "unknown",
                False,
                given_scheme if given_scheme in ("http", "https") else scheme,
            )
        is_local = is_loopback(peer) and not any(name in headers for name in PROXY_HEADERS)
        return Client(peer, is_local and scope.get("http_version") != "1.0", scheme)

    def _is_proxy(self, address: str) -> bool:
        found = _ip(address)
        return found is not None and any(found in network for network in self._proxies)

    async def authenticate(self, scope: Scope, headers: Headers) -> Principal:
        """Find out who sends a request; once per request."""
        known: Principal | None = scope.get(_PRINCIPAL)
        if known is None:
            known = scope[_PRINCIPAL] = await self._authenticate(scope, headers)
        return known

    async def _authenticate(self, scope: Scope, headers: Headers) -> Principal:
        client = self.client_of(scope, headers)
        if (given := headers.get("authorization")) is not None:
            kind, _, secret = given.partition(" ")
            grant = await access.find_token(self.ledger, secret.strip()) if kind.lower() == "bearer" else None
            if grant is None:
                # A token that is valid is accepted although others behind the same address try wrong ones.
                self.tokens.check(client.address)
                self.tokens.add(client.address)
                raise _unauthorized("The token is not valid: it was removed, has expired, or never existed.")
            self._record_use(grant)
            return _principal(grant, "token", client)
        if secret := session_cookie(headers):
            grant = await access.find_session(self.ledger, secret)
            if grant is not None:
                self._record_use(grant, secret)
                return _principal(grant, "session", client)
        if client.is_local and self.options.trusts_loopback:
            return Principal(name="local", role=Role.OPERATOR, by="loopback", address=client.address)
        raise _unauthorized("The session has ended." if secret else "This needs a token.")

    async def require(self, scope: Scope, headers: Headers, role: Role) -> Principal:
        """The principal of a request, which must have this role. Raises ApiError."""
        principal = await self.authenticate(scope, headers)
        if role is Role.OPERATOR and principal.role is not Role.OPERATOR:
            self._log.warning(
                "write refused", actor=principal.actor, method=scope.get("method", ""), path=scope["path"][:200]
            )
            raise ApiError(
                *(403, "forbidden", f"{principal.name} is a viewer and may change nothing."),
                hint="Use a token with the role operator.",
            )
        return principal

    def is_login(self, scope: Scope) -> bool:
        """Whether it is a log-in or a log-out, the writes that are open to all."""
        path: str = scope["path"]
        return path.removeprefix(self.options.root_path) == SESSION_PATH

    async def is_valid(self, scope: Scope, headers: Headers) -> bool:
        """Whether what a request was allowed by is still valid. A ledger that is away does not end it."""
        try:
            await self._authenticate(scope, headers)
        except ApiError:
            return False
        except LedgerError:
            return True
        return True

    @property
    def ledger(self) -> Ledger:
        return self._connection.ledger

    def refused_login(self, address: str) -> None:
        self.failed_logins.add(address)
        self._log.warning("log-in refused", address=address)

    def _record_use(self, grant: AccessGrant, session: str | None = None) -> None:
        """In the background: it writes, and the ledger may be busy."""
        if grant.idle_seconds is None or grant.idle_seconds >= access.RECORD_USE_SECONDS:
            task = asyncio.create_task(access.record_use(self.ledger, grant, session))
            self._recording.add(task)
            task.add_done_callback(self._recording.discard)


class AccessMiddleware:
    """Refuses requests by Host, origin and size, and writes by their principal, before it reads their bodies.

    So only who may write makes the server hold a body; a log-in is short.
    """

    def __init__(self, app: ASGIApp, gate: Gate) -> None:
        self._app = app
        self._gate = gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        scope["root_path"] = self._gate.options.root_path  # a proxy may remove it from paths or not
        headers = Headers(scope=scope)
        try:
            self._gate.check_host(headers)
            if len(scope["query_string"]) > MAX_QUERY_BYTES:
                raise ApiError(414, "too_large", f"The query has more than {MAX_QUERY_BYTES:,} bytes.")
            self._gate.check_origin(scope, headers)
            if scope["type"] == "http" and scope["method"] not in SAFE_METHODS:
                is_login = self._gate.is_login(scope)
                if not is_login:
                    await self._gate.require(scope, headers, Role.OPERATOR)
                with waiting_for_client(scope):
                    body = await _read_body(headers, receive, MAX_LOGIN_BYTES if is_login else MAX_BODY_BYTES)
                receive = _replay(body, receive)
        except ApiError as error:
            await api_error_response(error)(scope, receive, send)
        except LedgerError as error:
            await shoal_error_response(error)(scope, receive, send)
        else:
            await self._app(scope, receive, send)


async def guard(connection: HTTPConnection) -> None:
    """The dependency of all routes: a principal, and for a write an operator."""
    scope = connection.scope
    if getattr(scope.get("endpoint"), "open_to_all", False):
        return
    is_write = scope["type"] == "http" and scope["method"] not in SAFE_METHODS
    await _required(connection, Role.OPERATOR if is_write else Role.VIEWER)


def open_to_all(endpoint: Endpoint) -> Endpoint:
    """Mark a route that needs no principal: health checks, the log-in. Other writes need an operator all the same."""
    endpoint.open_to_all = True  # type: ignore[attr-defined]
    return endpoint


def gate_of(connection: HTTPConnection) -> Gate:
    found: Gate = connection.app.state.gate
    return found


async def _required(connection: HTTPConnection, role: Role) -> Principal:
    return await gate_of(connection).require(connection.scope, connection.headers, role)


async def _viewer(connection: HTTPConnection) -> Principal:
    return await _required(connection, Role.VIEWER)


async def _operator(connection: HTTPConnection) -> Principal:
    return await _required(connection, Role.OPERATOR)


# What routes ask for.
Viewer = Annotated[Principal, Depends(_viewer)]
Operator = Annotated[Principal, Depends(_operator)]


async def check_websocket(websocket: WebSocket, role: Role = Role.VIEWER) -> Principal:
    """The principal of a WebSocket that is not accepted yet. Raises ApiError, which refuses the handshake."""
    return await _required(websocket, role)


async def is_still_allowed(connection: HTTPConnection, principal: Principal) -> bool:
    """Whether the token or session of an open WebSocket is still valid. If not, close it with code 1008."""
    return principal.by == "loopback" or await gate_of(connection).is_valid(connection.scope, connection.headers)


def parse_network(text: str) -> Network:
    """An address or a network of addresses. Raises InvalidSetting."""
    try:
        return ipaddress.ip_network(text.strip("[]"), strict=False)
    except ValueError:
        raise InvalidSetting(
            f"{text!r} is not the address of a proxy.", remedy="Write 10.0.0.5, or a network such as 10.0.0.0/24."
        ) from None


def is_loopback(host: str) -> bool:
    address = _ip(host)
    return host.lower() in LOOPBACK_NAMES if address is None else address.is_loopback


def _principal(grant: AccessGrant, by: Literal["token", "session"], client: Client) -> Principal:
    return Principal(
        name=grant.name,
        role=grant.role,
        by=by,
        address=client.address,
        token_id=grant.token_id,
        expires_at=grant.expires_at,
    )


def _unauthorized(message: str) -> ApiError:
    return ApiError(
        *(401, "unauthorized", message),
        hint="Log in, or send a token of `shoal serve token add` in the header Authorization, after the word Bearer.",
        headers={"WWW-Authenticate": 'Bearer realm="shoal"'},
    )


BEHIND_PROXY = "Behind a proxy, pass the header Host on unchanged, or start the server with --allow-host NAME:PORT."


def _cross_site(message: str, hint: str = BEHIND_PROXY) -> ApiError:
    return ApiError(403, "cross_site", message, hint=hint)


def session_cookie(headers: Headers) -> str:
    """The secret of the session that a browser sends; empty when it sends none."""
    found = ""
    for text in headers.getlist("cookie"):
        for part in text.split(";"):
            name, _, value = part.strip().partition("=")
            if name == COOKIE:
                found = value.strip('"')
    return found


def _ip(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(text.strip("[]"))
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def _host_of(given: str) -> str | None:
    """The name in a Host header, without its port; None when it is none."""
    try:
        parts = urlsplit(f"//{given}")
        _ = parts.port
    except ValueError:
        return None
    is_plain = parts.netloc == given and "@" not in given
    return (parts.hostname or "").rstrip(".") or None if is_plain else None


def _without_port(text: str) -> str:
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0] if text.count(":") == 1 else text


def _network_of(address: str) -> str:
    found = _ip(address)
    if isinstance(found, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((found, 64), strict=False))
    return address


async def _read_body(headers: Headers, receive: Receive, most: int) -> bytes:
    length = headers.get("content-length", "0")
    if not length.isdecimal() or int(length) > most:
        raise _too_large(most)
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_SECONDS):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ApiError(400, "bad_request", "The request ended before its body.")
                chunk = message.get("body", b"")
                size += len(chunk)
                if size > most:
                    raise _too_large(most)
                chunks.append(chunk)
                if not message.get("more_body", False):
                    break
    except TimeoutError:
        raise ApiError(408, "timeout", f"The body did not arrive within {BODY_SECONDS:g} s.") from None
    body = b"".join(chunks)
    _check_depth(body)
    return body


def _check_depth(body: bytes) -> None:
    """Refuse JSON that is nested deeply: parsers recurse."""
    if body.count(b"[") + body.count(b"{") <= MAX_JSON_DEPTH:
        return
    depth = deepest = 0
    in_string = escaped = False
    for byte in body:
        if in_string:
            if escaped:
                escaped = False
            elif byte == 0x5C:
                escaped = True
            elif byte == 0x22:
                in_string = False
        elif byte == 0x22:
            in_string = True
        elif byte in b"[{":
            depth += 1
            deepest = max(deepest, depth)
        elif byte in b"]}":
            depth -= 1
    if deepest > MAX_JSON_DEPTH:
        raise ApiError(422, "invalid_request", f"The JSON is nested more than {MAX_JSON_DEPTH} levels deep.")


def _too_large(most: int) -> ApiError:
    return ApiError(413, "too_large", f"The body has more than {most:,} bytes.")


def _replay(body: bytes, receive: Receive) -> Receive:
    """A `receive` that gives the body, then what the server says, such as that the client is gone."""
    left: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return left.pop() if left else await receive()

    return replay
