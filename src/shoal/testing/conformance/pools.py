"""Pools of workers in the ledger, and what jobs are judged by: failed attempts and the time of attempts."""

from __future__ import annotations

from shoal.model.worker import WorkerPoolSpec
from shoal.testing.harness import LedgerHarness, dead, done, retry


def _spec(id: str, scraper: str = "shop", pid: int = 7) -> WorkerPoolSpec:
    return WorkerPoolSpec(
        id=id, scraper=scraper, run_id="20260101_1", node="n1", pid=pid, process="boot:1:99", by="ann@n1", wanted=3
    )


class WorkerPoolsConformance:
    async def test_a_pool_is_known_from_its_start_to_its_end(self, harness: LedgerHarness) -> None:
        pools = harness.ledger.pools
        assert await pools.get("p1") is None
        await pools.register(_spec("p1"))
        await pools.register(_spec("p1", pid=8))  # an answer was lost: it is the same pool
        await harness.advance_clock(5)
        found = await pools.get("p1")
        assert found is not None
        assert (found.pid, found.process, found.node, found.by) == (7, "boot:1:99", "n1", "ann@n1")
        assert (found.workers, found.wanted, found.stopping, found.ended_at) == (0, 3, False, None)
        assert 5 <= found.silent_seconds < 60
        assert await pools.report("p1", workers=2, wanted=4, stopping=True)
        (found,) = await pools.list()
        assert (found.workers, found.wanted, found.stopping) == (2, 4, True)
        assert found.silent_seconds < 5
        assert await pools.end("p1", "stopped")
        assert not await pools.end("p1", "killed")
        assert not await pools.report("p1", workers=2, wanted=4, stopping=False)
        assert await pools.list() == []
        (found,) = await pools.list(ended=True)
        assert (found.workers, found.why, found.ended_at is not None) == (0, "stopped", True)
        assert not await pools.report("unknown", workers=1, wanted=1, stopping=False)

    async def test_pools_are_listed_by_scraper_newest_first_and_forgotten_after_a_week(
        self, harness: LedgerHarness
    ) -> None:
        pools = harness.ledger.pools
        await pools.register(_spec("p1"))
        await harness.advance_clock(1)
        await pools.register(_spec("p2", scraper="news"))
        await harness.advance_clock(1)
        await pools.register(_spec("p3"))
        assert [pool.id for pool in await pools.list()] == ["p3", "p2", "p1"]
        assert [pool.id for pool in await pools.list(scraper="shop", limit=1)] == ["p3"]
        await harness.advance_clock(8 * 86_400)
        assert await pools.report("p1", workers=1, wanted=1, stopping=False)
        await pools.register(_spec("p4"))
        assert [pool.id for pool in await pools.list()] == ["p4", "p1"]

    async def test_errors_are_those_of_attempts_that_failed_newest_first(self, harness: LedgerHarness) -> None:
        run, other = await harness.run(), await harness.run()
        worker = await harness.worker()
        await harness.put(run, "a", "b", "c")
        for item in await harness.claim(worker, 3):
            await harness.advance_clock(1)
            end = {"a": dead(item, "gone"), "b": retry(item, 1, "slow"), "c": done(item)}[item.name]
            await harness.commit(worker, end)
        first, second = await harness.ledger.reads.errors(run.id)
        assert (first.name, first.error, first.final, first.worker) == ("b", "slow", False, worker)
        assert (second.name, second.error, second.final, second.stage) == ("a", "gone", True, "page")
        assert first.at > second.at
        assert await harness.ledger.reads.errors(run.id, limit=1) == [first]
        assert await harness.ledger.reads.errors(run.id, limit=1, final=True) == [second]
        assert await harness.ledger.reads.errors(other.id) == []

    async def test_progress_of_a_worker_has_its_attempts_and_their_time(self, harness: LedgerHarness) -> None:
        run = await harness.run()
        worker = await harness.worker()
        await harness.put(run, "a", "b")
        for item in await harness.claim(worker, 2):
            end = done(item) if item.name == "a" else retry(item, 1, "slow")
            await harness.commit(worker, end)
        (progress,) = await harness.ledger.reads.workers(run.id)
        assert (progress.done, progress.attempts) == (1, 2)
        assert progress.seconds >= 0
