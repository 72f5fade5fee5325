"""asyncpg and psycopg 3 on the same statements: claim, commit, COPY and array parameters. See docs/design/driver.md."""

from __future__ import annotations

import asyncio
import re
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import cycle
from typing import Any, Protocol

import asyncpg
import psycopg

from bench.bare_postgres import CLAIM, COMMIT, SCHEMA
from bench.consumer import BATCH, urls
from bench.figures import Report
from bench.session import Effort, Session

ITEMS: dict[Effort, int] = {"quick": 200_000, "full": 1_000_000}
CHUNK = 2_500
ARRAYS = "select count(*) from unnest($1::bigint[], $2::text[], $3::text[]) as u(a, b, c)"
Timings = dict[str, dict[str, list[float]]]
"""Step, then variant, then seconds per row of every turn."""


class Driver(Protocol):
    async def script(self, sql: str) -> None: ...

    async def copy(self, rows: Sequence[tuple[int, str]]) -> None: ...

    async def fetch(self, sql: str, *args: object) -> Sequence[Any]: ...

    async def close(self) -> None: ...


@dataclass
class Asyncpg:
    connection: asyncpg.Connection

    @classmethod
    async def connect(cls, url: str, *, prepared: bool) -> Asyncpg:
        return cls(await asyncpg.connect(url, statement_cache_size=100 if prepared else 0))

    async def script(self, sql: str) -> None:
        await self.connection.execute(sql)

    async def copy(self, rows: Sequence[tuple[int, str]]) -> None:
        await self.connection.copy_records_to_table("item", records=rows, columns=["id", "url"])

    async def fetch(self, sql: str, *args: object) -> Sequence[Any]:
        rows: list[asyncpg.Record] = await self.connection.fetch(sql, *args)
        return rows

    async def close(self) -> None:
        await self.connection.close()


@dataclass
class Psycopg:
    connection: psycopg.AsyncConnection[Any]
    prepared: bool

    @classmethod
    async def connect(cls, url: str, *, prepared: bool) -> Psycopg:
        return cls(await psycopg.AsyncConnection.connect(url, autocommit=True, prepare_threshold=None), prepared)

    async def script(self, sql: str) -> None:
        await self.connection.execute(sql)

    async def copy(self, rows: Sequence[tuple[int, str]]) -> None:
        statement = "copy item (id, url) from stdin (format binary)"
        async with self.connection.cursor() as cursor, cursor.copy(statement) as copy:
            copy.set_types(["int8", "text"])
            for row in rows:
                await copy.write_row(row)

    async def fetch(self, sql: str, *args: object) -> Sequence[Any]:
        async with self.connection.cursor(binary=True) as cursor:
            await cursor.execute(_with_percent(sql), args, prepare=self.prepared)
            rows: Sequence[Any] = await cursor.fetchall()
            return rows

    async def close(self) -> None:
        await self.connection.close()


@cache
def _with_percent(sql: str) -> str:
    return re.sub(r"\$\d+", "%s", sql)


def run(session: Session) -> Report:
    items = session.size(ITEMS)
    report = Report(
        "drivers",
        "Which PostgreSQL driver is faster at what we do?",
        {"items": items, "batch": BATCH, "rows_per_copy_and_array": CHUNK},
    )
    with session.postgres.empty() as url:
        timings = asyncio.run(_measure(url, items))
    for step, variants in timings.items():
        for name, seconds in variants.items():
            report.add(f"{step}: {name}", "us/row", [1e6 * second for second in seconds])
        for how in ("prepared", "not prepared"):
            ratio = statistics.median(variants[f"psycopg, {how}"]) / statistics.median(variants[f"asyncpg, {how}"])
            report.notes.append(f"{step}: asyncpg is {ratio:.2f} times as fast as psycopg, {how}")
    report.bars("Drivers: less is better", "us/row")
    return report


async def _measure(url: str, items: int) -> Timings:
    """All variants are connected at once and take turns, batch by batch, on the same tables."""
    drivers: dict[str, Driver] = {}
    for how, prepared in (("prepared", True), ("not prepared", False)):
        drivers[f"asyncpg, {how}"] = await Asyncpg.connect(url, prepared=prepared)
        drivers[f"psycopg, {how}"] = await Psycopg.connect(url, prepared=prepared)
    timings: Timings = {step: {name: [] for name in drivers} for step in ("COPY", "claim", "commit", "arrays")}
    try:
        turns = cycle(drivers.items())
        first = next(iter(drivers.values()))
        await first.script(SCHEMA)
        rows = list(enumerate(urls(items), 1))
        for chunk, (name, driver) in zip(_chunks(rows), turns, strict=False):
            with _timed(timings["COPY"][name], len(chunk)):
                await driver.copy(chunk)
        await first.script("insert into ready select 1, 0, id from item order by id")
        await first.script("vacuum analyze")
        await _claim_and_commit(turns, items, timings)
        for chunk, (name, driver) in zip(_chunks(rows), turns, strict=False):
            columns = [n for n, _ in chunk], [url for _, url in chunk], [None] * len(chunk)
            with _timed(timings["arrays"][name], len(chunk)):
                await driver.fetch(ARRAYS, *columns)
    finally:
        for driver in drivers.values():
            await driver.close()
    return timings


async def _claim_and_commit(turns: Iterator[tuple[str, Driver]], items: int, timings: Timings) -> None:
    after = done = 0
    while done < items:
        name, driver = next(turns)
        with _timed(timings["claim"][name], BATCH):
            claimed = await driver.fetch(CLAIM, after, BATCH)
        ids = [row[0] for row in claimed]
        after = max(ids)
        with _timed(timings["commit"][name], BATCH):
            ended = await driver.fetch(COMMIT, ids, [1] * len(ids), [None] * len(ids))
        if len(ended) != BATCH:
            raise RuntimeError(f"{name} committed {len(ended)} of {BATCH} items")
        done += BATCH


@contextmanager
def _timed(samples: list[float], rows: int) -> Iterator[None]:
    began = time.perf_counter()
    yield
    samples.append((time.perf_counter() - began) / rows)


def _chunks(rows: Sequence[tuple[int, str]]) -> Iterator[Sequence[tuple[int, str]]]:
    return (rows[start : start + CHUNK] for start in range(0, len(rows), CHUNK))
