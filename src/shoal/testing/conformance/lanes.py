"""Lanes: limits, distances, blocks, order. What the ledger lets out is what a site can see."""

from __future__ import annotations

import pytest

from shoal.errors import InvalidSetting, NotFound
from shoal.model.item import NewItem
from shoal.model.lane import LanePolicy
from shoal.model.run import RunSpec, StageSpec
from shoal.model.worker import Scope
from shoal.testing.lab import Lab, dead, done, retry, throttled

POLITE = LanePolicy(limit=4, delay_min=10, delay_max=20)
GROUP = LanePolicy(limit=1, ordered=True, shared=False)


class LanesConformance:
    @pytest.mark.parametrize("policy", [LanePolicy(limit=2), LanePolicy(limit=2, delay_min=1, delay_max=1)])
    async def test_a_run_that_nobody_serves_holds_no_place(self, lab: Lab, policy: LanePolicy) -> None:
        """Enqueued tonight, worked on tomorrow: until then it must not stand in the way of others on the same host."""
        later = await lab.run(scraper="later", lane=policy)
        await lab.put(later, "a", "b", "c", lane="host")
        now = await lab.run(scraper="now", lane=policy)
        await lab.put(now, "x", "y", "z", lane="host")
        worker = await lab.worker(scope=Scope(scraper="now"))
        done_keys: list[str] = []
        for _ in range(40):
            await lab.ledger.upkeep.tend()
            for claimed in await lab.claim(worker, scope=Scope(scraper="now")):
                await lab.ledger.claims.started(worker, [claimed.lease])
                await lab.finish(worker, [claimed])
                done_keys.append(claimed.name)
            await lab.jump(1)
            await lab.ledger.workers.beat(worker)
        assert sorted(done_keys) == ["x", "y", "z"]
        assert (await lab.ledger.reads.why_run(later.id))[0].code == "no_worker"
        await lab.check()
        # Somebody comes for it: it has its places at once.
        helper = await lab.worker(scope=Scope(run_ids=(later.id,)))
        assert await lab.claim(helper, scope=Scope(run_ids=(later.id,)))
        await lab.check()

    async def test_without_any_worker_runs_stand_as_they_stood(self, lab: Lab) -> None:
        run = await lab.run(lane=LanePolicy(limit=1))
        await lab.put(run, "a", "b", lane="host")
        await lab.jump(10)
        await lab.ledger.upkeep.tend()
        assert await lab.state(run, "a") == "ready"

    async def test_the_stricter_of_two_runs_under_way_holds(self, lab: Lab) -> None:
        """Whoever starts last must not lift what another scraper promised to the same host."""
        slow = await lab.run(scraper="slow", lane=LanePolicy(limit=1, delay_min=5, delay_max=7))
        await lab.put(slow, "a", "b", lane="host")
        fast = await lab.run(scraper="fast", lane=LanePolicy(limit=8))
        await lab.put(fast, "c", lane="host")
        policy = (await lab.ledger.lanes.get("host")).policy
        assert (policy.limit, policy.delay_min, policy.delay_max) == (1, 5, 7)
        medium = await lab.run(scraper="medium", lane=LanePolicy(limit=4, delay_min=6, delay_max=6))
        await lab.put(medium, "d", lane="host")
        policy = (await lab.ledger.lanes.get("host")).policy
        assert (policy.limit, policy.delay_min, policy.delay_max) == (1, 6, 7)
        await lab.check()

    async def test_the_policy_of_a_run_that_is_over_is_forgotten(self, lab: Lab) -> None:
        """An author who changes the rate and starts anew gets what the code says."""
        slow = await lab.run(lane=LanePolicy(limit=1, delay_min=5, delay_max=7))
        await lab.put(slow, "a", lane="host")
        await lab.ledger.runs.pause(slow.id)
        fast = await lab.run(lane=LanePolicy(limit=8))
        await lab.put(fast, "c", lane="host")
        policy = (await lab.ledger.lanes.get("host")).policy
        assert (policy.limit, policy.delay_min, policy.delay_max) == (8, 0, 0)
        await lab.check()

    async def test_no_more_items_than_the_limit_are_out_at_once(self, lab: Lab) -> None:  # S2.15
        run = await lab.run(lane=LanePolicy(limit=3))
        await lab.put(run, *(f"k{n}" for n in range(10)), lane="host")
        worker = await lab.worker()
        claimed = await lab.claim(worker)
        assert [item.name for item in claimed] == ["k0", "k1", "k2"]
        assert await lab.claim(worker) == []
        await lab.commit(worker, done(claimed[0]), dead(claimed[1]))
        assert await lab.claim_keys(worker) == ["k3", "k4"]
        lane = await lab.ledger.lanes.get("host")
        assert (lane.taken, lane.waiting) == (3, 5)
        await lab.check()

    async def test_a_full_lane_blocks_no_other(self, lab: Lab) -> None:
        run = await lab.run()
        await lab.put(run, *(f"busy{n}" for n in range(50)), lane="busy", priority=-10)
        await lab.put(run, "free", lane="free")
        await lab.put(run, "none")
        assert sorted(await lab.claim_keys(await lab.worker())) == ["busy0", "free", "none"]

    async def test_a_lane_is_shared_by_runs_that_take_turns(self, lab: Lab) -> None:
        first, second = await lab.run(), await lab.run()
        await lab.put(first, *(f"a{n}" for n in range(60)), lane="host")
        await lab.put(second, *(f"b{n}" for n in range(60)), lane="host")
        worker = await lab.worker()
        order = []
        for _ in range(60):
            claimed = await lab.claim(worker)
            assert len(claimed) == 1
            order.append(claimed[0].run_id)
            await lab.finish(worker, claimed)
        assert 12 <= order.count(second.id) <= 48, "a run that came later waits for its turn, not for the end"
        await lab.check()

    async def test_a_lane_of_one_run_is_its_own(self, lab: Lab) -> None:
        own = LanePolicy(limit=1, shared=False)
        first, second = await lab.run(lane=own), await lab.run(lane=own)
        await lab.put(first, "a", lane="host")
        await lab.put(second, "b", lane="host")
        assert sorted(await lab.claim_keys(await lab.worker())) == ["a", "b"]
        assert (await lab.ledger.lanes.get("host", run_id=first.id)).taken == 1
        with pytest.raises(NotFound):
            await lab.ledger.lanes.get("host")

    async def test_starts_keep_their_distance(self, lab: Lab) -> None:  # S3.15
        run = await lab.run(lane=POLITE)
        await lab.put(run, "a", "b", "c", lane="host")
        worker = await lab.worker(lease_seconds=3600)
        claimed = await lab.claim(worker)
        assert [item.name for item in claimed] == ["a"], "one claimable item at a time"
        await lab.jump(300)
        assert await lab.claim(worker) == [], "a claim that sits in a buffer lets nobody out"
        await lab.ledger.claims.started(worker, [claimed[0].lease])
        assert await lab.claim(worker) == []
        await lab.jump(9)
        await lab.ledger.upkeep.tend()
        assert await lab.claim(worker) == [], "not before delay_min"
        await lab.jump(12)
        await lab.ledger.upkeep.tend()
        assert await lab.claim_keys(worker) == ["b"], "while a still runs: the limit is four"
        await lab.check()

    async def test_finishing_without_saying_started_keeps_the_distance_too(self, lab: Lab) -> None:
        run = await lab.run(lane=POLITE)
        await lab.put(run, "a", "b", lane="host")
        worker = await lab.worker(lease_seconds=3600)
        await lab.finish(worker, await lab.claim(worker))
        assert await lab.claim(worker) == []
        await lab.jump(9)
        await lab.ledger.upkeep.tend()
        assert await lab.claim(worker) == []
        await lab.jump(12)
        await lab.ledger.upkeep.tend()
        assert await lab.claim_keys(worker) == ["b"]

    async def test_a_worker_that_died_may_have_started_so_the_distance_counts_from_its_burial(self, lab: Lab) -> None:
        run = await lab.run(lane=POLITE)
        await lab.put(run, "a", "b", lane="host")
        worker, other = await lab.worker(), await lab.worker(lease_seconds=3600)
        await lab.claim(worker)
        await lab.ledger.workers.bury(worker)
        assert await lab.claim(other) == []
        await lab.jump(21)
        await lab.ledger.upkeep.tend()
        assert await lab.claim_keys(other) == ["a"]
        await lab.check()

    async def test_a_throttled_item_stops_its_lane_for_everybody_and_keeps_its_place(self, lab: Lab) -> None:
        run = await lab.run(lane=LanePolicy(limit=2))
        await lab.put(run, "a", "b", "c", "d", lane="host")
        worker = await lab.worker(lease_seconds=3600)
        a, b = await lab.claim(worker)
        await lab.commit(worker, throttled(a, delay=60))
        await lab.commit(worker, done(b))
        assert await lab.claim(worker) == []
        lane = await lab.ledger.lanes.get("host")
        assert 50 < lane.blocked_seconds <= 60
        assert lane.blocked_why == "429 Too Many Requests"
        await lab.jump(30)
        await lab.ledger.upkeep.tend()
        assert await lab.claim(worker) == []
        await lab.jump(31)
        await lab.ledger.upkeep.tend()
        again = await lab.claim(worker)
        assert [(item.name, item.tries) for item in again] == [("a", 0), ("c", 0)]
        await lab.check()

    async def test_a_block_reaches_items_that_were_ready_already(self, lab: Lab) -> None:
        run = await lab.run(lane=LanePolicy(limit=3))
        await lab.put(run, "a", "b", "c", "d", lane="host")
        await lab.put(run, "free")
        await lab.ledger.lanes.block("host", 100, "maintenance", by="me")
        worker = await lab.worker(lease_seconds=3600)
        assert await lab.claim_keys(worker) == ["free"]
        await lab.check()
        await lab.ledger.lanes.block("host", 0, "")
        await lab.jump(15)
        await lab.ledger.upkeep.tend()
        assert sorted(await lab.claim_keys(worker)) == ["a", "b", "c"], "lifting the block needs no patience"
        await lab.check()

    async def test_lifting_a_block_frees_items_that_were_waiting_for_its_end(self, lab: Lab) -> None:
        run = await lab.run(lane=LanePolicy(limit=1))
        await lab.ledger.lanes.block("host", 3600, "Retry-After: 3600", by="me")
        await lab.put(run, "a", "b", lane="host")
        worker = await lab.worker(lease_seconds=7200)
        assert await lab.claim(worker) == []
        await lab.ledger.lanes.block("host", 0, "", by="me")
        await lab.ledger.upkeep.tend()
        assert await lab.claim_keys(worker) == ["a"]
        await lab.check()

    async def test_a_block_that_is_shortened_ends_sooner(self, lab: Lab) -> None:
        run = await lab.run(lane=LanePolicy(limit=1))
        await lab.put(run, "a", lane="host")
        worker = await lab.worker(lease_seconds=7200)
        (a,) = await lab.claim(worker)
        await lab.commit(worker, throttled(a, delay=3600))
        await lab.ledger.lanes.block("host", 30, "a person knows better", by="me")
        await lab.jump(31)
        await lab.ledger.upkeep.tend()
        assert await lab.claim_keys(worker) == ["a"]
        await lab.check()

    async def test_a_shorter_delay_holds_at_once(self, lab: Lab) -> None:
        run = await lab.run(lane=LanePolicy(limit=2, delay_min=3600, delay_max=3600))
        await lab.put(run, "a", "b", lane="host")
        worker = await lab.worker(lease_seconds=7200)
        (a,) = await lab.claim(worker)
        await lab.ledger.claims.started(worker, [a.lease])
        assert await lab.claim(worker) == []
        await lab.ledger.lanes.set("host", delay=(0, 5), by="me")
        await lab.jump(6)
        await lab.ledger.upkeep.tend()
        assert await lab.claim_keys(worker) == ["b"]
        await lab.check()

    async def test_many_runs_behind_one_lane(self, lab: Lab) -> None:
        runs = [await lab.run(lane=LanePolicy(limit=2)) for _ in range(12)]
        for run in runs:
            await lab.put(run, "a", lane="host")
        worker = await lab.worker()
        seen: set[str] = set()
        while claimed := await lab.claim(worker):
            assert len(claimed) <= 2
            seen.update(item.run_id for item in claimed)
            await lab.finish(worker, claimed)
        assert seen == {run.id for run in runs}
        await lab.check()

    async def test_a_paused_lane_hands_out_nothing_until_it_goes_on(self, lab: Lab) -> None:
        run = await lab.run(lane=LanePolicy(limit=2))
        await lab.put(run, "a", "b", "c", lane="host")
        worker = await lab.worker(lease_seconds=3600)
        await lab.ledger.lanes.set("host", paused=True, by="me")
        assert await lab.claim(worker) == []
        await lab.jump(100)
        await lab.ledger.upkeep.tend()
        assert await lab.claim(worker) == []
        await lab.ledger.lanes.set("host", paused=False)
        await lab.jump(5)
        await lab.ledger.upkeep.tend()
        assert sorted(await lab.claim_keys(worker)) == ["a", "b"]
        await lab.check()

    async def test_limits_change_while_the_run_goes_on(self, lab: Lab) -> None:
        run = await lab.run(lane=LanePolicy(limit=1))
        await lab.put(run, *"abcdef", lane="host")
        worker = await lab.worker()
        (a,) = await lab.claim(worker)
        await lab.ledger.lanes.set("host", limit=3, by="me")
        b, c = await lab.claim(worker)
        await lab.ledger.lanes.set("host", limit=1, by="me")
        await lab.commit(worker, done(a), done(b))
        assert await lab.claim(worker) == [], "one is still out"
        await lab.commit(worker, done(c))
        assert await lab.claim_keys(worker) == ["d"]
        await lab.check()

    async def test_a_delay_can_be_given_to_a_lane_that_had_none(self, lab: Lab) -> None:
        run = await lab.run(lane=LanePolicy(limit=5))
        await lab.put(run, *"abcdefg", lane="host")
        worker = await lab.worker(lease_seconds=3600)
        first = await lab.claim(worker, 5)
        await lab.ledger.lanes.set("host", delay=(10, 10), by="me")
        await lab.ledger.claims.started(worker, [item.lease for item in first])
        await lab.finish(worker, first)
        assert await lab.claim(worker) == []
        await lab.jump(11)
        await lab.ledger.upkeep.tend()
        assert await lab.claim_keys(worker) == ["f"]
        await lab.check()

    async def test_what_an_operator_set_outranks_what_stages_declare(self, lab: Lab) -> None:
        first = await lab.run(lane=LanePolicy(limit=5))
        await lab.put(first, "a", lane="host")
        await lab.put(await lab.run(lane=LanePolicy(limit=6)), "b", lane="host")
        assert (await lab.ledger.lanes.get("host")).policy.limit == 5, "the stricter of two that are under way counts"
        await lab.ledger.lanes.set("host", limit=2, by="me")
        await lab.put(await lab.run(lane=LanePolicy(limit=7)), "c", lane="host")
        lane = await lab.ledger.lanes.get("host")
        assert (lane.policy.limit, lane.set_by_operator) == (2, True)

    async def test_an_older_run_does_not_pull_a_lane_back_to_its_own_policy(self, lab: Lab) -> None:
        older, newer = await lab.run(lane=LanePolicy(limit=5)), await lab.run(lane=LanePolicy(limit=2))
        await lab.put(older, "a", lane="host")
        await lab.put(newer, "b", lane="host")
        await lab.put(older, "c", lane="host")
        assert (await lab.ledger.lanes.get("host")).policy.limit == 2

    async def test_a_group_runs_one_after_another_in_order(self, lab: Lab) -> None:  # S2.3
        run = await lab.run(lane=GROUP)
        await lab.put(run, "fiji", "samoa", "tonga", lane="newspaper")
        await lab.put(run, "single")
        worker = await lab.worker()
        seen = []
        while claimed := await lab.claim(worker):
            seen.append([item.name for item in claimed])
            await lab.finish(worker, claimed)
        assert seen == [["fiji", "single"], ["samoa"], ["tonga"]]

    async def test_a_retrying_head_keeps_its_place_in_a_group(self, lab: Lab) -> None:
        run = await lab.run(lane=GROUP)
        await lab.put(run, "one", "two", lane="group")
        worker = await lab.worker(lease_seconds=3600)
        (one,) = await lab.claim(worker)
        await lab.put(run, "hurry", lane="group", priority=-5)
        await lab.commit(worker, retry(one, delay=30))
        assert await lab.claim(worker) == [], "nobody overtakes the head"
        await lab.jump(31)
        await lab.ledger.upkeep.tend()
        (again,) = await lab.claim(worker)
        assert again.name == "one"
        await lab.commit(worker, done(again))
        assert await lab.claim_keys(worker) == ["hurry"]
        await lab.check()

    async def test_a_crashed_head_keeps_its_place_in_a_group(self, lab: Lab) -> None:
        run = await lab.run(lane=GROUP)
        await lab.put(run, "one", "two", lane="group")
        worker, other = await lab.worker(), await lab.worker()
        (one,) = await lab.claim(worker)
        await lab.ledger.claims.started(worker, [one.lease])
        await lab.ledger.workers.bury(worker)
        await lab.ledger.upkeep.tend()
        assert await lab.claim_keys(other) == ["one"]
        await lab.check()

    async def test_a_dead_head_lets_the_group_go_on(self, lab: Lab) -> None:  # S2.11
        run = await lab.run(lane=GROUP)
        await lab.put(run, "one", "two", lane="group")
        worker = await lab.worker()
        (one,) = await lab.claim(worker)
        await lab.commit(worker, dead(one))
        assert await lab.claim_keys(worker) == ["two"]

    async def test_a_retry_behind_a_host_does_not_hold_its_place(self, lab: Lab) -> None:
        run = await lab.run(lane=LanePolicy(limit=1))
        await lab.put(run, "a", "b", "c", lane="host")
        worker = await lab.worker(lease_seconds=3600)
        (a,) = await lab.claim(worker)
        await lab.commit(worker, retry(a, delay=300))
        (b,) = await lab.claim(worker)
        assert b.name == "b"
        await lab.jump(301)
        await lab.ledger.upkeep.tend()
        assert await lab.claim(worker) == [], "b is still out"
        await lab.commit(worker, done(b))
        assert await lab.claim_keys(worker) == ["a"], "its old place, before c"
        await lab.check()

    async def test_follow_ups_meet_the_gate_of_their_lane(self, lab: Lab) -> None:
        run = await lab.run("list", "page", lane=LanePolicy(limit=2))
        await lab.put(run, "l")
        worker = await lab.worker()
        (claimed,) = await lab.claim(worker)
        new = [NewItem(key=f"p{n}", stage="page", lane="host") for n in range(5)]
        await lab.commit(worker, done(claimed, follow_ups=new))
        assert await lab.claim_keys(worker) == ["p0", "p1"]
        assert (await lab.ledger.lanes.get("host")).waiting == 3
        await lab.check()

    async def test_an_item_that_follows_itself_through_one_lane(self, lab: Lab) -> None:
        run = await lab.run("list", "page", lane=LanePolicy(limit=1))
        await lab.put(run, "k", lane="host")
        worker = await lab.worker()
        (claimed,) = await lab.claim(worker)
        await lab.commit(worker, done(claimed, follow_ups=[NewItem(key="k", stage="page", lane="host")]))
        (following,) = await lab.claim(worker)
        assert following.stage == "page"
        await lab.check()

    async def test_a_delayed_item_with_a_lane_takes_its_turn_when_due(self, lab: Lab) -> None:
        run = await lab.run(lane=LanePolicy(limit=1))
        await lab.put(run, "later", lane="host", delay=50.0)
        await lab.put(run, "now", lane="host")
        worker = await lab.worker(lease_seconds=3600)
        (now,) = await lab.claim(worker)
        assert now.name == "now"
        await lab.jump(51)
        await lab.ledger.upkeep.tend()
        assert await lab.claim(worker) == []
        await lab.commit(worker, done(now))
        assert await lab.claim_keys(worker) == ["later"]
        await lab.check()

    async def test_stages_have_their_own_lane_policies(self, lab: Lab) -> None:
        run = await lab.ledger.runs.create(
            RunSpec(
                scraper="s",
                stages=(StageSpec("a", lane=LanePolicy(limit=2)), StageSpec("b", lane=LanePolicy(limit=3))),
            )
        )
        await lab.put(run, "x", lane="for-a")
        await lab.put(run, "y", lane="for-b", stage="b")
        lanes = (await lab.ledger.lanes.list()).rows
        assert [(lane.key, lane.policy.limit) for lane in lanes] == [("for-a", 2), ("for-b", 3)]

    async def test_lanes_are_listed_in_pages(self, lab: Lab) -> None:
        run = await lab.run()
        for name in "dbca":
            await lab.put(run, name, lane=name)
        first = await lab.ledger.lanes.list(limit=3)
        rest = await lab.ledger.lanes.list(limit=3, cursor=first.cursor)
        assert [lane.key for lane in (*first.rows, *rest.rows)] == list("abcd")

    async def test_senseless_changes_are_refused(self, lab: Lab) -> None:
        for call in (
            lab.ledger.lanes.set("host", limit=0),
            lab.ledger.lanes.set("host", limit=-3),
            lab.ledger.lanes.set("host", delay=(-1, 5)),
            lab.ledger.lanes.set("host", delay=(5, 1)),
            lab.ledger.lanes.block("host", -5, "?"),
        ):
            with pytest.raises(InvalidSetting):
                await call
        with pytest.raises(NotFound):
            await lab.ledger.lanes.get("host")
