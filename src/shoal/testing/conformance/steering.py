"""Orders from people: release, retry, cancel."""

from __future__ import annotations

import pytest

from shoal.errors import InvalidSetting
from shoal.model.item import ItemState
from shoal.model.lane import LanePolicy
from shoal.model.run import RunState
from shoal.model.views import ItemFilter
from shoal.testing.lab import Lab, dead, done, retry


class SteeringConformance:
    async def test_release_by_age_and_run(self, lab: Lab) -> None:  # S0.21, S1.24
        first, second = await lab.run(), await lab.run()
        await lab.put(first, "old")
        await lab.put(second, "other")
        worker = await lab.worker(lease_seconds=7200)
        held = await lab.claim(worker)
        held += await lab.claim(worker)
        await lab.jump(400)
        await lab.put(first, "young")
        held += await lab.claim(worker)
        assert await lab.ledger.steering.release(older_than=300, run_id=first.id, by="me") == 1
        assert await lab.state(first, "old") == "ready"
        assert await lab.state(first, "young") == "leased"
        assert await lab.state(second, "other") == "leased"
        assert await lab.ledger.steering.release(older_than=0) == 2
        report = await lab.finish(worker, held)
        assert len(report.lost) == 3
        view = await lab.item(first, "old")
        assert (view.rescues, view.tries) == (0, 0), "an order of a person is charged to nobody"
        with pytest.raises(InvalidSetting):
            await lab.ledger.steering.release(older_than=-1)
        await lab.check()

    async def test_retry_of_dead_items_by_filter(self, lab: Lab) -> None:
        run = await lab.run("list", "page", lane=LanePolicy(limit=1))
        await lab.put(run, "a", "b", "c", partition="x")
        await lab.put(run, "d", stage="page", lane="host")
        worker = await lab.worker()
        claimed = await lab.claim(worker, 10)
        claimed += await lab.claim(worker, 10)
        errors = {"a": "404 Not Found", "b": "timed out after 30 s", "c": "404 Not Found", "d": "404 Not Found"}
        await lab.commit(worker, *(dead(item, errors[item.name]) for item in claimed))
        await lab.ledger.runs.seal(run.id)
        await lab.ledger.upkeep.tend()
        assert (await lab.ledger.runs.get(run.id)).state is RunState.FINISHED
        assert await lab.ledger.steering.retry(run.id, ItemFilter(error="timed out"), by="me") == 1
        assert (await lab.ledger.runs.get(run.id)).state is RunState.ACTIVE
        (again,) = await lab.claim(worker)
        assert (again.name, again.tries, again.epoch) == ("b", 0, 2)
        assert await lab.ledger.steering.retry(run.id, ItemFilter(stage="list", outcome="permanent"), limit=1) == 1
        assert await lab.ledger.steering.retry(run.id, ItemFilter(), by="me") == 2
        rest = [*await lab.claim_keys(worker), *await lab.claim_keys(worker)]
        assert sorted(rest) == ["a", "c", "d"]
        history = await lab.ledger.reads.attempts(run.id, again.item)
        assert [attempt.error for attempt in history] == ["timed out after 30 s"]
        await lab.check()

    async def test_only_what_ended_badly_can_be_retried(self, lab: Lab) -> None:
        run = await lab.run()
        await lab.put(run, "a")
        worker = await lab.worker()
        await lab.commit(worker, *(done(item, '{"a":1}') for item in await lab.claim(worker)))
        with pytest.raises(InvalidSetting, match="done"):
            await lab.ledger.steering.retry(run.id, ItemFilter(states=(ItemState.DONE,)))
        assert await lab.ledger.steering.retry(run.id, ItemFilter()) == 0

    async def test_cancel_of_items_by_filter(self, lab: Lab) -> None:
        run = await lab.run(lane=LanePolicy(limit=1))
        await lab.put(run, "ready", partition="x")
        await lab.put(run, "keep", partition="y")
        await lab.put(run, "later", partition="x", delay=100.0)
        await lab.put(run, "l1", "l2", "l3", partition="x", lane="host", priority=-1)
        worker = await lab.worker()
        (l1,) = await lab.claim(worker, 1)
        assert l1.name == "l1"
        which = ItemFilter(partition="x")
        assert await lab.ledger.steering.cancel(run.id, which, by="me") == 5
        assert (await lab.commit(worker, done(l1))).lost == (l1.item,)
        assert await lab.claim_keys(worker) == ["keep"]
        view = await lab.item(run, "l2")
        assert (view.state.value, view.error) == ("cancelled", "Cancelled by me.")
        assert await lab.ledger.steering.retry(run.id, ItemFilter(states=(ItemState.CANCELLED,))) == 5
        assert sorted(await lab.claim_keys(worker)) == ["l1", "later", "ready"]
        await lab.check()

    async def test_cancelling_the_item_in_a_lane_lets_the_next_out(self, lab: Lab) -> None:
        run = await lab.run(lane=LanePolicy(limit=1, ordered=True, shared=False))
        await lab.put(run, "one", "two", lane="group")
        worker = await lab.worker()
        (one,) = await lab.claim(worker)
        await lab.commit(worker, retry(one, delay=100))
        delayed = ItemFilter(states=(ItemState.DELAYED,))
        assert await lab.ledger.steering.cancel(run.id, delayed) == 1
        assert await lab.claim_keys(worker) == ["two"]
        await lab.check()

    async def test_ended_items_cannot_be_cancelled(self, lab: Lab) -> None:
        run = await lab.run()
        with pytest.raises(InvalidSetting):
            await lab.ledger.steering.cancel(run.id, ItemFilter(states=(ItemState.DONE,)))
        with pytest.raises(InvalidSetting):
            await lab.ledger.steering.cancel(run.id, ItemFilter(), limit=0)

    async def test_orders_leave_events(self, lab: Lab) -> None:
        run = await lab.run()
        await lab.ledger.steering.release(older_than=1, run_id=run.id, by="operator-1")
        await lab.ledger.steering.retry(run.id, ItemFilter(), by="operator-1")
        await lab.ledger.steering.cancel(run.id, ItemFilter(), by="operator-1")
        await lab.ledger.lanes.set("host", limit=2, by="operator-1")
        actions = [event.action for event in (await lab.ledger.reads.events()).rows if event.actor == "operator-1"]
        assert actions == ["lane.set", "items.cancelled", "items.retried", "leases.released"]
