"""The stage of a chaos test: a run, worker processes, and the proof that nothing was lost or stored twice."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

from shoal.ledger.protocols import Ledger
from shoal.model.item import NewItem
from shoal.model.lane import LanePolicy
from shoal.model.run import Run, RunSpec, RunState, StageSpec

ROOT = Path(__file__).resolve().parents[2]


async def chaos_run(ledger: Ledger, items: int, lanes: int = 7) -> Run:
    """A sealed run of two stages; some of its items share lanes with a limit."""
    policy = LanePolicy(limit=3)
    spec = RunSpec(
        scraper="chaos", stages=(StageSpec("list", lane=policy), StageSpec("page", lane=policy)), max_rescues=50
    )
    run = await ledger.runs.create(spec)
    entries = (
        NewItem(key=f"k{n}", lane=f"lane-{n % lanes}" if n % 3 == 0 else None, partition=f"p{n % 5}")
        for n in range(items)
    )
    report = await ledger.intake.enqueue(run.id, entries)
    assert report.enqueued == items
    await ledger.runs.seal(run.id)
    return run


class WorkerProcess:
    """A real process running tests.support.chaos_worker, in a group of its own so that a kill takes all of it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    @classmethod
    async def start(cls, address: str, run: Run, *options: str) -> WorkerProcess:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.support.chaos_worker",
            address,
            run.id,
            *options,
            cwd=ROOT,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        assert process.stdout is not None
        line = await process.stdout.readline()
        assert line == b"ready\n", line
        return cls(process)

    @property
    def pid(self) -> int:
        return self.process.pid

    def signal(self, number: signal.Signals) -> None:
        os.killpg(self.pid, number)

    async def kill(self) -> None:
        if self.process.returncode is None:
            with suppress(ProcessLookupError):  # it has ended, and this loop does not know it yet
                self.signal(signal.SIGKILL)
        await self.process.wait()

    async def report(self) -> dict[str, float]:
        """What the worker printed at its end; it must have ended well."""
        out, _ = await asyncio.wait_for(self.process.communicate(), 120)
        assert self.process.returncode == 0, self.process.returncode
        answer: dict[str, float] = json.loads(out)
        return answer


async def until_finished(ledger: Ledger, run: Run, seconds: float) -> None:
    """Wait for the end of a run; say what it waits for if it does not come."""
    give_up_at = time.monotonic() + seconds
    while (await ledger.runs.get(run.id)).state is not RunState.FINISHED:
        assert time.monotonic() < give_up_at, [gate.text for gate in await ledger.reads.why_run(run.id)]
        await asyncio.sleep(0.05)


async def until_progress(ledger: Ledger, run: Run, done: int, seconds: float = 60) -> None:
    give_up_at = time.monotonic() + seconds
    while (await ledger.reads.stats(run.id)).done < done:
        assert time.monotonic() < give_up_at, [gate.text for gate in await ledger.reads.why_run(run.id)]
        await asyncio.sleep(0.02)


async def until_holding(ledger: Ledger, worker: WorkerProcess, seconds: float = 30) -> None:
    give_up_at = time.monotonic() + seconds
    while not any(seen.leased for seen in await ledger.workers.list() if seen.pid == worker.pid):
        assert time.monotonic() < give_up_at, "the worker claims nothing"
        await asyncio.sleep(0.02)


async def prove(ledger: Ledger, run: Run, items: int) -> None:
    """Laws 1 and 2: each item of both stages ended as done, each with exactly one record, and the tables agree."""
    counts = await ledger.reads.stats(run.id)
    assert (counts.done, counts.dead, counts.remaining) == (2 * items, 0, 0), counts
    seen: Counter[tuple[str, str]] = Counter()
    cursor = None
    while True:
        page = await ledger.reads.results(run.id, cursor=cursor)
        for row in page.rows:
            record = json.loads(row.record)
            seen[record["stage"], record["key"]] += 1
        cursor = page.cursor
        if cursor is None:
            break
    assert set(seen) == {(stage, f"k{n}") for stage in ("list", "page") for n in range(items)}
    assert set(seen.values()) == {1}
    assert await ledger.upkeep.audit() == []
