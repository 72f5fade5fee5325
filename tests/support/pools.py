"""What the tests of pools share: a scraper whose items wait for a file, and a look at who is there."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from typing import TypeVar

from shoal.config import Settings
from shoal.model.worker import WorkerView
from shoal.wiring import ledger_context
from tests.support.project import Command, Project

T = TypeVar("T")
PATIENCE = 60.0
# Long enough that no test lives to see a lease end: what is freed was freed by the pool.
ARGUMENTS = ("--yes", "--stagger", "0", "--set", "lease=300", "--set", "concurrency=4", "--set", "batch_size=4")
GATED = """
    from pathlib import Path

    gated = Scraper("gated")

    @gated.stage
    async def one(item: Item):
        Path(f"began-{item.key}").touch()
        while not Path("go").exists():
            await asyncio.sleep(0.02)
        yield {"key": item.key}

    gated.start(one.item(key=f"{part}-{n}", partition=part) for part in ("a", "b", "c") for n in range(10))
"""
KEYS = sorted(f"{part}-{n}" for part in ("a", "b", "c") for n in range(10))


def gated_pool(project: Project, *more: str, code: str = GATED) -> Command:
    """A pool whose items run until the gate is opened. It has begun when this returns."""
    project.write(code, "gated.py")
    pool = project.start("pool", "gated.py", *ARGUMENTS, *more)
    pool.wait_until_it_says("done 0/30")
    return pool


def open_gate(project: Project) -> None:
    (project.folder / "go").touch()


def until(look: Callable[[], T], is_there: Callable[[T], bool], what: str) -> T:
    """Look until it is there."""
    deadline = time.monotonic() + PATIENCE
    while not is_there(found := look()):
        assert time.monotonic() < deadline, f"{what}: {found}"
        time.sleep(0.05)
    return found


def busy(project: Project, number: int) -> list[WorkerView]:
    """The workers, once there are just so many and each has something to do; by their process."""
    return until(
        lambda: workers(project),
        lambda found: len(found) == number and all(worker.leased for worker in found),
        f"not {number} busy workers",
    )


def workers(project: Project) -> list[WorkerView]:
    async def ask() -> list[WorkerView]:
        async with ledger_context(Settings(ledger=project.ledger), migrate=False) as ledger:
            return sorted(await ledger.workers.list(), key=lambda worker: worker.pid)

    return asyncio.run(ask())


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def all_done_once(project: Project) -> bool:
    done = {
        key: [attempt.outcome for attempt in attempts].count("done") for key, attempts in project.attempts().items()
    }
    return sorted(done) == KEYS and set(done.values()) == {1} and project.counts().results == 30 and project.is_sound()
