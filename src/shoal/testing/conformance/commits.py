"""Commits: everything or nothing, from the current lease only, as often as one likes."""

from __future__ import annotations

import pytest

from shoal.errors import InvalidItem, InvalidRecord, UnknownStage, UsageError
from shoal.model.item import Lease, NewItem
from shoal.model.outcome import DONE, Finished
from shoal.testing.lab import Lab, dead, done, retry, throttled


class CommitsConformance:
    async def test_results_follow_ups_and_completion_arrive_together(self, lab: Lab) -> None:  # S1.12
        run = await lab.run("list", "page")
        await lab.put(run, "l")
        worker = await lab.worker()
        (claimed,) = await lab.claim(worker)
        new = [NewItem(key="p1", stage="page"), NewItem(key="p2", stage="page"), NewItem(key="l")]
        report = await lab.commit(worker, done(claimed, '{"a":1}', '{"a":2}', follow_ups=new))
        assert (report.committed, report.enqueued, report.duplicates) == (1, 2, 1)
        page = await lab.ledger.reads.results(run.id)
        assert [(row.item, row.n, row.record.replace(" ", "")) for row in page.rows] == [
            (claimed.item, 0, '{"a":1}'),
            (claimed.item, 1, '{"a":2}'),
        ]
        follow_up = await lab.item(run, "p1", "page")
        assert (follow_up.state.value, follow_up.parent) == ("ready", claimed.item)
        counts = await lab.ledger.reads.stats(run.id)
        assert (counts.done, counts.ready, counts.results) == (1, 2, 2)
        await lab.check()

    async def test_the_same_key_moves_through_stages(self, lab: Lab) -> None:  # S0.4
        run = await lab.run("found", "profiled", "enhanced")
        await lab.put(run, "octocat")
        worker = await lab.worker()
        stages = []
        for following in ("profiled", "enhanced", None):
            (claimed,) = await lab.claim(worker)
            stages.append(claimed.stage)
            more = [NewItem(key=claimed.key, stage=following)] if following else []
            await lab.commit(worker, done(claimed, follow_ups=more))
        assert stages == ["found", "profiled", "enhanced"]
        assert (await lab.ledger.reads.stats(run.id)).done == 3

    async def test_a_commit_made_twice_takes_effect_once(self, lab: Lab) -> None:
        run = await lab.run()
        await lab.put(run, "ok", "again", "gone", "slow")
        worker = await lab.worker()
        ok, again, gone, slow = await lab.claim(worker)
        ends = (
            done(ok, '{"x":1}', follow_ups=[NewItem(key="new")]),
            retry(again),
            dead(gone),
            throttled(slow),
        )
        first = await lab.commit(worker, *ends)
        assert (first.committed, first.lost, first.repeated) == (4, (), ())
        second = await lab.commit(worker, *ends)
        assert (second.committed, second.lost, second.enqueued) == (0, (), 0)
        assert sorted(second.repeated) == sorted(end.lease.item for end in ends)
        counts = await lab.ledger.reads.stats(run.id)
        assert (counts.done, counts.dead, counts.delayed, counts.ready, counts.results) == (1, 1, 2, 1, 1)
        await lab.check()

    async def test_a_lost_lease_stores_nothing(self, lab: Lab) -> None:
        run = await lab.run()
        await lab.put(run, "a", "b")
        slow, quick = await lab.worker(), await lab.worker()
        a, b = await lab.claim(slow)
        await lab.ledger.steering.release(older_than=0)
        again = await lab.claim(quick)
        ends = [done(item, '{"by":"slow"}', follow_ups=[NewItem(key=f"from-{item.name}")]) for item in (a, b)]
        report = await lab.commit(slow, *ends)
        assert (report.committed, set(report.lost), report.enqueued) == (0, {a.item, b.item}, 0)
        await lab.commit(quick, *(done(item, '{"by":"quick"}') for item in again))
        records = [row.record for row in (await lab.ledger.reads.results(run.id)).rows]
        assert len(records) == 2
        assert all("quick" in record for record in records)
        assert (await lab.ledger.reads.stats(run.id)).total == 2
        await lab.check()

    async def test_a_worker_that_got_the_same_item_twice_commits_both_attempts(self, lab: Lab) -> None:
        """Its lease was taken away and the item came back to it while the first attempt was still running."""
        run = await lab.run()
        await lab.put(run, "a", "b")
        worker = await lab.worker()
        old, other = await lab.claim(worker)
        await lab.ledger.steering.release(older_than=0)
        again = {item.name: item for item in await lab.claim(worker)}
        report = await lab.commit(
            worker, done(again["a"], '{"try":2}'), done(old, '{"try":1}'), done(again["b"], '{"try":2}')
        )
        assert (report.committed, report.lost) == (2, (old.item,))
        records = [row.record for row in (await lab.ledger.reads.results(run.id)).rows]
        assert len(records) == 2
        assert all("2" in record for record in records)
        assert other.name == "b"
        await lab.check()

    async def test_one_lost_lease_in_a_batch_does_not_hurt_the_others(self, lab: Lab) -> None:
        run = await lab.run()
        await lab.put(run, "a", "b", "c")
        worker = await lab.worker()
        a, b, c = await lab.claim(worker)
        await lab.ledger.claims.give_back(worker, [b.lease])
        report = await lab.commit(
            worker, *(done(item, '{"k":1}', follow_ups=[NewItem(key=item.name * 2)]) for item in (a, b, c))
        )
        assert (report.committed, report.lost, report.enqueued) == (2, (b.item,), 2)
        assert await lab.state(run, "b") == "ready"
        await lab.check()

    async def test_an_invented_lease_is_lost(self, lab: Lab) -> None:
        run = await lab.run()
        worker = await lab.worker()
        report = await lab.commit(worker, Finished(lease=Lease(10**9, 1, run.no), verdict=DONE))
        assert report.lost == (10**9,)

    async def test_a_retry_is_delayed_and_charged(self, lab: Lab) -> None:  # S4.7, S4.8
        run = await lab.run()
        await lab.put(run, "a")
        worker = await lab.worker(lease_seconds=3600)
        (claimed,) = await lab.claim(worker)
        await lab.commit(worker, retry(claimed, delay=30, error="connection reset"))
        view = await lab.item(run, "a")
        assert (view.state.value, view.tries, view.error) == ("delayed", 1, "connection reset")
        assert await lab.claim(worker) == []
        await lab.jump(31)
        (again,) = await lab.claim(worker)
        assert (again.tries, again.epoch) == (1, 2)
        await lab.check()

    async def test_a_throttled_item_without_a_lane_waits_uncharged(self, lab: Lab) -> None:
        run = await lab.run()
        await lab.put(run, "a")
        worker = await lab.worker(lease_seconds=3600)
        (claimed,) = await lab.claim(worker)
        await lab.commit(worker, throttled(claimed, delay=60))
        assert await lab.claim(worker) == []
        await lab.jump(61)
        (again,) = await lab.claim(worker)
        assert again.tries == 0

    async def test_a_permanent_failure_is_dead_at_once(self, lab: Lab) -> None:  # S4.6
        run = await lab.run()
        await lab.put(run, "a")
        worker = await lab.worker()
        (claimed,) = await lab.claim(worker)
        await lab.commit(worker, dead(claimed, "Private video"))
        view = await lab.item(run, "a")
        assert (view.state.value, view.outcome, view.error) == ("dead", "permanent", "Private video")

    async def test_the_attempts_of_an_item_can_be_read(self, lab: Lab) -> None:  # S0.6
        run = await lab.run()
        await lab.put(run, "a")
        first, second = await lab.worker(), await lab.worker()
        (claimed,) = await lab.claim(first)
        await lab.commit(first, retry(claimed, delay=0, error="timed out"))
        await lab.ledger.upkeep.tend()
        (again,) = await lab.claim(second)
        end = Finished(lease=again.lease, verdict=DONE, seconds=1.5, detail={"status": 200, "proxy": "p1"})
        await lab.commit(second, end)
        attempts = await lab.ledger.reads.attempts(run.id, claimed.item)
        assert [(a.epoch, a.worker, a.outcome, a.error) for a in attempts] == [
            (1, first, "transient", "timed out"),
            (2, second, "done", None),
        ]
        view = await lab.item(run, "a")
        assert (view.state.value, view.outcome, view.error) == ("done", "done", None)
        assert attempts[1].seconds == 1.5
        assert attempts[1].detail == {"status": 200, "proxy": "p1"}
        assert all(a.claimed_at <= a.ended_at for a in attempts)

    async def test_bad_input_changes_nothing(self, lab: Lab) -> None:
        run = await lab.run()
        await lab.put(run, "a")
        worker = await lab.worker()
        (claimed,) = await lab.claim(worker)
        bad = [
            (done(claimed, "[1]"), InvalidRecord),
            (done(claimed, follow_ups=[NewItem(url="nope")]), InvalidItem),
            (done(claimed, follow_ups=[NewItem(key="x", stage="nope")]), UnknownStage),
            (Finished(lease=claimed.lease, verdict=DONE, detail={"x": object()}), InvalidRecord),
        ]
        for end, error in bad:
            with pytest.raises(error):
                await lab.commit(worker, end)
        with pytest.raises(UsageError, match="twice"):
            await lab.commit(worker, done(claimed), done(claimed))
        assert await lab.state(run, "a") == "leased"
        assert (await lab.commit(worker, done(claimed))).committed == 1
        await lab.check()

    async def test_a_batch_over_several_runs_and_stages(self, lab: Lab) -> None:
        first, second = await lab.run("list", "page"), await lab.run("list", "page")
        for run in (first, second):
            await lab.put(run, *(f"k{n}" for n in range(3)), partition="p")
        worker = await lab.worker()
        claimed = [*await lab.claim(worker, 3), *await lab.claim(worker, 3)]
        report = await lab.commit(
            worker,
            *(done(item, '{"k":1}', follow_ups=[NewItem(key=item.key, stage="page")]) for item in claimed),
        )
        assert (report.committed, report.enqueued) == (6, 6)
        for run in (first, second):
            counts = await lab.ledger.reads.stats(run.id, stage="page")
            assert counts.ready == 3
        await lab.check()
