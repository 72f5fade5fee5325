"""Groups of dead items: which items are in them, what leaves them, and muting."""

from __future__ import annotations

import pytest

from shoal.errors import NotFound
from shoal.model.failures import MAX_GROUPS, OTHER_SHAPE
from shoal.model.item import ItemState, Lease, NewItem
from shoal.model.outcome import DONE, FinishedAttempt
from shoal.model.run import Run
from shoal.model.views import ItemFilter
from shoal.testing.harness import LedgerHarness, dead, done


async def die(harness: LedgerHarness, run: Run, errors: dict[str, str]) -> None:
    """Items with these URLs die of these errors."""
    await harness.ledger.intake.enqueue(run.id, list(errors))
    worker = await harness.worker()
    left = len(errors)
    while left:
        # Each host has a limit: its items are claimed one after another.
        claimed = await harness.claim(worker)
        assert claimed
        await harness.commit(worker, *(dead(item, errors[item.url or ""]) for item in claimed))
        left -= len(claimed)


class FailuresConformance:
    async def test_dead_items_are_grouped_by_stage_outcome_host_and_message(self, harness: LedgerHarness) -> None:
        run = await harness.run()
        errors = {f"https://a.example/{n}": f"404 Not Found: https://a.example/{n}" for n in range(3)}
        errors |= {"https://b.example/1": "404 Not Found: https://b.example/1"}
        errors |= {"https://a.example/x": "took 31.5 s, limit 30"}
        await die(harness, run, errors)
        failures = harness.ledger.failures
        before = await failures.list(run.id)
        assert (before.rows, before.ungrouped, before.ungrouped_is_at_least) == ((), 5, False), "nothing is invisible"
        assert len((await failures.ungrouped(run.id, limit=3)).rows) == 3

        assert await failures.group(run.id, at_most=2) == 2
        assert (await failures.list(run.id)).ungrouped == 3
        await harness.advance_clock(2)
        await harness.ledger.upkeep.run_once()
        page = await failures.list(run.id)
        assert page.ungrouped == 0
        assert {(row.stage, row.outcome, row.host, row.shape, row.items) for row in page.rows} == {
            ("page", "permanent", "a.example", "404 Not Found: URL", 3),
            ("page", "permanent", "b.example", "404 Not Found: URL", 1),
            ("page", "permanent", "a.example", "took N s, limit N", 1),
        }
        for row in page.rows:
            assert row.error == errors[row.name]
            assert row.first_at <= row.last_at
            assert (len(row.trend), sum(row.trend), sum(row.trend[-3:])) == (60, row.items, row.items)
            assert (await harness.ledger.reads.item(run.id, id=row.item)).url == row.name
        assert await failures.group(run.id) == 0, "each item is in one group"
        await harness.check()

    async def test_a_list_of_groups_has_the_newest_death_first_and_a_cursor(self, harness: LedgerHarness) -> None:
        run = await harness.run()
        for n in range(5):
            await die(harness, run, {f"https://h{n}.example/": "gone"})
            await harness.advance_clock(90)
        await harness.ledger.failures.group(run.id)
        hosts, cursor = [], None
        while True:
            page = await harness.ledger.failures.list(run.id, cursor=cursor, limit=2)
            hosts += [row.host for row in page.rows]
            if (cursor := page.cursor) is None:
                break
        assert hosts == [f"h{n}.example" for n in (4, 3, 2, 1, 0)]
        oldest = (await harness.ledger.failures.list(run.id)).rows[-1]
        assert oldest.trend.index(1) in (51, 52, 53), "it died seven and a half minutes ago"
        await harness.advance_clock(4 * 3600)
        await harness.ledger.upkeep.run_once()
        assert sum((await harness.ledger.failures.get(run.id, oldest.id)).trend) == 0
        await harness.check()

    async def test_items_leave_their_group_when_they_are_retried_or_replayed(self, harness: LedgerHarness) -> None:
        run = await harness.run()
        await die(harness, run, {f"https://a.example/{n}": "503 on try 4" for n in range(4)})
        await harness.ledger.failures.group(run.id)
        (group,) = (await harness.ledger.failures.list(run.id)).rows
        which = ItemFilter(failure=group.id)
        items = (await harness.ledger.reads.items(run.id, which)).rows
        assert [item.state for item in items] == [ItemState.DEAD] * 4
        assert await harness.ledger.steering.retry(run.id, which, limit=2, by="ann") == 2
        assert (await harness.ledger.failures.get(run.id, group.id)).items == 2
        await harness.check()

        left = (await harness.ledger.reads.items(run.id, which)).rows
        lease = Lease(left[0].id, left[0].epoch, run.no)
        report = await harness.ledger.steering.replay(FinishedAttempt(lease=lease, decision=DONE, seconds=0.1))
        assert report.replayed
        assert (await harness.ledger.failures.get(run.id, group.id)).items == 1
        await harness.check()

        # One of those that were retried dies again, in the same way, and returns.
        worker = await harness.worker()
        again, other = await harness.claim(worker)
        await harness.commit(worker, dead(again, "503 on try 9"), done(other))
        assert await harness.ledger.failures.group(run.id) == 1
        assert (await harness.ledger.failures.get(run.id, group.id)).items == 2
        assert await harness.ledger.steering.retry(run.id, which) == 2
        assert (await harness.ledger.failures.list(run.id)).rows == (), "an empty group is not listed"
        assert (await harness.ledger.reads.items(run.id, which)).rows == ()
        await harness.check()

    async def test_an_item_that_was_retried_before_it_is_grouped_stays_out(self, harness: LedgerHarness) -> None:
        run = await harness.run()
        await die(harness, run, {"https://a.example/": "gone"})
        await harness.ledger.steering.retry(run.id, ItemFilter())
        assert await harness.ledger.failures.group(run.id) == 0
        worker = await harness.worker()
        await harness.finish(worker, await harness.claim(worker))
        assert await harness.ledger.failures.group(run.id) == 0
        await harness.check()

    async def test_groups_are_muted_with_an_event(self, harness: LedgerHarness) -> None:
        run, other = await harness.run(), await harness.run()
        await die(harness, run, {"https://a.example/": "gone", "https://b.example/": "gone"})
        failures = harness.ledger.failures
        await failures.group(run.id)
        first, second = (await failures.list(run.id)).rows
        muted = await failures.mute(run.id, first.id, by="ann")
        assert muted.muted_by == "ann"
        assert muted.muted_at is not None
        await failures.mute(run.id, first.id, by="bob")
        assert [row.id for row in (await failures.list(run.id, muted=False)).rows] == [second.id]
        assert [row.muted_by for row in (await failures.list(run.id, muted=True)).rows] == ["ann"]
        assert len((await failures.list(run.id)).rows) == 2
        assert (await failures.unmute(run.id, first.id, by="eve")).muted_at is None
        found = (await harness.ledger.reads.events(run_id=run.id, action="failure.")).rows
        events = [(event.action, event.actor, event.subject) for event in found]
        assert events == [("failure.unmuted", "eve", str(first.id)), ("failure.muted", "ann", str(first.id))]
        for call in (failures.get(other.id, first.id), failures.mute(other.id, first.id), failures.get(run.id, 2**40)):
            with pytest.raises(NotFound):
                await call

    async def test_the_number_of_groups_is_bounded(self, harness: LedgerHarness) -> None:
        run = await harness.run()
        count = MAX_GROUPS + 30
        await harness.ledger.intake.enqueue(run.id, [NewItem(key=f"k{n}") for n in range(count)])
        worker = await harness.worker()
        words = [chr(97 + n // 676) + chr(97 + n // 26 % 26) + chr(97 + n % 26) for n in range(count)]
        claimed = await harness.claim(worker, count)
        await harness.commit(worker, *(dead(item, f"failed at {words[n]}") for n, item in enumerate(claimed)))
        assert await harness.ledger.failures.group(run.id, at_most=count) == count
        groups = (await harness.ledger.failures.list(run.id, limit=count)).rows
        assert len(groups) == MAX_GROUPS + 1
        assert {row.shape: row.items for row in groups}[OTHER_SHAPE] == 30
        await harness.check()

    async def test_removing_a_run_removes_its_groups(self, harness: LedgerHarness) -> None:
        keep, run = await harness.run(scraper="keep"), await harness.run()
        for each in (keep, run):
            await die(harness, each, {"https://a.example/": "gone"})
            await harness.ledger.failures.group(each.id)
        (kept,) = (await harness.ledger.failures.list(keep.id)).rows
        (group,) = (await harness.ledger.failures.list(run.id)).rows
        await harness.ledger.runs.remove(run.id)
        assert await harness.ledger.failures.get(keep.id, kept.id) == kept
        with pytest.raises(NotFound):
            await harness.ledger.failures.get(run.id, group.id)
        await harness.check()
        await harness.ledger.runs.remove(keep.id)
        await harness.check()
