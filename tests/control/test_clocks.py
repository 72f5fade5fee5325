"""Clocks that jump: the server's wall clock, which decides nothing, and the ledger's, which does."""

from __future__ import annotations

import datetime as dt
import json
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from fastapi import FastAPI

from shoal.config import load_settings
from shoal.control import live
from shoal.control.access import COOKIE
from shoal.ledger.protocols import Ledger
from shoal.model.run import Run
from shoal.model.worker import Scope, WorkerSpec
from shoal.observe.snapshot import take_snapshot
from shoal.testing.harness import LedgerHarness, dead, done, retry
from tests.ledger.conftest import either_harness, place, postgres_template
from tests.support.control import REMOTE, client_of, running_app, token_of
from tests.support.small_ledger import api_on, small_run

__all__ = ["either_harness", "place", "postgres_template"]

DAY = 86_400.0
SITE = "http://127.0.0.1:8642"
SHOP = 'from shoal import Scraper\n\nshop = Scraper("shop")\n\n\n@shop.stage\ndef page(item):\n    yield {}\n'


class WallClock:
    """The wall clock of this process, moved by `shift` seconds."""

    shift = 0.0


@pytest.fixture
def wall_clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[WallClock]:
    clock, real_time, real = WallClock(), time.time, dt.datetime

    class Meta(type):
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, real)

    class Moved(real, metaclass=Meta):  # type: ignore[misc, valid-type]
        @classmethod
        def now(cls, tz: dt.tzinfo | None = None) -> dt.datetime:
            return real.now(tz) + dt.timedelta(seconds=clock.shift)

    monkeypatch.setattr(time, "time", lambda: real_time() + clock.shift)
    monkeypatch.setattr(dt, "datetime", Moved)
    assert dt.datetime.now(dt.UTC) - real.now(dt.UTC) < dt.timedelta(minutes=1)
    yield clock
    clock.shift = 0.0


@pytest.fixture
async def app(place: Path | str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FastAPI]:
    """A server that opened its ledger itself, so that this has its real clock."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "shoal.toml").touch()
    async with running_app(load_settings({"ledger": str(place)}, environ={}, folder=tmp_path)) as app:
        yield app


async def log_in(client: httpx.AsyncClient, token: str) -> int:
    """A browser that logs in, if it may. Its clock is not the server's: it keeps the cookie."""
    answer = await client.post("/api/v1/session", json={"token": token})
    if answer.status_code == 200:
        client.headers["Cookie"] = f"{COOKIE}={answer.cookies[COOKIE]}"
        client.cookies.clear()
    return answer.status_code


def seconds_from(at: str, clock: dt.datetime) -> float:
    return abs((dt.datetime.fromisoformat(at) - clock).total_seconds())


async def test_the_wall_clock_of_the_server_decides_nothing(app: FastAPI, wall_clock: WallClock) -> None:
    """A day ahead, a day back: sessions, limits, live frames, rates, keys and times are as the ledger has them."""
    ledger: Ledger = app.state.control.ledger
    run = await small_run(ledger)
    await ledger.workers.register(WorkerSpec(id="w1", node="node1", pid=1, lease_seconds=3_600))
    token = await token_of(app, "ops")
    watcher = live.LiveClient(app.state.live.hub.open(), cast(Any, None), cast(Any, None))
    async with (
        client_of(app, REMOTE, Origin=SITE) as browser,
        client_of(app, "192.0.2.8", Origin=SITE) as guesser,
        client_of(app) as local,
    ):
        assert await log_in(browser, token) == 200
        while await log_in(guesser, "shoal_wrong") == 401:
            pass
        watcher.subscribe(("fleet", f"run:{run.id}"), None)
        await watcher.next_frame()
        for number, shift in enumerate((DAY, -DAY, 30 * DAY, 0.0)):
            wall_clock.shift = shift
            clock = (await ledger.health.check()).clock
            assert (await browser.get("/api/v1/me")).json()["name"] == "ops", "the session goes on"
            assert await log_in(guesser, "shoal_wrong") == 429, "the limit of log-ins holds"
            await ledger.intake.enqueue(run.id, [f"http://shop.example/{number}"])
            frame = await frame_with_total(watcher, f"run:{run.id}", 5 + number)
            assert frame["snapshot"] is False

            fleet = await app.state.live.hub.shared.workers.get()
            assert [worker.alive for worker in fleet] == [True]
            snapshot = await take_snapshot(ledger, run.id)
            assert abs((snapshot.at - clock).total_seconds()) < 600
            assert abs((await app.state.live.hub.shared.now() - clock).total_seconds()) < 600
            job = await app.state.jobs.jobs.frame()
            assert (abs((job.at - clock).total_seconds()) < 600, job.counts.total) == (True, 5 + number)
            assert "shoal_ledger_up 1.0" in (await local.get("/metrics")).text
            assert (await local.get(f"/api/v1/runs/{run.id}")).json()["total"] == 5 + number
            detail = (await local.get("/api/v1/workers")).json()["rows"][0]
            assert detail["silent_seconds"] < 600
            key = {"Idempotency-Key": "pause"}
            paused = await local.post(f"/api/v1/runs/{run.id}/pause", headers=key)
            assert (paused.status_code, "idempotent-replayed" in paused.headers) == (200, number > 0)
        events = (await local.get("/api/v1/events")).json()["rows"]
        assert [event["action"] for event in events].count("run.paused") == 1
    watcher.close()


async def frame_with_total(watcher: live.LiveClient, topic: str, total: int) -> dict[str, Any]:
    while True:
        frame: dict[str, Any] = json.loads((await watcher.next_frame()).text)
        if frame["changes"].get(topic, {}).get("total") == total:
            return frame


@pytest.mark.parametrize("jump", [2 * DAY, -2 * 3_600.0])
async def test_a_ledger_whose_clock_jumps_is_shown(either_harness: LedgerHarness, tmp_path: Path, jump: float) -> None:
    """Whatever time it has: every page answers, and counts do not change with the time."""
    harness = either_harness
    run = await mixed_run(harness)
    async with api_on(harness.ledger, tmp_path) as api:
        api.base_url = httpx.URL(SITE)
        before = await counts_of(api, run)
        for retries, seconds in enumerate((0.0, jump, -jump), 1):
            await harness.advance_clock(seconds)
            assert await counts_of(api, run) == before
            stored = await api.put("/api/v1/settings/scraper:shop", json={"value": {"retries": retries}})
            assert stored.status_code == 200, "what was locked and released before is not locked now"


async def mixed_run(harness: LedgerHarness) -> Run:
    run = await harness.run()
    await harness.put(run, *"abcdef")
    worker = await harness.worker(lease_seconds=3_600, scope=Scope(run_ids=(run.id,)))
    first, second, third = await harness.claim(worker, 3)
    await harness.commit(worker, done(first), dead(second), retry(third, delay=1e6))
    await harness.claim(worker, 1)
    await harness.ledger.upkeep.sample()
    return run


async def counts_of(api: httpx.AsyncClient, run: Run) -> dict[str, Any]:
    """What the pages say about the items, and that all pages answer."""
    pages = ["overview", "workers", "nodes", "lanes", "events", "egress", "schedules", "collections", "settings"]
    pages += [f"runs/{run.id}/{page}" for page in ("history", "items", "failures", "lanes", "partitions")]
    for page in (*pages, "/metrics", "/readyz"):
        answer = await api.get(page if page.startswith("/") else f"/api/v1/{page}")
        assert answer.status_code == 200, (page, answer.text[:500])
    record = (await api.get(f"/api/v1/runs/{run.id}")).json()
    return {name: record[name] for name in ("total", "done", "dead", "leased", "remaining", "records")}
