"""The distance between starts on a lane: who must report a start, turns beyond items, and floors under the delay."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from shoal.errors import InvalidSetting, NotFound
from shoal.model.item import Claimed
from shoal.model.lane import LanePolicy
from shoal.testing.lab import Lab, done, retry, throttled

SPACED = LanePolicy(limit=4, delay_min=10, delay_max=10)
SECOND = 1.0
Slowing = Callable[[Lab], Awaitable[object]]


async def start(lab: Lab, worker: str, *claimed: Claimed) -> None:
    assert await lab.ledger.claims.started(worker, [item.lease for item in claimed]) == set()


async def later(lab: Lab, seconds: float) -> None:
    await lab.jump(seconds)
    await lab.ledger.upkeep.tend()


async def by_floor(lab: Lab) -> object:
    return await lab.ledger.lanes.slow("host", 10, "robots.txt")


async def by_operator(lab: Lab) -> object:
    return await lab.ledger.lanes.set("host", delay=(10, 10), by="me")


async def by_a_newer_stage(lab: Lab) -> object:
    run = await lab.run(lane=LanePolicy(limit=5, delay_min=10, delay_max=10))
    await lab.put(run, "newer", lane="host", delay=86_400.0)
    return None


class PaceConformance:
    async def test_items_say_whether_their_lane_keeps_a_distance(self, lab: Lab) -> None:
        run = await lab.run("spaced", lane=SPACED)
        free = await lab.run("free", lane=LanePolicy(limit=2))
        await lab.put(run, "a", lane="host")
        await lab.put(run, "b")
        await lab.put(free, "c", lane="open-host")
        await lab.put(free, "d", lane="slow-host")
        await lab.ledger.lanes.slow("slow-host", 5, "robots.txt")
        worker = await lab.worker()
        claimed = [*await lab.claim(worker), *await lab.claim(worker)]
        assert {item.name: item.paced for item in claimed} == {"a": True, "b": False, "c": False, "d": True}

    # -- turns --------------------------------------------------------------------------------------------------------

    async def test_a_turn_costs_nothing_where_no_distance_is_kept(self, lab: Lab) -> None:
        run = await lab.run(lane=LanePolicy(limit=2))
        lanes = lab.ledger.lanes
        assert await lanes.turn("nobody-knows-it") == 0
        with pytest.raises(NotFound):
            await lanes.get("nobody-knows-it")
        await lab.put(run, "a", "b", lane="host")
        await lab.claim(await lab.worker())
        assert [await lanes.turn("host") for _ in range(3)] == [0, 0, 0]
        await lanes.block("host", 30, "429")
        assert 29 < await lanes.turn("host") <= 30, "a block holds for every request"

    async def test_turns_keep_the_distance_to_each_other(self, lab: Lab) -> None:
        run = await lab.run(lane=SPACED)
        await lab.put(run, "a", lane="host", delay=3600.0)
        other = await lab.another()
        waits = await asyncio.gather(*(ledger.lanes.turn("host") for ledger in (lab.ledger, other) for _ in range(2)))
        given = [wait for wait in waits if wait >= 0]
        while len(given) < 4:  # two who ask at the same moment: one is told to ask again
            given.append(await lab.ledger.lanes.turn("host"))
        assert [round(wait) for wait in sorted(given)] == [0, 10, 20, 30]
        await lab.jump(35)
        assert 4 < await lab.ledger.lanes.turn("host") <= 5

    async def test_a_turn_that_may_be_used_late_keeps_more_distance(self, lab: Lab) -> None:
        run = await lab.run(lane=SPACED)
        await lab.put(run, "a", lane="host", delay=3600.0)
        assert await lab.ledger.lanes.turn("host", slack=2.0) == 0
        assert 11 < await lab.ledger.lanes.turn("host") <= 12
        with pytest.raises(InvalidSetting):
            await lab.ledger.lanes.turn("host", slack=-1.0)

    async def test_no_turn_is_given_while_an_item_may_start_any_moment(self, lab: Lab) -> None:
        run = await lab.run(lane=SPACED)
        await lab.put(run, "a", "b", lane="host")
        worker = await lab.worker(lease_seconds=3600)
        (a,) = await lab.claim(worker)
        assert -1 < await lab.ledger.lanes.turn("host") < 0
        await lab.jump(300)
        assert await lab.ledger.lanes.turn("host") < 0, "it may sit in a buffer for long"
        await start(lab, worker, a)
        wait = await lab.ledger.lanes.turn("host")
        assert 9 < wait <= 10, "the distance counts from the item's start"
        await lab.check()

    async def test_an_item_that_was_let_out_already_waits_for_a_turn_taken_meanwhile(self, lab: Lab) -> None:
        run = await lab.run(lane=SPACED)
        await lab.put(run, "a", "b", lane="host")
        worker = await lab.worker(lease_seconds=3600)
        assert await lab.state(run, "a") == "ready"
        assert await lab.ledger.lanes.turn("host") == 0
        assert await lab.claim(worker) == []
        assert await lab.state(run, "a") == "delayed"
        lane = await lab.ledger.lanes.get("host")
        assert (lane.taken, lane.unstarted, lane.waiting) == (1, 1, 1), "it keeps its slot"
        await lab.check()
        await later(lab, 9)
        assert await lab.claim(worker) == []
        await later(lab, 2)
        assert await lab.claim_keys(worker) == ["a"]
        await lab.check()

    async def test_an_item_that_waits_for_its_time_waits_longer_after_a_turn(self, lab: Lab) -> None:
        run = await lab.run(lane=SPACED)
        await lab.put(run, "a", "b", lane="host")
        worker = await lab.worker(lease_seconds=3600)
        (a,) = await lab.claim(worker)
        await start(lab, worker, a)
        assert 9 < await lab.ledger.lanes.turn("host") <= 10
        await later(lab, 11)
        assert await lab.claim(worker) == []
        await later(lab, 10)
        assert await lab.claim_keys(worker) == ["b"]
        await lab.check()

    async def test_items_that_nobody_disturbs_are_never_put_off(self, lab: Lab) -> None:
        """The moment an item is let out for is the moment it may be claimed, to the microsecond."""
        run = await lab.run(lane=LanePolicy(limit=2, delay_min=0.001, delay_max=0.03))
        await lab.put(run, *(f"k{n}" for n in range(12)), lane="host")
        worker = await lab.worker(lease_seconds=3600)
        for n in range(12):
            await asyncio.sleep((await lab.ledger.lanes.get("host")).next_seconds)
            await lab.ledger.upkeep.tend()
            (item,) = await lab.claim(worker)
            assert item.name == f"k{n}"
            await start(lab, worker, item)
            await lab.finish(worker, [item])

    @pytest.mark.parametrize("how", ["given back", "retried", "throttled", "crashed", "released", "done"])
    async def test_a_lease_that_ends_unstarted_gives_the_turn_free(self, lab: Lab, how: str) -> None:
        run = await lab.run(lane=SPACED)
        await lab.put(run, "a", "b", lane="host")
        worker = await lab.worker(lease_seconds=3600)
        (a,) = await lab.claim(worker)
        assert await lab.ledger.lanes.turn("host") < 0
        match how:
            case "given back":
                await lab.ledger.claims.give_back(worker, [a.lease])
            case "retried":
                await lab.commit(worker, retry(a, delay=1))
            case "throttled":
                await lab.commit(worker, throttled(a, delay=1))
            case "crashed":
                await lab.ledger.workers.bury(worker)
            case "released":
                await lab.ledger.steering.release(older_than=0)
            case "done":
                await lab.commit(worker, done(a))
        wait = await lab.ledger.lanes.turn("host")
        # What was given back has surely not started; of all others nobody knows.
        assert (wait == 0) if how == "given back" else (9 < wait <= 10)
        await lab.check()
        other = await lab.worker(lease_seconds=86_400)
        assert await lab.claim(other) == []
        await later(lab, wait + 9)
        assert await lab.claim(other) == []
        await later(lab, 2)
        assert len(await lab.claim(other)) == 1
        await lab.check()

    async def test_a_claim_and_a_turn_at_the_same_moment_do_not_both_start(self, lab: Lab) -> None:
        run = await lab.run(lane=SPACED)
        other = await lab.another()
        worker = await lab.worker(lease_seconds=3600)
        held = 0
        for n in range(25):
            await lab.put(run, f"k{n}", lane=f"host{n}")
            claimed, wait = await asyncio.gather(lab.claim(worker), other.lanes.turn(f"host{n}"))
            assert not (claimed and 0 <= wait < 10), "both start now"
            held += len(claimed)
        await lab.check()
        await later(lab, 11)
        assert held + len(await lab.claim(worker)) == 25, "nothing is lost on the way"

    async def test_turns_are_not_reserved_far_ahead(self, lab: Lab) -> None:
        """A block that is lifted must not leave a lane that waits for its end."""
        run = await lab.run(lane=SPACED)
        await lab.put(run, "a", lane="host")
        await lab.ledger.lanes.block("host", 3600, "maintenance")
        assert -11 < await lab.ledger.lanes.turn("host") < 0
        await lab.ledger.lanes.block("host", 0, "")
        assert await lab.ledger.lanes.turn("host") == 0

    async def test_an_item_claimed_before_the_lane_had_a_delay_does_not_hold_up_turns(self, lab: Lab) -> None:
        """Its worker does not report starts, and may be the one who asks."""
        run = await lab.run(lane=LanePolicy(limit=2))
        await lab.put(run, "a", lane="host")
        (a,) = await lab.claim(await lab.worker())
        assert not a.paced
        await lab.ledger.lanes.slow("host", 10, "robots.txt")
        assert 9 < await lab.ledger.lanes.turn("host") <= 10
        await lab.check()

    # -- floors -------------------------------------------------------------------------------------------------------

    async def test_a_floor_lies_under_what_stages_declare(self, lab: Lab) -> None:
        run = await lab.run(lane=LanePolicy(limit=3, delay_min=2, delay_max=20))
        lane = await lab.ledger.lanes.slow("host", 5, "robots.txt")
        assert (lane.floor, lane.floor_why, lane.set_by_operator) == (5, "robots.txt", False)
        assert (lane.policy.delay_min, lane.policy.delay_max) == (5, 5)
        await lab.put(run, "a", lane="host")
        lane = await lab.ledger.lanes.get("host")
        assert (lane.policy.limit, lane.policy.delay_min, lane.policy.delay_max) == (3, 5, 20)
        lane = await lab.ledger.lanes.slow("host", 30, "robots.txt")
        assert (lane.policy.delay_min, lane.policy.delay_max) == (30, 30)
        lane = await lab.ledger.lanes.slow("host", 0, "")
        assert (lane.policy.delay_min, lane.policy.delay_max) == (2, 20)
        assert (lane.floor, lane.floor_why) == (0, None)

    async def test_an_operator_outranks_a_floor_by_setting_the_delay(self, lab: Lab) -> None:
        lanes = lab.ledger.lanes
        await lanes.slow("host", 10, "robots.txt")
        assert (await lanes.set("host", limit=4, by="me")).policy.delay_min == 10, "the limit is another matter"
        lane = await lanes.set("host", delay=(1, 2), by="me")
        assert (lane.policy.delay_min, lane.policy.delay_max, lane.floor) == (1, 2, 10)
        lane = await lanes.slow("host", 20, "robots.txt")
        assert (lane.policy.delay_min, lane.policy.delay_max, lane.floor) == (1, 2, 20)

    async def test_saying_the_same_again_changes_nothing(self, lab: Lab) -> None:
        for _ in range(3):
            await lab.ledger.lanes.slow("host", 10, "robots.txt")
        events = (await lab.ledger.reads.events()).rows
        assert [(event.action, event.subject, dict(event.detail)) for event in events] == [
            ("lane.slowed", "host", {"floor": 10, "why": "robots.txt"})
        ]

    async def test_a_lifted_floor_holds_nobody_back(self, lab: Lab) -> None:
        run = await lab.run(lane=LanePolicy(limit=1))
        await lab.ledger.lanes.slow("host", 3600, "robots.txt")
        await lab.put(run, "a", "b", lane="host")
        worker = await lab.worker(lease_seconds=7200)
        await lab.finish(worker, await lab.claim(worker))
        assert await lab.claim(worker) == []
        await lab.ledger.lanes.slow("host", 0, "")
        await lab.ledger.upkeep.tend()
        (b,) = await lab.claim(worker)
        assert (b.name, b.paced) == ("b", False)
        await lab.check()

    @pytest.mark.parametrize("slowing", [by_floor, by_operator, by_a_newer_stage])
    async def test_a_new_delay_lets_nobody_start_in_a_bunch(self, lab: Lab, slowing: Slowing) -> None:
        run = await lab.run(lane=LanePolicy(limit=5))
        await lab.put(run, *"abcdefg", lane="host")
        assert (await lab.ledger.reads.stats(run.id)).ready == 5
        await slowing(lab)
        worker = await lab.worker(lease_seconds=86_400)
        seen: list[str] = []
        while len(seen) < 7:
            (item,) = await lab.claim(worker)
            assert item.paced
            seen.append(item.name)
            assert await lab.claim(worker) == []
            await later(lab, SECOND)
            assert await lab.claim(worker) == [], "the first one has not started yet"
            lane = await lab.ledger.lanes.get("host")
            assert (lane.taken, lane.unstarted, lane.waiting) == (1, 1, 7 - len(seen)), "the others are back in line"
            await start(lab, worker, item)
            await lab.check()
            await later(lab, 9)
            assert await lab.claim(worker) == []
            await lab.finish(worker, [item])
            await later(lab, 2)
        assert sorted(seen) == [*"abcdefg"]
        await lab.check()

    async def test_a_new_delay_counts_from_now_when_items_are_out(self, lab: Lab) -> None:
        run = await lab.run(lane=LanePolicy(limit=2))
        await lab.put(run, "a", "b", "c", lane="host")
        worker = await lab.worker(lease_seconds=3600)
        (a,) = await lab.claim(worker, 1)
        await lab.ledger.lanes.slow("host", 10, "robots.txt")
        await later(lab, 9)
        assert await lab.claim(worker) == [], "a may have started in the very moment"
        await lab.finish(worker, [a])
        await later(lab, 11)
        assert len(await lab.claim(worker)) == 1
        await lab.check()

    async def test_floors_of_lanes_that_belong_to_a_run(self, lab: Lab) -> None:
        run = await lab.run(lane=LanePolicy(limit=1, shared=False))
        with pytest.raises(NotFound):
            await lab.ledger.lanes.slow("host", 10, "robots.txt", run_id=run.id)
        await lab.put(run, "a", "b", lane="host")
        lane = await lab.ledger.lanes.slow("host", 10, "robots.txt", run_id=run.id)
        assert (lane.run_id, lane.policy.delay_min) == (run.id, 10)
        assert await lab.ledger.lanes.turn("host", run_id=run.id) == 0
        assert 9 < await lab.ledger.lanes.turn("host", run_id=run.id) <= 10
        assert await lab.ledger.lanes.turn("host") == 0, "the shared lane of that name is another one"

    async def test_why_names_the_floor(self, lab: Lab) -> None:
        run = await lab.run(lane=LanePolicy(limit=2))
        await lab.ledger.lanes.slow("host", 10, "robots.txt asks for it")
        await lab.put(run, "a", "b", lane="host")
        gates = await lab.ledger.reads.why_item(run.id, (await lab.item(run, "b")).id)
        (gate,) = [gate for gate in gates if gate.code == "lane_delay"]
        assert "robots.txt asks for it" in gate.text

    async def test_senseless_floors_are_refused(self, lab: Lab) -> None:
        for delay in (-1, float("nan"), float("inf"), 1e9):
            with pytest.raises(InvalidSetting):
                await lab.ledger.lanes.slow("host", delay, "?")
        with pytest.raises(NotFound):
            await lab.ledger.lanes.get("host")
