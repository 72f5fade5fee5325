"""No-op items through claim + commit in one process: Shoal, bare loops, PgQueuer, Procrastinate."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

from bench import bare_postgres, bare_sqlite, consumer, peers
from bench.figures import Report
from bench.places import Place, PostgresPlace, SqlitePlace
from bench.rounds import Contender, alternate, paired_ratio
from bench.session import Effort, Session

ITEMS: dict[Effort, int] = {"quick": 60_000, "full": 300_000}
PGQUEUER_ITEMS: dict[Effort, int] = {"quick": 40_000, "full": 100_000}
PROCRASTINATE_ITEMS: dict[Effort, int] = {"quick": 600, "full": 2_000}


def run(session: Session) -> Report:
    items, pgqueuer, procrastinate = (session.size(s) for s in (ITEMS, PGQUEUER_ITEMS, PROCRASTINATE_ITEMS))
    report = Report(
        "throughput",
        "How many no-op items per second go through claim and commit in one process?",
        {"items": items, "batch": consumer.BATCH, "pgqueuer_items": pgqueuer, "procrastinate_items": procrastinate},
    )
    with ExitStack() as stack:
        contenders = _on_postgres(session.postgres, items, stack)
        contenders["PgQueuer"] = lambda: _pgqueuer(session.postgres, pgqueuer)
        contenders["Procrastinate"] = lambda: _procrastinate(session.postgres, procrastinate)
        if session.sqlite is not None:
            contenders |= _on_sqlite(session.sqlite, items, stack)
        else:
            report.notes.append("SQLite skipped: there is no SQLite ledger yet.")
        rates = alternate(contenders, session.rounds)
    for name, samples in rates.items():
        report.add(name, "items/s", samples)

    def compare(claim: str, ours: str, theirs: str, wanted: float) -> None:
        report.target(claim, paired_ratio(rates[ours], rates[theirs]), at_least=wanted)

    compare("sequential: shoal / bare SQL", "shoal, sequential", "bare SQL, sequential", 0.7)
    compare("as a worker: shoal / bare SQL", "shoal, as a worker", "bare SQL, pipelined", 0.7)
    compare("shoal / PgQueuer", "shoal, as a worker", "PgQueuer", 2)
    compare("shoal / Procrastinate", "shoal, as a worker", "Procrastinate", 80)
    if session.sqlite is not None:
        compare("shoal on SQLite / on PostgreSQL", "shoal on SQLite, as a worker", "shoal, as a worker", 3)
        compare("sequential: shoal on SQLite / bare sqlite3", "shoal on SQLite, sequential", "bare sqlite3", 0.5)
    report.bars("No-op items through claim + commit", "items/s")
    return report


def _on_postgres(place: PostgresPlace, items: int, stack: ExitStack) -> dict[str, Contender]:
    ours = _filled(place, items, stack)
    bare = stack.enter_context(place.empty())
    asyncio.run(bare_postgres.fill(bare, consumer.urls(items)))
    place.settle(bare)
    return {
        "shoal, sequential": lambda: _shoal(place, ours, items, ahead=False),
        "bare SQL, sequential": lambda: _bare(place, bare, items, ahead=False),
        "shoal, as a worker": lambda: _shoal(place, ours, items, ahead=True),
        "bare SQL, pipelined": lambda: _bare(place, bare, items, ahead=True),
    }


def _on_sqlite(place: SqlitePlace, items: int, stack: ExitStack) -> dict[str, Contender]:
    ours = _filled(place, items, stack)
    bare = stack.enter_context(place.empty())
    bare_sqlite.fill(bare, consumer.urls(items))
    return {
        "shoal on SQLite, sequential": lambda: _shoal(place, ours, items, ahead=False),
        "shoal on SQLite, as a worker": lambda: _shoal(place, ours, items, ahead=True),
        "bare sqlite3": lambda: _bare_sqlite(place, bare, items),
    }


def _filled(place: Place, items: int, stack: ExitStack) -> str:
    address = stack.enter_context(place.fresh())
    asyncio.run(consumer.fill(address, consumer.urls(items)))
    place.settle(address)
    return address


def _shoal(place: Place, filled: str, items: int, *, ahead: bool) -> float:
    with place.copy(filled) as address:
        return items / asyncio.run(consumer.consume(address, items, ahead=ahead))


def _bare(place: PostgresPlace, filled: str, items: int, *, ahead: bool) -> float:
    with place.copy(filled) as url:
        return items / asyncio.run(bare_postgres.consume(url, items, ahead=ahead, batch=consumer.BATCH))


def _bare_sqlite(place: SqlitePlace, filled: str, items: int) -> float:
    with place.copy(filled) as path:
        return items / bare_sqlite.consume(path, items, consumer.BATCH)


def _pgqueuer(place: PostgresPlace, items: int) -> float:
    with place.empty() as url:
        return items / peers.pgqueuer_seconds(url, items)


def _procrastinate(place: PostgresPlace, items: int) -> float:
    with place.empty() as url:
        return items / peers.procrastinate_seconds(url, items)
