"""Incremental exports in a loop, some of them killed with -9, while worker processes store records."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from pathlib import Path

import pytest

from shoal.model.item import NewItem
from shoal.model.run import RunSpec, StageSpec
from tests.support import LONG
from tests.support.chaos_worker import open_any
from tests.support.kills import WorkerProcess, until_finished
from tests.support.project import Project

KILLS = 100 if LONG else 3
ITEMS = 60  # of each round
EXPORT = ("export", "chaos", "--since-last", "-o", "parts/{n}.jsonl", "--meta")


@pytest.fixture(params=["sqlite", "postgres"])
def address(request: pytest.FixtureRequest, sqlite_path: Path) -> str:
    return str(sqlite_path) if request.param == "sqlite" else request.getfixturevalue("postgres_url")


async def test_exports_killed_in_a_loop(address: str, tmp_path: Path) -> None:
    """The union of the files is what the run stored, each record once; no other file is left."""
    rng = random.Random(11)
    folder = tmp_path / "parts"
    folder.mkdir()
    ledger = await open_any(address)
    await ledger.schema.migrate()
    run = await ledger.runs.create(RunSpec(scraper="chaos", stages=(StageSpec("list"), StageSpec("page"))))
    workers = await asyncio.gather(*(WorkerProcess.start(address, run, "--pause", "0.01") for _ in range(2)))
    try:
        with Project(tmp_path, address) as project:
            # The run is open until the last round, so that every round has records to come.
            for number in range(KILLS):
                await ledger.intake.enqueue(run.id, [NewItem(key=f"k{number}-{n}") for n in range(ITEMS)])
                killed = project.start(*EXPORT)
                await asyncio.sleep(rng.random() * 0.3)
                killed.kill()
                await asyncio.to_thread(project.shoal, *EXPORT)
            await ledger.runs.seal(run.id)
            await until_finished(ledger, run, 120)
            await asyncio.to_thread(project.shoal, *EXPORT)
            last = await asyncio.to_thread(project.shoal, *EXPORT)
    finally:
        for worker in workers:
            await worker.kill()
        await ledger.close()
    assert "no new records" in last.stderr
    files = sorted(folder.iterdir())
    assert [file.name for file in files] == [f"{n:06d}.jsonl" for n in range(1, len(files) + 1)]
    assert len(files) > 1
    records = [record for file in files for record in map(json.loads, file.read_text().splitlines())]
    seen = Counter((record["_stage"], record["key"]) for record in records)
    keys = [f"k{number}-{n}" for number in range(KILLS) for n in range(ITEMS)]
    assert seen == Counter((stage, key) for stage in ("list", "page") for key in keys)
