"""Snapshots and progress of a real run without a terminal; with one: tests/cli/test_cli_look.py."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from shoal.config import Settings
from shoal.errors import LedgerUnreachable, NotFound
from shoal.ledger.protocols import Ledger
from shoal.model.views import ItemFilter, WaitReason
from shoal.observe.failures import read_failures
from shoal.observe.meter import Meter, Reading, recent_rate
from shoal.observe.progress import LineDisplay, follow_run, open_display
from shoal.observe.snapshot import take_snapshot
from shoal.testing.harness import dead, done
from shoal.wiring import ledger_context
from tests.support.live_run import WORKER, Scene, claim, prepare
from tests.support.snapshots import moment


@pytest.fixture
async def ledger(sqlite_path: Path) -> AsyncIterator[Ledger]:
    async with ledger_context(Settings(ledger=str(sqlite_path))) as ledger:
        yield ledger


@pytest.fixture
async def scene(ledger: Ledger) -> Scene:
    return await prepare(ledger)


class Noted:
    """A show that remembers, and says when something was shown."""

    def __init__(self) -> None:
        self.readings: list[Reading] = []
        self.told: list[str] = []
        self.news = asyncio.Event()

    def update(self, reading: Reading) -> None:
        self.readings.append(reading)
        self.news.set()

    def print_line(self, text: str) -> None:
        self.told.append(text)
        self.news.set()

    async def next(self) -> None:
        self.news.clear()
        await asyncio.wait_for(self.news.wait(), 10)


async def test_snapshot_of_a_ledger(ledger: Ledger, scene: Scene) -> None:
    seen = await take_snapshot(ledger, scene.active)
    assert seen.counts == await ledger.reads.stats(scene.active)
    assert {stage: counts.total for stage, counts in seen.stages.items()} == {"listing": 5, "product": 6}
    assert [gate.code for gate in seen.gates] == [gate.code for gate in await ledger.reads.why_run(scene.active)]
    reading = Meter().read(seen, 0.0)
    assert reading.waiting_for == "host limit 44%"
    assert reading.bottleneck.text == "The lane shop.example is full: 2 of 2 places are taken."


async def test_recent_rate_needs_one_read_only(ledger: Ledger, scene: Scene) -> None:
    ended = await take_snapshot(ledger, scene.finished)
    assert ended.run.finished_at is not None
    assert await recent_rate(ledger, ended) is None  # over within a moment: no rate worth the name
    active = await take_snapshot(ledger, scene.active)
    rate = await recent_rate(ledger, active)
    assert rate is None or rate > 0


async def test_failures_are_grouped_and_bounded(ledger: Ledger, scene: Scene) -> None:
    found = await read_failures(ledger, scene.finished)
    assert [(group.outcome, group.message, group.items) for group in found.groups] == [
        ("permanent", "404 Not Found at URL", 2)
    ]
    assert (found.items_read, found.complete) == (2, True)
    (ids,) = (group.failure_ids for group in found.groups)
    assert sum([(await ledger.failures.get(scene.finished, id)).items for id in ids]) == 2
    # Groups are counted by the ledger; only items that are in none yet are read, up to a limit.
    await ledger.steering.retry(scene.finished, ItemFilter())
    again = await claim(ledger, scene.finished, 9)
    await ledger.commits.commit(WORKER, [dead(item, "410 Gone") for item in again])
    few = await read_failures(ledger, scene.finished, limit=1)
    assert (few.items_read, few.complete) == (1, False)
    ungrouped = await read_failures(ledger, scene.finished)
    assert [(group.message, group.items, group.failure_ids) for group in ungrouped.groups] == [("410 Gone", 2, ())]


async def test_follow_run_to_its_end(ledger: Ledger, scene: Scene) -> None:
    show = Noted()
    following = asyncio.create_task(follow_run(ledger, scene.paused, show, every=0.01))
    await show.next()
    assert show.readings[-1].waiting_for == "the run is paused"
    await ledger.runs.resume(scene.paused)
    await ledger.runs.seal(scene.paused)
    await ledger.commits.commit(WORKER, [done(item) for item in await claim(ledger, scene.paused, 9)])
    await ledger.upkeep.run_once()
    last = await asyncio.wait_for(following, 10)
    assert (last.ended, last.counts.done) == (True, 3)
    assert show.readings[-1].snapshot == last
    assert show.readings[-1].waiting_for == "nothing"


async def test_an_outage_is_reported_once_and_retried(
    ledger: Ledger, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, asked = ledger.reads.why_run, 0

    async def broken(run_id: str, *, workers: object = None) -> list[WaitReason]:
        nonlocal asked
        asked += 1
        if asked <= 3:
            raise LedgerUnreachable("postgresql://me:s3cret@h/db does not answer.")
        return await real(run_id)

    monkeypatch.setattr(ledger.reads, "why_run", broken)
    show = Noted()
    following = asyncio.create_task(follow_run(ledger, scene.active, show, every=0.01))
    while not show.readings:
        await show.next()
    following.cancel()
    assert show.told == [
        "postgresql://me:***@h/db does not answer. Retrying until the ledger answers.",
        "The ledger answers again.",
    ]


async def test_a_run_that_is_removed_cannot_be_followed(ledger: Ledger, scene: Scene) -> None:
    show = Noted()
    following = asyncio.create_task(follow_run(ledger, scene.paused, show, every=0.01))
    await show.next()
    await ledger.runs.remove(scene.paused)
    with pytest.raises(NotFound):
        await asyncio.wait_for(following, 10)


def test_lines_are_printed_periodically_and_at_the_end() -> None:
    said: list[str] = []
    lines, meter = LineDisplay(said.append, every=3600), Meter()
    for second in range(3):
        lines.update(meter.read(moment(ready=3 - second, done=second), float(second)))
    assert [line.split()[1] for line in said] == ["0/3"]
    last = meter.read(moment(state="finished", done=3), 9.0)  # type: ignore[arg-type]
    lines.update(last)
    lines.update(last)
    assert [line.split()[1] for line in said] == ["0/3", "3/3"]


def test_lines_without_a_terminal_and_nothing_with_quiet() -> None:
    said: list[str] = []
    for quiet in (False, True):
        with open_display(said.append, quiet=quiet, title="shop") as show:
            show.print_line("hello")
            show.update(Meter().read(moment(ready=1), 0.0))
    assert [line.split()[0] for line in said] == ["hello", "done"]
