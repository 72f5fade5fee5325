"""Operator commands (release, retry, cancel) and locks."""

from __future__ import annotations

import asyncio
import datetime as dt
from typing import Any

import msgspec
import pytest

from shoal.errors import InvalidItem, InvalidSetting
from shoal.ledger.coordination import REQUEST_KEY_PREFIX
from shoal.model.item import ItemState
from shoal.model.lane import LanePolicy
from shoal.model.run import RunState
from shoal.model.views import ItemFilter
from shoal.testing.harness import LedgerHarness, dead, done, retry, skipped

LONG = 60.0


class SteeringConformance:
    async def test_release_by_age_and_run(self, harness: LedgerHarness) -> None:  # S0.21, S1.24
        first, second = await harness.run(), await harness.run()
        await harness.put(first, "old")
        await harness.put(second, "other")
        worker = await harness.worker(lease_seconds=7200)
        held = await harness.claim(worker)
        held += await harness.claim(worker)
        await harness.advance_clock(400)
        await harness.put(first, "young")
        held += await harness.claim(worker)
        assert await harness.ledger.steering.release(older_than=300, run_id=first.id, by="me") == 1
        assert await harness.state(first, "old") == "ready"
        assert await harness.state(first, "young") == "leased"
        assert await harness.state(second, "other") == "leased"
        assert await harness.ledger.steering.release(older_than=0) == 2
        report = await harness.finish(worker, held)
        assert len(report.lost) == 3
        view = await harness.item(first, "old")
        assert (view.rescues, view.tries) == (0, 0), "a release by an operator is not charged"
        with pytest.raises(InvalidSetting):
            await harness.ledger.steering.release(older_than=-1)
        await harness.check()

    async def test_retry_of_dead_items_by_filter(self, harness: LedgerHarness) -> None:
        run = await harness.run("list", "page", lane=LanePolicy(limit=1))
        await harness.put(run, "a", "b", "c", partition="x")
        await harness.put(run, "d", stage="page", lane="host")
        worker = await harness.worker()
        claimed = await harness.claim(worker, 10)
        claimed += await harness.claim(worker, 10)
        errors = {"a": "404 Not Found", "b": "timed out after 30 s", "c": "404 Not Found", "d": "404 Not Found"}
        await harness.commit(worker, *(dead(item, errors[item.name]) for item in claimed))
        await harness.ledger.runs.seal(run.id)
        await harness.ledger.upkeep.run_once()
        assert (await harness.ledger.runs.get(run.id)).state is RunState.FINISHED
        assert await harness.ledger.steering.retry(run.id, ItemFilter(error="timed out"), by="me") == 1
        assert (await harness.ledger.runs.get(run.id)).state is RunState.ACTIVE
        (again,) = await harness.claim(worker)
        assert (again.name, again.tries, again.epoch) == ("b", 0, 2)
        assert await harness.ledger.steering.retry(run.id, ItemFilter(stage="list", outcome="permanent"), limit=1) == 1
        assert await harness.ledger.steering.retry(run.id, ItemFilter(), by="me") == 2
        rest = [*await harness.claim_keys(worker), *await harness.claim_keys(worker)]
        assert sorted(rest) == ["a", "c", "d"]
        history = await harness.ledger.reads.attempts(run.id, again.item)
        assert [attempt.error for attempt in history] == ["timed out after 30 s"]
        await harness.check()

    async def test_skipped_items_are_retried_on_request(self, harness: LedgerHarness) -> None:
        run = await harness.run(lane=LanePolicy(limit=2))
        await harness.put(run, "a", "b", lane="host")
        await harness.put(run, "c")
        worker = await harness.worker()
        ends = {item.name: item for item in await harness.claim(worker)}
        await harness.commit(worker, skipped(ends["a"]), dead(ends["b"]), skipped(ends["c"]))
        assert await harness.ledger.steering.retry(run.id, ItemFilter()) == 1, "the dead one"
        assert await harness.ledger.steering.retry(run.id, ItemFilter(states=(ItemState.SKIPPED,))) == 2
        counts = await harness.ledger.reads.stats(run.id)
        assert (counts.skipped, counts.dead, counts.pending, counts.total) == (0, 0, 3, 3)
        assert sorted(await harness.claim_keys(worker)) == ["a", "b", "c"]
        history = await harness.ledger.reads.attempts(run.id, ends["a"].item)
        assert [(attempt.outcome, attempt.error) for attempt in history] == [("skipped", "robots.txt forbids it")]
        await harness.check()

    async def test_only_what_ended_badly_can_be_retried(self, harness: LedgerHarness) -> None:
        run = await harness.run()
        await harness.put(run, "a")
        worker = await harness.worker()
        await harness.commit(worker, *(done(item, '{"a":1}') for item in await harness.claim(worker)))
        with pytest.raises(InvalidSetting, match="done"):
            await harness.ledger.steering.retry(run.id, ItemFilter(states=(ItemState.DONE,)))
        assert await harness.ledger.steering.retry(run.id, ItemFilter()) == 0

    async def test_cancel_of_items_by_filter(self, harness: LedgerHarness) -> None:
        run = await harness.run(lane=LanePolicy(limit=1))
        await harness.put(run, "ready", partition="x")
        await harness.put(run, "keep", partition="y")
        await harness.put(run, "later", partition="x", delay=100.0)
        await harness.put(run, "l1", "l2", "l3", partition="x", lane="host", priority=-1)
        worker = await harness.worker()
        (l1,) = await harness.claim(worker, 1)
        assert l1.name == "l1"
        which = ItemFilter(partition="x")
        assert await harness.ledger.steering.cancel(run.id, which, by="me") == 5
        assert (await harness.commit(worker, done(l1))).lost == (l1.item,)
        assert await harness.claim_keys(worker) == ["keep"]
        view = await harness.item(run, "l2")
        assert (view.state.value, view.error) == ("cancelled", "Cancelled by me.")
        assert await harness.ledger.steering.retry(run.id, ItemFilter(states=(ItemState.CANCELLED,))) == 5
        assert sorted(await harness.claim_keys(worker)) == ["l1", "later", "ready"]
        await harness.check()

    async def test_an_item_that_is_listed_twice_is_cancelled_once(self, harness: LedgerHarness) -> None:
        """It moved while the items were read: it was ready in one table and leased in the next."""
        run = await harness.run()
        await harness.put(run, "a", "b")
        steering, read = harness.ledger.steering, harness.ledger.reads.items

        async def read_twice(*args: Any, **options: Any) -> Any:
            page = await read(*args, **options)
            return msgspec.structs.replace(page, rows=[*page.rows, *page.rows])

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(harness.ledger.reads, "items", read_twice)
            assert await steering.cancel(run.id, ItemFilter()) == 2
        assert (await harness.ledger.reads.stats(run.id)).cancelled == 2
        await harness.check()

    async def test_cancelling_an_item_admits_the_next_of_its_lane(self, harness: LedgerHarness) -> None:
        run = await harness.run(lane=LanePolicy(limit=1, ordered=True, shared=False))
        await harness.put(run, "one", "two", lane="group")
        worker = await harness.worker()
        (one,) = await harness.claim(worker)
        await harness.commit(worker, retry(one, delay=100))
        delayed = ItemFilter(states=(ItemState.DELAYED,))
        assert await harness.ledger.steering.cancel(run.id, delayed) == 1
        assert await harness.claim_keys(worker) == ["two"]
        await harness.check()

    async def test_ended_items_cannot_be_cancelled(self, harness: LedgerHarness) -> None:
        run = await harness.run()
        with pytest.raises(InvalidSetting):
            await harness.ledger.steering.cancel(run.id, ItemFilter(states=(ItemState.DONE,)))
        with pytest.raises(InvalidSetting):
            await harness.ledger.steering.cancel(run.id, ItemFilter(), limit=0)

    async def test_operator_commands_record_events(self, harness: LedgerHarness) -> None:
        run = await harness.run()
        await harness.ledger.steering.release(older_than=1, run_id=run.id, by="operator-1")
        await harness.ledger.steering.retry(run.id, ItemFilter(), by="operator-1")
        await harness.ledger.steering.cancel(run.id, ItemFilter(), by="operator-1")
        await harness.ledger.lanes.set("host", limit=2, by="operator-1")
        actions = [event.action for event in (await harness.ledger.reads.events()).rows if event.actor == "operator-1"]
        assert actions == ["lane.set", "items.cancelled", "items.retried", "leases.released"]


class LocksConformance:
    async def test_one_of_many_acquires_a_lock(self, harness: LedgerHarness) -> None:
        second = await harness.open_again()
        try:
            askers = [harness.ledger, second] * 5
            taken = await asyncio.gather(
                *(ledger.locks.acquire("slot", f"node-{number}", LONG) for number, ledger in enumerate(askers))
            )
        finally:
            await second.close()
        assert sorted(taken) == [False] * 9 + [True]
        lock = await harness.ledger.locks.get("slot")
        assert lock is not None
        assert lock.taken_by == f"node-{taken.index(True)}"
        assert lock.finished_at is None
        assert abs(lock.until - lock.taken_at - dt.timedelta(seconds=LONG)) < dt.timedelta(seconds=1)

    async def test_the_owner_may_acquire_a_lock_again(self, harness: LedgerHarness) -> None:
        assert await harness.ledger.locks.acquire("slot", "me", LONG)
        assert await harness.ledger.locks.acquire("slot", "me", LONG)
        assert not await harness.ledger.locks.acquire("slot", "you", LONG)

    async def test_an_expired_lock_goes_to_another(self, harness: LedgerHarness) -> None:
        locks = harness.ledger.locks
        assert await locks.acquire("slot", "me", 0.0)
        assert await locks.acquire("slot", "you", LONG)
        assert not await locks.renew("slot", "me", LONG)
        assert not await locks.complete("slot", "me", {"run_id": "1"})
        assert await locks.complete("slot", "you", {"run_id": "2"})

    async def test_a_renewed_lock_stays(self, harness: LedgerHarness) -> None:
        locks = harness.ledger.locks
        assert await locks.acquire("slot", "me", 0.0)
        assert await locks.renew("slot", "me", LONG)
        assert not await locks.acquire("slot", "you", LONG)

    async def test_a_completed_lock_cannot_be_acquired(self, harness: LedgerHarness) -> None:
        locks = harness.ledger.locks
        assert await locks.acquire("slot", "me", 0.0)
        assert await locks.complete("slot", "me", {"run_id": "1"})
        assert await locks.complete("slot", "me", {"run_id": "1"})  # the answer to the first may have been lost
        assert not await locks.acquire("slot", "me", LONG)
        assert not await locks.acquire("slot", "you", LONG)
        assert not await locks.renew("slot", "me", LONG)
        lock = await locks.get("slot")
        assert lock is not None
        assert lock.finished_at is not None
        assert lock.value == {"run_id": "1"}

    async def test_a_released_lock_is_free_at_once(self, harness: LedgerHarness) -> None:
        locks = harness.ledger.locks
        assert await locks.acquire("slot", "me", LONG)
        assert not await locks.release("slot", "you")
        assert await locks.release("slot", "me")
        assert await locks.acquire("slot", "you", LONG)

    async def test_locks_are_listed_by_name_descending(self, harness: LedgerHarness) -> None:
        locks = harness.ledger.locks
        for name in ("daily:2026-02", "daily:2026-01", "daily-b:2026-03", "Daily:2026-09", "daily:2026-10"):
            assert await locks.acquire(name, "me", LONG)
        assert [one.name for one in await locks.list("daily:")] == [
            "daily:2026-10",
            "daily:2026-02",
            "daily:2026-01",
        ]
        assert [one.name for one in await locks.list("daily:", limit=1)] == ["daily:2026-10"]
        assert await locks.get("daily:") is None

    async def test_keys_of_requests_are_forgotten_after_a_day(self, harness: LedgerHarness) -> None:
        locks = harness.ledger.locks
        for name in ("slot", f"{REQUEST_KEY_PREFIX}answered", f"{REQUEST_KEY_PREFIX}refused"):
            assert await locks.acquire(name, "me", LONG)
        assert await locks.complete("slot", "me")
        assert await locks.complete(f"{REQUEST_KEY_PREFIX}answered", "me", {"status": 200})
        assert await locks.release(f"{REQUEST_KEY_PREFIX}refused", "me")
        await harness.ledger.upkeep.run_once()
        assert len(await locks.list(REQUEST_KEY_PREFIX)) == 2
        await harness.advance_clock(LONG + 86_400 + 1)
        assert await locks.acquire(f"{REQUEST_KEY_PREFIX}new", "me", LONG)
        await harness.ledger.upkeep.run_once()
        assert [one.name for one in await locks.list("")] == ["slot", f"{REQUEST_KEY_PREFIX}new"]

    async def test_a_lock_needs_a_name(self, harness: LedgerHarness) -> None:
        with pytest.raises(InvalidItem):
            await harness.ledger.locks.acquire(" ", "me", LONG)
