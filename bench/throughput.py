"""No-op items through claim + commit in one process: Shoal, bare loops, PgQueuer, Procrastinate."""

from __future__ import annotations

import asyncio

from bench import bare_postgres, bare_sqlite, consumer, peers
from bench.figures import Report
from bench.places import Place, PostgresPlace
from bench.rounds import Contender, alternate, paired_ratio
from bench.session import Session

ITEMS = {"quick": 60_000, "full": 300_000}
PGQUEUER_ITEMS = {"quick": 30_000, "full": 100_000}
PROCRASTINATE_ITEMS = {"quick": 600, "full": 2_000}


def run(session: Session) -> Report:
    items, pgqueuer, procrastinate = (
        session.size(sizes) for sizes in (ITEMS, PGQUEUER_ITEMS, PROCRASTINATE_ITEMS)
    )
    report = Report(
        "throughput",
        "How many no-op items per second go through claim and commit in one process?",
        {"items": items, "batch": consumer.BATCH, "pgqueuer_items": pgqueuer, "procrastinate_items": procrastinate},
    )
    place = session.postgres
    contenders: dict[str, Contender] = {
        "shoal, sequential": lambda: _shoal(place, items, ahead=False),
        "bare SQL, sequential": lambda: _bare(place, items, ahead=False),
        "shoal, as a worker": lambda: _shoal(place, items, ahead=True),
        "bare SQL, pipelined": lambda: _bare(place, items, ahead=True),
        "PgQueuer": lambda: _pgqueuer(place, pgqueuer),
        "Procrastinate": lambda: _procrastinate(place, procrastinate),
    }
    sqlite = session.sqlite
    if sqlite is not None:
        contenders["shoal on SQLite, sequential"] = lambda: _shoal(sqlite, items, ahead=False)
        contenders["shoal on SQLite, as a worker"] = lambda: _shoal(sqlite, items, ahead=True)
        contenders["bare sqlite3"] = lambda: _bare_sqlite(session, items)
    else:
        report.notes.append("SQLite skipped: there is no SQLite ledger yet.")

    rates = alternate(contenders, session.rounds)
    for name, samples in rates.items():
        report.add(name, "items/s", samples)
    ours = rates["shoal, as a worker"]
    report.target(
        "sequential: shoal / bare SQL",
        paired_ratio(rates["shoal, sequential"], rates["bare SQL, sequential"]),
        at_least=0.7,
    )
    report.target("as a worker: shoal / bare SQL", paired_ratio(ours, rates["bare SQL, pipelined"]), at_least=0.7)
    report.target("shoal / PgQueuer", paired_ratio(ours, rates["PgQueuer"]), at_least=2)
    report.target("shoal / Procrastinate", paired_ratio(ours, rates["Procrastinate"]), at_least=80)
    if sqlite is not None:
        on_sqlite = rates["shoal on SQLite, as a worker"]
        report.target("shoal on SQLite / on PostgreSQL", paired_ratio(on_sqlite, ours), at_least=3)
        report.target(
            "shoal on SQLite / bare sqlite3",
            paired_ratio(rates["shoal on SQLite, sequential"], rates["bare sqlite3"]),
            at_least=0.5,
        )
    report.bars("No-op items through claim + commit", "items/s")
    return report


def _shoal(place: Place, items: int, *, ahead: bool) -> float:
    with place.fresh() as address:
        asyncio.run(consumer.fill(address, consumer.urls(items)))
        place.settle(address)
        return items / asyncio.run(consumer.consume(address, items, ahead=ahead))


def _bare(place: PostgresPlace, items: int, *, ahead: bool) -> float:
    with place.empty() as url:
        asyncio.run(bare_postgres.fill(url, consumer.urls(items)))
        place.settle(url)
        return items / asyncio.run(bare_postgres.consume(url, items, ahead=ahead, batch=consumer.BATCH))


def _bare_sqlite(session: Session, items: int) -> float:
    with session.sqlite_files.empty() as path:
        bare_sqlite.fill(path, consumer.urls(items))
        return items / bare_sqlite.consume(path, items, consumer.BATCH)


def _pgqueuer(place: PostgresPlace, items: int) -> float:
    with place.empty() as url:
        return items / peers.pgqueuer_seconds(url, items)


def _procrastinate(place: PostgresPlace, items: int) -> float:
    with place.empty() as url:
        return items / peers.procrastinate_seconds(url, items)
