"""The checks of `shoal doctor`. Each states what it found and, on failure, the fix."""

from __future__ import annotations

import asyncio
import datetime as dt
import shutil
import time
from pathlib import Path

import msgspec

from shoal.errors import LedgerError, ShoalError
from shoal.ledger.explain import heartbeat_problem
from shoal.ledger.protocols import Ledger
from shoal.model.views import HealthReport
from shoal.model.worker import WorkerView
from shoal.observe.formatting import format_duration, format_percent, pluralize
from shoal.observe.snapshot import VERSION_SKEW_REMEDY, format_counts, version_skew

MAX_LATENCY_SECONDS = 0.25
MAX_CLOCK_SKEW_SECONDS = 5.0
MAX_CONNECTION_SHARE = 0.8
# One for heartbeats, one for claims and commits, one for LISTEN.
CONNECTIONS_PER_WORKER = 3
MAX_TRANSACTION_SECONDS = 600.0
STALE_LEASE_SECONDS = 1_800.0
MAX_STALE_LISTED = 100
MIN_FREE_BYTES = 512 << 20
SAMPLES = 3
SAMPLE_SECONDS = 0.1


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """What a check found. `warning`: it is not wrong, but an operator should know; `ok` is then true."""

    name: str
    ok: bool
    text: str
    fix: str = ""
    warning: bool = False

    @property
    def severity(self) -> str:
        """`critical`: it is wrong; `warning`; `info`: all is well."""
        return "critical" if not self.ok else "warning" if self.warning else "info"


async def check_ledger(ledger: Ledger, *, version: str) -> list[Check]:
    """Check the ledger and its workers. `version` is this code's, compared with the workers'."""
    checks = [await _check_latency(ledger), await _check_schema(ledger)]
    if not all(check.ok for check in checks[1:]):
        return checks  # the other checks need the current schema
    try:
        health = [await ledger.health.check()]
        checks.append(_check_clock(health[0].clock, dt.datetime.now(dt.UTC)))
        if health[0].sessions is not None:
            for _ in range(SAMPLES - 1):
                await asyncio.sleep(SAMPLE_SECONDS)
                health.append(await ledger.health.check())
            checks += check_server(health, len(await ledger.workers.list()))
        workers = await ledger.workers.list()
        alive = [worker for worker in workers if worker.alive]
        checks += [check_versions(alive, version), check_code(alive), check_heartbeats(workers), check_trouble(alive)]
        checks.append(await _check_stale(ledger))
    except LedgerError as error:
        checks.append(Check(name="ledger", ok=False, text=error.message, fix=error.remedy))
    return checks


async def _check_latency(ledger: Ledger) -> Check:
    seconds = []
    for _ in range(SAMPLES):
        started_at = time.perf_counter()
        await ledger.schema.version()
        seconds.append(time.perf_counter() - started_at)
    text = f"answers within {min(seconds) * 1000:.2f} ms"
    if min(seconds) <= MAX_LATENCY_SECONDS:
        return Check(name="ledger", ok=True, text=text)
    return Check(name="ledger", ok=False, text=text, fix="Run the workers closer to the database, or reduce its load.")


async def _check_schema(ledger: Ledger) -> Check:
    try:
        await ledger.schema.require_current()
    except ShoalError as error:
        return Check(name="schema", ok=False, text=error.message, fix=error.remedy)
    return Check(name="schema", ok=True, text=f"version {await ledger.schema.version()}, current")


def _check_clock(ledger_now: dt.datetime, local_now: dt.datetime) -> Check:
    skew = (local_now - ledger_now).total_seconds()
    if abs(skew) <= MAX_CLOCK_SKEW_SECONDS:
        return Check(name="clock", ok=True, text=f"within {max(0.1, abs(skew)):.1f} s of the ledger's")
    direction = "ahead of" if skew > 0 else "behind"
    return Check(
        name="clock",
        ok=False,
        text=f"this machine's clock is {format_duration(abs(skew))} {direction} the ledger's",
        fix="Synchronise the clocks (NTP). Runs use the ledger's clock, but times in logs are off.",
    )


def check_server(health: list[HealthReport], workers: int = 0) -> list[Check]:
    """Check a database server's connections, lock waits (S0.20) and long transactions over several samples.

    `workers` is the number of registered workers; each needs CONNECTIONS_PER_WORKER connections.
    """
    last = health[-1]
    max_sessions = max(1, last.most_sessions or 1)
    needed = workers * CONNECTIONS_PER_WORKER
    share = max(last.sessions or 0, needed) / max_sessions
    in_use = (
        f"{last.sessions} of {last.most_sessions} ({format_percent((last.sessions or 0) / max_sessions)}) are in use"
    )
    if workers:
        in_use += f"; {pluralize(workers, 'worker')}, {CONNECTIONS_PER_WORKER} each, need {needed}"
    # A wait in one sample is normal; waits in every sample mean that sessions queue.
    waits = min(report.lock_waits or 0 for report in health)
    longest = last.longest_transaction or 0.0
    return [
        Check(
            name="connections",
            ok=share <= MAX_CONNECTION_SHARE,
            text=in_use,
            fix=""
            if share <= MAX_CONNECTION_SHARE
            else "Raise max_connections, use PgBouncer, or start fewer workers.",
        ),
        Check(
            name="locks",
            ok=waits == 0,
            text=f"{waits or 'no'} sessions are waiting for a lock",
            fix="" if waits == 0 else "Find the blocking session with pg_blocking_pids() and pg_stat_activity.",
        ),
        Check(
            name="transactions",
            ok=longest <= MAX_TRANSACTION_SECONDS,
            text=f"the longest has been open for {format_duration(longest)}" if longest else "none is open",
            fix="" if longest <= MAX_TRANSACTION_SECONDS else "End it: it blocks vacuum, so tables grow.",
        ),
    ]


def check_versions(workers: list[WorkerView], version: str) -> Check:
    others = sorted({worker.version or "unknown" for worker in workers if worker.version != version})
    if not others:
        text = (
            f"{pluralize(len(workers), 'worker')}, of version {version}"
            if workers
            else f"this is {version}; no worker is alive"
        )
        return Check(name="versions", ok=True, text=text)
    return Check(
        name="versions",
        ok=False,
        text=f"some workers run {', '.join(others)}, this is {version}",
        fix="Upgrade them one by one: `shoal workers stop` lets each finish its items first.",
    )


def check_code(workers: list[WorkerView]) -> Check:
    """Check that the workers of each scraper run the same code."""
    scrapers = sorted({worker.scope.scraper for worker in workers if worker.scope.scraper})
    problems = []
    for scraper in scrapers:
        codes = version_skew(worker for worker in workers if worker.scope.scraper == scraper).codes
        if len(codes) > 1:
            problems.append(f"{scraper}: {format_counts(codes)}")
    if not problems:
        return Check(name="code", ok=True, text="all workers of a scraper run the same code")
    return Check(
        name="code",
        ok=False,
        text="workers of a scraper run different code: " + "; ".join(problems),
        fix=VERSION_SKEW_REMEDY,
    )


def check_heartbeats(workers: list[WorkerView]) -> Check:
    """Check that every registered worker has a fresh heartbeat."""
    dead = [(worker, why) for worker in workers if (why := heartbeat_problem(worker)) is not None]
    if not dead:
        return Check(name="workers", ok=True, text=f"{len(workers)} registered, all with a fresh heartbeat")
    worker, why = dead[0]
    return Check(
        name="workers",
        ok=False,
        text=f"{len(dead)} of {len(workers)} are dead or disconnected; {worker.id}: {why}",
        fix="Start any worker: it releases their items. Or run `shoal release`.",
    )


def check_trouble(workers: list[WorkerView]) -> Check:
    """Check whether workers report that they cannot commit."""
    problems = [(worker, worker.report.trouble) for worker in workers if worker.report and worker.report.trouble]
    if not problems:
        return Check(name="storing", ok=True, text="no worker reports that it cannot store results")
    worker, trouble = problems[0]
    return Check(
        name="storing",
        ok=False,
        text=f"{len(problems)} of {pluralize(len(workers), 'worker')} cannot store results; {worker.id}: {trouble}",
        fix="Free disk space for the ledger: the workers wait, and nothing is lost.",
    )


async def _check_stale(ledger: Ledger) -> Check:
    stale = await ledger.reads.stale(older_than=STALE_LEASE_SECONDS, limit=MAX_STALE_LISTED)
    if not stale:
        return Check(name="leases", ok=True, text=f"none is older than {format_duration(STALE_LEASE_SECONDS)}")
    count = f"{len(stale)} or more" if len(stale) == MAX_STALE_LISTED else str(len(stale))
    return Check(
        name="leases",
        ok=False,
        text=f"{count} are older than {format_duration(STALE_LEASE_SECONDS)}; {stale[0].claimed_by} holds the oldest",
        fix=f"If that is longer than an item takes: `shoal release --older-than {STALE_LEASE_SECONDS:.0f}`.",
    )


def check_disk(path: Path) -> Check:
    """Check the free space on the disk of a SQLite ledger."""
    try:
        free = shutil.disk_usage(path.parent).free
    except OSError as error:
        return Check(name="disk", ok=False, text=f"{path.parent}: {error.strerror}", fix="Check the disk.")
    text = f"{free / (1 << 30):.1f} GiB free at {path.parent}"
    if free >= MIN_FREE_BYTES:
        return Check(name="disk", ok=True, text=text)
    return Check(name="disk", ok=False, text=text, fix="Free disk space: on a full disk nothing can be stored.")
