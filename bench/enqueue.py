"""Loading URLs: Shoal's enqueue beside bare COPY and executemany of the same rows."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator

import psutil

from bench.bare_intake import copy_seconds, executemany_seconds, rows_of
from bench.children import in_child
from bench.consumer import new_run, urls
from bench.figures import Report
from bench.places import Place, PostgresPlace, SqlitePlace, open_ledger
from bench.rounds import Contender, alternate, paired_ratio
from bench.session import Effort, Session
from shoal.ledger.protocols import Entry
from shoal.model.item import NewItem
from shoal.model.lane import LanePolicy

ITEMS: dict[Effort, int] = {"quick": 200_000, "full": 1_000_000}
HOSTS = 1_000
MEMORY_EVERY = 10_000


def run(session: Session) -> Report:
    items = session.size(ITEMS)
    report = Report("enqueue", "How fast are URLs loaded?", {"items": items, "hosts": HOSTS})
    prepared = list(rows_of(urls(items)))
    contenders: dict[str, Contender] = {}
    for place in session.places:
        contenders |= _shoal_contenders(place, items)
    contenders["bare COPY"] = lambda: items / _copy(session.postgres, prepared)
    contenders["bare COPY, keys computed on the way"] = lambda: items / _copy(session.postgres, rows_of(urls(items)))
    sqlite = session.sqlite
    contenders["bare executemany"] = lambda: items / _executemany(sqlite, prepared)
    contenders["bare executemany, keys computed on the way"] = lambda: (
        items / _executemany(sqlite, rows_of(urls(items)))
    )
    rates = alternate(contenders, session.rounds)
    for name, samples in rates.items():
        report.add(name, "items/s", samples)
    for place in session.places:
        bare = "bare COPY" if place.name == "postgres" else "bare executemany"
        for other in (bare, f"{bare}, keys computed on the way"):
            ratio = paired_ratio(rates[f"shoal on {place.name}"], rates[other])
            report.target(f"{place.name}: shoal / {other}", ratio, at_least=0.5)
        with place.fresh() as address:
            growth = in_child(memory_growth, address, items)
        report.add(f"shoal on {place.name}, memory growth after the first tenth", "MB", [growth])
        report.target(f"{place.name}: memory growth while loading, MB", growth, at_most=20)
    report.bars("Loading URLs", "items/s")
    return report


def _shoal_contenders(place: Place, items: int) -> dict[str, Contender]:
    return {
        f"shoal on {place.name}": lambda: items / _enqueue(place, urls(items)),
        f"shoal on {place.name}, {HOSTS} hosts as lanes": lambda: items / _enqueue(place, _laned(items)),
        f"shoal on {place.name}, every URL twice": lambda: items / _enqueue(place, _twice(items)),
    }


def _laned(items: int) -> Iterator[NewItem]:
    for i in range(items):
        host = f"host{i % HOSTS}.example.com"
        yield NewItem(url=f"https://{host}/page/{i}", lane=host)


def _twice(items: int) -> Iterator[str]:
    """Half of the entries repeat one of the half before them."""
    for url in urls(items // 2):
        yield url
        yield url


def _enqueue(place: Place, entries: Iterable[Entry]) -> float:
    with place.fresh() as address:
        return asyncio.run(_enqueue_seconds(address, entries))


async def _enqueue_seconds(address: str, entries: Iterable[Entry]) -> float:
    ledger = await open_ledger(address)
    try:
        run_id = await new_run(ledger, LanePolicy(limit=8))
        began = time.perf_counter()
        await ledger.intake.enqueue(run_id, entries)
        return time.perf_counter() - began
    finally:
        await ledger.close()


def _copy(place: PostgresPlace, rows: Iterable[tuple[str, bytes]]) -> float:
    with place.fresh() as url:
        return asyncio.run(copy_seconds(url, rows))


def _executemany(place: SqlitePlace, rows: Iterable[tuple[str, bytes]]) -> float:
    with place.fresh() as model, place.empty() as path:
        return executemany_seconds(path, model, rows)


def memory_growth(address: str, items: int) -> float:
    """MB by which this process grew between the first tenth of the entries and the end. Runs in its own process."""
    process = psutil.Process()
    seen: list[int] = []

    def watched() -> Iterator[str]:
        for count, url in enumerate(urls(items)):
            if count % MEMORY_EVERY == 0:
                seen.append(process.memory_info().rss)
            yield url

    asyncio.run(_enqueue_seconds(address, watched()))
    return (max(seen) - seen[len(seen) // 10]) / 2**20
