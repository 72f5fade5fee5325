"""The model of capacity: arithmetic with costs of our own, so that every figure can be checked by hand."""

from __future__ import annotations

import math
import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import InvalidSetting
from shoal.fetch.robots import MAX_SITES
from shoal.model.capacity import (
    BUSY_SHARE,
    MANY_CONNECTIONS,
    ROBOTS_KEPT,
    ROUNDING,
    CapacityJob,
    CapacityPlan,
    make_capacity_plan,
)
from shoal.model.page_costs import MEASURED, LaneCosts, LinearCost, PageCosts

# A page that is alone costs the database 1 ms, one that shares its calls nothing.
LANE = LaneCosts(
    wait=0.0,
    calls=LinearCost(0.0, 2.0),
    database=LinearCost(0.0, 0.001),
    worker=LinearCost(0.001, 0.0),
    log=LinearCost(100.0, 0.0),
    enqueue=0.00001,
)
COSTS = PageCosts(
    measured_on="2026-01-01",
    no_lanes=LANE,
    lanes=msgspec.structs.replace(LANE, enqueue=0.00003),
    paced=msgspec.structs.replace(LANE, database=LinearCost(0.0, 0.002), enqueue=0.00004),
    idle_database=0.0,
    idle_worker=0.0,
    idle_log=0.0,
    worker_per_kb=0.0,
    worker_mb=50.0,
    pooler=2.0,
    connections=6.0,
    ledger_bytes=500.0,
    error=1.3,
)


def plan(costs: PageCosts = COSTS, **job: object) -> CapacityPlan:
    return make_capacity_plan(msgspec.convert({"pages": 1e6, **job}, CapacityJob).checked(), costs)


def test_workers_wait_for_the_site() -> None:
    found = plan(workers=5, concurrency=10, latency=0.5)
    assert found.bottleneck == "workers"
    assert found.worker_rate == pytest.approx(20)
    assert found.rate == pytest.approx(100)
    assert found.hours == pytest.approx(1e6 / 100 / 3600)
    # With 25 pages a second it would be half of them.
    alone = 1 / (1 + 20 / 25)
    assert found.calls_per_page == pytest.approx(2 * alone)
    assert found.database_load == pytest.approx(100 * 0.001 * alone)
    assert found.worker_cores == pytest.approx(0.1)
    assert found.log_bytes_per_second == pytest.approx(10_000)
    assert found.worker_memory_bytes == 5 * 50e6
    assert (found.connections, found.pooled) == (30, False)


def test_hours_say_how_many_workers() -> None:
    found = plan(hours=1e6 / 100 / 3600, concurrency=10, latency=0.5)
    assert (found.bottleneck, found.workers, found.ledgers) == ("hours", 5, 1)
    assert found.rate == pytest.approx(100)


def test_hosts_that_want_a_delay_are_the_limit_however_many_workers_there_are() -> None:
    few, many = (plan(hosts=10, delay=2.0, workers=workers) for workers in (2, 200))
    assert few.bottleneck == many.bottleneck == "hosts"
    assert few.rate == many.rate == pytest.approx(5)
    # Workers that get fewer pages each cost the database more.
    assert many.database_load > few.database_load


def test_without_a_delay_hosts_are_limited_by_their_places() -> None:
    found = plan(hosts=10, delay=0.0, per_host=4, latency=2.0, workers=1_000)
    assert found.bottleneck == "hosts"
    assert found.rate == pytest.approx(20)


def test_a_delay_has_its_own_costs() -> None:
    paced, unpaced = (plan(hosts=1e5, delay=delay, per_host=8, workers=5) for delay in (1.0, 0.0))
    assert paced.rate == pytest.approx(unpaced.rate)
    assert paced.database_load == pytest.approx(2 * unpaced.database_load)


def test_the_database_is_the_limit_and_more_cores_raise_it() -> None:
    quick = msgspec.structs.replace(LANE, enqueue=1e-6)
    costs = msgspec.structs.replace(COSTS, connections=0.1, no_lanes=quick)  # however many workers, no pooler
    eight, sixteen = (plan(costs, pages=1e9, concurrency=100, database_cores=cores) for cores in (8, 16))
    assert eight.bottleneck == "database"
    # Of 200 pages a second of a worker one in nine is alone.
    assert eight.rate == pytest.approx(8 * BUSY_SHARE / (0.001 / 9))
    assert sixteen.rate == pytest.approx(2 * eight.rate)
    assert (eight.database_cores, sixteen.database_cores) == (8, 16)


def test_larger_batches_raise_the_limit_of_the_database() -> None:
    small, large = (plan(concurrency=concurrency) for concurrency in (10, 40))
    assert large.calls_per_page < small.calls_per_page
    assert large.rate > 1.5 * small.rate


def test_many_connections_go_through_a_pooler_which_costs() -> None:
    direct, pooled = (plan(workers=workers, database_cores=1_000) for workers in (50, 51))
    assert (direct.connections, direct.pooled, pooled.pooled) == (300, False, True)
    assert pooled.connections < 300
    assert pooled.database_load == pytest.approx(2 * 51 / 50 * direct.database_load)


def test_connections_are_a_limit_of_their_own_while_the_processor_would_do_more() -> None:
    # 50 workers have 300 connections. Through the pooler, which costs twice as much here, these cores do fewer pages.
    direct = 50 * 20 * 0.001 / (1 + 20 / 25) / BUSY_SHARE
    found = plan(concurrency=10, latency=0.5, database_cores=1.5 * direct)
    assert found.bottleneck == "connections"
    assert found.rate == pytest.approx(50 * 20)
    assert (found.workers, found.connections, found.pooled) == (50, 300, False)
    assert found.limits["connections"] == found.rate
    assert found.limits["database"] == pytest.approx(1.5 * found.rate)
    # With more cores the pooler does more than the 50 workers, and the processor is the limit again.
    more = plan(concurrency=10, latency=0.5, database_cores=4 * direct)
    assert (more.bottleneck, more.pooled, more.limits["connections"]) == ("database", True, None)
    assert more.limits["database"] == pytest.approx(more.rate)


def test_workers_beyond_need_lower_the_rate_to_what_the_database_can_do() -> None:
    costs = msgspec.structs.replace(COSTS, connections=0.1, idle_database=0.001)
    enough = plan(costs, concurrency=100, database_cores=1)
    many = plan(costs, concurrency=100, database_cores=1, workers=10 * enough.workers)
    assert (enough.bottleneck, many.bottleneck) == ("database", "database")
    # Their pages share fewer calls, so the same processor does fewer of them.
    assert many.rate < 0.6 * enough.rate
    assert many.database_load == pytest.approx(BUSY_SHARE)
    assert many.database_cores == 1


def test_workers_that_keep_the_database_busy_with_nothing_to_do_are_refused() -> None:
    costs = msgspec.structs.replace(COSTS, connections=0.1, idle_database=0.01)
    with pytest.raises(InvalidSetting, match="200 workers with nothing to do would keep 2 cores") as error:
        plan(costs, hosts=100, workers=200, database_cores=2)
    workers, cores = (int(text) for text in re.findall(r"--\S+ (\d+)", error.value.remedy))
    for remedy in ({"workers": workers, "database_cores": 2}, {"workers": 200, "database_cores": cores}):
        assert plan(costs, hosts=100, **remedy).rate > 0
    assert plan(costs, hosts=100, workers=workers, database_cores=2).bottleneck == "hosts"


def test_items_with_lanes_cost_more_to_enqueue() -> None:
    assert plan().enqueue_hours == pytest.approx(1e6 * 0.00001 / 3_600)
    assert plan(hosts=1_000, delay=0.0).enqueue_hours == pytest.approx(1e6 * 0.00003 / 3_600)
    assert plan(hosts=1_000, delay=1.0).enqueue_hours == pytest.approx(1e6 * 0.00004 / 3_600)


def test_a_wish_that_one_database_cannot_meet_says_how_many_ledgers_can() -> None:
    limit = plan().rate
    found = plan(hours=1e6 / (2.5 * limit) / 3600)
    assert (found.bottleneck, found.ledgers) == ("database", 3)
    assert found.wanted_rate == pytest.approx(2.5 * limit)
    assert found.hours == pytest.approx(1e6 / limit / 3600)


def test_the_network_is_the_limit() -> None:
    found = plan(size=99_000, bandwidth=8e6)
    assert found.bottleneck == "network"
    assert found.rate == pytest.approx(10)
    assert found.network_bits_per_second == pytest.approx(8e6)


def test_a_worker_has_one_core() -> None:
    heavy = msgspec.structs.replace(COSTS, worker_per_kb=0.0001)
    found = plan(heavy, workers=1, concurrency=1_000, size=90_000)
    assert found.worker_cores == pytest.approx(0.9, rel=0.01)
    assert found.rate == pytest.approx(0.9 / 0.01, rel=0.01)


def test_disk_is_that_of_items_records_and_stored_pages() -> None:
    found = plan(record_size=200, size=40_000, store=True)
    assert found.ledger_bytes == 1e6 * 700
    assert found.record_bytes == 1e6 * 200
    assert found.store_bytes == 1e6 * (10_000 + 2_500)
    assert plan().store_bytes == 0


def test_robots_txt_is_read_by_each_worker_and_forgotten_when_hosts_are_many() -> None:
    assert ROBOTS_KEPT == MAX_SITES
    assert plan().robots_requests == 0
    assert plan(hosts=100, workers=3, delay=0.01).robots_requests == 300
    # A cache of 10,000 is of little use for 100,000 hosts that take turns.
    assert plan(hosts=1e5, workers=1).robots_requests == pytest.approx(0.9e6)
    assert plan(hosts=1e5, workers=900).robots_requests == 1e6


@pytest.mark.parametrize(
    ("job", "option"),
    [
        ({"pages": 0}, "--pages"),
        ({"pages": math.nan}, "--pages"),
        ({"latency": -1}, "--latency"),
        ({"size": -1}, "--size"),
        ({"record_size": -1}, "--record-size"),
        ({"hosts": 0}, "--hosts"),
        ({"hosts": 2e6}, "hosts"),
        ({"delay": -0.1}, "--delay"),
        ({"per_host": 0}, "--per-host"),
        ({"concurrency": 0}, "--concurrency"),
        ({"hours": 0}, "--hours"),
        ({"workers": 0.5}, "--workers"),
        ({"workers": 2.5}, "--workers"),
        ({"concurrency": 2.5}, "--concurrency"),
        ({"per_host": 1.5}, "--per-host"),
        ({"workers": math.inf}, "--workers"),
        ({"hours": 1, "workers": 1}, "--hours and --workers"),
        ({"database_cores": 0}, "--database-cores"),
        ({"bandwidth": 1}, "--bandwidth"),
    ],
)
def test_a_bad_value_is_named_with_a_remedy(job: dict[str, float], option: str) -> None:
    with pytest.raises(InvalidSetting, match=option) as error:
        plan(COSTS, **job)
    assert error.value.remedy


@given(
    pages=st.floats(1e3, 1e12),
    latency=st.floats(0, 60),
    size=st.floats(0, 1e7),
    hosts=st.none() | st.floats(1, 1e3),
    delay=st.floats(0, 60),
    concurrency=st.integers(1, 1_000),
    cores=st.sampled_from([1, 2, 8, 64]),
    goal=st.sampled_from([{}, {"hours": 24.0}])
    | st.builds(lambda workers: {"workers": workers}, st.integers(1, 2_000)),
)
def test_no_plan_is_faster_than_one_of_its_limits(
    goal: dict[str, float], cores: int, latency: float, **job: object
) -> None:
    job["latency"] = latency
    workers = goal.get("workers", 0)
    pooler = MEASURED.pooler if workers * MEASURED.connections > MANY_CONNECTIONS else 1
    if workers * MEASURED.idle_database * pooler >= BUSY_SHARE * cores:
        with pytest.raises(InvalidSetting, match="with nothing to do"):
            plan(MEASURED, database_cores=cores, **job, **goal)
        return
    found = plan(MEASURED, database_cores=cores, **job, **goal)
    # A whole worker more than the rate needs has few pages, and costs a little all the same.
    spare = 0 if "workers" in goal else ROUNDING
    assert found.database_load <= BUSY_SHARE * (cores + spare) * 1.000001
    assert found.database_cores <= cores
    assert all(found.rate <= limit * 1.000001 for limit in found.limits.values() if limit is not None)
    assert found.rate * found.hours * 3600 == pytest.approx(job["pages"])
    assert found.hours * 3600 >= latency * 0.999
    assert found.hours >= found.enqueue_hours * 0.999
    assert min(found.workers, found.database_cores, found.ledgers) >= 1
    assert 0 < found.worker_cores <= found.workers
