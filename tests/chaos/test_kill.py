"""Real processes killed with -9, frozen, cut off; a real database crashed. Nothing is lost, nothing is stored twice."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from shoal.ledger.postgres.ledger import open_postgres
from shoal.ledger.protocols import Ledger
from shoal.model.run import Run
from tests.support import LONG
from tests.support.chaos_worker import open_any
from tests.support.kills import WorkerProcess, chaos_run, prove, until_finished, until_holding, until_progress
from tests.support.postgres import PostgresServer

ITEMS = 6_000 if LONG else 800
CRASHES = 10 if LONG else 2
KILLS = 30 if LONG else 3
# Slow enough for the run to outlast the recoveries.
SLOW = ("--pause", "0.02")
LEASE = "2"


@pytest.fixture(params=["sqlite", "postgres"])
def address(request: pytest.FixtureRequest, sqlite_path: Path) -> str:
    return str(sqlite_path) if request.param == "sqlite" else request.getfixturevalue("durable_postgres_url")


@asynccontextmanager
async def migrated(address: str) -> AsyncIterator[Ledger]:
    ledger = await open_any(address)
    await ledger.schema.migrate()
    try:
        yield ledger
    finally:
        await ledger.close()


@asynccontextmanager
async def workers(address: str, run: Run, count: int, *options: str) -> AsyncIterator[list[WorkerProcess]]:
    started = [await WorkerProcess.start(address, run, "--lease", LEASE, *options) for _ in range(count)]
    try:
        yield started
    finally:
        for process in started:
            await process.kill()


async def test_workers_killed_in_a_loop(address: str, record_property: Callable[[str, object], None]) -> None:
    rng = random.Random(7)
    async with migrated(address) as ledger:
        run = await chaos_run(ledger, ITEMS)
        recoveries = []
        async with workers(address, run, 3, *SLOW) as team:
            for kill in range(KILLS):
                await until_progress(ledger, run, (kill + 1) * ITEMS // (2 * KILLS + 2))
                victim = team.pop(rng.randrange(len(team)))
                held = {w.id: w for w in await ledger.workers.list() if w.pid == victim.pid}
                await victim.kill()
                killed_at = time.monotonic()
                team.append(await WorkerProcess.start(address, run, "--lease", LEASE, *SLOW))
                while any(w.id in held for w in await ledger.workers.list()):
                    assert time.monotonic() - killed_at < 30, "a dead worker was not noticed"
                    await asyncio.sleep(0.05)
                recoveries.append(time.monotonic() - killed_at)
            await until_finished(ledger, run, 240)
            reports = [await process.report() for process in team]
        await prove(ledger, run, ITEMS)
        print(f"recovery after kill -9 with a lease of {LEASE} s: max {max(recoveries):.2f} s; workers: {reports}")
        record_property("recovery_seconds_max", max(recoveries))
        # The lease, the reaper's second, and room for a slow machine.
        assert max(recoveries) < float(LEASE) + 8


async def test_all_workers_killed_at_once_and_started_again(address: str) -> None:
    async with migrated(address) as ledger:
        run = await chaos_run(ledger, ITEMS // 2)
        async with workers(address, run, 2) as team:
            await until_progress(ledger, run, ITEMS // 8)
            for process in team:
                await process.kill()
        async with workers(address, run, 2):
            await until_finished(ledger, run, 120)
        await prove(ledger, run, ITEMS // 2)


async def test_a_frozen_worker_that_wakes_up_late_stores_nothing(address: str) -> None:
    """SIGSTOP in the middle of a batch; its lease runs out; others do its work; it wakes up and commits."""
    async with migrated(address) as ledger:
        run = await chaos_run(ledger, ITEMS // 4)
        async with workers(address, run, 1, "--batch", "100", "--pause", "0.05") as (sleeper,):
            await until_holding(ledger, sleeper)
            sleeper.signal(signal.SIGSTOP)
            async with workers(address, run, 1):
                await until_finished(ledger, run, 120)
            await prove(ledger, run, ITEMS // 4)
            sleeper.signal(signal.SIGCONT)
            report = await sleeper.report()
        assert report["lost"] > 0, "it must be told that its leases were lost"
        assert report["committed"] == 0
        await prove(ledger, run, ITEMS // 4)


async def test_postgres_crashes_in_the_middle(durable_postgres: PostgresServer, durable_postgres_url: str) -> None:
    async with migrated(durable_postgres_url) as ledger:
        run = await chaos_run(ledger, ITEMS)
        async with workers(durable_postgres_url, run, 3) as team:
            outages = []
            for crash in range(CRASHES):
                await until_progress(ledger, run, (crash + 1) * ITEMS // (CRASHES + 2))
                crashed_at = time.monotonic()
                await asyncio.to_thread(durable_postgres.restart_immediate)
                done = (await ledger.reads.stats(run.id)).done
                await until_progress(ledger, run, min(done + 50, 2 * ITEMS))
                outages.append(time.monotonic() - crashed_at)
            await until_finished(ledger, run, 240)
            for process in team:
                await process.report()
        await prove(ledger, run, ITEMS)
        print(f"from pg_ctl stop -m immediate to 50 more items done: max {max(outages):.2f} s")


async def test_a_stream_of_terminated_connections(durable_postgres: PostgresServer, durable_postgres_url: str) -> None:
    database = durable_postgres_url.rsplit("/", 1)[1].split("?", maxsplit=1)[0]
    async with migrated(durable_postgres_url) as ledger:
        run = await chaos_run(ledger, ITEMS)
        cut = 0
        async with workers(durable_postgres_url, run, 3) as team:
            for _ in range(KILLS * 3):
                await asyncio.sleep(0.15)
                cut += await asyncio.to_thread(durable_postgres.terminate_backends, database)
            await until_finished(ledger, run, 240)
            for process in team:
                await process.report()
        assert cut > KILLS
        await prove(ledger, run, ITEMS)


async def test_commits_survive_a_crash_right_after_them(
    durable_postgres: PostgresServer, durable_postgres_url: str
) -> None:
    """What enqueue acknowledged is there after the server is killed the next moment."""
    async with migrated(durable_postgres_url) as ledger:
        run = await chaos_run(ledger, 100)
        await asyncio.to_thread(durable_postgres.restart_immediate)
        again = await open_postgres(durable_postgres_url)
        assert (await again.reads.stats(run.id)).remaining == 100
        await again.close()
