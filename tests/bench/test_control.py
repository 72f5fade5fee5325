"""The benchmark of the control plane, on a small ledger: it must ask everything and measure what it says."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bench.control import SIZES, Server, Sizes, Watchers, dashboard_pages, measure, requests_of
from bench.control_ledger import FilledLedger, LedgerSize, fill_ledger
from bench.fleet_crew import Desk
from bench.places import Place, PostgresPlace, SqlitePlace, open_ledger
from shoal.model.views import sum_counts
from tests.support.postgres import PostgresServer

SMALL = LedgerSize(items=3_000, lanes=120, workers=12)


@pytest.fixture(params=["postgres", "sqlite"])
def place(request: pytest.FixtureRequest) -> Place:
    if request.param == "sqlite":
        return SqlitePlace()
    server: PostgresServer = request.getfixturevalue("durable_postgres")
    return PostgresPlace(server)


def test_the_filled_ledger_keeps_every_rule(place: Place) -> None:
    async def check(address: str) -> FilledLedger:
        filled = await fill_ledger(address, SMALL)
        ledger = await open_ledger(address)
        try:
            assert await ledger.upkeep.audit(content=True) == []
            assert sum_counts(part.counts for part in await ledger.reads.partitions(filled.run.id)).total > SMALL.items
        finally:
            await ledger.close()
        return filled

    with place.fresh() as address:
        filled = asyncio.run(check(address))
    assert filled.size == SMALL


def test_answers_and_live_clients_are_measured(place: Place) -> None:
    """S0.21, S4.20: what is published is measured; the benchmark itself fails when a GET of the API is not asked."""
    sizes = Sizes(
        ledger=SMALL,
        samples=2,
        rounds=1,
        clients=3,
        seconds=3.0,
        pages=0,
        scrape_rounds=0,
        workers=1,
        backlog=3_000,
        browser=False,
    )
    report = measure([place], sizes)
    value = {(figure.name, figure.unit): figure.value for figure in report.figures}
    name = place.name
    for each in ("GET run", "GET items, late", "GET metrics", "GET S4 status", "POST preview, retry a failure"):
        assert 0 < value[f"{name}: {each}, p50", "ms"] <= value[f"{name}: {each}, p95", "ms"]
    assert value[f"{name}: 1 live client: topics read", "per second"] > 0
    assert value[f"{name}: 3 live clients: frames of a client", "per second"] > 0
    claims = [target.claim for target in report.targets]
    assert f"{name}: topics read, 3 clients / 1 client" in claims
    assert any("p95 of the slowest" in claim for claim in claims)


def test_a_request_that_fails_ends_the_benchmark(tmp_path: Path) -> None:
    address = str(tmp_path / "ledger.sqlite3")
    filled = asyncio.run(fill_ledger(address, SMALL))
    with Server(Desk(tmp_path, address)) as server:
        with pytest.raises(RuntimeError, match="404"):
            server.json("/api/v1/nothing")
        assert requests_of(server, filled)["GET run"].endswith(filled.run.id)
        with Watchers(server, 2) as watchers:
            pass
        assert len(watchers.frames) == 2


def test_every_page_of_the_dashboard_is_visited() -> None:
    pages = dashboard_pages()
    assert pages[""] == "Overview"
    assert {"runs/:run/items/:item", "runs/:run/lanes", "egress", "fleet"} <= pages.keys()
    source = (Path(__file__).parents[2] / "web" / "src" / "routes.ts").read_text()
    assert len(pages) == source.count('pattern: "')


def test_the_full_size_is_that_of_the_target() -> None:
    full = SIZES["full"]
    assert (full.ledger.items, full.ledger.lanes, full.ledger.workers) == (5_000_000, 100_000, 1_000)
    assert full.clients == 500
