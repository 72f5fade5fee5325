"""Overlaps, missed slots, schedules that change, slots by hand, and what only stores a run for workers."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import pytest

from shoal.errors import LedgerUnreachable
from shoal.fleet.schedule.slot_runner import renew_until_lost
from tests.support.pools import until
from tests.support.project import Project
from tests.support.schedules import (
    HOUR,
    QUICK,
    gated,
    node,
    open_gate,
    runs,
    seen_before,
    slots,
    states,
    states_until,
    traced,
    visits,
    wait_for_begin,
    write_schedules,
)


def test_a_run_that_is_going_is_not_disturbed(either: Project) -> None:
    """Somebody else's run: the slot is skipped and says which run it was."""
    gated(either, '{every = "1h"}', hours=1.5)
    going = either.start("run", "gated", *QUICK)
    wait_for_begin(either)
    node(either)
    states_until(either, "gated", lambda found: found == ["skipped"])
    (run,) = runs(either)
    assert run.state == "active"
    assert slots(either, "gated").slots[-1][1].value["why"] == f"run {run.id} is still running"
    open_gate(either)
    assert going.wait() == 0


def test_a_slot_may_wait_for_a_run_that_is_going(project: Project) -> None:
    gated(project, '{every = "1h", overlap = "wait"}')
    since = seen_before(project, "gated", 2.5)
    going = project.start("run", "gated", *QUICK)
    wait_for_begin(project)
    node(project)
    until((project.folder / "logs" / "gated").exists, bool, "no slot begins")
    assert states(project, "gated") == ["going"]
    open_gate(project)
    assert going.wait() == 0
    states_until(project, "gated", lambda found: found == ["done"])
    assert [run.idempotency_key for run in runs(project)] == [
        None,
        f"schedule gated {since + 2 * HOUR:%Y-%m-%dT%H:%M:%SZ}",
    ]


def test_missed_slots_run_as_the_policy_says(either: Project) -> None:
    traced(
        either,
        last='{every = "1h"}',
        each='{every = "1h", missed = "all"}',
        none='{every = "1h", missed = "skip"}',
        fresh='{every = "1h", missed = "all"}',
    )
    since = {name: seen_before(either, name, 3.5) for name in ("last", "each", "none")}
    seen_before(either, "fresh", 3.5, rule="every 7200s")  # it was another schedule then
    keeper = node(either)
    states_until(either, "last", lambda found: found == ["done"])
    states_until(either, "each", lambda found: found == ["done"] * 3)
    assert slots(either, "last").last_taken == since["last"] + 3 * HOUR
    assert [slot.at for slot, _ in slots(either, "each").slots] == [since["each"] + n * HOUR for n in (3, 2, 1)]
    ends = [lock.finished_at for _, lock in slots(either, "each").slots if lock.finished_at is not None]
    assert ends == sorted(ends, reverse=True)  # one after another, the oldest first
    assert (len(visits(either, "last")), len(visits(either, "each"))) == (3, 9)
    assert states(either, "none") == states(either, "fresh") == []
    assert "last: slots before" in keeper.stderr


def test_a_node_runs_at_most_at_once_slots(project: Project) -> None:
    traced(project, tick='{every = "1h"}')
    gated(project, '{every = "1h"}', hours=1.5)
    write_schedules(project, gated='{every = "1h"}', tick='{every = "1h"}')
    seen_before(project, "tick", 1.5)
    keeper = node(project, "--at-once", "1")
    wait_for_begin(project)
    open_gate(project)
    states_until(project, "tick", lambda found: found == ["done"])
    said = keeper.stderr
    assert 0 < said.index("gated: the slot of") < said.index("is done") < said.index("tick: the slot of")


def test_sighup_reloads_the_schedules(project: Project) -> None:
    traced(project, stays='{every = "1s"}', goes='{every = "1s"}')
    keeper = node(project)
    states_until(project, "goes", lambda found: "done" in found)
    (project.folder / "shoal.toml").write_text("not toml")
    keeper.tell(signal.SIGHUP)
    keeper.wait_until_it_says("Nothing was changed: shoal.toml is not valid TOML")
    write_schedules(project, stays='{every = "1s"}')
    keeper.tell(signal.SIGHUP)
    keeper.wait_until_it_says("Running 1 schedule from now on.")
    states_until(project, "goes", lambda found: "going" not in found)
    before, others = len(states(project, "goes")), len(states(project, "stays"))
    states_until(project, "stays", lambda found: len(found) > others + 1)
    assert len(states(project, "goes")) == before


def test_schedule_now_runs_a_slot(project: Project) -> None:
    gated(project, '"0 2 * * *"')
    first = project.start("schedule", "now", "gated", *QUICK, "--json")
    wait_for_begin(project)
    assert "is still running" in project.shoal("schedule", "now", "gated", code=4).stderr
    assert '"state":"going"' in project.shoal("schedule", "ls", "--json").stdout
    open_gate(project)
    assert first.wait() == 0
    (run,) = runs(project)
    assert f'"run_id":"{run.id}"' in first.stdout
    shown = project.shoal("schedule", "ls").stdout
    assert "done" in shown
    assert run.id in shown
    assert slots(project, "gated").last_taken is None


def test_an_interrupted_manual_slot_is_not_resumed(project: Project) -> None:
    gated(project, '"0 2 * * *"')
    first = project.start("schedule", "now", "gated", *QUICK)
    wait_for_begin(project)
    first.tell(signal.SIGINT)
    assert first.wait() == 130
    assert states(project, "gated") == ["interrupted"]
    assert [run.state for run in runs(project)] == ["active"]  # `shoal run --resume` goes on with it


def test_action_enqueue_stores_runs_for_workers(fleet: Project) -> None:
    traced(fleet, tick='{every = "1h", action = "enqueue"}')
    seen_before(fleet, "tick", 1.5)
    node(fleet)
    states_until(fleet, "tick", lambda found: found == ["done"])
    (run,) = runs(fleet)
    assert (run.state, fleet.counts(run.id).pending, visits(fleet, "tick")) == ("active", 3, [])
    # Nobody has come yet, but the run waits for somebody.
    assert f"skipped: run {run.id} is still running" in fleet.shoal("schedule", "now", "tick", code=4).stderr
    fleet.shoal("worker", "tick.py")
    assert len(visits(fleet, "tick")) == 3


def test_a_run_is_made_once_for_an_idempotency_key(project: Project) -> None:
    traced(project, tick='"0 2 * * *"')
    project.shoal("run", "tick", "--limit", "1", "--set", "concurrency=1")
    (left,) = runs(project)
    # What only is stored for workers may wait for them: nobody has abandoned it.
    assert (
        f"Run {left.id} of tick is still active"
        in project.shoal("enqueue", "tick", "--idempotency-key", "a", code=4).stderr
    )
    said = project.shoal("run", "tick", "--idempotency-key", "tonight").stderr
    assert f"Run {left.id} of tick is unfinished and was paused" in said
    assert [(run.idempotency_key, run.state) for run in runs(project)] == [(None, "paused"), ("tonight", "finished")]
    assert "is finished" in project.shoal("run", "tick", "--idempotency-key", "tonight").stderr
    assert len(runs(project)) == 2
    assert "--idempotency-key" in project.shoal("run", "tick", "--idempotency-key", "a", "--fresh", code=2).stderr
    traced(project, tick='"0 2 * * *"', tock='"0 2 * * *"')
    assert "belongs to tick" in project.shoal("run", "tock", "--idempotency-key", "tonight", code=2).stderr


def test_an_interrupted_run_of_an_idempotency_key_is_resumed(project: Project) -> None:
    traced(project, tick='"0 2 * * *"')
    said = project.shoal(
        "run", "tick", "--idempotency-key", "to night", "--limit", "1", "--set", "concurrency=1"
    ).stderr
    assert "Continue with: " in said
    assert "run tick --idempotency-key 'to night'" in said
    project.shoal("run", "tick", "--idempotency-key", "to night")
    (run,) = runs(project)
    assert (run.state, sorted(visits(project, "tick"))) == ("finished", ["k0", "k1", "k2"])


class Silent:
    """A ledger that stops answering after a while."""

    def __init__(self, answers: int, then: str) -> None:
        self._answers = answers
        self._then = then
        self.calls = 0

    async def renew(self, name: str, by: str, seconds: float) -> bool:
        self.calls += 1
        if self.calls <= self._answers:
            return True
        if self._then == "refuses":
            raise LedgerUnreachable("Nobody is there.")
        if self._then == "hangs":
            await asyncio.sleep(60)
        return False


@pytest.mark.parametrize(("then", "least"), [("refuses", 0.6), ("hangs", 0.6), ("says no", 0.3)])
async def test_a_lock_is_lost_when_taken_or_without_an_answer(then: str, least: float) -> None:
    locks: Any = Silent(2, then)
    began = asyncio.get_running_loop().time()
    await renew_until_lost(locks, "slot", "me", 0.6)
    assert least <= asyncio.get_running_loop().time() - began < 30, "a call that hangs takes 60 s"
    if then == "says no":
        assert locks.calls == 3, "it asked again after it was told"
