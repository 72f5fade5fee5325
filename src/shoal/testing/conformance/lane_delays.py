"""Delays of lanes: starts that workers reserve, and minimum delays."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterable

import pytest

from shoal.errors import InvalidSetting, NotFound
from shoal.model.item import ClaimedItem
from shoal.model.lane import LanePolicy, StartRequest
from shoal.testing.harness import LedgerHarness, done, retry, throttled

SPACED = LanePolicy(limit=4, delay_min=10, delay_max=10)
SECOND = 1.0
SlowDown = Callable[[LedgerHarness], Awaitable[object]]


async def reserve_start(
    harness: LedgerHarness, worker: str, key: str = "host", *, run_id: str | None = None, **request: float
) -> float:
    """One start beyond an item's own: the seconds until it; below 0 when none was given."""
    starts = await harness.ledger.lanes.reserve(worker, key, StartRequest(**request), run_id=run_id)  # type: ignore[arg-type]
    return starts.waits[0] if starts.waits else -starts.next_in


def are_near(waits: Iterable[float], *expected: float) -> bool:
    """Whether they are these, or less by what a busy machine has spent since they were counted: up to half a delay."""
    return all(most - 5 < wait <= most for wait, most in zip(waits, expected, strict=True))


async def start(harness: LedgerHarness, worker: str, *claimed: ClaimedItem) -> tuple[float, ...]:
    """Reserve the starts of items of one lane: the seconds until each."""
    lane = claimed[0].lane
    assert lane is not None
    request = StartRequest(leases=tuple(item.lease for item in claimed), count=len(claimed))
    starts = await harness.ledger.lanes.reserve(worker, lane, request)
    assert starts.lost == frozenset()
    return starts.waits


async def advance(harness: LedgerHarness, seconds: float) -> None:
    await harness.advance_clock(seconds)
    await harness.ledger.upkeep.run_once()


async def by_floor(harness: LedgerHarness) -> object:
    return await harness.ledger.lanes.set_delay_floor("host", 10, "robots.txt")


async def by_operator(harness: LedgerHarness) -> object:
    return await harness.ledger.lanes.set("host", delay=(10, 10), by="me")


async def by_a_newer_stage(harness: LedgerHarness) -> object:
    run = await harness.run(lane=LanePolicy(limit=5, delay_min=10, delay_max=10))
    await harness.put(run, "newer", lane="host", delay=86_400.0)
    return None


class LaneDelayConformance:
    async def test_a_declared_lane_paces_starts_that_no_item_has(self, harness: LedgerHarness) -> None:
        lanes = harness.ledger.lanes
        worker = await harness.worker()
        await lanes.declare("host via homes/1", (8.0, 8.0))
        first = await lanes.reserve(worker, "host via homes/1", StartRequest())
        await lanes.declare("host via homes/1", (8.0, 8.0))
        second = await lanes.reserve(worker, "host via homes/1", StartRequest())
        assert first.waits == (0.0,)
        assert 4 < second.waits[0] <= 8

    async def test_a_declaration_changes_the_delay_but_not_what_an_operator_set(self, harness: LedgerHarness) -> None:
        lanes = harness.ledger.lanes
        await lanes.declare("host via homes/1", (8.0, 20.0))
        await lanes.declare("host via homes/1", (1.0, 2.0))
        assert (await lanes.get("host via homes/1")).policy.delay_max == 2.0
        await lanes.set("host via homes/1", delay=(5.0, 5.0))
        await lanes.declare("host via homes/1", (1.0, 2.0))
        assert (await lanes.get("host via homes/1")).policy.delay_min == 5.0

    async def test_items_say_whether_they_are_paced(self, harness: LedgerHarness) -> None:
        run = await harness.run("spaced", lane=SPACED)
        free = await harness.run("free", lane=LanePolicy(limit=2))
        await harness.put(run, "a", lane="host")
        await harness.put(run, "b")
        await harness.put(free, "c", lane="open-host")
        await harness.put(free, "d", lane="slow-host")
        await harness.ledger.lanes.set_delay_floor("slow-host", 5, "robots.txt")
        worker = await harness.worker()
        claimed = [*await harness.claim(worker), *await harness.claim(worker)]
        assert {item.name: item.paced for item in claimed} == {"a": True, "b": False, "c": False, "d": True}

    # -- starts -------------------------------------------------------------------------------------------------------

    async def test_a_start_on_a_lane_without_a_delay_does_not_wait(self, harness: LedgerHarness) -> None:
        run = await harness.run(lane=LanePolicy(limit=2))
        lanes = harness.ledger.lanes
        worker = await harness.worker()
        assert (await lanes.reserve(worker, "nobody-knows-it", StartRequest(count=2))).waits == (0, 0)
        with pytest.raises(NotFound):
            await lanes.get("nobody-knows-it")
        await harness.put(run, "a", "b", lane="host")
        await harness.claim(worker)
        assert (await lanes.reserve(worker, "host", StartRequest(count=3))).waits == (0, 0, 0)
        await lanes.block("host", 30, "429")
        assert 15 < await reserve_start(harness, worker) <= 30, "a block holds for every request"

    async def test_starts_keep_the_distance_to_each_other(self, harness: LedgerHarness) -> None:
        run = await harness.run(lane=SPACED)
        await harness.put(run, "a", lane="host", delay=3600.0)
        other = await harness.open_again()
        workers = [await harness.worker() for _ in range(2)]
        given = await asyncio.gather(
            *(
                ledger.lanes.reserve(worker, "host", StartRequest(count=2))
                for ledger, worker in zip((harness.ledger, other), workers, strict=True)
            )
        )
        waits = sorted(wait for starts in given for wait in starts.waits)
        assert are_near(waits, 0, 10, 20, 30)
        assert {starts.spacing for starts in given} == {10.0}
        await harness.advance_clock(35)
        assert 0 < await reserve_start(harness, workers[0]) <= 5

    async def test_other_workers_keep_the_slack_of_a_reserved_start(self, harness: LedgerHarness) -> None:
        """The worker that reserved it waits itself."""
        run = await harness.run(lane=SPACED)
        await harness.put(run, "a", lane="host", delay=3600.0)
        one, two = await harness.worker(), await harness.worker()
        assert await reserve_start(harness, one, slack=4.0) == 0
        assert 5 < await reserve_start(harness, one, slack=4.0) <= 10
        assert 20 < await reserve_start(harness, two) <= 24
        for request in ({"slack": -1.0}, {"idle": float("nan")}, {"count": 0}):
            with pytest.raises(InvalidSetting):
                await reserve_start(harness, one, **request)

    async def test_after_missed_starts_the_delay_counts_from_the_last_request(self, harness: LedgerHarness) -> None:
        """Only if no other worker reserved since: its start relies on the missed ones not being used."""
        run = await harness.run(lane=SPACED)
        await harness.put(run, "a", lane="host", delay=3600.0)
        one, two = await harness.worker(), await harness.worker()
        lanes = harness.ledger.lanes
        assert (await lanes.reserve(one, "host", StartRequest(count=3))).waits[0] == 0
        await harness.advance_clock(27)
        starts = await lanes.reserve(one, "host", StartRequest(count=2, idle=4.0))
        assert are_near(starts.waits, 6, 16)
        await harness.advance_clock(40)
        starts = await lanes.reserve(one, "host", StartRequest(count=2, idle=30.0))
        assert are_near(starts.waits, 0, 10)
        assert 15 < await reserve_start(harness, two) <= 20
        await harness.advance_clock(35)
        assert await reserve_start(harness, one, idle=50.0) == 0, "it is late enough anyway"
        assert 5 < await reserve_start(harness, two) <= 10
        starts = await lanes.reserve(one, "host", StartRequest(count=2, idle=50.0))
        assert are_near(starts.waits, 20, 30), "the start of the other worker is kept"
        starts = await lanes.reserve(one, "host", StartRequest(idle=50.0))
        assert are_near(starts.waits, 20), "not before its own starts began"

    async def test_an_item_is_admitted_shortly_before_its_start(self, harness: LedgerHarness) -> None:
        run = await harness.run(lane=SPACED)
        await harness.put(run, "a", "b", "c", lane="host")
        worker = await harness.worker(lease_seconds=3600)
        (a,) = await harness.claim(worker)
        assert a.paced
        assert await harness.claim(worker) == [], "one at a time, as long as it has no start"
        assert await start(harness, worker, a) == (0.0,)
        lane = await harness.ledger.lanes.get("host")
        assert (lane.taken, lane.unstarted, lane.waiting) == (2, 1, 1), "the next waits outside for its time"
        await advance(harness, 5)  # far from the end of the delay: a busy machine takes its time
        assert await harness.claim(worker) == []
        await advance(harness, 4.92)
        (b,) = await harness.claim(worker)
        (wait,) = await start(harness, worker, b)
        assert 0 <= wait < 0.1
        await harness.check()

    async def test_as_many_items_are_admitted_as_start_within_the_lead(self, harness: LedgerHarness) -> None:
        run = await harness.run(lane=LanePolicy(limit=20, delay_min=0.02, delay_max=0.02))
        await harness.put(run, *(f"k{n}" for n in range(10)), lane="host")
        worker = await harness.worker(lease_seconds=3600)
        claimed = await harness.claim(worker)
        assert len(claimed) == 6
        waits = await start(harness, worker, *claimed)
        assert [round(later - earlier, 3) for earlier, later in itertools.pairwise(waits)] == [0.02] * 5
        await harness.check()

    async def test_starts_far_ahead_are_not_reserved(self, harness: LedgerHarness) -> None:
        """An item that would wait for long is deferred, and admitted again in order."""
        run = await harness.run(lane=SPACED)
        await harness.put(run, "a", lane="host")
        worker, other = await harness.worker(lease_seconds=3600), await harness.worker()
        (a,) = await harness.claim(worker)
        assert await reserve_start(harness, other) == 0
        starts = await harness.ledger.lanes.reserve(worker, "host", StartRequest(leases=(a.lease,), within=1.0))
        assert starts.waits == ()
        assert 5 < starts.next_in <= 10
        assert await harness.ledger.claims.return_leases(worker, [a.lease]) == 1
        assert await harness.claim(worker) == []
        assert await harness.state(run, "a") == "delayed"
        await harness.check()
        await advance(harness, 10)
        assert await harness.claim_keys(worker) == ["a"]
        assert (await harness.item(run, "a")).tries == 0

    async def test_a_lost_lease_reserves_no_start(self, harness: LedgerHarness) -> None:
        run = await harness.run(lane=SPACED)
        await harness.put(run, "a", lane="host")
        worker = await harness.worker(lease_seconds=3600)
        (a,) = await harness.claim(worker)
        await harness.ledger.steering.release(older_than=0)
        starts = await harness.ledger.lanes.reserve(worker, "host", StartRequest(leases=(a.lease,)))
        assert starts.lost == {a.item}
        await harness.check()

    async def test_an_admitted_item_waits_for_a_start_reserved_meanwhile(self, harness: LedgerHarness) -> None:
        run = await harness.run(lane=SPACED)
        await harness.put(run, "a", "b", lane="host")
        worker = await harness.worker(lease_seconds=3600)
        assert await harness.state(run, "a") == "ready"
        assert await reserve_start(harness, worker) == 0
        assert await harness.claim(worker) == []
        assert await harness.state(run, "a") == "delayed"
        lane = await harness.ledger.lanes.get("host")
        assert (lane.taken, lane.unstarted, lane.waiting) == (1, 1, 1), "it keeps its slot"
        await harness.check()
        await advance(harness, 5)
        assert await harness.claim(worker) == []
        await advance(harness, 6)
        assert await harness.claim_keys(worker) == ["a"]
        await harness.check()

    async def test_a_delayed_item_waits_longer_after_another_start(self, harness: LedgerHarness) -> None:
        run = await harness.run(lane=SPACED)
        await harness.put(run, "a", "b", lane="host")
        worker = await harness.worker(lease_seconds=3600)
        (a,) = await harness.claim(worker)
        await start(harness, worker, a)
        assert 5 < await reserve_start(harness, worker) <= 10
        await advance(harness, 11)
        assert await harness.claim(worker) == []
        await advance(harness, 10)
        assert await harness.claim_keys(worker) == ["b"]
        await harness.check()

    async def test_undisturbed_items_are_never_deferred(self, harness: LedgerHarness) -> None:
        """An admitted item can be claimed, and its start is near."""
        run = await harness.run(lane=LanePolicy(limit=2, delay_min=0.001, delay_max=0.03))
        await harness.put(run, *(f"k{n}" for n in range(12)), lane="host")
        worker = await harness.worker(lease_seconds=3600)
        seen = 0
        while seen < 12:
            claimed = await harness.claim(worker)
            assert claimed
            for item in claimed:
                assert item.name == f"k{seen}"
                seen += 1
                (wait,) = await start(harness, worker, item)
                await asyncio.sleep(wait)
            await harness.finish(worker, claimed)

    @pytest.mark.parametrize("how", ["given back", "retried", "throttled", "crashed", "released", "done"])
    async def test_a_lease_that_ends_without_a_start(self, harness: LedgerHarness, how: str) -> None:
        run = await harness.run(lane=SPACED)
        await harness.put(run, "a", "b", lane="host")
        worker = await harness.worker(lease_seconds=3600)
        other = await harness.worker(lease_seconds=86_400)
        (a,) = await harness.claim(worker)
        match how:
            case "given back":
                await harness.ledger.claims.return_leases(worker, [a.lease])
            case "retried":
                await harness.commit(worker, retry(a, delay=1))
            case "throttled":
                await harness.commit(worker, throttled(a, delay=1))
            case "crashed":
                await harness.ledger.workers.mark_dead(worker)
            case "released":
                await harness.ledger.steering.release(older_than=0)
            case "done":
                await harness.commit(worker, done(a))
        wait = await reserve_start(harness, other)
        # A returned item has certainly not started; for the others that is unknown.
        assert (wait == 0) if how == "given back" else (5 < wait <= 10)
        await harness.check()
        assert await harness.claim(other) == []
        await advance(harness, wait + 5)
        assert await harness.claim(other) == []
        await advance(harness, 6)
        assert len(await harness.claim(other)) == 1
        await harness.check()

    async def test_starts_are_not_reserved_for_the_end_of_a_long_block(self, harness: LedgerHarness) -> None:
        """A block that is lifted must not leave a lane that waits for its end."""
        run = await harness.run(lane=SPACED)
        await harness.put(run, "a", lane="host")
        worker = await harness.worker()
        await harness.ledger.lanes.block("host", 3600, "maintenance")
        assert -3600 <= await reserve_start(harness, worker) < -1800
        await harness.ledger.lanes.block("host", 0, "")
        assert await reserve_start(harness, worker) == 0

    async def test_an_item_claimed_before_the_lane_had_a_delay_does_not_stop_the_lane(
        self, harness: LedgerHarness
    ) -> None:
        """Its worker does not reserve its start, and may be the one who asks for another."""
        run = await harness.run(lane=LanePolicy(limit=2))
        await harness.put(run, "a", lane="host")
        worker = await harness.worker()
        (a,) = await harness.claim(worker)
        assert not a.paced
        await harness.ledger.lanes.set_delay_floor("host", 10, "robots.txt")
        assert 5 < await reserve_start(harness, worker) <= 10
        await harness.check()

    # -- floors -------------------------------------------------------------------------------------------------------

    async def test_a_floor_raises_the_delay_that_stages_declare(self, harness: LedgerHarness) -> None:
        run = await harness.run(lane=LanePolicy(limit=3, delay_min=2, delay_max=20))
        lane = await harness.ledger.lanes.set_delay_floor("host", 5, "robots.txt")
        assert (lane.floor, lane.floor_why, lane.set_by_operator) == (5, "robots.txt", False)
        assert (lane.policy.delay_min, lane.policy.delay_max) == (5, 5)
        await harness.put(run, "a", lane="host")
        lane = await harness.ledger.lanes.get("host")
        assert (lane.policy.limit, lane.policy.delay_min, lane.policy.delay_max) == (3, 5, 20)
        lane = await harness.ledger.lanes.set_delay_floor("host", 30, "robots.txt")
        assert (lane.policy.delay_min, lane.policy.delay_max) == (30, 30)
        lane = await harness.ledger.lanes.set_delay_floor("host", 0, "")
        assert (lane.policy.delay_min, lane.policy.delay_max) == (2, 20)
        assert (lane.floor, lane.floor_why) == (0, None)

    async def test_a_delay_set_by_an_operator_overrides_a_floor(self, harness: LedgerHarness) -> None:
        lanes = harness.ledger.lanes
        await lanes.set_delay_floor("host", 10, "robots.txt")
        assert (await lanes.set("host", limit=4, by="me")).policy.delay_min == 10, "the limit is another matter"
        lane = await lanes.set("host", delay=(1, 2), by="me")
        assert (lane.policy.delay_min, lane.policy.delay_max, lane.floor) == (1, 2, 10)
        lane = await lanes.set_delay_floor("host", 20, "robots.txt")
        assert (lane.policy.delay_min, lane.policy.delay_max, lane.floor) == (1, 2, 20)

    async def test_setting_the_same_floor_again_changes_nothing(self, harness: LedgerHarness) -> None:
        for _ in range(3):
            await harness.ledger.lanes.set_delay_floor("host", 10, "robots.txt")
        events = (await harness.ledger.reads.events()).rows
        assert [(event.action, event.subject, dict(event.detail)) for event in events] == [
            ("lane.slowed", "host", {"floor": 10, "why": "robots.txt"})
        ]

    async def test_a_removed_floor_delays_no_start(self, harness: LedgerHarness) -> None:
        run = await harness.run(lane=LanePolicy(limit=1))
        await harness.ledger.lanes.set_delay_floor("host", 3600, "robots.txt")
        await harness.put(run, "a", "b", lane="host")
        worker = await harness.worker(lease_seconds=7200)
        await harness.finish(worker, await harness.claim(worker))
        assert await harness.claim(worker) == []
        await harness.ledger.lanes.set_delay_floor("host", 0, "")
        await harness.ledger.upkeep.run_once()
        (b,) = await harness.claim(worker)
        assert (b.name, b.paced) == ("b", False)
        await harness.check()

    @pytest.mark.parametrize("slowing", [by_floor, by_operator, by_a_newer_stage])
    async def test_a_new_delay_spaces_items_that_were_ready_before(
        self, harness: LedgerHarness, slowing: SlowDown
    ) -> None:
        run = await harness.run(lane=LanePolicy(limit=5))
        await harness.put(run, *"abcdefg", lane="host")
        assert (await harness.ledger.reads.stats(run.id)).ready == 5
        await slowing(harness)
        worker = await harness.worker(lease_seconds=86_400)
        seen: list[str] = []
        while len(seen) < 7:
            claimed = await harness.claim(worker)
            if not claimed:  # too many were admitted: they return to waiting first
                assert not seen
                await advance(harness, 0.001)
                claimed = await harness.claim(worker)
            (item,) = claimed
            assert item.paced
            seen.append(item.name)
            assert await harness.claim(worker) == []
            await advance(harness, SECOND)
            assert await harness.claim(worker) == [], "the first one has not started yet"
            lane = await harness.ledger.lanes.get("host")
            assert (lane.taken, lane.unstarted, lane.waiting) == (1, 1, 7 - len(seen)), "the others wait again"
            assert await start(harness, worker, item) == (0.0,)
            await harness.check()
            await advance(harness, 5)
            assert await harness.claim(worker) == []
            await harness.finish(worker, [item])
            await advance(harness, 6)
        assert sorted(seen) == [*"abcdefg"]
        await harness.check()

    async def test_a_new_delay_counts_from_now_when_items_are_leased(self, harness: LedgerHarness) -> None:
        run = await harness.run(lane=LanePolicy(limit=2))
        await harness.put(run, "a", "b", "c", lane="host")
        worker = await harness.worker(lease_seconds=3600)
        (a,) = await harness.claim(worker, 1)
        await harness.ledger.lanes.set_delay_floor("host", 10, "robots.txt")
        await advance(harness, 5)
        assert await harness.claim(worker) == [], "a may have started in the very moment"
        await harness.finish(worker, [a])
        await advance(harness, 11)
        assert len(await harness.claim(worker)) == 1
        await harness.check()

    async def test_floors_of_lanes_that_belong_to_a_run(self, harness: LedgerHarness) -> None:
        run = await harness.run(lane=LanePolicy(limit=1, shared=False))
        with pytest.raises(NotFound):
            await harness.ledger.lanes.set_delay_floor("host", 10, "robots.txt", run_id=run.id)
        await harness.put(run, "a", "b", lane="host")
        lane = await harness.ledger.lanes.set_delay_floor("host", 10, "robots.txt", run_id=run.id)
        assert (lane.run_id, lane.policy.delay_min) == (run.id, 10)
        worker = await harness.worker()
        assert await reserve_start(harness, worker, run_id=run.id) == 0
        assert 5 < await reserve_start(harness, worker, run_id=run.id) <= 10
        assert await reserve_start(harness, worker) == 0, "the shared lane of that name is another one"

    async def test_why_names_the_floor(self, harness: LedgerHarness) -> None:
        run = await harness.run(lane=LanePolicy(limit=2))
        await harness.ledger.lanes.set_delay_floor("host", 10, "robots.txt asks for it")
        await harness.put(run, "a", "b", lane="host")
        gates = await harness.ledger.reads.why_item(run.id, (await harness.item(run, "b")).id)
        (gate,) = [gate for gate in gates if gate.code == "lane_delay"]
        assert "robots.txt asks for it" in gate.text

    async def test_invalid_floors_are_refused(self, harness: LedgerHarness) -> None:
        for delay in (-1, float("nan"), float("inf"), 1e9):
            with pytest.raises(InvalidSetting):
                await harness.ledger.lanes.set_delay_floor("host", delay, "?")
        with pytest.raises(NotFound):
            await harness.ledger.lanes.get("host")
