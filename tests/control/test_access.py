"""Who may use the server: loopback, tokens, sessions; and who may not: other sites, other names, other roles."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, WebSocket
from pydantic import BaseModel

from shoal.control.access import (
    MAX_BODY_BYTES,
    MAX_FAILED_LOGINS,
    MAX_LOGIN_BYTES,
    MAX_LOGINS,
    MAX_QUERY_BYTES,
    MAX_WRONG_TOKENS,
    ControlOptions,
    Limiter,
    Operator,
    Viewer,
    check_websocket,
    is_still_allowed,
)
from shoal.control.answers import ApiError
from shoal.model.access import Role
from shoal.service.access import SESSION_IDLE_SECONDS, remove_token
from tests.support.control import LOCAL, REMOTE, bearer, client_of, running_app, settings_in, token_of
from tests.support.ledgers import sqlite_harness

SITE = "http://127.0.0.1:8642"
EVIL = "http://evil.example"
ME, SESSION, WRITE = "/api/v1/me", "/api/v1/session", "/api/v1/test/write"


class Body(BaseModel):
    value: Any = None


def with_routes(app: FastAPI) -> FastAPI:
    """Routes as other modules declare them: without a word about access, or asking for the principal."""

    @app.post(WRITE)
    async def write(body: Body) -> dict[str, Any]:
        return {"wrote": body.value}

    @app.get("/api/v1/test/who")
    async def who(who: Viewer) -> str:
        return who.actor

    @app.get("/api/v1/test/operators")
    async def operators(who: Operator) -> str:
        return who.actor

    @app.websocket("/api/v1/test/socket")
    async def socket(websocket: WebSocket) -> None:
        principal = await check_websocket(websocket)
        await websocket.accept()
        await websocket.send_text(principal.actor)
        await websocket.receive_text()
        await websocket.send_json(await is_still_allowed(websocket, principal))
        await websocket.close()

    return app


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[FastAPI]:
    async with running_app(settings_in(tmp_path)) as app:
        yield with_routes(app)


def error_of(answer: httpx.Response) -> str:
    assert set(answer.json()) == {"error"}
    assert set(answer.json()["error"]) == {"code", "message", "hint"}
    code: str = answer.json()["error"]["code"]
    return code


async def test_whoever_is_on_this_machine_is_an_operator(app: FastAPI) -> None:
    for address in (LOCAL, "127.8.9.10", "::1", "::ffff:127.0.0.1"):
        answer = (await client_of(app, address).get(ME)).json()
        assert (answer["name"], answer["role"], answer["by"]) == ("local", "operator", "loopback")
        assert answer["login_required"] is False
    assert (await client_of(app).post(WRITE, json={"value": 1})).json() == {"wrote": 1}
    assert (await client_of(app).get("/api/v1/test/who")).json() == "local@127.0.0.1"


async def test_another_machine_needs_a_token(app: FastAPI) -> None:
    token = await token_of(app, "ops")
    client = client_of(app, REMOTE)
    for path in (ME, "/api/v1/test/who", "/api/v1/test/operators"):
        refused = await client.get(path)
        assert (refused.status_code, error_of(refused)) == (401, "unauthorized")
        assert refused.headers["www-authenticate"].startswith("Bearer")
        assert "shoal serve token add" in refused.json()["error"]["hint"]
        assert "***" not in refused.json()["error"]["hint"]
        assert (await client.get(path, headers=bearer(token))).status_code == 200
    assert (await client.get("/api/v1/openapi.json")).status_code == 200  # it says nothing about this server


async def test_every_route_is_closed_by_default(app: FastAPI) -> None:
    """A route that forgot to ask for a principal is closed too. These are the only ones that are open."""
    is_open = {("POST", SESSION), ("DELETE", SESSION)}
    is_open |= {("GET", path) for path in ("/healthz", "/readyz", "/api/v1/openapi.json")}
    seen = set(routes_of(app.router.routes)) - is_open
    assert {("GET", ME), ("POST", WRITE)} <= seen
    async with client_of(app, REMOTE) as client:
        for method, path in seen:
            answer = await client.request(method, path, json={} if method in ("POST", "PUT", "PATCH") else None)
            assert answer.status_code == 401, f"{method} {path}"


def routes_of(routes: Iterable[Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """All routes, those of included routers too, with a number for each parameter."""
    for route in routes:
        if (router := getattr(route, "original_router", None)) is not None:
            yield from routes_of(router.routes, prefix + route.include_context.prefix)
        for method in (getattr(route, "methods", None) or set()) - {"HEAD"}:
            yield method, prefix + re.sub(r"{[^}]*}", "1", route.path)


async def test_a_request_that_passed_a_proxy_is_not_local(app: FastAPI) -> None:
    for name in ("X-Forwarded-For", "Forwarded", "X-Real-IP", "Via", "X-Forwarded-Proto"):
        assert (await client_of(app).get(ME, headers={name: "127.0.0.1"})).status_code == 401, name


async def test_old_http_is_not_local(app: FastAPI) -> None:
    """nginx speaks HTTP/1.0 to its upstreams unless it is told otherwise, and then adds no header."""
    sent: list[Any] = []
    scope = {
        "type": "http",
        "method": "GET",
        "path": ME,
        "raw_path": ME.encode(),
        "query_string": b"",
        "root_path": "",
        "scheme": "http",
        "http_version": "1.0",
        "headers": [(b"host", b"127.0.0.1:8642")],
        "client": (LOCAL, 1),
        "server": (LOCAL, 8642),
    }

    async def receive() -> Any:
        return {"type": "http.request"}

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    assert sent[0]["status"] == 401


@pytest.mark.parametrize(
    "options",
    [
        ControlOptions(require_token=True),
        ControlOptions(trust_proxy=("127.0.0.1",)),
        ControlOptions(root_path="/shoal"),
    ],
    ids=["require_token", "trust_proxy", "root_path"],
)
async def test_behind_a_proxy_nobody_is_local(tmp_path: Path, options: ControlOptions) -> None:
    async with running_app(settings_in(tmp_path), options) as app:
        assert (await client_of(app).get(ME)).status_code == 401
        token = await token_of(app, "ops")
        assert (await client_of(app).get(ME, headers=bearer(token))).status_code == 200


async def test_the_client_behind_a_trusted_proxy_is_named(tmp_path: Path) -> None:
    options = ControlOptions(trust_proxy=("127.0.0.1", "10.0.0.0/24"))
    async with running_app(settings_in(tmp_path), options) as app:
        with_routes(app)
        token = await token_of(app, "ops")
        for given, address in (
            ("198.51.100.4", "198.51.100.4"),
            ("6.6.6.6, 198.51.100.4, 10.0.0.9", "198.51.100.4"),  # what the client wrote itself is not believed
            ("198.51.100.4:5050", "198.51.100.4"),
            ("[2001:db8::1]:443", "2001:db8::1"),
            ("<script>", "unknown"),
            ("10.0.0.7", "10.0.0.7"),
        ):
            answer = await client_of(app).get("/api/v1/test/who", headers={**bearer(token), "X-Forwarded-For": given})
            assert answer.json() == f"ops@{address}"
        answer = await client_of(app, REMOTE).get(
            "/api/v1/test/who", headers={**bearer(token), "X-Forwarded-For": "198.51.100.4"}
        )
        assert answer.json() == f"ops@{REMOTE}"


async def test_a_viewer_reads_and_changes_nothing(app: FastAPI) -> None:
    viewer = client_of(app, REMOTE, **bearer(await token_of(app, "grafana", Role.VIEWER)))
    assert (await viewer.get(ME)).json()["role"] == "viewer"
    refused = await viewer.post(WRITE, json={})
    assert (refused.status_code, error_of(refused)) == (403, "forbidden")
    assert (await viewer.get("/api/v1/test/operators")).status_code == 403
    operator = client_of(app, REMOTE, **bearer(await token_of(app, "ops")))
    assert (await operator.post(WRITE, json={})).status_code == 200


async def test_a_wrong_token_is_refused_even_here(app: FastAPI) -> None:
    client = client_of(app)
    invented = "Bearer shoal_" + "x" * 43
    for given in ("Bearer nonsense", invented, "Bearer ", "Bearer " + "x" * 5_000, "Basic b3BzOng=", "x"):
        answer = await client.get(ME, headers={"Authorization": given})
        assert (answer.status_code, error_of(answer)) == (401, "unauthorized")
        assert "nonsense" not in answer.text


async def test_a_token_that_is_removed_or_expired_is_refused(app: FastAPI) -> None:
    token = await token_of(app, "ops")
    client = client_of(app, REMOTE, **bearer(token))
    assert (await client.get(ME)).status_code == 200
    await remove_token(app.state.control.ledger, "ops")
    assert (await client.get(ME)).status_code == 401


async def test_the_secret_of_a_token_is_not_in_the_ledger(app: FastAPI, tmp_path: Path) -> None:
    token = await token_of(app, "ops")
    client = client_of(app, REMOTE)
    cookie = (await client.post(SESSION, json={"token": token})).cookies["shoal_session"]
    assert len(token) >= 43
    stored = b"".join(path.read_bytes() for path in tmp_path.glob("ledger.db*"))
    assert hashlib.sha256(token.encode()).digest() in stored
    assert hashlib.sha256(cookie.encode()).digest() in stored
    assert token.encode() not in stored
    assert token.removeprefix("shoal_").encode() not in stored
    assert cookie.encode() not in stored


async def test_the_last_use_of_a_token_is_recorded(app: FastAPI) -> None:
    token = await token_of(app, "ops")
    ledger = app.state.control.ledger
    assert (await ledger.access.tokens())[0].used_at is None
    await client_of(app, REMOTE).get(ME, headers=bearer(token))
    for _ in range(500):
        if (await ledger.access.tokens())[0].used_at is not None:
            break
        await asyncio.sleep(0.01)
    else:
        pytest.fail("the use was not recorded")


async def test_a_browser_logs_in_and_out(app: FastAPI) -> None:
    token = await token_of(app, "ops")
    async with client_of(app, REMOTE, Origin=SITE) as browser:
        refused = await browser.post(SESSION, json={"token": "shoal_wrong"})
        assert (refused.status_code, error_of(refused)) == (401, "unauthorized")
        answer = await browser.post(SESSION, json={"token": token})
        assert answer.json()["name"] == "ops"
        cookie = answer.headers["set-cookie"]
        for word in ("HttpOnly", "SameSite=strict", "Path=/", "Max-Age=604800"):
            assert word in cookie
        assert "Secure" not in cookie
        assert token not in cookie
        me = (await browser.get(ME)).json()
        assert (me["name"], me["by"], me["login_required"]) == ("ops", "session", True)
        assert (await browser.post(WRITE, json={})).status_code == 200
        stolen = browser.cookies["shoal_session"]
        assert (await browser.delete(SESSION)).status_code == 200
        assert "shoal_session" not in browser.cookies
        assert (await browser.get(ME)).status_code == 401
    again = await client_of(app, REMOTE).get(ME, headers={"Cookie": f"shoal_session={stolen}"})
    assert again.status_code == 401
    events = (await app.state.control.ledger.reads.events()).rows
    assert [(event.action, event.actor) for event in events][:2] == [
        ("session.ended", f"ops@{REMOTE}"),
        ("session.started", f"ops@{REMOTE}"),
    ]


async def test_a_cookie_is_secure_and_of_the_sub_path_behind_https(tmp_path: Path) -> None:
    options = ControlOptions(trust_proxy=("127.0.0.1",), root_path="/shoal", allow_host=("shoal.example",))
    async with running_app(settings_in(tmp_path), options) as app:
        token = await token_of(app, "ops")
        headers = {"X-Forwarded-For": REMOTE, "X-Forwarded-Proto": "https", "Host": "shoal.example"}
        answer = await client_of(app).post(
            f"/shoal{SESSION}", json={"token": token}, headers={**headers, "Origin": "https://shoal.example"}
        )
        assert answer.status_code == 200
        assert "Secure" in answer.headers["set-cookie"]
        assert "Path=/shoal/" in answer.headers["set-cookie"]
        # Whoever is on the way to the proxy could have written a page of http.
        refused = await client_of(app).post(
            f"/shoal{SESSION}", json={"token": token}, headers={**headers, "Origin": "http://shoal.example"}
        )
        assert error_of(refused) == "cross_site"


async def test_a_viewer_who_logged_in_on_this_machine_is_a_viewer(app: FastAPI) -> None:
    async with client_of(app, Origin=SITE) as browser:
        await browser.post(SESSION, json={"token": await token_of(app, "guest", Role.VIEWER)})
        assert (await browser.get(ME)).json()["role"] == "viewer"
        assert (await browser.post(WRITE, json={})).status_code == 403


async def test_removing_a_token_ends_its_sessions_on_all_servers(tmp_path: Path) -> None:
    async with (
        running_app(settings_in(tmp_path)) as first,
        running_app(settings_in(tmp_path)) as second,
        client_of(first, REMOTE) as browser,
        client_of(second, REMOTE) as other,
    ):
        await browser.post(SESSION, json={"token": await token_of(first, "ops")})
        other.cookies.update(browser.cookies)
        assert (await other.get(ME)).json()["name"] == "ops"
        await remove_token(second.state.control.ledger, "ops")
        assert (await browser.get(ME)).status_code == 401
        assert (await other.get(ME)).status_code == 401


async def test_sessions_end_by_the_clock_of_the_ledger(tmp_path: Path) -> None:
    async with sqlite_harness(tmp_path / "ledger.db") as harness:
        app = running_app(settings_in(tmp_path), opened=lambda: harness.ledger)
        async with app as running, client_of(running, REMOTE) as browser:
            await browser.post(SESSION, json={"token": await token_of(running, "ops")})
            assert (await browser.get(ME)).status_code == 200
            await harness.advance_clock(SESSION_IDLE_SECONDS + 1)
            refused = await browser.get(ME)
            assert (refused.status_code, refused.json()["error"]["message"]) == (401, "The session has ended.")


OTHER_SITES = (
    {"Origin": EVIL},
    {"Origin": "null"},
    {"Origin": "http://127.0.0.1:9999"},  # another program of this machine
    {"Origin": "http://localhost:8642"},
    {"Origin": "https://127.0.0.1:8642.evil.example"},
    {"Origin": "file://"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": "cross-site", "Origin": SITE},
    {"Sec-Fetch-Site": "cross-site", "X-Shoal-Csrf": "1", "Origin": EVIL},
    {"Referer": f"{EVIL}/page"},
    {"Content-Type": "application/x-www-form-urlencoded"},
    {"Content-Type": "text/plain; charset=utf-8"},
    {"Content-Type": "multipart/form-data; boundary=x"},
)
OUR_OWN: tuple[dict[str, str], ...] = (
    {},
    {"Origin": SITE},
    {"Origin": SITE, "Sec-Fetch-Site": "same-origin"},
    {"Sec-Fetch-Site": "same-origin"},
    {"Sec-Fetch-Site": "none"},
    {"X-Shoal-Csrf": "1"},
    {"Referer": f"{SITE}/runs"},
)


async def test_a_page_of_another_site_changes_nothing(app: FastAPI) -> None:
    client = client_of(app)
    for headers in OTHER_SITES:
        sent = {"Content-Type": "application/json", **headers}
        for path in (WRITE, SESSION):
            refused = await client.post(path, content=b'{"value": 1, "token": "x"}', headers=sent)
            assert (refused.status_code, error_of(refused)) == (403, "cross_site"), headers
            assert "access-control-allow-origin" not in refused.headers


async def test_a_program_that_sends_a_form_learns_which_header_is_missing(app: FastAPI) -> None:
    form = {"Content-Type": "application/x-www-form-urlencoded"}  # as curl -d does
    refused = await client_of(app).post(WRITE, content=b'{"value": 1}', headers=form)
    assert "Content-Type: application/json" in refused.json()["error"]["hint"]


async def test_the_dashboard_and_programs_write(app: FastAPI) -> None:
    client = client_of(app)
    for headers in OUR_OWN:
        assert (await client.post(WRITE, json={}, headers=headers)).status_code == 200, headers


async def test_a_write_with_a_cookie_must_say_where_it_comes_from(app: FastAPI) -> None:
    async with client_of(app, REMOTE) as browser:
        await browser.post(SESSION, json={"token": await token_of(app, "ops")})
        assert error_of(await browser.post(WRITE, json={})) == "cross_site"
        assert (await browser.post(WRITE, json={}, headers={"Origin": SITE})).status_code == 200
        assert (await browser.post(WRITE, json={}, headers={"X-Shoal-Csrf": "1"})).status_code == 200


async def test_scripts_of_another_site_read_nothing(app: FastAPI) -> None:
    client = client_of(app)
    for mode in ("cors", "no-cors", "websocket"):
        headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": mode}
        assert (await client.get(ME, headers=headers)).status_code == 403
    assert (await client.get(ME, headers={"Origin": EVIL})).status_code == 403
    # A link on another site leads to the dashboard.
    headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Accept": "text/html"}
    assert (await client.get("/", headers=headers)).headers["content-type"].startswith("text/html")


async def test_a_token_is_enough_for_a_program_behind_any_origin(app: FastAPI) -> None:
    token = await token_of(app, "ops")
    client = client_of(app, REMOTE, **bearer(token))
    assert (await client.post(WRITE, json={})).status_code == 200


@pytest.mark.parametrize(
    ("options", "good", "bad"),
    [
        (
            ControlOptions(),
            ["127.0.0.1:8642", "localhost:8642", "LOCALHOST", "[::1]:8642", "127.0.0.1.", "shoal.localhost"],
            ["evil.example", "evil.example:8642", "127.0.0.1.evil.example", "192.0.2.1", "localhost.evil.example"],
        ),
        (
            ControlOptions(host="0.0.0.0", allow_host=("shoal.example",)),
            ["shoal.example", "SHOAL.example:8642", "192.0.2.1:8642", "localhost"],
            ["evil.example", "sub.shoal.example", "shoal.example.evil"],
        ),
        (ControlOptions(host="192.0.2.1"), ["192.0.2.1:8642"], ["localhost", "127.0.0.1", "192.0.2.2"]),
    ],
    ids=["loopback", "any", "one"],
)
async def test_only_our_own_names_are_answered(
    tmp_path: Path, options: ControlOptions, good: list[str], bad: list[str]
) -> None:
    async with running_app(settings_in(tmp_path), options) as app, client_of(app) as client:
        for name in good:
            assert (await client.get(ME, headers={"Host": name})).status_code == 200, name
        for name in bad:
            refused = await client.get(ME, headers={"Host": name})
            assert (refused.status_code, error_of(refused)) == (421, "unknown_host"), name
        for name in ("", "user@127.0.0.1", "127.0.0.1:x", "127.0.0.1/x"):
            assert (await client.get(ME, headers={"Host": name})).status_code == 400, name


async def test_log_ins_are_limited_for_each_address(app: FastAPI) -> None:
    token = await token_of(app, "ops")
    async with client_of(app, REMOTE) as attacker:
        for number in range(MAX_FAILED_LOGINS):
            attacker.headers["X-Forwarded-For"] = f"198.51.100.{number}"  # nobody trusts it
            assert (await attacker.post(SESSION, json={"token": "shoal_x"})).status_code == 401
        refused = await attacker.post(SESSION, json={"token": token})
    assert (refused.status_code, error_of(refused)) == (429, "too_many_requests")
    assert 0 < int(refused.headers["retry-after"]) <= 61
    assert app.state.gate.tokens.check(REMOTE) is None


async def test_a_viewer_cannot_fill_the_ledger_with_log_ins(app: FastAPI) -> None:
    token = await token_of(app, "guest", Role.VIEWER)
    async with client_of(app, REMOTE) as browser:
        for _ in range(MAX_LOGINS):
            browser.cookies.clear()
            assert (await browser.post(SESSION, json={"token": token})).status_code == 200
        browser.cookies.clear()
        refused = await browser.post(SESSION, json={"token": token})
    assert (refused.status_code, refused.json()["error"]["message"]) == (429, "There were too many log-ins.")


async def test_nobody_can_lock_out_everybody(app: FastAPI) -> None:
    token = await token_of(app, "ops")
    for number in range(2_000):
        app.state.gate.failed_logins.add(f"198.51.{number % 250}.{number // 250}")
        app.state.gate.tokens.add(f"198.51.{number % 250}.{number // 250}")
    assert (await client_of(app, REMOTE).post(SESSION, json={"token": token})).status_code == 200
    assert (await client_of(app, REMOTE).get(ME, headers=bearer(token))).status_code == 200


async def test_guessing_tokens_is_limited_and_a_valid_one_is_accepted_all_the_same(app: FastAPI) -> None:
    token = await token_of(app, "ops")
    for _ in range(MAX_WRONG_TOKENS):
        assert (await client_of(app, REMOTE).get(ME, headers=bearer("shoal_x"))).status_code == 401
    assert (await client_of(app, REMOTE).get(ME, headers=bearer("shoal_x"))).status_code == 429
    assert (await client_of(app, REMOTE).get(ME, headers=bearer(token))).status_code == 200


def test_a_limit_ends_after_its_time_and_holds_for_a_network() -> None:
    now = 100.0
    limiter = Limiter(2, now=lambda: now)
    for address in ("2001:db8::1", "2001:db8::2"):
        limiter.check(address)
        limiter.add(address)
    with pytest.raises(ApiError) as refused:
        limiter.check("2001:db8::3")
    assert refused.value.headers == {"Retry-After": "61"}
    limiter.check("2001:db8:1::1")
    now += 60
    limiter.check("2001:db8::3")


async def test_sizes_are_bounded(app: FastAPI) -> None:
    client = client_of(app)
    large = await client.post(WRITE, content=b"[" + b"0," * (MAX_BODY_BYTES // 2) + b"0]")
    assert (large.status_code, error_of(large)) == (413, "too_large")

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b"0" * (MAX_BODY_BYTES // 16)

    assert (await client.post(WRITE, content=chunks())).status_code == 413
    assert (await client.post(WRITE, headers={b"Content-Length": b"\xb2"})).status_code == 413
    assert (await client.post(SESSION, json={"token": "x" * MAX_LOGIN_BYTES})).status_code == 413
    assert (await client.get(ME, params={"x": "y" * MAX_QUERY_BYTES})).status_code == 414
    deep = await client.post(
        WRITE, content=b'{"value":' + b"[" * 50_000 + b"]" * 50_000 + b"}", headers={"Content-Type": "application/json"}
    )
    assert (deep.status_code, error_of(deep)) == (422, "invalid_request")
    broken = await client.post(WRITE, content=b'{"value": tru}', headers={"Content-Type": "application/json"})
    assert (broken.status_code, error_of(broken)) == (422, "invalid_request")
    assert broken.json()["error"]["message"] == "The body is not JSON: Expecting value at character 10."
    text = "[" * 200 + '\\"' + "{" * 200
    assert (await client.post(WRITE, json={"value": text})).json() == {"wrote": text}


async def test_answers_have_the_headers_that_browsers_obey(app: FastAPI) -> None:
    client = client_of(app)
    answers = [
        await client.get(ME),
        await client.get("/", headers={"Accept": "text/html"}),
        await client.get(ME, headers={"Host": "evil.example"}),
        await client.post(WRITE, json={}, headers={"Origin": EVIL}),
        await client.get("/api/v1/nothing"),
    ]
    for answer in answers:
        policy = answer.headers["content-security-policy"]
        for part in ("default-src 'self'", "script-src 'self'", "frame-ancestors 'none'", "object-src 'none'"):
            assert part in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert "server" not in answer.headers
    assert answers[0].headers["cache-control"] == "no-store"


class Socket:
    """The client's side of a WebSocket, spoken to the application directly."""

    def __init__(self, app: FastAPI, address: str = REMOTE, **headers: str) -> None:
        named = {"host": "127.0.0.1:8642", **{name.lower().replace("_", "-"): text for name, text in headers.items()}}
        path = "/api/v1/test/socket"
        self._scope = {
            "type": "websocket",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "scheme": "ws",
            "http_version": "1.1",
            "headers": [(name.encode(), text.encode()) for name, text in named.items()],
            "client": (address, 1),
            "server": (LOCAL, 8642),
            "subprotocols": [],
            "extensions": {"websocket.http.response": {}},
        }
        self._to_app: asyncio.Queue[Any] = asyncio.Queue()
        self.sent: asyncio.Queue[Any] = asyncio.Queue()
        self._to_app.put_nowait({"type": "websocket.connect"})
        self.task = asyncio.create_task(app(self._scope, self._to_app.get, self.sent.put))

    async def next(self) -> Any:
        return await asyncio.wait_for(self.sent.get(), 60)

    async def say(self, text: str) -> None:
        await self._to_app.put({"type": "websocket.receive", "text": text})


SOCKETS: tuple[tuple[str, dict[str, str], int | None], ...] = (
    (REMOTE, {}, 401),
    (REMOTE, {"Authorization": "Bearer shoal_x"}, 401),
    (LOCAL, {"Origin": EVIL}, 403),
    (LOCAL, {"Origin": "http://localhost:3000"}, 403),
    (LOCAL, {"Origin": "null"}, 403),
    (LOCAL, {"Host": "evil.example"}, 421),
    (LOCAL, {"X_Forwarded_For": "127.0.0.1"}, 401),
    (LOCAL, {}, None),
    (LOCAL, {"Origin": SITE}, None),
)


async def test_a_websocket_is_checked_before_it_is_accepted(app: FastAPI) -> None:
    for address, headers, status in SOCKETS:
        socket = Socket(app, address, **headers)
        first = await socket.next()
        if status is not None:
            assert (first["type"], first["status"]) == ("websocket.http.response.start", status), headers
            await socket.task
            continue
        assert first["type"] == "websocket.accept"
        assert (await socket.next())["text"] == f"local@{address}"
        await socket.say("bye")
        assert (await socket.next())["text"] == "true"
        await socket.task


async def test_an_open_websocket_learns_that_its_token_is_gone(app: FastAPI) -> None:
    token = await token_of(app, "ops", Role.VIEWER)
    sockets = [Socket(app, Authorization=f"Bearer {token}") for _ in range(2)]
    for number, socket in enumerate(sockets):
        assert (await socket.next())["type"] == "websocket.accept"
        assert (await socket.next())["text"] == f"ops@{REMOTE}"
        if number:
            await remove_token(app.state.control.ledger, "ops")
        await socket.say("and now?")
        assert (await socket.next())["text"] == ("false" if number else "true")
        await socket.task
