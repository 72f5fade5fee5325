"""Reads: counts, lists, progress, and why."""

from __future__ import annotations

import asyncio
import json
import re
import time

import pytest

from shoal.errors import InvalidSetting, NotFound, UnknownStage, UsageError
from shoal.model.egress import EgressWait
from shoal.model.item import ItemState
from shoal.model.lane import LanePolicy
from shoal.model.outcome import AttemptDecision, DecisionKind, FinishedAttempt, OutcomeClass
from shoal.model.run import Run, RunState
from shoal.model.url_key import key_hash
from shoal.model.views import ItemFilter, ItemView, WaitReason
from shoal.model.worker import Scope, WorkerReport, WorkerState
from shoal.testing.harness import LedgerHarness, dead, done, retry, skipped, throttled


class ReadsConformance:
    async def test_counts_have_the_names_of_older_systems_too(
        self, harness: LedgerHarness
    ) -> None:  # S0.19, S1.9, S1.19, S3.26
        run = await harness.run(lane=LanePolicy(limit=1))
        await harness.put(run, "d1", "d2", "bad", "held")
        worker = await harness.worker()
        d1, d2, bad, _held = await harness.claim(worker)
        await harness.commit(worker, done(d1), done(d2), dead(bad))
        await harness.put(run, "ready")
        await harness.put(run, "later", delay=9.0)
        await harness.put(run, "w1", "w2", lane="host")
        counts = await harness.ledger.reads.stats(run.id)
        assert (counts.ready, counts.waiting, counts.delayed, counts.leased) == (2, 1, 1, 1)
        assert (counts.pending, counts.claimed, counts.completed, counts.failed) == (4, 1, 2, 1)
        assert counts.remaining == counts.pending + counts.claimed == 5
        assert counts.total == 8
        await harness.ledger.upkeep.run_once()
        assert await harness.ledger.reads.stats(run.id) == counts, "folding the counts changes nothing"
        with pytest.raises(UnknownStage):
            await harness.ledger.reads.stats(run.id, stage="nope")

    async def test_what_other_runs_of_the_scraper_have_finished(self, harness: LedgerHarness) -> None:  # S2.7
        ledger, worker = harness.ledger, await harness.worker()
        first = await harness.run("list", "page", code_version="one")
        await harness.put(first, "done", "left out", "bad", "never begun", stage="page")
        await harness.put(first, "listed")
        claimed = {item.key: item for _ in range(2) for item in await harness.claim(worker)}
        await harness.commit(worker, done(claimed["done"]), skipped(claimed["left out"]), dead(claimed["bad"]))
        await harness.commit(worker, done(claimed["listed"]))
        foreign = await harness.run("list", "page", scraper="other")
        await harness.put(foreign, "of another scraper", stage="page")
        await harness.finish(worker, await harness.claim(worker))
        keys = ["done", "left out", "bad", "never begun", "listed", "of another scraper", "unknown"]
        hashes = {key_hash(key): key for key in keys}

        async def finished(run: Run, stage: str) -> set[str]:
            return {hashes[found] for found in await ledger.reads.finished_elsewhere(run.id, stage, list(hashes))}

        assert await finished(first, "page") == set(), "its own items are no news to it"
        second = await harness.run("list", "page", code_version="one")
        assert await finished(second, "page") == {"done", "left out"}
        assert await finished(second, "list") == {"listed"}
        assert await finished(second, "nope") == set()
        assert await ledger.reads.finished_elsewhere(second.id, "page", []) == set()
        assert await ledger.reads.finished_elsewhere(second.id, "page", list(hashes), in_finished_runs=True) == set()
        complete = await harness.run("list", "page")
        await harness.put(complete, "of a finished run", stage="page")
        await harness.finish(worker, await harness.claim(worker))
        hash_ = key_hash("of a finished run")
        assert await ledger.reads.finished_elsewhere(second.id, "page", [hash_], in_finished_runs=True) == set()
        await ledger.runs.seal(complete.id)
        await ledger.upkeep.run_once()
        assert (await ledger.runs.get(complete.id)).state is RunState.FINISHED
        assert await ledger.reads.finished_elsewhere(second.id, "page", [hash_], in_finished_runs=True) == {hash_}
        failed = await ledger.reads.finished_elsewhere(second.id, "page", list(hashes), failed=True)
        assert {hashes[found] for found in failed} == {"bad"}
        other = await harness.run("list", "page", code_version="other")
        assert await ledger.reads.finished_elsewhere(other.id, "page", list(hashes), failed=True) == set()
        for _ in range(60):
            await harness.run("list", "page")
        assert await finished(second, "page") == {"done", "left out"}, "behind many runs too"

    async def test_records_of_a_stage_in_other_runs(self, harness: LedgerHarness) -> None:
        """Of the same scraper and stage; a run that was removed is forgotten."""
        ledger, worker = harness.ledger, await harness.worker()
        runs = [await harness.run("list", "page") for _ in range(3)]
        for number, run in enumerate(runs, start=1):
            await harness.put(run, *(f"{number} {n}" for n in range(number)), stage="page")
            for claimed in await harness.claim(worker, 10):
                await harness.commit(worker, done(claimed, '{"a": 1}', '{"a": 2}'))
        found = [await ledger.reads.records_elsewhere(run.id, "page") for run in runs]
        assert found == [2 * (2 + 3), 2 * (1 + 3), 2 * (1 + 2)]
        assert await ledger.reads.records_elsewhere(runs[0].id, "list") == 0
        await ledger.runs.cancel(runs[2].id, by="test")
        await ledger.runs.remove(runs[2].id, by="test")
        assert await ledger.reads.records_elsewhere(runs[0].id, "page") == 2 * 2

    async def test_many_keys_are_looked_up_in_other_runs(self, harness: LedgerHarness) -> None:
        """More than are looked up at a time, each finished in another run or in none."""
        ledger, worker = harness.ledger, await harness.worker()
        for number in range(3):
            run = await harness.run()
            await harness.put(run, *(f"{number} {n}" for n in range(700, 710)))
            await harness.finish(worker, await harness.claim(worker))
        keys = [f"{number} {n}" for number in range(4) for n in range(750)]
        hashes = {key_hash(key): key for key in keys}
        run = await harness.run()
        found = {hashes[each] for each in await ledger.reads.finished_elsewhere(run.id, "page", list(hashes))}
        assert found == {f"{number} {n}" for number in range(3) for n in range(700, 710)}

    async def test_progress_by_partition_and_by_worker(self, harness: LedgerHarness) -> None:  # S0.17, S4.17
        run = await harness.run()
        await harness.put(run, "a", "b", partition="CA")
        await harness.put(run, "c", partition="NY")
        quick, slow = await harness.worker(), await harness.worker()
        california = Scope(partitions=("CA",), steal=False)
        await harness.finish(quick, await harness.claim(quick, scope=california))
        (c,) = await harness.claim(slow)
        progress = {row.partition: row.counts for row in await harness.ledger.reads.partitions(run.id)}
        assert (progress["CA"].done, progress["NY"].leased) == (2, 1)
        for _ in range(2):
            rows = await harness.ledger.reads.workers(run.id)
            assert [(row.worker, row.done, row.dead, row.leased) for row in rows] == [
                (quick, 2, 0, 0),
                (slow, 0, 0, 1),
            ]
            await harness.ledger.upkeep.run_once()
        await harness.commit(slow, dead(c))
        rows = await harness.ledger.reads.workers(run.id)
        assert [(row.worker, row.done, row.dead, row.leased) for row in rows] == [(quick, 2, 0, 0), (slow, 0, 1, 0)]

    async def test_recent_activity(self, harness: LedgerHarness) -> None:
        run, other = await harness.run(), await harness.run()
        await harness.put(run, "a", "b", "c", "d", "e")
        await harness.put(other, "x")
        before = await harness.ledger.reads.recent(run.id)
        assert before.quiet_since == run.created_at
        assert (before.done, before.dead, before.retried, before.throttled) == (0, 0, 0, 0)
        worker = await harness.worker()
        a, b, c, d, _ = await harness.claim(worker, scope=Scope(run_ids=(run.id,)))
        assert (await harness.ledger.reads.recent(run.id)).quiet_since == run.created_at  # holding is no progress
        await harness.commit(worker, done(a, '{"n": 1}', '{"n": 2}'), dead(b), retry(c), throttled(d))
        recent = await harness.ledger.reads.recent(run.id)
        assert (recent.done, recent.dead, recent.retried, recent.throttled, recent.results) == (1, 1, 1, 1, 2)
        assert recent.quiet_since > run.created_at
        await harness.ledger.upkeep.run_once()
        assert await harness.ledger.reads.recent(run.id) == recent
        assert (await harness.ledger.reads.recent(other.id)).done == 0
        await harness.ledger.runs.pause(run.id)
        await harness.ledger.runs.resume(run.id)
        assert (await harness.ledger.reads.recent(run.id)).quiet_since > recent.quiet_since

    async def test_recent_activity_of_a_stage(self, harness: LedgerHarness) -> None:
        run = await harness.run("list", "page")
        await harness.put(run, "a", "b", stage="list")
        await harness.put(run, "c", "d", "e", stage="page", partition="x")
        await harness.put(run, "f", stage="page", partition="y")
        recent, worker = harness.ledger.reads.recent, await harness.worker()
        for stage in run.stages:
            quiet = await recent(run.id, stage=stage)
            assert (quiet.done, quiet.quiet_since) == (0, run.created_at)
        by_name = {item.name: item for item in await harness.claim(worker, 6)}
        for name in "abcf":
            await harness.commit(worker, done(by_name[name], '{"n": 1}'))
        await harness.commit(worker, dead(by_name["d"]), retry(by_name["e"]))
        for _ in range(2):
            both, of_list, of_page = [await recent(run.id, stage=stage) for stage in (None, "list", "page")]
            assert (of_list.done, of_list.dead, of_list.retried, of_list.results) == (2, 0, 0, 2)
            assert (of_page.done, of_page.dead, of_page.retried, of_page.results) == (2, 1, 1, 2)
            assert of_list.seconds + of_page.seconds == pytest.approx(both.seconds)
            assert both.quiet_since == of_page.quiet_since > of_list.quiet_since > run.created_at
            await harness.ledger.upkeep.run_once()
        with pytest.raises(UnknownStage):
            await recent(run.id, stage="other")

    async def test_items_are_listed_in_pages_with_filters(self, harness: LedgerHarness) -> None:
        run = await harness.run("list", "page")
        await harness.put(run, *(f"k{n:02}" for n in range(25)), partition="x")
        await harness.put(run, "p", stage="page")
        worker = await harness.worker()
        claimed = await harness.claim(worker, 10, Scope(stages=("list",)))
        await harness.commit(worker, *(dead(item) for item in claimed[:4]), *(done(item) for item in claimed[4:8]))

        async def keys(which: ItemFilter, limit: int = 3) -> list[str]:
            return [item.key or "" for item in await self.every_item(harness, run.id, which, limit)]

        assert len(await keys(ItemFilter())) == 26
        assert await keys(ItemFilter(states=(ItemState.DEAD,))) == [item.name for item in claimed[:4]]
        assert await keys(ItemFilter(states=(ItemState.DONE,))) == [item.name for item in claimed[4:8]]
        assert await keys(ItemFilter(states=(ItemState.LEASED,))) == [item.name for item in claimed[8:]]
        assert await keys(ItemFilter(stage="page")) == ["p"]
        assert len(await keys(ItemFilter(partition="x", states=(ItemState.READY,)))) == 15
        assert len(await keys(ItemFilter(error="404", outcome="permanent"))) == 4

    async def test_every_filter_finds_what_matches_and_nothing_else(self, harness: LedgerHarness) -> None:
        """Whatever the filter, page by page: the same items, in the order they came, as looking at each of them."""
        run, other = await harness.run("list", "page", max_attempts=9), await harness.run("list", "page")
        worker = await harness.worker(lease_seconds=3600)
        for n in range(6):
            for of in (run, other):
                await harness.put(of, f"a{n}", f"b{n}", stage="list", partition=f"p{n % 2}", priority=5 - n)
                await harness.put(of, f"c{n}", f"d{n}", stage="page", lane=f"host{n % 2}", priority=n % 3)
                await harness.put(of, f"e{n}", stage="page", delay=1000.0)
            mine = await harness.claim(worker, 5, Scope(run_ids=(run.id,)))
            ends = [retry(mine[0], 500.0), dead(mine[1], "410 Gone"), done(mine[2])] if len(mine) > 2 else []
            await harness.commit(worker, *ends)
        await harness.ledger.steering.cancel(run.id, ItemFilter(states=(ItemState.DELAYED,), partition=""), limit=2)
        await harness.put(run, "x0", "x1", stage="list", partition="p1", priority=-9)
        unwanted = await harness.claim(worker, 2, Scope(run_ids=(run.id,)))
        await harness.commit(worker, *(skipped(item, "Gone elsewhere") for item in unwanted))
        await harness.put(run, "y0", "y1", "y2", stage="list", partition="p1", priority=9)
        everything = [
            await harness.ledger.reads.item(run.id, id=view.id) for view in await self.listed(harness, run.id)
        ]
        assert {view.state for view in everything} == set(ItemState)

        states: list[tuple[ItemState, ...]] = [(), *((state,) for state in ItemState)]
        states += [(ItemState.READY, ItemState.WAITING), (ItemState.DEAD, ItemState.DELAYED), tuple(ItemState)]
        for chosen in states:
            for stage, partition in ((None, None), ("list", None), ("page", None), ("list", "p1"), ("page", "p1")):
                for outcome, error in ((None, None), ("permanent", None), (None, "Gone"), ("transient", "timed")):
                    which = ItemFilter(states=chosen, stage=stage, partition=partition, outcome=outcome, error=error)
                    wanted = [
                        view.id
                        for view in everything
                        if (not chosen or view.state in chosen)
                        and stage in (None, view.stage)
                        and partition in (None, view.partition)
                        and outcome in (None, view.outcome)
                        and (error is None or error in (view.error or ""))
                    ]
                    assert [view.id for view in await self.every_item(harness, run.id, which, 4)] == wanted, which

    async def listed(self, harness: LedgerHarness, run_id: str) -> list[ItemView]:
        return await self.every_item(harness, run_id, ItemFilter(), 1000)

    async def every_item(self, harness: LedgerHarness, run_id: str, which: ItemFilter, limit: int) -> list[ItemView]:
        rows: list[ItemView] = []
        cursor = None
        while True:
            page = await harness.ledger.reads.items(run_id, which, cursor=cursor, limit=limit)
            rows += page.rows
            cursor = page.cursor
            if cursor is None:
                return rows

    async def test_an_item_is_found_by_id_or_key(self, harness: LedgerHarness) -> None:
        run = await harness.run()
        await harness.put(run, "k", url="https://example.com/x", payload={"a": 1}, priority=3)
        by_key = await harness.ledger.reads.item(run.id, key="k")
        assert await harness.ledger.reads.item(run.id, id=by_key.id) == by_key
        assert (by_key.url, by_key.payload, by_key.priority, by_key.max_attempts) == (
            "https://example.com/x",
            {"a": 1},
            3,
            4,
        )
        for call in (harness.ledger.reads.item(run.id, key="nope"), harness.ledger.reads.item(run.id, id=10**9)):
            with pytest.raises(NotFound):
                await call
        with pytest.raises(UsageError):
            await harness.ledger.reads.item(run.id)

    async def test_the_failed_list(self, harness: LedgerHarness) -> None:  # S1.18
        run = await harness.run(max_attempts=2)
        await harness.ledger.intake.enqueue(run.id, ["https://example.com/a", "https://example.com/b"])
        worker = await harness.worker()
        a, b = await harness.claim(worker)
        await harness.commit(worker, retry(a, delay=0), dead(b, "410 Gone"))
        await harness.ledger.upkeep.run_once()
        (again,) = await harness.claim(worker)
        await harness.commit(worker, dead(again, "Exceeded retries: timed out"))
        first = await harness.ledger.reads.failed(run.id, limit=1)
        rest = await harness.ledger.reads.failed(run.id, limit=5, cursor=first.cursor)
        assert [(row.url, row.error_message, row.retry_count) for row in (*first.rows, *rest.rows)] == [
            ("https://example.com/a", "Exceeded retries: timed out", 1),
            ("https://example.com/b", "410 Gone", 0),
        ]

    async def test_stale_claims_oldest_first(self, harness: LedgerHarness) -> None:  # S0.18
        run = await harness.run()
        await harness.put(run, "a", "b")
        worker = await harness.worker(lease_seconds=86_400)
        await harness.claim(worker, 1)
        await harness.advance_clock(3600)
        await harness.claim(worker, 1)
        await harness.advance_clock(1860)
        stale = await harness.ledger.reads.stale()
        assert [(row.name, row.claimed_by, round(row.minutes_ago)) for row in stale] == [
            ("a", worker, 91),
            ("b", worker, 31),
        ]
        assert [row.name for row in await harness.ledger.reads.stale(older_than=3600)] == ["a"]

    async def test_the_oldest_lease_of_each_worker(self, harness: LedgerHarness) -> None:
        run, other = await harness.run(), await harness.run()
        await harness.put(run, "a", "b", "c")
        one, two = await harness.worker(), await harness.worker()
        await harness.claim(one, 1)
        await harness.advance_clock(10)
        await harness.claim(one, 1)
        await harness.claim(two, 1)
        await harness.put(other, "d")
        await harness.claim(two, 1)
        found = await harness.ledger.reads.oldest_leases(run.id)
        assert [(each.worker, each.name) for each in found] == [(one, "a"), (two, "c")]
        assert found[0].since < found[1].since
        assert len(await harness.ledger.reads.oldest_leases(run.id, limit=1)) == 1

    async def test_results_in_pages(self, harness: LedgerHarness) -> None:
        run = await harness.run()
        await harness.put(run, "a", "b")
        worker = await harness.worker()
        for item in await harness.claim(worker):
            await harness.commit(worker, done(item, *(f'{{"n":{n},"k":"{item.name}"}}' for n in range(5))))
        seen = []
        cursor = None
        while True:
            page = await harness.ledger.reads.results(run.id, cursor=cursor, limit=3)
            seen += [(row.item, row.n) for row in page.rows]
            cursor = page.cursor
            if cursor is None:
                break
        assert len(seen) == len(set(seen)) == 10
        assert seen == sorted(seen)

    async def test_results_name_their_items(self, harness: LedgerHarness) -> None:
        run = await harness.run("list", "page")
        await harness.put(run, "a", url="https://example.com/a")
        await harness.ledger.intake.enqueue(run.id, ["https://example.com/b"], stage="page")
        worker = await harness.worker()
        for item in [*await harness.claim(worker), *await harness.claim(worker)]:
            await harness.commit(worker, done(item, '{"n":1}'))
        rows = (await harness.ledger.reads.results(run.id)).rows
        assert [(row.stage, row.key, row.url) for row in rows] == [
            ("list", "a", "https://example.com/a"),
            ("page", None, "https://example.com/b"),
        ]
        assert [(row.n, json.loads(row.record)) for row in rows] == [(0, {"n": 1})] * 2

    async def test_results_of_one_stage(self, harness: LedgerHarness) -> None:
        run = await harness.run("list", "page")
        await harness.put(run, *(f"l{n}" for n in range(3)))
        await harness.put(run, "p", stage="page")
        await harness.put(run, "last")
        worker = await harness.worker()
        for _ in range(2):
            for item in await harness.claim(worker):
                many = 1 if item.stage == "page" else 600
                await harness.commit(worker, done(item, *(f'{{"n":{n}}}' for n in range(many))))

        async def pages(stage: str, limit: int) -> list[list[str | None]]:
            found: list[list[str | None]] = []
            cursor = None
            while True:
                page = await harness.ledger.reads.results(run.id, stage=stage, cursor=cursor, limit=limit)
                found.append([row.key for row in page.rows])
                cursor = page.cursor
                if cursor is None:
                    return found

        assert [key for keys in await pages("page", 5) for key in keys] == ["p"]
        assert (await pages("page", 5))[0] == [], "a page may be empty while more follow"
        assert [len(keys) for keys in await pages("list", 700)] == [700, 700, 700, 300]
        with pytest.raises(UnknownStage):
            await harness.ledger.reads.results(run.id, stage="nope")

    async def test_invalid_pages_are_refused(self, harness: LedgerHarness) -> None:
        run = await harness.run()
        reads = harness.ledger.reads
        for limit in (0, -1, 10**9):
            for call in (
                reads.items(run.id, limit=limit),
                reads.failed(run.id, limit=limit),
                reads.results(run.id, limit=limit),
                reads.events(limit=limit),
                reads.stale(limit=limit),
                harness.ledger.runs.list(limit=limit),
                harness.ledger.lanes.list(limit=limit),
            ):
                with pytest.raises(InvalidSetting, match="limit"):
                    await call
        for call in (
            reads.items(run.id, cursor="x"),
            reads.failed(run.id, cursor="-1"),
            reads.results(run.id, cursor="7"),
            reads.events(cursor="1.2"),
            harness.ledger.runs.list(cursor="9" * 30),
        ):
            with pytest.raises(UsageError, match="cursor"):
                await call

    async def test_why_an_item_is_not_running(self, harness: LedgerHarness) -> None:
        run = await harness.run(lane=LanePolicy(limit=1))
        await harness.put(run, "first", "second", lane="host")
        await harness.put(run, "plain", partition="NY")
        await harness.put(run, "later", delay=60.0)

        async def codes(key: str) -> list[str]:
            gates = await harness.ledger.reads.why_item(run.id, (await harness.item(run, key)).id)
            assert all(gate.text.endswith(".") for gate in gates)
            return [gate.code for gate in gates]

        assert await codes("plain") == ["no_worker", "queue_rank"]
        picky = await harness.worker(lease_seconds=3600, scope=Scope(partitions=("CA",), steal=False))
        assert await codes("plain") == ["no_worker_for_partition", "queue_rank"]
        await harness.ledger.workers.stop(picky)
        worker = await harness.worker(lease_seconds=3600)
        assert await codes("plain") == ["queue_rank"]
        assert await codes("second") == ["lane_limit", "lane_rank"]
        assert await codes("later") == ["delayed_not_before"]
        await harness.ledger.lanes.block("host", 50, "429")
        assert await codes("second") == ["lane_blocked", "lane_limit", "lane_rank"]
        await harness.ledger.lanes.set("host", paused=True)
        assert await codes("second") == ["lane_paused", "lane_blocked", "lane_limit", "lane_rank"]
        await harness.ledger.runs.pause(run.id)
        assert (await codes("plain"))[0] == "run_paused"
        await harness.ledger.runs.resume(run.id)
        claimed = {item.name: item for item in await harness.claim(worker)}
        assert await codes("plain") == ["leased"]
        await harness.commit(worker, retry(claimed["plain"], delay=20, error="reset by peer"))
        assert await codes("plain") == ["delayed_retry"]
        await harness.advance_clock(21)
        (again,) = await harness.claim(worker)
        await harness.commit(worker, dead(again))
        assert await codes("plain") == ["dead"]

    async def test_why_names_the_rank_in_the_queue(self, harness: LedgerHarness) -> None:
        run = await harness.run()
        await harness.put(run, "a", "b", "c")
        gates = await harness.ledger.reads.why_item(run.id, (await harness.item(run, "c")).id)
        assert gates[-1].code == "queue_rank"
        assert gates[-1].items == 2

    async def test_a_full_lane_may_only_want_workers(self, harness: LedgerHarness) -> None:
        """A higher limit would not help while items that hold its places are ready."""
        run = await harness.run(lane=LanePolicy(limit=4))
        worker = await harness.worker(lease_seconds=3600)
        await harness.put(run, *"abcdefgh", lane="host")

        async def reason() -> WaitReason:
            return (await harness.ledger.reads.why_run(run.id))[-1]

        (held,) = await harness.claim(worker, 1)
        found = await reason()
        assert (found.code, found.items) == ("lane_workers", 4)
        assert found.text.endswith("4 of 4 places are taken. 3 of them by items that wait for a free worker.")
        waiting = await harness.ledger.reads.why_item(run.id, (await harness.item(run, "h")).id)
        assert waiting[0].code == "lane_limit"
        await harness.claim(worker, 3)
        assert (await reason()).code == "lane_limit"
        await harness.commit(worker, done(held))
        assert (await reason()).code == "lane_limit", "one is ready for a moment"

    async def test_why_a_run_is_not_done(self, harness: LedgerHarness) -> None:
        run = await harness.run(lane=LanePolicy(limit=1, delay_min=30, delay_max=30))

        async def codes() -> list[str]:
            return [gate.code for gate in await harness.ledger.reads.why_run(run.id)]

        assert await codes() == ["unsealed"]
        await harness.put(run, "plain", priority=-1)
        assert await codes() == ["no_worker", "ready"]
        worker = await harness.worker(lease_seconds=3600)
        await harness.put(run, "a", "b", "c", lane="host")
        (plain,) = await harness.claim(worker, 1)
        assert await codes() == ["leased", "ready", "waiting", "lane_limit"]
        await harness.commit(worker, retry(plain, delay=40))
        (a,) = await harness.claim(worker)
        await harness.commit(worker, done(a))
        assert await codes() == ["waiting", "lane_limit", "delayed_retry", "delayed_lane"] or await codes() == [
            "waiting",
            "lane_limit",
            "delayed_lane",
            "delayed_retry",
        ]
        await harness.ledger.runs.pause(run.id)
        assert (await codes())[0] == "run_paused"
        await harness.ledger.runs.cancel(run.id)
        assert await codes() == ["run_cancelled"]

    async def test_a_dead_workers_items_are_reported_as_such(self, harness: LedgerHarness) -> None:
        """A killed worker that no reaper has seen: its row says live, its heartbeat is old."""
        run = await harness.run(lane=LanePolicy(limit=1, delay_min=5, delay_max=5))
        await harness.put(run, "a", "b", lane="host")
        await harness.put(run, "c", "d")
        worker = await harness.worker(lease_seconds=30)
        held = await harness.claim(worker, 2)
        await harness.ledger.claims.mark_started(worker, [item.lease for item in held])
        await harness.advance_clock(20)
        assert [view.alive for view in await harness.ledger.workers.list()] == [True]
        assert "held_by_dead" not in await self.codes(harness, run)
        await harness.advance_clock(22)
        (view,) = await harness.ledger.workers.list()
        assert (view.state, view.alive) == (WorkerState.LIVE, False)
        gates = {gate.code: gate for gate in await harness.ledger.reads.why_run(run.id)}
        assert "No live worker serves the stage page of shop" in gates["no_worker"].text
        assert "`shoal worker`" in gates["no_worker"].text
        assert gates["held_by_dead"].items == 2
        text = f"2 items are held by a dead worker: {worker} \\(no heartbeat for 4[2-9] s\\)"
        assert re.match(text, gates["held_by_dead"].text)
        assert "leased" not in gates
        assert all(gate.until is None for gate in gates.values()), "nothing comes by itself"
        (gate,) = await harness.ledger.reads.why_item(run.id, held[0].item)
        assert (gate.code, f"{worker} has sent no heartbeat for 4" in gate.text) == ("held_by_dead", True)
        codes = [gate.code for gate in await harness.ledger.reads.why_item(run.id, (await harness.item(run, "d")).id)]
        assert codes == ["no_worker", "queue_rank"]
        other = await harness.worker()
        assert await self.codes(harness, run) == ["held_by_dead", "ready", "waiting", "lane_limit"]
        await harness.ledger.upkeep.run_once()
        assert [item.name for item in await harness.claim(other)][:1] == ["c"], (
            "the items of the dead worker are claimed again"
        )
        codes = await self.codes(harness, run)
        assert ("leased" in codes, "held_by_dead" in codes, "no_worker" in codes) == (True, False, False)

    async def codes(self, harness: LedgerHarness, run: Run) -> list[str]:
        return [gate.code for gate in await harness.ledger.reads.why_run(run.id)]

    async def test_claimed_and_running_are_distinguished(self, harness: LedgerHarness) -> None:
        """By what the holder said with its last heartbeat, on the ledger's clock."""
        run, other = await harness.run(), await harness.run()
        await harness.put(run, "a", "b", "c")
        worker = await harness.worker(lease_seconds=3600)
        a, b, _ = await harness.claim(worker, scope=Scope(run_ids=(run.id,)))

        async def reason_of(item: int) -> tuple[str, str]:
            (gate,) = await harness.ledger.reads.why_item(run.id, item)
            return gate.code, gate.text

        async def all_reasons() -> str:
            (gate,) = await harness.ledger.reads.why_run(run.id)
            assert (gate.code, gate.items) == ("leased", 3)
            return gate.text

        assert (await reason_of(a.item))[1] == f"Claimed by {worker}; its next heartbeat says whether it has begun."
        assert await all_reasons() == "3 items are claimed by workers."
        await harness.advance_clock(10)
        await harness.ledger.workers.heartbeat(worker, WorkerReport(running={run.no: 1}, items=((a.item, 4.0),)))
        await harness.advance_clock(2)
        code, text = await reason_of(a.item)
        assert code == "running"
        assert re.fullmatch(f"{worker} has been running it for ([6-9]|1[01]) s.", text)
        code, text = await reason_of(b.item)
        assert (code, "not begun: it waits in the worker's buffer while 1 is running" in text) == ("claimed", True)
        assert await all_reasons() == "1 item is being worked on, 2 items are claimed and not begun."
        await harness.ledger.workers.heartbeat(worker)  # says nothing new
        assert (await reason_of(a.item))[0] == "running"
        # More items run than the report lists, and some have ended: the state of this one is unknown.
        busy = WorkerReport(running={run.no: 1, other.no: 200}, items=((a.item, 4.0),), unstored=1)
        await harness.ledger.workers.heartbeat(worker, busy)
        code, text = await reason_of(b.item)
        assert (code, "holds 3 items: 201 are running, 1 is done and not stored yet" in text) == ("leased", True)
        assert await all_reasons() == (
            "1 item is being worked on, 1 item is done and not stored yet, 1 item is claimed and not begun."
        )
        # A claim is a sign of life too, but says nothing about what was claimed before.
        await harness.put(run, "d")
        (d,) = await harness.claim(worker, scope=Scope(run_ids=(run.id,)))
        await harness.advance_clock(3)
        await harness.put(run, "e")
        await harness.claim(worker, scope=Scope(run_ids=(run.id,)))
        assert (await reason_of(d.item))[1].startswith(f"Claimed by {worker}; its next heartbeat says")
        # An attempt that began before this claim is another one.
        await harness.ledger.workers.heartbeat(worker, WorkerReport(running={run.no: 1}, items=((a.item, 4000.0),)))
        await harness.advance_clock(1)
        assert (await reason_of(a.item))[0] != "running"

    async def test_why_reports_a_worker_that_cannot_store(self, harness: LedgerHarness) -> None:
        run = await harness.run()
        await harness.put(run, "a")
        worker = await harness.worker()
        await harness.ledger.workers.heartbeat(worker, WorkerReport(trouble="There is no space left for x.db."))
        gates = await harness.ledger.reads.why_run(run.id)
        assert [gate.code for gate in gates] == ["ledger_full", "ready"]
        assert f"{worker} cannot store anything: There is no space left for x.db." in gates[0].text
        await harness.ledger.workers.heartbeat(worker, WorkerReport())
        assert await self.codes(harness, run) == ["ready"]

    async def test_why_says_what_egress_waits_for(self, harness: LedgerHarness) -> None:
        run = await harness.run("list", "page", lane=LanePolicy(limit=1))
        await harness.put(run, "a", "b", lane="host")
        await harness.put(run, "c", stage="page")
        (a, b), c = [await harness.item(run, key) for key in ("a", "b")], await harness.item(run, "c", "page")
        one, two = await harness.worker(lease_seconds=100), await harness.worker(lease_seconds=3600)
        spent = "all 3 tokens of github are spent"
        reads, heartbeat = harness.ledger.reads, harness.ledger.workers.heartbeat
        await heartbeat(
            one, WorkerReport(egress=(EgressWait(stage="list", pool="github", why=spent, since=60, until=500),))
        )
        # The other worker may have an exit.
        assert [gate.code for gate in await reads.why_item(run.id, a.id)] == ["queue_rank"]
        assert "egress" not in await self.codes(harness, run)
        await heartbeat(
            two, WorkerReport(egress=(EgressWait(stage="list", pool="github", why=spent, since=10, until=90),))
        )
        gate, rank = await reads.why_item(run.id, a.id)
        assert (gate.code, gate.pool, rank.code) == ("egress", "github", "queue_rank")
        assert gate.text == f"It waits for egress github: {spent}."
        assert gate.since is not None
        assert gate.until is not None
        # The first that may go on, since both have been waiting.
        assert (gate.until - gate.since).total_seconds() == pytest.approx(100, abs=5)
        assert [gate.code for gate in await reads.why_item(run.id, b.id)] == ["lane_limit", "lane_rank", "egress"]
        assert [gate.code for gate in await reads.why_item(run.id, c.id)] == ["queue_rank"]
        gates = {gate.code: gate for gate in await reads.why_run(run.id)}
        assert gates["egress"].text == f"2 items of the stage list wait for egress github: {spent}."
        assert gates["egress"].items == 2
        assert gates["ready"].items == 1
        assert set(gates) == {"egress", "ready"}, "the lane is full because its item has no exit"
        # A dead worker does not count: the one that is left has an exit again, or waits for something else.
        await heartbeat(two, WorkerReport())
        assert "egress" not in await self.codes(harness, run)
        login = EgressWait(stage="page", pool="", why="the login at shop.example fails")
        await heartbeat(two, WorkerReport(egress=(login,)))
        assert "egress" not in await self.codes(harness, run)
        await harness.advance_clock(101)
        (gate, _) = await reads.why_item(run.id, c.id)
        assert (gate.text, gate.pool, gate.until) == ("It waits: the login at shop.example fails.", None, None)
        await harness.ledger.workers.stop(two)
        assert "egress" not in await self.codes(harness, run)

    async def test_an_item_whose_attempt_had_no_exit_says_so(self, harness: LedgerHarness) -> None:
        run = await harness.run(lane=LanePolicy(limit=1))
        await harness.put(run, "a", "b", lane="host")
        worker = await harness.worker(lease_seconds=3600)
        (a,) = await harness.claim(worker)
        error = "none of the 5 proxies of homes can be used: 5 blocked by host"
        decision = AttemptDecision(DecisionKind.EGRESS, OutcomeClass.THROTTLED, 60.0, error)
        await harness.commit(worker, FinishedAttempt(lease=a.lease, decision=decision))
        found = await harness.item(run, "a")
        assert (found.state, found.tries) == ("delayed", 0)
        (gate,) = await harness.ledger.reads.why_item(run.id, a.item)
        assert (gate.code, gate.text) == ("delayed_egress", f"It waits: {error}.")
        assert gate.until is not None
        gates = {gate.code: gate for gate in await harness.ledger.reads.why_run(run.id)}
        assert gates["delayed_egress"].text == "1 item is delayed (no exit could be used)."
        assert "lane_blocked" not in gates, "the lane goes on with others"
        assert await harness.claim_keys(worker) == ["b"]
        assert (await harness.ledger.reads.recent(run.id)).throttled == 0
        await harness.check()

    async def test_a_rate_limit_of_the_site_is_reported_as_one(self, harness: LedgerHarness) -> None:
        run = await harness.run(lane=LanePolicy(limit=2))
        await harness.put(run, "a", "b", lane="host")
        worker = await harness.worker(lease_seconds=3600)
        a, b = await harness.claim(worker)
        await harness.commit(worker, throttled(a), done(b))  # nothing is waiting: the one left has a slot
        gates = {gate.code: gate for gate in await harness.ledger.reads.why_run(run.id)}
        assert list(gates) == ["lane_blocked", "delayed_blocked"]
        text = gates["lane_blocked"].text
        assert re.fullmatch(
            r"The lane host is rate limited by its site for another \d+ s: 429 Too Many Requests.", text
        )
        blocked_until, delayed_until = gates["lane_blocked"].until, gates["delayed_blocked"].until
        assert blocked_until is not None
        assert delayed_until is not None
        assert abs((blocked_until - delayed_until).total_seconds()) < 10
        assert "rate limited by their site" in gates["delayed_blocked"].text
        of_item = await harness.ledger.reads.why_item(run.id, a.item)
        assert [gate.code for gate in of_item] == ["delayed_blocked", "lane_blocked"]
        assert "distance" not in of_item[0].text
        await harness.ledger.lanes.block("host", 90, "maintenance")
        (_, gate) = await harness.ledger.reads.why_item(run.id, a.item)
        assert re.fullmatch(r"The lane host is blocked for another \d+ s: maintenance.", gate.text)

    async def test_an_ordered_lane_waits_for_its_earlier_items(self, harness: LedgerHarness) -> None:
        run = await harness.run(lane=LanePolicy(ordered=True, shared=False, delay_min=9, delay_max=9))
        await harness.put(run, "a", "b", "c", lane="fiji")
        worker = await harness.worker(lease_seconds=3600)
        (a,) = await harness.claim(worker)
        gates = {gate.code: gate for gate in await harness.ledger.reads.why_run(run.id)}
        assert list(gates) == ["leased", "waiting", "lane_order"]
        assert gates["lane_order"].text.startswith("The group fiji runs one at a time, in order")
        codes = [gate.code for gate in await harness.ledger.reads.why_item(run.id, (await harness.item(run, "c")).id)]
        assert codes == ["lane_order", "lane_rank"]
        await harness.commit(worker, done(a))
        gates = {gate.code: gate for gate in await harness.ledger.reads.why_run(run.id)}
        assert "in the pause after the one before them" in gates["delayed_order"].text

    async def test_no_worker_is_needed_where_nothing_is_left(self, harness: LedgerHarness) -> None:
        """A stage without a worker is reported when it has items; the run is, when no other stage has any."""
        run = await harness.run("list", "page")
        await harness.put(run, "a")
        await harness.worker(lease_seconds=3600, scope=Scope(stages=("list",)))
        assert await self.codes(harness, run) == ["ready"]
        await harness.put(run, "p", stage="page")
        assert await self.codes(harness, run) == ["no_worker_for_stage", "ready"]

    async def test_a_due_item_waits_for_a_worker(self, harness: LedgerHarness) -> None:
        run = await harness.run()
        await harness.put(run, "later", delay=60.0)
        item = (await harness.item(run, "later")).id
        await harness.advance_clock(90)
        (_, gate) = await harness.ledger.reads.why_run(run.id)
        assert (gate.code, gate.until, gate.text[-17:]) == ("delayed_not_before", None, "the first is due.")
        gate = (await harness.ledger.reads.why_item(run.id, item))[0]
        assert gate.until is None
        assert gate.text.startswith("It is due and waits for a worker")

    async def test_why_says_how_it_scaled(self, harness: LedgerHarness) -> None:  # S2.20
        """The newest of each pool or worker, three of them at most, and only what is recent."""
        run, other = await harness.run(), await harness.run()
        await harness.put(run, "a")

        async def scaled(subject: str, before: int, after: int, why: str, of: str = run.id) -> None:
            detail = {"from": before, "to": after, "most": 10, "what": "workers", "why": why}
            await harness.ledger.runs.record_event(of, "scaled", subject, detail, by=subject)

        async def texts() -> list[str]:
            gates = await harness.ledger.reads.why_run(run.id)
            return [gate.text for gate in gates if gate.code == "scaled"]

        await scaled("pool of-old", 1, 2, "long ago")
        await harness.advance_clock(901)
        assert await texts() == []
        await scaled("pool north", 2, 4, "9 items are ready")
        await scaled("pool elsewhere", 2, 4, "that is another run", other.id)
        await harness.ledger.runs.record_event(run.id, "told", "pool north", {})
        await scaled("pool north", 4, 2, "61 % of the last 140 attempts failed")
        await harness.advance_clock(180)
        assert await texts() == [
            "The pool on north went from 4 to 2 workers 3 min ago: 61 % of the last 140 attempts failed."
        ]
        await scaled("worker w-1", 2, 2, "memory is at 88 % of its limit")
        assert (await texts())[0].startswith("The worker w-1 stayed at 2 of 10 workers 0 s ago: memory is at 88 %")
        for number in range(2, 5):
            await scaled(f"worker w-{number}", 1, 2, "more")
        assert [text.split()[2] for text in await texts()] == ["w-4", "w-3", "w-2"]

    async def test_a_sleeper_is_woken_by_new_work(self, harness: LedgerHarness) -> None:
        run = await harness.run()
        other = await harness.open_again()
        await harness.ledger.upkeep.wait(0.01)
        began = time.monotonic()
        sleeping = asyncio.create_task(harness.ledger.upkeep.wait(20))
        await asyncio.sleep(0.3)
        await other.intake.enqueue(run.id, ["https://example.com/"])
        await sleeping
        assert time.monotonic() - began < 10
