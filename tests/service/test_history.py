"""A run over time and how it goes on, on both ledgers."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from shoal.config import load_settings
from shoal.errors import InvalidSetting
from shoal.model.item import NewItem
from shoal.model.lane import LanePolicy
from shoal.model.worker import Scope
from shoal.service import records
from shoal.service.history import explain_progress, read_history
from shoal.service.pool import scale_pools_on
from shoal.service.status import read_run_status
from shoal.testing.harness import LedgerHarness, done

MINUTE = 60


async def sample(harness: LedgerHarness, minutes: int = 1) -> None:
    await harness.advance_clock(minutes * MINUTE)
    await harness.ledger.upkeep.sample()


async def test_the_history_has_points_and_what_changed_the_pace(either_harness: LedgerHarness) -> None:
    ledger, run = either_harness.ledger, await either_harness.run()
    worker, other = await either_harness.worker(), await either_harness.run()
    await either_harness.put(run, "a", "b", lane="shop.example")
    [claimed] = await either_harness.claim(worker, limit=1)
    await either_harness.commit(worker, msgspec.structs.replace(done(claimed, '{"x": 1}'), waited=0.2))
    await ledger.lanes.set("shop.example", limit=3, delay=(0.5, 1.0), by="ann@desk")
    await ledger.runs.pause(run.id, by="ann@desk")
    await ledger.runs.pause(other.id, by="bob@desk")
    detail = {"from": 2, "to": 4, "most": 8, "what": "workers", "why": "items wait"}
    await ledger.runs.record_event(run.id, "scaled", "pool north", detail, by="pool north")
    await ledger.runs.record_event(run.id, "scaled", "pool north", {**detail, "to": 2}, by="pool north")
    await sample(either_harness)
    history = await read_history(ledger, run.id, 60)
    assert (history.step_seconds, len(history.points)) == (60, 60)
    texts = [mark.text for mark in history.marks]
    assert texts == [
        "run created",
        "lane shop.example: limit 3, delay 0.5 to 1 s",
        "paused",
        "pool north: 2 to 4 workers (items wait)",
    ]
    assert {mark.actor for mark in history.marks[1:3]} == {"ann@desk"}
    record = msgspec.json.decode(msgspec.json.encode(records.history_record(history)))
    last = record["points"][-1]
    assert (last["done"], last["ready"]) == (1, 1)
    assert last["waiting_for"] == {"the run is paused": 1}
    assert record["points"][0]["ready"] is record["points"][0]["waiting_for"] is None
    ended = [point for point in record["points"] if point["ended"]["done"]]
    assert [(point["records"], point["wait"]["count"], point["work"]["count"]) for point in ended] == [(1, 1, 1)]
    assert 0.16 <= ended[0]["wait"]["p50"] <= 0.25


async def test_changes_alike_in_one_step_are_one_mark(either_harness: LedgerHarness) -> None:
    ledger, run = either_harness.ledger, await either_harness.run()
    for host in "abc":
        await ledger.lanes.set(f"{host}.example", limit=2, by="ann@desk")
    marks = (await read_history(ledger, run.id, 10_080)).marks
    assert [mark.text for mark in marks if mark.action == "lane.set"] == ["lane c.example: limit 2, and 2 more changes"]


async def test_a_change_of_the_number_of_workers_is_a_mark(either_harness: LedgerHarness) -> None:
    ledger, run = either_harness.ledger, await either_harness.run()
    await either_harness.worker(scope=Scope(scraper="shop"))
    await scale_pools_on(ledger, "shop", 8, by="ann@desk")
    mark = (await read_history(ledger, run.id)).marks[-1]
    assert (mark.action, mark.actor, mark.text) == ("pool.scaled", "ann@desk", "pool: 8 workers instead of 1")
    await scale_pools_on(ledger, "shop", None, by="ann@desk")
    mark = (await read_history(ledger, run.id)).marks[-1]
    assert mark.text == "pool: as many workers as needed instead of 1"


async def test_the_history_of_a_run_that_ended_ends_with_it(either_harness: LedgerHarness) -> None:
    ledger, run, worker = either_harness.ledger, await either_harness.run(), await either_harness.worker()
    await either_harness.put(run, "a")
    await either_harness.finish(worker, await either_harness.claim(worker))
    await ledger.runs.seal(run.id)
    await ledger.upkeep.run_once()
    await either_harness.advance_clock(86_400)
    history = await read_history(ledger, run.id, 15)
    assert len(history.points) == 15
    assert sum(point.done for point in history.points) == 1
    last = [point.counts for point in history.points if point.counts is not None][-1]
    assert last.done == 1
    assert history.marks[-1].text == "finished"
    outlook = await explain_progress(ledger, run.id)
    assert (outlook.eta_seconds, outlook.growing, outlook.critical_lane) == ((0.0, 0.0), False, None)


@pytest.mark.parametrize("minutes", [0, 14, 10_081])
async def test_a_time_out_of_bounds_is_refused(either_harness: LedgerHarness, minutes: int) -> None:
    run = await either_harness.run()
    with pytest.raises(InvalidSetting, match="from 15 to 10080"):
        await read_history(either_harness.ledger, run.id, minutes)


async def test_the_estimate_is_no_shorter_than_the_lane_that_ends_last(either_harness: LedgerHarness) -> None:
    ledger = either_harness.ledger
    run = await either_harness.run(lane=LanePolicy(limit=1))
    await either_harness.put(run, *(f"q{n}" for n in range(20)), lane="quick.example")
    await either_harness.put(run, *(f"s{n}" for n in range(11)), lane="slow.example")
    await ledger.lanes.set("slow.example", delay=(30.0, 60.0))
    await ledger.runs.seal(run.id)
    worker = await either_harness.worker(lease_seconds=3_600)
    await sample(either_harness)
    for _ in range(4):
        await either_harness.finish(worker, await either_harness.claim(worker, limit=1))
        await either_harness.advance_clock(5)
    outlook = await explain_progress(ledger, run.id)
    assert outlook.critical_lane == "slow.example"
    assert outlook.critical_seconds is not None
    assert 250 <= outlook.critical_seconds[0] < outlook.critical_seconds[1] <= 700
    assert outlook.eta_seconds is not None
    assert outlook.eta_seconds[0] >= outlook.critical_seconds[0]
    assert outlook.eta_seconds[1] >= outlook.critical_seconds[1]
    assert not outlook.growing
    status = await read_run_status(ledger, load_settings({}, environ={}, folder=Path.cwd()), run.id)
    assert status.critical_lane == "slow.example"
    assert status.reading.eta is not None
    assert status.reading.eta[1] >= outlook.critical_seconds[1] - 10
    record = records.outlook_record(outlook)
    assert record["bottleneck"]["cause"] == "free workers", "the place at the quick host is that of a ready item"
    assert msgspec.json.encode(record)


async def test_a_frontier_that_grows_has_no_estimate(either_harness: LedgerHarness) -> None:
    ledger, run, worker = either_harness.ledger, await either_harness.run(), await either_harness.worker()
    await either_harness.put(run, "a", "b")
    await ledger.runs.seal(run.id)
    await sample(either_harness)
    [claimed] = await either_harness.claim(worker, limit=1)
    await either_harness.commit(worker, done(claimed, follow_ups=[NewItem(key=f"n{n}") for n in range(5)]))
    outlook = await explain_progress(ledger, run.id)
    assert (outlook.growing, outlook.eta_seconds) == (True, None)


async def test_a_run_without_workers_says_so_and_since_when(either_harness: LedgerHarness) -> None:
    ledger, run = either_harness.ledger, await either_harness.run()
    await either_harness.put(run, "a")
    await sample(either_harness)
    await sample(either_harness)
    outlook = await explain_progress(ledger, run.id)
    assert outlook.bottleneck.cause == "a live worker"
    assert outlook.text.startswith("No live worker serves the stage page of shop.")
    assert (outlook.eta_seconds, outlook.growing) == (None, False)
    points = (await read_history(ledger, run.id, 15)).points
    assert outlook.since == next(point.at for point in points if point.waiting_for is not None)


async def test_what_has_held_a_run_for_long_is_told_from_its_beginning(either_harness: LedgerHarness) -> None:
    ledger, run = either_harness.ledger, await either_harness.run()
    await either_harness.put(run, "a")
    for _ in range(25):
        await sample(either_harness)
    points = (await read_history(ledger, run.id, 60)).points
    outlook = await explain_progress(ledger, run.id)
    assert outlook.since == next(point.at for point in points if point.waiting_for is not None)


async def test_a_run_that_was_not_sampled_yet_says_what_it_waits_for(either_harness: LedgerHarness) -> None:
    ledger, run = either_harness.ledger, await either_harness.run()
    await either_harness.put(run, "a", "b")
    last = (await read_history(ledger, run.id)).points[-1]
    assert last.waiting_for == {"a live worker": 2}
    assert last.counts is not None
    assert last.counts.remaining == 2


async def test_the_status_of_a_run_has_its_latencies(either_harness: LedgerHarness, tmp_path: Path) -> None:
    ledger, run, worker = either_harness.ledger, await either_harness.run(), await either_harness.worker()
    await either_harness.put(run, "a", "b")
    for claimed in await either_harness.claim(worker):
        await either_harness.commit(worker, msgspec.structs.replace(done(claimed), waited=0.02, seconds=3.0))
    settings = load_settings({}, environ={}, folder=tmp_path)
    record = records.status_detail_record(await read_run_status(ledger, settings, run.id))
    assert (record["wait"]["count"], record["work"]["count"]) == (2, 2)
    assert 2.5 <= record["work"]["p50"] <= record["work"]["p99"] <= 4.0
    assert 0.016 <= record["wait"]["p99"] <= 0.025
