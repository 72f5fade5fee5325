"""What is told about scaling: every change, and why it holds back, but not again and again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from shoal.autoscale.machine import Machine
from shoal.autoscale.rules import Bounds, LoadLimits, ScalingDelays, ScalingInputs
from shoal.autoscale.scaler import AttemptTotals, Autoscaler, Window
from shoal.config import Settings
from shoal.ledger.protocols import Ledger
from shoal.model.run import RunSpec, StageSpec
from shoal.observe.logs import open_logs
from shoal.wiring import ledger_context

NONE = AttemptTotals()
DELAYS = ScalingDelays(between_growth=5, cooldown=30, cpu_full=5, idle=30, avoid_failed_size=300)
LOG = open_logs(format="console", level="error", file=None, stream=None).log


class Story:
    """A scaler that writes into the events of a run."""

    def __init__(self, ledger: Ledger, run_id: str, nothing: Path) -> None:
        self.ledger = ledger
        self.run_id = run_id
        self.at = 0.0
        self.now = 2
        machine = Machine(proc=nothing, cgroups=nothing)
        self.scaler = Autoscaler(Bounds(2, 10), DELAYS, LoadLimits(), what="workers", log=LOG, machine=machine)

    async def goes_on(
        self, seconds: float, *, ready: int = 0, waiting_for_lanes: int = 0, ends: AttemptTotals = NONE
    ) -> None:
        self.at += seconds
        inputs = ScalingInputs(at=self.at, backlog=ready, waiting_for_lanes=waiting_for_lanes, idle=0)
        decision = self.scaler.decide(self.now, inputs, ends)
        await self.scaler.report(self.ledger.runs, [self.run_id], "pool north", self.now, decision)
        self.now = decision.target

    async def told(self) -> list[str]:
        """Oldest first."""
        events = (await self.ledger.reads.events(run_id=self.run_id)).rows
        found = [event for event in reversed(events) if event.action == "scaled"]
        assert {event.subject for event in found} <= {"pool north"}
        return [f"{event.detail['from']} to {event.detail['to']}: {event.detail['why']}" for event in found]


@pytest.fixture
async def story(tmp_path: Path) -> AsyncIterator[Story]:
    async with ledger_context(Settings(ledger=str(tmp_path / "ledger.db")), migrate=True) as ledger:
        run = await ledger.runs.create(RunSpec(scraper="books", stages=(StageSpec(name="one"),)))
        yield Story(ledger, run.id, tmp_path / "nothing")


async def test_changes_are_reported_and_a_blocked_growth_once(story: Story) -> None:  # S2.20, S4.18
    await story.goes_on(1)
    await story.goes_on(1, ready=100)
    await story.goes_on(1, ready=90)  # it is given time
    await story.goes_on(5, ready=80)
    await story.goes_on(5, ready=70)
    for _ in range(20):
        await story.goes_on(5, ready=60)
    assert await story.told() == [
        "2 to 4: 100 items are ready and all 2 are busy",
        "4 to 8: 80 items are ready and all 4 are busy",
        "8 to 10: 70 items are ready and all 8 are busy",
        "10 to 10: 10 is the most that is allowed; 60 items are ready",
    ]


async def test_alternating_reasons_are_reported_once_a_minute(story: Story) -> None:
    for _ in range(60):
        await story.goes_on(5, waiting_for_lanes=7)
        story.now = 10
        await story.goes_on(5, ready=5)
    assert len(await story.told()) <= 11


async def test_a_lasting_reason_is_reported_again_after_ten_minutes(story: Story) -> None:
    for _ in range(130):
        await story.goes_on(5, waiting_for_lanes=7)
    assert await story.told() == ["2 to 2: 7 items wait for their lanes, where more would not help"] * 2


async def test_after_a_step_down_earlier_attempts_are_ignored(story: Story) -> None:
    story.now = 8
    await story.goes_on(1)
    await story.goes_on(1, ready=100, ends=AttemptTotals(100, 90))
    assert story.now == 4
    # All of these went well. With those of before, most would have failed.
    await story.goes_on(31, ready=100, ends=AttemptTotals(130, 90))
    assert (await story.told())[-1] == "4 to 7: 100 items are ready and all 4 are busy"


def test_the_window_holds_a_minute() -> None:
    window = Window()
    window.add(0, AttemptTotals(1_000, 500, 5))  # what was before is none of ours
    window.add(10, AttemptTotals(1_010, 503, 6))
    window.add(60, AttemptTotals(1_020, 503, 6))
    assert window.total == AttemptTotals(20, 3, 1)
    window.add(71, AttemptTotals(1_025, 504, 6))
    assert window.total == AttemptTotals(15, 1, 0)


def test_totals_that_drop_are_ignored() -> None:
    """The ledger forgets a minute now and then."""
    window = Window()
    window.add(0, AttemptTotals(100, 50, 0))
    window.add(2, AttemptTotals(110, 51, 0))
    window.add(4, AttemptTotals(40, 20, 0))
    window.add(6, AttemptTotals(45, 22, 0))
    assert window.total == AttemptTotals(15, 3, 0)
