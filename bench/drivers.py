"""asyncpg and psycopg 3 on the same statements: claim, commit, COPY and array parameters. See docs/design/driver.md."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import asyncpg
import psycopg

from bench.bare_postgres import CLAIM, COMMIT, SCHEMA
from bench.consumer import BATCH, urls
from bench.figures import Report
from bench.places import PostgresPlace
from bench.session import Effort, Session

ITEMS: dict[Effort, int] = {"quick": 60_000, "full": 300_000}
ARRAY_ROWS = 10_000
ARRAYS = "select count(*) from unnest($1::bigint[], $2::text[], $3::text[]) as u(a, b, c)"
STEPS = ("COPY", "claim", "commit", "arrays")


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
            await cursor.execute(re.sub(r"\$\d+", "%s", sql), args, prepare=self.prepared)
            rows: Sequence[Any] = await cursor.fetchall()
            return rows

    async def close(self) -> None:
        await self.connection.close()


def run(session: Session) -> Report:
    items = session.size(ITEMS)
    report = Report("drivers", "Which PostgreSQL driver is faster at what we do?", {"items": items, "batch": BATCH})
    makers = {"asyncpg": Asyncpg.connect, "psycopg": Psycopg.connect}
    variants = [(name, prepared) for name in makers for prepared in (True, False)]
    samples: dict[tuple[str, str], list[float]] = {}
    for turn in range(session.rounds):
        for name, prepared in reversed(variants) if turn % 2 else variants:
            rates = asyncio.run(_measure(session.postgres, makers[name], items, prepared=prepared))
            label = f"{name}, {'prepared' if prepared else 'not prepared'}"
            for step, rate in rates.items():
                samples.setdefault((step, label), []).append(rate)
    for step in STEPS:
        for name, prepared in variants:
            label = f"{name}, {'prepared' if prepared else 'not prepared'}"
            report.add(f"{step}: {label}", "rows/s", samples[step, label])
    for step in STEPS:
        ours, theirs = samples[step, "asyncpg, prepared"], samples[step, "psycopg, prepared"]
        ratios = sorted(a / b for a, b in zip(ours, theirs, strict=True))
        report.notes.append(f"{step}: asyncpg / psycopg, both prepared: {ratios[len(ratios) // 2]:.2f}")
    report.bars("Drivers", "rows/s")
    return report


async def _measure(place: PostgresPlace, connect: Any, items: int, *, prepared: bool) -> dict[str, float]:
    with place.empty() as url:
        driver: Driver = await connect(url, prepared=prepared)
        try:
            return await _rates(driver, items)
        finally:
            await driver.close()


async def _rates(driver: Driver, items: int) -> dict[str, float]:
    rows = list(enumerate(urls(items), 1))
    await driver.script(SCHEMA)
    began = time.perf_counter()
    await driver.copy(rows)
    seconds = {"COPY": time.perf_counter() - began, "claim": 0.0, "commit": 0.0}
    await driver.script("insert into ready select 1, 0, id from item order by id")
    await driver.script("vacuum analyze")

    after = 0
    while True:
        began = time.perf_counter()
        claimed = await driver.fetch(CLAIM, after, BATCH)
        seconds["claim"] += time.perf_counter() - began
        if not claimed:
            break
        ids = [row[0] for row in claimed]
        after = max(ids)
        began = time.perf_counter()
        await driver.fetch(COMMIT, ids, [1] * len(ids), [None] * len(ids))
        seconds["commit"] += time.perf_counter() - began

    began = time.perf_counter()
    for chunk in _chunks(rows):
        await driver.fetch(ARRAYS, [n for n, _ in chunk], [url for _, url in chunk], [None] * len(chunk))
    seconds["arrays"] = time.perf_counter() - began
    return {step: items / spent for step, spent in seconds.items()}


def _chunks(rows: Sequence[tuple[int, str]]) -> Iterator[Sequence[tuple[int, str]]]:
    return (rows[start : start + ARRAY_ROWS] for start in range(0, len(rows), ARRAY_ROWS))
