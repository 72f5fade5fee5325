"""The same work without Shoal: plain tables, two statements, asyncpg with prepared statements."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import asyncpg

SCHEMA = """
create table item (id bigint primary key, url text);
create table ready (queue int, priority int, item bigint, primary key (queue, priority, item));
create table lease (item bigint primary key, epoch int, worker int, claimed_at timestamptz);
create table outcome (item bigint primary key, epoch int, worker int, ended_at timestamptz, error text)
"""
# With the keyset hint, as Shoal: without it the loop would be slowed down by the dead rows it leaves behind.
CLAIM = """
with picked as materialized (
    select ctid, item from ready where queue = 1 and (priority, item) > (0, $1)
    order by priority, item limit $2 for update skip locked
), gone as (
    delete from ready r using picked p where r.ctid = p.ctid returning p.item
), leased as (
    insert into lease select item, 1, 7, clock_timestamp() from gone
)
select g.item, 1 as epoch, i.url from gone g join item i on i.id = g.item
"""
COMMIT = """
with input as (select * from unnest($1::bigint[], $2::int[], $3::text[]) as u(item, epoch, error)),
held as (
    delete from lease l using input i where l.item = i.item and l.epoch = i.epoch
    returning l.item, l.epoch, l.worker, i.error
)
insert into outcome select item, epoch, worker, clock_timestamp(), error from held returning item
"""


async def fill(url: str, urls: Iterable[str]) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(SCHEMA)
        await connection.copy_records_to_table("item", records=enumerate(urls, 1), columns=["id", "url"])
        await connection.execute("insert into ready select 1, 0, id from item order by id")
    finally:
        await connection.close()


class BareLoop:
    """One connection for claims and one for each commit in flight; a sequential loop needs only one."""

    def __init__(self, connections: Sequence[asyncpg.Connection], batch: int) -> None:
        self._claimer, *rest = connections
        self._committers = rest or [self._claimer]
        self._batch = batch
        self._after = 0

    async def claim(self) -> list[asyncpg.Record]:
        rows: list[asyncpg.Record] = await self._claimer.fetch(CLAIM, self._after, self._batch)
        if rows:
            self._after = max(row["item"] for row in rows)
        return rows

    async def commit(self, rows: Sequence[asyncpg.Record]) -> None:
        connection = self._committers.pop()
        try:
            ended = await connection.fetch(
                COMMIT, [row["item"] for row in rows], [row["epoch"] for row in rows], [None] * len(rows)
            )
        finally:
            self._committers.append(connection)
        if len(ended) != len(rows):
            raise RuntimeError(f"{len(rows)} items were handed in and {len(ended)} taken")
