"""The log of result changes where the backends differ: late commits, replaced results, cost of a page."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from shoal.ledger.postgres.ledger import PostgresLedger, open_postgres
from shoal.ledger.postgres.ledger import named_queries as postgres_queries
from shoal.ledger.sqlite.ledger import named_queries as sqlite_queries
from shoal.ledger.sqlite.ledger import open_sqlite
from shoal.model.changes import LOG_BEGIN, ReplacedItem
from shoal.model.worker import Scope, WorkerSpec
from shoal.testing.conformance.changes import finish, follow
from shoal.testing.harness import LedgerHarness, done
from tests.ledger.test_plans_postgres import BATCH, Bench, Probe, make_bench
from tests.ledger.test_plans_sqlite import Steps, new_run
from tests.support.fill import fill_done, fill_results, settle
from tests.support.ledgers import postgres_harness


@pytest.fixture
async def connection(postgres_url: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(postgres_url)
    yield connection
    await connection.close()


@pytest.fixture
async def ledger(postgres_url: str) -> AsyncIterator[PostgresLedger]:
    ledger = await open_postgres(postgres_url, command_timeout=120)
    yield ledger
    await ledger.close()


@pytest.mark.parametrize("through", ["postgres_url", "pgbouncer_url"])
async def test_a_transaction_that_commits_late_is_not_skipped(
    request: pytest.FixtureRequest, through: str, connection: asyncpg.Connection
) -> None:
    """Its row has an older id than what readers have passed; nobody waits for it meanwhile."""
    async with postgres_harness(request.getfixturevalue(through)) as harness:
        run = await harness.run()
        await harness.put(run, "late", "early", "last")
        worker = await harness.worker()
        late, early, last = await harness.claim(worker)
        held = connection.transaction()
        await held.start()
        # What the function does before it returns, but not committed yet.
        await connection.fetch(
            "select * from shoal.commit((select no from shoal.worker where id = $1), array[$2::bigint], array[1], "
            "array[$3::int], null, null, null, null, array[0.1::real], null, array[$2::bigint], array[0], "
            "array['{\"v\": 1}'::json], null, null, null, null, null, null, null, null, null, null, null, null, "
            "null, null)",
            worker,
            late.item,
            run.no,
        )
        await finish(harness, worker, [early], '{"v":2}')
        records, at = await follow(harness.ledger)
        assert [record.key for record in records] == ["early"], "a reader waits for nobody's transaction"
        await held.commit()
        await finish(harness, worker, [last], '{"v":3}')
        records, _ = await follow(harness.ledger, at)
        assert sorted(record.key or "" for record in records) == ["last", "late"]
        await harness.check()


async def test_two_readers_number_changes_at_once(ledger: PostgresLedger, connection: asyncpg.Connection) -> None:
    """A session that holds the numbers back makes the other wait instead of giving out later ones first."""
    bench = await make_bench(ledger, Probe(connection))
    queue = await bench.queue()
    await fill_done(ledger, queue, 200)
    await fill_results(ledger, bench.run.no)
    held = connection.transaction()
    await held.start()
    await connection.fetch("select shoal.number_changes(1)")
    waiting = asyncio.create_task(ledger.changes.read(limit=10))
    assert not (await asyncio.wait([waiting], timeout=0.3))[0]
    await held.commit()
    records, _ = await follow(ledger)
    assert (await waiting).records == tuple(records[: len((await waiting).records)])
    assert len(records) == 200


async def test_replaced_results_come_again_with_their_number(either_harness: LedgerHarness, place: Path | str) -> None:
    harness = either_harness
    run = await harness.run()
    await harness.put(run, "a", "b")
    worker = await harness.worker()
    a, b = await harness.claim(worker)
    await finish(harness, worker, [a], '{"v":1}', '{"v":2}', '{"v":3}')
    await finish(harness, worker, [b], '{"v":1}')
    _, at = await follow(harness.ledger)
    db = harness.ledger.db  # type: ignore[attr-defined]
    schema, items = (
        ("", f"'[{a.item},{b.item}]'") if isinstance(place, Path) else ("shoal.", f"'{{{a.item},{b.item}}}'")
    )
    await db.fetch(f"delete from {schema}result where (item = {a.item} and n > 1) or item = {b.item}")
    await db.fetch(
        f"insert into {schema}result_change (run, stage, at, records, replaced, items) "
        f"select run, stage, at, 2, {'1' if isinstance(place, Path) else 'true'}, {items} "
        f"from {schema}result_change limit 1"
    )
    page = await harness.ledger.changes.read(at)
    assert [record.n for record in page.records] == [0, 1]
    changes = harness.ledger.changes
    assert await changes.replaced_items(LOG_BEGIN, at) == set()
    assert await changes.replaced_items(at, page.end) == {(run.id, a.item), (run.id, b.item)}
    assert await changes.replaced_items(LOG_BEGIN, page.end) == {(run.id, a.item), (run.id, b.item)}
    assert await changes.replaced_items(page.end, page.end) == set()
    assert page.replaced == (
        ReplacedItem(run.id, "shop", "page", a.item, 2),
        ReplacedItem(run.id, "shop", "page", b.item, 0),
    )
    first = await harness.ledger.changes.read(at, limit=1)
    assert (len(first.records), first.replaced, first.more) == (1, (), True)
    second = await harness.ledger.changes.read(first.end, limit=1)
    assert [record.n for record in second.records] == [1]
    assert second.replaced == page.replaced
    assert second.end == page.end


async def test_a_page_costs_the_same_however_long_the_log_is(
    ledger: PostgresLedger, connection: asyncpg.Connection
) -> None:
    probe = Probe(connection)
    bench: Bench = await make_bench(ledger, probe)
    costs = []
    for size in (1_000, 60_000):
        filled = await make_bench(ledger, probe)
        await fill_done(ledger, await filled.queue(), size)
        await fill_results(ledger, filled.run.no)
        await follow(ledger)
        await settle(ledger)
        last = await ledger.db.value("select max(position) from shoal.result_change")
        cost = 0
        row = await ledger.db.row("select run, items from shoal.result_change where position = $1", last // 2)
        for query, args in (
            ("number_changes", (100,)),
            ("changes_after", (last // 2, BATCH)),
            ("change_items", ([last // 2],)),
            ("changed_results", ([row["run"]] * BATCH, row["items"][:BATCH], -1, BATCH, 1 << 20)),
            ("change_lag", (last // 2, BATCH, None, None, None)),
        ):
            pages, scans = await bench.probe.pages(postgres_queries()[query], *args)
            assert scans == dict.fromkeys(scans, 0), query
            cost += pages
        costs.append(cost)
    small, big = costs
    assert big < 2 * small, costs


async def test_a_page_costs_the_same_steps_on_sqlite(sqlite_path: Path) -> None:
    ledger = await open_sqlite(sqlite_path)
    await ledger.schema.migrate()
    await ledger.workers.register(WorkerSpec(id="w", node="n", pid=1, lease_seconds=3600))
    run = await new_run(ledger)
    costs = []
    steps = Steps(ledger)
    await steps.begin()
    queries = {name: sqlite_queries()[name] for name in ("changes_after", "changed_results", "change_lag")}
    for size in (500, 10_000):
        await ledger.intake.enqueue(run.id, (f"https://example.com/{size}/{n}" for n in range(size)))
        while claimed := await ledger.claims.claim("w", Scope(), BATCH):
            await ledger.commits.commit("w", [done(item, '{"a":1}') for item in claimed])
        middle = (await ledger.changes.end()).change // 2
        page = await ledger.changes.read(LOG_BEGIN, limit=BATCH)
        pairs = str([[run.no, record.item] for record in page.records])

        def look(connection: sqlite3.Connection, middle: int = middle, pairs: str = pairs) -> None:
            connection.execute(queries["changes_after"], (middle, 4)).fetchall()
            connection.execute(queries["changed_results"], (pairs, -1, BATCH)).fetchall()
            connection.execute(queries["change_lag"], (middle, 4, None, None, None)).fetchall()

        before = steps.count
        await ledger.db.change_schema(look)
        costs.append(steps.count - before)
    await ledger.close()
    small, big = costs
    assert big < 1.5 * small + 5, costs


async def test_the_end_is_behind_all_that_nobody_has_read(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cursor that begins at the end gets nothing old, however many changes have no position yet."""
    monkeypatch.setattr("shoal.ledger.postgres.changes.NUMBERED_AT_ONCE", 2)
    async with postgres_harness(postgres_url) as harness:
        run = await harness.run()
        await harness.put(run, *"abcdefg")
        worker = await harness.worker()
        for item in await harness.claim(worker):
            await finish(harness, worker, [item], '{"v":1}')
        end = await harness.ledger.changes.end()
        assert (await follow(harness.ledger, end))[0] == []
        assert len((await follow(harness.ledger))[0]) == 7
