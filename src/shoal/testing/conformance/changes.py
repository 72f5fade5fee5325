"""The log of result changes: nothing is missed or repeated by a reader that follows it; cursors move once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from msgspec.structs import replace

from shoal.ledger.protocols import Ledger
from shoal.model.changes import LOG_BEGIN, ChangedRecord, ChangeFilter, ChangePage, ChangePosition, RecordRef
from shoal.model.item import ClaimedItem, NewItem
from shoal.model.run import Run
from shoal.model.views import ItemFilter
from shoal.testing.harness import LedgerHarness, dead, done, keyed, retry

CURSOR = "sink:warehouse"


async def follow(
    ledger: Ledger,
    after: ChangePosition = LOG_BEGIN,
    which: ChangeFilter | None = None,
    *,
    limit: int = 1_000,
    max_bytes: int = 1 << 20,
) -> tuple[list[ChangedRecord], ChangePosition]:
    """Everything from a position to the end of the log."""
    records: list[ChangedRecord] = []
    for _ in range(10_000):
        page = await ledger.changes.read(after, which or ChangeFilter(), limit=limit, max_bytes=max_bytes)
        assert len(page.records) <= limit
        assert page.end >= after or page.end.change == after.change
        records += page.records
        after = page.end
        if not page.more:
            return records, after
    raise AssertionError("the log does not end")


async def finish(harness: LedgerHarness, worker: str, claimed: Sequence[ClaimedItem], *records: str) -> None:
    report = await harness.commit(worker, *(done(item, *records) for item in claimed))
    assert report.committed == len(claimed)


async def stored_ids(ledger: Ledger, run: Run) -> list[str]:
    return [f"{run.id}:{row.item}:{row.n}" for row in (await ledger.reads.results(run.id, limit=10_000)).rows]


class ChangesConformance:
    async def test_a_reader_gets_each_record_once(self, harness: LedgerHarness) -> None:
        run = await harness.run("list", "page")
        await harness.put(run, "a", "b", "c")
        worker = await harness.worker()
        a, b, c = await harness.claim(worker)
        await harness.commit(
            worker, done(a, '{"v":1}', '{"v":2}', follow_ups=[NewItem(key="p", stage="page")]), done(b), retry(c)
        )
        (p,) = await harness.claim(worker)
        await finish(harness, worker, [p], '{"v":3}')
        records, end = await follow(harness.ledger)
        assert [(r.id, r.scraper, r.stage, r.key) for r in records] == [
            (f"{run.id}:{a.item}:0", "shop", "list", "a"),
            (f"{run.id}:{a.item}:1", "shop", "list", "a"),
            (f"{run.id}:{p.item}:0", "shop", "page", "p"),
        ]
        assert [r.record.replace(" ", "") for r in records] == ['{"v":1}', '{"v":2}', '{"v":3}']
        assert await follow(harness.ledger, end) == ([], end)
        assert await harness.ledger.changes.end() == end
        await harness.check()

    async def test_what_stored_nothing_is_no_change(self, harness: LedgerHarness) -> None:
        run = await harness.run()
        await harness.put(run, "a", "b", "c")
        first, second = await harness.worker(), await harness.worker()
        a, b, c = await harness.claim(first)
        await harness.commit(first, done(a), dead(b))
        await harness.ledger.steering.release(older_than=0)
        (again,) = await harness.claim(second)
        assert (await harness.commit(first, done(c, '{"by":"lost"}'))).lost == (c.item,)
        assert (await follow(harness.ledger))[0] == []
        assert await harness.ledger.changes.end() == LOG_BEGIN
        end = done(again, '{"by":"second"}')
        await harness.commit(second, end)
        await harness.commit(second, end)
        assert [record.item for record in (await follow(harness.ledger))[0]] == [c.item]
        await harness.check()

    async def test_pages_are_bounded_in_records_and_bytes(self, harness: LedgerHarness) -> None:
        run = await harness.run()
        await harness.put(run, *(f"k{n}" for n in range(12)))
        worker = await harness.worker()
        claimed = await harness.claim(worker)
        for batch in (claimed[:1], claimed[1:4], claimed[4:]):
            # Not compressible, so that its size is the same on disk.
            text = "".join(f"{n * 7919 % 104729:05d}" for n in range(120))
            await finish(harness, worker, batch, *(f'{{"n":{n},"t":"{text}"}}' for n in range(7)))
        expected = await stored_ids(harness.ledger, run)
        for limit in (1, 2, 3, 7, 8, 50, 1_000):
            records, _ = await follow(harness.ledger, limit=limit)
            assert [record.id for record in records] == expected, limit
        pages: list[ChangePage] = []
        after = LOG_BEGIN
        while not pages or pages[-1].more:
            pages.append(await harness.ledger.changes.read(after, max_bytes=2_000))
            after = pages[-1].end
        assert [record.id for page in pages for record in page.records] == expected
        assert all(sum(len(record.record) for record in page.records[:-1]) <= 3_000 for page in pages)
        assert len(pages) > 10

    async def test_a_record_that_replaces_another_is_a_change(self, harness: LedgerHarness) -> None:
        run = await harness.run()
        await harness.put(run, "p1", "p2", "p3")
        worker = await harness.worker()
        p1, p2, p3 = await harness.claim(worker)
        await harness.commit(worker, keyed(p1, ("a", 1), ("b", 1)))
        _, at = await follow(harness.ledger)
        await harness.commit(worker, keyed(p2, ("a", 2), replaces=True), keyed(p3, ("b", 3)))
        records, _ = await follow(harness.ledger, at)
        assert [(record.item, record.record_key) for record in records] == [(p2.item, "a")]
        everything, _ = await follow(harness.ledger)
        assert sorted(record.record_key or "" for record in everything) == ["a", "b"]
        await harness.check()

    async def test_records_of_a_dead_item_are_gone_when_it_is_retried(self, harness: LedgerHarness) -> None:
        run = await harness.run()
        await harness.put(run, "a", "b")
        worker = await harness.worker()
        a, b = await harness.claim(worker)
        end = replace(dead(a), records=('{"v":1}', '{"v":2}'))
        await harness.commit(worker, end, dead(b))
        records, read_to = await follow(harness.ledger)
        assert [r.id for r in records] == [f"{run.id}:{a.item}:0", f"{run.id}:{a.item}:1"]
        assert await harness.ledger.steering.retry(run.id, ItemFilter()) == 2
        page = await harness.ledger.changes.read(read_to)
        assert [(item.item, item.count) for item in page.replaced] == [(a.item, 0)]
        assert page.records == ()
        await finish(harness, worker, await harness.claim(worker), '{"v":3}')
        page = await harness.ledger.changes.read(page.end)
        assert sorted(r.item for r in page.records) == [a.item, b.item]
        assert await harness.ledger.changes.replaced_items(LOG_BEGIN, page.end) == {(run.id, a.item)}
        assert (await harness.ledger.reads.stats(run.id)).results == 2
        await harness.check()

    async def test_scrapers_stages_and_runs_select(self, harness: LedgerHarness) -> None:
        shop, news = await harness.run("list", "page"), await harness.run("list", scraper="news")
        worker = await harness.worker()
        for run in (shop, news):
            await harness.put(run, "a", "b")
        for _ in range(2):
            for item in await harness.claim(worker, 2):
                more = [NewItem(key=item.key, stage="page")] if item.run_id == shop.id else []
                await harness.commit(worker, done(item, '{"v":1}', follow_ups=more))
        await finish(harness, worker, await harness.claim(worker), '{"v":2}')

        async def selected(which: ChangeFilter) -> set[tuple[str, str, int]]:
            records, end = await follow(harness.ledger, which=which)
            lag = await harness.ledger.changes.lag(LOG_BEGIN, which)
            assert (lag.records, lag.at_least) == (len(records), False)
            assert (await harness.ledger.changes.lag(end, which)).records == 0
            return {(r.scraper, r.stage, sum(x.run_id == r.run_id for x in records)) for r in records}

        assert await selected(ChangeFilter(scrapers=("shop",))) == {("shop", "list", 4), ("shop", "page", 4)}
        assert await selected(ChangeFilter(scrapers=("shop",), stages=("page",))) == {("shop", "page", 2)}
        assert await selected(ChangeFilter(run_id=news.id)) == {("news", "list", 2)}
        assert await selected(ChangeFilter(scrapers=("other",))) == set()

    async def test_readers_miss_nothing_while_many_commit(self, harness: LedgerHarness) -> None:
        run = await harness.run()
        keys = [f"k{n}" for n in range(120)]
        await harness.put(run, *keys)
        worker = await harness.worker()
        claimed = await harness.claim(worker, 200)
        others = [harness.ledger, await harness.open_again(), await harness.open_again()]
        stop = asyncio.Event()

        async def commit(ledger: Ledger, items: Sequence[ClaimedItem]) -> None:
            for item in items:
                await ledger.commits.commit(worker, [done(item, '{"v":1}')])

        async def read() -> list[str]:
            ids: list[str] = []
            at = LOG_BEGIN
            while True:
                last_round = stop.is_set()
                records, at = await follow(harness.ledger, at, limit=3)
                ids += [record.id for record in records]
                if last_round:
                    return ids

        readers = [asyncio.create_task(read()) for _ in range(2)]
        await asyncio.gather(*(commit(ledger, claimed[n::3]) for n, ledger in enumerate(others)))
        stop.set()
        expected = await stored_ids(harness.ledger, run)
        for ids in await asyncio.gather(*readers):
            assert sorted(ids) == sorted(expected)
        for ledger in others[1:]:
            await ledger.close()

    async def test_a_cursor_moves_for_one_of_two(self, harness: LedgerHarness) -> None:
        changes = harness.ledger.changes
        cursor = await changes.open_cursor(CURSOR)
        assert (cursor.position, cursor.delivered, cursor.moved_at) == (LOG_BEGIN, 0, None)
        mine, theirs = ChangePosition(5), ChangePosition(6, 17, 3)
        assert await changes.move(CURSOR, LOG_BEGIN, mine, delivered=4)
        assert not await changes.move(CURSOR, LOG_BEGIN, theirs, delivered=9)
        # The answer to the first call may have been lost: it is repeated.
        assert await changes.move(CURSOR, LOG_BEGIN, mine, delivered=4)
        assert await changes.move(CURSOR, mine, theirs, delivered=1)
        again = await changes.open_cursor(CURSOR, ChangePosition(99))
        assert (again.position, again.delivered) == (theirs, 5)
        assert [found.name for found in await changes.cursors("sink:")] == [CURSOR]
        assert await changes.cursors("export:") == []
        assert await changes.reset(CURSOR)
        assert (await changes.open_cursor(CURSOR)).position == LOG_BEGIN
        assert await changes.drop_cursor(CURSOR)
        assert not await changes.drop_cursor(CURSOR)
        assert await changes.cursor(CURSOR) is None
        assert not await changes.reset(CURSOR)

    async def test_a_cursor_keeps_a_text_for_one_of_two(self, harness: LedgerHarness) -> None:
        changes = harness.ledger.changes
        assert (await changes.open_cursor(CURSOR)).state == ""
        other = await harness.open_again()
        texts = ["plan of one", "plan of the other"]
        kept = await asyncio.gather(
            *(
                ledger.changes.keep_state(CURSOR, LOG_BEGIN, "", text)
                for ledger, text in zip((harness.ledger, other), texts, strict=True)
            )
        )
        assert sorted(kept) == [False, True]
        assert (await changes.open_cursor(CURSOR)).state == texts[kept.index(True)]
        assert not await changes.keep_state(CURSOR, ChangePosition(1), texts[kept.index(True)], "at another position")
        assert await changes.move(CURSOR, LOG_BEGIN, ChangePosition(1))
        assert (await changes.open_cursor(CURSOR)).state == texts[kept.index(True)]
        assert await changes.keep_state(CURSOR, ChangePosition(1), texts[kept.index(True)], "next")
        assert not await changes.keep_state("nobody", LOG_BEGIN, "", "x")
        await other.close()

    async def test_a_read_ends_where_it_is_told_to(self, harness: LedgerHarness) -> None:
        run = await harness.run()
        await harness.put(run, *(f"k{n}" for n in range(6)))
        worker = await harness.worker()
        claimed = await harness.claim(worker)
        changes = harness.ledger.changes
        ends = []
        for item in claimed:
            await finish(harness, worker, [item], '{"v":1}', '{"v":2}')
            ends.append(await changes.end())
        for number, until in enumerate(ends, start=1):
            for limit in (1, 3, 1_000):
                found: list[str] = []
                at, more = LOG_BEGIN, True
                while more:
                    page = await changes.read(at, until=until, limit=limit)
                    found += [record.id for record in page.records]
                    at, more = page.end, page.more
                assert found == (await stored_ids(harness.ledger, run))[: 2 * number]
                assert at == until
        assert (await changes.read(ends[-1], until=ends[0])).records == ()

    async def test_a_cursor_tells_why_it_does_not_move(self, harness: LedgerHarness) -> None:
        changes = harness.ledger.changes
        await changes.open_cursor(CURSOR)
        await changes.fail(CURSOR, "connection refused to postgresql://me:secret@db/x")
        first = await changes.cursor(CURSOR)
        await harness.advance_clock(60)
        await changes.fail(CURSOR, "still refused")
        second = await changes.cursor(CURSOR)
        assert first is not None
        assert second is not None
        assert first.last_error is not None
        assert "secret" not in first.last_error
        assert (second.last_error, second.failing_since) == ("still refused", first.failing_since)
        await changes.move(CURSOR, LOG_BEGIN, ChangePosition(1))
        third = await changes.cursor(CURSOR)
        assert third is not None
        assert (third.last_error, third.failing_since) == (None, None)

    async def test_the_lag_has_an_age(self, harness: LedgerHarness) -> None:
        run = await harness.run()
        await harness.put(run, "a", "b")
        worker = await harness.worker(lease_seconds=3600)
        a, b = await harness.claim(worker)
        changes = harness.ledger.changes
        assert (await changes.lag(LOG_BEGIN)).oldest is None
        await finish(harness, worker, [a], '{"v":1}', '{"v":2}')
        await harness.advance_clock(60)
        await finish(harness, worker, [b], '{"v":1}')
        lag = await changes.lag(LOG_BEGIN)
        assert (lag.changes, lag.records) == (2, 3)
        assert 60 <= lag.seconds < 120
        page = await changes.read(limit=2)
        assert (await changes.lag(page.end)).records == 1
        assert (await changes.lag(await changes.end())).records == 0

    async def test_dead_letters_are_kept_with_the_move(self, harness: LedgerHarness) -> None:
        run = await harness.run()
        await harness.put(run, "a")
        worker = await harness.worker()
        (a,) = await harness.claim(worker)
        await finish(harness, worker, [a], '{"v":1}', '{"v":2}', '{"v":3}')
        changes = harness.ledger.changes
        page = await changes.read()
        await changes.open_cursor(CURSOR)
        bad = RecordRef(run.id, a.item, 1)
        assert not await changes.move(CURSOR, ChangePosition(7), page.end, dead={bad: "lost the race"})
        assert (await changes.dead_letters(CURSOR)).rows == ()
        assert await changes.move(CURSOR, LOG_BEGIN, page.end, delivered=1, dead={bad: "no", page.records[2].ref: "x"})
        first = await changes.dead_letters(CURSOR, limit=1)
        rest = await changes.dead_letters(CURSOR, limit=1, cursor=first.cursor)
        assert [(letter.ref, letter.reason) for letter in (*first.rows, *rest.rows)] == [
            (bad, "no"),
            (page.records[2].ref, "x"),
        ]
        cursor = await changes.cursor(CURSOR)
        assert cursor is not None
        assert cursor.dead_letters == 2
        found = await changes.records([bad, RecordRef(run.id, a.item, 99), RecordRef("none", 1, 1)])
        assert found == [page.records[1]]
        assert await changes.remove_dead_letters(CURSOR, [bad]) == 1
        assert [letter.ref for letter in (await changes.dead_letters(CURSOR)).rows] == [page.records[2].ref]

    async def test_a_removed_run_breaks_no_cursor(self, harness: LedgerHarness) -> None:
        old, new = await harness.run(), await harness.run(scraper="other")
        worker = await harness.worker()
        for run in (old, new):
            await harness.put(run, "a", "b")
        claimed = [*await harness.claim(worker, 2), *await harness.claim(worker, 2)]
        for item in claimed:
            await finish(harness, worker, [item], '{"v":1}', '{"v":2}')
        changes = harness.ledger.changes
        await changes.open_cursor(CURSOR)
        halfway = (await changes.read(limit=1)).end
        await changes.move(CURSOR, LOG_BEGIN, halfway, dead={RecordRef(old.id, claimed[0].item, 0): "no"})
        await harness.ledger.runs.remove(old.id)
        records, end = await follow(harness.ledger, halfway)
        assert {record.run_id for record in records} <= {new.id}
        assert (await changes.lag(LOG_BEGIN)).records == 4
        assert (await changes.dead_letters(CURSOR)).rows == ()
        await harness.ledger.runs.remove(new.id)
        assert await follow(harness.ledger) == ([], await changes.end())
        # Positions are not reused, so what comes later is behind every cursor.
        later = await harness.run()
        await harness.put(later, "c")
        await finish(harness, worker, await harness.claim(worker), '{"v":3}')
        records, _ = await follow(harness.ledger, end)
        assert [record.run_id for record in records] == [later.id]
        await harness.check()
