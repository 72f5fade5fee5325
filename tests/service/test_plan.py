"""What `shoal plan` says about a job, and the constants that it computes with."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

import shoal.model.page_costs
from bench.scale_model import as_source
from shoal.errors import InvalidSetting
from shoal.model.capacity import CapacityJob
from shoal.model.page_costs import MEASURED, LaneCosts, LinearCost, PageCosts
from shoal.service.plan import MEASURED_ITEMS, PAGES_OF_A_RUN, PlannedJob, Unit, parse_quantity, plan_job


def planned(**job: object) -> PlannedJob:
    return plan_job(msgspec.convert({"pages": 1e6, **job}, CapacityJob))


def said(found: PlannedJob, word: str) -> list[str]:
    return [text for text in found.advice if word in text]


@pytest.mark.parametrize(
    ("unit", "text", "number"),
    [
        ("bytes", "300", 300),
        ("bytes", "50KB", 50_000),
        ("bytes", "50 kb", 50_000),
        ("bytes", "1.5MiB", 1.5 * 2**20),
        ("bytes", "2k", 2_000),
        ("bytes", "300 bytes", 300),
        ("bits", "10Gbit", 1e10),
        ("bits", "100Mbit/s", 1e8),
        ("bits", "10G", 1e10),
        ("bits", "1GB", 8e9),
        ("bits", "1 GB/s", 8e9),
        ("", "1e6", 1e6),
        ("", "20M", 2e7),
        ("", "1,000,000", 1e6),
    ],
)
def test_quantities_are_read(unit: Unit, text: str, number: float) -> None:
    assert parse_quantity("--size", text, "50KB", unit) == number


@pytest.mark.parametrize(
    ("unit", "text"),
    [
        *(("bytes", text) for text in ("", "KB", "-5", "5 apples", "0x10", "nan", "1e", "50KBB", "50Kbit", "5KB/s")),
        ("bits", "10 gates"),
        ("", "1MB"),
        ("", "1Mbit"),
    ],
)
def test_what_is_no_quantity_of_its_unit_is_refused_with_an_example(unit: Unit, text: str) -> None:
    with pytest.raises(InvalidSetting, match="--size") as error:
        parse_quantity("--size", text, "50KB", unit)
    assert "50KB" in error.value.remedy


def test_a_small_job_needs_no_more_workers_than_end_it_in_a_minute() -> None:
    found = planned(pages=1_000)
    assert (found.plan.workers, found.plan.bottleneck) == (1, "pages")
    assert found.plan.hours * 3_600 == pytest.approx(60)
    assert "small job" in found.reason
    assert found.advice == ()
    slow = planned(pages=1, latency=600).plan
    assert slow.workers == 1
    assert slow.hours * 3_600 == pytest.approx(600, rel=0.01)
    # With a goal it is as fast as one page.
    many = planned(pages=100, workers=50)
    assert many.plan.hours * 3_600 >= 0.5
    assert many.reason.startswith("All pages are fetched at once")


def test_no_job_is_over_before_its_items_are_stored() -> None:
    found = planned(pages=1e9, latency=0, concurrency=64, database_cores=64)
    assert found.plan.bottleneck == "enqueueing"
    assert found.plan.hours >= found.plan.enqueue_hours * 0.999
    assert found.reason.startswith("Enqueueing is the limit")


def test_a_job_that_fits_is_given_no_advice() -> None:
    found = planned(hours=24)
    assert found.plan.bottleneck == "hours"
    assert found.reason == "Nothing is in the way of 24 hours."
    assert found.advice == ()


def test_when_hosts_are_the_limit_more_workers_are_not_advised() -> None:
    found = planned(hosts=10)
    assert found.plan.bottleneck == "hosts"
    assert "a page every 1 s from each. More workers do not help." in found.reason
    assert said(found, "shorter delay")
    assert not said(found, "ledgers")
    slow = planned(hosts=10, latency=30, delay=0.5)
    assert "1 at once from each, 30 s a page" in slow.reason
    assert "1 at once from each, 0 s a page" in planned(hosts=1, delay=0, latency=0).reason


def test_when_postgresql_is_the_limit_batches_cores_and_ledgers_are_weighed() -> None:
    found = planned(pages=1e9, hosts=1e6, hours=24)
    assert found.plan.bottleneck == "database"
    assert found.reason.startswith("24 hours would need 11,574 pages/s. PostgreSQL is the limit")
    for word in ("Batching", "larger server", "Several ledgers", "All pages of a host go to the same one"):
        assert len(said(found, word)) == 1, word
    assert f"{found.plan.ledgers:,} PostgreSQL servers" in said(found, "Several ledgers")[0]
    assert not said(planned(pages=1e9, concurrency=1_000), "Batching")
    free = msgspec.structs.replace(MEASURED, no_lanes=msgspec.structs.replace(MEASURED.no_lanes, enqueue=1e-9))
    assert said(plan_job(CapacityJob(pages=1e9, database_cores=600), free), "A larger server: 1024 cores")


def test_connections_that_are_the_limit_are_not_called_the_processor() -> None:
    found = planned(pages=1e9, hosts=1e6, concurrency=64)
    assert found.plan.bottleneck == "connections"
    assert found.plan.database_load < 0.6 * found.job.database_cores
    assert found.reason.startswith("Connections are the limit: 50 workers open up to 300")
    assert said(found, "Batching")
    assert not said(found, "Put PgBouncer")


def test_workers_beyond_what_the_database_can_keep_up_with_are_advised_against() -> None:
    found = planned(workers=1_000)
    assert found.plan.bottleneck == "database"
    assert found.plan.database_cores <= found.job.database_cores
    fewer = planned().plan
    assert said(found, f"Fewer workers: {fewer.workers:,} with all their slots busy do {fewer.rate:,.0f} pages/s")
    assert not said(planned(), "Fewer workers")
    with pytest.raises(InvalidSetting, match="1,000 workers with nothing to do") as error:
        planned(hosts=100, workers=1_000, database_cores=2)
    assert "--workers 4," in error.value.remedy


def test_the_documented_limits_are_those_of_the_model() -> None:
    page = (Path(__file__).parents[2] / "docs" / "scale.md").read_text()
    rows = dict(re.findall(r"^\| (no lanes|hosts, no delay|hosts, a second between two pages) \| (.*) \|$", page, re.M))
    hosts: dict[str, dict[str, float]] = {
        "no lanes": {},
        "hosts, no delay": {"hosts": 1e6, "delay": 0},
        "hosts, a second between two pages": {"hosts": 1e6, "delay": 1},
    }
    assert rows.keys() == hosts.keys()
    for name, job in hosts.items():
        limits = [planned(pages=1e9, concurrency=concurrency, **job).plan for concurrency in (16, 64)]
        thousand = planned(pages=3.6e6, hours=1, concurrency=64, **job).plan
        assert not thousand.pooled
        told = [
            *(f"{found.rate:,.0f} pages/s, {'PgBouncer' if found.pooled else found.bottleneck}" for found in limits),
            f"{1e3 * limits[0].database_load / limits[0].rate:.3g}",
            f"{thousand.database_load:.3g}",
        ]
        assert rows[name] == " | ".join(told)


def test_a_very_large_job_is_several_runs() -> None:
    assert not said(planned(pages=PAGES_OF_A_RUN), "runs rm")
    assert said(planned(pages=PAGES_OF_A_RUN), "this is 10 times as many")
    assert not said(planned(pages=MEASURED_ITEMS), "times as many")
    assert "3 runs" in said(planned(pages=2.5 * PAGES_OF_A_RUN), "runs rm")[0]


def test_advice_on_poolers_robots_and_files_is_given_when_it_matters() -> None:
    pooled = planned(workers=1_000)
    assert said(pooled, f"of at least that, and a default_pool_size of {pooled.plan.connections:,} to begin")
    assert not said(planned(workers=2), "PgBouncer")
    assert said(planned(hosts=1e5), "robots.txt")
    assert not said(planned(hosts=10, workers=1), "robots.txt")
    assert said(planned(pages=1e8, store=True), "inodes")
    assert not said(planned(pages=1e8), "inodes")


def test_workers_that_are_the_limit_wait_for_the_site_or_have_busy_cores() -> None:
    assert "wait for the site" in planned(workers=1).reason
    busy = planned(workers=1, latency=0.001, concurrency=1_000)
    assert "has one core, which is busy" in busy.reason
    assert busy.advice == ("Start more workers.",)
    assert said(planned(workers=1), "or raise the concurrency")


def test_the_benchmark_prints_the_constants_as_the_source_has_them() -> None:
    names = {kind.__name__: kind for kind in (PageCosts, LaneCosts, LinearCost)}
    text = as_source(MEASURED)
    assert eval(text.removeprefix("MEASURED = "), names) == MEASURED
    source = Path(shoal.model.page_costs.__file__).read_text()
    assert text in source
    assert MEASURED.error > 1
