"""A PostgreSQL table as a sink: created and extended from the records, upserted, exact under failures."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import asyncpg
import pytest
from msgspec.structs import replace

from shoal.define.record_types import record_field_types
from shoal.errors import SinkFailed
from shoal.model.views import ItemFilter
from shoal.sinks.delivery import RECORD_TYPES_NOTE
from shoal.testing.harness import LedgerHarness, dead, done, keyed
from tests.support.sinks import deliver_all, delivery_to, sink_config, store


@pytest.fixture
async def witness(postgres_url: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(postgres_url)
    yield connection
    await connection.close()


async def rows(witness: asyncpg.Connection, table: str = "shop_page") -> list[dict[str, Any]]:
    return [dict(row) for row in await witness.fetch(f"select * from {table} order by shoal_item, shoal_n")]


async def column_types(witness: asyncpg.Connection, table: str = "shop_page") -> dict[str, str]:
    found = await witness.fetch(
        "select column_name, data_type from information_schema.columns where table_name = $1", table
    )
    return {row[0]: row[1] for row in found if not row[0].startswith("shoal_")}


async def test_ten_thousand_records_arrive_once(
    harness: LedgerHarness, postgres_url: str, witness: asyncpg.Connection
) -> None:
    run = await harness.run()
    records = [
        {"sku": n, "name": f"thing {n}", "price": n / 4, "tags": ["a", n], "new": n % 2 == 0} for n in range(10_000)
    ]
    await store(harness, run, records, per_item=4, per_commit=100)
    config = sink_config(kind="postgresql", url=postgres_url)
    await deliver_all(delivery_to(config), harness.ledger)
    assert await witness.fetchval("select count(*) from shop_page") == 10_000
    assert await witness.fetchval("select sum(sku) from shop_page") == sum(range(10_000))
    assert await column_types(witness) == {
        "sku": "bigint",
        "name": "text",
        "price": "double precision",
        "tags": "jsonb",
        "new": "boolean",
    }
    # Everything once more: the same rows.
    before = await witness.fetchval("select md5(string_agg(t::text, ',' order by shoal_key)) from shop_page t")
    await harness.ledger.changes.reset(config.cursor)
    await deliver_all(delivery_to(config), harness.ledger)
    assert await witness.fetchval("select md5(string_agg(t::text, ',' order by shoal_key)) from shop_page t") == before


async def test_columns_are_added_and_none_is_dropped(
    harness: LedgerHarness, postgres_url: str, witness: asyncpg.Connection
) -> None:
    run = await harness.run()
    delivery = delivery_to(sink_config(kind="postgresql", url=postgres_url, table="goods"))
    await store(harness, run, [{"name": "a", "count": 1, "empty": None}])
    await deliver_all(delivery, harness.ledger)
    await witness.execute("alter table goods add column remark text; update goods set remark = 'mine'")
    await store(harness, run, [{"name": "b", "size": {"cm": 3}, "empty": 5, 'odd "name"; drop table goods': True}])
    await store(harness, run, [{"count": 2.5}])
    await deliver_all(delivery, harness.ledger)
    assert await column_types(witness, "goods") == {
        "name": "text",
        "count": "numeric",
        "remark": "text",
        "size": "jsonb",
        "empty": "bigint",
        'odd "name"; drop table goods': "boolean",
    }
    found = await rows(witness, "goods")
    assert [(row["name"], row["count"], row["remark"]) for row in found] == [
        ("a", 1, "mine"),
        ("b", None, None),
        (None, 2.5, None),
    ]


@dataclass
class Offer:
    sku: str
    seen: dt.datetime
    price: float
    stock: int | None = None


async def test_declared_types_make_the_columns(
    harness: LedgerHarness, postgres_url: str, witness: asyncpg.Connection
) -> None:
    run = await harness.run()
    await harness.ledger.runs.put_note(run.id, RECORD_TYPES_NOTE, {"page": record_field_types(Offer)})
    await store(harness, run, [{"sku": "1", "seen": "2026-01-02T03:04:05+00:00", "price": 3, "stock": None}])
    config = sink_config(kind="postgresql", url=postgres_url)
    await deliver_all(delivery_to(config), harness.ledger)
    assert await column_types(witness) == {
        "sku": "text",
        "seen": "timestamp with time zone",
        "price": "double precision",
        "stock": "bigint",
    }
    (row,) = await rows(witness)
    assert row["seen"] == dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)
    # Another type in the table: one sentence, and the sink waits; nothing is changed and nothing is set aside.
    await witness.execute("alter table shop_page alter column price type text")
    await store(harness, run, [{"sku": "2", "seen": "2026-01-02T03:04:05+00:00", "price": 4, "stock": 1}])
    with pytest.raises(SinkFailed, match=r'column price of "shop_page" is text, but .* double precision'):
        await deliver_all(delivery_to(config), harness.ledger)
    assert len(await rows(witness)) == 1
    assert (await harness.ledger.changes.dead_letters(config.cursor)).rows == ()


async def test_a_record_key_is_upserted(harness: LedgerHarness, postgres_url: str, witness: asyncpg.Connection) -> None:
    run = await harness.run()
    await harness.put(run, "p1", "p2", "p3")
    worker = await harness.worker()
    p1, p2, p3 = await harness.claim(worker)
    config = sink_config(kind="postgresql", url=postgres_url)
    await harness.commit(worker, keyed(p1, ("a", 1), ("b", 1)))
    await deliver_all(delivery_to(config), harness.ledger)
    await harness.commit(worker, keyed(p2, ("a", 2), replaces=True), keyed(p3, ("c", 1)))
    await deliver_all(delivery_to(config), harness.ledger)
    found = await witness.fetch("select shoal_key, value, shoal_item from shop_page order by 1")
    assert [tuple(row) for row in found] == [("a", 2, p2.item), ("b", 1, p1.item), ("c", 1, p3.item)]


async def test_records_that_do_not_fit_are_set_aside_with_the_reason(
    harness: LedgerHarness, postgres_url: str, witness: asyncpg.Connection
) -> None:
    run = await harness.run()
    config = sink_config(kind="postgresql", url=postgres_url)
    await store(harness, run, [{"n": 1, "flag": True}])
    await deliver_all(delivery_to(config), harness.ledger)
    await witness.execute("alter table shop_page add constraint positive check (n > 0)")
    bad: list[dict[str, Any]] = [
        {"n": "N/A"},
        {"n": -5},
        {"n": 10**30},
        {"flag": "yes"},
        {"text": "nul \0"},
        {"x" * 64: 1},
    ]
    await store(harness, run, [{"n": 2}, *bad, {"n": 3}], per_item=1)
    await deliver_all(delivery_to(config), harness.ledger)
    assert [row["n"] for row in await rows(witness)] == [1, 2, 3]
    reasons = [letter.reason for letter in (await harness.ledger.changes.dead_letters(config.cursor)).rows]
    assert len(reasons) == len(bad)
    assert reasons[0] == 'n is "N/A", but the column is bigint'
    assert "positive" in reasons[1]
    assert reasons[2] == f"n is {10**30}, but the column is bigint"
    assert reasons[3] == 'flag is "yes", but the column is boolean'
    assert "NUL" in reasons[4]
    assert "no name of a column" in reasons[5]


async def test_replaced_records_disappear_from_the_table(
    harness: LedgerHarness, postgres_url: str, witness: asyncpg.Connection
) -> None:
    run = await harness.run()
    await store(harness, run, [{"v": n} for n in range(6)], per_item=3)
    config = sink_config(kind="postgresql", url=postgres_url)
    await deliver_all(delivery_to(config), harness.ledger)
    db = harness.ledger.db  # type: ignore[attr-defined]
    await db.fetch("delete from result where item = 1 and n > 0")
    await db.fetch("update result set record = '{\"v\": 100}' where item = 1")
    await db.fetch(
        "insert into result_change (run, stage, at, records, replaced, items) "
        "select run, stage, at, 1, 1, '[1]' from result_change limit 1"
    )
    await deliver_all(delivery_to(config), harness.ledger)
    assert [(row["shoal_item"], row["v"]) for row in await rows(witness)] == [(1, 100), (2, 3), (2, 4), (2, 5)]


async def test_a_replay_replaces_rows_whatever_keys_they_had(
    harness: LedgerHarness, postgres_url: str, witness: asyncpg.Connection
) -> None:
    run = await harness.run()
    await harness.put(run, "p", "q")
    worker = await harness.worker()
    p, q = await harness.claim(worker)
    await harness.commit(worker, keyed(p, ("a", 1), ("b", 1), ("c", 1)), keyed(q, ("x", 1)))
    config = sink_config(kind="postgresql", url=postgres_url)
    await deliver_all(delivery_to(config), harness.ledger)
    again = replace(p, epoch=(await harness.item(run, "p")).epoch)
    report = await harness.ledger.steering.replay(keyed(again, ("x", 9), ("d", 2), ("a", 2)))
    assert (report.replayed, report.dropped_records) == (True, 1)
    await deliver_all(delivery_to(config), harness.ledger)
    assert [(row["shoal_item"], row["key"], row["value"]) for row in await rows(witness)] == [
        (p.item, "d", 2),
        (p.item, "a", 2),
        (q.item, "x", 1),
    ]


async def test_a_table_dropped_or_a_connection_cut_meanwhile(
    harness: LedgerHarness, postgres_url: str, witness: asyncpg.Connection
) -> None:
    run = await harness.run()
    delivery = delivery_to(sink_config(kind="postgresql", url=postgres_url))
    await store(harness, run, [{"v": 1}])
    await deliver_all(delivery, harness.ledger)
    await witness.execute("drop table shop_page")
    await store(harness, run, [{"v": 2}])
    await deliver_all(delivery, harness.ledger)
    assert [row["v"] for row in await rows(witness)] == [2]
    await witness.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity where pid <> pg_backend_pid()"
        " and datname = current_database()"
    )
    await store(harness, run, [{"v": 3}])
    for _ in range(5):
        try:
            await deliver_all(delivery, harness.ledger)
            break
        except SinkFailed:
            await asyncio.sleep(0)
    assert [row["v"] for row in await rows(witness)] == [2, 3]


async def test_a_password_is_not_shown(harness: LedgerHarness) -> None:
    run = await harness.run()
    await store(harness, run, [{"v": 1}])
    config = sink_config(kind="postgresql", url="postgresql://me:hush-hush@127.0.0.1:1/x")
    with pytest.raises(SinkFailed) as raised:
        await deliver_all(delivery_to(config), harness.ledger)
    cursor = await harness.ledger.changes.cursor(config.cursor)
    assert cursor is not None
    assert cursor.last_error is not None
    assert "refused" in cursor.last_error.lower() or "connect" in cursor.last_error.lower()
    for text in (str(raised.value), cursor.last_error, str(config.shown())):
        assert "hush-hush" not in text


async def test_rows_of_a_retried_item_are_replaced(
    harness: LedgerHarness, postgres_url: str, witness: asyncpg.Connection
) -> None:
    """Also when its end, its retry and its next end are in one batch, and the batch ends between its records."""
    run = await harness.run()
    await harness.put(run, "a")
    worker = await harness.worker()
    (claimed,) = await harness.claim(worker)
    await harness.commit(worker, replace(dead(claimed), records=('{"v":1}', '{"v":2}')))
    early = delivery_to(sink_config(kind="postgresql", url=postgres_url, name="early", table="early", batch=6))
    late = delivery_to(sink_config(kind="postgresql", url=postgres_url, name="late", table="late", batch=6))
    await deliver_all(early, harness.ledger)
    assert [row["v"] for row in await rows(witness, "early")] == [1, 2]
    await harness.ledger.steering.retry(run.id, ItemFilter())
    await deliver_all(early, harness.ledger)
    assert await rows(witness, "early") == []
    (again,) = await harness.claim(worker)
    await harness.commit(worker, done(again, '{"v":3}', '{"v":4}', '{"v":5}', '{"v":6}'))
    for delivery, table in ((early, "early"), (late, "late")):
        await deliver_all(delivery, harness.ledger)
        assert [row["v"] for row in await rows(witness, table)] == [3, 4, 5, 6]
