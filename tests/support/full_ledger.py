"""A ledger with data in every table and items in every state, as real use leaves them."""

from __future__ import annotations

import msgspec

from shoal.ledger.protocols import Ledger
from shoal.model.access import Role
from shoal.model.changes import LOG_BEGIN, RecordRef
from shoal.model.egress import ExitSpec
from shoal.model.item import NewItem
from shoal.model.lane import LanePolicy
from shoal.model.record_key import RecordScope
from shoal.model.request import ItemRequest
from shoal.model.run import Run, RunSpec, StageSpec
from shoal.model.worker import Scope, WorkerPoolSpec, WorkerSpec
from shoal.testing.harness import done, keyed, throttled
from tests.support.small_ledger import fill

WORKER = "node2-77-00ff00ff"


async def fill_every_table(ledger: Ledger) -> None:
    """Fill an empty ledger. Its runs of the scraper `shop` have open items; a worker can run them to the end."""
    shop = await fill(ledger)
    await ledger.lanes.set("shop.example", limit=2, delay=(0.01, 0.02), by="ann@desk")
    await ledger.workers.register(WorkerSpec(id=WORKER, node="node2", pid=77, version="1.0", code="7d1f02"))
    await _finish_a_run_with_record_keys(ledger)
    await _add_other_states(ledger, shop)
    await _add_shared_state(ledger, shop)
    for run in (await ledger.runs.list(scraper="shop")).rows:
        await ledger.runs.seal(run.id, by="ann@desk")
    for _ in range(3):
        await ledger.upkeep.run_once()
    await ledger.upkeep.sample()
    assert await ledger.upkeep.audit() == []


async def _finish_a_run_with_record_keys(ledger: Ledger) -> None:
    """Two runs of one scraper: records unique in a run, and in the history of the scraper."""
    for number in range(2):
        stages = (StageSpec("page", lane=LanePolicy(limit=4)), StageSpec("detail"))
        run = await ledger.runs.create(RunSpec(scraper="books", stages=stages, idempotency_key=f"books-{number}"))
        await ledger.intake.enqueue(run.id, [NewItem(key="a"), NewItem(key="b")])
        await ledger.intake.enqueue(run.id, [NewItem(key="c")], stage="detail")
        first, second, third = await ledger.claims.claim(WORKER, Scope(run_ids=(run.id,)), 3)
        ends = [
            keyed(first, ("1", number), ("2", 7), scope=RecordScope.SCRAPER, replaces=True),
            keyed(second, ("x", 1), ("y", 2)),
            msgspec.structs.replace(done(third, '{"title": "No key"}'), detail={"counters": {"pages": 2}}),
        ]
        await ledger.commits.commit(WORKER, ends)
        await ledger.runs.seal(run.id, by="ann@desk")
        await ledger.upkeep.run_once()


async def _add_other_states(ledger: Ledger, shop: Run) -> None:
    """Cancelled and paused runs; delayed, throttled and posted items; groups of failures."""
    cancelled = await ledger.runs.create(RunSpec(scraper="old", stages=(StageSpec("page"),)))
    await ledger.intake.enqueue(cancelled.id, [NewItem(key="gone")])
    await ledger.runs.cancel(cancelled.id, by="ann@desk")
    paused = await ledger.runs.create(RunSpec(scraper="slow", stages=(StageSpec("page"),)))
    await ledger.intake.enqueue(paused.id, [NewItem(key="later", lane="slow.example", priority=-3, partition="ZH")])
    await ledger.runs.pause(paused.id, by="ann@desk", because="too early")
    request = ItemRequest(method="POST", json={"query": "rivers"})
    items = [
        NewItem(key="delayed", delay=20.0, payload={"page": 3}, priority=5),
        NewItem(url="https://shop.example/search", key="posted", request=request, depth=2),
        NewItem(key="throttled", lane="other.example"),
    ]
    await ledger.intake.enqueue(shop.id, items, stage="product")
    for claimed in await ledger.claims.claim(WORKER, Scope(run_ids=(shop.id,), stages=("product",)), 50):
        if claimed.key == "throttled":
            await ledger.commits.commit(WORKER, [throttled(claimed, delay=20.0)])
    await ledger.failures.group(shop.id)
    (first, *_) = (await ledger.failures.list(shop.id)).rows
    await ledger.failures.mute(shop.id, first.id, by="ann@desk")
    await ledger.lanes.request_slot(WORKER, "api.example", 12345, run_id=shop.id, stage="product")
    await ledger.lanes.block("slow.example", 1.0, "asked to wait", by="ann@desk")


async def _add_shared_state(ledger: Ledger, shop: Run) -> None:
    """What belongs to no item: notes, cursors, exits, sessions, access, pools, locks."""
    await ledger.runs.put_note(shop.id, "coverage", {"title": 1.0})
    await ledger.runs.acquire_once(shop.id, "alert:finished")
    await ledger.changes.open_cursor("sink:archive")
    page = await ledger.changes.read(limit=2)
    refused = RecordRef(page.records[0].run_id, page.records[0].item, page.records[0].n)
    await ledger.changes.move("sink:archive", LOG_BEGIN, page.end, delivered=1, dead={refused: "no title"})
    await ledger.changes.fail("sink:archive", "disk full")
    await ledger.exits.register(WORKER, "homes", "proxies", [ExitSpec("00000000000a", "http://192.0.2.9:3128")])
    await ledger.exits.ban("homes", "00000000000a", 3_600.0, "it lies", by="ann@desk")
    await ledger.sessions.put("members", "ann", b"encrypted", before=0)
    token = await ledger.access.add_token("ann", Role.OPERATOR, b"d" * 32, by="ann@desk")
    assert token is not None
    await ledger.access.start_session(token.id, b"s" * 32, seconds=3_600.0, idle_seconds=600.0)
    pool = WorkerPoolSpec(id="pool-1", scraper="shop", run_id=shop.id, node="node2", pid=78, process="1", wanted=2)
    await ledger.pools.register(pool)
    await ledger.pools.report("pool-1", workers=2, wanted=2, stopping=False)
    await ledger.locks.acquire("schedule:shop", "node2", 60.0)
    await ledger.locks.complete("schedule:shop", "node2", {"run_id": shop.id})
    await ledger.settings.put("global", {"retries": 5}, by="ann@desk")
