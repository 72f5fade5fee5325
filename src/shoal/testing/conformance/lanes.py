"""Lanes: limits, delays, blocks, order."""

from __future__ import annotations

import pytest

from shoal.errors import InvalidSetting, NotFound
from shoal.model.item import ClaimedItem, NewItem
from shoal.model.lane import LanePolicy
from shoal.model.run import RunSpec, StageSpec
from shoal.model.worker import Scope
from shoal.testing.harness import LedgerHarness, dead, done, retry, throttled

POLITE = LanePolicy(limit=4, delay_min=10, delay_max=20)
GROUP = LanePolicy(limit=1, ordered=True, shared=False)


class LanesConformance:
    @pytest.mark.parametrize("policy", [LanePolicy(limit=2), LanePolicy(limit=2, delay_min=1, delay_max=1)])
    async def test_a_run_without_workers_holds_no_slots(self, harness: LedgerHarness, policy: LanePolicy) -> None:
        """Until a worker serves a run, its items must not use slots of a host that other runs need."""
        later = await harness.run(scraper="later", lane=policy)
        await harness.put(later, "a", "b", "c", lane="host")
        now = await harness.run(scraper="now", lane=policy)
        await harness.put(now, "x", "y", "z", lane="host")
        worker = await harness.worker(scope=Scope(scraper="now"))
        done_keys: list[str] = []
        for _ in range(40):
            await harness.ledger.upkeep.run_once()
            for claimed in await harness.claim(worker, scope=Scope(scraper="now")):
                await harness.ledger.claims.mark_started(worker, [claimed.lease])
                await harness.finish(worker, [claimed])
                done_keys.append(claimed.name)
            await harness.advance_clock(1)
            await harness.ledger.workers.heartbeat(worker)
        assert sorted(done_keys) == ["x", "y", "z"]
        assert (await harness.ledger.reads.why_run(later.id))[0].code == "no_worker"
        await harness.check()
        # With a worker, it gets its slots at once.
        helper = await harness.worker(scope=Scope(run_ids=(later.id,)))
        assert await harness.claim(helper, scope=Scope(run_ids=(later.id,)))
        await harness.check()

    async def test_runs_are_not_idle_while_there_is_no_worker(self, harness: LedgerHarness) -> None:
        run = await harness.run(lane=LanePolicy(limit=1))
        await harness.put(run, "a", "b", lane="host")
        await harness.advance_clock(10)
        await harness.ledger.upkeep.run_once()
        assert await harness.state(run, "a") == "ready"

    async def test_a_policy_may_exempt_hosts_on_this_machine(self, harness: LedgerHarness) -> None:
        policy = LanePolicy(limit=1, delay_min=2, delay_max=3, loopback_limit=8)
        run = await harness.run(lane=policy)
        worker = await harness.worker()
        hosts = ("127.0.0.1:8080", "127.8.9.10", "localhost", "a.localhost:80", "[::1]:8080")
        for number, host in enumerate(hosts):
            await harness.put(run, str(number), lane=host)
            await harness.ledger.lanes.request_slot(
                worker, f"api.{number}.localhost", number, run_id=run.id, stage="page"
            )
            for lane in (host, f"api.{number}.localhost"):
                found = (await harness.ledger.lanes.get(lane)).policy
                assert (found.limit, found.delay_min, found.delay_max) == (8, 0, 0)
        for number, host in enumerate(("example.com", "127.0.0.1.example.com", "localhost.example.com", "10.0.0.1")):
            await harness.put(run, f"far {number}", lane=host)
            found = (await harness.ledger.lanes.get(host)).policy
            assert (found.limit, found.delay_min, found.delay_max) == (1, 2, 3)

    async def test_the_stricter_policy_of_two_active_runs_applies(self, harness: LedgerHarness) -> None:
        """The last run to start must not weaken the policy of another active run for the same host."""
        slow = await harness.run(scraper="slow", lane=LanePolicy(limit=1, delay_min=5, delay_max=7))
        await harness.put(slow, "a", "b", lane="host")
        fast = await harness.run(scraper="fast", lane=LanePolicy(limit=8))
        await harness.put(fast, "c", lane="host")
        policy = (await harness.ledger.lanes.get("host")).policy
        assert (policy.limit, policy.delay_min, policy.delay_max) == (1, 5, 7)
        medium = await harness.run(scraper="medium", lane=LanePolicy(limit=4, delay_min=6, delay_max=6))
        await harness.put(medium, "d", lane="host")
        policy = (await harness.ledger.lanes.get("host")).policy
        assert (policy.limit, policy.delay_min, policy.delay_max) == (1, 6, 7)
        await harness.check()

    async def test_the_policy_of_a_finished_run_no_longer_applies(self, harness: LedgerHarness) -> None:
        """An author who changes the rate and starts anew gets what the code says."""
        slow = await harness.run(lane=LanePolicy(limit=1, delay_min=5, delay_max=7))
        await harness.put(slow, "a", lane="host")
        await harness.ledger.runs.pause(slow.id)
        fast = await harness.run(lane=LanePolicy(limit=8))
        await harness.put(fast, "c", lane="host")
        policy = (await harness.ledger.lanes.get("host")).policy
        assert (policy.limit, policy.delay_min, policy.delay_max) == (8, 0, 0)
        await harness.check()

    async def test_no_more_items_are_admitted_than_the_limit(self, harness: LedgerHarness) -> None:  # S2.15
        run = await harness.run(lane=LanePolicy(limit=3))
        await harness.put(run, *(f"k{n}" for n in range(10)), lane="host")
        worker = await harness.worker()
        claimed = await harness.claim(worker)
        assert [item.name for item in claimed] == ["k0", "k1", "k2"]
        assert await harness.claim(worker) == []
        await harness.commit(worker, done(claimed[0]), dead(claimed[1]))
        assert await harness.claim_keys(worker) == ["k3", "k4"]
        lane = await harness.ledger.lanes.get("host")
        assert (lane.taken, lane.waiting) == (3, 5)
        await harness.check()

    async def test_a_full_lane_blocks_no_other(self, harness: LedgerHarness) -> None:
        run = await harness.run()
        await harness.put(run, *(f"busy{n}" for n in range(50)), lane="busy", priority=-10)
        await harness.put(run, "free", lane="free")
        await harness.put(run, "none")
        assert sorted(await harness.claim_keys(await harness.worker())) == ["busy0", "free", "none"]

    async def test_a_lane_is_shared_by_runs_that_take_turns(self, harness: LedgerHarness) -> None:
        first, second = await harness.run(), await harness.run()
        await harness.put(first, *(f"a{n}" for n in range(60)), lane="host")
        await harness.put(second, *(f"b{n}" for n in range(60)), lane="host")
        worker = await harness.worker()
        order = []
        for _ in range(60):
            claimed = await harness.claim(worker)
            assert len(claimed) == 1
            order.append(claimed[0].run_id)
            await harness.finish(worker, claimed)
        assert 12 <= order.count(second.id) <= 48, "a run that came later waits for its turn, not for the end"
        await harness.check()

    async def test_a_lane_of_one_run_is_its_own(self, harness: LedgerHarness) -> None:
        own = LanePolicy(limit=1, shared=False)
        first, second = await harness.run(lane=own), await harness.run(lane=own)
        await harness.put(first, "a", lane="host")
        await harness.put(second, "b", lane="host")
        assert sorted(await harness.claim_keys(await harness.worker())) == ["a", "b"]
        assert (await harness.ledger.lanes.get("host", run_id=first.id)).taken == 1
        with pytest.raises(NotFound):
            await harness.ledger.lanes.get("host")

    async def test_starts_keep_their_distance(self, harness: LedgerHarness) -> None:  # S3.15
        run = await harness.run(lane=POLITE)
        await harness.put(run, "a", "b", "c", lane="host")
        worker = await harness.worker(lease_seconds=3600)
        claimed = await harness.claim(worker)
        assert [item.name for item in claimed] == ["a"], "one claimable item at a time"
        await harness.advance_clock(300)
        assert await harness.claim(worker) == [], "a claimed item that has not started admits no other"
        await harness.ledger.claims.mark_started(worker, [claimed[0].lease])
        assert await harness.claim(worker) == []
        await harness.advance_clock(9)
        await harness.ledger.upkeep.run_once()
        assert await harness.claim(worker) == [], "not before delay_min"
        await harness.advance_clock(12)
        await harness.ledger.upkeep.run_once()
        assert await harness.claim_keys(worker) == ["b"], "while a still runs: the limit is four"
        await harness.check()

    async def test_finishing_without_a_reported_start_keeps_the_delay(self, harness: LedgerHarness) -> None:
        run = await harness.run(lane=POLITE)
        await harness.put(run, "a", "b", lane="host")
        worker = await harness.worker(lease_seconds=3600)
        await harness.finish(worker, await harness.claim(worker))
        assert await harness.claim(worker) == []
        await harness.advance_clock(9)
        await harness.ledger.upkeep.run_once()
        assert await harness.claim(worker) == []
        await harness.advance_clock(12)
        await harness.ledger.upkeep.run_once()
        assert await harness.claim_keys(worker) == ["b"]

    async def test_a_dead_worker_may_have_started_so_the_delay_counts_from_its_death(
        self, harness: LedgerHarness
    ) -> None:
        run = await harness.run(lane=POLITE)
        await harness.put(run, "a", "b", lane="host")
        worker, other = await harness.worker(), await harness.worker(lease_seconds=3600)
        await harness.claim(worker)
        await harness.ledger.workers.mark_dead(worker)
        assert await harness.claim(other) == []
        await harness.advance_clock(21)
        await harness.ledger.upkeep.run_once()
        assert await harness.claim_keys(other) == ["a"]
        await harness.check()

    async def test_a_throttled_item_blocks_its_lane_and_keeps_its_order(self, harness: LedgerHarness) -> None:
        run = await harness.run(lane=LanePolicy(limit=2))
        await harness.put(run, "a", "b", "c", "d", lane="host")
        worker = await harness.worker(lease_seconds=3600)
        a, b = await harness.claim(worker)
        await harness.commit(worker, throttled(a, delay=60))
        await harness.commit(worker, done(b))
        assert await harness.claim(worker) == []
        lane = await harness.ledger.lanes.get("host")
        assert 50 < lane.blocked_seconds <= 60
        assert lane.blocked_why == "429 Too Many Requests"
        await harness.advance_clock(30)
        await harness.ledger.upkeep.run_once()
        assert await harness.claim(worker) == []
        await harness.advance_clock(31)
        await harness.ledger.upkeep.run_once()
        again = await harness.claim(worker)
        assert [(item.name, item.tries) for item in again] == [("a", 0), ("c", 0)]
        await harness.check()

    async def test_a_block_defers_items_that_are_ready_already(self, harness: LedgerHarness) -> None:
        run = await harness.run(lane=LanePolicy(limit=3))
        await harness.put(run, "a", "b", "c", "d", lane="host")
        await harness.put(run, "free")
        await harness.ledger.lanes.block("host", 100, "maintenance", by="me")
        worker = await harness.worker(lease_seconds=3600)
        assert await harness.claim_keys(worker) == ["free"]
        await harness.check()
        await harness.ledger.lanes.block("host", 0, "")
        await harness.advance_clock(15)
        await harness.ledger.upkeep.run_once()
        assert sorted(await harness.claim_keys(worker)) == ["a", "b", "c"], "lifting the block needs no patience"
        await harness.check()

    async def test_lifting_a_block_frees_items_that_were_waiting_for_its_end(self, harness: LedgerHarness) -> None:
        run = await harness.run(lane=LanePolicy(limit=1))
        await harness.ledger.lanes.block("host", 3600, "Retry-After: 3600", by="me")
        await harness.put(run, "a", "b", lane="host")
        worker = await harness.worker(lease_seconds=7200)
        assert await harness.claim(worker) == []
        await harness.ledger.lanes.block("host", 0, "", by="me")
        await harness.ledger.upkeep.run_once()
        assert await harness.claim_keys(worker) == ["a"]
        await harness.check()

    async def test_a_block_that_is_shortened_ends_sooner(self, harness: LedgerHarness) -> None:
        run = await harness.run(lane=LanePolicy(limit=1))
        await harness.put(run, "a", lane="host")
        worker = await harness.worker(lease_seconds=7200)
        (a,) = await harness.claim(worker)
        await harness.commit(worker, throttled(a, delay=3600))
        await harness.ledger.lanes.block("host", 30, "a person knows better", by="me")
        await harness.advance_clock(31)
        await harness.ledger.upkeep.run_once()
        assert await harness.claim_keys(worker) == ["a"]
        await harness.check()

    async def test_a_shorter_delay_applies_at_once(self, harness: LedgerHarness) -> None:
        run = await harness.run(lane=LanePolicy(limit=2, delay_min=3600, delay_max=3600))
        await harness.put(run, "a", "b", lane="host")
        worker = await harness.worker(lease_seconds=7200)
        (a,) = await harness.claim(worker)
        await harness.ledger.claims.mark_started(worker, [a.lease])
        assert await harness.claim(worker) == []
        await harness.ledger.lanes.set("host", delay=(0, 5), by="me")
        await harness.advance_clock(6)
        await harness.ledger.upkeep.run_once()
        assert await harness.claim_keys(worker) == ["b"]
        await harness.check()

    async def test_many_runs_behind_one_lane(self, harness: LedgerHarness) -> None:
        runs = [await harness.run(lane=LanePolicy(limit=2)) for _ in range(12)]
        for run in runs:
            await harness.put(run, "a", lane="host")
        worker = await harness.worker()
        seen: set[str] = set()
        while claimed := await harness.claim(worker):
            assert len(claimed) <= 2
            seen.update(item.run_id for item in claimed)
            await harness.finish(worker, claimed)
        assert seen == {run.id for run in runs}
        await harness.check()

    async def test_a_paused_lane_gives_no_items_until_resumed(self, harness: LedgerHarness) -> None:
        run = await harness.run(lane=LanePolicy(limit=2))
        await harness.put(run, "a", "b", "c", lane="host")
        worker = await harness.worker(lease_seconds=3600)
        await harness.ledger.lanes.set("host", paused=True, by="me")
        assert await harness.claim(worker) == []
        await harness.advance_clock(100)
        await harness.ledger.upkeep.run_once()
        assert await harness.claim(worker) == []
        await harness.ledger.lanes.set("host", paused=False)
        await harness.advance_clock(5)
        await harness.ledger.upkeep.run_once()
        assert sorted(await harness.claim_keys(worker)) == ["a", "b"]
        await harness.check()

    async def test_limits_change_during_a_run(self, harness: LedgerHarness) -> None:
        run = await harness.run(lane=LanePolicy(limit=1))
        await harness.put(run, *"abcdef", lane="host")
        worker = await harness.worker()
        (a,) = await harness.claim(worker)
        await harness.ledger.lanes.set("host", limit=3, by="me")
        b, c = await harness.claim(worker)
        await harness.ledger.lanes.set("host", limit=1, by="me")
        await harness.commit(worker, done(a), done(b))
        assert await harness.claim(worker) == [], "one is still out"
        await harness.commit(worker, done(c))
        assert await harness.claim_keys(worker) == ["d"]
        await harness.check()

    async def test_a_lowered_limit_holds_for_items_that_were_admitted_before(self, harness: LedgerHarness) -> None:
        run = await harness.run(lane=LanePolicy(limit=5))
        await harness.put(run, *"abcdefg", lane="host")
        worker = await harness.worker(lease_seconds=3600)
        (a,) = await harness.claim(worker, 1)
        await harness.ledger.lanes.set("host", limit=2, by="me")
        claimed = await _claim_what_may_start(harness, worker)
        assert [item.name for item in claimed] == ["b"], "with the one that is out, these are two"
        await harness.finish(worker, [a, *claimed])
        assert [item.name for item in await _claim_what_may_start(harness, worker)] == ["c", "d"]
        await harness.check()

    async def test_a_delay_can_be_given_to_a_lane_that_had_none(self, harness: LedgerHarness) -> None:
        run = await harness.run(lane=LanePolicy(limit=5))
        await harness.put(run, *"abcdefg", lane="host")
        worker = await harness.worker(lease_seconds=3600)
        first = await harness.claim(worker, 5)
        await harness.ledger.lanes.set("host", delay=(10, 10), by="me")
        await harness.ledger.claims.mark_started(worker, [item.lease for item in first])
        await harness.finish(worker, first)
        assert await harness.claim(worker) == []
        await harness.advance_clock(11)
        await harness.ledger.upkeep.run_once()
        assert await harness.claim_keys(worker) == ["f"]
        await harness.check()

    async def test_settings_of_an_operator_override_what_stages_declare(self, harness: LedgerHarness) -> None:
        first = await harness.run(lane=LanePolicy(limit=5))
        await harness.put(first, "a", lane="host")
        await harness.put(await harness.run(lane=LanePolicy(limit=6)), "b", lane="host")
        assert (await harness.ledger.lanes.get("host")).policy.limit == 5, (
            "the stricter of two that are under way counts"
        )
        await harness.ledger.lanes.set("host", limit=2, by="me")
        await harness.put(await harness.run(lane=LanePolicy(limit=7)), "c", lane="host")
        lane = await harness.ledger.lanes.get("host")
        assert (lane.policy.limit, lane.set_by_operator) == (2, True)

    async def test_an_older_run_does_not_change_a_lane_back(self, harness: LedgerHarness) -> None:
        older, newer = await harness.run(lane=LanePolicy(limit=5)), await harness.run(lane=LanePolicy(limit=2))
        await harness.put(older, "a", lane="host")
        await harness.put(newer, "b", lane="host")
        await harness.put(older, "c", lane="host")
        assert (await harness.ledger.lanes.get("host")).policy.limit == 2

    async def test_an_ordered_lane_runs_one_item_after_another(self, harness: LedgerHarness) -> None:  # S2.3
        run = await harness.run(lane=GROUP)
        await harness.put(run, "fiji", "samoa", "tonga", lane="newspaper")
        await harness.put(run, "single")
        worker = await harness.worker()
        seen = []
        while claimed := await harness.claim(worker):
            seen.append([item.name for item in claimed])
            await harness.finish(worker, claimed)
        assert seen == [["fiji", "single"], ["samoa"], ["tonga"]]

    async def test_a_retrying_item_keeps_its_slot_in_an_ordered_lane(self, harness: LedgerHarness) -> None:
        run = await harness.run(lane=GROUP)
        await harness.put(run, "one", "two", lane="group")
        worker = await harness.worker(lease_seconds=3600)
        (one,) = await harness.claim(worker)
        await harness.put(run, "hurry", lane="group", priority=-5)
        await harness.commit(worker, retry(one, delay=30))
        assert await harness.claim(worker) == [], "no item overtakes the first"
        await harness.advance_clock(31)
        await harness.ledger.upkeep.run_once()
        (again,) = await harness.claim(worker)
        assert again.name == "one"
        await harness.commit(worker, done(again))
        assert await harness.claim_keys(worker) == ["hurry"]
        await harness.check()

    async def test_a_crashed_item_keeps_its_slot_in_an_ordered_lane(self, harness: LedgerHarness) -> None:
        run = await harness.run(lane=GROUP)
        await harness.put(run, "one", "two", lane="group")
        worker, other = await harness.worker(), await harness.worker()
        (one,) = await harness.claim(worker)
        await harness.ledger.claims.mark_started(worker, [one.lease])
        await harness.ledger.workers.mark_dead(worker)
        await harness.ledger.upkeep.run_once()
        assert await harness.claim_keys(other) == ["one"]
        await harness.check()

    async def test_an_ordered_lane_continues_after_a_dead_item(self, harness: LedgerHarness) -> None:  # S2.11
        run = await harness.run(lane=GROUP)
        await harness.put(run, "one", "two", lane="group")
        worker = await harness.worker()
        (one,) = await harness.claim(worker)
        await harness.commit(worker, dead(one))
        assert await harness.claim_keys(worker) == ["two"]

    async def test_a_retrying_item_in_a_host_lane_does_not_keep_its_slot(self, harness: LedgerHarness) -> None:
        run = await harness.run(lane=LanePolicy(limit=1))
        await harness.put(run, "a", "b", "c", lane="host")
        worker = await harness.worker(lease_seconds=3600)
        (a,) = await harness.claim(worker)
        await harness.commit(worker, retry(a, delay=300))
        (b,) = await harness.claim(worker)
        assert b.name == "b"
        await harness.advance_clock(301)
        await harness.ledger.upkeep.run_once()
        assert await harness.claim(worker) == [], "b is still out"
        await harness.commit(worker, done(b))
        assert await harness.claim_keys(worker) == ["a"], "its old position, before c"
        await harness.check()

    async def test_follow_ups_are_limited_by_their_lane(self, harness: LedgerHarness) -> None:
        run = await harness.run("list", "page", lane=LanePolicy(limit=2))
        await harness.put(run, "l")
        worker = await harness.worker()
        (claimed,) = await harness.claim(worker)
        new = [NewItem(key=f"p{n}", stage="page", lane="host") for n in range(5)]
        await harness.commit(worker, done(claimed, follow_ups=new))
        assert await harness.claim_keys(worker) == ["p0", "p1"]
        assert (await harness.ledger.lanes.get("host")).waiting == 3
        await harness.check()

    async def test_a_follow_up_in_the_lane_of_its_parent(self, harness: LedgerHarness) -> None:
        run = await harness.run("list", "page", lane=LanePolicy(limit=1))
        await harness.put(run, "k", lane="host")
        worker = await harness.worker()
        (claimed,) = await harness.claim(worker)
        await harness.commit(worker, done(claimed, follow_ups=[NewItem(key="k", stage="page", lane="host")]))
        (following,) = await harness.claim(worker)
        assert following.stage == "page"
        await harness.check()

    async def test_a_delayed_item_with_a_lane_takes_its_turn_when_due(self, harness: LedgerHarness) -> None:
        run = await harness.run(lane=LanePolicy(limit=1))
        await harness.put(run, "later", lane="host", delay=50.0)
        await harness.put(run, "now", lane="host")
        worker = await harness.worker(lease_seconds=3600)
        (now,) = await harness.claim(worker)
        assert now.name == "now"
        await harness.advance_clock(51)
        await harness.ledger.upkeep.run_once()
        assert await harness.claim(worker) == []
        await harness.commit(worker, done(now))
        assert await harness.claim_keys(worker) == ["later"]
        await harness.check()

    async def test_stages_have_their_own_lane_policies(self, harness: LedgerHarness) -> None:
        run = await harness.ledger.runs.create(
            RunSpec(
                scraper="s",
                stages=(StageSpec("a", lane=LanePolicy(limit=2)), StageSpec("b", lane=LanePolicy(limit=3))),
            )
        )
        await harness.put(run, "x", lane="for-a")
        await harness.put(run, "y", lane="for-b", stage="b")
        lanes = (await harness.ledger.lanes.list()).rows
        assert [(lane.key, lane.policy.limit) for lane in lanes] == [("for-a", 2), ("for-b", 3)]

    async def test_lanes_are_listed_in_pages(self, harness: LedgerHarness) -> None:
        run = await harness.run()
        for name in "dbca":
            await harness.put(run, name, lane=name)
        first = await harness.ledger.lanes.list(limit=3)
        rest = await harness.ledger.lanes.list(limit=3, cursor=first.cursor)
        assert [lane.key for lane in (*first.rows, *rest.rows)] == list("abcd")

    async def test_invalid_lane_changes_are_refused(self, harness: LedgerHarness) -> None:
        for call in (
            harness.ledger.lanes.set("host", limit=0),
            harness.ledger.lanes.set("host", limit=-3),
            harness.ledger.lanes.set("host", delay=(-1, 5)),
            harness.ledger.lanes.set("host", delay=(5, 1)),
            harness.ledger.lanes.block("host", -5, "?"),
        ):
            with pytest.raises(InvalidSetting):
                await call
        with pytest.raises(NotFound):
            await harness.ledger.lanes.get("host")


async def _claim_what_may_start(harness: LedgerHarness, worker: str) -> list[ClaimedItem]:
    """Claims and upkeep in turn, as a worker does, until nothing more may start."""
    found: list[ClaimedItem] = []
    for _ in range(3):
        found += await harness.claim(worker)
        await harness.ledger.upkeep.run_once()
    return found
