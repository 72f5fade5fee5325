"""Several worker processes at once on one ledger, the same total work."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import ExitStack

from bench import consumer
from bench.children import in_children, wait_for_all
from bench.figures import Lines, Report
from bench.places import Place
from bench.rounds import Contender, alternate, paired_ratio
from bench.session import Effort, Session
from shoal.model.item import ClaimedItem

ITEMS: dict[Effort, int] = {"quick": 40_000, "full": 300_000}
PROCESSES = (1, 2, 4, 8)


def run(session: Session) -> Report:
    items = session.size(ITEMS)
    report = Report(
        "processes",
        "How does throughput change with more worker processes?",
        {"items": items, "batch": consumer.BATCH, "processes": PROCESSES},
    )
    with ExitStack() as stack:
        contenders: dict[str, Contender] = {}
        for place in session.places:
            filled = stack.enter_context(place.fresh())
            asyncio.run(consumer.fill(filled, consumer.urls(items)))
            place.settle(filled)
            for count in PROCESSES:
                contenders[f"shoal on {place.name}, {count}"] = _contender(place, filled, items, count)
        rates = alternate(contenders, session.rounds)
    for name, samples in rates.items():
        report.add(name, "items/s", samples)
    series = []
    for place in session.places:
        medians = {
            c: next(f.value for f in report.figures if f.name == f"shoal on {place.name}, {c}") for c in PROCESSES
        }
        series.append((place.name, tuple((float(count), value) for count, value in medians.items())))
        most = paired_ratio(rates[f"shoal on {place.name}, {PROCESSES[-1]}"], rates[f"shoal on {place.name}, 1"])
        report.target(f"{place.name}: {PROCESSES[-1]} processes / 1 process", most, at_least=0.7)
    report.plots.append(Lines("Worker processes on one ledger", "processes", "items/s", tuple(series)))
    return report


def _contender(place: Place, filled: str, items: int, count: int) -> Contender:
    def measure() -> float:
        with place.copy(filled) as address:
            parts = in_children(count, consume_until_empty, address)
        done = sum(part[2] for part in parts)
        if done != items:
            raise RuntimeError(f"{count} processes did {done} of {items} items")
        return items / (max(part[1] for part in parts) - min(part[0] for part in parts))

    return measure


def consume_until_empty(address: str) -> tuple[float, float, int]:
    """Start with the others, end when nothing is left: (start, end, items). Runs in a process of its own."""
    return asyncio.run(_consume_until_empty(address))


async def _consume_until_empty(address: str) -> tuple[float, float, int]:
    async with consumer.consumer(address) as worker:
        await asyncio.to_thread(wait_for_all)
        began = time.monotonic()
        commits: set[asyncio.Task[None]] = set()
        while batch := await worker.claim():
            if len(commits) >= 2:
                await asyncio.wait(commits, return_when=asyncio.FIRST_COMPLETED)
            commits.add(_commit_beside(worker, batch, commits))
        await asyncio.gather(*commits)
        return began, time.monotonic(), worker.done


def _commit_beside(
    worker: consumer.Consumer, batch: Sequence[ClaimedItem], commits: set[asyncio.Task[None]]
) -> asyncio.Task[None]:
    task = asyncio.create_task(worker.commit(batch))
    task.add_done_callback(commits.discard)
    return task
