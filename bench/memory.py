"""The memory of one worker process while items pass through it."""

from __future__ import annotations

import asyncio

import psutil

from bench import consumer
from bench.children import in_child
from bench.figures import Lines, Report
from bench.loops import pipelined
from bench.session import Effort, Session

ITEMS: dict[Effort, int] = {"quick": 200_000, "full": 1_000_000}
SAMPLES = 20


def run(session: Session) -> Report:
    items = session.size(ITEMS)
    report = Report("memory", "Does a worker's memory stay flat?", {"items": items, "batch": consumer.BATCH})
    series = []
    for place in session.places:
        with place.fresh() as address:
            asyncio.run(consumer.fill(address, consumer.urls(items)))
            place.settle(address)
            course = in_child(memory_course, address, items)
        megabytes = [size for _, size in course]
        # By then every code path has run once; what comes later would be a leak.
        settled = megabytes[len(megabytes) // 5]
        report.add(f"{place.name}: largest", "MB", [max(megabytes)])
        report.add(f"{place.name}: after a fifth of the items", "MB", [settled])
        report.add(f"{place.name}: at the end", "MB", [megabytes[-1]])
        report.target(f"{place.name}: largest, MB", max(megabytes), at_most=200)
        report.target(f"{place.name}: end / after a fifth", megabytes[-1] / settled, at_most=1.1)
        series.append((place.name, tuple((float(done), size) for done, size in course)))
    report.plots.append(Lines("Memory of one worker", "items done", "MB", tuple(series)))
    return report


def memory_course(address: str, items: int) -> list[tuple[int, float]]:
    """(items done, MB) on the way. Runs in a process of its own."""
    return asyncio.run(_memory_course(address, items))


async def _memory_course(address: str, items: int) -> list[tuple[int, float]]:
    process = psutil.Process()
    course: list[tuple[int, float]] = []
    async with consumer.consumer(address) as worker:
        ended = asyncio.create_task(pipelined(worker.claim, worker.commit, items))
        while not ended.done():
            if worker.done >= len(course) * items // SAMPLES:
                course.append((worker.done, process.memory_info().rss / 2**20))
            await asyncio.wait([ended], timeout=0.02)
        await ended
        course.append((worker.done, process.memory_info().rss / 2**20))
    return course
