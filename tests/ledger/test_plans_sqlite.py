"""Law 6 on SQLite: no query of the hot path scans a table that grows, and a batch costs as many steps as ever.

SQLite tells its plans (EXPLAIN QUERY PLAN), and counts the instructions of its virtual machine.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from shoal.ledger import reads
from shoal.ledger.sqlite.database import SqliteDatabase
from shoal.ledger.sqlite.ledger import SqliteLedger, named_queries, open_sqlite
from shoal.model.item import NewItem
from shoal.model.lane import LanePolicy
from shoal.model.run import Run, RunSpec, StageSpec
from shoal.model.url_key import key_hash
from shoal.model.worker import Scope, WorkerSpec
from shoal.testing.harness import done
from tests.support import LONG

BATCH = 50
CROWD = 100_000 if LONG else 25_000
GROWING = "ready|waiting|delayed|outcome|item|result|attempt|lease|run_activity|run_state"
HOT = re.compile(
    r"^(claim|commit|admit|begun|promote|unlease|intake|store|reserve|touch|leases_held|results|lane_starts|take_turn"
    r"|retime_delayed|drop|revive|some_|find_|yield|purge|busiest_lanes|delayed_reasons|item_views|refine_items|refine_ends|recent|children"
    r"|item_lanes|run_lanes|walk_lanes|lane_counts|lane_spans|slow_lanes|partition_|ungrouped|runs_with_ungrouped|group_"
    r"|list_failures|retry|replay|history|put_|forget_activity|forget_states|errors|list_tokens|tidy_request_keys)"
)
SCAN = re.compile(r"^SCAN (\w+)")
PART = re.compile(r"^(?:CO-ROUTINE|MATERIALIZE) (\w+)")


@pytest.fixture
async def ledger(sqlite_path: Path) -> AsyncIterator[SqliteLedger]:
    ledger = await open_sqlite(sqlite_path)
    await ledger.schema.migrate()
    await ledger.workers.register(WorkerSpec(id="w", node="n", pid=1, lease_seconds=3600))
    yield ledger
    await ledger.close()


async def plans(ledger: SqliteLedger) -> dict[str, list[str]]:
    def explain(connection: sqlite3.Connection) -> dict[str, list[str]]:
        found = {}
        for name, sql in named_queries().items():
            if HOT.match(name):
                count = max((int(n) for n in re.findall(r"\?(\d+)", sql)), default=0)
                rows = connection.execute(f"explain query plan {sql}", [None] * count).fetchall()
                found[name] = [str(row[3]) for row in rows]
        return found

    return await ledger.db.change_schema(explain)


async def test_no_hot_query_scans_a_table_that_grows(ledger: SqliteLedger) -> None:
    found = await plans(ledger)
    assert len(found) > 30
    assert {name: scans for name, lines in found.items() if (scans := table_scans(named_queries()[name], lines))} == {}


def table_scans(sql: str, plan: list[str]) -> list[str]:
    """Scans of growing tables. A scan of a part of the query itself (a bounded subquery) is none."""
    names = dict(re.findall(rf"\b(?:from|join) ({GROWING})(?: (?:as )?(\w+))?", sql))
    tables = {alias or table for table, alias in names.items()} | set(names)
    parts = [match[1] for line in plan if (match := PART.match(line))]
    scans = [match[1] for line in plan if (match := SCAN.match(line))]
    for part in parts:
        if part in scans:
            scans.remove(part)
    return [name for name in scans if name in tables]


def test_a_scan_would_be_noticed() -> None:
    assert table_scans("select * from ready y where y.lane = 1", ["SCAN y"]) == ["y"]
    assert table_scans("delete from waiting where run = 1", ["SCAN waiting"]) == ["waiting"]
    assert table_scans("select * from (select * from ready limit 1) y", ["CO-ROUTINE y", "SCAN y"]) == []
    assert table_scans("from (select * from ready) y", ["CO-ROUTINE y", "SCAN ready", "SCAN y"]) == ["ready"]


class Steps:
    """Counts what the writing connection does, in hundreds of instructions."""

    def __init__(self, ledger: SqliteLedger) -> None:
        self.ledger = ledger
        self.count = 0

    async def begin(self) -> None:
        await self.ledger.db.change_schema(lambda connection: connection.set_progress_handler(self.tick, 100))

    def tick(self) -> int:
        self.count += 1
        return 0


async def steps_of_a_batch(ledger: SqliteLedger, scope: Scope) -> int:
    steps = Steps(ledger)
    await steps.begin()
    costs = []
    for _ in range(4):
        before = steps.count
        claimed = await ledger.claims.claim("w", scope, BATCH)
        assert len(claimed) == BATCH
        assert (await ledger.commits.commit("w", [done(item) for item in claimed])).committed == BATCH
        costs.append(steps.count - before)
    return min(costs)


async def new_run(ledger: SqliteLedger) -> Run:
    return await ledger.runs.create(RunSpec(scraper="plans", stages=(StageSpec("page", lane=LanePolicy(limit=8)),)))


@pytest.mark.slow
async def test_a_batch_costs_the_same_whatever_stands_around(ledger: SqliteLedger) -> None:  # S4.5
    run = await new_run(ledger)
    await ledger.intake.enqueue(run.id, (f"https://example.com/{n}" for n in range(1_000)))
    small = await steps_of_a_batch(ledger, Scope(run_ids=(run.id,)))

    crowd = await new_run(ledger)
    mine = Scope(run_ids=(crowd.id,))
    await ledger.intake.enqueue(crowd.id, (f"https://example.com/done/{n}" for n in range(CROWD // 5)))
    while claimed := await ledger.claims.claim("w", mine, 1_000):
        await ledger.commits.commit("w", [done(item) for item in claimed])
    await ledger.intake.enqueue(crowd.id, (NewItem(key=f"busy{n}", lane="busy", priority=-5) for n in range(CROWD)))
    await ledger.intake.enqueue(crowd.id, (f"https://example.com/{n}" for n in range(CROWD)))
    for n in range(51):
        await ledger.intake.enqueue(crowd.id, [NewItem(key=f"p{n}-{m}", partition=f"p{n}") for m in range(100)])
    big = await steps_of_a_batch(ledger, mine)
    assert big < 1.5 * small, (small, big)


async def steps_of_a_page(ledger: SqliteLedger, run: Run, stage: str | None) -> int:
    """On the writing connection, which counts: the reading one has the same plans."""
    steps = Steps(ledger)
    await steps.begin()
    middle = await ledger.db.value("select max(item) / 2 from result where run = ?1", run.no)
    stage_id = None if stage is None else await ledger.db.value("select id from stage where run = ?1", run.no)

    def page(connection: sqlite3.Connection) -> int:
        rows = connection.execute(named_queries()["results"], (run.no, middle, 0, BATCH, stage_id, BATCH)).fetchall()
        ends = connection.execute(named_queries()["results_window_end"], (run.no, middle, 0, BATCH)).fetchall()
        return len(rows) + len(ends)

    assert await ledger.db.change_schema(page) == BATCH + 1
    return steps.count


@pytest.mark.slow
@pytest.mark.parametrize("stage", [None, "page"])
async def test_a_page_of_results_costs_the_same_however_many_there_are(ledger: SqliteLedger, stage: str | None) -> None:
    run = await new_run(ledger)
    costs = []
    for size in (500, 20_000):
        await ledger.intake.enqueue(run.id, (f"https://example.com/{size}/{n}" for n in range(size)))
        while claimed := await ledger.claims.claim("w", Scope(), 1_000):
            await ledger.commits.commit("w", [done(item, '{"a":1}') for item in claimed])
        costs.append(await steps_of_a_page(ledger, run, stage))
    small, big = costs
    assert big < 1.5 * small, costs


async def test_keys_are_looked_up_in_many_runs_with_few_queries_of_bounded_cost(
    ledger: SqliteLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A query looks up so many pairs of a key and a run at most; few keys are looked up in many runs at a time."""
    runs = [await ledger.runs.create(RunSpec(scraper="s", stages=(StageSpec("a"),))) for _ in range(100)]
    fetch, lookups = SqliteDatabase.fetch, list[int]()

    async def count(self: SqliteDatabase, sql: str, *args: Any) -> Any:
        if sql == named_queries()["finished_keys"]:
            lookups.append(len(args[0]) * len(args[1]) // 32)
        return await fetch(self, sql, *args)

    monkeypatch.setattr(SqliteDatabase, "fetch", count)
    monkeypatch.setattr(reads, "KEYS_AT_ONCE", 10)
    monkeypatch.setattr(reads, "STAGES_AT_ONCE", 5)
    monkeypatch.setattr(reads, "LOOKUPS_AT_ONCE", 50)
    for number, queries in ((25, 20 + 20 + 11), (1, 3)):
        lookups.clear()
        keys = [key_hash(str(n)) for n in range(number)]
        assert await ledger.reads.finished_elsewhere(runs[-1].id, "a", keys) == set()
        assert max(lookups) <= 50
        assert sum(lookups) == 99 * number
        assert len(lookups) == queries
