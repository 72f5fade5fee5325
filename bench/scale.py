"""What a page costs workers and database, by fleets of 1 to 100 workers; the model of `shoal plan` against them.

Some fleets give the constants of the model, others, of different shape, check it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

import msgspec

from bench.figures import Lines, Report
from bench.places import PostgresPlace
from bench.scale_calls import Calls, measure_calls
from bench.scale_fleet import Case, Fleet, Lanes, work_fleet
from bench.scale_model import COSTS, as_source, factor, fit, measured, predict
from bench.session import Effort, Session
from shoal.model.page_costs import MEASURED, PageCosts
from tests.support import MissingPartError
from tests.support.pgbouncer import PgBouncer

# The model is called right when no figure is further off than this; constants are called stale when one of them makes
# the cost of a measured fleet differ by more.
RIGHT, STALE = 1.5, 1.5
ROUNDS = 12
# Each kind of lane by two fleets of about as many pages a second: many workers with few each, one with many.
FITTED: dict[Lanes, tuple[Case, Case]] = {
    "none": (Case(10, 10, 0.5, idle=8.0), Case(1, 100, 0.5)),
    "hosts": (Case(10, 10, 0.5, "hosts", hosts=300), Case(1, 100, 0.5, "hosts", hosts=300)),
    "paced": (Case(10, 10, 0.5, "paced", hosts=600), Case(1, 100, 0.5, "paced", hosts=600)),
}
LARGE = Case(10, 10, 0.5, size=50_000)
POOLED = Case(10, 10, 0.5, pooled=True)
# None of these has the latency, the number of workers or the concurrency of one above.
CHECKS = (
    Case(16, 6, 1.0, "hosts", size=20_000, hosts=200),
    Case(4, 30, 1.0, "paced", hosts=500),
    Case(25, 8, 2.0, size=5_000, pooled=True),
)


@dataclass(frozen=True)
class Sizes:
    """`grown`: further fleets for the table, each also through PgBouncer. `seconds`: how long pages last, or `ROUNDS`
    times the latency.
    """

    grown: tuple[Case, ...] = ()
    checks: tuple[Case, ...] = CHECKS
    seconds: float = 8.0


# On two cores some 200 slow pages a second leave room, so that more workers get fewer pages each. Without latency the
# machine is the limit.
SLOW = tuple(Case(workers, at_once, 0.5) for workers, at_once in ((1, 10), (30, 3), (100, 1)))
FAST = tuple(Case(workers, 10, 0.0, pages_per_second=400) for workers in (1, 10))
SIZES: dict[Effort, Sizes] = {
    "quick": Sizes(),
    "full": Sizes((*SLOW, *FAST), (*CHECKS, Case(60, 4, 2.0, "hosts", hosts=400)), seconds=10.0),
}


def run(session: Session) -> Report:
    return measure(session.postgres, session.size(SIZES))


def measure(place: PostgresPlace, sizes: Sizes) -> Report:
    report = Report(
        "scale",
        "What does a page cost the database and the workers, and does the model of `shoal plan` predict it?",
        {"seconds_of_pages": sizes.seconds},
    )
    with ExitStack() as stack:
        try:
            bouncer = stack.enter_context(PgBouncer(place.server, max_client_conn=1_000))
        except MissingPartError as missing:
            bouncer = None
            report.notes.append(f"Nothing was measured through PgBouncer, because {missing}.")
        trial = _Trial(place, bouncer, sizes)
        calls, laned_calls = trial.calls(report)
        pairs = {kind: (trial.fleet(few), trial.fleet(many)) for kind, (few, many) in FITTED.items()}
        large = trial.fleet(LARGE)
        pooled = trial.fleet(POOLED) if bouncer is not None else None
        others = [trial.fleet(case) for case in _both_ways(sizes.grown) if bouncer or not case.pooled]
        checks = [trial.fleet(case) for case in sizes.checks if bouncer or not case.pooled]
    draw_conclusions(report, Measured(calls, laned_calls, pairs, large, pooled, others, checks))
    return report


@dataclass(frozen=True)
class Measured:
    """All that was measured. `laned_calls`: with hosts as lanes. `others`: fleets for the table only; `checks`: those
    that judge the model.
    """

    calls: Calls
    laned_calls: Calls
    pairs: Mapping[Lanes, tuple[Fleet, Fleet]]
    large: Fleet
    pooled: Fleet | None
    others: Sequence[Fleet]
    checks: Sequence[Fleet]


def draw_conclusions(report: Report, found: Measured) -> None:
    """The constants, how far the model is off with them, and how far those of the source are."""
    checks, pooled = found.checks, found.pooled
    costs = fit(found.pairs, found.large, pooled, found.calls, found.laned_calls, found.others)
    costs = msgspec.structs.replace(costs, error=_error(checks, costs))
    fleets = [fleet for pair in found.pairs.values() for fleet in pair]
    fleets += [found.large, *([pooled] if pooled else []), *found.others]
    _tell(report, [*fleets, *checks])
    _check(report, checks, costs)
    _compare(report, fleets[:6], costs)
    report.plots.append(_plot([*fleets, *checks]))
    source = as_source(costs)
    report.sizes["constants"] = msgspec.to_builtins(costs)
    print(f"\nThe constants of src/shoal/model/page_costs.py as measured now:\n\n{source}\n", flush=True)


class _Trial:
    def __init__(self, place: PostgresPlace, bouncer: PgBouncer | None, sizes: Sizes) -> None:
        self._place = place
        self._bouncer = bouncer
        self._sizes = sizes

    def fleet(self, case: Case) -> Fleet:
        bouncer = self._bouncer if case.pooled else None
        pid = None if bouncer is None else bouncer.pid
        case = replace(case, seconds=max(self._sizes.seconds, ROUNDS * case.latency))
        fleet = work_fleet(self._place, case, self._by(bouncer), pid)
        figures = ", ".join(f"{value:.3g} {name}" for name, value in measured(fleet).items())
        print(f"        {case.name}: {figures}", flush=True)
        return fleet

    def calls(self, report: Report) -> tuple[Calls, Calls]:
        """Single calls: without lanes, with lanes, through PgBouncer. Returns the first two."""
        plain = measure_calls(self._place, laned=False, by=self._by(None))
        laned = measure_calls(self._place, laned=True, by=self._by(None))
        ways = {"": plain, ", hosts as lanes": laned}
        if self._bouncer is not None:
            ways[", PgBouncer"] = measure_calls(self._place, laned=False, by=self._by(self._bouncer))
        for way, calls in ways.items():
            for cost in calls.costs:
                name = f"{cost.what}{f' of {cost.batch}' if cost.batch > 1 else ''}{way}"
                report.add(name, "microseconds of the database's processor an item", [1e6 * cost.database / cost.batch])
                report.add(name, "bytes of WAL an item", [cost.wal / cost.batch])
        for name, size in sorted(plain.tables.items(), key=lambda pair: -pair[1]):
            if size >= 1:
                report.add(f"table {name}, indexes included", "bytes an item", [size])
        return plain, laned

    def _by(self, bouncer: PgBouncer | None) -> Callable[[str], str]:
        if bouncer is None:
            return lambda url: url
        return lambda url: bouncer.url(urlsplit(url).path.removeprefix("/"))


def _both_ways(cases: tuple[Case, ...]) -> list[Case]:
    return [replace(case, pooled=pooled) for case in cases for pooled in (False, True)]


def _tell(report: Report, fleets: list[Fleet]) -> None:
    for unit in measured(fleets[0]):
        for fleet in fleets:
            report.add(fleet.case.name, unit, [measured(fleet)[unit]])
    more: dict[str, Callable[[Fleet], float]] = {
        "items a claim": lambda fleet: fleet.items_per_claim,
        "items a commit": lambda fleet: fleet.items_per_commit,
        "ms, claim p10": lambda fleet: 1e3 * fleet.fast_claim,
        "connections to PostgreSQL, at most": lambda fleet: float(fleet.connections),
        "MB of a worker": lambda fleet: fleet.worker_mb,
    }
    for unit, of in more.items():
        for fleet in fleets:
            report.add(fleet.case.name, unit, [of(fleet)])
    for fleet in fleets:
        if fleet.idle is not None:
            report.add("a worker with nothing to do", "ms of the database a second", [1e3 * fleet.idle.database])
            report.add("a worker with nothing to do", "ms of its own processor a second", [1e3 * fleet.idle.workers])
            report.add("a worker with nothing to do", "bytes of WAL a second", [fleet.idle.wal])


def _ratios(fleet: Fleet, costs: PageCosts) -> dict[str, float]:
    """Predicted / measured."""
    truth = measured(fleet)
    return {unit: value / truth[unit] for unit, value in predict(fleet.case, costs).items()}


def _error(checks: Sequence[Fleet], costs: PageCosts) -> float:
    return max(factor(_ratios(fleet, costs)[unit]) for fleet in checks for unit in COSTS)


def _check(report: Report, checks: Sequence[Fleet], costs: PageCosts) -> None:
    """The model with the constants of now, on fleets that these do not come from."""
    for fleet in checks:
        for unit, ratio in _ratios(fleet, costs).items():
            report.add(f"model / {fleet.case.name}", f"predicted / measured, {unit}", [ratio])
            if unit in COSTS or unit == "pages/s":
                report.target(f"model, off by, {unit}: {fleet.case.name}", factor(ratio), at_most=RIGHT)


def _compare(report: Report, fitted: list[Fleet], costs: PageCosts) -> None:
    """The constants of the source: do they still give the costs that were measured now?"""
    for fleet in fitted:
        ratio = predict(fleet.case, MEASURED)["ms of the database a page"] / (1e3 * fleet.page.database)
        claim = f"constants of {MEASURED.measured_on}, off by, ms of the database a page: {fleet.case.name}"
        report.target(claim, factor(ratio), at_most=STALE)
    disk = MEASURED.ledger_bytes / costs.ledger_bytes
    report.target(f"constants of {MEASURED.measured_on}, off by, bytes of disk an item", factor(disk), at_most=STALE)


def _plot(fleets: list[Fleet]) -> Lines:
    """Every fleet as a point: the fewer calls a page, the cheaper it is."""
    series = []
    for lanes in ("none", "hosts", "paced"):
        points = sorted(
            (fleet.calls, 1e3 * fleet.page.database)
            for fleet in fleets
            if fleet.case.lanes == lanes and not fleet.case.pooled
        )
        series.append(({"none": "no lanes", "hosts": "hosts", "paced": "hosts, 1 s apart"}[lanes], tuple(points)))
    return Lines("The database's processor time of a page", "claims and commits a page", "ms", tuple(series))
