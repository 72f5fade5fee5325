"""What strangers, viewers and slow clients try: to write, to use up the server, to read secrets."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, WebSocket
from fastapi.responses import StreamingResponse

from shoal.control import access, answers
from shoal.control import server as server_module
from shoal.control.access import MAX_BODY_BYTES, ControlOptions
from shoal.control.answers import SECURITY_HEADERS
from shoal.control.app import build_app
from shoal.control.server import make_server, max_connections
from shoal.model.access import Role
from shoal.model.egress import ExitSpec
from shoal.model.item import NewItem
from shoal.model.log import Log
from shoal.model.request import ItemRequest
from shoal.model.run import RunSpec, StageSpec
from shoal.model.worker import Scope, WorkerSpec
from shoal.observe.logs import open_logs
from shoal.testing.harness import dead
from tests.control.test_access import ME, SESSION, SITE, Socket, error_of, routes_of
from tests.support.control import LOCAL, REMOTE, bearer, client_of, running_app, settings_in, token_of


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[FastAPI]:
    async with running_app(settings_in(tmp_path)) as app:
        yield app


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


# Roles


async def test_every_write_needs_an_operator(app: FastAPI) -> None:
    """Whatever its route declares, whatever the body is, with a key or without, as a preview or not."""
    token = await token_of(app, "grafana", Role.VIEWER)
    writes = sorted({(method, path) for method, path in routes_of(app.router.routes) if method != "GET"})
    assert len(writes) >= 40
    async with client_of(app, REMOTE, **bearer(token)) as viewer:
        for method, path in writes:
            if path == SESSION:
                continue
            for query, headers in (("", {}), ("?preview=true", {}), ("", {"Idempotency-Key": "k"})):
                answer = await viewer.request(method, path + query, content=b"{}", headers=headers)
                assert (answer.status_code, error_of(answer)) == (403, "forbidden"), f"{method} {path}{query}"
    assert not await app.state.control.ledger.locks.list("")  # a viewer leaves nothing in the ledger
    assert not [event for event in (await app.state.control.ledger.reads.events()).rows if event.actor != ""]


async def test_a_refused_write_is_in_the_log_of_the_server(tmp_path: Path) -> None:
    logs = open_logs(format="json", level="info", file=tmp_path / "serve.log", stream=None)
    async with running_app(settings_in(tmp_path), log=logs.log) as app:
        viewer = client_of(app, REMOTE, **bearer(await token_of(app, "grafana", Role.VIEWER)))
        await viewer.post("/api/v1/runs/latest/cancel")
    logs.close()
    (line,) = [json.loads(text) for text in (tmp_path / "serve.log").read_text().splitlines() if "refused" in text]
    assert (line["event"], line["actor"], line["path"]) == (
        "write refused",
        f"grafana@{REMOTE}",
        "/api/v1/runs/latest/cancel",
    )


async def test_unusual_methods_are_no_way_around(app: FastAPI) -> None:
    async with client_of(app, REMOTE) as stranger:
        for method in ("PUT", "DELETE", "TRACE", "PROPFIND", "post", "X"):
            assert (await stranger.request(method, "/api/v1/runs/latest/pause")).status_code == 401, method
        for method in ("HEAD", "OPTIONS"):
            answer = await stranger.request(method, "/api/v1/runs")
            assert answer.status_code in (401, 405)
            assert not [name for name in answer.headers if name.startswith("access-control")]


# Bodies


async def test_the_body_of_a_stranger_is_not_read(app: FastAPI) -> None:
    """It would be held in memory, for as long as it takes to come."""
    read = 0

    async def body() -> AsyncIterator[bytes]:
        nonlocal read
        for _ in range(4):
            read += 1
            yield b"0" * (MAX_BODY_BYTES // 8)

    answer = await client_of(app, REMOTE).post("/api/v1/runs/latest/pause", content=body())
    assert (answer.status_code, read) == (401, 0)


async def test_log_ins_that_are_slow_to_send_leave_the_server_to_others(
    app: FastAPI, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "MAX_REQUESTS", 3)
    sent, ended = asyncio.Event(), asyncio.Event()
    waiting = 0

    async def slow_body() -> AsyncIterator[bytes]:
        nonlocal waiting
        waiting += 1
        if waiting == 5:
            sent.set()
        await ended.wait()
        yield b'{"token": "shoal_x"}'

    clients = [client_of(app, REMOTE) for _ in range(5)]
    headers = {"Content-Type": "application/json"}
    log_ins = [asyncio.create_task(each.post(SESSION, content=slow_body(), headers=headers)) for each in clients]
    async with asyncio.timeout(60):
        await sent.wait()
        assert (await client_of(app).get(ME)).status_code == 200
        ended.set()
        assert {(await log_in).status_code for log_in in log_ins} == {401}


async def test_a_body_that_does_not_come_is_given_up(app: FastAPI, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "BODY_SECONDS", 0.05)

    async def never() -> AsyncIterator[bytes]:
        await asyncio.Event().wait()
        yield b""

    assert (await client_of(app).post("/api/v1/runs/latest/pause", content=never())).status_code == 408


# Answers


async def test_an_address_never_leads_elsewhere(app: FastAPI) -> None:
    async with client_of(app, Accept="text/html") as client:
        for path in ("/api/v1/runs/", "//evil.example/", "/%2f%2fevil.example", "/\\evil.example", "/jobs/"):
            answer = await client.get(path)
            assert answer.status_code < 300 or answer.status_code >= 400, path
            assert "location" not in answer.headers


async def test_a_refused_websocket_has_the_headers_of_all_answers(app: FastAPI) -> None:
    @app.websocket("/api/v1/test/socket")
    async def accept(websocket: WebSocket) -> None:
        await websocket.accept()

    for socket_ in (Socket(app), Socket(app, LOCAL, Origin="http://evil.example"), Socket(app, Host="evil.example")):
        first = await socket_.next()
        assert first["type"] == "websocket.http.response.start"
        assert {name.encode() for name in SECURITY_HEADERS} <= {name for name, _ in first["headers"]}
        await socket_.task


async def test_the_log_in_ignores_an_idempotency_key(app: FastAPI) -> None:
    """A repeated answer would have no cookie, and its body would be kept."""
    token = await token_of(app, "ops")
    for _ in range(2):
        answer = await client_of(app, REMOTE).post(SESSION, json={"token": token}, headers={"Idempotency-Key": "k"})
        assert answer.status_code == 200
        assert "set-cookie" in answer.headers
    assert not await app.state.control.ledger.locks.list("")


async def test_the_cookie_that_counts_is_the_one_that_a_log_out_ends(app: FastAPI) -> None:
    """Another site on the same host can plant a second cookie of the same name."""
    token = await token_of(app, "ops")
    async with client_of(app, REMOTE, Origin=SITE) as browser:
        secret = (await browser.post(SESSION, json={"token": token})).cookies["shoal_session"]
    twice = {"Cookie": f"shoal_session=planted; shoal_session={secret}", "Origin": SITE}
    stranger = client_of(app, REMOTE)
    assert (await stranger.get(ME, headers=twice)).status_code == 200
    assert (await stranger.delete(SESSION, headers=twice)).status_code == 200
    assert (await stranger.get(ME, headers=twice)).status_code == 401


# Connections


@asynccontextmanager
async def listening(app: FastAPI, log: Log) -> AsyncIterator[tuple[str, int]]:
    """The application on a real socket, as `shoal serve` has it."""
    with socket.create_server((LOCAL, 0)) as bound:
        server = make_server(app, log)
        serving = asyncio.create_task(server.serve([bound]))
        await until(lambda: server.started)
        try:
            yield bound.getsockname()
        finally:
            server.should_exit = True
            await serving


@pytest.fixture
async def address(tmp_path: Path) -> AsyncIterator[tuple[str, int]]:
    app = build_app(settings_in(tmp_path), ControlOptions())

    @app.get("/api/v1/test/stream")
    async def stream() -> StreamingResponse:
        async def parts() -> AsyncIterator[bytes]:
            for _ in range(10_000):
                yield b"0" * 100_000

        return StreamingResponse(parts())

    async with listening(app, open_logs(format="console", level="error", file=None, stream=None).log) as address:
        yield address


async def closed(reader: asyncio.StreamReader) -> bool:
    """Whether the server ends the connection."""
    async with asyncio.timeout(60):
        try:
            return await reader.read() is not None
        except ConnectionError:
            return True


async def test_a_connection_that_sends_no_request_is_closed(
    address: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "HEAD_SECONDS", 0.3)
    for begin in (b"", b"GET /api/v1/me HT", b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nGET /slow"):
        reader, writer = await asyncio.open_connection(*address)
        writer.write(begin)
        assert await closed(reader), begin
        writer.close()


async def test_a_request_may_take_longer_than_its_head(
    address: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "HEAD_SECONDS", 0.3)
    async with httpx.AsyncClient(timeout=60) as client:

        async def body() -> AsyncIterator[bytes]:
            await asyncio.sleep(1.0)
            yield b"{}"

        url = f"http://{address[0]}:{address[1]}/api/v1/runs/nothing/pause"
        assert (await client.post(url, content=body())).status_code == 404


async def test_a_client_that_does_not_read_its_answer_is_disconnected(
    address: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "STUCK_SECONDS", 0.3)
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        client.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(client, address)
        await loop.sock_sendall(client, b"GET /api/v1/test/stream HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        async with asyncio.timeout(60):
            while True:  # what the server does not know of a reset comes with the next byte
                await asyncio.sleep(0.1)
                try:
                    await loop.sock_sendall(client, b"x")
                except (BrokenPipeError, ConnectionResetError):
                    break


async def test_connections_at_once_are_bounded(address: tuple[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    assert 100 <= max_connections() <= server_module.MAX_CONNECTIONS
    monkeypatch.setattr(server_module, "max_connections", lambda: 2)
    connections = [await asyncio.open_connection(*address) for _ in range(2)]
    reader, writer = await asyncio.open_connection(*address)
    assert await closed(reader)
    writer.close()
    for _, each in connections:
        each.close()
    async with asyncio.timeout(60), httpx.AsyncClient() as client:
        while True:
            try:
                answer = await client.get(f"http://{address[0]}:{address[1]}/healthz")
            except httpx.TransportError:
                await asyncio.sleep(0.05)  # the others are not closed yet
                continue
            assert answer.status_code == 200
            break


# Secrets

PASSWORD = "fl0under-1n-the-ledger"
HOOK = "https://hooks.example/services/T0/B0/sl4ck-s3cret-path"


async def test_live_frames_have_no_secrets(tmp_path: Path) -> None:
    settings = settings_in(tmp_path, notify=HOOK)
    assert any("sl4ck" in secret for secret in settings.secrets())
    async with running_app(settings) as app:
        ledger = app.state.control.ledger
        detail: dict[str, Any] = {"url": f"https://me:{PASSWORD}@shop.example/", "password": PASSWORD, "to": HOOK}
        await ledger.runs.record_event(None, "tried", "it", detail, by="me")
        subscription = app.state.live.hub.open()
        subscription.subscribe(("events",))
        async with asyncio.timeout(60):
            while not subscription.ready:
                subscription.changed.clear()
                await subscription.changed.wait()
        text = subscription.take().text
        shown = (await client_of(app).get("/api/v1/events")).text
    for answer in (text, shown):
        assert "tried" in answer
        assert PASSWORD not in answer
        assert "sl4ck" not in answer


PROJECT = f"""
notify = ["{HOOK}"]

[scrapers.shop]
target = "shop.py"
settings.api_key = "{PASSWORD}"

[egress.isp]
kind = "proxies"
url = "https://me:{PASSWORD}@proxies.example/list?token={PASSWORD}"
"""


async def test_no_answer_has_a_secret(tmp_path: Path) -> None:
    """Every read, with secrets wherever somebody may have written one: settings, runs, items, errors, exits, events."""
    (tmp_path / "shoal.toml").write_text(PROJECT)
    (tmp_path / "shop.py").write_text("from shoal import Scraper\nshop = Scraper('shop')\n")
    async with running_app(settings_in(tmp_path)) as app:
        ledger = app.state.control.ledger
        spec = RunSpec(scraper="shop", stages=(StageSpec("page"),), settings={"api_key": PASSWORD, "url": HOOK})
        run = await ledger.runs.create(spec)
        request = ItemRequest(headers={"X-Api-Key": PASSWORD, "Cookie": f"sid={PASSWORD}"})
        urls = [f"https://me:{PASSWORD}@shop.example/{number}?token={PASSWORD}" for number in range(3)]
        payload = {"password": PASSWORD}
        await ledger.intake.enqueue(run.id, [NewItem(url=url, request=request, payload=payload) for url in urls])
        await ledger.workers.register(WorkerSpec(id="w", node="n", pid=1, lease_seconds=60))
        claimed = await ledger.claims.claim("w", Scope(), 2)
        error = f"refused by http://me:{PASSWORD}@192.0.2.1:3128; Authorization: Bearer {PASSWORD}1234567890"
        await ledger.commits.commit("w", [dead(claimed[0], error), dead(claimed[1], f"POST {HOOK} failed")])
        exits = [ExitSpec("0" * 12, "http://192.0.2.1:3128")]
        await ledger.exits.register("w", "isp", "proxies", exits)
        await ledger.exits.ban("isp", "0" * 12, 60.0, error, by="me")
        await ledger.settings.put("scraper:shop", {"retries": 3, "token": PASSWORD}, by="me")
        await ledger.upkeep.run_once()
        paths = {path for method, path in routes_of(app.router.routes) if method == "GET" and path != "/api/v1/live"}
        known = {"/egress/1": "/egress/isp", "/exits/1": f"/exits/{'0' * 12}", "/runs/1": "/runs/latest"}
        answered, seen = 0, ""
        async with client_of(app) as client:
            for template in sorted(paths):
                path = template
                for old, new in known.items():
                    path = path.replace(old, new)
                answer = await client.get(path)
                answered += answer.status_code == 200
                seen += answer.text
                assert answer.status_code in (200, 404), (path, answer.text)
                assert PASSWORD not in answer.text, path
                assert "sl4ck" not in answer.text, path
        assert answered > 30
    for shown in ("192.0.2.1:3128", "shop.example", "refused by"):
        assert shown in seen  # what is no secret is shown
