"""One fleet of real workers in its steady state: pages per second, and what a page costs workers, database and disk."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import psutil

from bench.figures import percentile
from bench.fleet_crew import Crew, Watcher, desk, wait_until
from bench.fleet_shift import Costs, costs_of
from bench.fleet_site import LateSite
from bench.fleet_worker import Call, Notes
from bench.places import PostgresPlace
from bench.probe import Probe

Lanes = Literal["none", "hosts", "paced"]
DELAY = 1.0
# Pages are counted between these parts of all requests: before it workers begin, after it they run out of pages.
FROM, TO = 0.2, 0.9
# A hundred workers on two busy cores take minutes to start.
START_SECONDS, WORK_SECONDS = 400.0, 300.0
_SCRAPER = """\
from shoal import Page, Scraper

pages = Scraper("pages", robots=False)


@pages.stage({options})
async def page(page: Page):
    yield {{"url": page.url, "title": page.css("title::text").get()}}
"""
_OPTIONS: dict[Lanes, str] = {"none": "lane=None", "hosts": "concurrency=8", "paced": f"delay={DELAY}, concurrency=1"}


@dataclass(frozen=True)
class Case:
    """`lanes`: none; the lanes of hosts, 8 at once; or one at a time with a delay of a second. `seconds`: how long the
    pages last, about. `pooled`: through PgBouncer. `idle`: seconds for which the workers have nothing to do first.
    `pages_per_second`: what is expected of a site without latency.
    """

    workers: int
    concurrency: int
    latency: float
    lanes: Lanes = "none"
    size: int = 1_000
    hosts: int = 1
    seconds: float = 12.0
    pooled: bool = False
    idle: float = 0.0
    pages_per_second: float = 0.0

    @property
    def name(self) -> str:
        parts = [f"{self.workers} x {self.concurrency}", f"{self.latency:g} s"]
        parts += [] if self.size == 1_000 else [f"{self.size // 1000} KB"]
        parts += {"none": [], "hosts": [f"{self.hosts} hosts"], "paced": [f"{self.hosts} hosts, {DELAY:g} s apart"]}[
            self.lanes
        ]
        return ", ".join(parts + (["PgBouncer"] if self.pooled else []))

    @property
    def pages(self) -> int:
        rate = self.pages_per_second or self.workers * self.concurrency / self.latency
        return int(rate * self.seconds)


@dataclass(frozen=True)
class Cost:
    """Processor seconds of the workers and of the database, bytes of its log."""

    workers: float
    database: float
    wal: float

    def __sub__(self, other: Cost) -> Cost:
        return Cost(self.workers - other.workers, self.database - other.database, self.wal - other.wal)

    def __truediv__(self, count: float) -> Cost:
        return Cost(self.workers / count, self.database / count, self.wal / count)


@dataclass(frozen=True)
class Fleet:
    """What was measured. `page`: the cost of one page, everything included. `idle`: of one worker that has nothing to
    do, a second. `calls`: claims and commits for each page, those that found nothing included. `fast_claim`: seconds
    of the fastest tenth of claims. `pooler`: processor seconds of PgBouncer for one page.
    """

    case: Case
    rate: float
    page: Cost
    idle: Cost | None
    calls: float
    items_per_claim: float
    items_per_commit: float
    fast_claim: float
    connections: int
    worker_mb: float
    disk: float
    pooler: float

    @property
    def worker_rate(self) -> float:
        return self.rate / self.case.workers


def work_fleet(place: PostgresPlace, case: Case, by: Callable[[str], str], pooler_pid: int | None = None) -> Fleet:
    """Start the workers, let them stand idle if asked for, then work. `by`: the address that workers have."""
    scraper = _SCRAPER.format(options=_OPTIONS[case.lanes])
    with (
        LateSite(case.latency, size=case.size, hosts=case.hosts) as site,
        place.fresh() as ledger,
        desk(by(ledger), scraper) as at,
        Watcher(ledger) as watcher,
        Probe(ledger) as probe,
    ):
        empty = sum(probe.table_bytes().values())
        run_id, _ = at.enqueue(site.urls(case.pages))
        watcher.ask(lambda ledger: ledger.runs.pause(run_id))
        with Crew(at, case.workers, case.concurrency) as crew:
            meter = _Meter(crew, watcher, probe, site, pooler_pid)
            wait_until(lambda: meter.present() == case.workers, crew, START_SECONDS)
            idle = _stand_idle(meter, case) if case.idle else None
            watcher.ask(lambda ledger: ledger.runs.resume(run_id))
            wait_until(lambda: meter.arrived() >= FROM * case.pages, crew, WORK_SECONDS)
            first = meter.read()
            wait_until(lambda: meter.arrived() >= TO * case.pages, crew, WORK_SECONDS)
            last = meter.read()
            memory = crew.memory_mb()
            wait_until(lambda: watcher.ask(lambda ledger: ledger.reads.stats(run_id)).remaining == 0, crew)
            notes = crew.send_home()
        if meter.arrived() != case.pages:
            raise RuntimeError(f"{meter.count} requests for {case.pages} pages")
        disk = (sum(probe.table_bytes().values()) - empty) / case.pages
    pages = last.pages - first.pages
    claims = _calls(notes, "claim", first.at, last.at)
    commits = len(_calls(notes, "commit", first.at, last.at))
    return Fleet(
        case,
        pages / (last.at - first.at),
        (last.cost - first.cost) / pages,
        idle,
        (len(claims) + commits) / pages,
        pages / len(claims),
        pages / commits,
        percentile([call.seconds for call in claims], 10),
        meter.most_connections,
        memory,
        disk,
        (last.pooler - first.pooler) / pages,
    )


@dataclass(frozen=True)
class _Reading:
    at: float
    pages: int
    cost: Cost
    pooler: float


class _Meter:
    """Reads all counters at once, and remembers how many requests came and how many connections there were."""

    def __init__(self, crew: Crew, watcher: Watcher, probe: Probe, site: LateSite, pooler: int | None) -> None:
        self._crew, self._watcher, self._probe, self._site = crew, watcher, probe, site
        self._pooler = None if pooler is None else psutil.Process(pooler)
        self.count = 0
        self.most_connections = 0

    def present(self) -> int:
        return len(self._watcher.ask(lambda ledger: ledger.workers.list()))

    def arrived(self) -> int:
        """How many requests came so far."""
        self.count += len(self._site.arrivals())
        # The watcher's own connection is not one of the fleet.
        self.most_connections = max(self.most_connections, self._probe.connections() - 1)
        return self.count

    def read(self) -> _Reading:
        pages = self.arrived()
        used: Costs = costs_of(self._crew, self._watcher, self._site)
        pooler = 0.0
        if self._pooler is not None:
            times = self._pooler.cpu_times()
            pooler = times.user + times.system
        return _Reading(time.monotonic(), pages, Cost(used.crew, used.database, self._probe.wal_bytes()), pooler)


def _stand_idle(meter: _Meter, case: Case) -> Cost:
    """What one worker with nothing to do costs a second."""
    time.sleep(2.0)  # until imports, first logins and first plans are over
    before = meter.read()
    time.sleep(case.idle)
    after = meter.read()
    return (after.cost - before.cost) / (after.at - before.at) / case.workers


def _calls(notes: Sequence[Notes], kind: str, first: float, last: float) -> list[Call]:
    return [call for one in notes for call in one.calls if call.kind == kind and first <= call.ended < last]
