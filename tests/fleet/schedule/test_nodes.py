"""Nodes that keep schedules, as real processes on both ledgers: each slot once, whoever dies."""

from __future__ import annotations

import signal

from tests.support.pools import until
from tests.support.project import Project
from tests.support.schedules import (
    HOUR,
    gated,
    node,
    open_gate,
    runs,
    seen_before,
    slots,
    states_until,
    traced,
    visits,
    wait_for_begin,
)


def test_each_slot_is_run_once_however_many_nodes_there_are(either: Project) -> None:
    """S0 and S2 had one machine with a cron; here any number of nodes keeps the same schedule."""
    traced(either, tick='{every = "1h", missed = "all"}', tock='{every = "1s"}')
    since = seen_before(either, "tick", 3.5)
    nodes = [node(either) for _ in range(3)]
    states_until(either, "tick", lambda found: found == ["done"] * 3)
    states_until(either, "tock", lambda found: found.count("done") >= 2)
    for one in nodes:
        one.tell(signal.SIGTERM)
    assert [one.wait() for one in nodes] == [130] * 3
    assert [slot.at for slot, _ in slots(either, "tick").slots] == [since + n * HOUR for n in (3, 2, 1)]
    for name in ("tick", "tock"):
        made = [run.idempotency_key or "" for run in runs(either) if run.scraper == name]
        known = slots(either, name).slots
        assert sorted(set(made)) == sorted(made)
        assert {slot.idempotency_key for slot, lock in known if lock.value.get("state") == "done"} <= set(made)
        assert set(made) <= {slot.idempotency_key for slot, lock in known if lock.value.get("state") != "skipped"}
    assert sorted(visits(either, "tick")) == sorted(["k0", "k1", "k2"] * 3)
    for slot, lock in slots(either, "tick").slots:
        log = either.folder / "logs" / "tick" / slot.log_name
        assert f"Run {lock.value['run_id']} of tick begins." in log.read_text()


def test_when_a_node_is_killed_another_resumes_its_run(either: Project) -> None:
    gated(either, '{every = "2s"}')
    nodes = {one.pid: one for one in (node(either), node(either))}
    taker = _taker(either)
    wait_for_begin(either)
    states_until(either, "gated", lambda found: "skipped" in found)
    nodes.pop(taker).kill()
    next(iter(nodes.values())).wait_until_it_says("is resumed here, its node has lost it")
    first, second = (found for found in reversed(slots(either, "gated").slots[-2:]))
    assert second[1].value["why"] == f"the slot of {first[0].name} is still running"
    open_gate(either)
    states_until(either, "gated", lambda found: found[0] == "done")
    lock = slots(either, "gated").slots[-1][1]
    of_slot = [run for run in runs(either) if run.idempotency_key == first[0].idempotency_key]
    assert [run.id for run in of_slot] == [lock.value["run_id"]]
    assert either.counts(of_slot[0].id).results == 6
    assert either.is_sound()


def test_a_node_that_was_suspended_loses_its_slot(fleet: Project) -> None:
    gated(fleet, '{every = "1h"}', hours=1.5)
    nodes = {one.pid: one for one in (node(fleet), node(fleet))}
    away = nodes.pop(_taker(fleet))
    wait_for_begin(fleet)
    away.tell(signal.SIGSTOP)
    next(iter(nodes.values())).wait_until_it_says("is resumed here, its node has lost it")
    away.tell(signal.SIGCONT)
    away.wait_until_it_says("is lost")
    open_gate(fleet)
    states_until(fleet, "gated", lambda found: found == ["done"])
    (run,) = runs(fleet)
    assert fleet.counts(run.id).results == 6


def test_a_node_that_is_stopped_leaves_its_slot_to_the_next(project: Project) -> None:
    gated(project, '{every = "1h"}', hours=1.5)
    first = node(project, "--json")
    wait_for_begin(project)
    first.tell(signal.SIGTERM)
    assert first.wait() == 130
    assert '"state":"left"' in first.stdout
    second = node(project)
    second.wait_until_it_says("is resumed here, its node has lost it")
    open_gate(project)
    states_until(project, "gated", lambda found: found == ["done"])
    (run,) = runs(project)
    (slot, _), *_ = slots(project, "gated").slots
    log = (project.folder / "logs" / "gated" / slot.log_name).read_text()
    assert f"Run {run.id} of gated continues: 6 items are left" in log


def test_a_failed_slot_is_reported_and_the_next_one_runs(project: Project) -> None:
    traced(project, tick='{every = "1h", missed = "all"}')
    seen_before(project, "tick", 2.5)
    (project.folder / "tick.py").write_text("raise ValueError('broken')\n")
    node(project)
    states_until(project, "tick", lambda found: found == ["failed"] * 2)
    assert slots(project, "tick").slots[-1][1].value["exit_code"] == 2


def _taker(project: Project) -> int:
    """The process of the node that has the first slot."""
    known = until(lambda: slots(project, "gated"), lambda found: bool(found.slots), "nobody takes a slot")
    return int(known.slots[-1][1].taken_by.split("-")[-2])
