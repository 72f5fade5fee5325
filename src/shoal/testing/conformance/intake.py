"""Intake: bulk, exact, in constant memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from shoal.errors import UnknownStage
from shoal.model.item import NewItem, priority_from_higher_first
from shoal.model.run import RunSpec, StageSpec
from shoal.model.worker import Scope
from shoal.testing.lab import Lab


class IntakeConformance:
    async def test_counts_new_duplicate_and_invalid_entries(self, lab: Lab) -> None:  # S1.21
        run = await lab.run()
        report = await lab.ledger.intake.enqueue(
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
        assert [position for position, _ in report.complaints] == list(range(3, 13))
        counts = await lab.ledger.reads.stats(run.id)
        assert (counts.ready, counts.duplicates, counts.total) == (2, 1, 2)
        await lab.check()

    async def test_the_url_is_kept_byte_for_byte(self, lab: Lab) -> None:
        run = await lab.run()
        url = "HTTPS://Example.com:443/Path/../b?z=1&a=%7e#frag"
        await lab.ledger.intake.enqueue(run.id, [url])
        (claimed,) = await lab.claim(await lab.worker())
        assert claimed.url == url

    async def test_what_was_enqueued_comes_out_as_it_went_in(self, lab: Lab) -> None:
        run = await lab.run("list", "page")
        payload = {"city": "Łódź", "n": 3, "deep": {"list": [1, None, True]}, "nul": "a\u0000b"}
        await lab.put(run, "k", payload=payload, stage="page", partition="PL", lane="host", max_attempts=7)
        (claimed,) = await lab.claim(await lab.worker())
        assert (claimed.key, claimed.payload, claimed.stage, claimed.partition, claimed.lane) == (
            "k",
            payload,
            "page",
            "PL",
            "host",
        )
        assert (claimed.max_attempts, claimed.tries, claimed.run_id) == (7, 0, run.id)

    async def test_entries_may_come_from_an_async_source(self, lab: Lab) -> None:
        async def urls() -> AsyncIterator[str]:
            for n in range(5):
                await asyncio.sleep(0)
                yield f"https://example.com/{n}"

        run = await lab.run()
        assert (await lab.ledger.intake.enqueue(run.id, urls())).enqueued == 5

    async def test_more_than_one_chunk(self, lab: Lab) -> None:  # S1.3
        run = await lab.run()
        report = await lab.ledger.intake.enqueue(run.id, (f"https://example.com/{n % 20_001}" for n in range(25_000)))
        assert (report.enqueued, report.duplicates) == (20_001, 4_999)
        assert (await lab.ledger.reads.stats(run.id)).ready == 20_001

    async def test_handing_in_again_adds_only_what_is_new(self, lab: Lab) -> None:
        run = await lab.run()
        await lab.put(run, "a", "b")
        report = await lab.ledger.intake.enqueue(run.id, [NewItem(key=key) for key in "abc"])
        assert (report.enqueued, report.duplicates) == (1, 2)

    async def test_the_same_key_may_stand_in_two_stages_and_two_runs(self, lab: Lab) -> None:
        first, second = await lab.run("list", "page"), await lab.run("list")
        await lab.put(first, "k", stage="list")
        await lab.put(first, "k", stage="page")
        await lab.put(second, "k")
        assert len(await lab.claim(await lab.worker())) == 3

    async def test_an_unknown_stage_is_refused(self, lab: Lab) -> None:
        run = await lab.run("page")
        with pytest.raises(UnknownStage, match="nope"):
            await lab.ledger.intake.enqueue(run.id, ["https://example.com/"], stage="nope")
        with pytest.raises(UnknownStage, match="nope"):
            await lab.ledger.intake.enqueue(run.id, [NewItem(key="k", stage="nope")])
        assert (await lab.ledger.reads.stats(run.id)).total == 0

    async def test_smaller_priorities_go_first_then_the_order_of_arrival(self, lab: Lab) -> None:  # S1.22, S3.4
        run = await lab.run()
        await lab.put(run, "n1", "n2")
        await lab.put(run, "late", priority=5)
        await lab.put(run, "urgent", priority=-5)
        await lab.put(run, "imported", priority=priority_from_higher_first(9))
        assert await lab.claim_keys(await lab.worker()) == ["imported", "urgent", "n1", "n2", "late"]

    async def test_max_attempts_of_the_item_the_stage_or_the_run(self, lab: Lab) -> None:  # S1.17
        spec = RunSpec(scraper="s", stages=(StageSpec("a"), StageSpec("b", max_attempts=2)), max_attempts=9)
        run = await lab.ledger.runs.create(spec)
        await lab.put(run, "run", stage="a")
        await lab.put(run, "stage", stage="b")
        await lab.put(run, "item", stage="b", max_attempts=5)
        worker = await lab.worker()
        claimed = [*await lab.claim(worker), *await lab.claim(worker)]
        assert {item.name: item.max_attempts for item in claimed} == {"run": 9, "stage": 2, "item": 5}

    async def test_an_item_waits_for_its_time(self, lab: Lab) -> None:
        run = await lab.run()
        await lab.put(run, "later", delay=60.0)
        worker = await lab.worker(lease_seconds=3600.0)
        assert await lab.claim(worker) == []
        due = await lab.ledger.upkeep.next_due()
        assert due is not None
        assert 50 < due <= 60
        await lab.jump(61)
        await lab.ledger.upkeep.tend()
        assert await lab.claim_keys(worker) == ["later"]
        await lab.check()

    async def test_a_worker_is_not_woken_by_what_others_wait_for(self, lab: Lab) -> None:
        ours, others = await lab.run("page", "late"), await lab.run(scraper="other")
        await lab.put(others, "soon", delay=5.0)
        await lab.put(ours, "later", delay=60.0, partition="north")
        await lab.put(ours, "last", delay=600.0, stage="late")

        async def due(**scope: object) -> float:
            seconds = await lab.ledger.upkeep.next_due(Scope(**scope))  # type: ignore[arg-type]
            return -1 if seconds is None else seconds

        assert 0 < await due() <= 5
        assert 0 < await due(run_ids=(others.id,)) <= 5
        assert 50 < await due(scraper="shop") <= 60
        assert 50 < await due(scraper="shop", partitions=("south",)) <= 60
        assert 500 < await due(run_ids=(ours.id,), stages=("late",)) <= 600
        assert await due(scraper="shop", partitions=("south",), steal=False) == -1
        await lab.ledger.runs.pause(ours.id)
        assert await due(scraper="shop") == -1

    async def test_of_many_that_wait_only_the_first_are_looked_at(self, lab: Lab) -> None:
        ours, others = await lab.run(), await lab.run(scraper="other")
        await lab.put(others, *(str(number) for number in range(250)), delay=5.0)
        await lab.put(ours, "later", delay=60.0)
        seconds = await lab.ledger.upkeep.next_due(Scope(scraper="shop"))
        assert seconds is not None
        assert 0 < seconds <= 5, "nothing of ours comes due before that, and nobody looked any farther"

    async def test_a_source_that_fails_half_way_loses_nothing_that_was_stored(self, lab: Lab) -> None:
        def urls() -> object:
            for n in range(15_000):
                yield f"https://example.com/{n}"
            raise OSError("the file ended badly")

        run = await lab.run()
        with pytest.raises(OSError, match="badly"):
            await lab.ledger.intake.enqueue(run.id, urls())  # type: ignore[arg-type]
        stored = (await lab.ledger.reads.stats(run.id)).ready
        report = await lab.ledger.intake.enqueue(run.id, (f"https://example.com/{n}" for n in range(15_000)))
        assert (report.enqueued, report.duplicates) == (15_000 - stored, stored)
        await lab.check()
