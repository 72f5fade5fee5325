"""Faults: a ledger that is away, hangs, or is full; a server that is killed; two servers; clocks that jump.

Servers, pools and databases are real processes; the log of the site says what was fetched.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import httpx
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from shoal.control.connection import MIN_CONNECTIONS
from shoal.fleet.process import process_identity
from shoal.testing.site import LocalSite
from tests.support import MissingPartError, missing
from tests.support.postgres import PostgresServer, unique_name
from tests.support.project import Project, migrate
from tests.support.served import PATIENCE, ServedProject

PAGES = 60
PAGE_SECONDS = 0.2
# Longer than any answer may take: a statement gives up after 20 s, a read after 10 s, and the machine is busy.
BOUND, READ_BOUND = 40.0, 20.0
SHOP = """
    shop = Scraper("shop")

    @shop.stage(concurrency=100)
    async def page(page: Page):
        yield {"url": page.url}

    shop.start(page.item(f"URL/p/{n}") for n in range(COUNT))
"""


@pytest.fixture(scope="module")
def own_postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL that tests of this module stop and freeze; leave it running."""
    try:
        with PostgresServer() as server:
            yield server
    except MissingPartError as error:
        missing(str(error))


@pytest.fixture
def fragile(own_postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """A project on a PostgreSQL that may be stopped."""
    name = unique_name()
    own_postgres.create_database(name)
    migrate(own_postgres.url(name))
    with Project(tmp_path_factory.mktemp("fragile"), own_postgres.url(name)) as project:
        yield project
    own_postgres.drop_database(name)


@pytest.fixture
def site() -> Iterator[LocalSite]:
    with LocalSite() as site:
        for n in range(10_000):
            site.route(f"/p/{n}", "<p>words", delay=PAGE_SECONDS)
        yield site


def write_shop(project: Project, site: LocalSite, pages: int = PAGES) -> None:
    project.write(SHOP.replace("URL", site.url).replace("COUNT", str(pages)), "shop.py")
    (project.folder / "shoal.toml").touch()


class Watcher:
    """A client of a WebSocket that keeps its frames and connects again when it is disconnected."""

    def __init__(self, url: str, hello: str | None = None) -> None:
        self.frames: list[dict[str, Any]] = []
        self._url = url.replace("http", "ws", 1)
        self._hello = hello
        self._found = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Watcher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def until(self, is_so: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Wait for a frame. Those up to the one that was found last do not count."""
        deadline = time.monotonic() + PATIENCE
        while True:
            for number in range(self._found, len(self.frames)):
                if is_so(self.frames[number]):
                    self._found = number + 1
                    return self.frames[number]
            assert time.monotonic() < deadline, self.frames[-3:]
            time.sleep(0.02)

    def _watch(self) -> None:
        while not self._ended.is_set():
            try:
                with connect(self._url, open_timeout=PATIENCE) as connection:
                    if self._hello is not None:
                        connection.send(self._hello)
                    while not self._ended.is_set():
                        try:
                            self.frames.append(json.loads(connection.recv(0.2)))
                        except TimeoutError:
                            continue
            except (OSError, ConnectionClosed, TimeoutError):
                time.sleep(0.1)


@contextmanager
def watching(served: ServedProject) -> Iterator[tuple[Watcher, Watcher]]:
    """The frames of the job, and those of live updates."""
    hello = json.dumps({"subscribe": ["overview", "events"]})
    with Watcher(served.url + "/jobs/status") as job, Watcher(served.url + "/api/v1/live", hello) as live:
        yield job, live


def says_away(frame: dict[str, Any]) -> bool:
    return frame["changes"].get("ledger", {}).get("ok") is False


def says_back(frame: dict[str, Any]) -> bool:
    return frame["changes"].get("ledger", {}).get("ok") is True


def ask(served: ServedProject, path: str, method: str = "GET", body: Any = None) -> tuple[int, Any, float]:
    """Status, body and seconds of an answer."""
    began = time.monotonic()
    # Without `verify=False` each client reads all certificates, which costs as much as the answer of a server.
    answer = httpx.request(method, served.url + path, json=body, timeout=2 * PATIENCE, verify=False)
    return answer.status_code, answer.json(), time.monotonic() - began


def check_away(served: ServedProject) -> None:
    """Every path answers with the typed error, within a bound; the process is alive, and says that it is not ready."""
    assert ask(served, "/healthz")[:2] == (200, {"ok": True})
    status, body, _ = ask(served, "/readyz")
    assert (status, body["ok"]) == (503, False)
    reads = ["/api/v1/runs", "/api/v1/overview", "/jobs/workers/status", "/jobs/queue/stats", "/settings", "/logs"]
    for method, path in [("GET", path) for path in reads] + [("POST", "/jobs/pause"), ("POST", "/jobs/workers/start")]:
        status, body, seconds = ask(served, path, method)
        assert (status, set(body["error"])) == (503, {"code", "message", "hint"}), (path, body)
        assert body["error"]["code"].startswith("ledger_"), (path, body)
        assert seconds < BOUND, f"{path} took {seconds:.1f} s"


def test_a_ledger_that_goes_away_and_comes_back(
    fragile: Project, own_postgres: PostgresServer, site: LocalSite
) -> None:
    """Stopped and started again with workers at their items: all say so, and go on, and nothing is lost."""
    write_shop(fragile, site)
    with ServedProject(fragile) as served, watching(served) as (job, live):
        served.post("/jobs/workers/start", {"num_workers": 2})
        job.until(lambda frame: frame.get("active_workers") == 2)
        own_postgres.stop("immediate")
        try:
            served.until(lambda: ask(served, "/readyz")[0], lambda status: status == 503)
            assert job.until(lambda frame: "error" in frame)["error"]["code"].startswith("ledger_")
            live.until(says_away)
            check_away(served)
            late = ServedProject(fragile)  # it starts without its ledger
            check_away(late)
        finally:
            own_postgres.start()
        served.until(lambda: ask(served, "/readyz")[0], lambda status: status == 200)
        late.until(lambda: ask(late, "/readyz")[0], lambda status: status == 200)
        late.until(
            lambda: late.get("/jobs/workers/status")["worker_status"]["startup_recovery_done"], lambda done: done
        )
        late.kill()
        own_postgres.terminate_backends(urlsplit(fragile.ledger).path.removeprefix("/"))
        assert ask(served, "/api/v1/runs")[0] == 200, "connections that were cut are opened again, and nobody notices"
        live.until(says_back)
        job.until(lambda frame: frame.get("status") == "completed")
        assert served.get("/jobs/queue/stats")["completed"] == PAGES
        assert {request.path for request in site.requests} == {f"/p/{n}" for n in range(PAGES)}
        assert fragile.is_sound()
        assert len(fragile.export()) == PAGES


def test_a_ledger_that_hangs_is_not_waited_for(fragile: Project, own_postgres: PostgresServer, site: LocalSite) -> None:
    """Frozen, with its connections open: more requests than the server takes are answered, and health checks are."""
    write_shop(fragile, site, pages=10)
    with ServedProject(fragile) as served, watching(served) as (job, live):
        job.until(lambda frame: frame.get("status") == "idle")
        served.until(lambda: ask(served, "/jobs/workers/status")[0], lambda status: status == 200)
        own_postgres.freeze()
        try:
            with ThreadPoolExecutor(120) as threads:
                write = threads.submit(ask, served, "/jobs/workers/start", "POST", {"num_workers": 2})
                reads = [threads.submit(ask, served, "/api/v1/runs") for _ in range(100)]
                while not all(read.done() for read in reads):
                    assert ask(served, "/healthz")[:2] == (200, {"ok": True}), "it is not to be restarted"
                answers = [read.result() for read in reads]
            assert {status for status, _, _ in answers} == {503}
            slowest = max(seconds for _, _, seconds in answers)
            assert slowest < READ_BOUND, f"a read took {slowest:.1f} s"
            status, body, seconds = write.result()
            assert (status, seconds < BOUND) == (503, True), (body, seconds)
            assert job.until(lambda frame: "error" in frame)
            live.until(says_away)
            check_away(served)
        finally:
            own_postgres.thaw()
        served.until(lambda: ask(served, "/api/v1/runs")[0], lambda status: status == 200)
        job.until(lambda frame: frame.get("status") == "idle")
        assert served.post("/jobs/workers/start", {"num_workers": 2})["pool"] == "running"
        job.until(lambda frame: frame.get("status") == "completed")
        assert Counter(request.path for request in site.requests) == Counter(f"/p/{n}" for n in range(10))


@contextmanager
def locked(url: str, table: str) -> Iterator[Callable[[], int]]:
    """Nobody else can read the table. Yields a function that returns how many connections the database has."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    def run(work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result(PATIENCE)

    connection = run(asyncpg.connect(url))
    run(connection.execute(f"begin; lock table {table} in access exclusive mode"))
    count = "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
    try:
        yield lambda: run(connection.fetchval(count))
    finally:
        run(connection.close())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def test_a_slow_ledger_collects_no_requests(fragile: Project, site: LocalSite) -> None:
    """Statements that wait for a lock: reads are given up, at the database too, however many are sent."""
    write_shop(fragile, site, pages=10)
    with ServedProject(fragile) as served:
        served.until(lambda: ask(served, "/jobs/workers/status")[0], lambda status: status == 200)
        with locked(fragile.ledger, "shoal.run") as connections, ThreadPoolExecutor(40) as threads:
            most = 0
            for _ in range(3):
                reads = [threads.submit(ask, served, "/api/v1/runs") for _ in range(40)]
                while not all(read.done() for read in reads):
                    most = max(most, connections())
                    assert ask(served, "/healthz")[0] == 200
                    time.sleep(0.1)
                answers = [read.result() for read in reads]
                assert {status for status, _, _ in answers} == {503}
                assert max(seconds for _, _, seconds in answers) < READ_BOUND
            # Its pool of connections, one that listens, and those that carry cancellations.
            assert most <= 2 * MIN_CONNECTIONS, f"{most} connections to the database"
        served.until(lambda: ask(served, "/api/v1/runs")[0], lambda status: status == 200)


def test_a_server_that_is_killed_leaves_its_pool_at_work(either: Project, site: LocalSite) -> None:
    """kill -9 in the middle: the pool goes on, the next server shows and steers it, every page is fetched once."""
    write_shop(either, site)
    with ServedProject(either) as served:
        started = served.post("/jobs/workers/start", {"num_workers": 2})
        served.until(lambda: served.get("/jobs/workers/status")["worker_status"]["active_workers"], lambda n: n == 2)
        served.kill()
        before = len(site.requests)
        served.until(lambda: len(site.requests), lambda seen: seen > before)
        served.start()
        assert served.get("/jobs")["pool_id"] == started["pool_id"]
        done = served.until(lambda: served.get("/jobs"), lambda seen: seen["status"] == "completed")
        assert (done["worker_status"]["total_processed"], done["worker_status"]["total_failed"]) == (PAGES, 0)
        assert Counter(request.path for request in site.requests) == Counter(f"/p/{n}" for n in range(PAGES))
        assert len(either.export()) == PAGES
        assert either.is_sound()


def test_a_start_gives_back_what_the_machine_lost(either: Project, site: LocalSite) -> None:
    """S4.10: server, pool and workers are killed at once, as by a loss of power. The next server says what it found."""
    write_shop(either, site)
    with ServedProject(either) as served:
        started = served.post("/jobs/workers/start", {"num_workers": 2})
        served.until(lambda: served.get("/jobs/workers/status")["worker_status"]["active_workers"], lambda n: n == 2)
        (pool,) = served.get("/api/v1/pools")["rows"]
        workers = served.ask(lambda ledger: ledger.workers.list())
        served.kill()
        pids = [pool["pid"], *(worker.pid for worker in workers)]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        served.until(lambda: [process_identity(pid) for pid in pids], lambda found: not any(found))
        held = served.ask(lambda ledger: ledger.reads.stats(started["run_id"])).leased
        served.start()
        status = served.until(lambda: served.get("/jobs"), lambda seen: seen["worker_status"]["startup_recovery_done"])
        assert (status["status"], status["pool"], status["run_id"]) == ("idle", "gone", started["run_id"])
        recovery = status["startup_recovery"]
        assert (recovery["done"], recovery["items"], recovery["workers"]) == (True, held, len(workers))
        assert served.get("/jobs/queue/stats")["processing"] == 0
        assert served.post("/jobs/start")["run_id"] == started["run_id"]
        served.until(lambda: served.get("/jobs")["status"], lambda seen: seen == "completed")
        assert {request.path for request in site.requests} == {f"/p/{n}" for n in range(PAGES)}
        assert len(either.export()) == PAGES


def at_once(*calls: Callable[[], Any]) -> list[Any]:
    """The results of calls that begin at the same time."""
    ready = threading.Barrier(len(calls))

    def run(call: Callable[[], Any]) -> Any:
        ready.wait(PATIENCE)
        return call()

    with ThreadPoolExecutor(len(calls)) as threads:
        return [each.result() for each in [threads.submit(run, call) for call in calls]]


def start_workers(served: ServedProject, key: str | None = None) -> tuple[int, Any]:
    headers = {} if key is None else {"Idempotency-Key": key}
    answer = httpx.post(
        served.url + "/jobs/workers/start", json={"num_workers": 2}, headers=headers, timeout=PATIENCE, verify=False
    )
    return answer.status_code, answer.json()


def test_two_servers_on_one_ledger(either: Project, site: LocalSite) -> None:
    """Both show the same, what one does the other sees, and a key that is sent to both acts once."""
    write_shop(either, site, pages=2_000)
    with ServedProject(either) as one, ServedProject(either) as two:
        first = at_once(lambda: start_workers(one, "k"), lambda: start_workers(two, "k"))
        assert {status for status, _ in first} <= {200, 409}
        again = [one.until(partial(start_workers, each, "k"), lambda found: found[0] == 200)[1] for each in (one, two)]
        assert again[0] == again[1]
        assert all(body == again[0] for status, body in first if status == 200)
        pools = [each.get("/api/v1/pools")["rows"] for each in (one, two)]
        assert [[row["pool_id"] for row in rows] for rows in pools] == [[again[0]["pool_id"]]] * 2

        with watching(one) as (job, live):
            job.until(lambda frame: frame.get("active_workers") == 2)
            two.post("/jobs/pause")
            job.until(lambda frame: frame.get("status") == "paused")
            live.until(lambda frame: "run.paused" in str(frame["changes"].get("events")))
        stats = one.until(lambda: one.get("/jobs/queue/stats"), lambda queue: queue["processing"] == 0)
        assert two.get("/jobs/queue/stats") == stats
        check_settings_of_two(one, two)

        assert two.post("/jobs/workers/stop", drain=2)["pool"] == "ended", "the pool that the other one started"
        answers = at_once(*(partial(start_workers, each) for each in (one, two, one, two)))
        assert {status for status, _ in answers} <= {200, 409}
        assert 200 in {status for status, _ in answers}
        assert len(one.get("/api/v1/pools")["rows"]) == 1, "both were asked to start workers: there is one pool"
        assert one.post("/jobs/stop", drain=2)["status"] == "idle"
        assert either.is_sound()


def check_settings_of_two(one: ServedProject, two: ServedProject) -> None:
    """Neither loses what the other one stores at the same time."""
    for number in range(1, 8):
        given = {"max_retries": number}, {"backoff_factor": number + 0.5}
        at_once(lambda: one.post("/settings", given[0]), lambda: two.post("/settings", given[1]))  # noqa: B023
        for served in (one, two):
            stored = served.get("/settings")
            assert (stored["max_retries"], stored["backoff_factor"]) == (number, number + 0.5)
    events = one.ask(lambda ledger: ledger.reads.events(limit=200)).rows
    assert [event.action for event in events].count("settings.stored") == 14


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of eight megabytes."""
    place = tmp_path / "small"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(place)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        missing("a small file system needs root (mount)")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_full_disk_refuses_writes_and_shows_the_rest(tmp_path: Path, small_disk: Path, site: LocalSite) -> None:
    """Audit rows cannot be written, so nothing is changed; reads go on, and writes do when there is space again."""
    with Project(tmp_path, str(small_disk / "ledger.db")) as project:
        write_shop(project, site, pages=5)
        with ServedProject(project) as served:
            served.post("/jobs/workers/start", {"num_workers": 1})
            served.until(lambda: served.get("/jobs")["status"], lambda seen: seen == "completed")
            served.until(lambda: served.get("/api/v1/pools")["rows"], lambda rows: rows == [])
            run = served.get("/api/v1/runs")["rows"][0]["run_id"]
            assert served.post(f"/api/v1/runs/{run}/resume")["state"] == "active"
            fill_disk(small_disk / "ballast")
            refused = served.until(
                lambda: ask(served, f"/api/v1/runs/{run}/pause", "POST"), lambda found: found[0] != 200
            )
            assert (refused[0], refused[1]["error"]["code"]) == (503, "ledger_full"), refused
            assert refused[1]["error"]["hint"]
            assert ask(served, "/healthz")[0] == 200
            assert served.get("/api/v1/runs")["rows"][0]["run_id"] == run
            assert served.get("/jobs/queue/stats")["completed"] == 5
            (small_disk / "ballast").unlink()
            served.until(lambda: ask(served, f"/api/v1/runs/{run}/pause", "POST")[0], lambda status: status == 200)
            assert served.get("/jobs")["status"] == "paused"
        assert project.is_sound()


def fill_disk(file: Path) -> None:
    with file.open("wb", buffering=0) as ballast, suppress(OSError):
        while True:
            ballast.write(b"x" * 4_096)


def test_a_second_stop_from_another_server_lets_running_items_end(fleet: Project) -> None:
    """A pool takes a second signal for `at once`: only the server that is asked first sends one."""
    with LocalSite() as slow:
        for n in range(20):
            slow.route(f"/p/{n}", "<p>words", delay=6.0)
        write_shop(fleet, slow, pages=20)
        with ServedProject(fleet) as one, ServedProject(fleet) as two:
            one.post("/jobs/workers/start", {"num_workers": 2})
            one.until(lambda: len(slow.requests), lambda seen: seen >= 2)
            with ThreadPoolExecutor(1) as threads:
                first = threads.submit(one.post, "/jobs/workers/stop", drain=40)
                two.until(
                    lambda: [row["state"] for row in two.get("/api/v1/pools")["rows"]], lambda s: s != ["running"]
                )
                # 409: it has ended meanwhile, on a machine that is very busy.
                assert ask(two, "/jobs/workers/stop?drain=40", "POST")[0] in (200, 409)
                assert first.result()["pool"] == "ended"
            started = len(slow.requests)
            assert one.get("/jobs/queue/stats")["completed"] == started, "an item was cut short"
            assert Counter(request.path for request in slow.requests).most_common(1)[0][1] == 1
