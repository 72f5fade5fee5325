"""How many workers, connections, database cores, bytes and hours a job needs, and what limits it. Pure arithmetic."""

from __future__ import annotations

import math
from typing import Literal, get_args

import msgspec

from shoal.errors import InvalidSetting
from shoal.model.page_costs import LaneCosts, PageCosts

Bottleneck = Literal["hosts", "database", "connections", "network", "workers", "hours", "enqueueing", "pages"]
# A database that is busier than this answers late: checkpoints, vacuum and peaks need the rest.
BUSY_SHARE = 0.7
# Whole workers are a little slower than their limit, which must not cost another core.
ROUNDING = 0.1
# A process of Python has one core; above this share its requests wait for each other.
WORKER_SHARE = 0.9
# Even a page that is there at once occupies its slot for this long.
LEAST_SECONDS = 0.001
# Sessions above this number cost a PostgreSQL more than PgBouncer does.
MANY_CONNECTIONS = 300
# Sessions for each core of the database that PgBouncer should have at least; more of them wait for a core.
POOLED_PER_CORE = 4
# Pages a second of one worker with which half of its pages share their claim and their commit with another.
SHARING_RATE = 25.0
# Nothing is gained by workers that only make a job shorter than this.
SHORTEST_SECONDS = 60.0
# How many sites a worker keeps the robots.txt of, for a day.
ROBOTS_KEPT = 10_000
# Bytes of a request and of the head of its answer.
HEADERS_BYTES = 1_000
# Not measured: what HTML shrinks to in the store, and the part of a block that a file leaves unused.
STORED_SHARE, STORED_FILE_BYTES = 0.25, 2_500
MOST_CORES = 1_024
_MOST = 1e15
_RANGES = {
    "pages": (1, _MOST, "a number of pages from 1 to 1e15, such as 1e6"),
    "latency": (0, 3_600, "seconds from 0 to 3600"),
    "size": (0, 1e12, "bytes of a page, at most 1TB, such as 50KB"),
    "record_size": (0, 1e9, "bytes of a record, at most 1GB, such as 300"),
    "hosts": (1, _MOST, "a number of hosts from 1 to 1e15, such as 1e6"),
    "delay": (0, 86_400, "seconds from 0 to 86400"),
    "per_host": (1, 1e6, "a whole number of pages of a host at once, from 1 to 1000000"),
    "concurrency": (1, 10_000, "a whole number of pages at once in a worker, from 1 to 10000"),
    "hours": (1e-3, 1e6, "hours from 0.001 to 1000000"),
    "workers": (1, 1e6, "a whole number of workers from 1 to 1000000"),
    "database_cores": (1, MOST_CORES, f"cores from 1 to {MOST_CORES}"),
    "bandwidth": (1e3, 1e15, "bits a second from 1Kbit to 1000Tbit, such as 1Gbit"),
}
_WHOLE = {"per_host", "concurrency", "workers"}


class CapacityJob(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be fetched, and with what.

    `latency`: seconds until a page is there. `size`, `record_size`: bytes of a page and of what is kept of it.
    `hosts`: None when pages have no lane. `delay`: seconds between two starts at a host; `per_host`: its pages at once.
    `concurrency`: of a worker. `hours` or `workers`: what is given; neither: as fast as everything else allows.
    `database_cores`: of the one PostgreSQL. `bandwidth`: bits a second of all workers together. `store`: keep pages.
    """

    pages: float
    latency: float = 0.5
    size: float = 50_000
    record_size: float = 300
    hosts: float | None = None
    delay: float = 1.0
    per_host: float = 1
    concurrency: float = 16
    hours: float | None = None
    workers: float | None = None
    database_cores: float = 8
    bandwidth: float | None = None
    store: bool = False

    def checked(self) -> CapacityJob:
        """Raises InvalidSetting for a value that is out of range, and for hours together with workers."""
        for name, (low, high, what) in _RANGES.items():
            value = getattr(self, name)
            if value is None:
                continue
            if not (math.isfinite(value) and low <= value <= high) or (name in _WHOLE and value % 1):
                option = name.replace("_", "-")
                raise InvalidSetting(f"--{option} is {value:g}.", remedy=f"Give {what}.")
        if self.hours is not None and self.workers is not None:
            raise InvalidSetting(
                "--hours and --workers were both given, and one follows from the other.", remedy="Give one of them."
            )
        if self.hosts is not None and self.hosts > self.pages:
            raise InvalidSetting(
                f"There are more hosts ({self.hosts:g}) than pages ({self.pages:g}).",
                remedy="Give --hosts at most as many as --pages.",
            )
        return self


class CapacityPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a job needs. Rates are pages per second, bytes are of the whole job.

    `limits`: how fast each resource lets it be, None for one that does not limit; `pages`: so few that they are done
    within the time of one page, or without a goal within a minute. `bottleneck`: which of them decides.
    `wanted_rate`: what `hours` asks for. `connections`: to PostgreSQL, at most; if `pooled`, what the pool of PgBouncer
    should have at least. `database_load`: cores that are busy; `database_cores`: what the server should have for that.
    `calls_per_page`: claims and commits. `robots_requests`: requests of robots.txt on top, at most. `enqueue_hours`: of
    one process that stores the items. `ledgers`: how many PostgreSQL servers of this size would be as fast as all
    else allows. `error`: the factor by which processor time and bytes of the log may be off.
    """

    rate: float
    wanted_rate: float | None
    hours: float
    bottleneck: Bottleneck
    limits: dict[str, float | None]
    workers: int
    worker_rate: float
    worker_cores: float
    worker_memory_bytes: float
    connections: int
    pooled: bool
    database_load: float
    database_cores: int
    calls_per_page: float
    log_bytes_per_second: float
    ledger_bytes: float
    record_bytes: float
    store_bytes: float
    network_bits_per_second: float
    robots_requests: float
    enqueue_hours: float
    ledgers: int
    error: float


def lane_costs(job: CapacityJob, costs: PageCosts) -> LaneCosts:
    """The costs of the kind of lane that the pages of a job have."""
    if job.hosts is None:
        return costs.no_lanes
    return costs.paced if job.delay > 0 else costs.lanes


def alone_share(worker_rate: float) -> float:
    """The part of its pages that a worker of so many pages a second claims and commits one by one."""
    return 1 / (1 + worker_rate / SHARING_RATE)


def calls_per_page(job: CapacityJob, costs: PageCosts, worker_rate: float) -> float:
    """Claims and commits for each page."""
    return lane_costs(job, costs).calls.of_page(alone_share(worker_rate))


def worker_seconds(job: CapacityJob, costs: PageCosts, worker_rate: float) -> float:
    """Processor seconds of a worker for one page."""
    own = lane_costs(job, costs).worker.of_page(alone_share(worker_rate))
    return own + costs.worker_per_kb * job.size / 1_000 + costs.idle_worker / worker_rate


def database_seconds(job: CapacityJob, costs: PageCosts, worker_rate: float, *, pooled: bool = False) -> float:
    """Processor seconds of the database for one page, the heartbeats and the maintenance of its worker included."""
    seconds = lane_costs(job, costs).database.of_page(alone_share(worker_rate)) + costs.idle_database / worker_rate
    return seconds * (costs.pooler if pooled else 1)


def log_bytes(job: CapacityJob, costs: PageCosts, worker_rate: float) -> float:
    """Bytes of the write-ahead log for one page."""
    return lane_costs(job, costs).log.of_page(alone_share(worker_rate)) + costs.idle_log / worker_rate


def slot_seconds(job: CapacityJob, costs: PageCosts) -> float:
    """How long a page occupies its slot."""
    return max(LEAST_SECONDS, job.latency + lane_costs(job, costs).wait)


def full_worker_rate(job: CapacityJob, costs: PageCosts) -> float:
    """Pages per second of one worker that always has something to do: by its slots, or by its core."""
    by_slots = job.concurrency / slot_seconds(job, costs)
    low, high = 0.0, by_slots
    if high * worker_seconds(job, costs, high) <= WORKER_SHARE:
        return high
    for _ in range(80):  # the share of a core that it needs grows with its rate
        middle = (low + high) / 2
        low, high = (middle, high) if middle * worker_seconds(job, costs, middle) <= WORKER_SHARE else (low, middle)
    return low


def make_capacity_plan(job: CapacityJob, costs: PageCosts) -> CapacityPlan:
    """The plan of a job that was checked. Raises InvalidSetting for more workers than the database can keep up with."""
    full_rate = full_worker_rate(job, costs)
    wanted = None if job.hours is None else job.pages / (job.hours * 3_600)
    limits = _database_limits(job, costs, full_rate)
    one_ledger = min(limits.values())
    limits["enqueueing"] = 1 / lane_costs(job, costs).enqueue
    limits["pages"] = job.pages / _shortest_seconds(job, costs)
    if job.hosts is not None:
        limits["hosts"] = job.hosts * _host_rate(job, costs)
    if job.bandwidth is not None:
        limits["network"] = job.bandwidth / (8 * (job.size + HEADERS_BYTES))
    if job.workers is not None:
        limits["workers"] = job.workers * full_rate
    if wanted is not None:
        limits["hours"] = wanted
    bottleneck = min(limits, key=lambda name: limits[name])
    rate = limits[bottleneck]
    workers = math.ceil(rate / full_rate - 1e-9) if job.workers is None else int(job.workers)
    worker_rate = rate / workers
    pooled = _needs_pooler(workers, costs)
    load = rate * database_seconds(job, costs, worker_rate, pooled=pooled)
    cores = max(1, math.ceil(load / BUSY_SHARE - ROUNDING))
    asked = min(limits.get("hosts", math.inf), limits.get("network", math.inf), wanted or math.inf)
    return CapacityPlan(
        rate=rate,
        wanted_rate=wanted,
        hours=job.pages / rate / 3_600,
        bottleneck=bottleneck,
        limits={name: limits.get(name) for name in get_args(Bottleneck) if name != "hours"},
        workers=workers,
        worker_rate=worker_rate,
        worker_cores=rate * worker_seconds(job, costs, worker_rate),
        worker_memory_bytes=workers * costs.worker_mb * 1e6,
        connections=cores * POOLED_PER_CORE if pooled else math.ceil(workers * costs.connections),
        pooled=pooled,
        database_load=load,
        database_cores=cores,
        calls_per_page=calls_per_page(job, costs, worker_rate),
        log_bytes_per_second=rate * log_bytes(job, costs, worker_rate),
        ledger_bytes=job.pages * (costs.ledger_bytes + job.record_size),
        record_bytes=job.pages * job.record_size,
        store_bytes=job.pages * (job.size * STORED_SHARE + STORED_FILE_BYTES) if job.store else 0.0,
        network_bits_per_second=8 * rate * (job.size + HEADERS_BYTES),
        robots_requests=_robots_requests(job, workers, rate),
        enqueue_hours=job.pages * lane_costs(job, costs).enqueue / 3_600,
        ledgers=max(1, math.ceil(asked / one_ledger - 1e-9)) if math.isfinite(asked) else 1,
        error=costs.error,
    )


def _shortest_seconds(job: CapacityJob, costs: PageCosts) -> float:
    """No job takes less than one page. Without a goal it is not worth workers to make it shorter than a minute."""
    page = slot_seconds(job, costs)
    return page if job.hours is not None or job.workers is not None else max(SHORTEST_SECONDS, page)


def _host_rate(job: CapacityJob, costs: PageCosts) -> float:
    """Pages per second that one host is asked for."""
    by_slots = job.per_host / slot_seconds(job, costs)
    return min(by_slots, 1 / job.delay) if job.delay > 0 else by_slots


def _robots_requests(job: CapacityJob, workers: int, rate: float) -> float:
    """Requests of robots.txt, at most: once a day by each worker, and more when too many hosts take turns."""
    if job.hosts is None:
        return 0.0
    days = math.ceil(job.pages / rate / 86_400)
    forgotten = job.pages * max(0.0, 1 - ROBOTS_KEPT / job.hosts)
    return min(job.pages, max(job.hosts * workers * days, forgotten))


def _needs_pooler(workers: float, costs: PageCosts) -> bool:
    return workers * costs.connections > MANY_CONNECTIONS


def _database_limits(job: CapacityJob, costs: PageCosts, full_rate: float) -> dict[Bottleneck, float]:
    """Pages per second that the processor and the connections of one PostgreSQL allow."""
    busy = job.database_cores * BUSY_SHARE
    if job.workers is not None:
        pooled = _needs_pooler(job.workers, costs)
        if job.workers * full_rate * database_seconds(job, costs, full_rate, pooled=pooled) > busy:
            return {"database": _limit_of_workers(job, costs, job.workers, full_rate)}
    direct = busy / database_seconds(job, costs, full_rate)
    if not _needs_pooler(direct / full_rate, costs):
        return {"database": direct}
    # With the connections that are few enough, or through PgBouncer: whichever is faster.
    few = math.floor(MANY_CONNECTIONS / costs.connections) * full_rate
    through_pooler = busy / database_seconds(job, costs, full_rate, pooled=True)
    return {"database": direct, "connections": few} if few > through_pooler else {"database": through_pooler}


def _limit_of_workers(job: CapacityJob, costs: PageCosts, workers: float, full_rate: float) -> float:
    """Pages per second of so many workers that keep the database as busy as it may be. Each has fewer than it could do,
    and a page of a worker with few pages costs more.
    """
    pooled = _needs_pooler(workers, costs)
    busy = job.database_cores * BUSY_SHARE
    idle = workers * costs.idle_database * (costs.pooler if pooled else 1)
    if idle >= busy:
        enough = make_capacity_plan(msgspec.structs.replace(job, workers=None), costs).workers
        raise InvalidSetting(
            f"{workers:,.0f} workers with nothing to do would keep {idle:.3g} cores of PostgreSQL busy, and "
            f"{BUSY_SHARE:.0%} of its {job.database_cores:g} are {busy:.3g}.",
            remedy=f"Give --workers {enough:,}, which do all that hosts and PostgreSQL allow, or at least "
            f"--database-cores {math.floor(idle / BUSY_SHARE) + 1}.",
        )
    low, high = 0.0, full_rate
    for _ in range(80):  # the load grows with the rate
        middle = (low + high) / 2
        fits = workers * middle * database_seconds(job, costs, middle, pooled=pooled) <= busy
        low, high = (middle, high) if fits else (low, middle)
    return workers * low
