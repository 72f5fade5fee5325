"""From measured fleets to the constants of `shoal plan`, and from its model back to a fleet."""

from __future__ import annotations

import datetime as dt
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from bench.scale_calls import RECORD, Calls
from bench.scale_fleet import DELAY, Case, Cost, Fleet, Lanes
from shoal.model.capacity import (
    CapacityJob,
    alone_share,
    database_seconds,
    log_bytes,
    make_capacity_plan,
    worker_seconds,
)
from shoal.model.page_costs import LaneCosts, LinearCost, PageCosts

# More cores than any fleet here can keep busy, so that the database is no limit of the model.
MANY_CORES = 1_000
UNKNOWN_ERROR = 1.0
# Tables that grow with the items of a run; the others have what is under way, and are vacuumed.
GROWING = ("item", "ready", "outcome", "result", "result_change")
# A free slot waits for the claim that is under way and for its own. The fastest tenth of them had a core at once; where
# other work keeps the cores busy, slots wait longer, which is no cost of a page.
CLAIMS_WAITED_FOR = 2
# What the error of the model is computed from. Pages a second depend on the machine, calls only explain the costs.
COSTS = ("ms of the database a page", "ms of a worker a page", "bytes of WAL a page")


def fit(
    pairs: Mapping[Lanes, tuple[Fleet, Fleet]],
    large: Fleet,
    pooled: Fleet | None,
    calls: Calls,
    laned_calls: Calls,
    others: Sequence[Fleet],
) -> PageCosts:
    """The constants. `pairs`: for each kind of lane many workers with few pages each, and one with many. `large`: pages
    of another size. `laned_calls`: calls with hosts as lanes. `others`: further fleets that only tell memory and
    connections.
    """
    idle = next(fleet.idle for fleet in pairs["none"] if fleet.idle is not None)
    kinds = {
        kind: _lane_costs(few, many, idle, calls if kind == "none" else laned_calls)
        for kind, (few, many) in pairs.items()
    }
    fleets = [fleet for pair in pairs.values() for fleet in pair] + [large, *others]
    return PageCosts(
        measured_on=dt.datetime.now(dt.UTC).date().isoformat(),
        no_lanes=kinds["none"],
        lanes=kinds["hosts"],
        paced=kinds["paced"],
        idle_database=idle.database,
        idle_worker=idle.workers,
        idle_log=idle.wal,
        worker_per_kb=_per_kilobyte(large, kinds["none"], idle),
        worker_mb=statistics.median(fleet.worker_mb for fleet in fleets),
        pooler=1.0 if pooled is None else _pooler(pooled, kinds["none"], idle),
        connections=max(fleet.connections / fleet.case.workers for fleet in fleets if not fleet.case.pooled),
        ledger_bytes=ledger_bytes(calls.tables),
        error=UNKNOWN_ERROR,
    )


def ledger_bytes(tables: Mapping[str, float]) -> float:
    """Bytes that stay in the ledger for each item, without its record."""
    return sum(tables[name] for name in GROWING) - len(RECORD)


def _lane_costs(few: Fleet, many: Fleet, idle: Cost, calls: Calls) -> LaneCosts:
    enqueue = next(cost for cost in calls.costs if cost.what == "enqueue")
    return LaneCosts(
        wait=max(0.0, min(min(_slot_wait(fleet), CLAIMS_WAITED_FOR * fleet.fast_claim) for fleet in (few, many))),
        calls=_line(few, many, lambda fleet: fleet.calls),
        database=_line(few, many, lambda fleet: _busy(fleet, idle, lambda cost: cost.database)),
        worker=_line(few, many, lambda fleet: _busy(fleet, idle, lambda cost: cost.workers)),
        log=_line(few, many, lambda fleet: _busy(fleet, idle, lambda cost: cost.wal)),
        enqueue=(enqueue.database + enqueue.own) / enqueue.batch,
    )


def _slot_wait(fleet: Fleet) -> float:
    """Seconds that a slot has no request under way for each page that it does."""
    return fleet.case.concurrency / fleet.worker_rate - fleet.case.latency


def _busy(fleet: Fleet, idle: Cost, part: Callable[[Cost], float]) -> float:
    """The cost of a page without what its worker costs anyway."""
    return part(fleet.page) - part(idle) / fleet.worker_rate


def _line(few: Fleet, many: Fleet, cost: Callable[[Fleet], float]) -> LinearCost:
    """The line through two fleets: cost by the share of pages that are alone. Neither part is below zero."""
    shares = alone_share(few.worker_rate), alone_share(many.worker_rate)
    alone = max(0.0, (cost(few) - cost(many)) / (shares[0] - shares[1]))
    page = cost(many) - alone * shares[1]
    return LinearCost(page, alone) if page >= 0 else LinearCost(0.0, cost(few) / shares[0])


def _per_kilobyte(large: Fleet, kind: LaneCosts, idle: Cost) -> float:
    small = kind.worker.of_page(alone_share(large.worker_rate))
    return max(0.0, (_busy(large, idle, lambda cost: cost.workers) - small) / (large.case.size / 1_000))


def _pooler(pooled: Fleet, kind: LaneCosts, idle: Cost) -> float:
    direct = kind.database.of_page(alone_share(pooled.worker_rate)) + idle.database / pooled.worker_rate
    return max(1.0, (pooled.page.database + pooled.pooler) / direct)


def job_of(case: Case) -> CapacityJob:
    """A fleet as a user would describe it to `shoal plan`."""
    return CapacityJob(
        pages=case.pages,
        latency=case.latency,
        size=case.size,
        hosts=None if case.lanes == "none" else case.hosts,
        delay=DELAY if case.lanes == "paced" else 0.0,
        per_host=1 if case.lanes == "paced" else 8,
        concurrency=case.concurrency,
        workers=case.workers,
        database_cores=MANY_CORES,
    ).checked()


def predict(case: Case, costs: PageCosts) -> dict[str, float]:
    """What the model says of a fleet, by the names that `measured` has."""
    job = job_of(case)
    plan = make_capacity_plan(job, costs)
    return {
        "pages/s": plan.rate,
        "ms of the database a page": 1e3 * database_seconds(job, costs, plan.worker_rate, pooled=case.pooled),
        "ms of a worker a page": 1e3 * worker_seconds(job, costs, plan.worker_rate),
        "bytes of WAL a page": log_bytes(job, costs, plan.worker_rate),
        "calls a page": plan.calls_per_page,
    }


def measured(fleet: Fleet) -> dict[str, float]:
    return {
        "pages/s": fleet.rate,
        "ms of the database a page": 1e3 * (fleet.page.database + fleet.pooler),
        "ms of a worker a page": 1e3 * fleet.page.workers,
        "bytes of WAL a page": fleet.page.wal,
        "calls a page": fleet.calls,
    }


def factor(ratio: float) -> float:
    """How far off, whichever way: 0.5 and 2 are both 2."""
    return max(ratio, 1 / ratio)


def as_source(costs: PageCosts) -> str:
    """The constants as they stand in `src/shoal/model/page_costs.py`."""

    def text(value: Any, indent: int) -> str:
        if isinstance(value, LinearCost):
            return f"LinearCost({_rounded(value.page)}, {_rounded(value.alone)})"
        if isinstance(value, LaneCosts | PageCosts):
            inner = "".join(
                f"{' ' * (indent + 4)}{name}={text(getattr(value, name), indent + 4)},\n"
                for name in value.__struct_fields__
            )
            return f"{type(value).__name__}(\n{inner}{' ' * indent})"
        return _rounded(value) if isinstance(value, float) else msgspec.json.encode(value).decode()

    return f"MEASURED = {text(costs, 0)}"


def _rounded(value: float) -> str:
    """Three digits: more were not measured."""
    return repr(float(f"{value:.3g}"))
