"""Operator commands on both ledgers: what they change, what they return, what they refuse."""

from __future__ import annotations

import pytest

from shoal.errors import NotFound, UsageError
from shoal.model.run import RunState
from shoal.model.views import ItemFilter
from shoal.service import steer
from shoal.testing.harness import LedgerHarness, dead

BY = "ann@desk"


async def test_runs_are_paused_resumed_cancelled_and_removed(either_harness: LedgerHarness) -> None:
    ledger = either_harness.ledger
    run = await either_harness.run()
    await either_harness.put(run, "a", "b", "c")
    assert (await steer.pause_run(ledger, "latest", by=BY)).state is RunState.PAUSED
    resumed = await steer.resume_run(ledger, "latest:shop", by=BY)
    assert (resumed.run.state, resumed.had_ended) == (RunState.ACTIVE, False)
    changed: list[int] = []
    assert await steer.cancel_run(ledger, run.id, by=BY, on_progress=changed.append) == 3
    assert changed[-1] == 3
    assert (await steer.resume_run(ledger, run.id, by=BY)).had_ended
    removed = await steer.remove_run(ledger, run.id, by=BY)
    assert (removed.run.id, removed.counts.cancelled) == (run.id, 3)
    with pytest.raises(NotFound, match="no runs yet"):
        await steer.pause_run(ledger, "latest", by=BY)


async def test_changes_are_recorded_under_the_name_of_the_operator(either_harness: LedgerHarness) -> None:
    run = await either_harness.run()
    await steer.pause_run(either_harness.ledger, run.id, by=BY)
    newest = (await either_harness.ledger.reads.events(run_id=run.id)).rows[0]
    assert newest.actor == BY


async def test_a_retry_changes_what_its_preview_counted(either_harness: LedgerHarness) -> None:
    ledger = either_harness.ledger
    run = await either_harness.run()
    await either_harness.put(run, "a", "b", "c", "d")
    worker = await either_harness.worker()
    claimed = await either_harness.claim(worker, 3)
    await either_harness.commit(worker, dead(claimed[0]), dead(claimed[1]), dead(claimed[2], "410 Gone"))
    everything = await steer.preview_retry(ledger, "latest")
    assert (everything.run.id, everything.count, everything.exact) == (run.id, 3, True)
    assert (await steer.preview_retry(ledger, run.id, limit=2)).count == 2
    gone = ItemFilter(error="410")
    assert (await steer.preview_retry(ledger, run.id, gone)).count == 1
    assert await steer.retry_items(ledger, run.id, gone, by=BY) == 1
    assert await steer.retry_items(ledger, run.id, key=claimed[0].name, by=BY) == 1
    assert (await steer.preview_retry(ledger, run.id)).count == 1
    assert await either_harness.state(run, claimed[1].name) == "dead"


async def test_open_items_are_cancelled_by_filter(either_harness: LedgerHarness) -> None:
    ledger = either_harness.ledger
    run = await either_harness.run()
    await either_harness.put(run, "a", "b", partition="north")
    await either_harness.put(run, "c", partition="south")
    north = ItemFilter(partition="north")
    assert (await steer.preview_cancel(ledger, run.id, north)).count == 2
    assert await steer.cancel_items(ledger, run.id, north, limit=1, by=BY) == 1
    assert await steer.cancel_items(ledger, run.id, north, by=BY) == 1
    assert await either_harness.state(run, "c") == "ready"
    await either_harness.check()


async def test_an_item_named_alone_must_exist(either_harness: LedgerHarness) -> None:
    ledger = either_harness.ledger
    run = await either_harness.run()
    for which, key in ((ItemFilter(ids=(999_999,)), None), (ItemFilter(), "nosuch")):
        with pytest.raises(NotFound, match=r"999999|nosuch"):
            await steer.preview_retry(ledger, run.id, which, key=key)
    with pytest.raises(UsageError, match="one of the two"):
        await steer.preview_retry(ledger, run.id, ItemFilter(ids=(1,)), key="a")


async def test_old_leases_and_those_of_dead_workers_return(either_harness: LedgerHarness) -> None:
    run = await either_harness.run()
    await either_harness.put(run, "a", "b")
    slow = await either_harness.worker(lease_seconds=600)
    lost = await either_harness.worker(lease_seconds=30)
    await either_harness.claim(slow, 1)
    await either_harness.claim(lost, 1)
    await either_harness.advance_clock(120)
    report = await steer.release_leases(either_harness.ledger, older_than=100, run=run.id, by=BY)
    assert (report.released, report.rescued, report.dead_workers) == (1, 1, (lost,))
    await either_harness.check()


async def test_lanes_are_changed_for_all_runs_or_for_one(either_harness: LedgerHarness) -> None:
    ledger = either_harness.ledger
    lane = await steer.set_lane(ledger, "shop.example", limit=3, delay=(1.0, 2.0), by=BY)
    assert (lane.policy.limit, lane.policy.delay_min, lane.policy.delay_max) == (3, 1.0, 2.0)
    assert (await steer.set_lane(ledger, "shop.example", paused=True, by=BY)).paused
    resumed = await steer.set_lane(ledger, "shop.example", paused=False, by=BY)
    assert (resumed.paused, resumed.policy.limit) == (False, 3)
    with pytest.raises(NotFound):
        await steer.set_lane(ledger, "shop.example", run="latest:nosuch", limit=1, by=BY)


async def test_workers_of_a_run_are_drained(either_harness: LedgerHarness) -> None:
    ledger = either_harness.ledger
    run = await either_harness.run()
    await either_harness.put(run, "a")
    holder, idle = await either_harness.worker(), await either_harness.worker()
    await either_harness.claim(holder, 1)
    assert await steer.drain_workers_of_run(ledger, run.id, by=BY) == [holder]
    await steer.drain_worker(ledger, idle, by=BY)
    assert {worker.state.value for worker in await ledger.workers.list()} == {"draining"}
    with pytest.raises(NotFound, match=r"Did you mean|lists those") as refused:
        await steer.drain_worker(ledger, f"{idle}x", by=BY)
    assert f"Did you mean {idle}" in refused.value.remedy
