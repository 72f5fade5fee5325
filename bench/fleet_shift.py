"""One crew that works off its pages: how fast, how much of its time in the ledger, and what everybody cost."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.fleet_crew import Crew, Watcher, desk, wait_until
from bench.fleet_site import LateSite
from bench.fleet_worker import Notes

# Workers do not begin and end in the same moment; the tenth of the pages at either end is left out.
EDGE = 0.1


@dataclass(frozen=True)
class Costs:
    """Processor seconds of the workers, of the database server with all its processes, and of the site."""

    crew: float
    database: float
    site: float

    def __sub__(self, before: Costs) -> Costs:
        return Costs(self.crew - before.crew, self.database - before.database, self.site - before.site)

    def __truediv__(self, seconds: float) -> Costs:
        return Costs(self.crew / seconds, self.database / seconds, self.site / seconds)

    @property
    def total(self) -> float:
        return self.crew + self.database + self.site


@dataclass(frozen=True)
class Shift:
    """`rate`: pages per second without the first and the last tenth. `whole_rate`: from the first request to the last
    answer. `cores`: processor seconds per second meanwhile.
    """

    workers: int
    rate: float
    whole_rate: float
    cores: Costs
    notes: Sequence[Notes]

    @property
    def ledger_share(self) -> float:
        return statistics.mean(notes.ledger_share() for notes in self.notes)


def milliseconds(notes: Sequence[Notes], kind: str) -> list[float]:
    """How long the calls of a kind took, of those that had something to do."""
    calls = (call for one in notes for call in one.calls)
    return [1000 * call.seconds for call in calls if call.kind == kind and call.items]


def costs_of(crew: Crew, watcher: Watcher, site: LateSite) -> Costs:
    return Costs(crew.seconds_used(), watcher.seconds_used(), site.seconds_used())


def work_shift(
    ledger: str, site: LateSite, *, workers: int, concurrency: int, pages: int, by: Callable[[str], str]
) -> Shift:
    """So many workers and so many pages for each. `by`: the address that workers have for the ledger.

    All are present before the first page is let out. Raises RuntimeError unless each page was asked for once.
    """
    with desk(by(ledger)) as at, Watcher(ledger) as watcher:
        site.arrivals()
        run_id, _ = at.enqueue(site.urls(workers * pages))
        watcher.ask(lambda ledger: ledger.runs.pause(run_id))
        with Crew(at, workers, concurrency) as crew:
            wait_until(lambda: len(watcher.ask(lambda ledger: ledger.workers.list())) == workers, crew)
            before, began = costs_of(crew, watcher, site), time.monotonic()
            watcher.ask(lambda ledger: ledger.runs.resume(run_id))
            wait_until(lambda: watcher.ask(lambda ledger: ledger.reads.stats(run_id)).remaining == 0, crew)
            cores = (costs_of(crew, watcher, site) - before) / (time.monotonic() - began)
            notes = crew.send_home()
    arrivals = sorted(site.arrivals())
    if len(arrivals) != workers * pages:
        raise RuntimeError(f"{len(arrivals)} requests for {workers * pages} pages")
    first, last = int(len(arrivals) * EDGE), int(len(arrivals) * (1 - EDGE)) - 1
    return Shift(
        workers,
        (last - first) / (arrivals[last] - arrivals[first]),
        len(arrivals) / (arrivals[-1] + site.latency - arrivals[0]),
        cores,
        notes,
    )
