"""The distance between starts on a lane: starts that workers reserve, and floors under the delay."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable

import pytest

from shoal.errors import InvalidSetting, NotFound
from shoal.model.item import Claimed
from shoal.model.lane import LanePolicy, StartWish
from shoal.testing.lab import Lab, done, retry, throttled

SPACED = LanePolicy(limit=4, delay_min=10, delay_max=10)
SECOND = 1.0
Slowing = Callable[[Lab], Awaitable[object]]


async def turn(lab: Lab, worker: str, key: str = "host", *, run_id: str | None = None, **wish: float) -> float:
    """One start beyond an item's own: the seconds until it; below 0 when none was given."""
    starts = await lab.ledger.lanes.reserve(worker, key, StartWish(**wish), run_id=run_id)  # type: ignore[arg-type]
    return starts.waits[0] if starts.waits else -starts.next_in


async def start(lab: Lab, worker: str, *claimed: Claimed) -> tuple[float, ...]:
    """Reserve the starts of items of one lane: the seconds until each."""
    lane = claimed[0].lane
    assert lane is not None
    wish = StartWish(leases=tuple(item.lease for item in claimed), count=len(claimed))
    starts = await lab.ledger.lanes.reserve(worker, lane, wish)
    assert starts.lost == frozenset()
    return starts.waits


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

    # -- starts -------------------------------------------------------------------------------------------------------

    async def test_a_start_costs_nothing_where_no_distance_is_kept(self, lab: Lab) -> None:
        run = await lab.run(lane=LanePolicy(limit=2))
        lanes = lab.ledger.lanes
        worker = await lab.worker()
        assert (await lanes.reserve(worker, "nobody-knows-it", StartWish(count=2))).waits == (0, 0)
        with pytest.raises(NotFound):
            await lanes.get("nobody-knows-it")
        await lab.put(run, "a", "b", lane="host")
        await lab.claim(worker)
        assert (await lanes.reserve(worker, "host", StartWish(count=3))).waits == (0, 0, 0)
        await lanes.block("host", 30, "429")
        assert 29 < await turn(lab, worker) <= 30, "a block holds for every request"

    async def test_starts_keep_the_distance_to_each_other(self, lab: Lab) -> None:
        run = await lab.run(lane=SPACED)
        await lab.put(run, "a", lane="host", delay=3600.0)
        other = await lab.another()
        workers = [await lab.worker() for _ in range(2)]
        given = await asyncio.gather(
            *(
                ledger.lanes.reserve(worker, "host", StartWish(count=2))
                for ledger, worker in zip((lab.ledger, other), workers, strict=True)
            )
        )
        waits = sorted(wait for starts in given for wait in starts.waits)
        assert [round(wait) for wait in waits] == [0, 10, 20, 30]
        assert {starts.spacing for starts in given} == {10.0}
        await lab.jump(35)
        assert 4 < await turn(lab, workers[0]) <= 5

    async def test_others_keep_more_distance_to_a_start_that_may_be_used_late(self, lab: Lab) -> None:
        """Whoever has it times its own."""
        run = await lab.run(lane=SPACED)
        await lab.put(run, "a", lane="host", delay=3600.0)
        one, two = await lab.worker(), await lab.worker()
        assert await turn(lab, one, slack=2.0) == 0
        assert 9 < await turn(lab, one, slack=2.0) <= 10
        assert 21 < await turn(lab, two) <= 22
        for wish in ({"slack": -1.0}, {"idle": float("nan")}, {"count": 0}):
            with pytest.raises(InvalidSetting):
                await turn(lab, one, **wish)

    async def test_a_worker_that_missed_its_starts_goes_on_from_its_last_request(self, lab: Lab) -> None:
        """Only if nobody came after it; others were promised that it would not start any more."""
        run = await lab.run(lane=SPACED)
        await lab.put(run, "a", lane="host", delay=3600.0)
        one, two = await lab.worker(), await lab.worker()
        lanes = lab.ledger.lanes
        assert (await lanes.reserve(one, "host", StartWish(count=3))).waits[0] == 0
        await lab.jump(27)
        starts = await lanes.reserve(one, "host", StartWish(count=2, idle=4.0))
        assert [round(wait) for wait in starts.waits] == [6, 16]
        await lab.jump(40)
        starts = await lanes.reserve(one, "host", StartWish(count=2, idle=30.0))
        assert [round(wait) for wait in starts.waits] == [0, 10]
        assert 19 < await turn(lab, two) <= 20
        await lab.jump(35)
        assert await turn(lab, one, idle=50.0) == 0, "it is late enough anyway"
        assert 9 < await turn(lab, two) <= 10
        starts = await lanes.reserve(one, "host", StartWish(count=2, idle=50.0))
        assert [round(wait) for wait in starts.waits] == [20, 30], "the other one's start stands"
        starts = await lanes.reserve(one, "host", StartWish(idle=50.0))
        assert [round(wait) for wait in starts.waits] == [20], "not before its own starts began"

    async def test_an_item_comes_out_a_moment_before_its_start_and_reserves_it(self, lab: Lab) -> None:
        run = await lab.run(lane=SPACED)
        await lab.put(run, "a", "b", "c", lane="host")
        worker = await lab.worker(lease_seconds=3600)
        (a,) = await lab.claim(worker)
        assert a.paced
        assert await lab.claim(worker) == [], "one at a time, as long as it has no start"
        assert await start(lab, worker, a) == (0.0,)
        lane = await lab.ledger.lanes.get("host")
        assert (lane.taken, lane.unstarted, lane.waiting) == (2, 1, 1), "the next waits outside for its time"
        await later(lab, 9)
        assert await lab.claim(worker) == []
        await later(lab, 0.92)
        (b,) = await lab.claim(worker)
        (wait,) = await start(lab, worker, b)
        assert 0 <= wait < 0.1
        await lab.check()

    async def test_as_many_items_come_out_as_start_within_that_moment(self, lab: Lab) -> None:
        run = await lab.run(lane=LanePolicy(limit=20, delay_min=0.02, delay_max=0.02))
        await lab.put(run, *(f"k{n}" for n in range(10)), lane="host")
        worker = await lab.worker(lease_seconds=3600)
        claimed = await lab.claim(worker)
        assert len(claimed) == 6
        waits = await start(lab, worker, *claimed)
        assert [round(later - earlier, 3) for earlier, later in itertools.pairwise(waits)] == [0.02] * 5
        await lab.check()

    async def test_starts_far_ahead_are_not_given(self, lab: Lab) -> None:
        """An item that would wait for long goes back instead, and comes out in its turn."""
        run = await lab.run(lane=SPACED)
        await lab.put(run, "a", lane="host")
        worker, other = await lab.worker(lease_seconds=3600), await lab.worker()
        (a,) = await lab.claim(worker)
        assert await turn(lab, other) == 0
        starts = await lab.ledger.lanes.reserve(worker, "host", StartWish(leases=(a.lease,), within=1.0))
        assert starts.waits == ()
        assert 9 < starts.next_in <= 10
        assert await lab.ledger.claims.give_back(worker, [a.lease]) == 1
        assert await lab.claim(worker) == []
        assert await lab.state(run, "a") == "delayed"
        await lab.check()
        await later(lab, 10)
        assert await lab.claim_keys(worker) == ["a"]
        assert (await lab.item(run, "a")).tries == 0

    async def test_a_lease_that_is_gone_starts_nothing(self, lab: Lab) -> None:
        run = await lab.run(lane=SPACED)
        await lab.put(run, "a", lane="host")
        worker = await lab.worker(lease_seconds=3600)
        (a,) = await lab.claim(worker)
        await lab.ledger.steering.release(older_than=0)
        starts = await lab.ledger.lanes.reserve(worker, "host", StartWish(leases=(a.lease,)))
        assert starts.lost == {a.item}
        await lab.check()

    async def test_an_item_that_was_let_out_already_waits_for_a_start_reserved_meanwhile(self, lab: Lab) -> None:
        run = await lab.run(lane=SPACED)
        await lab.put(run, "a", "b", lane="host")
        worker = await lab.worker(lease_seconds=3600)
        assert await lab.state(run, "a") == "ready"
        assert await turn(lab, worker) == 0
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

    async def test_an_item_that_waits_for_its_time_waits_longer_after_another_start(self, lab: Lab) -> None:
        run = await lab.run(lane=SPACED)
        await lab.put(run, "a", "b", lane="host")
        worker = await lab.worker(lease_seconds=3600)
        (a,) = await lab.claim(worker)
        await start(lab, worker, a)
        assert 9 < await turn(lab, worker) <= 10
        await later(lab, 11)
        assert await lab.claim(worker) == []
        await later(lab, 10)
        assert await lab.claim_keys(worker) == ["b"]
        await lab.check()

    async def test_items_that_nobody_disturbs_are_never_put_off(self, lab: Lab) -> None:
        """When an item comes out, it is claimed, and its start is near."""
        run = await lab.run(lane=LanePolicy(limit=2, delay_min=0.001, delay_max=0.03))
        await lab.put(run, *(f"k{n}" for n in range(12)), lane="host")
        worker = await lab.worker(lease_seconds=3600)
        seen = 0
        while seen < 12:
            claimed = await lab.claim(worker)
            assert claimed
            for item in claimed:
                assert item.name == f"k{seen}"
                seen += 1
                (wait,) = await start(lab, worker, item)
                await asyncio.sleep(wait)
            await lab.finish(worker, claimed)

    @pytest.mark.parametrize("how", ["given back", "retried", "throttled", "crashed", "released", "done"])
    async def test_a_lease_that_ends_unstarted(self, lab: Lab, how: str) -> None:
        run = await lab.run(lane=SPACED)
        await lab.put(run, "a", "b", lane="host")
        worker = await lab.worker(lease_seconds=3600)
        other = await lab.worker(lease_seconds=86_400)
        (a,) = await lab.claim(worker)
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
        wait = await turn(lab, other)
        # What was given back has surely not started; of all others nobody knows.
        assert (wait == 0) if how == "given back" else (9 < wait <= 10)
        await lab.check()
        assert await lab.claim(other) == []
        await later(lab, wait + 5)
        assert await lab.claim(other) == []
        await later(lab, 6)
        assert len(await lab.claim(other)) == 1
        await lab.check()

    async def test_starts_are_not_reserved_for_the_end_of_a_long_block(self, lab: Lab) -> None:
        """A block that is lifted must not leave a lane that waits for its end."""
        run = await lab.run(lane=SPACED)
        await lab.put(run, "a", lane="host")
        worker = await lab.worker()
        await lab.ledger.lanes.block("host", 3600, "maintenance")
        assert -3601 < await turn(lab, worker) < -3598
        await lab.ledger.lanes.block("host", 0, "")
        assert await turn(lab, worker) == 0

    async def test_an_item_claimed_before_the_lane_had_a_delay_holds_nobody_up(self, lab: Lab) -> None:
        """Its worker does not reserve its start, and may be the one who asks for another."""
        run = await lab.run(lane=LanePolicy(limit=2))
        await lab.put(run, "a", lane="host")
        worker = await lab.worker()
        (a,) = await lab.claim(worker)
        assert not a.paced
        await lab.ledger.lanes.slow("host", 10, "robots.txt")
        assert 9 < await turn(lab, worker) <= 10
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
            claimed = await lab.claim(worker)
            if not claimed:  # too many were out: they are put back in line first
                assert not seen
                await later(lab, 0.001)
                claimed = await lab.claim(worker)
            (item,) = claimed
            assert item.paced
            seen.append(item.name)
            assert await lab.claim(worker) == []
            await later(lab, SECOND)
            assert await lab.claim(worker) == [], "the first one has not started yet"
            lane = await lab.ledger.lanes.get("host")
            assert (lane.taken, lane.unstarted, lane.waiting) == (1, 1, 7 - len(seen)), "the others are back in line"
            assert await start(lab, worker, item) == (0.0,)
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
        worker = await lab.worker()
        assert await turn(lab, worker, run_id=run.id) == 0
        assert 9 < await turn(lab, worker, run_id=run.id) <= 10
        assert await turn(lab, worker) == 0, "the shared lane of that name is another one"

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
