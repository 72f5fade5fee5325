"""Pools, schedules and collections from a program: requests in, events and reports out, nothing printed."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from shoal.config import Settings, load_settings
from shoal.errors import NotAllowed, NotFound, UsageError
from shoal.fleet.collection.members import MemberFilter
from shoal.model.run import RunState
from shoal.service.begin import RunChoice
from shoal.service.collection import (
    CollectionPlanned,
    CollectionRequest,
    collection_settings,
    preview_collection,
    run_collection,
)
from shoal.service.events import CheckFinished, Event, Host, RunEnded, RunProgress
from shoal.service.lookup import load_configured
from shoal.service.pool import PoolRequest, prepare_pool, preview_pool, scale_pools
from shoal.service.pool_run import run_pool
from shoal.service.run import RunRequest
from shoal.service.schedule import ScheduleRequest, SlotEnded, read_schedules, run_slot_now, schedules_of
from shoal.wiring import ledger_context

SCRAPER = """
from shoal import Item, Scraper

states = Scraper("states")

@states.stage
async def target(item: Item):
    yield {"key": item.key}

states.start([target.item(key=f"{code}-{n}", partition=code) for code in ("CA", "MT") for n in range(3)])
"""
CONFIGURATION = """
[scrapers.states]
target = "states.py"
schedule = "0 2 * * *"
"""


class Program:
    """A folder with a scraper, its settings, and the events of what runs in it."""

    def __init__(self, folder: Path) -> None:
        (folder / "states.py").write_text(SCRAPER)
        (folder / "shoal.toml").write_text(CONFIGURATION)
        self.folder = folder
        self.events: list[Event] = []
        self.host = Host(on_event=self.events.append)

    @property
    def settings(self) -> Settings:
        return load_settings({}, environ=os.environ, folder=self.folder)

    def of(self, kind: type[Event]) -> list[Event]:
        return [event for event in self.events if isinstance(event, kind)]


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Program:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SHOAL_LEDGER", raising=False)
    return Program(tmp_path)


def pool_request(**options: object) -> PoolRequest:
    return PoolRequest(target="states.py", logs=Path("logs"), stagger=(0.0, 0.0), **options)  # type: ignore[arg-type]


async def test_a_pool_is_prepared_and_run(program: Program, capfd: pytest.CaptureFixture[str]) -> None:
    scraper, settings = load_configured("states.py", program.settings)
    async with prepare_pool(scraper, settings, pool_request(workers=2), program.host) as prepared:
        assert [worker.partitions for worker in prepared.plan.workers] == [("CA",), ("MT",)]
        assert prepared.is_new
        report = await run_pool(prepared, program.host)
    assert report.run.run.state is RunState.FINISHED
    assert report.run.counts.done == sum(worker.done for worker in report.workers) == 6
    assert (report.failed_workers, report.stopped, report.partitions) == (0, False, None)
    checks = [event.check.name for event in program.events if isinstance(event, CheckFinished)]
    assert checks == ["ledger", "logs", "run", "partitions"]
    assert program.of(RunProgress)
    assert program.of(RunEnded)
    assert capfd.readouterr() == ("", "")


async def test_a_prepared_pool_may_be_discarded(program: Program) -> None:
    scraper, settings = load_configured("states.py", program.settings)
    assert (await preview_pool(scraper, settings, pool_request(workers=1), program.host)).run is None
    assert not Path(settings.ledger).exists()
    async with prepare_pool(scraper, settings, pool_request(workers=1), program.host) as prepared:
        await prepared.discard()
        assert not (await prepared.ledger.runs.list()).rows
    with pytest.raises(NotFound, match="no pool to scale"):
        await scale_pools(settings, "states", 2, by="me")


async def test_a_failed_check_is_an_event_and_an_error(program: Program) -> None:
    scraper, settings = load_configured("states.py", program.settings)
    with pytest.raises(UsageError, match="no items of NY"):
        async with prepare_pool(scraper, settings, pool_request(partitions=("NY",)), program.host):
            pass
    failed = program.events[-1]
    assert isinstance(failed, CheckFinished)
    assert (failed.check.name, failed.check.ok) == ("partitions", False)


async def test_a_pool_is_stopped_by_the_program(program: Program) -> None:
    # So many items that the stop comes before their end, however late it is.
    slow = SCRAPER.replace("    yield", "    import time; time.sleep(0.5)\n    yield").replace("range(3)", "range(300)")
    (program.folder / "states.py").write_text(slow)
    scraper, settings = load_configured("states.py", program.settings)
    async with prepare_pool(scraper, settings, pool_request(workers=1), program.host) as prepared:
        asyncio.get_running_loop().call_later(0.5, program.host.stop.request)
        report = await run_pool(prepared, program.host)
    assert report.stopped
    assert report.run.run.state is RunState.ACTIVE


async def test_a_slot_is_run(program: Program, capfd: pytest.CaptureFixture[str]) -> None:
    schedules = schedules_of(program.settings)
    request = ScheduleRequest(logs=Path("logs"))
    report = await run_slot_now(program.settings, "states", request, program.host)
    assert report.state == "done"
    assert [event.text for event in program.of(SlotEnded)] == [report.text]
    status = (await read_schedules(program.settings, schedules))["states"]
    assert (status.state, status.run_id, status.seen) == ("done", report.value["run_id"], False)
    assert status.next()[0].hour == 2
    async with ledger_context(program.settings) as ledger:
        assert await ledger.locks.acquire("schedule:states:2999-01-01T00:00:00Z", "other", 60)
    with pytest.raises(NotAllowed, match="still running"):
        await run_slot_now(program.settings, "states", request, program.host)
    with pytest.raises(NotFound, match="no schedule of 'other'"):
        await run_slot_now(program.settings, "other", request, program.host)
    assert capfd.readouterr() == ("", "")


async def test_a_collection_is_run(program: Program, capfd: pytest.CaptureFixture[str]) -> None:
    for key in ("fiji/a", "tonga/b"):
        file = program.folder / "configs" / f"{key}.py"
        file.parent.mkdir(parents=True)
        file.write_text(SCRAPER.replace("yield", "yield" if key == "fiji/a" else "raise ValueError(item.key); yield"))
    request = CollectionRequest(
        name="configs", target="configs/", folder=Path("configs"), logs=Path("logs"), all=True, run=RunRequest()
    )
    settings = collection_settings(program.settings, "configs")
    assert [member.key for member in (await preview_collection(settings, request)).members] == ["fiji/a", "tonga/b"]
    report = await run_collection(settings, request, program.host)
    assert {member.member: member.status for member in report.summary.members} == {
        "fiji/a": "success",
        "tonga/b": "failed",
    }
    (planned,) = program.of(CollectionPlanned)
    assert planned.text.startswith("2 configurations: 2 singles, no groups;")
    assert capfd.readouterr() == ("", "")

    with pytest.raises(UsageError, match="The options select no scraper of the folder"):
        await preview_collection(
            settings,
            CollectionRequest(
                name="configs",
                target="configs/",
                folder=Path("configs"),
                logs=Path("logs"),
                members=MemberFilter(where={"country": ["palau"]}),
                run=RunRequest(choice=RunChoice.FRESH),
            ),
        )
