"""S4's paths on a real server with a real pool: every body, pauses, restarts of the server, and the end of a pool."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

import pytest

from shoal.model.item import NewItem
from shoal.testing.site import LocalSite
from tests.support.project import Project
from tests.support.served import ServedProject

PAGE_SECONDS = 0.25
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


def test_the_life_of_a_job(project: Project, site: LocalSite) -> None:
    """S4.1, S4.2, S4.12-S4.18: start, watch, scale, pause, resume, change settings, restart, stop."""
    with serving(project, site) as served:
        check_refusals(served)
        started = served.post("/jobs/workers/start", {"num_workers": 1}, key="once")
        assert started["pool"] == "running"
        assert served.post("/jobs/workers/start", {"num_workers": 1}, key="once") == started, "it was done once"
        seconds_for(site, 1)
        alone = seconds_for(site, 5) / 5

        # S4.18: five, without a restart. S4.20, S4.21: five are faster than one.
        served.post("/jobs/workers/start", {"num_workers": 5})
        check_frames(served, site)
        together = seconds_for(site, 20) / 20
        assert alone / together > 2, f"five workers took {together:.2f} s for a video, one {alone:.2f} s"
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
        began = time.monotonic()
        stopped = served.post("/jobs/stop", drain=5)
        assert time.monotonic() - began < 20
        assert (stopped["status"], stopped["pool"], stopped["worker_status"]["running"]) == ("idle", "ended", False)
        assert project.counts().leased == 0
        assert served.post("/jobs/stop", status=409)["error"]["code"] == "wrong_state"
        actions = [event.action for event in served.ask(lambda ledger: ledger.reads.events(limit=200)).rows]
        assert actions.count("pool.started") == 2
        assert {"pool.scaled", "pool.stopped"} <= set(actions)
        assert project.is_sound()


def check_refusals(served: ServedProject) -> None:
    """S4.15: the body is checked, and a preview starts nothing."""
    assert served.get("/jobs/workers/status")["status"] == "idle"
    for number in (0, 21, "x", 2.5):
        assert served.post("/jobs/workers/start", {"num_workers": number}, status=422)["error"]["message"]
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
        began = time.monotonic()
        times = [frame["at"] for frame in islice(frames, 2)]
        assert len(set(times)) == 2
        assert 0.5 < time.monotonic() - began < 20, "not a frame a second"


def check_status(served: ServedProject) -> None:
    """S4.16: exactly these fields."""
    status = served.get("/jobs/workers/status")
    assert status["worker_status"].keys() == STATUS_FIELDS
    assert status["performance_metrics"].keys() == METRICS
    assert status["features"] == dict.fromkeys(FEATURES, True)
    assert status["worker_status"]["running"] is True
    assert status["worker_status"]["startup_recovery_done"] is True
    assert status["performance_metrics"]["estimated_completion_time"].startswith("~")


def check_pause(served: ServedProject, site: LocalSite) -> None:
    """The site's own log is the witness: a second after the answer nothing is fetched any more."""
    assert served.post("/jobs/pause")["status"] == "paused"
    time.sleep(1.0)
    seen = len(site.requests)
    time.sleep(1.0)
    assert len(site.requests) == seen, "items start more than a second after the pause"
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


def test_a_server_that_was_killed_finds_its_pool_again(fleet: Project, site: LocalSite) -> None:
    """S4.10: killed with -9 and restarted it steers the pool as before, and says so when the pool is gone."""
    with serving(fleet, site) as served:
        check_killed_server(served, site)
        check_killed_pool(served)


def check_killed_server(served: ServedProject, site: LocalSite) -> None:
    started = served.post("/jobs/workers/start", {"num_workers": 2})
    served.until(lambda: served.get("/jobs/workers/status")["worker_status"]["active_workers"], lambda n: n == 2)
    served.kill()
    seconds_for(site, 4)  # the pool goes on
    served.start()
    status = served.get("/jobs/workers/status")
    assert (status["pool_id"], status["pool"]) == (started["pool_id"], "running")
    (pool,) = served.get("/api/v1/pools")["rows"]
    assert (pool["by_this_server"], pool["wanted"]) == (True, 2)
    scaled = served.post(f"/api/v1/pools/{pool['pool_id']}/scale", {"workers": 1})
    assert scaled["command"].startswith("shoal pool scale subtitles 1")
    served.until(lambda: served.get("/api/v1/pools")["rows"], lambda rows: [row["workers"] for row in rows] == [1])


def check_killed_pool(served: ServedProject) -> None:
    (pool,) = served.get("/api/v1/pools")["rows"]
    os.kill(pool["pid"], signal.SIGKILL)
    served.until(lambda: served.get("/jobs/workers/status")["pool"], lambda state: state == "gone")
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
            yield {"key": item.key}
        """,
        "inbox.py",
    )
    (project.folder / "shoal.toml").touch()
    with ServedProject(project, "--jobs", "inbox") as server:
        server.post("/settings", {"max_workers": 2})
        started = server.post("/jobs/start")
        assert (started["status"], started["worker_status"]["num_workers"]) == ("running", 2)
        server.until(lambda: len(server.get("/jobs/workers/performance")["workers"]), lambda number: number == 2)
        assert server.get("/jobs/queue/stats")["total"] == 0
        server.ask(lambda ledger: ledger.intake.enqueue(started["run_id"], [NewItem(key=key) for key in "abc"]))
        server.until(lambda: server.get("/jobs/queue/stats")["completed"], lambda number: number == 3)
        assert server.get("/jobs/workers/status")["status"] == "running", "they wait for more"
        assert server.post("/jobs/stop")["status"] == "idle"
