"""PgQueuer and Procrastinate with a no-op job, at the best settings we found for each.

PgQueuer: its own drain benchmark (tools/benchmark.py of its repository) plus what its tuning guide says: a direct
asyncpg connection, autovacuum settings applied, uvloop, a large batch. Durability stays `durable`, like everybody's.
Procrastinate: an async task, a worker that stops when the queue is empty, concurrent jobs on a pool of connections.
"""

from __future__ import annotations

import time
from datetime import timedelta

import asyncpg
import procrastinate
import uvloop
from pgqueuer.core.qm import QueueManager
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries
from pgqueuer.types import QueueExecutionMode

PGQUEUER_BATCH = 200
PROCRASTINATE_CONCURRENCY = 5


def pgqueuer_seconds(url: str, total: int, batch: int = PGQUEUER_BATCH) -> float:
    return float(uvloop.run(_pgqueuer(url, total, batch)))


async def _pgqueuer(url: str, total: int, batch: int) -> float:
    queries = Queries(AsyncpgDriver(await asyncpg.connect(url)))
    await queries.install()
    await queries.optimize_autovacuum()
    for start in range(0, total, 10_000):
        count = min(10_000, total - start)
        await queries.enqueue(["noop"] * count, [b"https://example.com/page"] * count, [0] * count)
    await queries.driver.execute("vacuum analyze")
    await queries.driver.execute("checkpoint")

    manager = QueueManager(queries)
    seen = 0

    async def noop(job: Job) -> None:
        nonlocal seen
        seen += 1

    manager.entrypoint("noop")(noop)

    began = time.perf_counter()
    await manager.run(batch_size=batch, mode=QueueExecutionMode.drain, dequeue_timeout=timedelta(seconds=1))
    seconds = time.perf_counter() - began
    if seen != total:
        raise RuntimeError(f"PgQueuer ran {seen} of {total} jobs")
    return seconds


def procrastinate_seconds(url: str, total: int, concurrency: int = PROCRASTINATE_CONCURRENCY) -> float:
    return float(uvloop.run(_procrastinate(url, total, concurrency)))


async def _procrastinate(url: str, total: int, concurrency: int) -> float:
    connector = procrastinate.PsycopgConnector(conninfo=url, min_size=concurrency + 2, max_size=concurrency + 2)
    app = procrastinate.App(connector=connector)
    seen = 0

    async def noop() -> None:
        nonlocal seen
        seen += 1

    task = app.task(name="noop")(noop)

    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        await task.batch_defer_async(*[{} for _ in range(total)])
        began = time.perf_counter()
        await app.run_worker_async(
            wait=False, concurrency=concurrency, listen_notify=False, install_signal_handlers=False
        )
        seconds = time.perf_counter() - began
    if seen != total:
        raise RuntimeError(f"Procrastinate ran {seen} of {total} jobs")
    return seconds
