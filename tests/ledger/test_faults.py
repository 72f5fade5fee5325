"""Every store call fails before, after and in the middle of its effect, and the laws hold."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter

import pytest
from msgspec.structs import replace

from shoal.ledger.postgres.database import Record
from shoal.ledger.postgres.errors import ConnectionLost
from shoal.ledger.postgres.ledger import PostgresLedger, open_postgres
from shoal.ledger.protocols import Ledger
from shoal.model.item import ClaimedItem, Lease, NewItem, prepare
from shoal.model.lane import LanePolicy
from shoal.model.outcome import FinishedAttempt, RedirectVisit, VisitDecision
from shoal.model.run import RunSpec, RunState, StageSpec
from shoal.model.worker import Scope, WorkerSpec
from shoal.testing.harness import InjectedFault, LedgerHarness, done, keyed, retry, retry_on_fault, skipped, with_faults

ITEMS = 250
SPEC = RunSpec(
    scraper="faults",
    stages=(StageSpec("list", lane=LanePolicy(limit=3)), StageSpec("page", lane=LanePolicy(limit=3))),
    max_rescues=1000,
)


@pytest.fixture
def harness(either_harness: LedgerHarness) -> LedgerHarness:
    return either_harness


def ends_of(claimed: list[ClaimedItem], rng: random.Random) -> list[FinishedAttempt]:
    return [
        retry(item, delay=0.0)
        if rng.random() < 0.1
        else done(
            item,
            json.dumps({"stage": item.stage, "key": item.key}),
            follow_ups=[NewItem(key=item.key, stage="page", lane=item.lane)] if item.stage == "list" else (),
        )
        for item in claimed
    ]


async def work_until_finished(ledger: Ledger, run_id: str, name: str, rng: random.Random) -> None:
    """A worker that makes every call again until it answers."""
    await retry_on_fault(lambda: ledger.workers.register(WorkerSpec(id=name, node="n", pid=1, lease_seconds=3600)))
    scope = Scope(run_ids=(run_id,))
    while True:
        try:
            claimed = await ledger.claims.claim(name, scope, 4)
        except InjectedFault:
            # The claim may have leased items whose answer was lost.
            await retry_on_fault(lambda: ledger.claims.reconcile(name, []))
            continue
        if claimed:
            ends = ends_of(claimed, rng)
            await retry_on_fault(lambda ends=ends: ledger.commits.commit(name, ends))  # type: ignore[misc]
        else:
            await retry_on_fault(ledger.upkeep.run_once)
            if (await retry_on_fault(lambda: ledger.runs.get(run_id))).state is RunState.FINISHED:
                return
            await asyncio.sleep(0.01)


async def prove(ledger: Ledger, run_id: str) -> None:
    counts = await ledger.reads.stats(run_id)
    assert (counts.done, counts.dead, counts.remaining) == (2 * ITEMS, 0, 0), counts
    page = await ledger.reads.results(run_id, limit=10_000)
    seen = Counter((record["stage"], record["key"]) for record in (json.loads(row.record) for row in page.rows))
    assert len(seen) == 2 * ITEMS
    assert set(seen.values()) == {1}
    assert await ledger.upkeep.audit() == []


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_a_run_survives_faults_in_every_third_call(harness: LedgerHarness, seed: int) -> None:
    flaky, injected = with_faults(harness.ledger, rate=0.35, seed=seed)
    run = await harness.ledger.runs.create(SPEC)
    items = [NewItem(key=f"k{n}", lane=f"lane{n % 4}" if n % 2 else None) for n in range(ITEMS)]
    await retry_on_fault(lambda: flaky.intake.enqueue(run.id, items))
    await retry_on_fault(lambda: flaky.runs.seal(run.id))
    rng = random.Random(seed)
    await asyncio.wait_for(
        asyncio.gather(*(work_until_finished(flaky, run.id, f"w{n}", rng) for n in range(3))), timeout=120
    )
    await prove(harness.ledger, run.id)
    for call in ("claims.claim", "commits.commit"):
        for kind in ("before", "after", "timeout"):
            assert injected[f"{call} {kind}"] > 0, f"the test never injected {call} {kind}"


async def follow_redirects(ledger: Ledger, run_id: str, name: str) -> None:
    """A worker whose items redirect to one of ten pages, some of which are items too."""
    await retry_on_fault(lambda: ledger.workers.register(WorkerSpec(id=name, node="n", pid=1, lease_seconds=3600)))
    while (await retry_on_fault(lambda: ledger.reads.stats(run_id))).remaining:
        try:
            claimed = await ledger.claims.claim(name, Scope(run_ids=(run_id,)), 4)
        except InjectedFault:
            await retry_on_fault(lambda: ledger.claims.reconcile(name, []))
            continue
        for item in claimed:
            page = f"page{item.item % 10}" if (item.key or "").startswith("k") else item.key
            decision = VisitDecision.VISIT
            if page != item.key:
                target = prepare(NewItem(key=page, stage="list", lane=item.lane), "list")
                visit = RedirectVisit(lease=item.lease, target=target, shown=str(page))
                reply = await retry_on_fault(lambda visit=visit: ledger.commits.visit_redirect(name, visit))  # type: ignore[misc]
                decision = reply.decision
            match decision:
                case VisitDecision.VISIT:
                    end = done(item, json.dumps({"page": page}))
                case VisitDecision.WAIT:
                    end = retry(item, delay=0.0)
                case _:
                    end = skipped(item)
            report = await retry_on_fault(lambda end=end: ledger.commits.commit(name, [end]))  # type: ignore[misc]
            assert report.lost == ()
        await retry_on_fault(ledger.upkeep.run_once)


async def test_each_page_is_stored_once_whatever_call_about_a_redirect_fails(harness: LedgerHarness) -> None:
    flaky, injected = with_faults(harness.ledger, rate=0.35, seed=4)
    run = await harness.ledger.runs.create(SPEC)
    items = [NewItem(key=f"k{n}", lane=f"lane{n % 4}" if n % 2 else None) for n in range(120)]
    items += [NewItem(key=f"page{n}") for n in range(0, 10, 3)]
    random.Random(4).shuffle(items)
    await retry_on_fault(lambda: flaky.intake.enqueue(run.id, items))
    await asyncio.wait_for(asyncio.gather(*(follow_redirects(flaky, run.id, f"w{n}") for n in range(3))), timeout=120)
    rows = (await harness.ledger.reads.results(run.id, limit=1_000)).rows
    assert Counter(json.loads(row.record)["page"] for row in rows) == {f"page{n}": 1 for n in range(10)}
    counts = await harness.ledger.reads.stats(run.id)
    assert (counts.done, counts.dead, counts.remaining) == (10, 0, 0), counts
    assert await harness.ledger.upkeep.audit() == []
    for kind in ("before", "after", "timeout"):
        assert injected[f"commits.visit_redirect {kind}"] > 0


class BrokenWire:
    """Breaks the connection around single statements: before, after, or so that the statement arrives late."""

    def __init__(self, ledger: PostgresLedger, rate: float, seed: int) -> None:
        self.rate = rate
        self.rng = random.Random(seed)
        self.injected: Counter[str] = Counter()
        self.late: list[asyncio.Task[object]] = []
        self.real = ledger.db.fetch_once
        ledger.db.fetch_once = self.fetch_once  # type: ignore[method-assign]

    async def fetch_once(self, sql: str, *args: object) -> list[Record]:
        if self.rng.random() >= self.rate:
            return await self.real(sql, *args)
        kind = self.rng.choice(("before", "after", "late"))
        self.injected[kind] += 1
        if kind == "after":
            await self.real(sql, *args)
        elif kind == "late":
            self.late.append(asyncio.create_task(self.deliver_late(sql, args)))
        raise ConnectionLost(f"broken {kind}")

    async def deliver_late(self, sql: str, args: tuple[object, ...]) -> None:
        """The caller has given up and asked again when the server carries out the first request."""
        await asyncio.sleep(self.rng.random() * 0.2)
        try:
            await self.real(sql, *args)
        except Exception as error:
            self.injected[f"late {type(error).__name__}"] += 1


async def test_a_recalled_claim_says_which_items_are_paced(postgres_url: str) -> None:
    ledger = await open_postgres(postgres_url)
    spaced = LanePolicy(limit=2, delay_min=10, delay_max=10)
    run = await ledger.runs.create(RunSpec(scraper="faults", stages=(StageSpec("page", lane=spaced),)))
    await ledger.intake.enqueue(run.id, [NewItem(key="paced", lane="host"), NewItem(key="free")])
    await ledger.workers.register(WorkerSpec(id="w", node="n", pid=1))
    real = ledger.db.fetch_once

    async def lost(sql: str, *args: object) -> list[Record]:
        ledger.db.fetch_once = real  # type: ignore[method-assign]
        await real(sql, *args)
        raise ConnectionLost("the answer got lost")

    ledger.db.fetch_once = lost  # type: ignore[method-assign]
    claimed = await ledger.claims.claim("w", Scope(), 10)
    assert ledger.db.fetch_once == real, "the fault was injected"
    assert {item.name: item.paced for item in claimed} == {"paced": True, "free": False}
    await ledger.close()


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_lost_and_late_answers_are_hidden_from_callers(postgres_url: str, seed: int) -> None:
    """No InjectedFault here: the PostgreSQL ledger itself retries, and callers do not notice."""
    ledger = await open_postgres(postgres_url)
    run = await ledger.runs.create(SPEC)
    wire = BrokenWire(ledger, rate=0.3, seed=seed)
    items = [NewItem(key=f"k{n}", lane=f"lane{n % 4}" if n % 2 else None) for n in range(ITEMS)]
    report = await ledger.intake.enqueue(run.id, [*items, *items[:7]])
    assert (report.enqueued, report.duplicates) == (ITEMS, 7), "a receipt keeps the count exact"
    await ledger.runs.seal(run.id)
    rng = random.Random(seed)
    await asyncio.wait_for(
        asyncio.gather(*(work_until_finished(ledger, run.id, f"w{n}", rng) for n in range(3))), timeout=120
    )
    await asyncio.gather(*wire.late)
    await prove(ledger, run.id)
    assert min(wire.injected[kind] for kind in ("before", "after", "late")) > 5, wire.injected
    await ledger.close()


async def store_keyed(ledger: Ledger, run_id: str, name: str, rng: random.Random) -> None:
    """A worker whose items yield some of twenty records, first ones that stay and upserted ones, and replays a few."""
    await retry_on_fault(lambda: ledger.workers.register(WorkerSpec(id=name, node="n", pid=1, lease_seconds=3600)))
    run = await retry_on_fault(lambda: ledger.runs.get(run_id))
    while (await retry_on_fault(lambda: ledger.reads.stats(run_id))).remaining:
        try:
            claimed = await ledger.claims.claim(name, Scope(run_ids=(run_id,)), 2)
        except InjectedFault:
            await retry_on_fault(lambda: ledger.claims.reconcile(name, []))
            continue
        ends = [
            keyed(item, *((f"{kind}{rng.randrange(20)}", item.item) for _ in range(3)), replaces=kind == "last")
            for item in claimed
            for kind in (rng.choice(("first", "last")),)
        ]
        if ends:
            report = await retry_on_fault(lambda ends=ends: ledger.commits.commit(name, ends))  # type: ignore[misc]
            assert report.lost == ()
            again = replace(ends[0], lease=Lease(ends[0].lease.item, ends[0].lease.epoch, run.no))
            assert (await retry_on_fault(lambda again=again: ledger.steering.replay(again))).replayed  # type: ignore[misc]


async def test_each_record_key_is_stored_once_whatever_fails(harness: LedgerHarness) -> None:
    flaky, injected = with_faults(harness.ledger, rate=0.35, seed=5)
    run = await harness.ledger.runs.create(SPEC)
    await harness.ledger.intake.enqueue(run.id, [NewItem(key=f"k{n}") for n in range(120)])
    rng = random.Random(5)
    await asyncio.wait_for(asyncio.gather(*(store_keyed(flaky, run.id, f"w{n}", rng) for n in range(3))), timeout=120)
    rows = (await harness.ledger.reads.results(run.id, limit=1_000)).rows
    keys = Counter(row.record_key for row in rows)
    assert set(keys.values()) == {1}
    assert len(keys) > 30
    counts = await harness.ledger.reads.stats(run.id)
    assert (counts.done, counts.remaining, counts.results) == (120, 0, len(rows))
    assert await harness.ledger.upkeep.audit() == []
    for kind in ("before", "after", "timeout"):
        assert injected[f"commits.commit {kind}"] > 0
        assert injected[f"steering.replay {kind}"] > 0
