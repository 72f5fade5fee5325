"""Live updates over a real socket: WebSocket and server-sent events, limits, slow clients, access, stop."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from fastapi import FastAPI
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from shoal.config import load_settings
from shoal.control import live
from shoal.control import server as server_module
from shoal.control.app import build_app
from shoal.control.server import make_server
from shoal.ledger.protocols import Ledger
from shoal.ledger.sqlite.ledger import open_sqlite
from shoal.model.run import Run, RunSpec, StageSpec
from shoal.observe.logs import open_logs

PATIENCE = 60


class LiveServer:
    def __init__(self, app: FastAPI, server: uvicorn.Server, ledger: Ledger, port: int) -> None:
        self.app = app
        self.server = server
        self.ledger = ledger
        self.address = f"127.0.0.1:{port}"

    @property
    def clients(self) -> live.LiveClients:
        found: live.LiveClients = self.app.state.live
        return found

    @asynccontextmanager
    async def socket(self, **options: Any) -> AsyncIterator[ClientConnection]:
        async with connect(f"ws://{self.address}/api/v1/live", compression=None, **options) as connection:
            yield connection

    async def new_run(self) -> Run:
        return await self.ledger.runs.create(RunSpec(scraper="shop", stages=(StageSpec("page"),)))


@pytest.fixture
async def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LiveServer]:
    # The first frame is whole, however long the machine takes to read it.
    monkeypatch.setattr(live, "FIRST_FRAME_SECONDS", float(PATIENCE))
    ledger = await open_sqlite(tmp_path / "ledger.db")
    await ledger.schema.migrate()
    app = build_app(
        load_settings({"ledger": str(tmp_path / "ledger.db")}, environ={}, folder=tmp_path), opened=lambda: ledger
    )
    with socket.create_server(("127.0.0.1", 0)) as listening:
        uvicorn_server = make_server(app, open_logs(format="console", level="error", file=None, stream=None).log)
        serving = asyncio.create_task(uvicorn_server.serve([listening]))
        await until(lambda: uvicorn_server.started)
        try:
            yield LiveServer(app, uvicorn_server, ledger, listening.getsockname()[1])
        finally:
            uvicorn_server.should_exit = True
            await serving
            await ledger.close()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while True:
            if holds():
                return
            await asyncio.sleep(0.01)


async def subscribe(connection: ClientConnection, *topics: str, cursor: str | None = None) -> None:
    await connection.send(json.dumps({"subscribe": topics, "cursor": cursor}))


async def receive(connection: ClientConnection) -> dict[str, Any]:
    async with asyncio.timeout(PATIENCE):
        found: dict[str, Any] = json.loads(await connection.recv())
        return found


def total_of(frame: dict[str, Any], topic: str) -> int | None:
    total: int | None = frame["changes"].get(topic, {}).get("total")
    return total


async def receive_until(connection: ClientConnection, topic: str, total: int) -> list[dict[str, Any]]:
    """The frames up to that with this number of items."""
    frames = [await receive(connection)]
    while total_of(frames[-1], topic) != total:
        frames.append(await receive(connection))
    return frames


async def receive_total(connection: ClientConnection, topic: str, total: int) -> dict[str, Any]:
    return (await receive_until(connection, topic, total))[-1]


async def receive_waiting(connection: ClientConnection) -> list[dict[str, Any]]:
    """The frames that are there, until none has come for a second and a half."""
    frames = []
    with suppress(TimeoutError):
        while True:
            async with asyncio.timeout(1.5):
                frames.append(json.loads(await connection.recv()))
    return frames


async def close_code(connection: ClientConnection) -> tuple[int, str]:
    async with asyncio.timeout(PATIENCE):
        with suppress(ConnectionClosed):
            while True:
                await connection.recv()
    return connection.close_code or 0, connection.close_reason or ""


async def test_a_client_follows_a_run_pauses_and_resumes_by_its_cursor(server: LiveServer) -> None:  # S2.21
    run = await server.new_run()
    topic = f"run:{run.id}"
    async with server.socket() as connection:
        await subscribe(connection, topic, "overview")
        first = await receive(connection)
        assert (first["snapshot"], first["changes"].keys()) == (True, {"ledger", topic, "overview"})
        frames = [first]
        for number in range(2):
            await server.ledger.intake.enqueue(run.id, [f"http://shop.example/{number}"])
            frames += await receive_until(connection, topic, number + 1)
        assert not any(frame["snapshot"] for frame in frames[1:])
        # When the server made them: this process may see them later, and closer together.
        times = [dt.datetime.fromisoformat(frame["at"]) for frame in frames]
        assert all((later - earlier).total_seconds() > 0.95 for earlier, later in pairwise(times))
        await connection.send('{"pause": true}')
        (client,) = server.clients._clients
        await until(lambda: not client._playing.is_set())
        reads = server.clients.hub.reads
        await server.ledger.intake.enqueue(run.id, ["http://shop.example/more"])
        await until(lambda: server.clients.hub.reads > reads + 4)  # the topics were read again
        assert not [frame for frame in await receive_waiting(connection) if total_of(frame, topic) == 3]
        await connection.send('{"pause": false}')
        last = await receive_total(connection, topic, 3)
    await server.ledger.intake.enqueue(run.id, ["http://shop.example/meanwhile"])
    async with server.socket() as connection:
        await subscribe(connection, topic, cursor=last["cursor"])
        frame = await receive_total(connection, topic, 4)
        assert (frame["snapshot"], "scraper" in frame["changes"][topic]) == (False, False)


async def test_server_sent_events_are_the_same_frames(server: LiveServer) -> None:
    run = await server.new_run()
    topic = f"run:{run.id}"

    async def events(headers: dict[str, str], count: int) -> list[tuple[str, dict[str, Any]]]:
        found: list[tuple[str, dict[str, Any]]] = []
        async with (
            httpx.AsyncClient(timeout=PATIENCE) as client,
            client.stream(
                "GET", f"http://{server.address}/api/v1/live", params={"topics": f"{topic},egress"}, headers=headers
            ) as answer,
        ):
            assert answer.headers["content-type"].startswith("text/event-stream")
            assert answer.headers["x-accel-buffering"] == "no"
            cursor = ""
            async for line in answer.aiter_lines():
                if line.startswith("id: "):
                    cursor = line.removeprefix("id: ")
                elif line.startswith("data: "):
                    found.append((cursor, json.loads(line.removeprefix("data: "))))
                    if len(found) == count:
                        break
        return found

    ((cursor, frame),) = await events({}, 1)
    assert (frame["snapshot"], frame["cursor"], frame["changes"].keys()) == (True, cursor, {"ledger", topic, "egress"})
    await server.ledger.intake.enqueue(run.id, ["http://shop.example/"])
    ((_, frame),) = await events({"Last-Event-ID": cursor}, 1)
    assert (frame["snapshot"], frame["changes"][topic]["total"]) == (False, 1)


@pytest.mark.parametrize(
    ("message", "code", "reason"),
    [
        ("nonsense", live.BAD_MESSAGE, "malformed"),
        ('{"subscribe": ["no"]}', live.BAD_MESSAGE, "no topic"),
        ('{"subscribe": "overview"}', live.BAD_MESSAGE, "Expected"),
        ('{"unknown": 1}', live.BAD_MESSAGE, "unknown"),
        (b"bytes", live.BAD_MESSAGE, "text"),
        ('{"subscribe": [' + ",".join(f'"run:{n}"' for n in range(live.MAX_TOPICS + 1)) + "]}", live.BAD_MESSAGE, "21"),
        (" " * (live.MAX_MESSAGE_CHARACTERS + 1), live.TOO_LARGE, "characters"),
    ],
)
async def test_a_bad_message_ends_the_connection(
    server: LiveServer, message: str | bytes, code: int, reason: str
) -> None:
    async with server.socket() as connection:
        await connection.send(message)
        assert (await close_code(connection))[0] == code
        assert reason in (connection.close_reason or "")


async def test_limits_of_messages_and_clients(server: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    async with server.socket() as connection:
        for _ in range(live.MAX_MESSAGES + 1):
            await connection.send('{"pause": false}')
        assert (await close_code(connection))[0] == live.BAD_MESSAGE
    monkeypatch.setattr(live, "MAX_CLIENTS", 1)
    async with server.socket() as first:
        await subscribe(first, "egress")
        await receive(first)
        async with server.socket() as second:
            assert (await close_code(second))[0] == live.TOO_MANY_CLIENTS
        refused = await asyncio.to_thread(httpx.get, f"http://{server.address}/api/v1/live")
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "too_many_clients")


async def test_a_client_that_never_reads_is_dropped(server: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "FRAME_SECONDS", 0.01)
    monkeypatch.setattr(server_module, "STUCK_SECONDS", 1.0)
    run = await server.new_run()
    topic = f"run:{run.id}"
    long_text = "x" * 100_000

    async def publish(number: int) -> None:
        server.clients.hub._publish(topic, {"n": number, "text": f"{long_text}{number}"})

    reader, writer = await asyncio.open_connection(*server.address.split(":"), limit=2**12)
    writer.write(
        b"GET /api/v1/live HTTP/1.1\r\nHost: %b\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n" % server.address.encode()
    )
    await reader.readuntil(b"\r\n\r\n")
    text = json.dumps({"subscribe": [topic]}).encode()
    writer.write(bytes([0x81, 0x80 | len(text), 0, 0, 0, 0]) + text)  # masked with zeros
    async with asyncio.timeout(PATIENCE):
        await until(lambda: server.clients.hub.clients == 1)
        assert server.clients.count == 1
        number = 0
        while server.clients.count:  # it never reads
            number += 1
            await publish(number)
            await asyncio.sleep(0.01)
    writer.close()


async def test_a_token_that_ends_closes_its_connections_with_one_look_up(
    server: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_up = 0

    async def is_still_allowed(*_: object) -> bool:
        nonlocal looked_up
        looked_up += 1
        return False

    monkeypatch.setattr(live, "is_still_allowed", is_still_allowed)
    async with server.socket() as one, server.socket() as other:
        for connection in (one, other):
            await subscribe(connection, "egress")
            await receive(connection)
        await server.clients.check_access()
        assert looked_up == 1
        for connection in (one, other):
            assert await close_code(connection) == (live.NOT_ALLOWED, "The token or the session has ended.")


async def test_a_server_that_stops_ends_everybody_at_once(server: LiveServer) -> None:
    async with server.socket() as connection, httpx.AsyncClient(timeout=PATIENCE) as client:
        await subscribe(connection, "egress")
        await receive(connection)
        async with client.stream("GET", f"http://{server.address}/api/v1/live") as answer:
            lines = answer.aiter_lines()
            await anext(lines)
            assert server.clients.count == 2
            server.clients.stop()
            assert (await close_code(connection))[0] == live.RESTARTING
            assert not [line async for line in lines if line.startswith("data")]
        await until(lambda: server.clients.count == 0)
