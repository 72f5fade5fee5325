"""Answers: idempotency keys, entity tags, unknown errors; and a ledger that is away, slow, or replaced."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from fastapi.responses import StreamingResponse

from shoal.control import answers, connection
from shoal.control.answers import ApiError, Preview
from shoal.control.app import ControlDep
from shoal.errors import LedgerUnavailable, WrongState
from shoal.observe.logs import open_logs
from shoal.service.access import remove_token
from tests.support.control import REMOTE, bearer, client_of, running_app, settings_in, token_of
from tests.support.ledgers import sqlite_harness

SECRET = "hunter2-in-an-exception"


class Calls:
    """Routes that count their calls, wait, and fail."""

    def __init__(self, app: FastAPI) -> None:
        self.count = 0
        self.gate = asyncio.Event()
        self.waiting = asyncio.Event()
        self.gate.set()

        @app.post("/write")
        async def write(body: dict[str, Any], preview: Preview = False) -> dict[str, Any]:
            self.count += 1
            self.waiting.set()
            await self.gate.wait()
            if body.get("fail") == "state":
                raise WrongState("It is finished.")
            if body.get("fail") == "bug":
                raise RuntimeError(SECRET)
            return {"count": self.count, "preview": preview, "body": body}

        @app.get("/read")
        async def read(value: str = "") -> dict[str, str]:
            return {"value": value}

        @app.get("/bug")
        async def bug() -> None:
            raise RuntimeError(SECRET)

        @app.get("/clock")
        async def clock(control: ControlDep) -> float:
            return await control.ledger.lanes.clock()

        @app.get("/never")
        async def never() -> None:
            self.waiting.set()
            await asyncio.Event().wait()


@pytest.fixture(autouse=True)
def quick_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "CHECK_SECONDS", 0.1)
    monkeypatch.setattr(connection, "SILENT_SECONDS", 60.0)  # a busy machine is no ledger that is away


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[FastAPI]:
    async with running_app(settings_in(tmp_path)) as app:
        yield app


@pytest.fixture
def calls(app: FastAPI) -> Calls:
    return Calls(app)


def key(text: str) -> dict[str, str]:
    return {"Idempotency-Key": text}


async def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_write_with_the_same_key_is_done_once(app: FastAPI, calls: Calls) -> None:
    client = client_of(app)
    first = await client.post("/write", json={"a": 1}, headers=key("k1"))
    again = await client.post("/write", json={"a": 1}, headers=key("k1"))
    assert (first.json(), first.status_code) == (again.json(), again.status_code)
    assert calls.count == 1
    assert "idempotent-replayed" not in first.headers
    assert again.headers["idempotent-replayed"] == "true"
    assert (await client.post("/write", json={"a": 1}, headers=key("k2"))).json()["count"] == 2
    assert (await client.post("/write", json={"a": 1})).json()["count"] == 3


async def test_a_key_belongs_to_one_request(app: FastAPI, calls: Calls) -> None:
    client = client_of(app)
    await client.post("/write", json={"a": 1}, headers=key("k"))
    for path, body in (("/write", {"a": 2}), ("/write?preview=false", {"a": 1})):
        refused = await client.post(path, json=body, headers=key("k"))
        assert (refused.status_code, refused.json()["error"]["code"]) == (422, "idempotency_key_reused")
    assert (await client.post("/write", json={}, headers=key("x" * 300))).status_code == 422
    assert calls.count == 1


async def test_a_key_belongs_to_one_principal(app: FastAPI, calls: Calls) -> None:
    tokens = [await token_of(app, "one"), await token_of(app, "two")]
    counts = []
    for token in tokens:
        answer = await client_of(app, REMOTE).post("/write", json={}, headers={**bearer(token), **key("k")})
        counts.append(answer.json()["count"])
    assert counts == [1, 2]
    await remove_token(app.state.control.ledger, "one")
    refused = await client_of(app, REMOTE).post("/write", json={}, headers={**bearer(tokens[0]), **key("k")})
    assert refused.status_code == 401


async def test_what_was_refused_or_failed_may_be_sent_again(app: FastAPI, calls: Calls) -> None:
    client = client_of(app)
    for number, (why, status) in enumerate((("state", 409), ("bug", 500)), 1):
        for attempt in (1, 2):
            answer = await client.post("/write", json={"fail": why}, headers=key(why))
            assert answer.status_code == status
            assert calls.count == 2 * (number - 1) + attempt


async def test_a_request_that_was_refused_may_be_corrected(app: FastAPI, calls: Calls) -> None:
    client = client_of(app)
    assert (await client.post("/write", json={"fail": "state"}, headers=key("k"))).status_code == 409
    assert (await client.post("/write", json={"a": 1}, headers=key("k"))).json()["body"] == {"a": 1}
    again = await client.post("/write", json={"a": 1}, headers=key("k"))
    assert again.headers["idempotent-replayed"] == "true"
    assert calls.count == 2


async def test_what_a_preview_is_the_route_decides(app: FastAPI, calls: Calls) -> None:
    """A write that only looks like a preview is done once too."""
    client = client_of(app)
    for number, query in enumerate(("x=preview=true", "preview=true&preview=false", "nopreview=1"), 1):
        for _ in range(2):
            answer = await client.post(f"/write?{query}", json={}, headers=key(query))
            assert (answer.json()["count"], answer.json()["preview"]) == (number, False)
    for query in ("preview=yes", "preview=True", "preview=on"):
        assert (await client.post(f"/write?{query}", json={}, headers=key("k"))).json()["preview"] is True


async def test_a_preview_is_not_kept(app: FastAPI, calls: Calls) -> None:
    client = client_of(app)
    assert (await client.post("/write?preview=true", json={}, headers=key("k"))).json()["preview"] is True
    assert (await client.post("/write", json={}, headers=key("k"))).json()["preview"] is False
    assert calls.count == 2


async def test_while_a_write_goes_on_its_key_is_taken_on_all_servers(tmp_path: Path) -> None:
    async with running_app(settings_in(tmp_path)) as first, running_app(settings_in(tmp_path)) as second:
        calls, others = Calls(first), Calls(second)
        calls.gate.clear()
        writing = asyncio.create_task(client_of(first).post("/write", json={}, headers=key("k")))
        await calls.waiting.wait()
        busy = await client_of(second).post("/write", json={}, headers=key("k"))
        assert (busy.status_code, busy.json()["error"]["code"]) == (409, "in_progress")
        assert busy.headers["retry-after"] == "1"
        calls.gate.set()
        done = await writing
        replayed = await client_of(second).post("/write", json={}, headers=key("k"))
        assert replayed.json() == done.json()
        assert others.count == 0


async def test_the_key_of_a_server_that_died_is_free_after_a_while(tmp_path: Path) -> None:
    async with (
        sqlite_harness(tmp_path / "ledger.db") as harness,
        running_app(settings_in(tmp_path), opened=lambda: harness.ledger) as app,
    ):
        calls = Calls(app)
        calls.gate.clear()
        # A killed server neither completes nor releases the key: its task is frozen here.
        frozen = asyncio.create_task(client_of(app).post("/write", json={}, headers=key("k")))
        await calls.waiting.wait()
        calls.gate = asyncio.Event()
        calls.gate.set()
        assert (await client_of(app).post("/write", json={}, headers=key("k"))).status_code == 409
        await harness.advance_clock(answers.KEY_SECONDS + 1)
        assert (await client_of(app).post("/write", json={}, headers=key("k"))).json()["count"] == 2
        frozen.cancel()
        await asyncio.gather(frozen, return_exceptions=True)


async def test_an_answer_that_is_known_is_not_sent_again(app: FastAPI, calls: Calls) -> None:
    client = client_of(app)
    first = await client.get("/read?value=a")
    tag = first.headers["etag"]
    for given in (tag, f'"x", {tag}', "*", tag.removeprefix("W/")):
        again = await client.get("/read?value=a", headers={"If-None-Match": given})
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["etag"] == tag
    other = await client.get("/read?value=b", headers={"If-None-Match": tag})
    assert (other.status_code, other.json()) == (200, {"value": "b"})


async def test_an_unknown_error_says_nothing_but_its_id(tmp_path: Path) -> None:
    log = tmp_path / "serve.log"
    logs = open_logs(format="json", level="info", file=log, stream=None)
    async with running_app(settings_in(tmp_path), log=logs.log) as app:
        Calls(app)
        answer = await client_of(app).get("/bug?password=x", headers={"Accept": "text/html"})
    logs.close()
    assert answer.status_code == 500
    error = answer.json()["error"]
    assert error["code"] == "internal"
    assert SECRET not in answer.text
    assert "Traceback" not in answer.text
    id = error["hint"].split()[-1].strip(".")
    lines = [line for line in log.read_text().splitlines() if id in line]
    assert len(lines) == 1
    assert SECRET in lines[0]
    assert "password" not in lines[0]
    assert answer.headers["x-content-type-options"] == "nosniff"


async def test_errors_of_all_kinds_have_one_form(app: FastAPI, calls: Calls) -> None:
    client = client_of(app)
    for answer, status in (
        (await client.get("/nothing"), 404),
        (await client.post("/read"), 405),
        (await client.post("/write", content=b"{", headers={"Content-Type": "application/json"}), 422),
        (await client.post("/write", json=[1]), 422),
        (await client.post("/write", json={"fail": "state"}), 409),
    ):
        assert answer.status_code == status
        assert set(answer.json()) == {"error"}
        assert set(answer.json()["error"]) == {"code", "message", "hint"}


async def test_requests_at_once_are_bounded_and_streams_do_not_count(
    app: FastAPI, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "MAX_REQUESTS", 2)
    calls.gate.clear()
    client = client_of(app)
    writing = [asyncio.create_task(client.post("/write", json={"n": n})) for n in range(2)]
    await until(lambda: calls.count == 2)
    refused = await client.get("/read")
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "overloaded")
    assert refused.headers["retry-after"] == "1"
    calls.gate.set()
    assert [answer.status_code for answer in await asyncio.gather(*writing)] == [200, 200]
    assert (await client.get("/read")).status_code == 200


async def test_a_read_that_takes_too_long_is_given_up(
    app: FastAPI, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "READ_SECONDS", 0.2)
    answer = await client_of(app).get("/never")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "slow")


async def test_one_slow_statement_does_not_delay_the_others(
    app: FastAPI, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite has several reading connections in a server."""
    monkeypatch.setattr(connection, "SILENT_SECONDS", 60.0)  # a busy machine is no ledger that is away
    database = app.state.control.ledger.db
    release = asyncio.Event()
    loop = asyncio.get_running_loop()

    def slow(_: sqlite3.Connection) -> None:
        asyncio.run_coroutine_threadsafe(release.wait(), loop).result(60)

    reading = [asyncio.create_task(database.read(slow)) for _ in range(2)]
    await asyncio.sleep(0)
    for _ in range(5):
        assert (await client_of(app).get("/clock")).status_code == 200
    release.set()
    await asyncio.gather(*reading)


async def test_the_server_starts_without_its_ledger_and_finds_it_later(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    file = tmp_path / "ledger.db"
    file.write_text("this is not a database" * 100)
    said: list[str] = []
    async with running_app(settings, on_change=said.append) as app:
        Calls(app)
        async with client_of(app) as client:
            away = await client.get("/clock")
            assert away.status_code == 503
            assert away.headers["retry-after"]
            assert str(file) in away.json()["error"]["message"]
            assert (await client.get("/read")).status_code == 200  # what needs no ledger works
            file.unlink()
            await until_ok(client)
    assert len(said) == 2
    assert "503" in said[0]
    assert said[1].endswith("answers.")


async def test_a_ledger_file_that_was_replaced_is_opened_again(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    file, kept = tmp_path / "ledger.db", tmp_path / "kept.db"
    async with running_app(settings) as app, client_of(app) as client:
        Calls(app)
        first = await token_of(app, "first")
        await app.state.control.ledger.back_up(kept, lambda done, total: None)
        second = await token_of(app, "second")
        for name in ("ledger.db", "ledger.db-wal", "ledger.db-shm"):
            (tmp_path / name).unlink(missing_ok=True)
        await until_answer(client, "/clock", 503)
        assert not file.exists()  # an empty ledger in its place would hide the loss
        kept.rename(file)
        await until_ok(client)
        remote = client_of(app, REMOTE)
        assert (await remote.get("/read", headers=bearer(first))).status_code == 200
        assert (await remote.get("/read", headers=bearer(second))).status_code == 401


async def test_requests_that_wait_for_a_lost_ledger_end_at_once(
    app: FastAPI, calls: Calls, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(answers, "READ_SECONDS", 3_600.0)
    waiting = asyncio.create_task(client_of(app).get("/never"))
    await calls.waiting.wait()
    (tmp_path / "ledger.db").rename(tmp_path / "elsewhere.db")
    answer = await asyncio.wait_for(waiting, 60)
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] != "slow"


async def until_ok(client: httpx.AsyncClient) -> None:
    await until_answer(client, "/clock", 200)


async def until_answer(client: httpx.AsyncClient, path: str, status: int) -> None:
    async with asyncio.timeout(60):
        while (await client.get(path)).status_code != status:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_a_stream_that_has_begun_outlives_the_loss_of_the_ledger(app: FastAPI) -> None:
    begun, going_on = asyncio.Event(), asyncio.Event()

    @app.get("/stream")
    async def stream() -> StreamingResponse:
        async def parts() -> AsyncIterator[str]:
            yield "first "
            begun.set()
            await going_on.wait()
            yield "last"

        return StreamingResponse(parts())

    async with asyncio.timeout(60):
        answer = asyncio.create_task(client_of(app).get("/stream"))
        await begun.wait()
        app.state.control.connection._lost(LedgerUnavailable("It is away."))
        for _ in range(50):  # whatever would end it has its turn
            await asyncio.sleep(0)
        going_on.set()
        assert (await answer).text == "first last"


def test_an_api_error_has_what_it_was_given() -> None:
    error = ApiError(418, "teapot", "short", "stout")
    assert (error.status, error.code, str(error), error.hint) == (418, "teapot", "short", "stout")
