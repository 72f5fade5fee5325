"""Judges the runs of a campaign by the rows of the ledger, and their requests by the logs of the site."""

from __future__ import annotations

from collections import defaultdict
from urllib.parse import urlsplit

import asyncpg

from shoal.config import Settings
from shoal.wiring import ledger_context
from tests.chaos.hostile_site import KINDS
from tests.chaos.logged_site import LoggedSite
from tests.chaos.report import CampaignReport, RunReport
from tests.chaos.scene import Scene
from tests.chaos.side_runs import Proxies
from tests.chaos.site_log import Excuses, LostLease, Politeness, judge

# How the items of a page must end, by the first part of its path.
ENDS = {
    **dict.fromkeys(("page", "slow", "unsteady", "throttled", "moved"), ("done", "done")),
    "missing": ("dead", "permanent"),
    **{name: (kind.state, kind.outcome) for name, kind in KINDS.items()},
}
_ENDED = """
    select split_part(i.url, '/', 4) as kind, o.state, o.outcome, count(*) as items, min(i.url) as url,
           min(o.error) as error
    from shoal.outcome o join shoal.item i on i.run = o.run and i.id = o.item
    where o.run = $1 group by 1, 2, 3
"""
_OPEN = """
    select (select count(*) from shoal.lease where run = $1) + (select count(*) from shoal.delayed where run = $1)
         + (select count(*) from shoal.waiting where run = $1)
         + (select count(*) from shoal.ready r join shoal.queue q on q.id = r.queue where q.run = $1)
"""
_RESULTS = "select count(*) as records, count(distinct item) as items from shoal.result where run = $1"
_OF_ANOTHER_PAGE = """
    select count(*) from shoal.result r join shoal.item i on i.run = r.run and i.id = r.item
    join shoal.stage g on g.id = i.stage
    where r.run = $1 and g.name = 'page' and r.record ->> 'title' is distinct from
        regexp_replace(regexp_replace(i.url, '^[a-z]+://[^/]+', ''), '^/moved/', '/page/moved-')
"""
_LOST_LEASES = """
    select a.item, a.run, i.url, w.node, a.epoch, extract(epoch from a.claimed_at)::float8 as claimed,
           extract(epoch from a.ended_at)::float8 as ended
    from shoal.attempt a join shoal.worker w on w.no = a.worker
    join shoal.item i on i.run = a.run and i.id = a.item
    where a.outcome in ('crashed', 'released')
"""
_CLAIMS = """
    select e.item, w.node, e.epoch, extract(epoch from e.claimed_at)::float8 as claimed
    from (select item, worker, epoch, claimed_at from shoal.attempt
          union all select item, worker, epoch, claimed_at from shoal.outcome) e
    join shoal.worker w on w.no = e.worker where e.item = any ($1)
"""


async def judge_runs(scene: Scene, report: CampaignReport) -> None:
    """Whether each item has ended as it must, exactly once, with the record of its own page."""
    connection = await asyncpg.connect(scene.fleet.operator.ledger)
    try:
        for name, team in scene.teams.items():
            number = await connection.fetchval("select no from shoal.run where id = $1", team.run_id)
            report.runs[name].worker_restarts = team.restarts
            await _judge_run(connection, number, report.runs[name], report.hostile_pages)
    finally:
        await connection.close()
    async with ledger_context(Settings(ledger=scene.fleet.operator.ledger), migrate=False) as ledger:
        report.audit = [f"{finding.rule}: {finding.detail}" for finding in await ledger.upkeep.audit()]


async def _judge_run(connection: asyncpg.Connection, run: int, report: RunReport, hostile: dict[str, int]) -> None:
    ended = 0
    for row in await connection.fetch(_ENDED, run):
        ended += row["items"]
        report.done += row["items"] if row["state"] == "done" else 0
        report.dead += row["items"] if row["state"] == "dead" else 0
        if row["kind"] in KINDS:
            hostile[row["kind"]] = hostile.get(row["kind"], 0) + row["items"]
        if (row["state"], row["outcome"]) != ENDS[row["kind"]]:
            how = f"{row['state']} ({row['outcome']})"
            report.wrong.append(f"{row['items']} ended as {how}, such as {row['url']}: {row['error']}")
    report.unfinished = await connection.fetchval(_OPEN, run)
    (results,) = await connection.fetch(_RESULTS, run)
    report.stored_twice = results["records"] - results["items"]
    report.lost = max(0, report.items - ended - report.unfinished) + max(0, report.done - results["items"])
    if (surplus := ended + report.unfinished - report.items) > 0:
        report.wrong.append(f"{surplus} items more than were enqueued")
    if strange := await connection.fetchval(_OF_ANOTHER_PAGE, run):
        report.wrong.append(f"{strange} records are of another page")


async def judge_visits(scene: Scene, site: LoggedSite, proxies: Proxies, tolerance: float) -> Politeness:
    excuses = Excuses(scene.disturbances, await _lost_leases(scene))
    return judge(site.visits(), site.rules(proxies.addresses), excuses, tolerance)


async def _lost_leases(scene: Scene) -> list[LostLease]:
    """Every lease that the ledger took from its worker, as its attempts say."""
    addresses = {node.name: node.address for node in scene.fleet.lab.nodes}
    connection = await asyncpg.connect(scene.fleet.operator.ledger)
    try:
        lost = [row for row in await connection.fetch(_LOST_LEASES) if row["node"] in addresses]
        claims: dict[tuple[int, str], list[tuple[int, float]]] = defaultdict(list)
        for row in await connection.fetch(_CLAIMS, list({row["item"] for row in lost})):
            claims[row["item"], row["node"]].append((row["epoch"], row["claimed"]))
    finally:
        await connection.close()
    found = []
    for row in lost:
        later = [claimed for epoch, claimed in claims[row["item"], row["node"]] if epoch > row["epoch"]]
        parts = urlsplit(row["url"])
        found.append(
            LostLease(
                server=parts.hostname or "",
                path=parts.path,
                remote=addresses[row["node"]],
                claimed=row["claimed"],
                ended=row["ended"],
                next_claim=min(later, default=float("inf")),
            )
        )
    return found
