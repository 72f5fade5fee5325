"""Throughput of 1 to 20 real workers on a site with latency, the ledger's share of the time, and a million URLs."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from urllib.parse import urlsplit

from bench.figures import Lines, Report, percentile
from bench.fleet_backlog import Backlog, work_on_backlog
from bench.fleet_shift import Shift, milliseconds, work_shift
from bench.fleet_site import LateSite
from bench.places import PostgresPlace
from bench.rounds import Contender, alternate, paired_ratio
from bench.session import Effort, Session
from tests.support import MissingPartError
from tests.support.pgbouncer import PgBouncer

PERCENTS = (50, 95, 99)
POOLED = ", PgBouncer"


@dataclass(frozen=True)
class Sizes:
    """`workers`: how many in each shift, `pooled`: those that also go through PgBouncer. `pages`: for each worker.
    `urls`, `crew`, `seconds`: so many URLs, so many workers that begin with them, and for how long.
    """

    workers: tuple[int, ...]
    pooled: tuple[int, ...]
    pages: int
    rounds: int
    urls: int
    crew: int = 8
    seconds: float = 30.0
    latency: float = 0.5
    concurrency: int = 10


SIZES: dict[Effort, Sizes] = {
    "quick": Sizes((1, 2, 4, 8, 20), pooled=(1, 20), pages=200, rounds=1, urls=200_000, seconds=10.0),
    "full": Sizes((1, 2, 4, 8, 20), pooled=(1, 8, 20), pages=400, rounds=2, urls=1_000_000),
}
Shifts = Mapping[str, Sequence[Shift]]


def run(session: Session) -> Report:
    return measure(session.postgres, session.size(SIZES))


def measure(place: PostgresPlace, sizes: Sizes) -> Report:
    report = Report(
        "fleet",
        "How does throughput on a site with latency grow with the workers, and what does the ledger cost?",
        {name: getattr(sizes, name) for name in Sizes.__dataclass_fields__},
    )
    with ExitStack() as stack:
        site = stack.enter_context(LateSite(sizes.latency))
        bouncer = None
        try:
            bouncer = stack.enter_context(PgBouncer(place.server)) if sizes.pooled else None
        except MissingPartError as missing:
            report.notes.append(f"Nothing was measured through PgBouncer, because {missing}.")
        shifts = _take_turns(place, site, sizes, bouncer)
        backlog = work_on_backlog(
            place, site, urls=sizes.urls, workers=sizes.crew, concurrency=sizes.concurrency, seconds=sizes.seconds
        )
    _tell(report, shifts, sizes)
    _tell_backlog(report, backlog, sizes)
    _judge(report, shifts, backlog, sizes)
    report.notes.append(_where_cores_end(shifts, sizes))
    report.plots.append(_plot(shifts, sizes))
    return report


def _take_turns(
    place: PostgresPlace, site: LateSite, sizes: Sizes, bouncer: PgBouncer | None
) -> dict[str, list[Shift]]:
    shifts: dict[str, list[Shift]] = {}

    def contender(name: str, count: int, by: Callable[[str], str]) -> Contender:
        def once() -> float:
            with place.fresh() as ledger:
                shift = work_shift(ledger, site, workers=count, concurrency=sizes.concurrency, pages=sizes.pages, by=by)
            shifts.setdefault(name, []).append(shift)
            return shift.rate

        return once

    contenders = {_name(count): contender(_name(count), count, lambda url: url) for count in sizes.workers}
    if bouncer is not None:
        url_of = bouncer.url
        for count in sizes.pooled:
            name = _name(count) + POOLED
            contenders[name] = contender(name, count, lambda url: url_of(urlsplit(url).path.removeprefix("/")))
    alternate(contenders, sizes.rounds)
    return {name: shifts[name] for name in contenders}


def _name(count: int) -> str:
    return f"{count} worker{'' if count == 1 else 's'}"


def _limit(workers: int, sizes: Sizes) -> float:
    """Pages per second if nothing but the site's latency took time."""
    return workers * sizes.concurrency / sizes.latency


def _database_ms(shift: Shift) -> float:
    return 1_000 * shift.cores.database / shift.rate


def _tell(report: Report, shifts: Shifts, sizes: Sizes) -> None:
    of: Callable[[Shift], float]
    for unit, of in {
        "pages/s": lambda shift: shift.rate,
        "pages/s, first request to last answer": lambda shift: shift.whole_rate,
        "of workers x concurrency / latency": lambda shift: shift.rate / _limit(shift.workers, sizes),
        "of a worker's time with a claim or commit under way": lambda shift: shift.ledger_share,
        "cores for the workers": lambda shift: shift.cores.crew,
        "cores for the database": lambda shift: shift.cores.database,
        "cores for the site": lambda shift: shift.cores.site,
        "ms of the database's processor a page": _database_ms,
    }.items():
        for name, taken in shifts.items():
            report.add(name, unit, [of(shift) for shift in taken])
    for kind in ("claim", "commit"):
        for percent in PERCENTS:
            for name, taken in shifts.items():
                samples = [percentile(milliseconds(shift.notes, kind), percent) for shift in taken]
                report.add(name, f"ms, {kind} p{percent}", samples)


def _tell_backlog(report: Report, backlog: Backlog, sizes: Sizes) -> None:
    name = f"{backlog.urls:,} URLs"
    report.add(f"{name}: shoal enqueue", "s", [backlog.enqueue_seconds])
    report.add(f"{name}: shoal enqueue", "URLs/s", [backlog.urls / backlog.enqueue_seconds])
    report.add(f"{name}: shoal enqueue", "s of the database's processor", [backlog.enqueue_database_seconds])
    name += f", {_name(sizes.crew)}"
    report.add(f"{name}: from their start to the first page", "s", [backlog.first_page])
    report.add(f"{name}: from their start until all work", "s", [backlog.all_at_work])
    report.add(name, "pages/s", [backlog.rate])
    report.add(name, "cores for the workers", [backlog.cores.crew])
    report.add(name, "cores for the database", [backlog.cores.database])
    for kind in ("claim", "commit"):
        for percent in PERCENTS:
            report.add(name, f"ms, {kind} p{percent}", [percentile(milliseconds(backlog.notes, kind), percent)])


def _judge(report: Report, shifts: Shifts, backlog: Backlog, sizes: Sizes) -> None:
    one = [shift.rate for shift in shifts[_name(1)]]
    for name, taken in shifts.items():
        times = taken[0].workers
        if times > 1:
            ratio = paired_ratio([shift.rate / times for shift in taken], one)
            report.target(f"{name} / {times} x 1 worker", ratio, at_least=0.9)
    last = shifts[_name(sizes.workers[-1])]
    share = statistics.median(shift.rate / _limit(shift.workers, sizes) for shift in last)
    report.target(f"{_name(sizes.workers[-1])}: share of workers x concurrency / latency", share, at_least=0.9)
    cost = statistics.median(map(_database_ms, last))
    report.target(f"{_name(sizes.workers[-1])}: ms of the database's processor a page", cost, at_most=0.4)
    under_way = statistics.median(shift.ledger_share for shift in last)
    report.target(f"{_name(sizes.workers[-1])}: a worker's time with a claim or commit", under_way, at_most=0.25)
    for name, taken in shifts.items():
        if taken[0].workers == sizes.crew and not name.endswith(POOLED):
            few = percentile([ms for shift in taken for ms in milliseconds(shift.notes, "claim")], 95)
            many = percentile(milliseconds(backlog.notes, "claim"), 95)
            claim = f"{name}: claim p95 with {sizes.urls:,} / {sizes.crew * sizes.pages:,} waiting"
            report.target(claim, many / few, at_most=1.5)
    report.target(f"{sizes.urls:,} URLs: seconds from start to the first page", backlog.first_page, at_most=5)


def _where_cores_end(shifts: Shifts, sizes: Sizes) -> str:
    """Cores grow with pages, so the largest shift says how many workers would fill the machine."""
    shift = shifts[_name(sizes.workers[-1])][-1]
    cores = os.cpu_count() or 1
    used = shift.cores
    per_page = 1000 * used.total / shift.whole_rate
    return (
        f"{_name(shift.workers)} used {used.total:.2f} of {cores} cores: themselves {used.crew:.2f}, the database "
        f"{used.database:.2f}, the site {used.site:.2f}. That is {per_page:.1f} ms of processor "
        f"a page, so these cores are the limit from {cores * shift.whole_rate / used.total:.0f} pages/s on, with "
        f"{cores * shift.workers / used.total:.0f} workers of this kind."
    )


def _plot(shifts: Shifts, sizes: Sizes) -> Lines:
    def line(ending: str) -> tuple[tuple[float, float], ...]:
        return tuple(
            (float(taken[0].workers), statistics.median(shift.rate for shift in taken))
            for name, taken in shifts.items()
            if name.endswith(POOLED) == bool(ending)
        )

    series = [("PostgreSQL", line("")), ("through PgBouncer", line(POOLED))]
    series.append(("workers x concurrency / latency", tuple((float(n), _limit(n, sizes)) for n in sizes.workers)))
    title = f"Workers on a site that answers after about {sizes.latency:g} s, {sizes.concurrency} pages at once each"
    return Lines(title, "workers", "pages/s", tuple((name, points) for name, points in series if points))
