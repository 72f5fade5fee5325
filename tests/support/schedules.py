"""What the tests of schedules share: scrapers that leave a trace, nodes, and a look at slots and runs."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from shoal.config import Settings
from shoal.fleet.schedule.slots import KnownSlots, read_slots
from shoal.ledger.protocols import Ledger
from shoal.model.run import Run
from shoal.wiring import ledger_context
from tests.support.pools import until
from tests.support.project import Command, Project

T = TypeVar("T")
HOUR = dt.timedelta(hours=1)
HOURLY = "every 3600s"
# Short, so that tests live to see what happens to slots whose node is gone.
QUICK = ("--set", "lease=2", "--set", "drain=1")
# Each visit leaves a line: what a site would have in its log.
TRACED = """
    from pathlib import Path

    NAME = Scraper("NAME")

    @NAME.stage
    async def one(item: Item):
        with Path("visits-NAME").open("a") as file:
            file.write(f"{item.key}\\n")
        yield {"key": item.key}

    NAME.start(one.item(key=f"k{n}") for n in range(3))
"""
GATED = """
    from pathlib import Path

    gated = Scraper("gated")

    @gated.stage
    async def one(item: Item):
        Path(f"began-{item.key}").touch()
        while not Path("go").exists():
            await asyncio.sleep(0.02)
        yield {"key": item.key}

    gated.start(one.item(key=f"k{n}") for n in range(6))
"""


def traced(project: Project, **schedules: str) -> None:
    """Scrapers of these names, each with its schedule."""
    for name in schedules:
        project.write(TRACED.replace("NAME", name), f"{name}.py")
    write_schedules(project, **schedules)


def gated(project: Project, schedule: str, *, hours: float = 0) -> None:
    """A scraper whose items end when the gate is opened; an hourly schedule may have been seen hours ago."""
    project.write(GATED, "gated.py")
    write_schedules(project, gated=schedule)
    if hours:
        seen_before(project, "gated", hours)


def wait_for_begin(project: Project) -> None:
    until((project.folder / "began-k0").exists, bool, "the run does not begin")


def write_schedules(project: Project, **schedules: str) -> None:
    tables = (f'[scrapers.{name}]\ntarget = "{name}.py"\nschedule = {text}\n' for name, text in schedules.items())
    (project.folder / "shoal.toml").write_text("".join(tables))


def node(project: Project, *more: str) -> Command:
    """A node that keeps the schedules. It has begun when this returns."""
    command = project.start("schedule", "start", *QUICK, *more)
    command.wait_until_it_says("Running")
    return command


def visits(project: Project, name: str) -> list[str]:
    file = project.folder / f"visits-{name}"
    return file.read_text().split() if file.exists() else []


def asked(project: Project, work: Callable[[Ledger], Coroutine[Any, Any, T]]) -> T:
    async def ask() -> T:
        async with ledger_context(Settings(ledger=project.ledger)) as ledger:
            return await work(ledger)

    return asyncio.run(ask())


def slots(project: Project, name: str) -> KnownSlots:
    return asked(project, lambda ledger: read_slots(ledger.locks, name))


def states(project: Project, name: str) -> list[str]:
    """What became of the slots, the oldest first; those that have not ended are `going`."""
    return [
        "going" if lock.finished_at is None else str(lock.value["state"])
        for _, lock in reversed(slots(project, name).slots)
    ]


def states_until(project: Project, name: str, is_there: Callable[[list[str]], bool]) -> list[str]:
    return until(lambda: states(project, name), is_there, f"the slots of {name}")


def runs(project: Project) -> list[Run]:
    """The oldest first."""

    async def look(ledger: Ledger) -> list[Run]:
        return list(reversed((await ledger.runs.list(limit=100)).rows))

    return asked(project, look)


def seen_before(project: Project, name: str, hours: float, rule: str = HOURLY) -> dt.datetime:
    """Say in the ledger that a schedule was first seen so many hours ago. Returns when that was.

    An hourly one has as many slots waiting, whole hours apart.
    """

    async def put(ledger: Ledger) -> dt.datetime:
        since = ((await ledger.health.check()).clock - hours * HOUR).replace(microsecond=0)
        await ledger.settings.put(f"schedule:{name}", {"rule": rule, "since": since.isoformat()})
        return since

    return asked(project, put)


def open_gate(project: Project) -> None:
    (project.folder / "go").touch()
