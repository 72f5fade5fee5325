"""What the tests on nodes share: a scraper, the workers of a run, and the proof at its end."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Collection
from typing import TypeVar

from shoal.config import Settings
from shoal.model.item import ItemState
from shoal.model.worker import WorkerView
from shoal.wiring import ledger_context
from tests.support import LONG
from tests.support.node_lab import Fleet
from tests.support.project import Command
from tests.support.site import Site, Visit, per_path

T = TypeVar("T")
ROUNDS = 5 if LONG else 1
PATIENCE = 60.0
SLOTS = 4
# Beyond the lease: the reaper runs once a second. `make test` may run on a busy machine.
MARGIN = 5.0 if LONG else 20.0
# Enough for what three workers run and hold ready, so that each of them gets something to do.
LIMIT = 24
# The record is stored a while after the page was fetched, so that whoever dies has something in its hands. A file
# named `hold` in the folder of a node keeps its worker there, which says so by files of its own.
SHOP = f"""
    from pathlib import Path

    shop = Scraper("shop")

    @shop.stage(concurrency={LIMIT})
    async def page(page: Page):
        await asyncio.sleep(0.2)
        while Path("hold").exists():
            Path(f"held-{{page.url.rpartition('/')[2]}}").touch()
            await asyncio.sleep(0.02)
        yield {{"url": page.url}}
"""


def pages_of(site: Site, number: int) -> list[str]:
    return [f"{site.url}/page/{n}" for n in range(1, number + 1)]


def start_worker(fleet: Fleet, number: int, run_id: str, *, lease: float, slots: int = SLOTS) -> Command:
    """A worker on one of the nodes. A call that nobody answers is given up after two seconds and made again."""
    settings = ("--set", f"lease={lease:g}", "--set", "command_timeout=2", "-j", str(slots), "--batch-size", "4")
    return fleet.nodes[number].start("worker", "shop.py", "--run-id", run_id, "--json", *settings)


def start_workers(fleet: Fleet, run_id: str, *, lease: float, slots: int = SLOTS) -> list[Command]:
    return [start_worker(fleet, number, run_id, lease=lease, slots=slots) for number in range(len(fleet.nodes))]


def start_together(fleet: Fleet, run_id: str, start: Callable[[], T], number: int) -> T:
    """Start workers on a paused run and resume it when so many are there: the first one cannot do everything alone."""
    fleet.operator.shoal("runs", "pause", run_id)
    started = start()
    until(lambda: workers(fleet), lambda there: len(there) == number, "not all workers have come")
    fleet.operator.shoal("runs", "resume", run_id)
    return started


def until(look: Callable[[], T], is_there: Callable[[T], bool], what: str) -> T:
    """Look until it is there. Not too often: looking costs, and these tests measure time."""
    deadline = time.monotonic() + PATIENCE
    while not is_there(found := look()):
        assert time.monotonic() < deadline, f"{what}: ...{str(found)[-1000:]}"
        time.sleep(0.05)
    return found


def until_seen(site: Site, seen: Callable[[list[Visit]], bool], what: str) -> list[Visit]:
    """Wait for something in the site's log, and return that."""
    return until(site.visits, seen, f"the site has not seen {what}")


def until_done(fleet: Fleet, number: int) -> None:
    until(lambda: fleet.operator.counts().done, lambda done: done >= number, f"not {number} are done")


def workers(fleet: Fleet) -> list[WorkerView]:
    async def ask() -> list[WorkerView]:
        async with ledger_context(Settings(ledger=fleet.operator.ledger), migrate=False) as ledger:
            return sorted(await ledger.workers.list(), key=lambda worker: worker.node)

    return asyncio.run(ask())


def visits_from(visits: list[Visit], address: str) -> list[Visit]:
    return [visit for visit in visits if visit.peer.rpartition(":")[0] == address]


def answered(visits: list[Visit]) -> int:
    """How many pages were fetched to the end."""
    return sum(visit.end is not None and visit.path != "/robots.txt" for visit in visits)


def until_visited(site: Site, paths: Collection[str], after: float) -> float:
    """Wait until all these were visited after that moment; return when the last of them was begun."""
    wanted = set(paths)
    visits = until_seen(site, lambda visits: wanted <= {v.path for v in visits if v.start > after}, f"{wanted} again")
    return max((first_start(visits, after, path) for path in wanted), default=after)


def first_start(visits: list[Visit], after: float, path: str | None = None) -> float:
    return min(visit.start for visit in visits if visit.start > after and path in (None, visit.path))


def held_by(fleet: Fleet, worker: str) -> set[str]:
    items = fleet.operator.items()
    return {path_of(item.url or "") for item in items if item.state is ItemState.LEASED and item.worker == worker}


def prove(fleet: Fleet, visits: list[Visit], pages: Collection[str], again: Collection[str] = ()) -> None:
    """Every page has one record and was visited once, but for the paths that may be visited `again`; all is sound."""
    counts = fleet.operator.counts()
    assert (counts.done, counts.dead, counts.remaining, counts.results) == (len(pages), 0, 0, len(pages)), counts
    records = Counter(record["url"] for record in fleet.operator.export())
    assert set(records) == set(pages)
    assert set(records.values()) == {1}
    by_path = {path: found for path, found in per_path(visits).items() if path != "/robots.txt"}
    assert set(by_path) == {path_of(url) for url in pages}
    twice = {path: found for path, found in by_path.items() if len(found) > 1 and path not in again}
    assert not twice, [
        (path, [(visit.start, visit.end, visit.peer) for visit in found]) for path, found in twice.items()
    ]
    assert fleet.operator.is_sound()


def path_of(url: str) -> str:
    return "/" + url.split("/", 3)[3]
