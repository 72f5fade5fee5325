"""Filling a PostgreSQL ledger with a great many rows by plain SQL, as if they had come the usual way."""

from __future__ import annotations

from shoal.ledger.postgres.ledger import PostgresLedger

_ITEMS = """
insert into shoal.item (id, created_at, run, stage, queue, priority, lane, key_hash, key)
select nextval('shoal.item_id'), shoal.clock(), k.run, k.stage, k.id, $2, $3,
       sha256((k.id || '/' || $2::int || '/' || $5::text || n)::bytea), $5 || n
from shoal.queue k cross join generate_series(1, $4::int) n
where k.id = $1 order by n
returning id
"""


async def fill_ready(ledger: PostgresLedger, queue: int, count: int, tag: str = "r") -> None:
    await _fill(
        ledger,
        queue,
        count,
        tag,
        "insert into shoal.ready (item, since, queue, priority, epoch, tries, rescues) "
        "select id, shoal.clock(), $1, $2, 0, 0, 0 from fresh",
        "ready",
    )


async def fill_done(ledger: PostgresLedger, queue: int, count: int, tag: str = "d") -> None:
    await _fill(
        ledger,
        queue,
        count,
        tag,
        "insert into shoal.outcome "
        "(item, claimed_at, ended_at, run, queue, epoch, seconds, tries, rescues, state, outcome) "
        "select f.id, shoal.clock(), shoal.clock(), k.run, k.id, 1, 0, 1, 0, 'done', 'done' "
        "from fresh f join shoal.queue k on k.id = $1",
        "done",
    )


async def fill_results(ledger: PostgresLedger, run_no: int) -> None:
    """One record for each item that is done, as if a hundred had been committed at a time."""
    await ledger.db.fetch(
        "with stored as ("
        "insert into shoal.result (item, run, n, record) "
        "select o.item, o.run, 0, '{\"a\": 1}' from shoal.outcome o where o.run = $1), "
        "changes as (insert into shoal.result_change (at, run, stage, records, items) "
        "select shoal.clock(), $1, k.stage, count(*), array_agg(o.item order by o.item) "
        "from shoal.outcome o join shoal.queue k on k.id = o.queue where o.run = $1 group by k.stage, o.item / 100) "
        "insert into shoal.count_delta (at, queue, results) "
        "select shoal.clock(), o.queue, count(*) from shoal.outcome o where o.run = $1 group by o.queue",
        run_no,
    )


async def fill_waiting(
    ledger: PostgresLedger, queue: int, count: int, lane: int, priority: int, tag: str = "w"
) -> None:
    await _fill(
        ledger,
        queue,
        count,
        tag,
        "insert into shoal.waiting (item, lane, since, run, queue, priority, epoch, tries, rescues) "
        "select f.id, $3, shoal.clock(), k.run, k.id, $2, 0, 0, 0 from fresh f join shoal.queue k on k.id = $1",
        "waiting",
        lane=lane,
        priority=priority,
    )
    await ledger.db.fetch("update shoal.lane set waiting = waiting + $2 where id = $1", lane, count)


async def _fill(
    ledger: PostgresLedger,
    queue: int,
    count: int,
    tag: str,
    place: str,
    column: str,
    *,
    lane: int | None = None,
    priority: int = 0,
) -> None:
    sql = (
        f"with fresh as ({_ITEMS}), placed as ({place}) "
        f"insert into shoal.count_delta (at, queue, {column}) select shoal.clock(), $1, count(*) from fresh"
    )
    await ledger.db.fetch(sql, queue, priority, lane, count, tag)


async def settle(ledger: PostgresLedger) -> None:
    """What autovacuum and upkeep do in the course of minutes."""
    await ledger.upkeep.run_once()
    for table in ("item", "ready", "waiting", "outcome", "lease", "count_delta", "queue_count", "lane"):
        await ledger.db.fetch(f"vacuum analyze shoal.{table}")
