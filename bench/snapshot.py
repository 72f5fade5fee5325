"""Claims and commits while somebody keeps a snapshot open, so that no dead row can be vacuumed away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext

import asyncpg

from bench import consumer
from bench.claim_timing import timed_steps
from bench.figures import Lines, Report, percentile
from bench.session import Effort, Session

BATCH = 50
ITEMS: dict[Effort, int] = {"quick": 60_000, "full": 200_000}
PARTS = 10
WARM_UP = 20


def measure_snapshot(session: Session, report: Report) -> None:
    """Compare the last tenth of the items with the first, under a snapshot and without."""
    items = session.size(ITEMS)
    report.sizes["snapshot_items"] = items
    series = []
    with session.postgres.fresh() as filled:
        asyncio.run(consumer.fill(filled, consumer.urls(items)))
        session.postgres.settle(filled)
        for name, held in (("no snapshot", False), ("an open snapshot", True)):
            with session.postgres.copy(filled) as address:
                parts = asyncio.run(_course(address, items, held=held))
            for step, timings in zip(("claim", "commit"), zip(*parts, strict=True), strict=True):
                p95 = [percentile(part, 95) * 1000 for part in timings]
                report.add(f"postgres, {name}, first tenth, {step} p95", "ms", [p95[0]])
                report.add(f"postgres, {name}, last tenth, {step} p95", "ms", [p95[-1]])
                done = [(part + 1) * items / PARTS for part in range(PARTS)]
                series.append((f"{step}, {name}", tuple(zip(done, p95, strict=True))))
                if held:
                    claim = f"postgres: {step} p95 under a snapshot, last tenth / first"
                    report.target(claim, p95[-1] / p95[0], at_most=1.5)
    report.plots.append(Lines("Under an open snapshot", "items done", "p95, ms", tuple(series)))


async def _course(address: str, items: int, *, held: bool) -> list[tuple[list[float], list[float]]]:
    async with _snapshot(address) if held else nullcontext(), consumer.consumer(address, BATCH) as worker:
        await timed_steps(worker, WARM_UP)
        claims = (items // BATCH - WARM_UP) // PARTS
        return [await timed_steps(worker, claims) for _ in range(PARTS)]


@asynccontextmanager
async def _snapshot(address: str) -> AsyncIterator[None]:
    connection = await asyncpg.connect(address)
    try:
        await connection.execute("begin isolation level repeatable read")
        await connection.execute("select 1")
        yield
    finally:
        await connection.close()
