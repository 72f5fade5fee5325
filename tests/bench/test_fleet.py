"""The benchmark of the fleet, with few pages: it must measure what it says."""

from __future__ import annotations

import time
from pathlib import Path
from urllib.request import urlopen

import pytest

from bench.fleet import Sizes, measure
from bench.fleet_crew import Crew, Desk, wait_until
from bench.fleet_site import LateSite
from bench.fleet_worker import Call, Notes
from bench.places import PostgresPlace
from tests.support.postgres import PostgresServer


def test_two_workers_do_twice_as_much_as_one(durable_postgres: PostgresServer) -> None:
    """S0.30, S1.27, S3.28, S4.21: rates are measured, and what is missing to linear is published."""
    sizes = Sizes((1, 2), pooled=(), pages=120, rounds=1, urls=500, crew=2, seconds=0.5, latency=0.5, concurrency=8)
    report = measure(PostgresPlace(durable_postgres), sizes)
    value = {(figure.name, figure.unit): figure.value for figure in report.figures}
    # So few pages a second, and so many seconds, that a busy machine hardly matters.
    limit = 8 / 0.5
    assert 0.5 * limit < value["1 worker", "pages/s"] < 1.3 * limit
    assert value["2 workers", "pages/s"] > 1.3 * value["1 worker", "pages/s"]
    for name in ("1 worker", "2 workers"):
        assert 0 < value[name, "of a worker's time with a claim or commit under way"] < 1
        assert 0 < value[name, "cores for the workers"] < 2
        assert value[name, "ms, claim p50"] <= value[name, "ms, claim p95"]
    assert value["500 URLs: shoal enqueue", "URLs/s"] > 0
    assert 0 < value["500 URLs, 2 workers: from their start to the first page", "s"] < 60
    claims = {target.claim for target in report.targets}
    assert {"2 workers / 2 x 1 worker", "2 workers: ms of the database's processor a page"} <= claims
    assert "these cores are the limit from" in report.notes[-1]


def test_the_share_of_the_ledger_counts_calls_at_once_only_once() -> None:
    calls = [
        Call("claim", 0.0, 1.0, 0),  # found nothing: the work begins with the next one
        Call("claim", 10.0, 12.0, 5),
        Call("commit", 11.0, 13.0, 5),
        Call("commit", 19.0, 20.0, 5),
    ]
    notes = Notes(calls, busy=1.0)
    assert notes.span == (10.0, 20.0)
    assert notes.ledger_share() == pytest.approx(0.4)


def test_a_worker_that_leaves_ends_the_benchmark(tmp_path: Path) -> None:
    desk = Desk(tmp_path, "postgresql://nobody@127.0.0.1:1/nothing")
    desk.environment["SHOAL_PATIENCE"] = "0.1"
    with Crew(desk, 1, 1) as crew, pytest.raises(RuntimeError, match="worker 0 ended with 3"):
        wait_until(lambda: False, crew)


def test_the_site_answers_late_and_remembers() -> None:
    with LateSite(5.0) as site:
        asked = time.monotonic()
        assert site.arrivals() == []
        listed = time.monotonic() - asked
        with urlopen(site.urls(1)[0]) as answer:
            assert b"<title>Page 0</title>" in answer.read()
        page = time.monotonic() - asked - listed
        assert page > 3.75, "the latency varies by a fifth"
        assert listed < page / 2, "only pages are late"
        (arrived,) = site.arrivals()
        assert asked < arrived < time.monotonic()
        assert site.arrivals() == []
