"""Commits: atomic, only with a valid lease, repeatable."""

from __future__ import annotations

import msgspec
import pytest

from shoal.errors import InvalidItem, InvalidRecord, UnknownStage, UsageError
from shoal.model.item import ClaimedItem, ItemState, Lease, NewItem
from shoal.model.lane import LanePolicy
from shoal.model.outcome import DONE, FinishedAttempt
from shoal.model.views import ItemFilter
from shoal.testing.harness import LedgerHarness, dead, done, retry, skipped, throttled


class CommitsConformance:
    async def test_results_follow_ups_and_completion_arrive_together(self, harness: LedgerHarness) -> None:  # S1.12
        run = await harness.run("list", "page")
        await harness.put(run, "l")
        worker = await harness.worker()
        (claimed,) = await harness.claim(worker)
        new = [NewItem(key="p1", stage="page"), NewItem(key="p2", stage="page"), NewItem(key="l")]
        report = await harness.commit(worker, done(claimed, '{"a":1}', '{"a":2}', follow_ups=new))
        assert (report.committed, report.enqueued, report.duplicates) == (1, 2, 1)
        page = await harness.ledger.reads.results(run.id)
        assert [(row.item, row.n, row.record.replace(" ", "")) for row in page.rows] == [
            (claimed.item, 0, '{"a":1}'),
            (claimed.item, 1, '{"a":2}'),
        ]
        follow_up = await harness.item(run, "p1", "page")
        assert (follow_up.state.value, follow_up.parent) == ("ready", claimed.item)
        counts = await harness.ledger.reads.stats(run.id)
        assert (counts.done, counts.ready, counts.results) == (1, 2, 2)
        await harness.check()

    async def test_what_handlers_count_is_summed_up_once(self, harness: LedgerHarness) -> None:  # S3.14
        run = await harness.run()
        other = await harness.run()
        await harness.put(run, "a", "b", "c")
        first, second = await harness.worker(), await harness.worker()
        a, b, c = await harness.claim(first, 3)

        def counted(claimed: ClaimedItem, **numbers: int) -> FinishedAttempt:
            return msgspec.structs.replace(done(claimed), detail={"counters": numbers})

        await harness.commit(first, counted(a, accepted=3, rejected=1))
        again = await harness.commit(first, counted(a, accepted=3, rejected=1))
        assert again.repeated == (a.item,)
        failed = msgspec.structs.replace(retry(b), detail={"counters": {"accepted": 100}})
        await harness.commit(first, failed, counted(c, accepted=4))
        await harness.advance_clock(60)
        (b_again,) = await harness.claim(second)
        await harness.commit(second, counted(b_again, accepted=2))
        assert await harness.ledger.reads.author_counts(run.id) == {"accepted": 9, "rejected": 1}
        assert await harness.ledger.reads.author_counts(other.id) == {}
        await harness.check()

    async def test_the_same_key_moves_through_stages(self, harness: LedgerHarness) -> None:  # S0.4
        run = await harness.run("found", "profiled", "enhanced")
        await harness.put(run, "octocat")
        worker = await harness.worker()
        stages = []
        for following in ("profiled", "enhanced", None):
            (claimed,) = await harness.claim(worker)
            stages.append(claimed.stage)
            more = [NewItem(key=claimed.key, stage=following)] if following else []
            await harness.commit(worker, done(claimed, follow_ups=more))
        assert stages == ["found", "profiled", "enhanced"]
        assert (await harness.ledger.reads.stats(run.id)).done == 3

    async def test_a_commit_made_twice_takes_effect_once(self, harness: LedgerHarness) -> None:
        run = await harness.run()
        await harness.put(run, "ok", "again", "gone", "slow")
        worker = await harness.worker()
        ok, again, gone, slow = await harness.claim(worker)
        ends = (
            done(ok, '{"x":1}', follow_ups=[NewItem(key="new")]),
            retry(again),
            dead(gone),
            throttled(slow),
        )
        first = await harness.commit(worker, *ends)
        assert (first.committed, first.lost, first.repeated) == (4, (), ())
        second = await harness.commit(worker, *ends)
        assert (second.committed, second.lost, second.enqueued) == (0, (), 0)
        assert sorted(second.repeated) == sorted(end.lease.item for end in ends)
        counts = await harness.ledger.reads.stats(run.id)
        assert (counts.done, counts.dead, counts.delayed, counts.ready, counts.results) == (1, 1, 2, 1, 1)
        await harness.check()

    async def test_a_skipped_item_ends_without_being_a_failure(self, harness: LedgerHarness) -> None:
        run = await harness.run(lane=LanePolicy(limit=1))
        await harness.put(run, "private", "next", lane="host")
        await harness.put(run, "gone")
        worker = await harness.worker()
        private, gone = sorted(await harness.claim(worker), key=lambda item: item.name, reverse=True)
        end = skipped(private, "robots.txt forbids it")
        report = await harness.commit(worker, end, dead(gone))
        assert (report.committed, report.lost, report.repeated) == (2, (), ())
        again = await harness.commit(worker, end)
        assert (again.committed, again.lost, again.repeated) == (0, (), (private.item,))
        reads = harness.ledger.reads
        counts = await reads.stats(run.id)
        assert (counts.skipped, counts.dead, counts.ready, counts.remaining, counts.total) == (1, 1, 1, 1, 3)
        assert (counts.failed, counts.completed) == (1, 0), "the words of older systems"
        assert [row.error_message for row in (await reads.failed(run.id)).rows] == ["404 Not Found"]
        listed = await reads.items(run.id, ItemFilter(states=(ItemState.SKIPPED,)))
        assert [(row.key, row.outcome, row.error) for row in listed.rows] == [
            ("private", "skipped", "robots.txt forbids it")
        ]
        (why,) = await reads.why_item(run.id, private.item)
        assert (why.code, why.text) == ("skipped", "It is skipped: robots.txt forbids it.")
        assert [attempt.outcome for attempt in await reads.attempts(run.id, private.item)] == ["skipped"]
        (progress,) = await reads.workers(run.id)
        assert (progress.done, progress.dead, progress.skipped) == (0, 1, 1)
        assert (await reads.recent(run.id)).skipped == 1
        assert await harness.claim_keys(worker) == ["next"], "its slot in the lane is free"
        await harness.check()

    async def test_a_run_of_skipped_items_finishes(self, harness: LedgerHarness) -> None:
        run = await harness.run()
        await harness.put(run, "a")
        worker = await harness.worker()
        await harness.commit(worker, *(skipped(item) for item in await harness.claim(worker)))
        await harness.ledger.runs.seal(run.id)
        assert (await harness.ledger.upkeep.run_once()).finished == (run.id,)
        counts = await harness.ledger.reads.stats(run.id)
        assert (counts.skipped, counts.remaining) == (1, 0)

    async def test_a_lost_lease_stores_nothing(self, harness: LedgerHarness) -> None:
        run = await harness.run()
        await harness.put(run, "a", "b")
        slow, quick = await harness.worker(), await harness.worker()
        a, b = await harness.claim(slow)
        await harness.ledger.steering.release(older_than=0)
        again = await harness.claim(quick)
        ends = [done(item, '{"by":"slow"}', follow_ups=[NewItem(key=f"from-{item.name}")]) for item in (a, b)]
        report = await harness.commit(slow, *ends)
        assert (report.committed, set(report.lost), report.enqueued) == (0, {a.item, b.item}, 0)
        await harness.commit(quick, *(done(item, '{"by":"quick"}') for item in again))
        records = [row.record for row in (await harness.ledger.reads.results(run.id)).rows]
        assert len(records) == 2
        assert all("quick" in record for record in records)
        assert (await harness.ledger.reads.stats(run.id)).total == 2
        await harness.check()

    async def test_a_worker_that_got_the_same_item_twice_commits_both_attempts(self, harness: LedgerHarness) -> None:
        """Its lease was taken away and the item came back to it while the first attempt was still running."""
        run = await harness.run()
        await harness.put(run, "a", "b")
        worker = await harness.worker()
        old, other = await harness.claim(worker)
        await harness.ledger.steering.release(older_than=0)
        again = {item.name: item for item in await harness.claim(worker)}
        report = await harness.commit(
            worker, done(again["a"], '{"try":2}'), done(old, '{"try":1}'), done(again["b"], '{"try":2}')
        )
        assert (report.committed, report.lost) == (2, (old.item,))
        records = [row.record for row in (await harness.ledger.reads.results(run.id)).rows]
        assert len(records) == 2
        assert all("2" in record for record in records)
        assert other.name == "b"
        await harness.check()

    async def test_a_lost_lease_does_not_affect_the_rest_of_a_batch(self, harness: LedgerHarness) -> None:
        run = await harness.run()
        await harness.put(run, "a", "b", "c")
        worker = await harness.worker()
        a, b, c = await harness.claim(worker)
        await harness.ledger.claims.return_leases(worker, [b.lease])
        report = await harness.commit(
            worker, *(done(item, '{"k":1}', follow_ups=[NewItem(key=item.name * 2)]) for item in (a, b, c))
        )
        assert (report.committed, report.lost, report.enqueued) == (2, (b.item,), 2)
        assert await harness.state(run, "b") == "ready"
        await harness.check()

    async def test_an_unknown_lease_is_lost(self, harness: LedgerHarness) -> None:
        run = await harness.run()
        worker = await harness.worker()
        report = await harness.commit(worker, FinishedAttempt(lease=Lease(10**9, 1, run.no), decision=DONE))
        assert report.lost == (10**9,)

    async def test_a_retry_is_delayed_and_charged(self, harness: LedgerHarness) -> None:  # S4.7, S4.8
        run = await harness.run()
        await harness.put(run, "a")
        worker = await harness.worker(lease_seconds=3600)
        (claimed,) = await harness.claim(worker)
        await harness.commit(worker, retry(claimed, delay=30, error="connection reset"))
        view = await harness.item(run, "a")
        assert (view.state.value, view.tries, view.error) == ("delayed", 1, "connection reset")
        assert await harness.claim(worker) == []
        await harness.advance_clock(31)
        (again,) = await harness.claim(worker)
        assert (again.tries, again.epoch) == (1, 2)
        await harness.check()

    async def test_a_throttled_item_without_a_lane_waits_uncharged(self, harness: LedgerHarness) -> None:
        run = await harness.run()
        await harness.put(run, "a")
        worker = await harness.worker(lease_seconds=3600)
        (claimed,) = await harness.claim(worker)
        await harness.commit(worker, throttled(claimed, delay=60))
        assert await harness.claim(worker) == []
        await harness.advance_clock(61)
        (again,) = await harness.claim(worker)
        assert again.tries == 0

    async def test_a_permanent_failure_is_dead_at_once(self, harness: LedgerHarness) -> None:  # S4.6
        run = await harness.run()
        await harness.put(run, "a")
        worker = await harness.worker()
        (claimed,) = await harness.claim(worker)
        await harness.commit(worker, dead(claimed, "Private video"))
        view = await harness.item(run, "a")
        assert (view.state.value, view.outcome, view.error) == ("dead", "permanent", "Private video")

    async def test_the_attempts_of_an_item_can_be_read(self, harness: LedgerHarness) -> None:  # S0.6
        run = await harness.run()
        await harness.put(run, "a")
        first, second = await harness.worker(), await harness.worker()
        (claimed,) = await harness.claim(first)
        await harness.commit(first, retry(claimed, delay=0, error="timed out"))
        await harness.ledger.upkeep.run_once()
        (again,) = await harness.claim(second)
        end = FinishedAttempt(lease=again.lease, decision=DONE, seconds=1.5, detail={"status": 200, "proxy": "p1"})
        await harness.commit(second, end)
        attempts = await harness.ledger.reads.attempts(run.id, claimed.item)
        assert [(a.epoch, a.worker, a.outcome, a.error) for a in attempts] == [
            (1, first, "transient", "timed out"),
            (2, second, "done", None),
        ]
        view = await harness.item(run, "a")
        assert (view.state.value, view.outcome, view.error) == ("done", "done", None)
        assert attempts[1].seconds == 1.5
        assert attempts[1].detail == {"status": 200, "proxy": "p1"}
        assert all(a.claimed_at <= a.ended_at for a in attempts)

    async def test_bad_input_changes_nothing(self, harness: LedgerHarness) -> None:
        run = await harness.run()
        await harness.put(run, "a")
        worker = await harness.worker()
        (claimed,) = await harness.claim(worker)
        bad = [
            (done(claimed, "[1]"), InvalidRecord),
            (done(claimed, follow_ups=[NewItem(url="nope")]), InvalidItem),
            (done(claimed, follow_ups=[NewItem(key="x", stage="nope")]), UnknownStage),
            (FinishedAttempt(lease=claimed.lease, decision=DONE, detail={"x": object()}), InvalidRecord),
        ]
        for end, error in bad:
            with pytest.raises(error):
                await harness.commit(worker, end)
        with pytest.raises(UsageError, match="twice"):
            await harness.commit(worker, done(claimed), done(claimed))
        assert await harness.state(run, "a") == "leased"
        assert (await harness.commit(worker, done(claimed))).committed == 1
        await harness.check()

    async def test_a_batch_over_several_runs_and_stages(self, harness: LedgerHarness) -> None:
        first, second = await harness.run("list", "page"), await harness.run("list", "page")
        for run in (first, second):
            await harness.put(run, *(f"k{n}" for n in range(3)), partition="p")
        worker = await harness.worker()
        claimed = [*await harness.claim(worker, 3), *await harness.claim(worker, 3)]
        report = await harness.commit(
            worker,
            *(done(item, '{"k":1}', follow_ups=[NewItem(key=item.key, stage="page")]) for item in claimed),
        )
        assert (report.committed, report.enqueued) == (6, 6)
        for run in (first, second):
            counts = await harness.ledger.reads.stats(run.id, stage="page")
            assert counts.ready == 3
        await harness.check()
