"""Plans a job: the figures of `model/capacity.py` with measured costs, why it is not faster, and what to do then."""

from __future__ import annotations

import math
import re
from typing import Literal

import msgspec

from shoal.errors import InvalidSetting
from shoal.model.capacity import (
    BUSY_SHARE,
    MANY_CONNECTIONS,
    MOST_CORES,
    ROBOTS_KEPT,
    SHORTEST_SECONDS,
    STORED_SHARE,
    CapacityJob,
    CapacityPlan,
    make_capacity_plan,
)
from shoal.model.page_costs import MEASURED, PageCosts

# What one ledger was measured with, from end to end; a larger run is extrapolated.
MEASURED_ITEMS = 10_000_000
# Above this a job is better several runs: each is exported and removed while the next one is worked on.
PAGES_OF_A_RUN = 100_000_000
MOST_CONCURRENCY = 128
# A change is worth a sentence from this factor on.
WORTH = 1.15
ROBOTS_SHARE = 0.05
MANY_FILES = 10_000_000
Unit = Literal["bytes", "bits", ""]
_QUANTITY = re.compile(
    r"(?P<number>\d+(?:\.\d+)?(?:e\d+)?)\s*(?:(?P<power>[kmgtp])(?P<binary>i?))?"
    r"(?:(?P<bytes>b|bytes?)|(?P<bits>bits?|bps))?(?P<rate>/s)?",
    re.IGNORECASE,
)
_POWERS = {"k": 1, "m": 2, "g": 3, "t": 4, "p": 5}


class PlannedJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job with its plan. `reason`: why it is not faster; `advice`: what to do, one sentence or two each."""

    job: CapacityJob
    plan: CapacityPlan
    reason: str
    advice: tuple[str, ...]
    measured_on: str


def parse_quantity(option: str, text: str, example: str, unit: Unit = "") -> float:
    """`50KB`, `1.5MiB`, `300`, `1Gbit`, `1e6`, `2M` as a number of this unit, which need not be written.

    Bandwidths may also be written in bytes a second, sizes not in bits. Raises InvalidSetting for anything else.
    """
    found = _QUANTITY.fullmatch(text.strip().replace(",", ""))
    written = {name for name in ("bytes", "bits", "rate") if found and found[name]}
    allowed = {"bytes": {"bytes"}, "bits": {"bytes", "bits", "rate"}, "": set[str]()}[unit]
    if found is None or not written <= allowed:
        what = {"bytes": "a number of bytes", "bits": "bits a second", "": "a number"}[unit]
        raise InvalidSetting(f"{option} is {text!r}; it must be {what}.", remedy=f"Write it as {example}.")
    base = 1_024 if found["binary"] else 1_000
    factor: int = base ** _POWERS.get((found["power"] or "").lower(), 0)
    return float(found["number"]) * factor * (8 if unit == "bits" and found["bytes"] else 1)


def plan_job(job: CapacityJob, costs: PageCosts = MEASURED) -> PlannedJob:
    """What the job needs. Raises InvalidSetting for values that are out of range."""
    plan = make_capacity_plan(job.checked(), costs)
    return PlannedJob(
        job=job,
        plan=plan,
        reason=_reason(job, plan),
        advice=tuple(text for text in _advice(job, plan, costs) if text),
        measured_on=costs.measured_on,
    )


def _reason(job: CapacityJob, plan: CapacityPlan) -> str:
    if plan.bottleneck == "hours":
        return f"Nothing is in the way of {_hours(job)}."
    if plan.bottleneck == "pages" and math.isclose(plan.hours * 3_600, SHORTEST_SECONDS):
        return "It is a small job: more workers would only make it shorter than a minute."
    late = ""
    if plan.wanted_rate is not None:
        late = f"{_hours(job)} would need {plan.wanted_rate:,.0f} pages/s. "
    return late + _limit_text(job, plan)


def _limit_text(job: CapacityJob, plan: CapacityPlan) -> str:
    match plan.bottleneck:
        case "hosts":
            return f"The hosts are the limit: {_host_text(job)}. More workers do not help."
        case "network":
            return "The network is the limit."
        case "workers":
            why = (
                "each has one core, which is busy"
                if _has_busy_cores(job, plan)
                else "all their slots wait for the site"
            )
            return f"The workers are the limit: {why}."
        case "connections":
            return (
                f"Connections are the limit: {plan.workers:,} workers open up to {plan.connections:,}, and "
                f"PostgreSQL should have no more than {MANY_CONNECTIONS}. With PgBouncer in between its processor "
                "would do fewer pages."
            )
        case "enqueueing":
            return "Enqueueing is the limit: one process stores no more items."
        case "pages":
            return "All pages are fetched at once: it takes as long as one page."
        case _:
            share = f"{BUSY_SHARE:.0%} of {job.database_cores:g} cores"
            return f"PostgreSQL is the limit: {share} do no more."


def _hours(job: CapacityJob) -> str:
    return "1 hour" if job.hours == 1 else f"{job.hours:,.6g} hours"


def _has_busy_cores(job: CapacityJob, plan: CapacityPlan) -> bool:
    """Whether workers have slots left, but no processor time."""
    return plan.worker_rate * job.latency < 0.8 * job.concurrency


def _host_text(job: CapacityJob) -> str:
    if job.delay > 0 and job.delay * job.per_host >= job.latency:
        return f"a page every {job.delay:g} s from each"
    return f"{job.per_host:g} at once from each, {job.latency:g} s a page"


def _advice(job: CapacityJob, plan: CapacityPlan, costs: PageCosts) -> list[str]:
    texts = []
    if plan.bottleneck in ("database", "connections"):
        texts += [_fewer_workers(job, plan, costs)]
        texts += [_larger_batches(job, plan, costs), _more_cores(job, plan, costs), _several_ledgers(job, plan)]
    if plan.bottleneck == "hosts":
        texts.append(
            "Only a shorter delay or more pages at once, if the sites allow it, make it shorter. Hosts of unequal size "
            "take longer: one with n pages needs n times its delay."
        )
    if plan.bottleneck == "workers":
        more = "" if _has_busy_cores(job, plan) else ", or raise the concurrency as long as their cores are not busy"
        texts.append(f"Start more workers{more}.")
    if plan.pooled:
        direct = plan.workers * costs.connections
        texts.append(
            f"Put PgBouncer in transaction mode between: the workers open up to {direct:,.0f} connections, and "
            f"PostgreSQL should have no more than {MANY_CONNECTIONS}. Give PgBouncer a max_client_conn of at least "
            f"that, and a default_pool_size of {plan.connections:,} to begin with."
        )
    if MEASURED_ITEMS < job.pages <= PAGES_OF_A_RUN:
        texts.append(
            f"Up to {MEASURED_ITEMS:,} items in one ledger were measured; this is {job.pages / MEASURED_ITEMS:,.3g} "
            "times as many. Costs stayed the same up to there."
        )
    if job.pages > PAGES_OF_A_RUN:
        runs = -(-job.pages // PAGES_OF_A_RUN)
        texts.append(
            f"Make it {runs:,.0f} runs of {PAGES_OF_A_RUN:,} pages: enqueue one while the last is worked on, export "
            f"it, remove it with `shoal runs rm`. Up to {MEASURED_ITEMS:,} items in one ledger were measured; tables "
            "are not partitioned by run, so removing runs is what keeps them small."
        )
    if job.hosts is not None and plan.robots_requests > ROBOTS_SHARE * job.pages:
        texts.append(
            f"Each worker reads the robots.txt of the hosts that it visits, and keeps {ROBOTS_KEPT:,} of them for a "
            f"day: up to {plan.robots_requests:,.0f} requests more. They are fewer with partitions by host and workers "
            "that keep to theirs (--partition)."
        )
    if job.store and job.pages > MANY_FILES:
        texts.append(
            f"The store has one file a page: {job.pages:,.0f} inodes. A share of {STORED_SHARE:g} for compressed pages "
            "is assumed, not measured."
        )
    return texts


def _fewer_workers(job: CapacityJob, plan: CapacityPlan, costs: PageCosts) -> str:
    """Workers beyond what the database can keep up with only take from it."""
    if job.workers is None:
        return ""
    other = make_capacity_plan(msgspec.structs.replace(job, workers=None), costs)
    if other.workers >= job.workers or other.rate < plan.rate:
        return ""
    return (
        f"Fewer workers: {other.workers:,} with all their slots busy do {other.rate:,.0f} pages/s. Each worker costs "
        "PostgreSQL heartbeats and maintenance, and pages of a worker with few of them share no calls."
    )


def _larger_batches(job: CapacityJob, plan: CapacityPlan, costs: PageCosts) -> str:
    """Fewer workers with more slots each: their pages share claims and commits."""
    more = min(MOST_CONCURRENCY, 4 * job.concurrency)
    if more <= job.concurrency:
        return ""
    other = make_capacity_plan(msgspec.structs.replace(job, concurrency=more), costs)
    if other.rate < WORTH * plan.rate:
        return ""
    return (
        f"Batching: with --concurrency {more:g} pages share claims and commits, {other.rate:,.0f} pages/s by "
        f"{other.workers:,} workers in {other.hours:,.3g} hours."
    )


def _more_cores(job: CapacityJob, plan: CapacityPlan, costs: PageCosts) -> str:
    cores = min(MOST_CORES, 2 * job.database_cores)
    other = make_capacity_plan(msgspec.structs.replace(job, database_cores=cores), costs)
    if other.rate < WORTH * plan.rate:
        return ""
    return (
        f"A larger server: {cores:g} cores do {other.rate:,.0f} pages/s. Costs were measured on two "
        "cores; that more of them share the work evenly is assumed."
    )


def _several_ledgers(job: CapacityJob, plan: CapacityPlan) -> str:
    if plan.ledgers < 2:
        return ""
    hosts = " All pages of a host go to the same one: limits and delays hold within one ledger." if job.hosts else ""
    if plan.wanted_rate is None:
        what = f"each further PostgreSQL server adds {plan.rate:,.0f} pages/s,"
    else:
        what = f"{plan.ledgers:,} PostgreSQL servers like this do it in time, each"
    return f"Several ledgers: {what} with its part of the pages and workers of its own.{hosts}"
