"""The benchmarks of scale, with few pages: they must measure what they say, and the fit must find what is there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench import scale_calls, volume
from bench.places import PostgresPlace
from bench.scale_calls import CallCost, Calls, measure_calls
from bench.scale_fleet import Case, Cost, Fleet, Lanes, work_fleet
from bench.scale_model import factor, fit, measured, predict
from shoal.model.capacity import alone_share
from shoal.model.page_costs import LaneCosts, LinearCost
from shoal.worker.heartbeat import MAX_INTERVAL_SECONDS
from tests.support.postgres import PostgresServer

IDLE = Cost(workers=0.004, database=0.002, wal=200.0)
KINDS: dict[Lanes, LaneCosts] = {
    "none": LaneCosts(
        wait=0.01,
        calls=LinearCost(0.1, 1.8),
        database=LinearCost(0.0001, 0.0007),
        worker=LinearCost(0.0003, 0.001),
        log=LinearCost(800.0, 1_000.0),
        enqueue=18e-6,
    )
}
KINDS["hosts"] = KINDS["paced"] = KINDS["none"]
CALLS = Calls(
    [CallCost("enqueue", 1_000, 0.01, 0.008, 700_000.0)],
    {"item": 300.0, "ready": 100.0, "outcome": 150.0, "result": 140.0, "result_change": 10.0, "lease": 90.0},
)
LANED_CALLS = replace(CALLS, costs=[CallCost("enqueue", 1_000, 0.022, 0.008, 1_500_000.0)])


def fleet_of(case: Case, kind: LaneCosts, per_kb: float = 0.00002, pooler: float = 1.5) -> Fleet:
    """A fleet that costs exactly what the model says."""
    rate = case.concurrency / (case.latency + kind.wait)
    alone = alone_share(rate)
    calls = kind.calls.of_page(alone)
    page = Cost(
        kind.worker.of_page(alone) + IDLE.workers / rate + (per_kb * case.size / 1_000 if case.size > 1_000 else 0),
        (kind.database.of_page(alone) + IDLE.database / rate) * (pooler if case.pooled else 1),
        kind.log.of_page(alone) + IDLE.wal / rate,
    )
    idle = IDLE if case.idle else None
    return Fleet(case, rate * case.workers, page, idle, calls, 1, 1, kind.wait, 6 * case.workers, 80.0, 700.0, 0.0)


def test_the_fit_finds_the_costs_and_predicts_another_fleet() -> None:
    pairs = {
        lanes: (fleet_of(Case(10, 10, 0.5, lanes, hosts=300, idle=8.0), kind), fleet_of(Case(1, 100, 0.5), kind))
        for lanes, kind in KINDS.items()
    }
    large, pooled = Case(10, 10, 0.5, size=50_000), Case(10, 10, 0.5, pooled=True)
    costs = fit(pairs, fleet_of(large, KINDS["none"]), fleet_of(pooled, KINDS["none"]), CALLS, LANED_CALLS, [])
    found = costs.no_lanes
    assert (found.wait, found.calls.page, found.calls.alone) == pytest.approx((0.01, 0.1, 1.8))
    assert (found.database.page, found.database.alone) == pytest.approx((0.0001, 0.0007))
    assert (found.log.page, found.log.alone) == pytest.approx((800, 1_000))
    assert (costs.idle_database, costs.pooler, costs.connections) == pytest.approx((0.002, 1.5, 6))
    assert costs.worker_per_kb == pytest.approx(0.00002)
    assert costs.ledger_bytes == pytest.approx(700 - len(scale_calls.RECORD))
    enqueue = [kind.enqueue for kind in (costs.no_lanes, costs.lanes, costs.paced)]
    assert enqueue == pytest.approx([18e-6, 30e-6, 30e-6])
    other = Case(30, 7, 1.5, "hosts", hosts=900, pooled=True)
    truth = measured(fleet_of(other, KINDS["hosts"]))
    for name, value in predict(other, costs).items():
        assert value / truth[name] == pytest.approx(1, rel=0.02), name
    assert factor(0.5) == factor(2) == 2


def test_costs_below_zero_are_noise() -> None:
    few, many = fleet_of(Case(10, 10, 0.5, idle=8.0), KINDS["none"]), fleet_of(Case(1, 100, 0.5), KINDS["none"])
    steep = replace(many, page=replace(many.page, database=0.00002))
    costs = fit({"none": (few, steep), "hosts": (few, steep), "paced": (few, steep)}, few, None, CALLS, LANED_CALLS, [])
    assert costs.no_lanes.database.page == 0
    assert costs.no_lanes.database.alone > 0
    assert costs.pooler == 1


def test_a_fleet_is_measured_in_its_steady_state(durable_postgres: PostgresServer) -> None:
    case = Case(2, 4, 0.5, "hosts", hosts=3, seconds=6.0, idle=3 * MAX_INTERVAL_SECONDS)
    fleet = work_fleet(PostgresPlace(durable_postgres), case, lambda url: url)
    assert 0 < fleet.rate < 1.3 * 2 * 4 / 0.5
    assert fleet.page.workers > 0
    assert fleet.page.database > 0
    assert 500 < fleet.page.wal < 50_000
    # What idle workers compute may be less than a tick of the processor's clock; each heartbeat is in the log.
    assert fleet.idle is not None
    assert fleet.idle.wal > 0
    assert 0.1 < fleet.calls < 6
    assert 2 <= fleet.connections <= 2 * 7
    assert 30 < fleet.worker_mb < 300


def test_calls_are_measured_one_by_one(durable_postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale_calls, "BATCHES", ((1, 20), (10, 5)))
    monkeypatch.setattr(scale_calls, "BEATS", 10)
    monkeypatch.setattr(scale_calls, "ROUNDS", 3)
    calls = measure_calls(PostgresPlace(durable_postgres), laned=True, by=lambda url: url)
    log = {(cost.what, cost.batch): cost.wal for cost in calls.costs}
    assert log["enqueue", 70] > 70 * 200
    # A call of ten writes less than ten calls.
    for what in ("claim", "commit"):
        assert 0 < log[what, 10] < 10 * log[what, 1]
    assert ("heartbeat", 1) in log
    assert calls.tables["item"] > 0


def test_items_pass_from_one_end_to_the_other(durable_postgres: PostgresServer) -> None:
    report = volume.measure(PostgresPlace(durable_postgres), volume.Sizes(3_000))
    value = {(figure.name, figure.unit): figure.value for figure in report.figures}
    for step in ("enqueue", "work", "export"):
        assert value[step, "items/s"] > 0
        assert value[f"{step}: largest process", "MB"] > 0
    assert value["enqueue", "bytes of WAL an item"] > 200
    assert value["claim p50, along the way", "ms"] <= value["claim p95, along the way", "ms"]
    assert value["all tables", "bytes an item"] > 300
    assert any("All 3,000 records" in note for note in report.notes)
