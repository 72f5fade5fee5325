"""Intake: bulk, exact, in constant memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest

from shoal.errors import UnknownStage
from shoal.model.item import NewItem, priority_from_higher_first
from shoal.model.request import decode_request, make_request, secret
from shoal.model.run import RunSpec, StageSpec
from shoal.model.views import ItemFilter
from shoal.model.worker import Scope
from shoal.testing.harness import LedgerHarness, done


class IntakeConformance:
    async def test_counts_new_duplicate_and_invalid_entries(self, harness: LedgerHarness) -> None:  # S1.21
        run = await harness.run()
        report = await harness.ledger.intake.enqueue(
            run.id,
            [
                "https://example.com/a?x=1&y=2",
                "https://EXAMPLE.com:443/a?y=2&x=1#top",
                "https://example.com/A?x=1&y=2",
                "not a url",
                "",
                "https://example.com/\0",
                b"https://example.com/\xff\xfe",
                "https://example.com/" + "x" * 9000,
                "ftp://example.com/",
                NewItem(),
                NewItem(key="k", priority=10**9),
                NewItem(key="k", delay=-1.0),
                NewItem(key="k", payload={"cannot": object()}),
            ],
        )
        assert (report.enqueued, report.duplicates, report.invalid) == (2, 1, 10)
        assert [position for position, _ in report.invalid_entries] == list(range(3, 13))
        counts = await harness.ledger.reads.stats(run.id)
        assert (counts.ready, counts.duplicates, counts.total) == (2, 1, 2)
        await harness.check()

    async def test_the_url_is_kept_byte_for_byte(self, harness: LedgerHarness) -> None:
        run = await harness.run()
        url = "HTTPS://Example.com:443/Path/../b?z=1&a=%7e#frag"
        await harness.ledger.intake.enqueue(run.id, [url])
        (claimed,) = await harness.claim(await harness.worker())
        assert claimed.url == url

    async def test_a_claimed_item_equals_the_enqueued_one(self, harness: LedgerHarness) -> None:
        run = await harness.run("list", "page")
        payload = {"city": "Łódź", "n": 3, "deep": {"list": [1, None, True]}, "nul": "a\u0000b"}
        await harness.put(run, "k", payload=payload, stage="page", partition="PL", lane="host", max_attempts=7)
        (claimed,) = await harness.claim(await harness.worker())
        assert (claimed.key, claimed.payload, claimed.stage, claimed.partition, claimed.lane) == (
            "k",
            payload,
            "page",
            "PL",
            "host",
        )
        assert (claimed.max_attempts, claimed.tries, claimed.run_id) == (7, 0, run.id)

    async def test_an_item_keeps_its_request_and_its_depth(self, harness: LedgerHarness) -> None:
        run = await harness.run("list", "page")
        request, _ = make_request(json={"q": "Łódź\u0000", "page": 2}, headers={"Authorization": secret("API_KEY")})
        url = "https://example.com/search"
        await harness.ledger.intake.enqueue(run.id, [NewItem(url=url, request=request, depth=4), url])
        worker = await harness.worker()
        claimed = {item.depth: item for item in await harness.claim(worker)}
        assert {depth: item.key is None for depth, item in claimed.items()} == {4: False, 0: True}
        assert decode_request(claimed[4].request_json or "") == request
        follow_up = NewItem(url=f"{url}/1", request=request, depth=5, stage="page")
        await harness.commit(worker, done(claimed[4], follow_ups=(follow_up,)))
        (next_one,) = await harness.claim(worker)
        assert (next_one.depth, decode_request(next_one.request_json or "")) == (5, request)
        (view,) = (await harness.ledger.reads.items(run.id, ItemFilter(ids=(next_one.item,)))).rows
        assert (view.depth, view.request) == (5, msgspec.json.decode(next_one.request_json or ""))
        assert (await harness.ledger.intake.enqueue(run.id, [NewItem(url=url, request=request)])).duplicates == 1

    async def test_entries_may_come_from_an_async_source(self, harness: LedgerHarness) -> None:
        async def urls() -> AsyncIterator[str]:
            for n in range(5):
                await asyncio.sleep(0)
                yield f"https://example.com/{n}"

        run = await harness.run()
        assert (await harness.ledger.intake.enqueue(run.id, urls())).enqueued == 5

    async def test_more_than_one_chunk(self, harness: LedgerHarness) -> None:  # S1.3
        run = await harness.run()
        report = await harness.ledger.intake.enqueue(
            run.id, (f"https://example.com/{n % 20_001}" for n in range(25_000))
        )
        assert (report.enqueued, report.duplicates) == (20_001, 4_999)
        assert (await harness.ledger.reads.stats(run.id)).ready == 20_001

    async def test_enqueueing_again_adds_only_new_items(self, harness: LedgerHarness) -> None:
        run = await harness.run()
        await harness.put(run, "a", "b")
        report = await harness.ledger.intake.enqueue(run.id, [NewItem(key=key) for key in "abc"])
        assert (report.enqueued, report.duplicates) == (1, 2)

    async def test_the_same_key_is_allowed_in_two_stages_and_two_runs(self, harness: LedgerHarness) -> None:
        first, second = await harness.run("list", "page"), await harness.run("list")
        await harness.put(first, "k", stage="list")
        await harness.put(first, "k", stage="page")
        await harness.put(second, "k")
        assert len(await harness.claim(await harness.worker())) == 3

    async def test_an_unknown_stage_is_refused(self, harness: LedgerHarness) -> None:
        run = await harness.run("page")
        with pytest.raises(UnknownStage, match="nope"):
            await harness.ledger.intake.enqueue(run.id, ["https://example.com/"], stage="nope")
        with pytest.raises(UnknownStage, match="nope"):
            await harness.ledger.intake.enqueue(run.id, [NewItem(key="k", stage="nope")])
        assert (await harness.ledger.reads.stats(run.id)).total == 0

    async def test_smaller_priorities_go_first_then_the_order_of_arrival(
        self, harness: LedgerHarness
    ) -> None:  # S1.22, S3.4
        run = await harness.run()
        await harness.put(run, "n1", "n2")
        await harness.put(run, "late", priority=5)
        await harness.put(run, "urgent", priority=-5)
        await harness.put(run, "imported", priority=priority_from_higher_first(9))
        assert await harness.claim_keys(await harness.worker()) == ["imported", "urgent", "n1", "n2", "late"]

    async def test_max_attempts_of_the_item_the_stage_or_the_run(self, harness: LedgerHarness) -> None:  # S1.17
        spec = RunSpec(scraper="s", stages=(StageSpec("a"), StageSpec("b", max_attempts=2)), max_attempts=9)
        run = await harness.ledger.runs.create(spec)
        await harness.put(run, "run", stage="a")
        await harness.put(run, "stage", stage="b")
        await harness.put(run, "item", stage="b", max_attempts=5)
        worker = await harness.worker()
        claimed = [*await harness.claim(worker), *await harness.claim(worker)]
        assert {item.name: item.max_attempts for item in claimed} == {"run": 9, "stage": 2, "item": 5}

    async def test_a_delayed_item_is_not_claimable_before_its_time(self, harness: LedgerHarness) -> None:
        run = await harness.run()
        await harness.put(run, "later", delay=60.0)
        worker = await harness.worker(lease_seconds=3600.0)
        assert await harness.claim(worker) == []
        due = await harness.ledger.upkeep.next_due()
        assert due is not None
        assert 50 < due <= 60
        await harness.advance_clock(61)
        await harness.ledger.upkeep.run_once()
        assert await harness.claim_keys(worker) == ["later"]
        await harness.check()

    async def test_next_due_ignores_items_outside_the_scope(self, harness: LedgerHarness) -> None:
        ours, others = await harness.run("page", "late"), await harness.run(scraper="other")
        await harness.put(others, "soon", delay=5.0)
        await harness.put(ours, "later", delay=60.0, partition="north")
        await harness.put(ours, "last", delay=600.0, stage="late")

        async def due(**scope: object) -> float:
            seconds = await harness.ledger.upkeep.next_due(Scope(**scope))  # type: ignore[arg-type]
            return -1 if seconds is None else seconds

        assert 0 < await due() <= 5
        assert 0 < await due(run_ids=(others.id,)) <= 5
        assert 50 < await due(scraper="shop") <= 60
        assert 50 < await due(scraper="shop", partitions=("south",)) <= 60
        assert 500 < await due(run_ids=(ours.id,), stages=("late",)) <= 600
        assert await due(scraper="shop", partitions=("south",), steal=False) == -1
        await harness.ledger.runs.pause(ours.id)
        assert await due(scraper="shop") == -1

    async def test_next_due_reads_only_the_first_delayed_items(self, harness: LedgerHarness) -> None:
        ours, others = await harness.run(), await harness.run(scraper="other")
        await harness.put(others, *(str(number) for number in range(250)), delay=5.0)
        await harness.put(ours, "later", delay=60.0)
        seconds = await harness.ledger.upkeep.next_due(Scope(scraper="shop"))
        assert seconds is not None
        assert 0 < seconds <= 5, "none of ours is due before that, and only the first were read"

    async def test_a_source_that_fails_half_way_loses_nothing_that_was_stored(self, harness: LedgerHarness) -> None:
        def urls() -> object:
            for n in range(15_000):
                yield f"https://example.com/{n}"
            raise OSError("the file ended badly")

        run = await harness.run()
        with pytest.raises(OSError, match="badly"):
            await harness.ledger.intake.enqueue(run.id, urls())  # type: ignore[arg-type]
        stored = (await harness.ledger.reads.stats(run.id)).ready
        report = await harness.ledger.intake.enqueue(run.id, (f"https://example.com/{n}" for n in range(15_000)))
        assert (report.enqueued, report.duplicates) == (15_000 - stored, stored)
        await harness.check()
