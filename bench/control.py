"""`shoal serve` on a large ledger while a fleet works: how long each answer takes, and what watching costs a scrape.

`python -m bench.control WS_URL CLIENTS TOPICS` is the clients: WebSockets of one process that read frames. It prints
`ready`, and when its standard input ends how many frames came.
"""

from __future__ import annotations

import asyncio
import gzip
import http.client
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote, urlsplit

import asyncpg
import msgspec
import psutil
import uvloop
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from bench.control_ledger import FilledLedger, LedgerSize, fill_ledger
from bench.figures import Report, percentile
from bench.fleet_crew import Crew, Desk, desk
from bench.fleet_site import LateSite
from bench.places import Place
from bench.rounds import paired_ratio
from bench.scrape import CONCURRENCY, Entrant, take_turns
from bench.scrape_shoal import shoal_program
from bench.scrape_site import FastSite
from bench.scrape_trial import REPOSITORY, Program, python
from bench.session import Effort, Session

if TYPE_CHECKING:
    from playwright.sync_api import Browser

TARGET_MS = 100.0
FIRST_LOAD_KB = 80.0
PATIENCE_SECONDS = 60.0
RUN_TOPICS = ("overview", "run:latest", "fleet", "egress", "events")
NOISE = "GET healthz"
# A request without work of the ledger after every so many others, so that the noise of the machine is seen.
NOISE_EVERY = 4
# How often the dashboard's Run page asks again for what no frame brings.
DASHBOARD_SECONDS = 5.0
# Streams are not answers that are waited for.
STREAMS = ("/api/v1/live", "/api/v1/runs/{run}/results/export")
_SHOP = """\
from shoal import Page, Scraper

shop = Scraper("shop")


@shop.stage
async def list(page: Page):
    yield {"title": page.css("title::text").get()}


@shop.stage
async def page(page: Page):
    yield {"title": page.css("title::text").get()}
"""


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """`samples`: how often each request is sent in a round. `seconds`: how long live clients are counted."""

    ledger: LedgerSize
    samples: int
    rounds: int
    clients: int
    seconds: float
    pages: int
    scrape_rounds: int
    workers: int = 2
    backlog: int = 50_000
    browser: bool = True


SIZES: dict[Effort, Sizes] = {
    "quick": Sizes(
        ledger=LedgerSize(items=200_000, lanes=5_000, workers=200),
        samples=25,
        rounds=3,
        clients=100,
        seconds=10.0,
        pages=5_000,
        scrape_rounds=3,
        backlog=20_000,
    ),
    "full": Sizes(
        ledger=LedgerSize(),
        samples=25,
        rounds=3,
        clients=500,
        seconds=20.0,
        pages=6_000,
        scrape_rounds=4,
    ),
}


def run(session: Session) -> Report:
    return measure(session.places, session.size(SIZES))


def measure(places: Sequence[Place], sizes: Sizes) -> Report:
    report = Report(
        "control",
        "How long do the answers of `shoal serve` take on a large ledger, and what do those who watch cost a scrape?",
        msgspec.to_builtins(sizes),
    )
    for place in places:
        with place.fresh() as address:
            filled = asyncio.run(fill_ledger(address, sizes.ledger))
            place.settle(address)
            measure_ledger(report, place.name, address, filled, sizes)
    if sizes.pages:
        with FastSite() as site:
            for place in places:
                _measure_scrape(report, site, place, sizes)
    return report


def measure_ledger(report: Report, name: str, address: str, filled: FilledLedger, sizes: Sizes) -> None:
    """Answers, live clients and pages on one filled ledger."""
    with desk(address) as place, LateSite(0.5) as site:
        (place.folder / "shop.py").write_text(_SHOP)
        run_id = filled.run.id
        place.enqueue(site.urls(sizes.backlog))
        with ExitStack() as stack:
            server = stack.enter_context(Server(place))
            crew = stack.enter_context(Crew(place, sizes.workers, 10))
            _wait_for_fleet(site, crew)
            requests = requests_of(server, filled)
            if sizes.browser:
                pages = walk_pages(server.url, run_id, requests["GET item, dead"].rpartition("/")[2])
                _tell_pages(report, name, server, pages)
                requests |= {
                    f"GET {_general(path)}": path
                    for each in pages
                    for path in each.requests
                    if path not in requests.values()
                }
                requests |= {f"GET file {path.rpartition('/')[2]}": path for path in pages[0].files if path != "/"}
            _measure_answers(report, name, server, address, requests, sizes)
            arrived = len(site.arrivals())
            crew.check()
            report.notes.append(f"{name}: the fleet fetched {arrived} pages while answers were measured.")
            if not arrived:
                raise RuntimeError("the fleet did not work")
            crew.send_home()
        _measure_live(report, name, place, address, run_id, sizes)


def _wait_for_fleet(site: LateSite, crew: Crew) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not site.arrivals():
        crew.check()
        if time.monotonic() > deadline:
            raise RuntimeError("the fleet did not begin")
        time.sleep(0.2)


class Server:
    """`shoal serve` at a desk, as a process. Use it as a context."""

    def __init__(self, at: Desk) -> None:
        self._desk = at

    def __enter__(self) -> Self:
        jobs = ("--jobs", "shop") if (self._desk.folder / "shop.py").exists() else ()
        self._said = self._desk.folder / "serve.log"
        with self._said.open("wb") as said:
            self._process = subprocess.Popen(
                [str(Path(sys.executable).with_name("shoal")), "serve", "--port", "0", "--json", *jobs],
                cwd=self._desk.folder,
                env=self._desk.environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=said,
            )
        assert self._process.stdout is not None
        text = ""
        while not text.endswith("}\n"):
            line = self._process.stdout.readline().decode()
            if not line:
                raise RuntimeError(f"shoal serve ended:\n{self._said.read_text()[-2_000:]}")
            text += line
        self.url = str(json.loads(text)["url"]).rstrip("/")
        self._client = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=PATIENCE_SECONDS)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._client.close()
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
        """A request as a browser sends it, on a connection that stays open: its status and its body as sent."""
        headers = {"Accept-Encoding": "gzip", "Accept": "text/html" if path.endswith("/") else "application/json"}
        content = None if body is None else json.dumps(body).encode()
        if content is not None:
            headers["Content-Type"] = "application/json"
        try:
            self._client.request(method, path, content, headers)
            answer = self._client.getresponse()
        except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError):
            self._client.close()  # it was idle for too long
            self._client.request(method, path, content, headers)
            answer = self._client.getresponse()
        return answer.status, answer.read()

    def json(self, path: str) -> Any:
        status, body = self.ask("GET", path)
        if status != 200:
            raise RuntimeError(f"{path} was answered with {status}: {body[:500]!r}")
        return json.loads(gzip.decompress(body) if body.startswith(b"\x1f\x8b") else body)

    def metric(self, name: str) -> float:
        text = self.ask("GET", "/metrics")[1].decode()
        return next(float(line.split()[-1]) for line in text.splitlines() if line.startswith(f"{name} "))

    def seconds_used(self) -> float:
        """The processor time of all its threads."""
        times = psutil.Process(self._process.pid).cpu_times()
        return float(times.user + times.system)

    def megabytes(self) -> float:
        return float(psutil.Process(self._process.pid).memory_info().rss / 2**20)

    def ports(self) -> list[int]:
        """The local ports of its connections: those to PostgreSQL are among them."""
        connections = psutil.Process(self._process.pid).net_connections("tcp")
        return [each.laddr.port for each in connections if each.raddr]

    @property
    def pid(self) -> int:
        return self._process.pid


class Cores:
    """How long processes have computed and have waited for a core so far, in seconds, by the kernel's scheduler.

    A request is answered by one of them after the other: on a machine that others use too, what they waited for a core
    is no work of theirs.
    """

    def __init__(self, server: Server, address: str) -> None:
        sessions = asyncio.run(_sessions(address, server.ports())) if address.startswith("postgresql://") else []
        self._pids = [server.pid, os.getpid(), *sessions]

    def read(self) -> tuple[float, float]:
        used = waited = 0
        for pid in self._pids:
            for file in Path(f"/proc/{pid}/task").glob("*/schedstat"):
                with suppress(OSError):  # a thread that has just ended
                    each = file.read_text().split()
                    used, waited = used + int(each[0]), waited + int(each[1])
        return used / 1e9, waited / 1e9


async def _sessions(address: str, ports: Sequence[int]) -> list[int]:
    """The processes of PostgreSQL that serve these connections."""
    connection = await asyncpg.connect(address)
    try:
        rows = await connection.fetch("select pid from pg_stat_activity where client_port = any ($1::int[])", ports)
        return [row["pid"] for row in rows]
    finally:
        await connection.close()


class Timing(msgspec.Struct, frozen=True):
    """Milliseconds of a request: as it took, without the wait for a core, and of processors."""

    took: float
    alone: float
    used: float


# Answers.


def requests_of(server: Server, filled: FilledLedger) -> dict[str, str]:
    """What is asked, by name: every GET of the OpenAPI document with the filters of the dashboard, and other paths.

    Raises RuntimeError when the document has one that is not here.
    """
    base = f"/api/v1/runs/{filled.run.id}"
    first = server.json(f"{base}/items?limit=1")["rows"][0]["item_id"]
    dead = server.json(f"{base}/items?state=dead&limit=50")["rows"]
    waiting = server.json(f"{base}/items?state=waiting&limit=50")["rows"]
    group = server.json(f"{base}/failures?limit=1")["rows"][0]["failure_id"]
    exit_ = server.json("/api/v1/egress/datacenter?limit=1")["rows"][0]["exit"]
    late = first + filled.size.items * 2 // 3
    lane = "h7.example"
    url = quote(dead[0]["url"], safe="")
    small = server.json("/api/v1/runs?scraper=small0&limit=1")["rows"][0]["run_id"]

    def page(path: str, pages: int = 5) -> str:
        """The path of a later page, as many pages on."""
        cursor = ""
        for _ in range(pages):
            joined = "&" if "?" in path else "?"
            answer = server.json(f"{path}{joined}limit=200{cursor}")
            if not answer["cursor"]:
                break
            cursor = f"&cursor={quote(answer['cursor'], safe='')}"
        return f"{path}{'&' if '?' in path else '?'}limit=50{cursor}"

    items = f"{base}/items"
    asked = {
        "healthz": "/healthz",
        "readyz": "/readyz",
        "metrics": "/metrics",
        "the page": "/",
        "openapi": "/api/v1/openapi.json",
        "me": "/api/v1/me",
        "overview": "/api/v1/overview",
        "runs": "/api/v1/runs",
        "runs of a scraper": "/api/v1/runs?scraper=shop",
        "runs, active": "/api/v1/runs?state=active",
        "run": base,
        "run, latest": "/api/v1/runs/latest",
        "why": f"{base}/why",
        "history, 15 min": f"{base}/history?minutes=15",
        "history, 1 h": f"{base}/history?minutes=60",
        "history, 1 day": f"{base}/history?minutes=1440",
        "history, 7 days": f"{base}/history?minutes=10080",
        "partitions": f"{base}/partitions",
        "partitions of a stage": f"{base}/partitions?stage=page&limit=12",
        "partitions, last page": page(f"{base}/partitions?stage=page"),
        "compare": f"{base}/compare?with={small}",
        "items": items,
        "items, 200": f"{items}?limit=200",
        "items, late": f"{items}?cursor={late}",
        **{f"items, {state}": f"{items}?state={state}" for state in ("ready", "waiting", "delayed", "leased")},
        **{f"items, {state}": f"{items}?state={state}" for state in ("done", "dead", "skipped", "cancelled")},
        "items, dead, late": f"{items}?state=dead&cursor={late}",
        "items, done, late": f"{items}?state=done&cursor={late}",
        "items, open": f"{items}?state=ready&state=waiting&state=delayed&state=leased",
        "items of a stage": f"{items}?stage=page",
        "items of a partition": f"{items}?partition=p07",
        "items of a partition, ready": f"{items}?partition=p07&state=ready",
        "items of a lane": f"{items}?lane={lane}",
        "items of a lane, dead": f"{items}?lane={lane}&state=dead",
        "items of a lane, waiting": f"{items}?lane={lane}&state=waiting",
        "items of a lane, delayed": f"{items}?lane={lane}&state=delayed",
        "items of a lane, leased": f"{items}?lane={lane}&state=leased",
        "items of a failure": f"{items}?failure={group}",
        "items of an outcome": f"{items}?outcome=permanent&state=dead",
        "items of an outcome, none": f"{items}?outcome=banned",
        "items by URL": f"{items}?text={url}",
        "items by text": f"{items}?text=p%2F4",
        "items by text, none": f"{items}?text=nothing+has+this",
        "items by error": f"{items}?error=timed+out&state=dead",
        "items by error, none": f"{items}?error=nothing+has+this",
        "item, dead": f"{items}/{dead[0]['item_id']}",
        "item, waiting": f"{items}/{waiting[0]['item_id']}",
        "failures": f"{base}/failures",
        "failures, later": page(f"{base}/failures"),
        "failures, muted": f"{base}/failures?muted=true",
        "failure": f"{base}/failures/{group}",
        "lanes": "/api/v1/lanes",
        "lanes, slowest": "/api/v1/lanes?order=slowest",
        "lanes by prefix": "/api/v1/lanes?text=h99",
        "lanes, later": page("/api/v1/lanes"),
        "lanes of a run, slowest": f"{base}/lanes?order=slowest&limit=50",
        "lanes of a run, slowest, later": page(f"{base}/lanes?order=slowest"),
        "lanes of a run by name": f"{base}/lanes?order=name",
        "lanes of a run by prefix": f"{base}/lanes?order=name&text=h99",
        "lanes of a run by name, later": page(f"{base}/lanes?order=name"),
        "timeline": f"{base}/lanes/timeline?minutes=60&lanes=30",
        "timeline, 1 day": f"{base}/lanes/timeline?minutes=1440&lanes=30",
        "timeline of a lane": f"{base}/lanes/timeline?minutes=60&lane={lane}",
        "workers": "/api/v1/workers",
        "workers, lost too": "/api/v1/workers?present=false",
        "workers of a node": "/api/v1/workers?node=node-07&limit=25",
        "workers, later": page("/api/v1/workers", 3),
        "nodes": "/api/v1/nodes",
        "pools": "/api/v1/pools",
        "pools, ended too": "/api/v1/pools?ended=true",
        "egress": "/api/v1/egress",
        "egress of a run": f"{base}/egress",
        "exits": "/api/v1/egress/datacenter",
        "exits, banned": "/api/v1/egress/datacenter?state=banned",
        "exits, later": page("/api/v1/egress/datacenter"),
        "exit": f"/api/v1/egress/datacenter/exits/{exit_}",
        "exits by hosts": "/api/v1/egress/datacenter/matrix",
        "tokens": "/api/v1/egress/api",
        "results": f"{base}/results",
        "results of a stage": f"{base}/results?stage=page",
        "results, later": page(f"{base}/results"),
        "results by text": f"{base}/results?text=chair",
        "results by text, none": f"{base}/results?text=nothing+has+this",
        "coverage": f"{base}/results/coverage",
        "coverage of a stage": f"{base}/results/coverage?stage=page",
        "collections": "/api/v1/collections",
        "schedules": "/api/v1/schedules",
        "settings": "/api/v1/settings",
        "events": "/api/v1/events",
        "events, later": page("/api/v1/events"),
        "events of a run": f"/api/v1/events?run={filled.run.id}",
        "events of an actor": "/api/v1/events?actor=operator3",
        "events of nobody": "/api/v1/events?actor=nobody",
        "alerts": "/api/v1/alerts",
        "alerts of a run": f"/api/v1/alerts?run={filled.run.id}",
        "S4 jobs": "/jobs",
        "S4 status": "/jobs/workers/status",
        "S4 performance": "/jobs/workers/performance",
        "S4 queue": "/jobs/queue/stats",
        "S4 settings": "/settings",
        "S4 logs": "/logs",
        "S4 logs of an item": f"/logs?item={url}",
        "S4 logs, errors": "/logs?level=ERROR",
    }
    _check_complete(server, asked)
    found = {f"GET {name}": path for name, path in asked.items()}
    return found | {
        "POST preview, retry a failure": f"{base}/failures/{group}/retry?preview=true",
        "POST preview, retry dead items": f"{base}/items/retry?preview=true",
        "POST preview, cancel waiting items": f"{base}/items/cancel?preview=true",
        "POST preview, pause": f"{base}/pause?preview=true",
    }


# What a preview sends, by the end of its path.
_BODIES: dict[str, Any] = {
    "failures": {"limit": 20},
    "items/retry": {"filter": {"states": ["dead"]}, "limit": None},
    "items/cancel": {"filter": {"states": ["waiting"]}, "limit": None},
}


def _body_of(path: str) -> Any:
    return next((body for part, body in _BODIES.items() if f"/{part}" in path), None)


def _check_complete(server: Server, asked: Mapping[str, str]) -> None:
    """Every GET of the document is asked, except streams and what there is none of."""
    document = server.json("/api/v1/openapi.json")
    missing = []
    for template, methods in document["paths"].items():
        if "get" not in methods or template in (
            *STREAMS,
            "/api/v1/pools/{pool_id}",
            "/api/v1/collections/{collection}",
        ):
            continue
        pattern = re.compile(re.sub(r"\\\{[^}]*\\\}", "[^/]+", re.escape(template)))
        if not any(pattern.fullmatch(path.partition("?")[0]) for path in asked.values()):
            missing.append(template)
    if missing:
        raise RuntimeError(f"the benchmark does not ask {', '.join(missing)}")


def _measure_answers(
    report: Report, name: str, server: Server, address: str, requests: Mapping[str, str], sizes: Sizes
) -> None:
    """p95 of each request, round by round; all take turns."""
    _ask_in_turn(server, None, requests, 2)  # connections are made and plans are known
    megabytes, rounds = [], []
    for _ in range(sizes.rounds):
        rounds.append(_ask_in_turn(server, Cores(server, address), requests, sizes.samples))
        megabytes.append(server.megabytes())
    noise = statistics.median(percentile([each.took for each in taken[NOISE]], 95) for taken in rounds)
    took, alone = {}, {}
    for each in requests:
        p95 = [percentile([one.took for one in taken[each]], 95) for taken in rounds]
        took[each] = report.add(f"{name}: {each}, p95", "ms", p95).value
    for each in requests:
        p95 = [percentile([one.alone for one in taken[each]], 95) for taken in rounds]
        alone[each] = report.add(f"{name}: {each}, p95", "ms without the wait for a core", p95).value
    used = {each: statistics.mean(one.used for taken in rounds for one in taken[each]) for each in requests}
    most = max(used, key=lambda each: used[each])
    report.notes.append(f"{name}: {most} needs most of processors: {used[most]:.0f} ms; {NOISE} {used[NOISE]:.1f} ms.")
    for values, how in ((took, ""), (alone, " without the wait for a core")):
        over = sorted((each for each in values if values[each] > TARGET_MS), key=lambda each: -values[each])
        worst = max(values, key=lambda each: values[each])
        report.target(f"{name}: p95 of the slowest request, ms{how} ({worst})", values[worst], at_most=TARGET_MS)
        claim = f"{name}: share of {len(values)} requests with p95 within {TARGET_MS:g} ms{how}"
        report.target(claim, 1 - len(over) / len(values), at_least=1)
        for each in over:
            report.notes.append(f"{name}: {each} is above {TARGET_MS:g} ms{how}: p95 {values[each]:.0f} ms.")
    report.notes.append(f"{name}: p95 of /healthz, which asks nothing of the ledger, was {noise:.1f} ms meanwhile.")
    report.add(f"{name}: server after each round", "MB", megabytes)
    growth = megabytes[-1] / megabytes[0]
    report.target(f"{name}: memory of the server after the last / first round", growth, at_most=1.1)
    report.target(f"{name}: memory of the server at most, MB", max(megabytes), at_most=400)


def _ask_in_turn(
    server: Server, cores: Cores | None, requests: Mapping[str, str], samples: int
) -> dict[str, list[Timing]]:
    """All requests once, so many times. Without `cores`, processors are not watched."""
    taken: dict[str, list[Timing]] = {each: [] for each in requests}
    for _ in range(samples):
        for number, (each, path) in enumerate(requests.items()):
            method = each.partition(" ")[0]
            if number % NOISE_EVERY == 0:
                taken[NOISE].append(_ask_once(server, cores, "GET", "/healthz", None))
            body = _body_of(path) if method == "POST" else None
            taken[each].append(_ask_once(server, cores, method, path, body))
    return taken


def _ask_once(server: Server, cores: Cores | None, method: str, path: str, body: Any) -> Timing:
    used, waited = cores.read() if cores else (0.0, 0.0)
    began = time.perf_counter()
    status, text = server.ask(method, path, body)
    took = time.perf_counter() - began
    if status != 200:
        raise RuntimeError(f"{method} {path} was answered with {status}: {text[:500]!r}")
    if cores is not None:
        now_used, now_waited = cores.read()
        used, waited = now_used - used, now_waited - waited
    return Timing(1_000 * took, 1_000 * max(took - waited, min(used, took)), 1_000 * used)


# Pages in a browser.


class PageVisit(msgspec.Struct, frozen=True, kw_only=True):
    """A page of the dashboard, opened in a browser that has nothing of it yet.

    `requests`: what it read from the API; `files`: what else it loaded. Milliseconds from the start of the navigation:
    `painted`, its first content; `meaningful`, its data instead of placeholders.
    """

    title: str
    requests: tuple[str, ...]
    files: tuple[str, ...]
    painted: float
    meaningful: float


_ROUTE = re.compile(r'pattern: "([^"]*)", title: "([^"]*)"')
_WATCH_PAINTS = """(() => {
  const look = () => {
    const main = document.getElementById("main");
    const shown = main && main.querySelector("h1") && !main.querySelector(".placeholder");
    requestAnimationFrame(shown ? () => { window.meaningfulAt = performance.now(); } : look);
  };
  requestAnimationFrame(look);
})()"""
_PAINTED = "() => performance.getEntriesByName('first-contentful-paint')[0].startTime"


def dashboard_pages() -> dict[str, str]:
    """The title of each page by its pattern, from the source of the dashboard."""
    return dict(_ROUTE.findall((REPOSITORY / "web" / "src" / "routes.ts").read_text()))


def walk_pages(url: str, run_id: str, item: str, visits: int = 2) -> list[PageVisit]:
    """Open every page in Chromium, each time with an empty cache."""
    from playwright.sync_api import sync_playwright

    from shoal.fetch.chromium import find_chromium

    with sync_playwright() as driver:
        program = find_chromium(os.environ.get("SHOAL_CHROMIUM", ""), driver.chromium.executable_path)
        browser = driver.chromium.launch(executable_path=program)
        try:
            return [
                _visit(browser, url, pattern.replace(":run", run_id).replace(":item", item), title)
                for pattern, title in dashboard_pages().items()
                for _ in range(visits)
            ]
        finally:
            browser.close()


def _visit(browser: Browser, url: str, path: str, title: str) -> PageVisit:
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    try:
        page = context.new_page()
        page.add_init_script(_WATCH_PAINTS)
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto(f"{url}/{path}")
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (meaningful := page.evaluate("() => window.meaningfulAt ?? null")) is None:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{title} did not show its data: {page.inner_text('body')[:500]}")
            page.wait_for_timeout(100)
        page.wait_for_load_state("networkidle")
        paths = list(dict.fromkeys(each.removeprefix(url) for each in asked if each.startswith(url)))
        return PageVisit(
            title=title,
            requests=tuple(each for each in paths if each.startswith("/api/")),
            files=tuple(each for each in paths if not each.startswith("/api/")),
            painted=page.evaluate(_PAINTED),
            meaningful=meaningful,
        )
    finally:
        context.close()


def _tell_pages(report: Report, name: str, server: Server, visits: Sequence[PageVisit]) -> None:
    by_title: dict[str, list[PageVisit]] = {}
    for visit in visits:
        by_title.setdefault(visit.title, []).append(visit)
    kilobytes = {}
    for title, of in by_title.items():
        report.add(f"{name}: page {title}, first paint", "ms in Chromium", [visit.painted for visit in of])
        report.add(f"{name}: page {title}, its data shown", "ms in Chromium", [visit.meaningful for visit in of])
        kilobytes[title] = sum(len(server.ask("GET", path)[1]) for path in of[0].files) / 1_000
        report.add(f"{name}: page {title}, requests to the API", "requests", [len(visit.requests) for visit in of])
        report.add(f"{name}: page {title}, first load", "KB, gzipped", [kilobytes[title]])
    largest = max(kilobytes, key=lambda title: kilobytes[title])
    claim = f"{name}: first load of the largest page, KB gzipped ({largest})"
    report.target(claim, kilobytes[largest], at_most=FIRST_LOAD_KB)


def _general(path: str) -> str:
    """A name for a path of the dashboard: without ids."""
    return "dashboard: " + re.sub(r"(?<=/)[0-9A-Za-z]{20,}|(?<=items/)\d+", "...", path.removeprefix("/api/v1/"))


# Those who watch.


class Watchers:
    """Live clients in a process of their own. Use it as a context. `frames`: what each got, known at its end."""

    def __init__(self, server: Server, clients: int, topics: Sequence[str] = RUN_TOPICS) -> None:
        self._command = python("control", server.url.replace("http", "ws", 1) + "/api/v1/live", clients, *topics)
        self.frames: list[int] = []

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "ready\n":
            raise RuntimeError("the live clients did not get their first frames")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        said, _ = self._process.communicate()
        self.frames = json.loads(said or "[]")


async def _watch(url: str, clients: int, topics: Sequence[str]) -> None:
    """Connect all, say `ready` when each has a frame, and read until standard input ends."""
    frames, first = [0] * clients, [asyncio.Event() for _ in range(clients)]
    connecting = asyncio.Semaphore(20)

    async def watch(number: int) -> None:
        async with connecting:
            socket = await connect(url, compression=None, open_timeout=PATIENCE_SECONDS, ping_interval=None)
        await socket.send(json.dumps({"subscribe": list(topics)}))
        with suppress(ConnectionClosed):
            async for _ in socket:
                frames[number] += 1
                first[number].set()

    tasks = [asyncio.create_task(watch(number)) for number in range(clients)]
    async with asyncio.timeout(PATIENCE_SECONDS):
        await asyncio.gather(*(event.wait() for event in first))
    print("ready", flush=True)
    frames[:] = [0] * clients
    over = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), over.set)
    await over.wait()
    if any(task.done() for task in tasks):
        raise RuntimeError("the server closed a connection")
    print(json.dumps(frames), flush=True)
    os._exit(0)  # without closing 500 connections politely


def _measure_live(report: Report, name: str, at: Desk, address: str, run_id: str, sizes: Sizes) -> None:
    """What live clients cost the ledger and the server, one and many."""
    reads, calls = {}, {}
    topics = ("overview", f"run:{run_id}", "fleet", "egress", "events")
    for clients in (1, sizes.clients):
        with Server(at) as server:
            with Watchers(server, clients, topics) as watchers:
                time.sleep(2.0)
                began = time.monotonic()
                busy, read = server.seconds_used(), server.metric("shoal_live_reads_total")
                called = _transactions(address)
                time.sleep(sizes.seconds)
                seconds = time.monotonic() - began
                reads[clients] = (server.metric("shoal_live_reads_total") - read) / seconds
                calls[clients] = (_transactions(address) - called) / seconds
                busy = (server.seconds_used() - busy) / seconds
                seconds_connected = seconds + 2.0
            whole = f"{name}: {clients} live client{'s' if clients > 1 else ''}"
            report.add(f"{whole}: topics read", "per second", [reads[clients]])
            if calls[clients]:
                report.add(f"{whole}: transactions of PostgreSQL", "per second", [calls[clients]])
            report.add(f"{whole}: server", "cores", [busy])
            report.add(f"{whole}: frames of a client", "per second", [n / seconds_connected for n in watchers.frames])
            report.add(f"{whole}: server", "MB", [server.megabytes()])
    many = f"{sizes.clients} clients / 1 client"
    report.target(f"{name}: topics read, {many}", reads[sizes.clients] / reads[1], at_most=1.1)
    if calls[1]:
        report.target(f"{name}: transactions, {many}", calls[sizes.clients] / calls[1], at_most=1.1)


def _transactions(address: str) -> float:
    """How many transactions the database has had; 0 for SQLite, which does not count them."""

    async def count() -> int:
        connection = await asyncpg.connect(address)
        try:
            return int(
                await connection.fetchval(
                    "select xact_commit + xact_rollback from pg_stat_database where datname = current_database()"
                )
            )
        finally:
            await connection.close()

    return asyncio.run(count()) if address.startswith("postgresql://") else 0.0


def _measure_scrape(report: Report, site: FastSite, place: Place, sizes: Sizes) -> None:
    """A scrape alone, beside a server that nobody watches, and beside one that many watch."""
    alone = f"scrape on {place.name}"
    served, watched = f"{alone}, a server", f"{alone}, a server, {sizes.clients} live clients and a dashboard"

    def entrant(clients: int | None) -> Entrant:
        @contextmanager
        def opened() -> Iterator[Program]:
            with place.fresh() as address, ExitStack() as stack:
                if clients is not None:
                    server = stack.enter_context(Server(stack.enter_context(desk(address))))
                    if clients:
                        stack.enter_context(Watchers(server, clients))
                        stack.enter_context(_dashboard(server))
                yield shoal_program(CONCURRENCY, ledger=address)

        return Entrant(opened, sizes.pages)

    trials = take_turns(
        site, {alone: entrant(None), served: entrant(0), watched: entrant(sizes.clients)}, sizes.scrape_rounds
    )
    rates = {name: [trial.rate for trial in of] for name, of in trials.items()}
    for name, of in trials.items():
        report.add(name, "pages/s", rates[name])
        report.add(name, "pages/s without the wait for a core", [trial.rate_alone for trial in of])
        report.add(name, "us of the scrape's processor per page", [1e6 * trial.busy / trial.pages for trial in of])
    for name in (served, watched):
        report.target(f"{name} / {alone}", paired_ratio(rates[name], rates[alone]), at_least=0.95)
    alone_rates = {name: [trial.rate_alone for trial in of] for name, of in trials.items()}
    ratio = paired_ratio(alone_rates[watched], alone_rates[alone])
    report.target(f"{watched} / {alone}, without the wait for a core", ratio, at_least=0.95)
    costs = {name: [trial.busy / trial.pages for trial in of] for name, of in trials.items()}
    claim = f"{watched} / {alone}, processor time of the scrape per page"
    report.target(claim, paired_ratio(costs[watched], costs[alone]), at_most=1.05)


@contextmanager
def _dashboard(server: Server) -> Iterator[None]:
    """What the Run page asks for again and again, for the length of a block."""
    over = threading.Event()
    base = "/api/v1/runs/latest"
    paths = [
        base,
        f"{base}/history?minutes=60",
        f"{base}/partitions?limit=12",
        f"{base}/failures?limit=5",
        "/api/v1/me",
    ]

    def read() -> None:
        client = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=PATIENCE_SECONDS)
        while not over.wait(DASHBOARD_SECONDS):
            for path in paths:
                client.request("GET", path, headers={"Accept-Encoding": "gzip"})
                client.getresponse().read()
        client.close()

    thread = threading.Thread(target=read, name="dashboard")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


if __name__ == "__main__":
    uvloop.run(_watch(sys.argv[1], int(sys.argv[2]), sys.argv[3:]))
