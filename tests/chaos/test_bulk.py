"""Moves of many items that are cut short: whoever gave the order is killed, and any worker's upkeep goes on with it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from shoal.ledger.protocols import Ledger
from shoal.model.item import NewItem
from shoal.model.lane import LanePolicy
from shoal.model.run import Run, RunSpec, RunState, StageSpec
from shoal.model.worker import Scope, WorkerSpec
from tests.support import LONG
from tests.support.chaos_worker import open_any
from tests.support.kills import ROOT

ITEMS = 200_000 if LONG else 20_000
# When the signal comes too late on a busy machine, and the move is over, it is repeated with more items.
SIZES = (ITEMS, 3 * ITEMS, 9 * ITEMS)
LANES = 500
# Long enough for a step of the slowest kind on a busy machine; a whole move takes many times that.
MOST_SECONDS = 120.0


@pytest.fixture(params=["sqlite", "postgres"])
def address(request: pytest.FixtureRequest, sqlite_path: Path) -> str:
    return str(sqlite_path) if request.param == "sqlite" else str(request.getfixturevalue("postgres_url"))


async def filled(ledger: Ledger, items: int) -> Run:
    run = await ledger.runs.create(RunSpec(scraper="many", stages=(StageSpec("page", lane=LanePolicy(limit=2)),)))
    entries = (NewItem(key=f"k{n}", lane=f"host{n % LANES}" if n % 2 else None) for n in range(items))
    assert (await ledger.intake.enqueue(run.id, entries)).enqueued == items
    return run


async def order(address: str, *arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "shoal.cli.main",
        *arguments,
        cwd=ROOT,
        env={**os.environ, "SHOAL_LEDGER": address},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )


async def test_a_cancel_is_killed_and_any_worker_goes_on_with_it(address: str) -> None:
    ledger = await open_any(address)
    try:
        await ledger.schema.migrate()
        other = await filled(ledger, 200)
        for items in SIZES:
            run = await filled(ledger, items)
            process = await order(address, "runs", "cancel", run.id, "--yes")
            give_up_at = time.monotonic() + MOST_SECONDS
            while not (cancelled := (await ledger.reads.stats(run.id)).cancelled):
                assert time.monotonic() < give_up_at
                await asyncio.sleep(0.01)
            process.send_signal(signal.SIGKILL)
            await process.wait()
            counts = await ledger.reads.stats(run.id)
            if counts.cancelled < items:
                break
        assert 0 < cancelled <= counts.cancelled < items, "it was killed in the middle"
        assert (await ledger.runs.get(run.id)).state is RunState.CANCELLED

        # Another run's worker, which knows nothing of it, tends as workers do; its own items stay where they are.
        await ledger.workers.register(WorkerSpec(id="w", node="n", pid=1, lease_seconds=3600))
        held = await ledger.claims.claim("w", Scope(run_ids=(other.id,)), 10)
        longest = 0.0
        while (counts := await ledger.reads.stats(run.id)).remaining:
            assert time.monotonic() < give_up_at, counts
            began = time.monotonic()
            await ledger.upkeep.run_once()
            longest = max(longest, time.monotonic() - began)
        assert counts.cancelled == items
        assert longest < 10, "a round of upkeep is bounded, however much is left"
        assert (await ledger.reads.stats(other.id)).leased == len(held) == 10
        assert await ledger.upkeep.audit() == []
    finally:
        await ledger.close()


async def test_a_removal_is_killed_and_the_next_one_finds_nothing(address: str) -> None:
    """The same order again would say that there is no such run: only upkeep can go on, and it does."""
    ledger = await open_any(address)
    try:
        await ledger.schema.migrate()
        other = await filled(ledger, 10)
        rows = "select count(*) from " + ("item" if "://" not in address else "shoal.item")
        for items in SIZES:
            run = await filled(ledger, items)
            process = await order(address, "runs", "rm", run.id, "--yes")
            give_up_at = time.monotonic() + MOST_SECONDS
            while [found.id for found in (await ledger.runs.list()).rows] != [other.id]:
                assert time.monotonic() < give_up_at
                await asyncio.sleep(0.01)
            process.send_signal(signal.SIGKILL)
            await process.wait()
            if await ledger.db.value(rows) > 10:  # type: ignore[attr-defined]
                break
        assert await ledger.db.value(rows) > 10, "it was killed in the middle"  # type: ignore[attr-defined]
        while await ledger.db.value(rows) > 10:  # type: ignore[attr-defined]
            assert time.monotonic() < give_up_at
            await ledger.upkeep.run_once()
        assert await ledger.upkeep.audit() == []
    finally:
        await ledger.close()
