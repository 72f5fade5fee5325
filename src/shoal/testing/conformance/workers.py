"""Workers: heartbeats, death, rescue, quarantine."""

from __future__ import annotations

import pytest

from shoal.errors import InvalidSetting, WorkerLost
from shoal.model.worker import Scope, WorkerSpec, WorkerState, new_worker_id
from shoal.testing.harness import LedgerHarness, done


class WorkersConformance:
    async def test_worker_ids_are_unique_and_readable(self, harness: LedgerHarness) -> None:  # S0.5
        ids = {new_worker_id("host") for _ in range(100)}
        assert len(ids) == 100
        assert all(name.startswith("host-") and len(name.split("-")) == 3 for name in ids)

    async def test_a_silent_workers_items_go_to_others(self, harness: LedgerHarness) -> None:  # S0.7, S1.16, S3.20
        run = await harness.run()
        await harness.put(run, "a", "b")
        silent, live = await harness.worker(lease_seconds=30), await harness.worker(lease_seconds=300)
        held = await harness.claim(silent)
        await harness.advance_clock(29)
        assert (await harness.ledger.upkeep.run_once()).lost_workers == ()
        await harness.advance_clock(2)
        upkeep_report = await harness.ledger.upkeep.run_once()
        assert (upkeep_report.lost_workers, upkeep_report.rescued) == ((silent,), 2)
        again = await harness.claim(live)
        assert [(item.name, item.epoch, item.rescues, item.tries) for item in again] == [("a", 2, 1, 0), ("b", 2, 1, 0)]
        assert len((await harness.finish(silent, held)).lost) == 2
        await harness.put(run, "c")
        with pytest.raises(WorkerLost):
            await harness.ledger.workers.heartbeat(silent)
        with pytest.raises(WorkerLost):
            await harness.claim(silent)
        attempts = await harness.ledger.reads.attempts(run.id, held[0].item)
        assert [(a.outcome, a.worker) for a in attempts] == [("crashed", silent)]
        await harness.check()

    async def test_a_worker_that_held_much_is_relieved_step_by_step(self, harness: LedgerHarness) -> None:
        run = await harness.run()
        keys = [str(number) for number in range(2_300)]
        await harness.put(run, *keys)
        silent, live = await harness.worker(lease_seconds=30), await harness.worker(lease_seconds=300)
        assert len(await harness.claim(silent, 2_300)) == 2_300
        await harness.advance_clock(31)
        rounds = [await harness.ledger.upkeep.run_once()]
        while rounds[-1].more:
            rounds.append(await harness.ledger.upkeep.run_once())
        assert sum(upkeep_report.rescued for upkeep_report in rounds) == 2_300
        assert len(await harness.claim(live, 2_300)) == 2_300
        await harness.check()

    async def test_a_heartbeat_keeps_all_leases_alive(self, harness: LedgerHarness) -> None:
        run = await harness.run()
        await harness.put(run, "a")
        worker = await harness.worker(lease_seconds=30)
        held = await harness.claim(worker)
        for _ in range(10):
            await harness.advance_clock(25)
            orders = await harness.ledger.workers.heartbeat(worker)
            assert orders.state is WorkerState.LIVE
            assert (await harness.ledger.upkeep.run_once()).rescued == 0
        assert (await harness.finish(worker, held)).committed == 1

    async def test_a_late_commit_of_a_worker_nobody_missed_is_accepted(self, harness: LedgerHarness) -> None:
        run = await harness.run()
        await harness.put(run, "a")
        worker = await harness.worker(lease_seconds=30)
        held = await harness.claim(worker)
        await harness.advance_clock(1000)
        assert (await harness.finish(worker, held)).committed == 1

    async def test_a_dead_workers_items_come_back_at_once(self, harness: LedgerHarness) -> None:
        run = await harness.run()
        await harness.put(run, "a")
        worker, other = await harness.worker(), await harness.worker()
        await harness.claim(worker)
        upkeep_report = await harness.ledger.workers.mark_dead(worker)
        assert (upkeep_report.lost_workers, upkeep_report.rescued) == ((worker,), 1)
        assert await harness.claim_keys(other) == ["a"]

    async def test_a_stopped_worker_returns_what_it_holds_uncharged(self, harness: LedgerHarness) -> None:  # S4.9
        run = await harness.run()
        await harness.put(run, "a", "b")
        worker, other = await harness.worker(), await harness.worker()
        await harness.claim(worker)
        assert await harness.ledger.workers.stop(worker) == 2
        assert [(item.name, item.rescues) for item in await harness.claim(other)] == [("a", 0), ("b", 0)]
        with pytest.raises(WorkerLost):
            await harness.ledger.workers.heartbeat(worker)
        await harness.check()

    async def test_an_item_that_kills_its_workers_is_quarantined(self, harness: LedgerHarness) -> None:
        run = await harness.run(max_rescues=3)
        await harness.put(run, "poison")
        for _ in range(4):
            worker = await harness.worker()
            (claimed,) = await harness.claim(worker)
            await harness.ledger.claims.mark_started(worker, [claimed.lease])
            upkeep_report = await harness.ledger.workers.mark_dead(worker)
        assert (upkeep_report.rescued, upkeep_report.quarantined) == (0, 1)
        view = await harness.item(run, "poison")
        assert (view.state.value, view.outcome, view.rescues) == ("dead", "poison", 4)
        await harness.check()

    async def test_neighbours_of_a_poison_item_survive(self, harness: LedgerHarness) -> None:
        run = await harness.run(max_rescues=2)
        await harness.put(run, "poison", "neighbour")
        for _ in range(3):
            worker = await harness.worker()
            poison, *_ = await harness.claim(worker)
            await harness.ledger.claims.mark_started(worker, [poison.lease])
            await harness.ledger.workers.mark_dead(worker)
        assert await harness.state(run, "poison") == "dead"
        neighbour = await harness.item(run, "neighbour")
        assert (neighbour.state.value, neighbour.rescues) == ("ready", 1)

    async def test_a_drained_worker_learns_it_at_its_heartbeat(self, harness: LedgerHarness) -> None:
        run = await harness.run()
        await harness.put(run, "a")
        worker = await harness.worker()
        await harness.ledger.workers.drain(worker, by="me")
        assert (await harness.ledger.workers.heartbeat(worker)).state is WorkerState.DRAINING
        (claimed,) = await harness.claim(worker)
        assert (await harness.commit(worker, done(claimed))).committed == 1
        with pytest.raises(WorkerLost):
            await harness.ledger.workers.drain("nobody")

    async def test_settings_have_versions_that_heartbeats_carry(self, harness: LedgerHarness) -> None:  # S3.27, S4.2
        worker = await harness.worker()
        before = (await harness.ledger.workers.heartbeat(worker)).settings_version
        assert await harness.ledger.settings.get("global") is None
        first = await harness.ledger.settings.put("global", {"delay": 8}, by="me")
        second = await harness.ledger.settings.put("global", {"delay": 12}, by="me")
        await harness.ledger.settings.put("scraper:india", {"delay": 1})
        assert before < first < second
        assert await harness.ledger.settings.get("global") == (second, {"delay": 12})
        assert (await harness.ledger.workers.heartbeat(worker)).settings_version > second

    async def test_workers_are_listed_with_what_they_hold(self, harness: LedgerHarness) -> None:  # S0.16, S1.23
        run = await harness.run()
        await harness.put(run, "a", "b")
        worker = await harness.worker(scope=Scope(stages=("page",)))
        gone = await harness.worker()
        await harness.ledger.workers.stop(gone)
        await harness.claim(worker)
        (view,) = await harness.ledger.workers.list()
        assert (view.id, view.leased, view.state, view.scope.stages) == (worker, 2, WorkerState.LIVE, ("page",))
        assert len(await harness.ledger.workers.list(present=False)) == 2

    @pytest.mark.parametrize("lease_seconds", [0.0, -5.0, float("nan"), 1e9])
    async def test_a_senseless_lease_is_refused(self, harness: LedgerHarness, lease_seconds: float) -> None:
        with pytest.raises(InvalidSetting):
            await harness.ledger.workers.register(WorkerSpec(id="w", node="n", pid=1, lease_seconds=lease_seconds))

    async def test_registering_twice_is_one_worker(self, harness: LedgerHarness) -> None:
        for _ in range(2):
            await harness.ledger.workers.register(WorkerSpec(id="w", node="n", pid=1))
        assert len(await harness.ledger.workers.list()) == 1
