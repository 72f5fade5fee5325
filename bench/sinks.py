"""Records into a PostgreSQL table by a sink, beside bare COPY of the same rows; and what a dead sink costs a worker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any

import asyncpg
import msgspec

from bench.figures import Report
from bench.places import Place, open_ledger
from bench.rounds import Contender, alternate, paired_ratio
from bench.session import Effort, Session
from shoal.config.settings import Settings
from shoal.ledger.protocols import Ledger
from shoal.model.item import NewItem
from shoal.model.run import RunSpec, StageSpec
from shoal.model.worker import Scope, WorkerSpec
from shoal.sinks.thread import SinkThread
from shoal.testing.harness import done
from shoal.wiring import connect_ledger
from tests.support.server import free_port
from tests.support.sinks import SilentLog, close_deliveries, deliver_all, delivery_to, sink_config

RECORDS: dict[Effort, int] = {"quick": 40_000, "full": 1_000_000}
COMMITTED: dict[Effort, int] = {"quick": 10_000, "full": 100_000}
BATCH = 200
WORKER = "bench"
COLUMNS = (
    "shoal_key",
    "shoal_id",
    "shoal_run",
    "shoal_item",
    "shoal_n",
    "shoal_url",
    "sku",
    "name",
    "price",
    "new",
    "tags",
)
TABLE = """
drop table if exists bare_rows;
create table bare_rows (shoal_key text primary key, shoal_id text, shoal_run text, shoal_item bigint, shoal_n integer,
    shoal_url text, sku bigint, name text, price double precision, new boolean, tags jsonb)
"""


def run(session: Session) -> Report:
    records = session.size(RECORDS)
    report = Report("sinks", "How fast do records reach a table?", {"records": records, "batch": 5_000})
    with session.postgres.empty() as target, _filled(session.places, records) as ledgers:
        rows = asyncio.run(_rows(ledgers[0]))
        contenders: dict[str, Contender] = {
            f"sink, ledger on {place.name}": partial(_sink_rate, address, target, records)
            for place, address in zip(session.places, ledgers, strict=True)
        }
        contenders["bare COPY, one transaction"] = partial(_copy_rate, target, rows, len(rows))
        contenders["bare COPY, 5,000 rows a transaction"] = partial(_copy_rate, target, rows, 5_000)
        rates = alternate(contenders, session.rounds)
    for name, samples in rates.items():
        report.add(name, "records/s", samples)
    for place in session.places:
        for bare in ("bare COPY, one transaction", "bare COPY, 5,000 rows a transaction"):
            ratio = paired_ratio(rates[f"sink, ledger on {place.name}"], rates[bare])
            report.target(f"{place.name}: sink / {bare}", ratio, at_least=0.4)
    report.bars("Records into a table", "records/s")
    _dead_sink(session, report)
    return report


def _dead_sink(session: Session, report: Report) -> None:
    items = session.size(COMMITTED)
    for place in session.places:
        rates = alternate(
            {
                "without a sink": partial(_commit_rate, place, items, with_sink=False),
                "with a dead sink": partial(_commit_rate, place, items, with_sink=True),
            },
            session.rounds,
        )
        for name, samples in rates.items():
            report.add(f"claim + commit on {place.name}, {name}", "items/s", samples)
        ratio = paired_ratio(rates["with a dead sink"], rates["without a sink"])
        report.target(f"{place.name}: claim + commit with a dead sink / without", ratio, at_least=0.95)


@contextmanager
def _filled(places: Sequence[Place], records: int) -> Iterator[list[str]]:
    """A ledger with records in each place."""
    if not places:
        yield []
        return
    with places[0].fresh() as address, _filled(places[1:], records) as others:
        asyncio.run(_fill(address, records))
        places[0].settle(address)
        yield [address, *others]


@asynccontextmanager
async def _opened(address: str) -> AsyncIterator[Ledger]:
    ledger = await open_ledger(address)
    try:
        yield ledger
    finally:
        await ledger.close()


async def _fill(address: str, items: int) -> None:
    async with _opened(address) as ledger:
        await ledger.workers.register(WorkerSpec(id=WORKER, node="bench", pid=1, lease_seconds=3_600))
        run = await ledger.runs.create(RunSpec(scraper="shop", stages=(StageSpec("page"),)))
        await ledger.intake.enqueue(run.id, (NewItem(url=f"https://example.com/p/{n}") for n in range(items)))
        at = 0
        while claimed := await ledger.claims.claim(WORKER, Scope(), BATCH):
            await ledger.commits.commit(WORKER, [done(item, _record(at + n)) for n, item in enumerate(claimed)])
            at += len(claimed)


def _record(n: int) -> str:
    record = {
        "sku": n,
        "name": f"A thing of some length, number {n}",
        "price": n / 4,
        "new": n % 2 == 0,
        "tags": ["a", n],
    }
    return msgspec.json.encode(record).decode()


async def _sink(address: str, target: str) -> float:
    connection = await asyncpg.connect(target)
    await connection.execute("drop table if exists shop_page")
    await connection.close()
    config = sink_config(kind="postgresql", url=target)
    async with _opened(address) as ledger:
        await ledger.changes.open_cursor(config.cursor)
        await ledger.changes.reset(config.cursor)
        began = time.perf_counter()
        await deliver_all(delivery_to(config), ledger)
        seconds = time.perf_counter() - began
        await close_deliveries()
    return seconds


async def _rows(address: str) -> list[tuple[Any, ...]]:
    """The rows as the sink would write them."""
    found: list[tuple[Any, ...]] = []
    async with _opened(address) as ledger:
        page = await ledger.changes.read(limit=2_000)
        while True:
            for record in page.records:
                value = msgspec.json.decode(record.record)
                own = (record.id, record.id, record.run_id, record.item, record.n, record.url)
                tags = msgspec.json.encode(value["tags"]).decode()
                found.append((*own, value["sku"], value["name"], value["price"], value["new"], tags))
            if not page.more:
                return found
            page = await ledger.changes.read(page.end, limit=2_000)


async def _copy(target: str, rows: Sequence[tuple[Any, ...]], batch: int) -> float:
    connection = await asyncpg.connect(target)
    try:
        await connection.execute(TABLE)
        began = time.perf_counter()
        for at in range(0, len(rows), batch):
            await connection.copy_records_to_table("bare_rows", records=rows[at : at + batch], columns=COLUMNS)
        return time.perf_counter() - began
    finally:
        await connection.close()


def _sink_rate(address: str, target: str, records: int) -> float:
    return records / asyncio.run(_sink(address, target))


def _copy_rate(target: str, rows: Sequence[tuple[Any, ...]], batch: int) -> float:
    return len(rows) / asyncio.run(_copy(target, rows, batch))


def _commit_rate(place: Place, items: int, *, with_sink: bool) -> float:
    with place.fresh() as address:
        return items / asyncio.run(_commit(address, items, with_sink=with_sink))


async def _commit(address: str, items: int, *, with_sink: bool) -> float:
    """A process that claims and commits, with a thread beside it whose sink refuses every connection."""
    dead = sink_config(kind="webhook", url=f"http://127.0.0.1:{free_port()}/")
    settings = Settings(ledger=address, sinks={dead.name: dead})
    thread = SinkThread(lambda: connect_ledger(settings), settings, log=SilentLog())
    if with_sink:
        thread.start()
    began = time.perf_counter()
    await _fill(address, items)
    seconds = time.perf_counter() - began
    if with_sink:
        await thread.close()
    return seconds
