"""Very many URLs enqueued at once, then a crew that begins with them: how soon, how fast it claims, at what cost."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from bench.fleet_crew import Crew, Watcher, desk, wait_until
from bench.fleet_shift import Costs, costs_of
from bench.fleet_site import LateSite
from bench.fleet_worker import Notes
from bench.places import PostgresPlace


@dataclass(frozen=True)
class Backlog:
    """Seconds: of `shoal enqueue`, its start included; from the start of the workers to the first request at the site;
    and until each of them had claimed something. `rate`, `cores`: while they all worked.
    """

    urls: int
    enqueue_seconds: float
    enqueue_database_seconds: float
    first_page: float
    all_at_work: float
    rate: float
    cores: Costs
    notes: Sequence[Notes]


def work_on_backlog(
    place: PostgresPlace, site: LateSite, *, urls: int, workers: int, concurrency: int, seconds: float
) -> Backlog:
    """Workers start right after the URLs were enqueued and go on for so many seconds after the last has begun."""
    with place.fresh() as ledger, desk(ledger) as at, Watcher(ledger) as watcher:
        database_before = watcher.seconds_used()
        _, enqueue_seconds = at.enqueue(site.urls(urls))
        enqueue_database = watcher.seconds_used() - database_before
        site.arrivals()
        arrivals: list[float] = []
        with Crew(at, workers, concurrency) as crew:
            wait_until(lambda: _leased_by_all(watcher, workers), crew)
            arrivals += site.arrivals()
            before, began = costs_of(crew, watcher, site), time.monotonic()
            time.sleep(seconds)
            lately = site.arrivals()
            took = time.monotonic() - began
            cores = (costs_of(crew, watcher, site) - before) / took
            notes = crew.send_home()
            started = crew.started_at
    return Backlog(
        urls=urls,
        enqueue_seconds=enqueue_seconds,
        enqueue_database_seconds=enqueue_database,
        first_page=min([*arrivals, *lately]) - started,
        all_at_work=max(one.span[0] for one in notes) - started,
        rate=len(lately) / took,
        cores=cores,
        notes=notes,
    )


def _leased_by_all(watcher: Watcher, workers: int) -> bool:
    present = watcher.ask(lambda ledger: ledger.workers.list())
    return len(present) == workers and all(worker.leased for worker in present)
