"""The checks of `shoal doctor`. Each says what it found and, when something is wrong, what to do about it."""

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
from shoal.observe.snapshot import REMEDY, format_counts, version_skew

SLOW_SECONDS = 0.25
MAX_SKEW = 5.0
MAX_SESSIONS = 0.8
# Of a worker: one for heartbeats, one for its work, one that listens.
CONNECTIONS_NEEDED = 3
MAX_TRANSACTION = 600.0
STALE_SECONDS = 1_800.0
MIN_DISK = 512 << 20
SAMPLES = 3
SAMPLE_PAUSE = 0.1


class Check(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    ok: bool
    text: str
    fix: str = ""


async def check_ledger(ledger: Ledger, *, version: str) -> list[Check]:
    """All that the ledger itself can tell. `version`: of this code, to compare the workers' with."""
    checks = [await _check_latency(ledger), await _check_schema(ledger)]
    if not all(check.ok for check in checks[1:]):
        return checks  # nothing else can be asked
    try:
        health = [await ledger.health.check()]
        checks.append(_check_clock(health[0].clock, dt.datetime.now(dt.UTC)))
        if health[0].sessions is not None:
            for _ in range(SAMPLES - 1):
                await asyncio.sleep(SAMPLE_PAUSE)
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
        asked = time.perf_counter()
        await ledger.schema.version()
        seconds.append(time.perf_counter() - asked)
    text = f"answers within {min(seconds) * 1000:.2f} ms"
    if min(seconds) <= SLOW_SECONDS:
        return Check(name="ledger", ok=True, text=text)
    return Check(name="ledger", ok=False, text=text, fix="Run the workers nearer to the database, or relieve it.")


async def _check_schema(ledger: Ledger) -> Check:
    try:
        await ledger.schema.require_current()
    except ShoalError as error:
        return Check(name="schema", ok=False, text=error.message, fix=error.remedy)
    return Check(name="schema", ok=True, text=f"version {await ledger.schema.version()}, current")


def _check_clock(ledger: dt.datetime, here: dt.datetime) -> Check:
    skew = (here - ledger).total_seconds()
    if abs(skew) <= MAX_SKEW:
        return Check(name="clock", ok=True, text=f"within {max(0.1, abs(skew)):.1f} s of the ledger's")
    word = "ahead of" if skew > 0 else "behind"
    return Check(
        name="clock",
        ok=False,
        text=f"this machine's clock is {format_duration(abs(skew))} {word} the ledger's",
        fix="Synchronise the clocks (NTP). Work goes by the ledger's clock; times in logs differ.",
    )


def check_server(health: list[HealthReport], workers: int = 0) -> list[Check]:
    """A database server: its connections, lock waits (S0.20) and long transactions, over a few samples.

    `workers`: how many are present; each needs CONNECTIONS_NEEDED of the server's connections to work undisturbed.
    """
    last = health[-1]
    most = max(1, last.most_sessions or 1)
    needed = workers * CONNECTIONS_NEEDED
    share = max(last.sessions or 0, needed) / most
    in_use = f"{last.sessions} of {last.most_sessions} ({format_percent((last.sessions or 0) / most)}) are in use"
    if workers:
        in_use += f"; {pluralize(workers, 'worker')}, {CONNECTIONS_NEEDED} each, make {needed}"
    # One wait in one sample is everyday life; waits in every sample are a queue.
    waits = min(one.lock_waits or 0 for one in health)
    longest = last.longest_transaction or 0.0
    return [
        Check(
            name="connections",
            ok=share <= MAX_SESSIONS,
            text=in_use,
            fix="" if share <= MAX_SESSIONS else "Raise max_connections, use PgBouncer, or start fewer workers.",
        ),
        Check(
            name="locks",
            ok=waits == 0,
            text=f"{waits or 'no'} sessions wait for a lock",
            fix="" if waits == 0 else "See pg_blocking_pids() in pg_stat_activity; look for an open transaction.",
        ),
        Check(
            name="transactions",
            ok=longest <= MAX_TRANSACTION,
            text=f"the longest is open for {format_duration(longest)}" if longest else "none is open",
            fix="" if longest <= MAX_TRANSACTION else "End it: it holds back vacuum, and the tables grow.",
        ),
    ]


def check_versions(workers: list[WorkerView], version: str) -> Check:
    others = sorted({worker.version or "unknown" for worker in workers if worker.version != version})
    if not others:
        text = f"all {len(workers)} workers run {version}" if workers else f"this is {version}; no worker is alive"
        return Check(name="versions", ok=True, text=text)
    return Check(
        name="versions",
        ok=False,
        text=f"some workers run {', '.join(others)}, this is {version}",
        fix="Upgrade them, one after the other: `shoal workers stop` lets each finish first.",
    )


def check_code(workers: list[WorkerView]) -> Check:
    """Whether the workers of each scraper have the same code."""
    scrapers = sorted({worker.scope.scraper for worker in workers if worker.scope.scraper})
    problems = []
    for scraper in scrapers:
        codes = version_skew(worker for worker in workers if worker.scope.scraper == scraper).codes
        if len(codes) > 1:
            problems.append(f"{scraper} has {format_counts(codes)}")
    if not problems:
        return Check(name="code", ok=True, text="the workers of a scraper all have the same")
    return Check(name="code", ok=False, text="it differs between workers: " + "; ".join(problems), fix=REMEDY)


def check_heartbeats(workers: list[WorkerView]) -> Check:
    """Whether all that are registered as present are alive."""
    silent = [(worker, why) for worker in workers if (why := heartbeat_problem(worker)) is not None]
    if not silent:
        return Check(name="workers", ok=True, text=f"{len(workers)} present, all with a fresh heartbeat")
    worker, why = silent[0]
    return Check(
        name="workers",
        ok=False,
        text=f"{len(silent)} of {len(workers)} are dead or cut off; {worker.id}: {why}",
        fix="Start any worker: it gives their items back. `shoal release` does it by hand.",
    )


def check_trouble(workers: list[WorkerView]) -> Check:
    """Whether workers say that they cannot go on."""
    problems = [(worker, worker.report.trouble) for worker in workers if worker.report and worker.report.trouble]
    if not problems:
        return Check(name="storing", ok=True, text="no worker says that it cannot store")
    worker, trouble = problems[0]
    return Check(
        name="storing",
        ok=False,
        text=f"{len(problems)} of {len(workers)} workers cannot store; {worker.id}: {trouble}",
        fix="Free some space where the ledger is: they wait for it, and nothing is lost meanwhile.",
    )


async def _check_stale(ledger: Ledger) -> Check:
    stale = await ledger.reads.stale(older_than=STALE_SECONDS, limit=100)
    if not stale:
        return Check(name="leases", ok=True, text=f"none is older than {format_duration(STALE_SECONDS)}")
    many = "100 or more" if len(stale) == 100 else str(len(stale))
    return Check(
        name="leases",
        ok=False,
        text=f"{many} are older than {format_duration(STALE_SECONDS)}; the oldest by {stale[0].claimed_by}",
        fix=f"If that is longer than an item takes: `shoal release --older-than {STALE_SECONDS:.0f}`.",
    )


def check_disk(path: Path) -> Check:
    """Where a SQLite ledger lies."""
    try:
        free = shutil.disk_usage(path.parent).free
    except OSError as error:
        return Check(name="disk", ok=False, text=f"{path.parent}: {error.strerror}", fix="Check the disk.")
    text = f"{free / (1 << 30):.1f} GiB free at {path.parent}"
    if free >= MIN_DISK:
        return Check(name="disk", ok=True, text=text)
    return Check(name="disk", ok=False, text=text, fix="Free some space: with none left, nothing can be stored.")
