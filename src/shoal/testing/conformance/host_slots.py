"""Host slots: requests of items of other lanes in a host's lane, and hosts that ask to wait."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from shoal.errors import NotFound, UnknownStage, WorkerLost
from shoal.model.lane import HostSlotReply, LanePolicy
from shoal.model.outcome import AttemptDecision, DecisionKind, FinishedAttempt, OutcomeClass
from shoal.model.run import Run
from shoal.testing.harness import LedgerHarness

_numbers = itertools.count(1)


async def request_slot(
    harness: LedgerHarness, run: Run, worker: str, visit: int = 0, host: str = "b.example"
) -> HostSlotReply:
    visit = visit or next(_numbers)
    return await harness.ledger.lanes.request_slot(worker, host, visit, run_id=run.id, stage=run.stages[0])


class HostSlotConformance:
    async def test_a_new_host_lane_gets_the_policy_of_the_stage(self, harness: LedgerHarness) -> None:
        run = await harness.run(lane=LanePolicy(limit=3, delay_min=1, delay_max=2))
        worker = await harness.worker()
        assert await request_slot(harness, run, worker) == HostSlotReply(granted=True, paced=True)
        lane = await harness.ledger.lanes.get("b.example")
        assert lane.policy == LanePolicy(limit=3, delay_min=1, delay_max=2)
        assert (lane.taken, lane.visiting) == (0, 1)
        with pytest.raises(UnknownStage):
            await harness.ledger.lanes.request_slot(worker, "c.example", 1, run_id=run.id, stage="nope")
        with pytest.raises(NotFound):
            await harness.ledger.lanes.get("c.example")

    async def test_the_host_lane_of_an_ordered_lanes_item_is_shared(self, harness: LedgerHarness) -> None:
        run = await harness.run(lane=LanePolicy(limit=1, ordered=True, shared=False))
        await request_slot(harness, run, await harness.worker())
        lane = await harness.ledger.lanes.get("b.example")
        assert lane.policy == LanePolicy(limit=1)

    async def test_a_host_lane_keeps_what_an_operator_or_a_stricter_run_set(self, harness: LedgerHarness) -> None:
        strict = await harness.run(scraper="strict", lane=LanePolicy(limit=2, delay_min=5, delay_max=5))
        await harness.put(strict, "a", lane="b.example", delay=60.0)
        lax = await harness.run(scraper="lax", lane=LanePolicy(limit=8))
        worker = await harness.worker()
        await request_slot(harness, lax, worker)
        assert (await harness.ledger.lanes.get("b.example")).policy == LanePolicy(limit=2, delay_min=5, delay_max=5)
        await harness.ledger.lanes.set("b.example", limit=1, delay=(0, 0), by="me")
        assert (await request_slot(harness, await harness.run(scraper="third"), worker)).granted is False
        assert (await harness.ledger.lanes.get("b.example")).policy == LanePolicy(limit=1)

    async def test_slots_and_items_share_one_limit(self, harness: LedgerHarness) -> None:
        run = await harness.run(lane=LanePolicy(limit=3))
        await harness.put(run, "a", "b", lane="b.example")
        worker = await harness.worker()
        claimed = await harness.claim(worker)
        assert len(claimed) == 2
        first, second = next(_numbers), next(_numbers)
        assert (await request_slot(harness, run, worker, first)).granted
        assert await request_slot(harness, run, worker, second) == HostSlotReply(granted=False, ahead=0)
        await harness.put(run, "c", lane="b.example")
        assert await harness.claim(worker) == [], "requests that wait for a slot precede items"
        await harness.finish(worker, claimed[:1])
        assert await harness.claim(worker) == []
        assert (await request_slot(harness, run, worker, second)).granted
        await harness.check()
        await harness.ledger.lanes.release_slots([first])
        assert await harness.claim_keys(worker) == ["c"], "a released slot goes to the next item"
        await harness.check()

    async def test_slot_requests_wait_in_order_and_can_be_withdrawn(self, harness: LedgerHarness) -> None:
        run = await harness.run(lane=LanePolicy(limit=1))
        worker = await harness.worker()
        slots = [next(_numbers) for _ in range(4)]
        assert [(await request_slot(harness, run, worker, visit)).ahead for visit in slots] == [0, 0, 1, 2]
        await harness.ledger.lanes.release_slots(slots[:1])
        assert not (await request_slot(harness, run, worker, slots[2])).granted, "another request is before it"
        await harness.ledger.lanes.release_slots(slots[1:2])
        assert (await request_slot(harness, run, worker, slots[2])).granted
        assert (await request_slot(harness, run, worker, slots[2])).granted, "repeating the request is the same slot"
        lane = await harness.ledger.lanes.get("b.example")
        assert lane.visiting == 1
        await harness.ledger.lanes.release_slots([*slots, 10**15])
        assert (await harness.ledger.lanes.get("b.example")).visiting == 0
        await harness.check()

    async def test_no_more_slots_are_granted_than_the_limit(self, harness: LedgerHarness) -> None:
        run = await harness.run(lane=LanePolicy(limit=3))
        other = await harness.open_again()
        workers = [await harness.worker() for _ in range(2)]
        answers = await asyncio.gather(
            *(
                ledger.lanes.request_slot(worker, "b.example", next(_numbers), run_id=run.id, stage="page")
                for ledger, worker in zip((harness.ledger, other) * 5, workers * 5, strict=True)
            )
        )
        assert sum(answer.granted for answer in answers) == 3
        await harness.check()

    @pytest.mark.parametrize("how", ["dead", "stopped", "silent"])
    async def test_slots_of_a_worker_that_is_gone_are_released(self, harness: LedgerHarness, how: str) -> None:
        run = await harness.run(lane=LanePolicy(limit=1))
        await harness.put(run, "a", lane="b.example", delay=0.001)
        gone, stays = await harness.worker(lease_seconds=30), await harness.worker(lease_seconds=3600)
        assert (await request_slot(harness, run, gone)).granted
        assert not (await request_slot(harness, run, gone)).granted
        await harness.advance_clock(1)
        assert await harness.claim(stays) == []
        match how:
            case "dead":
                await harness.ledger.workers.mark_dead(gone)
            case "stopped":
                await harness.ledger.workers.stop(gone)
            case "silent":
                await harness.advance_clock(31)
                await harness.ledger.upkeep.run_once()
        await harness.check()
        assert await harness.claim_keys(stays) == ["a"]
        with pytest.raises(WorkerLost):
            await request_slot(harness, run, gone)

    async def test_a_blocked_host_grants_no_slot(self, harness: LedgerHarness) -> None:
        run = await harness.run(lane=LanePolicy(limit=2))
        worker = await harness.worker()
        waiting = next(_numbers)
        for visit in (next(_numbers), next(_numbers), waiting):
            await request_slot(harness, run, worker, visit)
        lanes = harness.ledger.lanes
        await lanes.block_host("b.example", 60, "429 Too Many Requests", run_id=run.id, stage="page")
        await lanes.block_host("b.example", 5, "429 again", run_id=run.id, stage="page")
        lane = await lanes.get("b.example")
        assert 30 < lane.blocked_seconds <= 60, "a shorter wait does not shorten a longer one"
        assert lane.blocked_why == "429 Too Many Requests"
        answer = await request_slot(harness, run, worker, waiting)
        assert (answer.granted, answer.why) == (False, "429 Too Many Requests")
        assert 30 < answer.blocked_seconds <= 60
        await harness.check()
        events = [event for event in (await harness.ledger.reads.events()).rows if event.action == "lane.blocked"]
        assert [event.subject for event in events] == ["b.example"]
        await harness.advance_clock(61)
        await lanes.set("b.example", paused=True)
        assert (await request_slot(harness, run, worker)).blocked_seconds > 0
        await harness.check()

    async def test_a_host_can_be_blocked_before_its_first_slot(self, harness: LedgerHarness) -> None:
        run = await harness.run(lane=LanePolicy(limit=2))
        await harness.ledger.lanes.block_host("b.example", 60, "429", run_id=run.id, stage="page")
        await harness.put(run, "a", lane="b.example")
        assert await harness.claim(await harness.worker()) == []
        assert (await harness.ledger.lanes.get("b.example")).policy.limit == 2

    @pytest.mark.parametrize("lane", [None, "a.example"])
    async def test_an_item_that_another_host_delays_does_not_block_its_lane(
        self, harness: LedgerHarness, lane: str | None
    ) -> None:
        run = await harness.run(lane=LanePolicy(limit=1))
        await harness.put(run, "x", "y", lane=lane)
        worker = await harness.worker(lease_seconds=3600)
        (x,) = await harness.claim(worker, 1)
        decision = AttemptDecision(DecisionKind.PUT_OFF, OutcomeClass.THROTTLED, 60.0, "b.example asks to wait")
        await harness.commit(worker, FinishedAttempt(lease=x.lease, decision=decision))
        await harness.check()
        assert await harness.claim_keys(worker) == ["y"]
        view = await harness.item(run, "x")
        assert (view.state, view.tries) == ("delayed", 0)
        gates = await harness.ledger.reads.why_item(run.id, view.id)
        assert any("b.example asks to wait" in gate.text for gate in gates)
        assert [attempt.outcome for attempt in await harness.ledger.reads.attempts(run.id, view.id)] == ["throttled"]
        await harness.advance_clock(61)
        await harness.ledger.upkeep.run_once()
        assert await harness.state(run, "x") in ("ready", "waiting")
        await harness.check()

    async def test_a_put_off_item_keeps_its_slot_in_an_ordered_lane(self, harness: LedgerHarness) -> None:
        run = await harness.run(lane=LanePolicy(limit=1, ordered=True, shared=False))
        await harness.put(run, "x", "y", lane="group")
        worker = await harness.worker(lease_seconds=3600)
        (x,) = await harness.claim(worker)
        decision = AttemptDecision(DecisionKind.PUT_OFF, OutcomeClass.THROTTLED, 60.0, "b.example asks to wait")
        await harness.commit(worker, FinishedAttempt(lease=x.lease, decision=decision))
        assert await harness.claim(worker) == []
        await harness.check()
        await harness.advance_clock(61)
        await harness.ledger.upkeep.run_once()
        assert await harness.claim_keys(worker) == ["x"]
