"""Replay: the results of an item that has ended are replaced by those of a further attempt."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from shoal.errors import InvalidRecord, UsageError
from shoal.model.item import Lease, NewItem
from shoal.model.outcome import DONE, FinishedAttempt
from shoal.model.run import Run, RunState
from shoal.testing.harness import LedgerHarness, dead, done, keyed, retry


async def values_of(harness: LedgerHarness, run: Run) -> list[tuple[int, int, object]]:
    rows = (await harness.ledger.reads.results(run.id)).rows
    return [(row.item, row.n, json.loads(row.record)["value"]) for row in rows]


async def again(harness: LedgerHarness, run: Run, key: str, *values: int, **fields: object) -> FinishedAttempt:
    """A further attempt on an item, with its current epoch."""
    view = await harness.item(run, key)
    return FinishedAttempt(
        lease=Lease(view.id, view.epoch, run.no),
        decision=DONE,
        records=tuple(f'{{"value":{value}}}' for value in values),
        seconds=0.25,
        **fields,  # type: ignore[arg-type]
    )


class ReplayConformance:
    async def test_the_records_of_a_done_item_are_replaced(self, harness: LedgerHarness) -> None:
        run = await harness.run()
        await harness.put(run, "a", "b")
        worker = await harness.worker()
        a, b = await harness.claim(worker)
        await harness.commit(worker, done(a, '{"value":1}', '{"value":2}', '{"value":3}'), done(b, '{"value":9}'))
        report = await harness.ledger.steering.replay(await again(harness, run, "a", 4, 5))
        assert (report.replayed, report.enqueued) == (True, 0)
        assert await values_of(harness, run) == [(a.item, 0, 4), (a.item, 1, 5), (b.item, 0, 9)]
        view = await harness.item(run, "a")
        assert (view.state.value, view.epoch) == ("done", a.epoch + 1)
        attempts = await harness.ledger.reads.attempts(run.id, a.item)
        assert [(each.epoch, each.worker, each.outcome) for each in attempts] == [
            (a.epoch, worker, "done"),
            (a.epoch + 1, None, "done"),
        ]
        counts = await harness.ledger.reads.stats(run.id)
        assert (counts.done, counts.results) == (2, 3)
        assert (await harness.commit(worker, done(a, '{"value":1}'))).committed == 0
        await harness.check()

    async def test_a_dead_item_becomes_done(self, harness: LedgerHarness) -> None:
        run = await harness.run()
        await harness.put(run, "a")
        worker = await harness.worker()
        (a,) = await harness.claim(worker)
        await harness.commit(worker, dead(a, "no price"))
        assert (await harness.ledger.steering.replay(await again(harness, run, "a", 1))).replayed
        counts = await harness.ledger.reads.stats(run.id)
        assert (counts.done, counts.dead, counts.results) == (1, 0, 1)
        attempts = await harness.ledger.reads.attempts(run.id, a.item)
        assert [(each.outcome, each.error) for each in attempts] == [("permanent", "no price"), ("done", None)]
        await harness.check()

    async def test_an_item_that_changed_meanwhile_stays_as_it_is(self, harness: LedgerHarness) -> None:
        run = await harness.run()
        await harness.put(run, "a", "open")
        worker = await harness.worker()
        a, _ = await harness.claim(worker)
        await harness.commit(worker, done(a, '{"value":1}'))
        first, second = await again(harness, run, "a", 2), await again(harness, run, "a", 3)
        assert (await harness.ledger.steering.replay(first)).replayed
        assert not (await harness.ledger.steering.replay(second)).replayed
        assert not (await harness.ledger.steering.replay(await again(harness, run, "open", 4))).replayed
        unknown = replace(second, lease=Lease(10**9, 1, run.no))
        assert not (await harness.ledger.steering.replay(unknown)).replayed
        assert await values_of(harness, run) == [(a.item, 0, 2)]
        await harness.check()

    async def test_new_follow_ups_make_a_finished_run_active(self, harness: LedgerHarness) -> None:
        run = await harness.run()
        await harness.put(run, "a", lane="host")
        worker = await harness.worker()
        (a,) = await harness.claim(worker)
        await harness.commit(worker, done(a, follow_ups=[NewItem(key="known")]))
        await harness.finish(worker, await harness.claim(worker))
        await harness.ledger.runs.seal(run.id)
        await harness.ledger.upkeep.run_once()
        known = await harness.ledger.steering.replay(
            await again(harness, run, "a", 1, follow_ups=(NewItem(key="known"),))
        )
        assert (known.enqueued, known.duplicates) == (0, 1)
        assert (await harness.ledger.runs.get(run.id)).state is RunState.FINISHED
        fresh = await harness.ledger.steering.replay(
            await again(harness, run, "a", 1, follow_ups=(NewItem(key="new", lane="host"),))
        )
        assert (fresh.enqueued, fresh.duplicates) == (1, 0)
        assert (await harness.ledger.runs.get(run.id)).state is RunState.ACTIVE
        assert (await harness.item(run, "new")).parent == a.item
        await harness.finish(worker, await harness.claim(worker))
        await harness.advance_clock(5)
        await harness.ledger.upkeep.run_once()
        assert (await harness.ledger.runs.get(run.id)).state is RunState.FINISHED
        await harness.check()

    async def test_keys_of_the_item_stay_its_own_and_those_it_no_longer_has_are_free(
        self, harness: LedgerHarness
    ) -> None:
        run = await harness.run()
        await harness.put(run, "p", "q", "r")
        worker = await harness.worker()
        p, q, r = await harness.claim(worker)
        await harness.commit(worker, keyed(p, ("a", 1), ("b", 1), ("c", 1)), keyed(q, ("d", 1)))
        view = await harness.item(run, "p")
        changed = replace(p, epoch=view.epoch)
        report = await harness.ledger.steering.replay(keyed(changed, ("b", 2), ("a", 1), ("d", 2), ("b", 3)))
        assert (report.replayed, report.dropped_records) == (True, 2)
        assert await values_of(harness, run) == [(p.item, 0, 2), (p.item, 1, 1), (q.item, 0, 1)]
        counts = await harness.ledger.reads.stats(run.id)
        assert (counts.new_records, counts.changed_records, counts.unchanged_records) == (4, 1, 1)
        assert (await harness.commit(worker, keyed(r, ("c", 5)))).dropped_records == 0
        await harness.check()

    async def test_bad_replays_change_nothing(self, harness: LedgerHarness) -> None:
        run = await harness.run()
        await harness.put(run, "a")
        worker = await harness.worker()
        (a,) = await harness.claim(worker)
        await harness.commit(worker, done(a, '{"value":1}'))
        with pytest.raises(UsageError):
            await harness.ledger.steering.replay(retry(a))
        with pytest.raises(InvalidRecord):
            await harness.ledger.steering.replay(done(a, "[]"))
        assert await values_of(harness, run) == [(a.item, 0, 1)]
        await harness.ledger.runs.remove(run.id)
        assert not (await harness.ledger.steering.replay(done(a))).replayed
