"""The view `url_work_queue`: the monitoring queries of an older URL queue run unchanged, in time, on both ledgers."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from shoal import url_hash
from shoal.ledger.postgres.ledger import open_postgres
from shoal.ledger.protocols import Ledger
from shoal.ledger.sqlite.ledger import open_sqlite
from shoal.model.item import NewItem
from shoal.model.run import RunSpec, StageSpec
from shoal.model.worker import Scope, WorkerSpec
from shoal.testing.harness import dead, done, retry
from tests.support import LONG

URLS = [f"https://prices.example/drug/{n}" for n in range(6)]
MANY = 1_000_000 if LONG else 20_000
# A count over a million rows took 1 to 3 s on two busy cores; a query of a few rows some milliseconds.
MAX_SECONDS = 60.0


@pytest.fixture
async def ledger(place: Path | str) -> AsyncIterator[Ledger]:
    ledger = await open_sqlite(place) if isinstance(place, Path) else await open_postgres(place)
    await ledger.schema.migrate()
    yield ledger
    await ledger.close()


async def ask(place: Path | str, sql: str) -> list[tuple[Any, ...]]:
    """The rows that a person gets; on PostgreSQL the schema is in the search path, as the recipe's view makes it."""
    if isinstance(place, Path):
        connection = sqlite3.connect(place)
        try:
            return [tuple(row) for row in connection.execute(sql)]
        finally:
            connection.close()
    person = await asyncpg.connect(place, server_settings={"search_path": "public, shoal"})
    try:
        return [tuple(row.values()) for row in await person.fetch(sql)]
    finally:
        await person.close()


async def test_the_queries_of_the_old_queue_run_unchanged(ledger: Ledger, place: Path | str) -> None:  # S1.18-S1.23
    run = await ledger.runs.create(RunSpec(scraper="india", stages=(StageSpec("page"),), max_attempts=4))
    other = await ledger.runs.create(RunSpec(scraper="malaysia", stages=(StageSpec("page"),)))
    await ledger.intake.enqueue(run.id, [NewItem(url=url, priority=-n) for n, url in enumerate(URLS)])
    await ledger.intake.enqueue(other.id, [URLS[0]])
    await ledger.workers.register(WorkerSpec(id="node-1-abc", node="node", pid=1))
    first, second, third, fourth = await ledger.claims.claim("node-1-abc", Scope(run_ids=(run.id,)), 4)
    assert first.url == URLS[5]  # S1.22: the higher priority of the old queue, a smaller number here
    await ledger.commits.commit(
        "node-1-abc", [done(first, '{"price": 1}'), dead(second, "404 Not Found"), retry(third, 3600, "reset")]
    )
    assert fourth.url == URLS[2]

    depth = f"SELECT status, COUNT(*) FROM url_work_queue WHERE run_id = '{run.id}' GROUP BY status"
    assert dict(await ask(place, depth)) == {"pending": 3, "claimed": 1, "completed": 1, "failed": 1}
    workers = (
        "SELECT worker_id, COUNT(*) AS claimed_urls FROM url_work_queue WHERE status = 'claimed' GROUP BY worker_id"
    )
    assert await ask(place, workers) == [("node-1-abc", 1)]
    failed = "SELECT url, error_message, retry_count FROM url_work_queue WHERE run_id = '{}' AND status = 'failed'"
    assert await ask(place, failed.format(run.id)) == [(URLS[4], "404 Not Found", 0)]
    next_ones = (
        "SELECT url, priority, retry_count, max_retries, error_message FROM url_work_queue "
        f"WHERE scraper_name = 'india' AND run_id = '{run.id}' AND status = 'pending' ORDER BY priority DESC"
    )
    assert await ask(place, next_ones) == [
        (URLS[3], 3, 1, 3, "reset"),
        (URLS[1], 1, 0, 3, None),
        (URLS[0], 0, 0, 3, None),
    ]
    hashes = f"SELECT url, url_hash FROM url_work_queue WHERE run_id = '{run.id}'"  # S1.20
    assert dict(await ask(place, hashes)) == {url: url_hash(url) for url in URLS}
    held = f"SELECT claimed_at IS NOT NULL, worker_id FROM url_work_queue WHERE url = '{URLS[2]}'"
    assert [(bool(claimed), worker) for claimed, worker in await ask(place, held)] == [(True, "node-1-abc")]
    stored = f"SELECT record FROM url_results WHERE run_id = '{run.id}' AND url_hash = '{url_hash(URLS[5])}'"
    assert [row[0].replace(" ", "") for row in await ask(place, stored)] == ['{"price":1}']  # S1.12
    assert (await ledger.reads.stats(run.id)).by_status() == {  # S1.9
        "pending": 3,
        "claimed": 1,
        "completed": 1,
        "failed": 1,
        "remaining": 4,
        "total": 6,
    }


async def test_the_queries_take_seconds_with_a_million_urls(ledger: Ledger, place: Path | str) -> None:  # S1.6
    run = await ledger.runs.create(RunSpec(scraper="india", stages=(StageSpec("page"),)))
    report = await ledger.intake.enqueue(run.id, (f"https://prices.example/drug/{n}" for n in range(MANY)))
    assert report.enqueued == MANY
    await ledger.workers.register(WorkerSpec(id="w", node="node", pid=1))
    claimed = await ledger.claims.claim("w", Scope(), 100)
    await ledger.commits.commit("w", [done(each) for each in claimed[:50]])
    where = f"FROM url_work_queue WHERE run_id = '{run.id}'"
    seconds = {}
    for name, sql, expected in (
        ("depth", f"SELECT count(*) {where} AND status = 'pending'", MANY - 100),
        ("claimed", f"SELECT count(*) {where} AND status = 'claimed' AND url <> ''", 50),
        ("completed", f"SELECT count(*) {where} AND status = 'completed' AND url_hash <> ''", 50),
        ("groups", f"SELECT count(*) FROM (SELECT status, count(*) {where} GROUP BY status) x", 3),
    ):
        began = time.monotonic()
        assert await ask(place, sql) == [(expected,)]
        seconds[name] = time.monotonic() - began
    print({name: round(value, 3) for name, value in seconds.items()})
    assert max(seconds.values()) < MAX_SECONDS
