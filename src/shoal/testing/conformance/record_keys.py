"""Record keys: each key is stored once in its run or in all runs of its scraper, whatever is repeated or concurrent."""

from __future__ import annotations

import asyncio
import json

import pytest

from shoal.errors import InvalidRecord, UsageError
from shoal.model.record_key import RecordScope
from shoal.model.run import Run
from shoal.testing.harness import LedgerHarness, done, keyed

SCRAPER = RecordScope.SCRAPER


async def stored(harness: LedgerHarness, run: Run) -> dict[str, int]:
    """The records of a run by their keys. Fails when a key is stored twice."""
    found: dict[str, int] = {}
    for row in (await harness.ledger.reads.results(run.id)).rows:
        record = json.loads(row.record)
        assert row.record_key == record["key"]
        assert record["key"] not in found
        found[record["key"]] = record["value"]
    return found


async def counts_of(harness: LedgerHarness, run: Run) -> tuple[int, int, int, int, int]:
    """Records that are stored; new, changed, unchanged and dropped ones."""
    counts = await harness.ledger.reads.stats(run.id)
    return (
        counts.results,
        counts.new_records,
        counts.changed_records,
        counts.unchanged_records,
        counts.dropped_records,
    )


class RecordKeysConformance:
    async def test_a_second_record_with_the_same_key_is_dropped(self, harness: LedgerHarness) -> None:
        run = await harness.run()
        await harness.put(run, "p1", "p2", "p3")
        worker = await harness.worker()
        p1, p2, p3 = await harness.claim(worker)
        first = await harness.commit(worker, keyed(p1, ("a", 1), ("b", 1), ("a", 2)))
        assert (first.committed, first.dropped_records) == (1, 1)
        second = await harness.commit(worker, keyed(p2, ("b", 2), ("c", 2)), keyed(p3, ("c", 3)))
        assert (second.committed, second.dropped_records) == (2, 2)
        assert await stored(harness, run) == {"a": 1, "b": 1, "c": 2}
        assert await counts_of(harness, run) == (3, 3, 0, 0, 3)
        assert await harness.state(run, "p3") == "done"
        await harness.check()

    async def test_a_replacing_record_is_stored_under_the_item_that_yielded_it(self, harness: LedgerHarness) -> None:
        run = await harness.run()
        await harness.put(run, "p1", "p2", "p3")
        worker = await harness.worker()
        p1, p2, p3 = await harness.claim(worker)
        await harness.commit(worker, keyed(p1, ("a", 1), ("b", 1), replaces=True))
        report = await harness.commit(
            worker, keyed(p2, ("a", 2), ("b", 1), replaces=True), keyed(p3, ("a", 3), ("c", 3), replaces=True)
        )
        assert report.dropped_records == 0
        assert await stored(harness, run) == {"a": 3, "b": 1, "c": 3}
        rows = (await harness.ledger.reads.results(run.id)).rows
        assert [(row.item, row.n) for row in rows] == [(p2.item, 1), (p3.item, 0), (p3.item, 1)]
        assert await counts_of(harness, run) == (3, 3, 2, 1, 0)
        await harness.check()

    async def test_a_commit_made_twice_counts_its_records_once(self, harness: LedgerHarness) -> None:
        run = await harness.run()
        await harness.put(run, "p1", "p2")
        worker = await harness.worker()
        p1, p2 = await harness.claim(worker)
        ends = keyed(p1, ("a", 1), replaces=True), keyed(p2, ("a", 2), ("b", 2), replaces=True)
        for committed in (2, 0):
            report = await harness.commit(worker, *ends)
            assert (report.committed, report.dropped_records) == (committed, 0)
        assert await stored(harness, run) == {"a": 2, "b": 2}
        assert await counts_of(harness, run) == (2, 2, 1, 0, 0)
        await harness.check()

    async def test_a_lost_lease_neither_stores_nor_reserves_a_key(self, harness: LedgerHarness) -> None:
        run = await harness.run()
        await harness.put(run, "p1", "p2")
        slow, quick = await harness.worker(), await harness.worker()
        p1, p2 = await harness.claim(slow)
        await harness.ledger.claims.return_leases(slow, [p1.lease])
        await harness.commit(slow, keyed(p1, ("a", 1), replaces=True), keyed(p2, ("a", 2), replaces=True))
        (again,) = await harness.claim(quick)
        report = await harness.commit(quick, keyed(again, ("a", 3)))
        assert report.dropped_records == 1
        assert await stored(harness, run) == {"a": 2}
        await harness.check()

    async def test_records_with_and_without_keys_share_a_batch(self, harness: LedgerHarness) -> None:
        run = await harness.run("list", "page")
        await harness.put(run, "p1", "p2", "p3")
        worker = await harness.worker()
        p1, p2, p3 = await harness.claim(worker)
        await harness.commit(worker, done(p1, '{"x":1}', '{"x":1}'), keyed(p2, ("a", 1)), keyed(p3, ("a", 1)))
        rows = (await harness.ledger.reads.results(run.id)).rows
        assert [(row.item, row.record_key, row.change) for row in rows] == [
            (p1.item, None, None),
            (p1.item, None, None),
            (p2.item, "a", "new"),
        ]
        assert await counts_of(harness, run) == (3, 1, 0, 0, 1)
        await harness.check()

    async def test_stages_and_runs_have_keys_of_their_own(self, harness: LedgerHarness) -> None:
        first, second = await harness.run("list", "page"), await harness.run("list", "page")
        for run in (first, second):
            await harness.put(run, "p1")
            await harness.put(run, "p2", stage="page")
        worker = await harness.worker()
        claimed = [item for _ in range(4) for item in await harness.claim(worker)]
        assert len(claimed) == 4
        await harness.commit(worker, *(keyed(item, ("a", 1)) for item in claimed))
        for run in (first, second):
            assert len((await harness.ledger.reads.results(run.id)).rows) == 2

    async def test_a_key_of_the_scraper_is_dropped_in_every_later_run(self, harness: LedgerHarness) -> None:
        worker = await harness.worker()
        runs = []
        for value in (1, 2):
            run = await harness.run()
            await harness.put(run, "p")
            (item,) = await harness.claim(worker)
            await harness.commit(worker, keyed(item, ("a", value), (f"only-{value}", value), scope=SCRAPER))
            runs.append(run)
        assert await stored(harness, runs[0]) == {"a": 1, "only-1": 1}
        assert await stored(harness, runs[1]) == {"only-2": 2}
        assert await counts_of(harness, runs[1]) == (1, 1, 0, 0, 1)
        await harness.check()

    async def test_an_upsert_over_runs_tells_new_changed_and_unchanged(self, harness: LedgerHarness) -> None:
        worker = await harness.worker()
        runs = []
        for records in ([("a", 1), ("b", 1), ("gone", 1)], [("a", 1), ("b", 2), ("new", 2)]):
            run = await harness.run()
            await harness.put(run, "p")
            (item,) = await harness.claim(worker)
            await harness.commit(worker, keyed(item, *records, scope=SCRAPER, replaces=True))
            runs.append(run)
        assert await stored(harness, runs[0]) == {"gone": 1}
        assert await stored(harness, runs[1]) == {"a": 1, "b": 2, "new": 2}
        rows = (await harness.ledger.reads.results(runs[1].id)).rows
        assert {row.record_key: row.change for row in rows} == {"a": "unchanged", "b": "changed", "new": "new"}
        assert await counts_of(harness, runs[0]) == (1, 3, 0, 0, 0)
        assert await counts_of(harness, runs[1]) == (3, 1, 1, 1, 0)
        await harness.check()

    async def test_a_removed_run_frees_the_keys_of_its_records(self, harness: LedgerHarness) -> None:
        worker = await harness.worker()
        first = await harness.run()
        await harness.run(scraper="another")  # so that the tables are not truncated
        await harness.put(first, "p")
        (item,) = await harness.claim(worker)
        await harness.commit(worker, keyed(item, ("a", 1), scope=SCRAPER))
        await harness.ledger.runs.remove(first.id)
        second = await harness.run()
        await harness.put(second, "p")
        (item,) = await harness.claim(worker)
        report = await harness.commit(worker, keyed(item, ("a", 2), scope=SCRAPER))
        assert report.dropped_records == 0
        assert await stored(harness, second) == {"a": 2}
        await harness.check()

    @pytest.mark.parametrize("replaces", [False, True])
    async def test_concurrent_commits_of_the_same_keys_store_each_once(
        self, harness: LedgerHarness, replaces: bool
    ) -> None:
        """In opposite orders, so that locks taken in the order of arrival would deadlock."""
        run = await harness.run()
        other = await harness.open_again()
        batches, size, keys = 6, 5, [f"k{n}" for n in range(40)]
        await harness.put(run, *(f"p{n}" for n in range(batches * size)))
        workers = [await harness.worker() for _ in range(batches)]
        commits = []
        for number, worker in enumerate(workers):
            claimed = await harness.claim(worker, size)
            order = keys if number % 2 else keys[::-1]
            ends = [
                keyed(item, *((key, item.item) for key in order), scope=SCRAPER, replaces=replaces) for item in claimed
            ]
            commits.append((other if number % 2 else harness.ledger).commits.commit(worker, ends))
        reports = await asyncio.gather(*commits)
        assert sum(report.committed for report in reports) == batches * size
        found = await stored(harness, run)
        assert found.keys() == set(keys)
        results, new, changed, unchanged, dropped = await counts_of(harness, run)
        assert (results, new, unchanged) == (len(keys), len(keys), 0)
        repeated = (batches * size - 1) * len(keys)
        assert (changed, dropped) == ((repeated, 0) if replaces else (0, repeated))
        await harness.check()

    async def test_results_are_listed_by_their_keys_in_pages(self, harness: LedgerHarness) -> None:
        """Both lists are in the same order in every run, so that two runs can be compared side by side."""
        worker = await harness.worker()
        by_record, by_item = [], []
        for turn in (1, -1):
            run = await harness.run("page", "other")
            await harness.put(run, *[f"p{n}" for n in range(6)][::turn])
            await harness.put(run, *[f"q{n}" for n in range(6)][::turn], stage="other")
            ends = []
            for item in await harness.claim(worker):
                if item.stage == "page":
                    ends.append(keyed(item, (f"{item.name}-a", 1), (f"{item.name}-b", 2)))
                elif item.name != "q3":
                    ends.append(done(item, '{"n":0}', '{"n":1}', '{"n":2}'))
            await harness.commit(worker, *ends)
            found: list[list[str]] = [[], []]
            cursor: str | None = None
            while True:
                page = await harness.ledger.reads.results_by_record_key(run.id, cursor=cursor, limit=5)
                found[0] += [str(row.row.record_key) for row in page.rows]
                if (cursor := page.cursor) is None:
                    break
            while True:
                page = await harness.ledger.reads.results_by_item_key(run.id, stage="other", cursor=cursor, limit=2)
                found[1] += [f"{row.row.key}-{row.row.n}" for row in page.rows]
                if (cursor := page.cursor) is None:
                    break
            by_record.append(found[0])
            by_item.append(found[1])
        assert by_record[0] == by_record[1]
        assert sorted(by_record[0]) == sorted(f"p{n}-{end}" for n in range(6) for end in "ab")
        assert by_item[0] == by_item[1]
        assert sorted(by_item[0]) == sorted(f"q{n}-{at}" for n in (0, 1, 2, 4, 5) for at in range(3))
        with pytest.raises(UsageError):
            await harness.ledger.reads.results_by_record_key(run.id, cursor="nonsense")

    async def test_as_many_keys_as_records_or_none(self, harness: LedgerHarness) -> None:
        run = await harness.run()
        await harness.put(run, "p")
        worker = await harness.worker()
        (item,) = await harness.claim(worker)
        wrong = done(item, '{"x":1}', '{"x":2}', keys=keyed(item, ("a", 1)).record_keys)
        with pytest.raises(InvalidRecord):
            await harness.commit(worker, wrong)
        assert (await harness.commit(worker, done(item))).committed == 1
