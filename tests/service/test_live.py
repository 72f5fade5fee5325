"""Live updates: one reader for all, frames of what changed, cursors, outages."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from shoal.config import Settings
from shoal.errors import UsageError
from shoal.service import live
from shoal.service.live import LiveHub, Subscription, check_topics
from shoal.testing.harness import LedgerHarness, dead, done
from tests.support.watched_ledger import LedgerWatch, watch_ledger

FAST = 0.05
PATIENCE = 60
ENOUGH_READS = 60


@asynccontextmanager
async def hub_on(harness: LedgerHarness, watch: LedgerWatch | None = None) -> AsyncIterator[LiveHub]:
    ledger = harness.ledger if watch is None else watch_ledger(harness.ledger, watch)
    hub = LiveHub(lambda: ledger, Settings(ledger="unused"), interval=FAST)
    try:
        yield hub
    finally:
        await hub.close()


async def next_frame(subscription: Subscription) -> dict[str, Any]:
    async with asyncio.timeout(PATIENCE):
        while True:
            await subscription.changed.wait()
            if (frame := subscription.take()) is not None:
                found: dict[str, Any] = json.loads(frame.text)
                assert found["cursor"] == frame.cursor
                return found


async def frame_where(subscription: Subscription, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The first frame whose changes are as wanted."""
    while True:
        frame = await next_frame(subscription)
        if holds(frame["changes"]):
            return frame


async def whole_frame(subscription: Subscription) -> dict[str, Any]:
    async with asyncio.timeout(PATIENCE):
        while not subscription.ready:
            subscription.changed.clear()
            await subscription.changed.wait()
    return await next_frame(subscription)


async def test_the_first_frame_is_a_snapshot_then_only_what_changed(either_harness: LedgerHarness) -> None:
    harness = either_harness
    run = await harness.run()
    await harness.put(run, "a", "b", "c")
    worker = await harness.worker()
    async with hub_on(harness) as hub:
        client = hub.open()
        client.subscribe(("overview", f"run:{run.id}", "fleet", "egress", "events"))
        first = await whole_frame(client)
        assert first["snapshot"] is True
        assert first["changes"].keys() == {"ledger", "overview", f"run:{run.id}", "fleet", "egress", "events"}
        assert first["changes"]["ledger"]["ok"] is True
        assert (first["changes"][f"run:{run.id}"]["total"], first["changes"]["overview"]["empty"]) == (3, False)
        assert first["changes"]["overview"]["runs"][0]["run_id"] == run.id
        assert first["changes"]["overview"]["ledger"]["size_bytes"] > 0
        assert first["changes"]["fleet"]["by_worker"].keys() == {worker}
        assert first["changes"][f"run:{run.id}"]["stage_counts"]["page"]["remaining"] == 3

        claimed = await harness.claim(worker)
        await harness.commit(worker, done(claimed[0]), dead(claimed[1]))
        seen: dict[str, Any] = {}
        while not (seen.get("done") == 1 and seen.get("dead") == 1):
            frame = await frame_where(client, lambda changes: f"run:{run.id}" in changes)
            assert frame["snapshot"] is False
            seen |= frame["changes"][f"run:{run.id}"]
        assert "scraper" not in seen, "what did not change is not sent"

        await harness.ledger.runs.pause(run.id, by="ann@desk")
        frame = await frame_where(client, lambda changes: "events" in changes)
        (event,) = frame["changes"]["events"]
        assert (event["actor"], event["action"]) == ("ann@desk", "run.paused")


async def test_five_hundred_clients_cost_the_ledger_what_one_costs(either_harness: LedgerHarness) -> None:
    harness, watch = either_harness, LedgerWatch()
    run = await harness.run()
    await harness.put(run, "a")
    topics = ("overview", f"run:{run.id}", "fleet", "egress", "events")

    async def cost_of(clients: int) -> float:
        """Calls of the ledger per read of a topic."""
        began = asyncio.get_running_loop().time()
        watch.calls.clear()
        async with hub_on(harness, watch) as hub:
            subscriptions = [hub.open() for _ in range(clients)]
            for subscription in subscriptions:
                subscription.subscribe(topics)
            await whole_frame(subscriptions[-1])
            await harness.put(run, f"more for {clients}")
            while hub.reads < ENOUGH_READS:  # the first ones cost more, as many as they are
                await asyncio.sleep(FAST)
                texts = {id(frame.text) for one in subscriptions if (frame := one.take()) is not None}
                assert len(texts) <= 2, "a frame is encoded once for all clients that are at the same cursor"
            for subscription in subscriptions:
                subscription.close()
            elapsed = asyncio.get_running_loop().time() - began
            assert hub.reads <= len(topics) * (1 + elapsed / FAST), "a topic is read once per interval"
            calls, reads = watch.total, hub.reads
            await asyncio.sleep(4 * FAST)
            assert (hub.reads, hub.clients) == (reads, 0), "nobody is subscribed: no reads"
            return calls / reads

    alone = await cost_of(1)
    assert await cost_of(500) <= 2 * alone


async def test_a_cursor_continues_and_an_old_one_is_a_snapshot(
    either_harness: LedgerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = either_harness
    monkeypatch.setattr(live, "MAX_KEPT_CHANGES", 3)
    run = await harness.run()
    topic = f"run:{run.id}"
    async with hub_on(harness) as hub:

        def has_total(changes: dict[str, Any], total: int) -> bool:
            return bool(changes.get(topic, {}).get("total") == total)

        first, other = hub.open(), hub.open()
        first.subscribe((topic,))
        other.subscribe((topic,))  # keeps the reader going
        cursor = (await whole_frame(first))["cursor"]
        first.close()
        await harness.put(run, "a", "b")
        await frame_where(other, lambda changes: changes.get(topic, {}).get("total") == 2)

        again = hub.open()
        again.subscribe((topic,), cursor)
        frame = await next_frame(again)
        assert frame["snapshot"] is False, "what changed meanwhile is known"
        assert frame["changes"][topic]["total"] == 2
        assert "scraper" not in frame["changes"][topic]

        for number in range(6):
            await harness.put(run, f"more {number}")
            await frame_where(other, partial(has_total, total=3 + number))
        late = hub.open()
        late.subscribe((topic,), cursor)
        frame = await next_frame(late)
        assert (frame["snapshot"], frame["changes"][topic]["scraper"]) == (True, "shop")
        for unknown in ("0badcafe-1", "nonsense", cursor.partition("-")[0] + "-999999"):
            strange = hub.open()
            strange.subscribe((topic,), unknown)
            assert (await next_frame(strange))["snapshot"] is True, unknown


async def test_a_client_that_comes_back_soon_continues_though_nobody_else_watched(
    either_harness: LedgerHarness,
) -> None:
    harness = either_harness
    run = await harness.run()
    topic = f"run:{run.id}"
    async with hub_on(harness) as hub:
        client = hub.open()
        client.subscribe((topic, "events"))
        cursor = (await whole_frame(client))["cursor"]
        client.close()
        assert hub.topics == ()
        await harness.put(run, "a")
        await harness.ledger.runs.pause(run.id, by="ann")
        again = hub.open()
        again.subscribe((topic, "events"), cursor)
        frame = await whole_frame(again)
        assert frame["snapshot"] is False
        assert (frame["changes"][topic]["total"], frame["changes"][topic]["state"]) == (1, "paused")
        assert [event["action"] for event in frame["changes"]["events"]] == ["run.paused"]


async def test_a_run_that_is_not_there_is_null_until_it_is(either_harness: LedgerHarness) -> None:
    harness = either_harness
    async with hub_on(harness) as hub:
        client = hub.open()
        client.subscribe(("run:latest",))
        assert (await whole_frame(client))["changes"]["run:latest"] is None
        run = await harness.run()
        frame = await frame_where(client, lambda changes: changes.get("run:latest") is not None)
        assert (frame["snapshot"], frame["changes"]["run:latest"]["run_id"]) == (True, run.id)


async def test_a_worker_that_left_is_null(either_harness: LedgerHarness) -> None:
    harness = either_harness
    stays, leaves = await harness.worker(), await harness.worker()
    async with hub_on(harness) as hub:
        client = hub.open()
        client.subscribe(("fleet",))
        assert (await whole_frame(client))["changes"]["fleet"]["by_worker"].keys() == {stays, leaves}
        await harness.ledger.workers.stop(leaves)
        frame = await frame_where(client, lambda changes: "by_worker" in changes.get("fleet", {}))
        assert frame["changes"]["fleet"]["by_worker"] == {leaves: None}


async def test_a_ledger_that_is_away_is_said_and_comes_back(either_harness: LedgerHarness) -> None:
    harness, watch = either_harness, LedgerWatch()
    run = await harness.run()
    topics = ("overview", "fleet", f"run:{run.id}")
    async with hub_on(harness, watch) as hub:
        client = hub.open()
        client.subscribe(topics)
        await whole_frame(client)
        watch.away = True
        frame = await frame_where(client, lambda changes: "ledger" in changes)
        assert frame["changes"]["ledger"]["ok"] is False
        assert frame["changes"]["ledger"]["text"] == "The ledger at db.example does not answer."
        assert frame["changes"]["ledger"]["since"]
        assert hub.ledger_error
        watch.calls.clear()
        await asyncio.sleep(10 * FAST)
        assert watch.total <= 10, "one probe asks, less and less often"
        late = hub.open()
        late.subscribe(topics)
        assert (await next_frame(late))["changes"].keys() == {"ledger", *topics}, "old values can stay"
        watch.away = False
        await frame_where(client, lambda changes: changes.get("ledger", {}).get("ok") is True)
        await harness.put(run, "a")
        await frame_where(client, lambda changes: changes.get(f"run:{run.id}", {}).get("total") == 1)


async def test_slow_reads_do_not_pile_up(either_harness: LedgerHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    harness, watch = either_harness, LedgerWatch()
    monkeypatch.setattr(live, "SLOW_READ_SECONDS", 4 * FAST)
    runs = [await harness.run() for _ in range(8)]
    async with hub_on(harness, watch) as hub:
        client = hub.open()
        client.subscribe(("overview", *(f"run:{run.id}" for run in runs)))
        await whole_frame(client)
        watch.held.clear()
        frame = await frame_where(client, lambda changes: changes.get("ledger", {}).get("ok") is False)
        assert "has not answered" in frame["changes"]["ledger"]["text"]
        begun = watch.total
        await asyncio.sleep(10 * FAST)
        assert watch.total <= begun + live.PARALLEL_READS, "no more reads are started while others hang"
        assert watch.most_at_once <= live.PARALLEL_READS
        watch.held.set()
        await frame_where(client, lambda changes: changes.get("ledger", {}).get("ok") is True)


async def test_many_topics_stay_within_the_budget_of_reads(either_harness: LedgerHarness) -> None:
    harness, watch = either_harness, LedgerWatch()
    runs = [await harness.run() for _ in range(60)]
    async with hub_on(harness, watch) as hub:
        clients = [hub.open() for _ in runs]
        for client, run in zip(clients, runs, strict=True):
            client.subscribe((f"run:{run.id}",))
        for client in clients:
            await whole_frame(client)
        assert len(hub.topics) == 60
        assert hub.seconds_between_reads > 2 * FAST, "with so many topics each is read less often"
        assert watch.most_at_once <= live.PARALLEL_READS


async def test_topics_of_all_clients_are_bounded(
    either_harness: LedgerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anybody who may read could ask for runs that do not exist, until nobody's topics are read in time."""
    monkeypatch.setattr(live, "MAX_READ_TOPICS", 3)
    async with hub_on(either_harness) as hub:
        first, second = hub.open(), hub.open()
        first.subscribe(("run:none-1", "run:none-2", "run:none-3"))
        second.subscribe(("run:none-2",))  # what is read already costs nothing
        with pytest.raises(UsageError, match="reads 3 topics already"):
            second.subscribe(("run:none-4",))
        assert hub.topic("run:none-4") is None
        first.close()
        second.subscribe(("run:none-4",))


def test_topics_are_checked() -> None:
    assert check_topics(["overview", "run:latest", "overview"], 20) == ("overview", "run:latest")
    for wrong in ("runs", "run:", "run:" + "x" * 300, 7, None):
        with pytest.raises(UsageError, match="no topic"):
            check_topics([wrong], 20)
    with pytest.raises(UsageError, match="3 topics; a connection has 2"):
        check_topics(["overview", "fleet", "events"], 2)
