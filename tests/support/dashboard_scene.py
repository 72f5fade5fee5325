"""A project whose ledger has something for every page of the dashboard, with texts of sites that try to run."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import NamedTuple

import msgspec

from shoal.config import Settings
from shoal.fleet.process import process_identity
from shoal.ledger.protocols import Ledger
from shoal.model.egress import BudgetCorrection, BudgetKey, ExitReport, ExitSpec, GrantRequest, HealthRules, HostReport
from shoal.model.item import ClaimedItem, NewItem
from shoal.model.lane import LanePolicy
from shoal.model.run import Run, RunSpec, StageSpec
from shoal.model.worker import Scope, WorkerPoolSpec, WorkerReport, WorkerSpec
from shoal.testing.harness import dead, done, retry, skipped
from shoal.testing.site import LocalSite
from shoal.wiring import ledger_context
from tests.support import collections
from tests.support.project import Project

# Should one of them ever run, `__ran` of the page is not empty.
SCRIPT = "<script>window.__ran.push('script')</script>"
IMAGE = "<img src=x onerror=\"window.__ran.push('image')\">"
HOSTILE = f"\"'>{IMAGE}{SCRIPT}</textarea>{{{{7*7}}}}"
HOSTILE_URL = f"https://shop.example/?q={SCRIPT}"
SCRIPT_URL = "javascript:window.__ran.push('link')//"
WORKER = "node1-4021-9f2c11aa"
# The states of the USA.
STATES = (
    *("AL", "AK", "AZ", "AR", "CA", "CO", "CT", "DE", "FL", "GA", "HI", "ID", "IL", "IN", "IA", "KS", "KY"),
    *("LA", "ME", "MD", "MA", "MI", "MN", "MS", "MO", "MT", "NE", "NV", "NH", "NJ", "NM", "NY", "NC", "ND"),
    *("OH", "OK", "OR", "PA", "RI", "SC", "SD", "TN", "TX", "UT", "VT", "VA", "WA", "WV", "WI", "WY", "DC"),
)
SHOP = """
    shop = Scraper("shop", robots=False)

    @shop.stage
    async def page(page: Page):
        yield {"title": page.text, "url": page.url, "price": 12.5}

    shop.start(page.item(f"URL/p/{n}") for n in range(5))
"""
SETTINGS = """
[scrapers.shop]
target = "shop.py"
schedule = "0 6 * * *"
"""


class DashboardScene(NamedTuple):
    """Runs by what they are. `hostile_item`: one whose URL, record and error are hostile. `exit`: one of a pool."""

    active: str
    paused: str
    cancelled: str
    finished: str
    hostile_item: int
    dead_item: int
    exit: str


def prepare(project: Project) -> DashboardScene:
    """Fill the project's ledger: a collection and a scheduled run that really ran, and runs that others work on."""
    with LocalSite() as site:
        for number in range(5):
            site.route(f"/p/{number}", f"<title>{HOSTILE}</title>{HOSTILE}")
        project.write(SHOP.replace("URL", site.url))
        (project.folder / "shoal.toml").write_text(SETTINGS)
        project.shoal("schedule", "now", "shop", "-q")
        project.shoal("run", "shop", "--fresh", "-q")
        collections.set_up(project)
        for number, keys in enumerate(({"group": "north"}, {"group": "north"}, {})):
            collections.add(project, f"de/paper{number}", f"{site.url}/p/{number}", **keys)
        collections.add(project, "de/broken", f"{site.url}/missing")
        project.shoal("run", "configs", "--all", "-q", code=1)
    return asyncio.run(_fill(project))


async def _fill(project: Project) -> DashboardScene:
    async with ledger_context(Settings(ledger=project.ledger), migrate=False) as ledger:
        await _paused(ledger)
        active, hostile_item, dead_item = await _active(ledger)
        await _egress(ledger)
        await _pools(ledger, active)
        await ledger.upkeep.run_once()
        await ledger.failures.group(active.id)
        runs = {run.state.value: run for run in (await ledger.runs.list(scraper="states", limit=50)).rows}
        finished = await ledger.runs.latest("shop")
        assert finished is not None
        return DashboardScene(
            active=active.id,
            paused=runs["paused"].id,
            cancelled=runs["cancelled"].id,
            finished=finished.id,
            hostile_item=hostile_item,
            dead_item=dead_item,
            exit=f"{1:012x}",
        )


async def _new_run(ledger: Ledger) -> Run:
    lane = LanePolicy(limit=2, delay_min=1, delay_max=3)
    return await ledger.runs.create(
        RunSpec(
            scraper="states",
            stages=(StageSpec("page", lane=lane), StageSpec("detail", lane=LanePolicy(ordered=True, shared=False))),
            settings={"concurrency": 4, "title": HOSTILE},
            code_version="7d1f02",
        )
    )


async def _paused(ledger: Ledger) -> None:
    for verb in ("pause", "cancel"):
        run = await _new_run(ledger)
        await ledger.intake.enqueue(run.id, [f"https://shop.example/{verb}/{number}" for number in range(4)])
        await (ledger.runs.pause if verb == "pause" else ledger.runs.cancel)(run.id, by=f"{HOSTILE}@desk")


async def _active(ledger: Ledger) -> tuple[Run, int, int]:
    run = await _new_run(ledger)
    await ledger.workers.register(
        WorkerSpec(
            id=WORKER, node=HOSTILE, pid=4021, version="1.0", code="7d1f02", lease_seconds=86_400,
            scope=Scope(run_ids=(run.id,)),
        )
    )  # fmt: skip
    items = [
        NewItem(url=f"https://{state.lower()}.example/{number}", partition=state, payload={"title": HOSTILE})
        for number in range(4)
        for state in STATES
    ]
    planted = [NewItem(url=HOSTILE_URL, partition=HOSTILE), NewItem(key=SCRIPT_URL, partition="CA")]
    await ledger.intake.enqueue(run.id, [*planted, *items])
    claimed = await _claim(ledger, run, 112)
    follow_ups = [
        NewItem(url=f"https://detail.example/{number}", stage="detail", lane=HOSTILE, partition="NY")
        for number in range(12)
    ]
    record = {"title": HOSTILE, "link": SCRIPT_URL, "price": 12.5, "note": None, "tags": [HOSTILE]}
    records = [msgspec.json.encode(record).decode(), json.dumps({"title": "=cmd()", "price": 3})]
    ends = [done(claimed[0], *records, follow_ups=follow_ups), dead(claimed[1], HOSTILE)]
    ends += [dead(item, "503 Service Unavailable") for item in claimed[2:47]]
    ends += [dead(item, f"404 Not Found {HOSTILE} {item.url}") for item in claimed[47:50]]
    ends += [done(item, records[0]) for item in claimed[50:100]]
    ends += [skipped(item) for item in claimed[100:104]]
    ends += [retry(item, 3600.0, f"read timed out {HOSTILE}") for item in claimed[104:108]]
    await ledger.commits.commit(WORKER, ends)
    await ledger.intake.enqueue(
        run.id,
        [NewItem(url=f"https://{state.lower()}.example/more", lane=f"{state.lower()}.example") for state in STATES],
    )
    held = tuple((item.item, 3.5) for item in claimed[108:])
    await ledger.workers.heartbeat(WORKER, WorkerReport(running={run.no: len(held)}, items=held))
    await ledger.lanes.set("ca.example", limit=1, delay=(1.0, 2.0), by=f"{HOSTILE}@desk")
    await ledger.lanes.block("tx.example", 3600.0, HOSTILE, by="ann@desk")
    await ledger.settings.put("scraper:shop", {"retries": 3}, by="ann@desk")
    return run, claimed[0].item, claimed[1].item


async def _claim(ledger: Ledger, run: Run, number: int) -> list[ClaimedItem]:
    """So many items, the planted ones first."""
    claimed: list[ClaimedItem] = []
    while len(claimed) < number:
        more = await ledger.claims.claim(WORKER, Scope(run_ids=(run.id,)), number - len(claimed))
        assert more
        claimed += more
    return sorted(claimed, key=lambda item: item.item)


async def _egress(ledger: Ledger) -> None:
    exits = [ExitSpec(f"{number:012x}", f"http://192.0.2.{number}:3128") for number in range(1, 9)]
    await ledger.exits.register(WORKER, "isp", "proxies", exits)
    reports = [
        ExitReport(
            key=each.key,
            succeeded=40,
            failed=number,
            hosts=tuple(
                HostReport(host=f"{state.lower()}.example", blocked=3, blocks_in_row=3, error=HOSTILE)
                for state in STATES[number : number + 6]
            ),
        )
        for number, each in enumerate(exits[:5])
    ]
    await ledger.exits.report(WORKER, "isp", reports, HealthRules())
    await ledger.exits.ban("isp", exits[0].key, 3600.0, HOSTILE, by="ann@desk")
    await ledger.exits.rest("isp", exits[6].key, None, by="ann@desk")
    await ledger.exits.register(WORKER, "api", "tokens", [ExitSpec("00000000aaaa", "API_TOKEN")])
    said = BudgetCorrection(sent_at=0.0, remaining=40, limit=50)
    await ledger.budgets.take(
        BudgetKey("api", "00000000aaaa", "search"), GrantRequest(grant=1, calls=2, seconds=5.0), said=said
    )


async def _pools(ledger: Ledger, run: Run) -> None:
    """A pool of another machine."""
    await ledger.pools.register(
        WorkerPoolSpec(
            id="p-other", scraper="states", run_id=run.id, node=f"not-{socket.gethostname()}", pid=1,
            process=process_identity(1) or "?", wanted=2,
        )
    )  # fmt: skip
