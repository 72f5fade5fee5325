"""A client of the API on an open ledger, and a small ledger with something of everything."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import msgspec

from shoal.config import Settings, load_settings
from shoal.ledger.protocols import Ledger
from shoal.model.egress import BudgetCorrection, BudgetKey, ExitReport, ExitSpec, GrantRequest, HealthRules, HostReport
from shoal.model.item import NewItem
from shoal.model.lane import LanePolicy
from shoal.model.run import Run, RunSpec, StageSpec
from shoal.model.worker import Scope, WorkerReport, WorkerSpec
from shoal.testing.harness import dead, done, retry, skipped
from tests.support.control import client_of, running_app

SCHEDULED = """
[scrapers.shop]
target = "shop.py"
schedule = "0 6 * * *"
"""


def project_settings(folder: Path, ledger: str) -> Settings:
    """The settings of a project with one scheduled scraper."""
    (folder / "shoal.toml").write_text(SCHEDULED)
    return load_settings({"ledger": ledger}, environ={}, folder=folder)


@asynccontextmanager
async def api_on(ledger: Ledger, folder: Path) -> AsyncIterator[httpx.AsyncClient]:
    """A client of `/api/v1` on this ledger, on the same machine."""
    settings = project_settings(folder, str(folder / "none.db"))
    async with running_app(settings, opened=lambda: ledger) as app, client_of(app) as client:
        client.base_url = client.base_url.join("/api/v1/")
        yield client


async def small_run(ledger: Ledger, scraper: str = "shop", *, items: int = 4) -> Run:
    """A run with ready items."""
    run = await ledger.runs.create(
        RunSpec(
            scraper=scraper,
            stages=(StageSpec("listing"), StageSpec("product", lane=LanePolicy(limit=1, delay_min=1, delay_max=2))),
            settings={"concurrency": 4, "api_key": "not-to-be-shown"},
            code_version="7d1f02",
        )
    )
    urls = [NewItem(url=f"https://shop.example/list/{number}", partition="CA") for number in range(items)]
    await ledger.intake.enqueue(run.id, urls)
    return run


async def fill(ledger: Ledger) -> Run:
    """A ledger with two runs, items in every state, lanes, workers, exits, budgets and events. Returns the second run.

    Texts of sites hold what must never run as HTML.
    """
    await small_run(ledger)
    run = await small_run(ledger, items=8)
    worker = "node1-4021-9f2c11aa"
    await ledger.workers.register(
        WorkerSpec(id=worker, node="node1", pid=4021, version="1.0", code="7d1f02", scope=Scope(run_ids=(run.id,)))
    )
    claimed = await ledger.claims.claim(worker, Scope(run_ids=(run.id,)), 6)
    follow_ups = [
        NewItem(url=f"https://shop.example/p/{number}", stage="product", lane="shop.example", partition="MT")
        for number in range(6)
    ]
    record = msgspec.json.encode({"title": "<script>alert(1)</script>", "price": 12.5, "note": None}).decode()
    await ledger.commits.commit(
        worker,
        [
            done(claimed[0], record, '{"title": "=cmd()", "price": 3}', follow_ups=follow_ups),
            dead(claimed[1], "404 Not Found <img src=x onerror=alert(1)>"),
            dead(claimed[2], "connection to https://me:secretsecret@shop.example refused"),
            skipped(claimed[3]),
            retry(claimed[4]),
        ],
    )
    report = WorkerReport(running={run.no: 1}, items=((claimed[5].item, 3.5),), unstored=1)
    await ledger.workers.heartbeat(worker, report)
    exits = [ExitSpec(f"{number:012x}", f"http://192.0.2.{number}:3128") for number in range(1, 5)]
    await ledger.exits.register(worker, "isp", "proxies", exits)
    blocked = HostReport(host="shop.example", blocked=3, blocks_in_row=3, error="403")
    reports = [ExitReport(key=exits[0].key, succeeded=4, hosts=(blocked,)), ExitReport(key=exits[1].key, failed=1)]
    await ledger.exits.report(worker, "isp", reports, HealthRules())
    await ledger.exits.register(worker, "api", "tokens", [ExitSpec("00000000aaaa", "API_TOKEN")])
    said = BudgetCorrection(sent_at=0.0, remaining=40, limit=50)
    await ledger.budgets.take(
        BudgetKey("api", "00000000aaaa", "search"), GrantRequest(grant=1, calls=2, seconds=5.0), said=said
    )
    await ledger.lanes.set("shop.example", limit=1, delay=(1.0, 2.0), by="ann@desk")
    await ledger.settings.put("scraper:shop", {"retries": 3}, by="ann@desk")
    await ledger.upkeep.run_once()
    return run
