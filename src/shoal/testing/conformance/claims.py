"""Claims: exclusive, ordered, fair, and honest about what is lost."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from shoal.errors import InvalidSetting, WorkerLost
from shoal.model.item import Lease
from shoal.model.worker import Scope
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

    async def test_a_claim_takes_at_most_what_was_asked_for(self, harness: LedgerHarness) -> None:  # S0.3, S0.8
        run = await harness.run()
        await harness.put(run, *(f"k{n}" for n in range(5)))
        worker = await harness.worker()
        assert [len(await harness.claim(worker, 2)) for _ in range(4)] == [2, 2, 1, 0]

    @pytest.mark.parametrize("limit", [0, -1, 10_001])
    async def test_a_senseless_batch_size_is_refused(self, harness: LedgerHarness, limit: int) -> None:
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

    async def test_without_stealing_a_worker_keeps_to_its_partitions(self, harness: LedgerHarness) -> None:
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

    async def test_given_back_items_are_claimable_at_once_and_uncharged(self, harness: LedgerHarness) -> None:  # S1.15
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

    async def test_giving_back_what_is_no_longer_ours_changes_nothing(self, harness: LedgerHarness) -> None:
        run = await harness.run()
        await harness.put(run, "a")
        worker, other = await harness.worker(), await harness.worker()
        (old,) = await harness.claim(worker)
        await harness.ledger.claims.return_leases(worker, [old.lease])
        (new,) = await harness.claim(other)
        assert await harness.ledger.claims.return_leases(worker, [old.lease, Lease(10**9, 1, run.no)]) == 0
        assert (await harness.commit(other, done(new))).committed == 1

    async def test_started_tells_which_leases_still_hold(self, harness: LedgerHarness) -> None:
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
