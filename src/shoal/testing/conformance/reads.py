"""Reads: counts, lists, progress, and why."""

from __future__ import annotations

import asyncio
import json
import re
import time

import pytest

from shoal.errors import InvalidSetting, NotFound, UnknownStage, UsageError
from shoal.model.item import ItemState
from shoal.model.lane import LanePolicy
from shoal.model.run import Run
from shoal.model.views import ItemFilter, ItemView
from shoal.model.worker import Scope, WorkerReport, WorkerState
from shoal.testing.lab import Lab, dead, done, retry, throttled


class ReadsConformance:
    async def test_counts_in_old_and_new_words(self, lab: Lab) -> None:  # S0.19, S1.9, S1.19, S3.26
        run = await lab.run(lane=LanePolicy(limit=1))
        await lab.put(run, "d1", "d2", "bad", "held")
        worker = await lab.worker()
        d1, d2, bad, _held = await lab.claim(worker)
        await lab.commit(worker, done(d1), done(d2), dead(bad))
        await lab.put(run, "ready")
        await lab.put(run, "later", delay=9.0)
        await lab.put(run, "w1", "w2", lane="host")
        counts = await lab.ledger.reads.stats(run.id)
        assert (counts.ready, counts.waiting, counts.delayed, counts.leased) == (2, 1, 1, 1)
        assert (counts.pending, counts.claimed, counts.completed, counts.failed) == (4, 1, 2, 1)
        assert counts.remaining == counts.pending + counts.claimed == 5
        assert counts.total == 8
        await lab.ledger.upkeep.tend()
        assert await lab.ledger.reads.stats(run.id) == counts, "folding the counts changes nothing"
        with pytest.raises(UnknownStage):
            await lab.ledger.reads.stats(run.id, stage="nope")

    async def test_progress_by_partition_and_by_worker(self, lab: Lab) -> None:  # S0.17, S4.17
        run = await lab.run()
        await lab.put(run, "a", "b", partition="CA")
        await lab.put(run, "c", partition="NY")
        quick, slow = await lab.worker(), await lab.worker()
        california = Scope(partitions=("CA",), steal=False)
        await lab.finish(quick, await lab.claim(quick, scope=california))
        (c,) = await lab.claim(slow)
        progress = {row.partition: row.counts for row in await lab.ledger.reads.partitions(run.id)}
        assert (progress["CA"].done, progress["NY"].leased) == (2, 1)
        for _ in range(2):
            rows = await lab.ledger.reads.workers(run.id)
            assert [(row.worker, row.done, row.dead, row.leased) for row in rows] == [
                (quick, 2, 0, 0),
                (slow, 0, 0, 1),
            ]
            await lab.ledger.upkeep.tend()
        await lab.commit(slow, dead(c))
        rows = await lab.ledger.reads.workers(run.id)
        assert [(row.worker, row.done, row.dead, row.leased) for row in rows] == [(quick, 2, 0, 0), (slow, 0, 1, 0)]

    async def test_what_ended_lately(self, lab: Lab) -> None:
        run, other = await lab.run(), await lab.run()
        await lab.put(run, "a", "b", "c", "d", "e")
        await lab.put(other, "x")
        before = await lab.ledger.reads.recent(run.id)
        assert before.quiet_since == run.created_at
        assert (before.done, before.dead, before.retried, before.throttled) == (0, 0, 0, 0)
        worker = await lab.worker()
        a, b, c, d, _ = await lab.claim(worker, scope=Scope(run_ids=(run.id,)))
        assert (await lab.ledger.reads.recent(run.id)).quiet_since == run.created_at  # holding is no progress
        await lab.commit(worker, done(a, '{"n": 1}', '{"n": 2}'), dead(b), retry(c), throttled(d))
        recent = await lab.ledger.reads.recent(run.id)
        assert (recent.done, recent.dead, recent.retried, recent.throttled, recent.results) == (1, 1, 1, 1, 2)
        assert recent.quiet_since > run.created_at
        await lab.ledger.upkeep.tend()
        assert await lab.ledger.reads.recent(run.id) == recent
        assert (await lab.ledger.reads.recent(other.id)).done == 0
        await lab.ledger.runs.pause(run.id)
        await lab.ledger.runs.resume(run.id)
        assert (await lab.ledger.reads.recent(run.id)).quiet_since > recent.quiet_since

    async def test_items_are_listed_in_pages_with_filters(self, lab: Lab) -> None:
        run = await lab.run("list", "page")
        await lab.put(run, *(f"k{n:02}" for n in range(25)), partition="x")
        await lab.put(run, "p", stage="page")
        worker = await lab.worker()
        claimed = await lab.claim(worker, 10, Scope(stages=("list",)))
        await lab.commit(worker, *(dead(item) for item in claimed[:4]), *(done(item) for item in claimed[4:8]))

        async def keys(which: ItemFilter, limit: int = 3) -> list[str]:
            return [item.key or "" for item in await self.every_item(lab, run.id, which, limit)]

        assert len(await keys(ItemFilter())) == 26
        assert await keys(ItemFilter(states=(ItemState.DEAD,))) == [item.name for item in claimed[:4]]
        assert await keys(ItemFilter(states=(ItemState.DONE,))) == [item.name for item in claimed[4:8]]
        assert await keys(ItemFilter(states=(ItemState.LEASED,))) == [item.name for item in claimed[8:]]
        assert await keys(ItemFilter(stage="page")) == ["p"]
        assert len(await keys(ItemFilter(partition="x", states=(ItemState.READY,)))) == 15
        assert len(await keys(ItemFilter(error="404", outcome="permanent"))) == 4

    async def test_every_filter_finds_what_matches_and_nothing_else(self, lab: Lab) -> None:
        """Whatever the filter, page by page: the same items, in the order they came, as looking at each of them."""
        run, other = await lab.run("list", "page", max_attempts=9), await lab.run("list", "page")
        worker = await lab.worker(lease_seconds=3600)
        for n in range(6):
            for of in (run, other):
                await lab.put(of, f"a{n}", f"b{n}", stage="list", partition=f"p{n % 2}", priority=5 - n)
                await lab.put(of, f"c{n}", f"d{n}", stage="page", lane=f"host{n % 2}", priority=n % 3)
                await lab.put(of, f"e{n}", stage="page", delay=1000.0)
            mine = await lab.claim(worker, 5, Scope(run_ids=(run.id,)))
            ends = [retry(mine[0], 500.0), dead(mine[1], "410 Gone"), done(mine[2])] if len(mine) > 2 else []
            await lab.commit(worker, *ends)
        await lab.ledger.steering.cancel(run.id, ItemFilter(states=(ItemState.DELAYED,), partition=""), limit=2)
        await lab.put(run, "y0", "y1", "y2", stage="list", partition="p1", priority=9)
        everything = [await lab.ledger.reads.item(run.id, id=view.id) for view in await self.listed(lab, run.id)]
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
                    assert [view.id for view in await self.every_item(lab, run.id, which, 4)] == wanted, which

    async def listed(self, lab: Lab, run_id: str) -> list[ItemView]:
        return await self.every_item(lab, run_id, ItemFilter(), 1000)

    async def every_item(self, lab: Lab, run_id: str, which: ItemFilter, limit: int) -> list[ItemView]:
        rows: list[ItemView] = []
        cursor = None
        while True:
            page = await lab.ledger.reads.items(run_id, which, cursor=cursor, limit=limit)
            rows += page.rows
            cursor = page.cursor
            if cursor is None:
                return rows

    async def test_an_item_is_found_by_id_or_key(self, lab: Lab) -> None:
        run = await lab.run()
        await lab.put(run, "k", url="https://example.com/x", payload={"a": 1}, priority=3)
        by_key = await lab.ledger.reads.item(run.id, key="k")
        assert await lab.ledger.reads.item(run.id, id=by_key.id) == by_key
        assert (by_key.url, by_key.payload, by_key.priority, by_key.max_attempts) == (
            "https://example.com/x",
            {"a": 1},
            3,
            4,
        )
        for call in (lab.ledger.reads.item(run.id, key="nope"), lab.ledger.reads.item(run.id, id=10**9)):
            with pytest.raises(NotFound):
                await call
        with pytest.raises(UsageError):
            await lab.ledger.reads.item(run.id)

    async def test_the_failed_list(self, lab: Lab) -> None:  # S1.18
        run = await lab.run(max_attempts=2)
        await lab.ledger.intake.enqueue(run.id, ["https://example.com/a", "https://example.com/b"])
        worker = await lab.worker()
        a, b = await lab.claim(worker)
        await lab.commit(worker, retry(a, delay=0), dead(b, "410 Gone"))
        await lab.ledger.upkeep.tend()
        (again,) = await lab.claim(worker)
        await lab.commit(worker, dead(again, "Exceeded retries: timed out"))
        first = await lab.ledger.reads.failed(run.id, limit=1)
        rest = await lab.ledger.reads.failed(run.id, limit=5, cursor=first.cursor)
        assert [(row.url, row.error_message, row.retry_count) for row in (*first.rows, *rest.rows)] == [
            ("https://example.com/a", "Exceeded retries: timed out", 1),
            ("https://example.com/b", "410 Gone", 0),
        ]

    async def test_stale_claims_oldest_first(self, lab: Lab) -> None:  # S0.18
        run = await lab.run()
        await lab.put(run, "a", "b")
        worker = await lab.worker(lease_seconds=86_400)
        await lab.claim(worker, 1)
        await lab.jump(3600)
        await lab.claim(worker, 1)
        await lab.jump(1860)
        stale = await lab.ledger.reads.stale()
        assert [(row.name, row.claimed_by, round(row.minutes_ago)) for row in stale] == [
            ("a", worker, 91),
            ("b", worker, 31),
        ]
        assert [row.name for row in await lab.ledger.reads.stale(older_than=3600)] == ["a"]

    async def test_results_in_pages(self, lab: Lab) -> None:
        run = await lab.run()
        await lab.put(run, "a", "b")
        worker = await lab.worker()
        for item in await lab.claim(worker):
            await lab.commit(worker, done(item, *(f'{{"n":{n},"k":"{item.name}"}}' for n in range(5))))
        seen = []
        cursor = None
        while True:
            page = await lab.ledger.reads.results(run.id, cursor=cursor, limit=3)
            seen += [(row.item, row.n) for row in page.rows]
            cursor = page.cursor
            if cursor is None:
                break
        assert len(seen) == len(set(seen)) == 10
        assert seen == sorted(seen)

    async def test_results_name_their_items(self, lab: Lab) -> None:
        run = await lab.run("list", "page")
        await lab.put(run, "a", url="https://example.com/a")
        await lab.ledger.intake.enqueue(run.id, ["https://example.com/b"], stage="page")
        worker = await lab.worker()
        for item in [*await lab.claim(worker), *await lab.claim(worker)]:
            await lab.commit(worker, done(item, '{"n":1}'))
        rows = (await lab.ledger.reads.results(run.id)).rows
        assert [(row.stage, row.key, row.url) for row in rows] == [
            ("list", "a", "https://example.com/a"),
            ("page", None, "https://example.com/b"),
        ]
        assert [(row.n, json.loads(row.record)) for row in rows] == [(0, {"n": 1})] * 2

    async def test_results_of_one_stage(self, lab: Lab) -> None:
        run = await lab.run("list", "page")
        await lab.put(run, *(f"l{n}" for n in range(3)))
        await lab.put(run, "p", stage="page")
        await lab.put(run, "last")
        worker = await lab.worker()
        for _ in range(2):
            for item in await lab.claim(worker):
                many = 1 if item.stage == "page" else 600
                await lab.commit(worker, done(item, *(f'{{"n":{n}}}' for n in range(many))))

        async def pages(stage: str, limit: int) -> list[list[str | None]]:
            found: list[list[str | None]] = []
            cursor = None
            while True:
                page = await lab.ledger.reads.results(run.id, stage=stage, cursor=cursor, limit=limit)
                found.append([row.key for row in page.rows])
                cursor = page.cursor
                if cursor is None:
                    return found

        assert [key for keys in await pages("page", 5) for key in keys] == ["p"]
        assert (await pages("page", 5))[0] == [], "a page may be empty while more follow"
        assert [len(keys) for keys in await pages("list", 700)] == [700, 700, 700, 300]
        with pytest.raises(UnknownStage):
            await lab.ledger.reads.results(run.id, stage="nope")

    async def test_senseless_pages_are_refused(self, lab: Lab) -> None:
        run = await lab.run()
        reads = lab.ledger.reads
        for limit in (0, -1, 10**9):
            for call in (
                reads.items(run.id, limit=limit),
                reads.failed(run.id, limit=limit),
                reads.results(run.id, limit=limit),
                reads.events(limit=limit),
                reads.stale(limit=limit),
                lab.ledger.runs.list(limit=limit),
                lab.ledger.lanes.list(limit=limit),
            ):
                with pytest.raises(InvalidSetting, match="limit"):
                    await call
        for call in (
            reads.items(run.id, cursor="x"),
            reads.failed(run.id, cursor="-1"),
            reads.results(run.id, cursor="7"),
            reads.events(cursor="1.2"),
            lab.ledger.runs.list(cursor="9" * 30),
        ):
            with pytest.raises(UsageError, match="cursor"):
                await call

    async def test_why_an_item_is_not_running(self, lab: Lab) -> None:
        run = await lab.run(lane=LanePolicy(limit=1))
        await lab.put(run, "first", "second", lane="host")
        await lab.put(run, "plain", partition="NY")
        await lab.put(run, "later", delay=60.0)

        async def codes(key: str) -> list[str]:
            gates = await lab.ledger.reads.why_item(run.id, (await lab.item(run, key)).id)
            assert all(gate.text.endswith(".") for gate in gates)
            return [gate.code for gate in gates]

        assert await codes("plain") == ["no_worker", "queue_rank"]
        picky = await lab.worker(lease_seconds=3600, scope=Scope(partitions=("CA",), steal=False))
        assert await codes("plain") == ["no_worker_for_partition", "queue_rank"]
        await lab.ledger.workers.stop(picky)
        worker = await lab.worker(lease_seconds=3600)
        assert await codes("plain") == ["queue_rank"]
        assert await codes("second") == ["lane_limit", "lane_rank"]
        assert await codes("later") == ["delayed_not_before"]
        await lab.ledger.lanes.block("host", 50, "429")
        assert await codes("second") == ["lane_blocked", "lane_limit", "lane_rank"]
        await lab.ledger.lanes.set("host", paused=True)
        assert await codes("second") == ["lane_paused", "lane_blocked", "lane_limit", "lane_rank"]
        await lab.ledger.runs.pause(run.id)
        assert (await codes("plain"))[0] == "run_paused"
        await lab.ledger.runs.resume(run.id)
        claimed = {item.name: item for item in await lab.claim(worker)}
        assert await codes("plain") == ["leased"]
        await lab.commit(worker, retry(claimed["plain"], delay=20, error="reset by peer"))
        assert await codes("plain") == ["delayed_retry"]
        await lab.jump(21)
        (again,) = await lab.claim(worker)
        await lab.commit(worker, dead(again))
        assert await codes("plain") == ["dead"]

    async def test_why_names_the_rank_in_the_queue(self, lab: Lab) -> None:
        run = await lab.run()
        await lab.put(run, "a", "b", "c")
        gates = await lab.ledger.reads.why_item(run.id, (await lab.item(run, "c")).id)
        assert gates[-1].code == "queue_rank"
        assert gates[-1].items == 2

    async def test_why_a_run_is_not_done(self, lab: Lab) -> None:
        run = await lab.run(lane=LanePolicy(limit=1, delay_min=30, delay_max=30))

        async def codes() -> list[str]:
            return [gate.code for gate in await lab.ledger.reads.why_run(run.id)]

        assert await codes() == ["unsealed"]
        await lab.put(run, "plain", priority=-1)
        assert await codes() == ["no_worker", "ready"]
        worker = await lab.worker(lease_seconds=3600)
        await lab.put(run, "a", "b", "c", lane="host")
        (plain,) = await lab.claim(worker, 1)
        assert await codes() == ["leased", "ready", "waiting", "lane_limit"]
        await lab.commit(worker, retry(plain, delay=40))
        (a,) = await lab.claim(worker)
        await lab.commit(worker, done(a))
        assert await codes() == ["waiting", "lane_limit", "delayed_retry", "delayed_lane"] or await codes() == [
            "waiting",
            "lane_limit",
            "delayed_lane",
            "delayed_retry",
        ]
        await lab.ledger.runs.pause(run.id)
        assert (await codes())[0] == "run_paused"
        await lab.ledger.runs.cancel(run.id)
        assert await codes() == ["run_cancelled"]

    async def test_a_dead_workers_items_are_told_as_such(self, lab: Lab) -> None:
        """Killed, with nobody left to notice: its row still says live, its heartbeat does not."""
        run = await lab.run(lane=LanePolicy(limit=1, delay_min=5, delay_max=5))
        await lab.put(run, "a", "b", lane="host")
        await lab.put(run, "c", "d")
        worker = await lab.worker(lease_seconds=30)
        held = await lab.claim(worker, 2)
        await lab.ledger.claims.started(worker, [item.lease for item in held])
        await lab.jump(20)
        assert [view.alive for view in await lab.ledger.workers.list()] == [True]
        assert "held_by_dead" not in await self.codes(lab, run)
        await lab.jump(22)
        (view,) = await lab.ledger.workers.list()
        assert (view.state, view.alive) == (WorkerState.LIVE, False)
        gates = {gate.code: gate for gate in await lab.ledger.reads.why_run(run.id)}
        assert "No live worker serves the stage page of shop" in gates["no_worker"].text
        assert "`shoal worker`" in gates["no_worker"].text
        assert gates["held_by_dead"].items == 2
        text = f"2 items are held by a dead worker: {worker} \\(no heartbeat for 4[2-9] s\\)"
        assert re.match(text, gates["held_by_dead"].text)
        assert "leased" not in gates
        assert all(gate.until is None for gate in gates.values()), "nothing comes by itself"
        (gate,) = await lab.ledger.reads.why_item(run.id, held[0].item)
        assert (gate.code, f"{worker} has sent no heartbeat for 4" in gate.text) == ("held_by_dead", True)
        codes = [gate.code for gate in await lab.ledger.reads.why_item(run.id, (await lab.item(run, "d")).id)]
        assert codes == ["no_worker", "queue_rank"]
        other = await lab.worker()
        assert await self.codes(lab, run) == ["held_by_dead", "ready", "waiting", "lane_limit"]
        await lab.ledger.upkeep.tend()
        assert [item.name for item in await lab.claim(other)][:1] == ["c"], "it goes on where the dead one was"
        codes = await self.codes(lab, run)
        assert ("leased" in codes, "held_by_dead" in codes, "no_worker" in codes) == (True, False, False)

    async def codes(self, lab: Lab, run: Run) -> list[str]:
        return [gate.code for gate in await lab.ledger.reads.why_run(run.id)]

    async def test_what_is_claimed_and_what_runs_are_told_apart(self, lab: Lab) -> None:
        """By what the holder said with its last heartbeat, on the ledger's clock."""
        run, other = await lab.run(), await lab.run()
        await lab.put(run, "a", "b", "c")
        worker = await lab.worker(lease_seconds=3600)
        a, b, _ = await lab.claim(worker, scope=Scope(run_ids=(run.id,)))

        async def told(item: int) -> tuple[str, str]:
            (gate,) = await lab.ledger.reads.why_item(run.id, item)
            return gate.code, gate.text

        async def all_told() -> str:
            (gate,) = await lab.ledger.reads.why_run(run.id)
            assert (gate.code, gate.items) == ("leased", 3)
            return gate.text

        assert (await told(a.item))[1] == f"Claimed by {worker}; its next heartbeat says whether it has begun."
        assert await all_told() == "3 items are claimed by workers."
        await lab.jump(10)
        await lab.ledger.workers.beat(worker, WorkerReport(running={run.no: 1}, items=((a.item, 4.0),)))
        await lab.jump(2)
        code, text = await told(a.item)
        assert code == "running"
        assert re.fullmatch(f"{worker} has been running it for ([6-9]|1[01]) s.", text)
        code, text = await told(b.item)
        assert (code, "not begun: it waits in the worker's buffer while 1 is running" in text) == ("claimed", True)
        assert await all_told() == "1 item is being worked on, 2 items are claimed and not begun."
        await lab.ledger.workers.beat(worker)  # says nothing new
        assert (await told(a.item))[0] == "running"
        # More run than it names, and some have ended: nobody can say which of them this one is.
        busy = WorkerReport(running={run.no: 1, other.no: 200}, items=((a.item, 4.0),), unstored=1)
        await lab.ledger.workers.beat(worker, busy)
        code, text = await told(b.item)
        assert (code, "holds 3 items: 201 are running, 1 is done and not stored yet" in text) == ("leased", True)
        assert await all_told() == (
            "1 item is being worked on, 1 item is done and not stored yet, 1 item is claimed and not begun."
        )
        # A claim is a sign of life too, but says nothing about what was claimed before.
        await lab.put(run, "d")
        (d,) = await lab.claim(worker, scope=Scope(run_ids=(run.id,)))
        await lab.jump(3)
        await lab.put(run, "e")
        await lab.claim(worker, scope=Scope(run_ids=(run.id,)))
        assert (await told(d.item))[1].startswith(f"Claimed by {worker}; its next heartbeat says")
        # An attempt that began before this claim is another one.
        await lab.ledger.workers.beat(worker, WorkerReport(running={run.no: 1}, items=((a.item, 4000.0),)))
        await lab.jump(1)
        assert (await told(a.item))[0] != "running"

    async def test_a_worker_that_cannot_store_says_so(self, lab: Lab) -> None:
        run = await lab.run()
        await lab.put(run, "a")
        worker = await lab.worker()
        await lab.ledger.workers.beat(worker, WorkerReport(trouble="There is no space left for x.db."))
        gates = await lab.ledger.reads.why_run(run.id)
        assert [gate.code for gate in gates] == ["ledger_full", "ready"]
        assert f"{worker} cannot store anything: There is no space left for x.db." in gates[0].text
        await lab.ledger.workers.beat(worker, WorkerReport())
        assert await self.codes(lab, run) == ["ready"]

    async def test_a_rate_limit_of_the_site_is_told_as_one(self, lab: Lab) -> None:
        run = await lab.run(lane=LanePolicy(limit=2))
        await lab.put(run, "a", "b", lane="host")
        worker = await lab.worker(lease_seconds=3600)
        a, b = await lab.claim(worker)
        await lab.commit(worker, throttled(a), done(b))  # nothing is waiting: the one left has its place
        gates = {gate.code: gate for gate in await lab.ledger.reads.why_run(run.id)}
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
        of_item = await lab.ledger.reads.why_item(run.id, a.item)
        assert [gate.code for gate in of_item] == ["delayed_blocked", "lane_blocked"]
        assert "distance" not in of_item[0].text
        await lab.ledger.lanes.block("host", 90, "maintenance")
        (_, gate) = await lab.ledger.reads.why_item(run.id, a.item)
        assert re.fullmatch(r"The lane host is blocked for another \d+ s: maintenance.", gate.text)

    async def test_a_group_waits_for_its_earlier_members(self, lab: Lab) -> None:
        run = await lab.run(lane=LanePolicy(ordered=True, shared=False, delay_min=9, delay_max=9))
        await lab.put(run, "a", "b", "c", lane="fiji")
        worker = await lab.worker(lease_seconds=3600)
        (a,) = await lab.claim(worker)
        gates = {gate.code: gate for gate in await lab.ledger.reads.why_run(run.id)}
        assert list(gates) == ["leased", "waiting", "lane_order"]
        assert gates["lane_order"].text.startswith("The group fiji runs one at a time, in order")
        codes = [gate.code for gate in await lab.ledger.reads.why_item(run.id, (await lab.item(run, "c")).id)]
        assert codes == ["lane_order", "lane_rank"]
        await lab.commit(worker, done(a))
        gates = {gate.code: gate for gate in await lab.ledger.reads.why_run(run.id)}
        assert "in the pause after the one before them" in gates["delayed_order"].text

    async def test_nobody_is_missed_where_nothing_is_left(self, lab: Lab) -> None:
        """A stage without a worker is told when it has items, and stops the run only when no other has any."""
        run = await lab.run("list", "page")
        await lab.put(run, "a")
        await lab.worker(lease_seconds=3600, scope=Scope(stages=("list",)))
        assert await self.codes(lab, run) == ["ready"]
        await lab.put(run, "p", stage="page")
        assert await self.codes(lab, run) == ["no_worker_for_stage", "ready"]

    async def test_what_is_due_waits_for_a_worker_and_not_for_a_time(self, lab: Lab) -> None:
        run = await lab.run()
        await lab.put(run, "later", delay=60.0)
        item = (await lab.item(run, "later")).id
        await lab.jump(90)
        (_, gate) = await lab.ledger.reads.why_run(run.id)
        assert (gate.code, gate.until, gate.text[-17:]) == ("delayed_not_before", None, "the first is due.")
        gate = (await lab.ledger.reads.why_item(run.id, item))[0]
        assert gate.until is None
        assert gate.text.startswith("Its time has come, and it waits for a worker")

    async def test_why_says_how_it_scaled(self, lab: Lab) -> None:  # S2.20
        """The newest of each pool or worker, three of them at most, and only what is recent."""
        run, other = await lab.run(), await lab.run()
        await lab.put(run, "a")

        async def scaled(subject: str, before: int, after: int, why: str, of: str = run.id) -> None:
            detail = {"from": before, "to": after, "most": 10, "what": "workers", "why": why}
            await lab.ledger.runs.tell(of, "scaled", subject, detail, by=subject)

        async def texts() -> list[str]:
            gates = await lab.ledger.reads.why_run(run.id)
            return [gate.text for gate in gates if gate.code == "scaled"]

        await scaled("pool of-old", 1, 2, "long ago")
        await lab.jump(901)
        assert await texts() == []
        await scaled("pool north", 2, 4, "9 items are ready")
        await scaled("pool elsewhere", 2, 4, "that is another run", other.id)
        await lab.ledger.runs.tell(run.id, "told", "pool north", {})
        await scaled("pool north", 4, 2, "61 % of the last 140 attempts failed")
        await lab.jump(180)
        assert await texts() == [
            "The pool on north went from 4 to 2 workers 3 min ago: 61 % of the last 140 attempts failed."
        ]
        await scaled("worker w-1", 2, 2, "memory is at 88 % of its limit")
        assert (await texts())[0].startswith("The worker w-1 stayed at 2 of 10 workers 0 s ago: memory is at 88 %")
        for number in range(2, 5):
            await scaled(f"worker w-{number}", 1, 2, "more")
        assert [text.split()[2] for text in await texts()] == ["w-4", "w-3", "w-2"]

    async def test_a_sleeper_is_woken_by_new_work(self, lab: Lab) -> None:
        run = await lab.run()
        other = await lab.another()
        await lab.ledger.upkeep.wait(0.01)
        began = time.monotonic()
        sleeping = asyncio.create_task(lab.ledger.upkeep.wait(20))
        await asyncio.sleep(0.3)
        await other.intake.enqueue(run.id, ["https://example.com/"])
        await sleeping
        assert time.monotonic() - began < 10
