"""Requests from elsewhere: places in the lane of the host they go to, and hosts that ask to wait."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from shoal.errors import NotFound, UnknownStage, WorkerLost
from shoal.model.lane import Admission, LanePolicy
from shoal.model.outcome import Finished, OutcomeClass, Verdict, VerdictKind
from shoal.model.run import Run
from shoal.testing.lab import Lab

_numbers = itertools.count(1)


async def enter(lab: Lab, run: Run, worker: str, visit: int = 0, host: str = "b.example") -> Admission:
    visit = visit or next(_numbers)
    return await lab.ledger.lanes.enter(worker, host, visit, run_id=run.id, stage=run.stages[0])


class VisitConformance:
    async def test_a_host_that_nobody_knew_gets_the_policy_of_the_stage(self, lab: Lab) -> None:
        run = await lab.run(lane=LanePolicy(limit=3, delay_min=1, delay_max=2))
        worker = await lab.worker()
        assert await enter(lab, run, worker) == Admission(is_in=True, paced=True)
        lane = await lab.ledger.lanes.get("b.example")
        assert lane.policy == LanePolicy(limit=3, delay_min=1, delay_max=2)
        assert (lane.taken, lane.visiting) == (0, 1)
        with pytest.raises(UnknownStage):
            await lab.ledger.lanes.enter(worker, "c.example", 1, run_id=run.id, stage="nope")
        with pytest.raises(NotFound):
            await lab.ledger.lanes.get("c.example")

    async def test_the_host_of_a_sequential_group_is_a_lane_that_all_share(self, lab: Lab) -> None:
        run = await lab.run(lane=LanePolicy(limit=1, ordered=True, shared=False))
        await enter(lab, run, await lab.worker())
        lane = await lab.ledger.lanes.get("b.example")
        assert lane.policy == LanePolicy(limit=1)

    async def test_what_an_operator_or_a_stricter_run_said_stands(self, lab: Lab) -> None:
        strict = await lab.run(scraper="strict", lane=LanePolicy(limit=2, delay_min=5, delay_max=5))
        await lab.put(strict, "a", lane="b.example", delay=60.0)
        lax = await lab.run(scraper="lax", lane=LanePolicy(limit=8))
        worker = await lab.worker()
        await enter(lab, lax, worker)
        assert (await lab.ledger.lanes.get("b.example")).policy == LanePolicy(limit=2, delay_min=5, delay_max=5)
        await lab.ledger.lanes.set("b.example", limit=1, delay=(0, 0), by="me")
        assert (await enter(lab, await lab.run(scraper="third"), worker)).is_in is False
        assert (await lab.ledger.lanes.get("b.example")).policy == LanePolicy(limit=1)

    async def test_visits_and_items_share_one_limit(self, lab: Lab) -> None:
        run = await lab.run(lane=LanePolicy(limit=3))
        await lab.put(run, "a", "b", lane="b.example")
        worker = await lab.worker()
        claimed = await lab.claim(worker)
        assert len(claimed) == 2
        first, second = next(_numbers), next(_numbers)
        assert (await enter(lab, run, worker, first)).is_in
        assert await enter(lab, run, worker, second) == Admission(is_in=False, ahead=0)
        await lab.put(run, "c", lane="b.example")
        assert await lab.claim(worker) == [], "whoever waits for a place goes before items"
        await lab.finish(worker, claimed[:1])
        assert await lab.claim(worker) == []
        assert (await enter(lab, run, worker, second)).is_in
        await lab.check()
        await lab.ledger.lanes.leave([first])
        assert await lab.claim_keys(worker) == ["c"], "a place that came free goes to the next item"
        await lab.check()

    async def test_visits_wait_in_line_and_may_leave_it(self, lab: Lab) -> None:
        run = await lab.run(lane=LanePolicy(limit=1))
        worker = await lab.worker()
        visits = [next(_numbers) for _ in range(4)]
        assert [(await enter(lab, run, worker, visit)).ahead for visit in visits] == [0, 0, 1, 2]
        await lab.ledger.lanes.leave(visits[:1])
        assert not (await enter(lab, run, worker, visits[2])).is_in, "it is not its turn"
        await lab.ledger.lanes.leave(visits[1:2])
        assert (await enter(lab, run, worker, visits[2])).is_in
        assert (await enter(lab, run, worker, visits[2])).is_in, "asking again is the same visit"
        lane = await lab.ledger.lanes.get("b.example")
        assert lane.visiting == 1
        await lab.ledger.lanes.leave([*visits, 10**15])
        assert (await lab.ledger.lanes.get("b.example")).visiting == 0
        await lab.check()

    async def test_no_more_enter_at_once_than_the_limit(self, lab: Lab) -> None:
        run = await lab.run(lane=LanePolicy(limit=3))
        other = await lab.another()
        workers = [await lab.worker() for _ in range(2)]
        answers = await asyncio.gather(
            *(
                ledger.lanes.enter(worker, "b.example", next(_numbers), run_id=run.id, stage="page")
                for ledger, worker in zip((lab.ledger, other) * 5, workers * 5, strict=True)
            )
        )
        assert sum(answer.is_in for answer in answers) == 3
        await lab.check()

    @pytest.mark.parametrize("how", ["buried", "stopped", "silent"])
    async def test_visits_go_with_their_worker(self, lab: Lab, how: str) -> None:
        run = await lab.run(lane=LanePolicy(limit=1))
        await lab.put(run, "a", lane="b.example", delay=0.001)
        gone, stays = await lab.worker(lease_seconds=30), await lab.worker(lease_seconds=3600)
        assert (await enter(lab, run, gone)).is_in
        assert not (await enter(lab, run, gone)).is_in
        await lab.jump(1)
        assert await lab.claim(stays) == []
        match how:
            case "buried":
                await lab.ledger.workers.bury(gone)
            case "stopped":
                await lab.ledger.workers.stop(gone)
            case "silent":
                await lab.jump(31)
                await lab.ledger.upkeep.tend()
        await lab.check()
        assert await lab.claim_keys(stays) == ["a"]
        with pytest.raises(WorkerLost):
            await enter(lab, run, gone)

    async def test_a_host_that_asked_to_wait_lets_nobody_in(self, lab: Lab) -> None:
        run = await lab.run(lane=LanePolicy(limit=2))
        worker = await lab.worker()
        waiting = next(_numbers)
        for visit in (next(_numbers), next(_numbers), waiting):
            await enter(lab, run, worker, visit)
        lanes = lab.ledger.lanes
        await lanes.close_host("b.example", 60, "429 Too Many Requests", run_id=run.id, stage="page")
        await lanes.close_host("b.example", 5, "429 again", run_id=run.id, stage="page")
        lane = await lanes.get("b.example")
        assert 59 < lane.blocked_seconds <= 60, "a shorter wait does not shorten a longer one"
        assert lane.blocked_why == "429 Too Many Requests"
        answer = await enter(lab, run, worker, waiting)
        assert (answer.is_in, answer.why) == (False, "429 Too Many Requests")
        assert 59 < answer.shut <= 60
        await lab.check()
        events = [event for event in (await lab.ledger.reads.events()).rows if event.action == "lane.blocked"]
        assert [event.subject for event in events] == ["b.example"]
        await lab.jump(61)
        await lanes.set("b.example", paused=True)
        assert (await enter(lab, run, worker)).shut > 0
        await lab.check()

    async def test_a_host_may_be_closed_before_anybody_entered(self, lab: Lab) -> None:
        run = await lab.run(lane=LanePolicy(limit=2))
        await lab.ledger.lanes.close_host("b.example", 60, "429", run_id=run.id, stage="page")
        await lab.put(run, "a", lane="b.example")
        assert await lab.claim(await lab.worker()) == []
        assert (await lab.ledger.lanes.get("b.example")).policy.limit == 2

    @pytest.mark.parametrize("lane", [None, "a.example"])
    async def test_an_item_that_another_host_made_wait_is_put_off_and_its_lane_goes_on(
        self, lab: Lab, lane: str | None
    ) -> None:
        run = await lab.run(lane=LanePolicy(limit=1))
        await lab.put(run, "x", "y", lane=lane)
        worker = await lab.worker(lease_seconds=3600)
        (x,) = await lab.claim(worker, 1)
        verdict = Verdict(VerdictKind.PUT_OFF, OutcomeClass.THROTTLED, 60.0, "b.example asks to wait")
        await lab.commit(worker, Finished(lease=x.lease, verdict=verdict))
        await lab.check()
        assert await lab.claim_keys(worker) == ["y"]
        view = await lab.item(run, "x")
        assert (view.state, view.tries) == ("delayed", 0)
        gates = await lab.ledger.reads.why_item(run.id, view.id)
        assert any("b.example asks to wait" in gate.text for gate in gates)
        assert [attempt.outcome for attempt in await lab.ledger.reads.attempts(run.id, view.id)] == ["throttled"]
        await lab.jump(61)
        await lab.ledger.upkeep.tend()
        assert await lab.state(run, "x") in ("ready", "waiting")
        await lab.check()

    async def test_the_head_of_a_sequential_group_keeps_its_place_when_it_is_put_off(self, lab: Lab) -> None:
        run = await lab.run(lane=LanePolicy(limit=1, ordered=True, shared=False))
        await lab.put(run, "x", "y", lane="group")
        worker = await lab.worker(lease_seconds=3600)
        (x,) = await lab.claim(worker)
        verdict = Verdict(VerdictKind.PUT_OFF, OutcomeClass.THROTTLED, 60.0, "b.example asks to wait")
        await lab.commit(worker, Finished(lease=x.lease, verdict=verdict))
        assert await lab.claim(worker) == []
        await lab.check()
        await lab.jump(61)
        await lab.ledger.upkeep.tend()
        assert await lab.claim_keys(worker) == ["x"]
