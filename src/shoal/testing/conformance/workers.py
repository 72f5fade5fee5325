"""Workers: heartbeats, death, rescue, quarantine."""

from __future__ import annotations

import pytest

from shoal.errors import InvalidSetting, WorkerLost
from shoal.model.worker import Scope, WorkerSpec, WorkerState, new_worker_id
from shoal.testing.lab import Lab, done


class WorkersConformance:
    async def test_worker_ids_are_unique_and_readable(self, lab: Lab) -> None:  # S0.5
        ids = {new_worker_id("host") for _ in range(100)}
        assert len(ids) == 100
        assert all(name.startswith("host-") and len(name.split("-")) == 3 for name in ids)

    async def test_a_silent_workers_items_go_to_others(self, lab: Lab) -> None:  # S0.7, S1.16, S3.20
        run = await lab.run()
        await lab.put(run, "a", "b")
        silent, live = await lab.worker(lease_seconds=30), await lab.worker(lease_seconds=300)
        held = await lab.claim(silent)
        await lab.jump(29)
        assert (await lab.ledger.upkeep.tend()).lost_workers == ()
        await lab.jump(2)
        tending = await lab.ledger.upkeep.tend()
        assert (tending.lost_workers, tending.rescued) == ((silent,), 2)
        again = await lab.claim(live)
        assert [(item.name, item.epoch, item.rescues, item.tries) for item in again] == [("a", 2, 1, 0), ("b", 2, 1, 0)]
        assert len((await lab.finish(silent, held)).lost) == 2
        await lab.put(run, "c")
        with pytest.raises(WorkerLost):
            await lab.ledger.workers.beat(silent)
        with pytest.raises(WorkerLost):
            await lab.claim(silent)
        attempts = await lab.ledger.reads.attempts(run.id, held[0].item)
        assert [(a.outcome, a.worker) for a in attempts] == [("crashed", silent)]
        await lab.check()

    async def test_a_worker_that_held_much_is_relieved_step_by_step(self, lab: Lab) -> None:
        run = await lab.run()
        keys = [str(number) for number in range(2_300)]
        await lab.put(run, *keys)
        silent, live = await lab.worker(lease_seconds=30), await lab.worker(lease_seconds=300)
        assert len(await lab.claim(silent, 2_300)) == 2_300
        await lab.jump(31)
        rounds = [await lab.ledger.upkeep.tend()]
        while rounds[-1].more:
            rounds.append(await lab.ledger.upkeep.tend())
        assert sum(tending.rescued for tending in rounds) == 2_300
        assert len(await lab.claim(live, 2_300)) == 2_300
        await lab.check()

    async def test_a_heartbeat_keeps_all_leases_alive(self, lab: Lab) -> None:
        run = await lab.run()
        await lab.put(run, "a")
        worker = await lab.worker(lease_seconds=30)
        held = await lab.claim(worker)
        for _ in range(10):
            await lab.jump(25)
            orders = await lab.ledger.workers.beat(worker)
            assert orders.state is WorkerState.LIVE
            assert (await lab.ledger.upkeep.tend()).rescued == 0
        assert (await lab.finish(worker, held)).committed == 1

    async def test_a_late_commit_of_a_worker_nobody_missed_is_accepted(self, lab: Lab) -> None:
        run = await lab.run()
        await lab.put(run, "a")
        worker = await lab.worker(lease_seconds=30)
        held = await lab.claim(worker)
        await lab.jump(1000)
        assert (await lab.finish(worker, held)).committed == 1

    async def test_a_buried_workers_items_come_back_at_once(self, lab: Lab) -> None:
        run = await lab.run()
        await lab.put(run, "a")
        worker, other = await lab.worker(), await lab.worker()
        await lab.claim(worker)
        tending = await lab.ledger.workers.bury(worker)
        assert (tending.lost_workers, tending.rescued) == ((worker,), 1)
        assert await lab.claim_keys(other) == ["a"]

    async def test_a_stopped_worker_returns_what_it_holds_uncharged(self, lab: Lab) -> None:  # S4.9
        run = await lab.run()
        await lab.put(run, "a", "b")
        worker, other = await lab.worker(), await lab.worker()
        await lab.claim(worker)
        assert await lab.ledger.workers.stop(worker) == 2
        assert [(item.name, item.rescues) for item in await lab.claim(other)] == [("a", 0), ("b", 0)]
        with pytest.raises(WorkerLost):
            await lab.ledger.workers.beat(worker)
        await lab.check()

    async def test_an_item_that_kills_its_workers_is_quarantined(self, lab: Lab) -> None:
        run = await lab.run(max_rescues=3)
        await lab.put(run, "poison")
        for _ in range(4):
            worker = await lab.worker()
            (claimed,) = await lab.claim(worker)
            await lab.ledger.claims.started(worker, [claimed.lease])
            tending = await lab.ledger.workers.bury(worker)
        assert (tending.rescued, tending.quarantined) == (0, 1)
        view = await lab.item(run, "poison")
        assert (view.state.value, view.outcome, view.rescues) == ("dead", "poison", 4)
        await lab.check()

    async def test_neighbours_of_a_poison_item_survive(self, lab: Lab) -> None:
        run = await lab.run(max_rescues=2)
        await lab.put(run, "poison", "neighbour")
        for _ in range(3):
            worker = await lab.worker()
            poison, *_ = await lab.claim(worker)
            await lab.ledger.claims.started(worker, [poison.lease])
            await lab.ledger.workers.bury(worker)
        assert await lab.state(run, "poison") == "dead"
        neighbour = await lab.item(run, "neighbour")
        assert (neighbour.state.value, neighbour.rescues) == ("ready", 1)

    async def test_a_drained_worker_learns_it_at_its_heartbeat(self, lab: Lab) -> None:
        run = await lab.run()
        await lab.put(run, "a")
        worker = await lab.worker()
        await lab.ledger.workers.drain(worker, by="me")
        assert (await lab.ledger.workers.beat(worker)).state is WorkerState.DRAINING
        (claimed,) = await lab.claim(worker)
        assert (await lab.commit(worker, done(claimed))).committed == 1
        with pytest.raises(WorkerLost):
            await lab.ledger.workers.drain("nobody")

    async def test_settings_have_versions_that_heartbeats_carry(self, lab: Lab) -> None:  # S3.27, S4.2
        worker = await lab.worker()
        before = (await lab.ledger.workers.beat(worker)).settings_version
        assert await lab.ledger.settings.get("global") is None
        first = await lab.ledger.settings.put("global", {"delay": 8}, by="me")
        second = await lab.ledger.settings.put("global", {"delay": 12}, by="me")
        await lab.ledger.settings.put("scraper:india", {"delay": 1})
        assert before < first < second
        assert await lab.ledger.settings.get("global") == (second, {"delay": 12})
        assert (await lab.ledger.workers.beat(worker)).settings_version > second

    async def test_workers_are_listed_with_what_they_hold(self, lab: Lab) -> None:  # S0.16, S1.23
        run = await lab.run()
        await lab.put(run, "a", "b")
        worker = await lab.worker(scope=Scope(stages=("page",)))
        gone = await lab.worker()
        await lab.ledger.workers.stop(gone)
        await lab.claim(worker)
        (view,) = await lab.ledger.workers.list()
        assert (view.id, view.leased, view.state, view.scope.stages) == (worker, 2, WorkerState.LIVE, ("page",))
        assert len(await lab.ledger.workers.list(present=False)) == 2

    @pytest.mark.parametrize("lease_seconds", [0.0, -5.0, float("nan"), 1e9])
    async def test_a_senseless_lease_is_refused(self, lab: Lab, lease_seconds: float) -> None:
        with pytest.raises(InvalidSetting):
            await lab.ledger.workers.register(WorkerSpec(id="w", node="n", pid=1, lease_seconds=lease_seconds))

    async def test_registering_twice_is_one_worker(self, lab: Lab) -> None:
        for _ in range(2):
            await lab.ledger.workers.register(WorkerSpec(id="w", node="n", pid=1))
        assert len(await lab.ledger.workers.list()) == 1
