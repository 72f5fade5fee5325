"""No-op items through claim + commit in one process: Shoal, bare loops, PgQueuer, Procrastinate."""

from __future__ import annotations

import asyncio
import statistics
from contextlib import ExitStack

from bench import bare_postgres, bare_sqlite, consumer, peers
from bench.figures import Report
from bench.laps import Lap, LapTrack
from bench.places import Place, PostgresPlace, SqlitePlace
from bench.rounds import Contender, alternate, paired_ratio
from bench.session import Effort, Session

# About a second: what a worker does once a second (upkeep, looking for queues) must weigh what it weighs in real life.
LAP_ITEMS: dict[Effort, int] = {"quick": 20_000, "full": 50_000}
LAPS_PER_ROUND = 3
PGQUEUER_ITEMS: dict[Effort, int] = {"quick": 40_000, "full": 100_000}
PROCRASTINATE_ITEMS: dict[Effort, int] = {"quick": 600, "full": 2_000}


def run(session: Session) -> Report:
    lap, pgqueuer, procrastinate = (session.size(s) for s in (LAP_ITEMS, PGQUEUER_ITEMS, PROCRASTINATE_ITEMS))
    # One lap more than is counted: the first warms connections, plans and caches.
    items = lap * (LAPS_PER_ROUND * session.rounds + 1)
    report = Report(
        "throughput",
        "How many no-op items per second go through claim and commit in one process?",
        {"items": items, "lap": lap, "batch": consumer.BATCH, "pgqueuer": pgqueuer, "procrastinate": procrastinate},
    )
    rates: dict[str, list[float]] = {}
    by_round: dict[str, list[float]] = {}
    with ExitStack() as stack, LapTrack() as track:
        laps = _on_postgres(session.postgres, items, stack, track)
        laps |= _on_sqlite(session.sqlite, items, stack, track)
        contenders: dict[str, Contender] = {name: _rate(go, lap) for name, go in laps.items()}
        whole: dict[str, Contender] = {
            "PgQueuer": lambda: _pgqueuer(session.postgres, pgqueuer),
            "Procrastinate": lambda: _procrastinate(session.postgres, procrastinate),
        }
        alternate(contenders, 1)
        for _ in range(session.rounds):
            for name, samples in (alternate(contenders, LAPS_PER_ROUND) | alternate(whole, 1)).items():
                rates.setdefault(name, []).extend(samples)
                by_round.setdefault(name, []).append(statistics.median(samples))
    for name, samples in rates.items():
        report.add(name, "items/s", samples)
    _compare(report, rates, by_round)
    report.bars("No-op items through claim + commit", "items/s")
    return report


def _compare(report: Report, rates: dict[str, list[float]], by_round: dict[str, list[float]]) -> None:
    def compare(claim: str, ours: str, theirs: str, wanted: float) -> None:
        if ours in rates:
            samples = rates if len(rates[ours]) == len(rates[theirs]) else by_round
            report.target(claim, paired_ratio(samples[ours], samples[theirs]), at_least=wanted)

    compare("sequential: shoal / bare SQL", "shoal, sequential", "bare SQL, sequential", 0.7)
    compare("as a worker: shoal / bare SQL", "shoal, as a worker", "bare SQL, pipelined", 0.7)
    compare("shoal / PgQueuer", "shoal, as a worker", "PgQueuer", 2)
    compare("shoal / Procrastinate", "shoal, as a worker", "Procrastinate", 80)
    compare("shoal on SQLite / on PostgreSQL", "shoal on SQLite, as a worker", "shoal, as a worker", 3)
    compare("sequential: shoal on SQLite / bare sqlite3", "shoal on SQLite, sequential", "bare sqlite3", 0.5)
    if "bare sqlite3" not in rates:
        report.notes.append("SQLite skipped: there is no SQLite ledger yet.")


def _on_postgres(place: PostgresPlace, items: int, stack: ExitStack, track: LapTrack) -> dict[str, Lap]:
    ours = _filled(place, items, stack)
    bare = stack.enter_context(place.empty())
    asyncio.run(bare_postgres.fill(bare, consumer.urls(items)))
    place.settle(bare)
    copies = [stack.enter_context(place.copy(address)) for address in (ours, bare)]
    return {
        "shoal, sequential": track.shoal(ours, ahead=False),
        "bare SQL, sequential": track.bare_postgres(bare, ahead=False),
        "shoal, as a worker": track.shoal(copies[0], ahead=True),
        "bare SQL, pipelined": track.bare_postgres(copies[1], ahead=True),
    }


def _on_sqlite(place: SqlitePlace, items: int, stack: ExitStack, track: LapTrack) -> dict[str, Lap]:
    ours = _filled(place, items, stack)
    copy = stack.enter_context(place.copy(ours))
    bare = stack.enter_context(place.empty())
    bare_sqlite.fill(bare, consumer.urls(items))
    return {
        "shoal on SQLite, sequential": track.shoal(ours, ahead=False),
        "shoal on SQLite, as a worker": track.shoal(copy, ahead=True),
        "bare sqlite3": track.bare_sqlite(bare),
    }


def _filled(place: Place, items: int, stack: ExitStack) -> str:
    address = stack.enter_context(place.fresh())
    asyncio.run(consumer.fill(address, consumer.urls(items)))
    place.settle(address)
    return address


def _rate(lap: Lap, items: int) -> Contender:
    return lambda: items / lap(items)


def _pgqueuer(place: PostgresPlace, items: int) -> float:
    with place.empty() as url:
        return items / peers.pgqueuer_seconds(url, items)


def _procrastinate(place: PostgresPlace, items: int) -> float:
    with place.empty() as url:
        return items / peers.procrastinate_seconds(url, items)
