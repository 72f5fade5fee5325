"""Claims (exclusive, ordered, fair) and workers (heartbeats, death, rescue, quarantine)."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from shoal.errors import InvalidSetting, WorkerLost
from shoal.model.item import Lease
from shoal.model.worker import Scope, WorkerSpec, WorkerState, new_worker_id
from shoal.testing.harness import LedgerHarness, done


class ClaimsConformance:
    async def test_two_claimers_get_different_items(self, harness: LedgerHarness) -> None:  # S0.1, S1.13, S4.4
        run = await harness.run()
        await harness.put(run, *(f"k{n}" for n in range(300)))
        other = await harness.open_again()
        workers = [await harness.worker() for _ in range(6)]
        ledgers = [harness.ledger, other] * 3
        batches = await asyncio.gather(
            *(
                ledger.claims.claim(worker, Scope(), 7)
                for _ in range(5)
                for ledger, worker in zip(ledgers, workers, strict=True)
            )
        )
        keys = [item.name for batch in batches for item in batch]
        assert len(keys) == len(set(keys)) == 210
        await harness.check()

    async def test_a_claim_returns_at_most_its_limit(self, harness: LedgerHarness) -> None:  # S0.3, S0.8
        run = await harness.run()
        await harness.put(run, *(f"k{n}" for n in range(5)))
        worker = await harness.worker()
        assert [len(await harness.claim(worker, 2)) for _ in range(4)] == [2, 2, 1, 0]

    @pytest.mark.parametrize("limit", [0, -1, 10_001])
    async def test_an_invalid_batch_size_is_refused(self, harness: LedgerHarness, limit: int) -> None:
        with pytest.raises(InvalidSetting, match="batch size"):
            await harness.claim(await harness.worker(), limit)

    async def test_an_unregistered_worker_gets_nothing(self, harness: LedgerHarness) -> None:
        run = await harness.run()
        await harness.put(run, "a")
        with pytest.raises(WorkerLost):
            await harness.claim("nobody")
        assert await harness.state(run, "a") == "ready"

    async def test_each_claim_of_an_item_has_a_new_epoch(self, harness: LedgerHarness) -> None:
        run = await harness.run()
        await harness.put(run, "a")
        worker = await harness.worker()
        epochs = []
        for _ in range(3):
            (claimed,) = await harness.claim(worker)
            epochs.append(claimed.epoch)
            await harness.ledger.claims.return_leases(worker, [claimed.lease])
        assert epochs == [1, 2, 3]

    async def test_scope_limits_by_scraper_run_and_stage(self, harness: LedgerHarness) -> None:  # S0.9
        first = await harness.run("list", "page", scraper="india")
        second = await harness.run("list", scraper="russia")
        await harness.put(first, "i-list")
        await harness.put(first, "i-page", stage="page")
        await harness.put(second, "r-list")
        worker = await harness.worker()
        assert await harness.claim_keys(worker, scope=Scope(scraper="nobody")) == []
        assert await harness.claim_keys(worker, scope=Scope(run_ids=(second.id,))) == ["r-list"]
        assert await harness.claim_keys(worker, scope=Scope(scraper="india", stages=("page",))) == ["i-page"]
        assert await harness.claim_keys(worker, scope=Scope(scraper="india")) == ["i-list"]

    async def test_own_partitions_first_then_the_rest(self, harness: LedgerHarness) -> None:  # S3.1, S3.3
        run = await harness.run()
        for state in ("CA", "TX", "NY"):
            await harness.put(run, *(f"{state}{n}" for n in range(4)), partition=state)
        worker = await harness.worker()
        mine = Scope(partitions=("NY",))
        assert sorted(await harness.claim_keys(worker, 3, mine)) == ["NY0", "NY1", "NY2"]
        taken = await harness.claim_keys(worker, 5, mine)
        assert "NY3" in taken, taken
        rest = await harness.claim_keys(worker, 100, mine)
        assert len(taken) + len(rest) == 9, "idle workers take over the others"

    async def test_without_stealing_a_worker_claims_its_partitions_only(self, harness: LedgerHarness) -> None:
        run = await harness.run()
        await harness.put(run, "a", partition="CA")
        worker = await harness.worker()
        assert await harness.claim(worker, scope=Scope(partitions=("NY",), steal=False)) == []
        assert await harness.claim_keys(worker, scope=Scope(partitions=("CA",), steal=False)) == ["a"]

    async def test_runs_take_turns(self, harness: LedgerHarness) -> None:
        big, small = await harness.run(), await harness.run()
        await harness.put(big, *(f"big{n}" for n in range(400)))
        await harness.put(small, *(f"small{n}" for n in range(40)))
        worker = await harness.worker()
        got: Counter[str] = Counter()
        for _ in range(8):
            got.update(item.run_id for item in await harness.claim(worker, 10))
        assert got[small.id] == got[big.id] == 40, got

    async def test_late_items_of_higher_priority_are_not_overlooked(self, harness: LedgerHarness) -> None:
        run = await harness.run()
        await harness.put(run, *(f"k{n:02}" for n in range(20)))
        worker = await harness.worker()
        await harness.claim(worker, 10)
        await harness.put(run, "urgent", priority=-9)
        seen: list[str] = []
        while batch := await harness.claim_keys(worker, 4):
            seen += batch
        assert "urgent" in seen
        assert len(seen) == 11

    async def test_priority_holds_across_the_partitions_of_a_run(self, harness: LedgerHarness) -> None:  # S3.4
        run = await harness.run()
        await harness.put(run, *(f"B3-{n}" for n in range(10)), partition="B", priority=3)
        await harness.put(run, *(f"A1-{n}" for n in range(30)), partition="A", priority=1)
        await harness.put(run, *(f"B1-{n}" for n in range(3)), partition="B", priority=1)
        await harness.put(run, "C2", partition="C", priority=2)
        worker = await harness.worker()
        seen: list[str] = []
        while batch := await harness.claim_keys(worker, 7):
            seen += batch
        assert [key[1] for key in seen] == ["1"] * 33 + ["2"] + ["3"] * 10, seen

    async def test_priority_holds_across_the_stages_of_a_run(self, harness: LedgerHarness) -> None:
        run = await harness.run("list", "page")
        await harness.put(run, *(f"5-{n}" for n in range(6)), stage="list", priority=5)
        await harness.put(run, *(f"2-{n}" for n in range(6)), stage="page", priority=2)
        worker = await harness.worker()
        batches = [await harness.claim_keys(worker, 4) for _ in range(3)]
        assert [key[0] for batch in batches for key in batch] == ["2"] * 6 + ["5"] * 6, batches

    async def test_own_partitions_go_before_the_priorities_of_others(
        self, harness: LedgerHarness
    ) -> None:  # S3.3, S3.4
        run = await harness.run()
        await harness.put(run, "NY9", partition="NY", priority=9)
        await harness.put(run, "NY4", partition="NY", priority=4)
        await harness.put(run, "TX6", partition="TX", priority=6)
        await harness.put(run, "CA1", partition="CA", priority=1)
        await harness.put(run, "WA0", partition="WA", priority=0)
        worker = await harness.worker()
        mine = Scope(partitions=("NY", "TX"))
        seen = [key for _ in range(5) for key in await harness.claim_keys(worker, 1, mine)]
        assert seen == ["NY4", "TX6", "NY9", "WA0", "CA1"]

    async def test_runs_take_turns_whatever_their_priorities(self, harness: LedgerHarness) -> None:
        urgent, plain = await harness.run(), await harness.run()
        for priority in (-5, -4):
            await harness.put(
                urgent, *(f"{priority}.{n}" for n in range(40)), partition=str(priority), priority=priority
            )
        await harness.put(plain, *(f"k{n}" for n in range(40)))
        worker = await harness.worker()
        got: Counter[str] = Counter()
        for _ in range(8):
            got.update(item.run_id for item in await harness.claim(worker, 5))
        assert got[urgent.id] == got[plain.id] == 20, got

    async def test_every_item_has_its_own_priority_and_partition(self, harness: LedgerHarness) -> None:
        run = await harness.run()
        order = [(n * 37) % 100 - 50 for n in range(100)]
        for priority in order:
            await harness.put(run, f"{priority}", partition=f"p{priority % 90}", priority=priority)
        worker = await harness.worker()
        seen: list[int] = []
        while batch := await harness.claim_keys(worker, 10):
            seen += [int(key) for key in batch]
        assert seen == sorted(order)

    async def test_returned_items_are_claimable_at_once_and_not_charged(self, harness: LedgerHarness) -> None:  # S1.15
        run = await harness.run()
        await harness.put(run, "a", "b")
        worker, other = await harness.worker(), await harness.worker()
        claimed = await harness.claim(worker)
        assert await harness.ledger.claims.return_leases(worker, [item.lease for item in claimed]) == 2
        assert [(item.name, item.tries, item.rescues) for item in await harness.claim(other)] == [
            ("a", 0, 0),
            ("b", 0, 0),
        ]
        assert (await harness.finish(worker, claimed)).committed == 0
        assert await harness.ledger.reads.attempts(run.id, claimed[0].item) == []
        await harness.check()

    async def test_returning_a_lost_lease_changes_nothing(self, harness: LedgerHarness) -> None:
        run = await harness.run()
        await harness.put(run, "a")
        worker, other = await harness.worker(), await harness.worker()
        (old,) = await harness.claim(worker)
        await harness.ledger.claims.return_leases(worker, [old.lease])
        (new,) = await harness.claim(other)
        assert await harness.ledger.claims.return_leases(worker, [old.lease, Lease(10**9, 1, run.no)]) == 0
        assert (await harness.commit(other, done(new))).committed == 1

    async def test_mark_started_returns_lost_leases(self, harness: LedgerHarness) -> None:
        run = await harness.run()
        await harness.put(run, "a", "b")
        worker = await harness.worker()
        first, second = await harness.claim(worker)
        await harness.ledger.claims.return_leases(worker, [first.lease])
        assert await harness.ledger.claims.mark_started(worker, [first.lease, second.lease]) == {first.item}
        assert await harness.ledger.claims.mark_started(worker, [second.lease]) == set(), "saying it twice is harmless"
        await harness.check()

    async def test_an_interrupted_claim_is_reconciled(self, harness: LedgerHarness) -> None:
        run = await harness.run()
        await harness.put(run, *"abcd")
        worker = await harness.worker()
        known = await harness.claim(worker, 1)
        await harness.claim(worker, 2)  # the answer never reaches the worker
        assert await harness.ledger.claims.reconcile(worker, [item.lease for item in known]) == 2
        assert await harness.ledger.claims.reconcile(worker, [item.lease for item in known]) == 0
        assert await harness.claim_keys(worker) == ["b", "c", "d"]
        assert (await harness.finish(worker, known)).committed == 1
        await harness.check()


class WorkersConformance:
    async def test_worker_ids_are_unique_and_readable(self, harness: LedgerHarness) -> None:  # S0.5
        ids = {new_worker_id("host") for _ in range(100)}
        assert len(ids) == 100
        assert all(name.startswith("host-") and len(name.split("-")) == 3 for name in ids)

    async def test_items_of_a_silent_worker_are_rescued(self, harness: LedgerHarness) -> None:  # S0.7, S1.16, S3.20
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

    async def test_many_leases_of_a_dead_worker_are_rescued_in_steps(self, harness: LedgerHarness) -> None:
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

    async def test_a_late_commit_is_accepted_while_the_worker_is_not_declared_lost(
        self, harness: LedgerHarness
    ) -> None:
        run = await harness.run()
        await harness.put(run, "a")
        worker = await harness.worker(lease_seconds=30)
        held = await harness.claim(worker)
        await harness.advance_clock(1000)
        assert (await harness.finish(worker, held)).committed == 1

    async def test_items_of_a_dead_worker_are_rescued_at_once(self, harness: LedgerHarness) -> None:
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

    async def test_buffered_items_beside_a_poison_item_survive(self, harness: LedgerHarness) -> None:
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
    async def test_an_invalid_lease_is_refused(self, harness: LedgerHarness, lease_seconds: float) -> None:
        with pytest.raises(InvalidSetting):
            await harness.ledger.workers.register(WorkerSpec(id="w", node="n", pid=1, lease_seconds=lease_seconds))

    async def test_registering_twice_is_one_worker(self, harness: LedgerHarness) -> None:
        for _ in range(2):
            await harness.ledger.workers.register(WorkerSpec(id="w", node="n", pid=1))
        assert len(await harness.ledger.workers.list()) == 1
