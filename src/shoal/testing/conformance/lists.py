"""Lists that are filtered or read in pages: items by text and lane, counts, partitions, workers, events, children."""

from __future__ import annotations

import pytest

from shoal.errors import InvalidItem, InvalidSetting, NotFound, UnknownStage, UsageError
from shoal.model.item import ItemState, NewItem
from shoal.model.lane import LanePolicy
from shoal.model.views import ItemFilter, PartitionProgress
from shoal.model.worker import WorkerReport, WorkerSpec
from shoal.testing.harness import LedgerHarness, dead, done, retry


class ListsConformance:
    async def test_items_are_found_by_a_part_of_their_key_or_url(self, harness: LedgerHarness) -> None:
        run, other = await harness.run("list", "page"), await harness.run()
        await harness.put(run, "red chair", "blue chair", "blue table", partition="a")
        await harness.put(run, "red lamp", stage="page")
        urls = [f"https://a.example/chairs/{n}" for n in range(12)]
        await harness.ledger.intake.enqueue(run.id, urls)
        await harness.put(other, "red chair")
        reads = harness.ledger.reads

        async def names(**which: object) -> list[str]:
            found, cursor = [], None
            while True:
                page = await reads.items(run.id, ItemFilter(**which), cursor=cursor, limit=2)  # type: ignore[arg-type]
                found += [item.key or item.url or "" for item in page.rows]
                if (cursor := page.cursor) is None:
                    return found

        assert await names(text="red") == ["red chair", "red lamp"]
        assert await names(text="red", stage="page") == ["red lamp"]
        assert await names(text="chair", partition="a") == ["red chair", "blue chair"]
        assert await names(text="Red") == [], "capital letters count, as they do in URLs"
        assert await names(text="nothing has this") == []
        # The item whose URL it is comes first, before others that contain it.
        assert await names(text=urls[1]) == [urls[1], urls[10], urls[11]]
        assert await names(text="https://A.example:443/chairs/7#top") == [urls[7]], "by the key of a URL"
        assert await names(text="chairs/1", states=(ItemState.READY, ItemState.WAITING)) == [
            urls[1],
            urls[10],
            urls[11],
        ]
        assert await names(text="chair", states=(ItemState.DEAD,)) == []
        count = await reads.count_items(run.id, ItemFilter(text="chair"))
        assert (count.count, count.is_at_least) == (14, False)
        for text in ("", "a\0b"):
            with pytest.raises(InvalidItem):
                await reads.items(run.id, ItemFilter(text=text))

    async def test_items_are_found_by_their_lane(self, harness: LedgerHarness) -> None:
        run, other = await harness.run("list", "page"), await harness.run()
        await harness.put(run, "a1", "a2", "a3", lane="a")
        await harness.put(run, "b1", lane="b")
        await harness.put(run, "free")
        await harness.put(other, "other", lane="a")
        worker = await harness.worker()
        first = next(item for item in await harness.claim(worker) if item.name == "a1")
        await harness.commit(worker, dead(first))
        reads = harness.ledger.reads

        async def keys(**which: object) -> list[str | None]:
            page = await reads.items(run.id, ItemFilter(**which))  # type: ignore[arg-type]
            assert page.cursor is None
            return [item.key for item in page.rows]

        assert await keys(lane="a") == ["a1", "a2", "a3"]
        assert await keys(lane="a", states=(ItemState.DEAD,)) == ["a1"]
        assert set(await keys(lane="a", states=(ItemState.READY, ItemState.WAITING, ItemState.LEASED))) == {"a2", "a3"}
        assert await keys(lane="a", outcome="permanent") == ["a1"]
        assert await keys(lane="a", stage="page") == []
        assert await keys(lane="a", text="3") == ["a3"]
        assert await keys(lane="none") == []
        assert (await reads.count_items(run.id, ItemFilter(lane="a"))).count == 3
        assert (await reads.count_items(run.id, ItemFilter(lane="a", states=(ItemState.DEAD,)))).count == 1
        assert await harness.ledger.steering.retry(run.id, ItemFilter(lane="b")) == 0
        assert await harness.ledger.steering.retry(run.id, ItemFilter(lane="a")) == 1

    async def test_counts_of_a_filter(self, harness: LedgerHarness) -> None:
        run = await harness.run("list", "page")
        await harness.put(run, *(f"k{n}" for n in range(20)), partition="a")
        await harness.put(run, *(f"p{n}" for n in range(5)), stage="page", partition="b")
        worker = await harness.worker()
        claimed = await harness.claim(worker)
        await harness.commit(worker, *(dead(item, f"error {item.name}") for item in claimed[:8]))
        await harness.commit(worker, *(retry(item, error="slow") for item in claimed[8:12]))
        reads = harness.ledger.reads

        async def count(at_most: int = 10_000, **which: object) -> tuple[int, bool]:
            found = await reads.count_items(run.id, ItemFilter(**which), at_most=at_most)  # type: ignore[arg-type]
            return found.count, found.is_at_least

        assert await count() == (25, False)
        assert await count(3, states=(ItemState.DEAD, ItemState.DELAYED)) == (12, False), "from the counters"
        assert await count(stage="page") == (5, False)
        assert await count(partition="b") == (5, False)
        assert await count(partition="none") == (0, False)
        assert await count(outcome="permanent") == (8, False)
        assert await count(5, outcome="permanent", states=(ItemState.DEAD,)) == (5, True)
        assert await count(error="slow") == (4, False)
        assert await count(failure=1234) == (0, False)
        with pytest.raises(UnknownStage):
            await count(stage="nope")
        await harness.ledger.failures.group(run.id)
        group = (await harness.ledger.failures.list(run.id)).rows[0]
        assert await count(failure=group.id) == (group.items, False)
        assert await count(failure=group.id, text="no such") == (0, False)

    async def test_children_of_an_item(self, harness: LedgerHarness) -> None:
        run = await harness.run("list", "page")
        await harness.put(run, "parent", "single")
        worker = await harness.worker()
        parent, single = await harness.claim(worker)
        follow_ups = [NewItem(key=f"child {n}", stage="page") for n in range(4)]
        await harness.commit(worker, done(parent, follow_ups=follow_ups), done(single))
        children = await harness.ledger.reads.children(run.id, parent.lease.item)
        assert [(child.name, child.stage, child.state) for child in children] == [
            (f"child {n}", "page", ItemState.READY) for n in range(4)
        ]
        assert len(await harness.ledger.reads.children(run.id, parent.lease.item, limit=2)) == 2
        assert await harness.ledger.reads.children(run.id, single.lease.item) == ()

    async def test_what_each_of_many_items_waits_for(self, harness: LedgerHarness) -> None:
        run = await harness.run("list", "page", lane=LanePolicy(limit=1))
        await harness.put(run, "lane 1", "lane 2", lane="shop.example")
        await harness.put(run, "later", delay=60.0)
        await harness.put(run, "dies", "ready")
        reads = harness.ledger.reads
        items = {item.key: item.id for item in (await reads.items(run.id)).rows}
        codes = {key: (await reads.why_items(run.id, list(items.values())))[id].code for key, id in items.items()}
        assert codes["ready"] == codes["dies"] == "no_worker"
        worker = await harness.worker()
        claimed = {item.name: item for item in await harness.claim(worker)}
        await harness.commit(worker, dead(claimed["dies"], "410 Gone"))
        await harness.put(run, "new")
        items["new"] = (await harness.item(run, "new")).id
        reasons = await reads.why_items(run.id, list(items.values()))
        assert {key: reasons[id].code for key, id in items.items()} == {
            "lane 1": "leased",
            "lane 2": "lane_limit",
            "later": "delayed_not_before",
            "dies": "dead",
            "ready": "leased",
            "new": "queue_rank",
        }
        assert reasons[items["new"]].text == "It is ready and waits for a free worker."
        # The same sentence as that of one item, apart from its place in the queue.
        for key in ("lane 2", "later", "dies"):
            assert reasons[items[key]] == (await reads.why_item(run.id, items[key]))[0]
        assert await reads.why_items(run.id, []) == {}
        with pytest.raises(InvalidSetting):
            await reads.why_items(run.id, list(range(1, 202)))

    async def test_partitions_in_pages(self, harness: LedgerHarness) -> None:
        run = await harness.run("list", "page")
        for name in ("", "CA", "NY"):
            await harness.put(run, f"k{name}", partition=name)
            await harness.put(run, f"p{name}1", f"p{name}2", stage="page", partition=name)
        worker = await harness.worker()
        await harness.finish(worker, [item for item in await harness.claim(worker) if item.partition == "CA"])
        for folded in (False, True):
            if folded:
                await harness.ledger.upkeep.run_once()
            found: list[PartitionProgress] = []
            cursor = None
            while True:
                page = await harness.ledger.reads.partition_page(run.id, cursor=cursor, limit=2)
                found += page.rows
                if (cursor := page.cursor) is None:
                    break
            assert [(row.stage, row.partition, row.counts.total) for row in found] == [
                *(("list", name, 1) for name in ("", "CA", "NY")),
                *(("page", name, 2) for name in ("", "CA", "NY")),
            ]
            assert [row.counts.done for row in found] == [0, 1, 0, 0, 2, 0]
            assert (found[0].eta_seconds, found[1].eta_seconds) == (None, 0)
        assert (bool(found[4].rate), bool(found[3].rate)) == (True, False)
        only = await harness.ledger.reads.partition_page(run.id, stage="page")
        assert ([row.partition for row in only.rows], only.cursor) == (["", "CA", "NY"], None)
        with pytest.raises(UsageError):
            await harness.ledger.reads.partition_page(run.id, cursor="x y")

    async def test_workers_in_pages(self, harness: LedgerHarness) -> None:
        workers = harness.ledger.workers
        for n in range(7):
            await workers.register(WorkerSpec(id=f"w{n}", node=f"node-{n % 2}", pid=n, version=f"1.{n % 2}"))
        await workers.stop("w0")
        await workers.drain("w1")

        async def ids(**which: object) -> list[str]:
            found, cursor = [], None
            while True:
                page = await workers.page(**which, cursor=cursor, limit=2)  # type: ignore[arg-type]
                found += [worker.id for worker in page.rows]
                if (cursor := page.cursor) is None:
                    return found

        assert await ids() == [f"w{n}" for n in (6, 5, 4, 3, 2, 1)]
        assert await ids(present=False) == [f"w{n}" for n in (6, 5, 4, 3, 2, 1, 0)]
        assert await ids(node="node-0") == ["w6", "w4", "w2"]
        assert await ids(node="nowhere") == []
        nodes = await workers.nodes()
        assert [(node.node, node.workers, node.live, node.draining, node.versions) for node in nodes] == [
            ("node-0", 3, 3, 0, ("1.0",)),
            ("node-1", 3, 2, 1, ("1.1",)),
        ]
        run = await harness.run()
        await harness.put(run, "a", "b")
        a, b = await harness.claim("w6")
        await workers.heartbeat("w6", WorkerReport(items=((a.lease.item, 3.0),)))
        assert (await workers.page(limit=1)).rows[0].leased == 2
        held = await workers.held_items([a.lease.item, b.lease.item, 10**9])
        assert {item.name: item.run_id for item in held.values()} == {"a": run.id, "b": run.id}

    async def test_events_by_actor_and_action(self, harness: LedgerHarness) -> None:
        run, other = await harness.run(), await harness.run()
        for n in range(6):
            by = "ann" if n % 2 else "bob"
            await harness.ledger.runs.record_event(run.id, "lane.set", f"s{n}", {}, by=by)
            await harness.ledger.runs.record_event(other.id, "run.noted", f"o{n}", {}, by=by)
        reads = harness.ledger.reads

        async def subjects(**which: object) -> list[str]:
            found, cursor = [], None
            while True:
                page = await reads.events(**which, cursor=cursor, limit=2)  # type: ignore[arg-type]
                found += [event.subject for event in page.rows]
                if (cursor := page.cursor) is None:
                    return found

        assert await subjects(actor="ann") == ["o5", "s5", "o3", "s3", "o1", "s1"]
        assert await subjects(actor="ann", run_id=run.id) == ["s5", "s3", "s1"]
        assert await subjects(action="lane.set", actor="bob") == ["s4", "s2", "s0"]
        assert await subjects(action="lane.") == [f"s{n}" for n in (5, 4, 3, 2, 1, 0)]
        assert await subjects(action="lane") == []
        assert await subjects(actor="nobody") == []
        assert len(await subjects(run_id=run.id)) == 7, "with the event of its creation"
        with pytest.raises(NotFound):
            await reads.events(run_id="nope")
