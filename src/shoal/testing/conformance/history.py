"""The history of a run: what ended and how long it took, how the run stood, and how long that is kept."""

from __future__ import annotations

import datetime as dt
import itertools

import msgspec

from shoal.model.history import HistoryPoint
from shoal.model.lane import LanePolicy
from shoal.model.latency import BUCKET_BOUNDS, bucket_of
from shoal.model.outcome import FinishedAttempt
from shoal.model.run import Run, RunState
from shoal.testing.harness import LedgerHarness, dead, done, keyed, retry, skipped, throttled

MINUTE, HOUR, DAY = 60, 3_600, 86_400


def timed(end: FinishedAttempt, *, waited: float | None, seconds: float) -> FinishedAttempt:
    return msgspec.structs.replace(end, waited=waited, seconds=seconds)


async def points_of(
    harness: LedgerHarness, run: Run, *, seconds: float = HOUR, step: int = MINUTE
) -> list[HistoryPoint]:
    return await harness.ledger.reads.history(run.id, seconds=seconds, step=step)


async def sample(harness: LedgerHarness) -> int:
    """Sample in a new minute, whenever the last sample was."""
    await harness.advance_clock(MINUTE)
    return await harness.ledger.upkeep.sample()


class HistoryConformance:
    async def test_ended_attempts_are_counted_by_the_minute_with_their_latencies(self, harness: LedgerHarness) -> None:
        run, worker = await harness.run(), await harness.worker()
        await harness.put(run, "a", "b", "c", "d", "e")
        a, b, c, d, e = await harness.claim(worker)
        await harness.commit(
            worker,
            timed(done(a, '{"x": 1}', '{"x": 2}'), waited=0.02, seconds=0.3),
            timed(dead(b), waited=3.0, seconds=0.3),
            timed(skipped(c), waited=None, seconds=0.0),
        )
        await harness.ledger.upkeep.run_once()  # one part may be folded, the other not
        await harness.commit(
            worker, timed(retry(d), waited=0.02, seconds=200_000.0), timed(throttled(e), waited=-1.0, seconds=7.0)
        )
        points = await points_of(harness, run)
        assert len(points) == 60
        assert [b.at - a.at for a, b in itertools.pairwise(points)] == [dt.timedelta(seconds=MINUTE)] * 59
        now = points[-1] if points[-1].done else points[-2]  # a minute may have begun meanwhile
        ends = {name: getattr(now, name) for name in ("done", "dead", "skipped", "retried", "throttled", "records")}
        assert ends == {"done": 1, "dead": 1, "skipped": 1, "retried": 1, "throttled": 1, "records": 2}
        assert now.seconds > 200_000
        waits, works = [0] * (len(BUCKET_BOUNDS) + 1), [0] * (len(BUCKET_BOUNDS) + 1)
        for waited in (0.02, 3.0, 0.02, -1.0):
            waits[bucket_of(waited)] += 1
        for seconds in (0.3, 0.3, 0.0, 200_000.0, 7.0):
            works[bucket_of(seconds)] += 1
        assert [*now.wait.counts, *[0] * (len(waits) - len(now.wait.counts))] == waits
        assert [*now.work.counts, *[0] * (len(works) - len(now.work.counts))] == works
        assert [point for point in points if point.work.count] == [now]

    async def test_attempts_without_a_lease_are_not_counted(self, harness: LedgerHarness) -> None:
        run, other = await harness.run(), await harness.run(scraper="other")
        worker = await harness.worker()
        await harness.put(run, "a", "b")
        await harness.put(other, "c")
        a, b, c = sorted(await harness.claim(worker), key=lambda claimed: claimed.name)
        await harness.ledger.claims.return_leases(worker, [b.lease])
        report = await harness.commit(
            worker, *(timed(done(each, '{"x": 1}'), waited=1.0, seconds=1.0) for each in (a, b, c))
        )
        assert report.committed == 2
        await harness.commit(worker, timed(done(a, '{"x": 1}'), waited=1.0, seconds=1.0))  # repeated
        for of in (run, other):
            points = await points_of(harness, of)
            assert sum(point.done for point in points) == sum(point.records for point in points) == 1
            assert sum(point.work.count for point in points) == sum(point.wait.count for point in points) == 1

    async def test_records_with_keys_count_once(self, harness: LedgerHarness) -> None:
        run, worker = await harness.run(), await harness.worker()
        await harness.put(run, "a", "b")
        a, b = await harness.claim(worker)
        await harness.commit(worker, keyed(a, ("k", 1), ("l", 1)))
        await harness.commit(worker, keyed(b, ("k", 2), ("m", 1)))
        assert sum(point.records for point in await points_of(harness, run)) == 3

    async def test_a_claim_says_how_long_the_item_was_claimable(self, harness: LedgerHarness) -> None:
        run, worker = await harness.run(lane=LanePolicy(limit=1)), await harness.worker()
        await harness.put(run, "a", "b", lane="x")
        await harness.advance_clock(20)
        [a] = await harness.claim(worker)
        assert a.waited is not None
        assert 20 <= a.waited < 25
        await harness.finish(worker, [a])
        [b] = await harness.claim(worker)  # it became claimable when the lane was free
        assert b.waited is not None
        assert b.waited < 5

    async def test_samples_say_how_the_run_stood_and_what_it_waited_for(self, harness: LedgerHarness) -> None:
        run, worker = await harness.run(lane=LanePolicy(limit=1)), await harness.worker(lease_seconds=DAY)
        await harness.put(run, "a", "b", "c", lane="x")
        await harness.put(run, "free")
        [claimed] = await harness.claim(worker, limit=1)
        assert await sample(harness) == 1
        assert await harness.ledger.upkeep.sample() == 0  # another process, in the same minute
        point = (await points_of(harness, run))[-1]
        assert point.counts is not None
        assert (point.counts.ready, point.counts.waiting, point.counts.leased) == (1, 2, 1)
        assert point.waiting_for == {"being worked on": 1, "free workers": 1, "host limit": 2}
        await harness.finish(worker, [claimed])
        await harness.ledger.runs.pause(run.id)
        await harness.advance_clock(HOUR)
        await sample(harness)
        points = await points_of(harness, run, seconds=2 * HOUR)
        sampled = [point for point in points if point.counts is not None]
        assert len(sampled) == 2  # nothing is invented for the hour in between
        assert sampled[-1].waiting_for == {"the run is paused": 3}
        assert sampled[-1].counts is not None
        assert sampled[-1].counts.remaining == sum((sampled[-1].waiting_for or {}).values())

    async def test_upkeep_samples_and_a_finished_run_has_its_last_state(self, harness: LedgerHarness) -> None:
        run, worker = await harness.run(), await harness.worker(lease_seconds=DAY)
        await harness.put(run, "a")
        await harness.advance_clock(MINUTE)
        await harness.ledger.upkeep.run_once()
        assert any(point.counts is not None for point in await points_of(harness, run))
        await harness.finish(worker, await harness.claim(worker))
        await harness.ledger.runs.seal(run.id)
        await harness.ledger.upkeep.run_once()
        assert (await harness.ledger.runs.get(run.id)).state is RunState.FINISHED
        last = [point for point in await points_of(harness, run) if point.counts is not None][-1]
        assert last.counts is not None
        assert (last.counts.done, last.waiting_for) == (1, {})

    async def test_no_live_worker_is_a_cause(self, harness: LedgerHarness) -> None:
        run = await harness.run()
        await harness.put(run, "a", "b")
        await sample(harness)
        assert (await points_of(harness, run))[-1].waiting_for == {"a live worker": 2}

    async def test_minutes_become_hours_after_two_days(self, harness: LedgerHarness) -> None:
        run = await harness.run()
        await harness.put(run, *"abcdef")

        async def work(seconds: float) -> None:
            worker = await harness.worker()
            [claimed] = await harness.claim(worker, limit=1)
            await harness.commit(worker, timed(done(claimed), waited=0.01, seconds=seconds))
            await harness.advance_clock(MINUTE)
            await harness.ledger.upkeep.run_once()

        for _ in range(3):
            await work(2.0)
        await harness.advance_clock(2 * DAY + HOUR)
        for _ in range(2):
            await work(30.0)
        points = await points_of(harness, run, seconds=3 * DAY, step=HOUR)
        old, new = points[: 2 * 12], points[2 * 12 :]
        assert sum(point.done for point in old) == sum(point.work.count for point in old) == 3
        assert {bucket for point in old for bucket, n in enumerate(point.work.counts) if n} == {bucket_of(2.0)}
        assert [point.counts.done for point in old if point.counts is not None][-1] == 3
        assert sum(point.done for point in new) == 2
        assert sum(point.done for point in await points_of(harness, run)) == 2  # still by the minute
        await harness.advance_clock(91 * DAY)
        await work(30.0)
        kept = await points_of(harness, run, seconds=200 * DAY, step=DAY)
        assert sum(point.done for point in kept) == 1

    async def test_the_history_goes_with_its_run(self, harness: LedgerHarness) -> None:
        run, other, worker = await harness.run(), await harness.run(), await harness.worker()
        await harness.put(run, "a")
        await harness.finish(worker, await harness.claim(worker))
        await harness.put(other, "b")
        await sample(harness)
        await harness.ledger.upkeep.run_once()
        await harness.ledger.runs.remove(run.id)
        await sample(harness)
        assert any(point.counts is not None for point in await points_of(harness, other))
        await harness.check()
