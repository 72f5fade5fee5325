"""S4's paths on a real server with a real pool: every body, pauses, restarts of the server, and the end of a pool."""

from __future__ import annotations

import asyncio
import datetime as dt
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import httpx
import pytest

from shoal.config import load_settings
from shoal.control import jobs as control_jobs
from shoal.control.jobs import FrameFeed
from shoal.model.item import NewItem
from shoal.model.run import Run, RunState
from shoal.service.jobs import Jobs
from shoal.service.local_pools import LocalPools
from shoal.testing.harness import LedgerHarness, dead, done, retry
from shoal.testing.site import LocalSite
from tests.ledger.conftest import either_harness, place, postgres_template
from tests.support.control import client_of, running_app
from tests.support.project import Project
from tests.support.served import ServedProject
from tests.support.watched_ledger import LedgerWatch, watch_ledger

__all__ = ["either_harness", "place", "postgres_template"]

PAGE_SECONDS = 0.3
VIDEOS = 400
SUBTITLES = """
    subtitles = Scraper("subtitles")

    @subtitles.stage(concurrency=100)
    async def video(page: Page, item: Item):
        if item.url.endswith("3"):
            raise Permanent("No subtitles available")
        if item.url.endswith("4"):
            raise Transient("Connection timeout")
        yield {"url": page.url}

    subtitles.start(video.item(f"URL/watch/{n}") for n in range(400))
"""
STATUS_FIELDS = {"running", "num_workers", "active_workers", "total_processed", "total_failed", "startup_recovery_done"}
METRICS = {"processing_rate_per_hour", "success_rate", "estimated_completion_time"}
FEATURES = {
    "parallel_processing",
    "atomic_job_claiming",
    "exponential_backoff",
    "graceful_shutdown",
    "real_time_monitoring",
}
FRAME = {"status", "active_workers", "counts", "throughput_per_min", "workers", "recent_errors"}


@pytest.fixture
def site() -> Iterator[LocalSite]:
    with LocalSite() as site:
        for n in range(VIDEOS):
            site.route(f"/watch/{n}", "<p>words", delay=PAGE_SECONDS)
        yield site


@contextmanager
def serving(project: Project, site: LocalSite) -> Iterator[ServedProject]:
    project.write(SUBTITLES.replace("URL", site.url), "subtitles.py")
    (project.folder / "shoal.toml").touch()
    with ServedProject(project) as server:
        yield server


def seconds_for(site: LocalSite, pages: int) -> float:
    """How long the site waits for so many further requests."""
    before, began = len(site.requests), time.monotonic()
    while len(site.requests) < before + pages:
        assert time.monotonic() < began + 60, "nothing is fetched"
        time.sleep(0.01)
    return time.monotonic() - began


def seconds_to_silence(site: LocalSite) -> float:
    """After how long the last request came, when none came for two seconds."""
    seen, began, last = len(site.requests), time.monotonic(), 0.0
    while (now := time.monotonic() - began) < last + 2.0:
        assert now < 60, "items still start"
        if len(site.requests) > seen:
            seen, last = len(site.requests), now
        time.sleep(0.01)
    return last


def test_the_life_of_a_job(either: Project, site: LocalSite) -> None:
    """S4.1, S4.2, S4.12-S4.18: start, watch, scale, pause, resume, change settings, restart, stop."""
    project = either
    with serving(project, site) as served:
        check_refusals(served)
        started = served.post("/jobs/workers/start", {"num_workers": 1}, key="once")
        assert started["pool"] == "running"
        assert served.post("/jobs/workers/start", {"num_workers": 1}, key="once") == started, "it was done once"
        seconds_for(site, 5)

        # S4.18: five, without a restart. S4.20, S4.21: they work at once; what that gains depends on the machine.
        served.post("/jobs/workers/start", {"num_workers": 5})
        check_frames(served, site)
        seconds_for(site, 20)
        check_status(served)
        check_pause(served, site)
        check_numbers(served)

        # S4.2: new settings hold for attempts from now on; a restart brings the workers back with the new number.
        check_settings(served)
        assert served.post("/jobs/resume")["status"] == "running"
        restarted = served.post("/jobs/workers/restart", drain=1)
        assert restarted["pool_id"] != started["pool_id"]
        assert restarted["worker_status"]["num_workers"] == 2
        # An item that fails like this has three retries otherwise, and then "Exceeded retries: ".
        served.until(
            lambda: served.get("/logs", level="ERROR", limit=1_000)["rows"],
            lambda rows: any(row["message"] == "Connection timeout" for row in rows),
        )

        # S4.9: what runs may end, nothing stays `processing`.
        stopped = served.post("/jobs/stop", drain=5)
        assert (stopped["status"], stopped["pool"], stopped["worker_status"]["running"]) == ("idle", "ended", False)
        assert project.counts().leased == 0
        assert served.post("/jobs/stop", status=409)["error"]["code"] == "wrong_state"
        actions = [event.action for event in served.ask(lambda ledger: ledger.reads.events(limit=200)).rows]
        assert actions.count("pool.started") == 2
        assert {"pool.scaled", "pool.stopped"} <= set(actions)
        assert project.is_sound()


def check_refusals(served: ServedProject) -> None:
    """S4.15: the body is checked, and a preview starts nothing."""
    assert served.get("/jobs")["status"] == "idle"
    for path in ("/jobs/workers/start", "/jobs/workers/restart"):
        for number in (0, 21, -1, "x", "3", 2.5, True, [3]):
            assert served.post(path, {"num_workers": number}, status=422)["error"]["message"]
        assert served.post(path, {"workers": 3}, status=422)
    assert "To be started: 1 worker." in served.post("/jobs/workers/start", {"num_workers": 1}, preview="true")["text"]
    assert served.get("/api/v1/pools")["rows"] == []


def check_frames(served: ServedProject, site: LocalSite) -> None:
    """S4.12, S4.13: the WebSocket reflects the active workers, with a frame each second."""
    with served.frames("/jobs/status") as frames:
        busy = next(frame for frame in frames if frame["active_workers"] == 5)
        assert busy.keys() >= FRAME
        assert (busy["status"], len(busy["workers"]), busy["num_workers"]) == ("running", 5, 5)
        for worker in busy["workers"].values():
            assert worker.keys() == {"item", "started_at"}
            assert worker["item"].startswith(f"{site.url}/watch/")
        # By the ledger's clock: this process may see them later, and closer together. Each one takes a while to read.
        seen = list(islice(frames, 6))
        assert sum(frame["active_workers"] for frame in seen) > 2.5 * len(seen), "they do not work at once"
        times = [dt.datetime.fromisoformat(frame["at"]) for frame in seen]
        assert times == sorted(set(times))
        assert (times[-1] - times[0]).total_seconds() > len(times) - 3, "more than a frame a second"


def check_status(served: ServedProject) -> None:
    """S4.16: exactly these fields."""
    status = served.get("/jobs/workers/status")
    assert status.keys() == {"worker_status", "performance_metrics", "features"}
    assert status["worker_status"].keys() == STATUS_FIELDS
    assert status["performance_metrics"].keys() == METRICS
    assert status["features"] == dict.fromkeys(FEATURES, True)
    assert status["worker_status"]["running"] is True
    assert status["worker_status"]["startup_recovery_done"] is True
    assert status["performance_metrics"]["estimated_completion_time"].startswith("~")


def check_pause(served: ServedProject, site: LocalSite) -> None:
    """The site's own log is the witness: a second after the request nothing is fetched any more.

    A machine that is busy may itself need longer, so the best of three counts; a pause that is too slow never passes.
    """
    took = []
    for _ in range(3):
        # Each worker has ended something, so that each has a rate.
        served.until(
            lambda: served.get("/jobs/workers/performance")["workers"],
            lambda workers: len(workers) == 5 and all(worker["attempts"] for worker in workers),
        )
        with ThreadPoolExecutor(1) as thread:
            pausing = thread.submit(served.post, "/jobs/pause")
            took.append(seconds_to_silence(site))
            assert pausing.result()["status"] == "paused"
        if took[-1] < 1.0:
            break
        served.post("/jobs/resume")
        seconds_for(site, 5)
    assert min(took) < 1.0, f"items started {took} s after the pause"
    assert served.get("/jobs/workers/status")["worker_status"]["running"] is True


def check_numbers(served: ServedProject) -> None:
    """S4.15, S4.17: while it is paused nothing moves, so all numbers can be compared with the ledger's."""
    queue = served.until(lambda: served.get("/jobs/queue/stats"), lambda queue: queue["processing"] == 0)
    counts = served.project.counts()
    assert (queue["completed"], queue["failed"], queue["total"]) == (counts.done, counts.dead, VIDEOS)
    performance = served.get("/jobs/workers/performance")
    assert {**performance["queue"], "delayed": queue["delayed"]} == queue, "delayed items may be due meanwhile"
    assert len(performance["workers"]) == 5
    assert sum(worker["processed"] for worker in performance["workers"]) == counts.ended
    assert all(worker["average_runtime_seconds"] >= PAGE_SECONDS / 2 for worker in performance["workers"])
    assert performance["success_rate"] == pytest.approx(counts.done / (counts.done + counts.dead), abs=1e-3)


def check_settings(served: ServedProject) -> None:
    assert served.post("/settings", {"max_workers": 2, "max_retries": 0})["max_retries"] == 0
    assert served.get("/settings") == {
        "max_workers": 2,
        "max_retries": 0,
        "backoff_factor": 2.0,
        "output_dir": "./subtitles",
    }
    assert served.post("/settings", {"max_retries": 11}, status=422)


def test_a_server_that_was_killed_finds_its_pool_again(either: Project, site: LocalSite) -> None:
    """S4.10: killed with -9 and restarted it steers the pool as before, and says so when the pool is gone."""
    with serving(either, site) as served:
        check_killed_server(served, site)
        check_killed_pool(served)


def check_killed_server(served: ServedProject, site: LocalSite) -> None:
    started = served.post("/jobs/workers/start", {"num_workers": 2})
    served.until(lambda: served.get("/jobs/workers/status")["worker_status"]["active_workers"], lambda n: n == 2)
    served.kill()
    seconds_for(site, 4)  # the pool goes on
    served.start()
    status = served.get("/jobs")
    assert (status["pool_id"], status["pool"]) == (started["pool_id"], "running")
    (pool,) = served.get("/api/v1/pools")["rows"]
    assert (pool["by_this_server"], pool["wanted"]) == (True, 2)
    scaled = served.post(f"/api/v1/pools/{pool['pool_id']}/scale", {"workers": 1})
    assert scaled["command"].startswith("shoal pool scale subtitles 1")
    served.until(lambda: served.get("/api/v1/pools")["rows"], lambda rows: [row["workers"] for row in rows] == [1])


def check_killed_pool(served: ServedProject) -> None:
    (pool,) = served.get("/api/v1/pools")["rows"]
    os.kill(pool["pid"], signal.SIGKILL)
    served.until(lambda: served.get("/jobs")["pool"], lambda state: state == "gone")
    assert served.get("/api/v1/pools")["rows"] == []
    # Its worker notices that nobody supervises it, finishes what it has, and leaves: nothing stays `processing`.
    served.until(lambda: served.get("/jobs/queue/stats")["processing"], lambda number: number == 0)
    assert served.post("/api/v1/pools/unknown/stop", status=404)["error"]["code"] == "not_found"
    assert served.post("/jobs/reconcile")["startup_recovery_done"] is True
    again = served.post("/api/v1/pools", {"scraper": "subtitles", "workers": 1})["pool"]
    assert again["run_id"] == pool["run_id"]
    assert served.post(f"/api/v1/pools/{again['pool_id']}/stop")["pool"]["state"] in ("stopping", "ended")
    served.until(lambda: served.get(f"/api/v1/pools/{again['pool_id']}")["state"], lambda state: state == "ended")
    assert served.project.is_sound()


def test_what_cannot_start_says_why(project: Project) -> None:
    project.write("empty = Scraper('empty')\n", "empty.py")
    (project.folder / "shoal.toml").touch()
    with ServedProject(project) as server:
        said: Any = server.post("/api/v1/pools", {"scraper": "empty", "workers": 1}, status=409)["error"]
        assert "empty" in said["message"]
        for name in ("empty.py", "../empty", "/etc/passwd"):
            refused = server.post("/api/v1/pools", {"scraper": name, "workers": 1}, status=404)["error"]
            assert "starts scrapers of its project only" in refused["hint"]


def test_workers_wait_for_items_that_come_later(project: Project) -> None:
    """S4.3: a scraper without start items has an open run; its workers wait, and take what is added."""
    project.write(
        """
        inbox = Scraper("inbox")

        @inbox.stage
        def one(item: Item):
            import os

            yield {"key": item.key, "files": os.environ["SHOAL_FILES"]}
        """,
        "inbox.py",
    )
    (project.folder / "shoal.toml").touch()
    with ServedProject(project, "--jobs", "inbox") as server:
        server.post("/settings", {"max_workers": 2, "output_dir": "./texts"})
        started = server.post("/jobs/start")
        assert (started["status"], started["worker_status"]["num_workers"]) == ("running", 2)
        server.until(lambda: len(server.get("/jobs/workers/performance")["workers"]), lambda number: number == 2)
        assert server.get("/jobs/queue/stats")["total"] == 0
        server.ask(lambda ledger: ledger.intake.enqueue(started["run_id"], [NewItem(key=key) for key in "abc"]))
        server.until(lambda: server.get("/jobs/queue/stats")["completed"], lambda number: number == 3)
        assert server.get("/jobs")["status"] == "running", "they wait for more"
        # S4.2: files that are downloaded go to `output_dir`.
        folders = {project.folder / record["files"] for record in project.export()}
        assert folders == {project.folder / "texts"}
        assert server.post("/jobs/stop")["status"] == "idle"


QUEUE = {
    *("run_id", "pending", "delayed", "processing", "completed", "failed", "skipped", "cancelled", "remaining"),
    "total",
}
PERFORMANCE = {
    *("items_per_hour", "throughput_per_min", "success_rate", "average_runtime_seconds", "estimated_completion_time"),
    *("eta_seconds", "queue", "workers"),
}
STATUS = {
    *("status", "scraper", "run_id", "pool_id", "pool", "worker_status", "performance_metrics", "features"),
    "startup_recovery",
}
WORKER = {
    *("name", "status", "item", "started_at", "processed", "failed", "attempts", "average_runtime_seconds"),
}
CHANGE = STATUS | {"text", "preview", "command"}


@pytest.fixture
async def api(
    either_harness: LedgerHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a server on both ledgers, one after the other, whose project has one scraper."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop.py").write_text('from shoal import Scraper\n\nshop = Scraper("shop")\n')
    (tmp_path / "shoal.toml").touch()
    settings = load_settings({"ledger": str(tmp_path / "unused.db")}, environ={}, folder=tmp_path)
    async with running_app(settings, opened=lambda: either_harness.ledger) as app, client_of(app) as client:
        while not app.state.jobs.jobs.recovery.done:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        yield client


async def answer(api: httpx.AsyncClient, path: str, body: Any = None, status: int = 200, **params: Any) -> Any:
    """The answer to a POST with a body, or to a GET without."""
    method = "GET" if body is None else "POST"
    got = await api.request(method, path, params=params, json=body or None)
    assert got.status_code == status, (path, got.text)
    if status >= 400:
        assert got.json()["error"].keys() == {"code", "message", "hint"}
    return got.json()


async def some_items(harness: LedgerHarness) -> Run:
    """A run with one item that is done, dead, delayed, leased and ready each."""
    run = await harness.run()
    await harness.put(run, *"abcde")
    worker = await harness.worker()
    first, second, third, _ = await harness.claim(worker, 4)
    await harness.commit(worker, done(first), dead(second, "No subtitles available"), retry(third, 60.0, "Rate limit"))
    return run


async def test_every_read_has_its_documented_body(api: httpx.AsyncClient, either_harness: LedgerHarness) -> None:
    """S4.15-S4.17 and the settings and logs, before there is a run and with one."""
    empty = await answer(api, "/jobs")
    assert (empty.keys(), empty["status"], empty["run_id"], empty["pool"]) == (STATUS, "idle", None, None)
    assert (await answer(api, "/jobs/queue/stats"))["total"] == 0
    assert (await answer(api, "/jobs/workers/performance"))["workers"] == []
    assert (await answer(api, "/logs"))["rows"] == []
    run = await some_items(either_harness)

    status = await answer(api, "/jobs")
    assert status.keys() == STATUS
    assert status["worker_status"] == {
        "running": True,
        "num_workers": 1,
        "active_workers": 1,
        "total_processed": 2,
        "total_failed": 1,
        "startup_recovery_done": True,
    }
    assert status["performance_metrics"].keys() == METRICS
    assert status["performance_metrics"]["success_rate"] == 0.5
    assert status["features"] == dict.fromkeys(FEATURES, True)
    assert status["startup_recovery"].keys() == {"done", "at", "items", "workers"}
    queue = await answer(api, "/jobs/queue/stats")
    assert queue.keys() == QUEUE
    assert (queue["run_id"], queue["pending"], queue["delayed"], queue["processing"]) == (run.id, 2, 1, 1)
    assert (queue["completed"], queue["failed"], queue["remaining"], queue["total"]) == (1, 1, 3, 5)
    performance = await answer(api, "/jobs/workers/performance")
    assert (performance.keys(), performance["queue"]) == (PERFORMANCE, queue)
    (worker,) = performance["workers"]
    assert (worker.keys(), worker["status"], worker["item"]) == (WORKER, "processing", "d")
    assert (worker["processed"], worker["failed"], worker["attempts"]) == (2, 1, 3)


async def test_one_reader_makes_the_frames_of_all_clients(
    either_harness: LedgerHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S4.13: each frame is read once, is never older than the client, and says when the ledger is slow or away."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop.py").write_text('from shoal import Scraper\n\nshop = Scraper("shop")\n')
    settings = load_settings({"ledger": str(tmp_path / "unused.db")}, environ={}, folder=tmp_path)
    watch = LedgerWatch()
    ledger = watch_ledger(either_harness.ledger, watch)
    jobs = Jobs(lambda: ledger, settings, LocalPools(lambda: ledger, settings), "shop")
    feed = FrameFeed(jobs, settings)

    async def frames(clients: int) -> list[dict[str, Any]]:
        async with AsyncExitStack() as stack, asyncio.timeout(60):
            seen = [await stack.enter_async_context(feed.client()) for _ in range(clients)]
            return [frame for _, frame in await asyncio.gather(*(feed.next(number) for number in seen))]

    first = await frames(200)
    assert all(frame is first[0] for frame in first)
    assert first[0]["run_id"] is None
    run = await some_items(either_harness)
    (later,) = await frames(1)
    assert later["run_id"] == run.id, "not the last frame of those who left"
    assert later.keys() == FRAME | {"at", "run_id", "num_workers"}
    assert (later["active_workers"], later["counts"].keys()) == (1, QUEUE)
    assert [worker.keys() for worker in later["workers"].values()] == [{"item", "started_at"}]
    assert {error["level"] for error in later["recent_errors"]} == {"ERROR", "WARN"}

    monkeypatch.setattr(control_jobs, "READ_SECONDS", 0.05)
    watch.held.clear()
    (slow,) = await frames(1)
    assert slow["error"].keys() == {"code", "message", "hint"}
    assert slow["error"]["code"] == "slow"
    watch.held.set()
    watch.away = True
    (away,) = await frames(1)
    assert away["error"]["code"] == "ledger_unavailable"
    watch.away = False
    monkeypatch.setattr(control_jobs, "READ_SECONDS", 60.0)
    assert (await frames(1))[0]["run_id"] == run.id
    await feed.close()


async def test_logs_are_limited_and_chosen(api: httpx.AsyncClient, either_harness: LedgerHarness) -> None:
    await some_items(either_harness)
    rows = (await answer(api, "/logs"))["rows"]
    assert [(row["level"], row["item"], row["message"]) for row in sorted(rows, key=lambda row: row["item"])] == [
        ("ERROR", "b", "No subtitles available"),
        ("WARN", "c", "Rate limit"),
    ]
    assert rows[0].keys() == {"at", "level", "message", "item", "worker"}
    assert len((await answer(api, "/logs", limit=1))["rows"]) == 1
    assert [row["item"] for row in (await answer(api, "/logs", level="ERROR"))["rows"]] == ["b"]
    for by_item in (await answer(api, "/logs", item="c"), await answer(api, "/logs", video="c")):
        assert [row["item"] for row in by_item["rows"]] == ["c"]
    assert (await answer(api, "/logs", item="unknown"))["rows"] == []
    wrong: list[dict[str, Any]] = [{"limit": 0}, {"limit": 1_001}, {"limit": "x"}, {"level": "DEBUG"}, {"item": "\0"}]
    for params in wrong:
        await answer(api, "/logs", None, 422, **params)


@pytest.mark.parametrize(
    ("setting", "allowed", "refused"),
    [
        ("max_workers", (1, 20), (0, 21, "3", 2.5, True, None)),
        ("max_retries", (0, 10), (-1, 11, "3", True, None)),
        ("backoff_factor", (1, 2.5, 10), (0.99, 10.01, "two", "NaN", None)),
        ("output_dir", ("files", "./a/b"), ("", "/etc", "../up", "a/../../b", "s3://bucket", 7, None)),
        ("unknown", (), (1, None)),
    ],
)
async def test_settings_keep_their_bounds(
    api: httpx.AsyncClient, setting: str, allowed: tuple[Any, ...], refused: tuple[Any, ...]
) -> None:
    """S4.2: what is allowed is stored and shown; what is refused, or only a preview, changes nothing."""
    defaults = {"max_workers": 5, "max_retries": 3, "backoff_factor": 2.0, "output_dir": "./subtitles"}
    assert await answer(api, "/settings") == defaults
    expected = defaults
    for value in allowed:
        shown = await answer(api, "/settings", {setting: value}, preview="true")
        assert (shown[setting], await answer(api, "/settings")) == (value, expected)
        expected = {**defaults, setting: value}
        assert await answer(api, "/settings", {setting: value}) == expected
        assert await answer(api, "/settings") == expected
    for value in refused:
        await answer(api, "/settings", {setting: value}, 422)
        await answer(api, "/settings", {setting: value}, 422, preview="true")
    bodies: tuple[Any, ...] = ({}, None)
    for nothing in bodies:
        for params in ({}, {"preview": "true"}):
            assert (await api.post("/settings", json=nothing, params=params)).status_code == 422
    assert await answer(api, "/settings") == expected


async def test_writes_have_their_documented_body_and_a_preview_changes_nothing(
    api: httpx.AsyncClient, either_harness: LedgerHarness
) -> None:
    harness = either_harness
    for path in ("/jobs/pause", "/jobs/resume", "/jobs/stop", "/jobs/workers/stop"):
        await answer(api, path, {}, 409)
    run = await some_items(harness)
    before = (await harness.ledger.reads.events(limit=200)).rows
    writes: list[tuple[str, Any]] = [
        *((f"/jobs/{name}", {}) for name in ("start", "pause", "resume", "stop", "reconcile")),
        *((f"/jobs/workers/{name}", {}) for name in ("start", "stop", "restart")),
        ("/settings", {"max_workers": 7}),
        ("/cleanup", {"days": 1}),
    ]
    for path, body in writes:
        preview = await answer(api, path, body, preview="true")
        assert path == "/settings" or preview["preview"] is True
    assert (await harness.ledger.reads.events(limit=200)).rows == before
    assert (await harness.ledger.runs.get(run.id)).state is RunState.ACTIVE
    assert await harness.ledger.pools.list(ended=True) == []

    paused = await answer(api, "/jobs/pause", {})
    assert (paused.keys(), paused["status"], paused["preview"]) == (CHANGE, "paused", False)
    assert paused["command"].startswith("shoal runs pause latest:shop")
    assert (await answer(api, "/jobs/resume", {}))["status"] == "running"
    reconciled = await answer(api, "/jobs/reconcile", {})
    assert reconciled.keys() == {"text", "preview", "items", "workers", "pools", "startup_recovery_done"}
    assert (reconciled["items"], reconciled["workers"]) == (0, []), "the worker is alive"
    for days in (0, 3_651, "3", 1.5, None):
        await answer(api, "/cleanup", {"days": days}, 422)
    await answer(api, "/settings", {"max_workers": 7})
    events = (await harness.ledger.reads.events(limit=200)).rows
    made = {event.action for event in events} - {event.action for event in before}
    assert made == {"run.paused", "run.active", "reconciled", "settings.stored"}
    assert {event.actor for event in events if event.action in made} == {"local@127.0.0.1"}


async def test_a_clean_up_removes_what_is_old(api: httpx.AsyncClient, either_harness: LedgerHarness) -> None:
    harness = either_harness
    old = await some_items(harness)
    await harness.ledger.runs.cancel(old.id)
    await harness.advance_clock(10 * 86_400)
    await harness.run()
    plan = await answer(api, "/cleanup", {"days": 9}, preview="true")
    assert (plan["runs"], plan["items"], plan["preview"]) == ([old.id], 5, True)
    assert plan.keys() == {"text", "preview", "days", "runs", "items", "log_files", "complete"}
    assert (await answer(api, "/cleanup", {"days": 11}))["runs"] == []
    removed = await answer(api, "/cleanup", {"days": 9})
    assert (removed["runs"], removed["complete"], removed["preview"]) == ([old.id], True, False)
    assert len((await harness.ledger.runs.list()).rows) == 1
