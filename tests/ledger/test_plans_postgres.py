"""Law 6 on PostgreSQL: claim and commit read rows in proportion to the batch, whatever else is stored.

The work is inside functions, so two witnesses are asked: EXPLAIN (ANALYZE, BUFFERS) of the call counts every page that
the statements inside touched, and the server's own per-transaction statistics count the rows read by sequential scans.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable

import asyncpg
import pytest

from shoal.ledger.postgres.database import PostgresDatabase
from shoal.ledger.postgres.ledger import PostgresLedger, named_queries, open_postgres
from shoal.model.item import NewItem
from shoal.model.lane import LanePolicy
from shoal.model.run import Run, RunSpec, StageSpec
from shoal.model.worker import Scope, WorkerSpec
from shoal.testing.harness import done
from tests.support import LONG
from tests.support.fill import fill_done, fill_ready, fill_results, fill_waiting, settle

BATCH = 50
BACKLOG = 300_000 if LONG else 40_000
BUSY_LANE = 500_000 if LONG else 60_000
BIG_TABLES = ("item", "ready", "waiting", "outcome", "delayed", "result", "attempt", "lease")
CLAIM = "select * from shoal.claim($1::int, $2::int, $3::int[], $4::int[], $5::bigint[], $6::int[], $7::int)"
COMMIT = """select * from shoal.commit($1::int, $2::bigint[], $3::int[], $4::int[], $5::text[], $6::text[],
    $7::float8[], null, $8::real[], null, null, null, null,
    null, null, null, null, null, null, null, null, null, null, null, null, null, null)"""


class Probe:
    """Runs one call in a transaction of its own and tells what it cost."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self.connection = connection

    async def pages(self, call: str, *args: object) -> tuple[int, dict[str, int]]:
        """Pages touched by a warm call, and rows that sequential scans read per big table."""
        async with self.connection.transaction():
            plan = json.loads(await self.connection.fetchval(f"explain (analyze, buffers, format json) {call}", *args))[
                0
            ]["Plan"]
            rows = await self.connection.fetch(
                "select relname, seq_tup_read from pg_stat_xact_user_tables where schemaname = 'shoal'"
            )
        scanned = {row["relname"]: row["seq_tup_read"] for row in rows if row["relname"] in BIG_TABLES}
        return plan["Shared Hit Blocks"] + plan["Shared Read Blocks"], scanned


class Bench:
    """A run with one worker; claims and commits through the server's own functions, with their costs."""

    def __init__(self, ledger: PostgresLedger, probe: Probe, run: Run, worker: int) -> None:
        self.ledger = ledger
        self.probe = probe
        self.run = run
        self.worker = worker
        self.number = 0

    async def queue(self, partition: str = "") -> int:
        await self.ledger.intake.enqueue(self.run.id, [NewItem(key=f"first of {partition}", partition=partition)])
        return int(
            await self.ledger.db.value(
                "select id from shoal.queue where run = $1 and partition = $2", self.run.no, partition
            )
        )

    async def claim_cost(self, queues: list[int]) -> tuple[int, dict[str, int]]:
        """The cheapest of a few: the first calls also load catalogue pages and make plans."""
        costs = []
        for _ in range(4):
            self.number += 1
            heads = [-(2**31)] * len(queues)
            costs.append(
                await self.probe.pages(
                    CLAIM, self.worker, self.number, queues, heads, [0] * len(queues), [BATCH] * len(queues), BATCH
                )
            )
        return min(costs, key=lambda cost: cost[0])

    async def commit_cost(self) -> tuple[int, dict[str, int]]:
        costs = []
        for number in range(1, 5):
            rows = await self.ledger.db.fetch(
                "select item, epoch, run from shoal.lease where worker = $1 and claim_no = $2", self.worker, number
            )
            columns = [[row[name] for row in rows] for name in ("item", "epoch", "run")]
            same = [[value] * len(rows) for value in ("done", "done", 0.0, 0.0)]
            costs.append(await self.probe.pages(COMMIT, self.worker, *columns, *same))
        return min(costs, key=lambda cost: cost[0])


async def make_bench(ledger: PostgresLedger, probe: Probe) -> Bench:
    run = await ledger.runs.create(RunSpec(scraper="plans", stages=(StageSpec("page", lane=LanePolicy(limit=8)),)))
    await ledger.workers.register(WorkerSpec(id=str(uuid.uuid4()), node="n", pid=1, lease_seconds=3600))
    worker = await ledger.db.value("select max(no) from shoal.worker")
    return Bench(ledger, probe, run, worker)


@pytest.fixture
async def ledger(postgres_url: str) -> AsyncIterator[PostgresLedger]:
    ledger = await open_postgres(postgres_url, command_timeout=120)
    yield ledger
    await ledger.close()


@pytest.fixture
async def bench(ledger: PostgresLedger, postgres_url: str) -> AsyncIterator[Bench]:
    connection = await asyncpg.connect(postgres_url)
    yield await make_bench(ledger, Probe(connection))
    await connection.close()


async def test_cost_does_not_grow_with_other_rows(ledger: PostgresLedger, bench: Bench) -> None:  # S1.6
    queue = await bench.queue()
    await fill_ready(ledger, queue, 2_000)
    await settle(ledger)
    small_claim, _ = await bench.claim_cost([queue])
    small_commit, _ = await bench.commit_cost()

    # A big backlog, many finished rows, and at the head a busy lane with very many items behind it.
    crowd = await make_bench(ledger, bench.probe)
    queue = await crowd.queue()
    await ledger.intake.enqueue(crowd.run.id, [NewItem(key="busy", lane="busy", priority=-5)])
    lane = await ledger.db.value("select id from shoal.lane where key = 'busy'")
    await fill_waiting(ledger, queue, BUSY_LANE, lane, -5)
    await fill_done(ledger, queue, BACKLOG)
    await fill_ready(ledger, queue, BACKLOG)
    await settle(ledger)
    big_claim, claim_scans = await crowd.claim_cost([queue])
    big_commit, commit_scans = await crowd.commit_cost()

    assert claim_scans == dict.fromkeys(claim_scans, 0), "a claim read a big table from end to end"
    assert commit_scans == dict.fromkeys(commit_scans, 0), "a commit read a big table from end to end"
    # Trees over many rows are a level or two deeper; that is all the growth there may be.
    assert big_claim < 2 * small_claim, (small_claim, big_claim)
    assert big_commit < 2 * small_commit, (small_commit, big_commit)
    assert big_claim < 40 * BATCH
    assert big_commit < 40 * BATCH


async def test_fifty_one_partitions_cost_as_much_as_one(ledger: PostgresLedger, bench: Bench) -> None:
    one = await bench.queue()
    await fill_ready(ledger, one, 5_000)
    await settle(ledger)
    single, _ = await bench.claim_cost([one])

    many = await make_bench(ledger, bench.probe)
    queues = [await many.queue(f"state-{n}") for n in range(51)]
    for queue in queues:
        await fill_ready(ledger, queue, 1_000)
    await settle(ledger)
    all_of_them, scans = await many.claim_cost(queues)
    assert scans == dict.fromkeys(scans, 0)
    assert all_of_them < 2 * single, (single, all_of_them)

    # All but the last are empty: the claim looks into fifty and finds its batch in the fifty-first.
    await ledger.db.fetch("delete from shoal.ready where queue = any ($1)", queues[:-1])
    await ledger.db.fetch("vacuum shoal.ready")
    rare, scans = await many.claim_cost(queues)
    assert scans == dict.fromkeys(scans, 0)
    assert rare < single + 51 * 12, (single, rare)


async def test_the_look_ahead_reads_only_the_first_items(ledger: PostgresLedger, bench: Bench) -> None:
    queues = [await bench.queue(f"state-{n}") for n in range(51)]
    await ledger.db.fetch("analyze shoal.ready")  # what the planner remembers is a table of 51 rows
    await fill_ready(ledger, queues[0], 100_000)
    look = named_queries()["first_priorities"]
    args = (queues, [-(2**31)] * 51, [0] * 51, 8)
    pages, scans = min([await bench.probe.pages(look, *args) for _ in range(3)], key=lambda cost: cost[0])
    assert scans == dict.fromkeys(scans, 0)
    assert pages < 51 * 12, pages


@pytest.mark.parametrize("of_one_stage", [False, True])
async def test_a_page_of_results_costs_the_same_however_many_there_are(
    ledger: PostgresLedger, bench: Bench, of_one_stage: bool
) -> None:
    costs = []
    for size in (1_000, 100_000):
        filled = await make_bench(ledger, bench.probe)
        queue = await filled.queue()
        await fill_done(ledger, queue, size)
        await fill_results(ledger, filled.run.no)
        await settle(ledger)
        stage = (
            await ledger.db.value("select id from shoal.stage where run = $1", filled.run.no) if of_one_stage else None
        )
        first = await ledger.db.value("select min(item) from shoal.result where run = $1", filled.run.no)
        args = (filled.run.no, first + size // 2, 0, BATCH, stage, BATCH)
        page, scans = await bench.probe.pages(named_queries()["results"], *args)
        end, _ = await bench.probe.pages(named_queries()["results_window_end"], *args[:4])
        assert scans == dict.fromkeys(scans, 0), "a page read a big table from end to end"
        costs.append(page + end)
    small, big = costs
    assert big < 2 * small, costs
    assert big < 20 * BATCH


async def test_a_start_costs_the_same_whatever_else_is_stored(ledger: PostgresLedger, bench: Bench) -> None:
    await ledger.lanes.set_delay_floor("host", 10, "robots.txt")
    turn = "select shoal.reserve(0, 'host', 0, '{}', '{}', 1, 86400, 0.02, 0)"
    small = min([(await bench.probe.pages(turn))[0] for _ in range(4)])
    queue = await bench.queue()
    lane = await ledger.db.value("select id from shoal.lane where key = 'host'")
    await fill_waiting(ledger, queue, 1_000, lane, 0)
    await fill_ready(ledger, queue, 1_000)
    await ledger.db.fetch(
        "insert into shoal.lease "
        "(item, lane, claimed_at, epoch, worker, claim_no, run, queue, priority, tries, rescues, paced) "
        "select item, $1, shoal.clock(), 1, $2, 1, $3, queue, 0, 0, 0, false from shoal.ready",
        lane,
        bench.worker,
        bench.run.no,
    )
    await settle(ledger)
    costs = [await bench.probe.pages(turn) for _ in range(4)]
    assert all(scans == dict.fromkeys(scans, 0) for _, scans in costs)
    assert min(pages for pages, _ in costs) < 2 * small + 20, (small, costs)


# What statistics say of tables that were analysed while they were empty: nothing is in them, however large they get.
QUEUE_TABLES = ("ready", "waiting", "delayed", "lease", "outcome", "item", "lane", "attempt", "result")
MANY = 8_000
STEP = 500


async def test_bulk_changes_and_lists_do_not_depend_on_statistics(ledger: PostgresLedger, bench: Bench) -> None:
    """Small runs come and go, the tables are analysed, many items are enqueued: no plan may read them all for a few.

    The functions have been called before, so that a plan made for small tables would be at hand.
    """
    for table in QUEUE_TABLES:
        await ledger.db.fetch(f"alter table shoal.{table} set (autovacuum_enabled = false)")
    scope = Scope(scraper="plans")
    worker = str(await ledger.db.value("select id from shoal.worker"))
    for _ in range(2):
        small = await make_run(ledger)
        await ledger.intake.enqueue(small.id, [NewItem(key=f"{n}", lane=f"host{n % 3}") for n in range(100)])
        while claimed := await ledger.claims.claim(worker, scope, 50):
            await ledger.commits.commit(worker, [done(item) for item in claimed])
        await every_call(bench, small)
    await ledger.upkeep.run_once()
    await ledger.db.fetch("vacuum analyze")

    run, other = await make_run(ledger), await make_run(ledger)
    for of in (other, run):
        lanes = (NewItem(key=f"w{n}", lane=f"host{n % 100}") for n in range(MANY))
        await ledger.intake.enqueue(of.id, lanes)
        await ledger.intake.enqueue(of.id, (NewItem(key=f"r{n}") for n in range(MANY // 2)))
        await ledger.intake.enqueue(of.id, (NewItem(key=f"d{n}", delay=1000.0) for n in range(MANY // 2)))
    costs = await every_call(bench, run)
    # A step touches some tables and indexes for each of its 500 items. Reading a table for each would be far more.
    # A round that finds nothing passes over what others have deleted just before.
    assert costs.pop("drop") < 10 * MANY
    assert {name: pages for name, pages in costs.items() if pages > 40 * STEP} == {}
    assert {name: costs[name] for name in costs if name.startswith("list") and costs[name] > 11_000} == {}
    assert costs["pause alone"] < 200, "a run that nobody waits for is paused without moving anything"
    assert await ledger.upkeep.audit() == []


async def make_run(ledger: PostgresLedger) -> Run:
    return await ledger.runs.create(RunSpec(scraper="plans", stages=(StageSpec("page", lane=LanePolicy(limit=8)),)))


async def every_call(bench: Bench, run: Run) -> dict[str, int]:
    """Pages touched by one step of each move, and by each list, of this run. At its end the run is removed."""
    db = bench.ledger.db
    costs: dict[str, int] = {}

    async def cost(name: str, call: str, *args: object) -> None:
        costs[name] = (await bench.probe.pages(call, *args))[0]

    async def state(wanted: str) -> None:
        await db.fetch(named_queries()["set_run_state"], run.no, wanted, ["active", "paused", "cancelled"], "", "")

    queues = [row[0] for row in await db.fetch("select id from shoal.queue where run = $1", run.no)]
    sql = named_queries()
    for place in (None, "ready", "waiting", "delayed", "leased"):
        await cost(f"list {place}", sql["find_items"], place, queues, 0, STEP)
    for some in (None, queues):
        await cost(f"list done {bool(some)}", sql["find_done"], run.no, some, 0, STEP, 1_000)
        await cost(f"list dead {bool(some)}", sql["find_ended"], run.no, some, 0, STEP, 1_000, "dead", None, "x")
    await cost("list attempted", sql["find_attempted"], run.no, 0, STEP, 1_000, None, "x")
    ids = await db.value("select array(select id from shoal.item where run = $1 order by id limit 100)", run.no)
    await cost("list views", sql["item_views"], run.no, ids)
    await cost("list lanes", sql["busiest_lanes"], run.no, 5)
    await cost_of_lists(cost, db, run.no, ids)
    await cost("list reasons", sql["delayed_reasons"], run.no)

    others = [row[0] for row in await db.fetch("select no from shoal.run where no <> $1 and state = 'active'", run.no)]
    await db.fetch("update shoal.run set idle = true where no = any ($1)", others)
    await state("paused")
    await cost("pause alone", sql["apply_lane_work"], run.no, STEP)
    await db.fetch("update shoal.run set idle = false where no = any ($1)", others)
    await cost("pause beside others", sql["apply_lane_work"], run.no, STEP)
    await state("active")
    await cost("resume", sql["apply_lane_work"], run.no, STEP)
    await state("cancelled")
    for begin in (None, [2, queues[0], -(2**31), 0], [3, queues[0], -(2**31), 0], [4, queues[0], -(2**31), 0]):
        await cost(f"cancel {begin and begin[0]}", sql["cancel_open_items"], run.no, "why", STEP, begin)
    ended = await db.value(
        "select array(select item from shoal.outcome where run = $1 and state <> 'done' limit $2)", run.no, STEP
    )
    await cost("retry", sql["retry_items"], run.no, ended)
    await cost("cancel items", sql["cancel_items"], run.no, ended, "why")
    await bench.ledger.runs.cancel(run.id)
    await state("removed")
    await cost("drop", sql["cancel_open_items"], run.no, None, STEP, None)
    for table in range(1, 6):
        await cost(f"purge {table}", sql["purge"], run.no, STEP, [table, 0])
    return costs


async def test_a_history_costs_the_same_beside_those_of_many_runs(ledger: PostgresLedger, bench: Bench) -> None:
    """Two full days by the minute, read whole, and a sample that finds nothing to shorten."""
    sql, costs = named_queries(), []
    for runs in (1, 40):
        await ledger.db.fetch("truncate shoal.run_activity, shoal.run_state")
        await ledger.db.fetch(
            "insert into shoal.run_activity (run, step, at, waits, works) "
            "select r, 60, date_trunc('minute', shoal.clock()) - make_interval(mins => m), array_fill(7, array[25]), "
            "array_fill(7, array[25]) "
            "from generate_series($1::int, $1::int + $2::int - 1) as r, generate_series(1, 2879) as m",
            bench.run.no,
            runs,
        )
        await ledger.db.fetch(
            "insert into shoal.run_state (run, step, at, ready, waiting, delayed, leased, done, dead, skipped, "
            "cancelled, waiting_for) select a.run, a.step, a.at, 1, 1, 1, 1, 1, 1, 1, 1, '{}' from shoal.run_activity a"
        )
        await ledger.db.fetch("vacuum analyze shoal.run_activity, shoal.run_state")
        now = int(await ledger.lanes.clock())
        args = (bench.run.no, now - 2 * 86_400, now)
        day, _ = await bench.probe.pages(sql["history_activity"], *args)
        states, _ = await bench.probe.pages(sql["history_state"], *args)
        sampled = [await bench.probe.pages(sql["put_sample"], bench.run.no, [1] * 8, "{}", 2 * 86_400.0, 1e7)]
        sampled += [await bench.probe.pages(sql["put_sample"], bench.run.no, [1] * 8, "{}", 2 * 86_400.0, 1e7)]
        costs.append((day + states, min(pages for pages, _ in sampled)))
    (small, small_sample), (big, big_sample) = costs
    assert big < 2 * small + 50, costs
    assert big_sample < 2 * small_sample + 20, costs


async def test_dead_items_in_no_group_are_found_beside_very_many_in_groups(
    ledger: PostgresLedger, bench: Bench
) -> None:
    """The planner must not prefer the index of all dead items by time, and sort."""
    queue = await bench.queue()
    await fill_done(ledger, queue, BACKLOG)
    await ledger.db.fetch(
        "update shoal.outcome set state = 'dead', outcome = 'permanent', error = 'gone', failure = 1 where run = $1",
        bench.run.no,
    )
    await settle(ledger)
    await ledger.db.fetch(
        "update shoal.outcome set failure = null where run = $1 and item in "
        "(select o.item from shoal.outcome o where o.run = $1 order by o.item desc limit 3)",
        bench.run.no,
    )
    sql = named_queries()
    for call, args in ((sql["ungrouped"], (bench.run.no, 0, STEP)), (sql["runs_with_ungrouped"], ())):
        pages, scanned = min([await bench.probe.pages(call, *args) for _ in range(3)], key=lambda cost: cost[0])
        assert scanned == dict.fromkeys(scanned, 0)
        assert pages < 200, call
    assert len(await ledger.db.fetch(sql["ungrouped"], bench.run.no, 0, STEP)) == 3


async def cost_of_lists(
    cost: Callable[..., Awaitable[None]], db: PostgresDatabase, run_no: int, ids: list[int]
) -> None:
    """The lists of the dashboard."""
    sql = named_queries()
    await cost("list text", sql["find_text"], run_no, None, 0, STEP, 1_000, "w1", 2**62)
    await cost("list span", sql["item_span"], run_no)
    lanes = [row[0] for row in await db.fetch("select id from shoal.lane order by id limit 50")]
    await cost("list lane", sql["find_in_lanes"], run_no, lanes[:2], 0, STEP)
    await cost("list refined", sql["refine_items"], run_no, ids, lanes, "w")
    await cost("list refined ends", sql["refine_ends"], run_no, ids, ["dead", "open"])
    await cost("list oldest leases", sql["oldest_leases"], run_no, STEP)
    await cost("list recent", sql["recent"], run_no, 5)
    await cost("list children", sql["children"], run_no, ids[0], 0, STEP)
    await cost("list item lanes", sql["item_lanes"], run_no, ids)
    await cost("list run lanes", sql["run_lanes"], run_no, 1_001)
    await cost("list walked lanes", sql["walk_lanes"], run_no, "", "\U0010ffff", 100)
    await cost("list lane counts", sql["lane_counts"], run_no, lanes, 100)
    await cost("list lane spans", sql["lane_spans"], run_no, lanes[:30], 60, 10)
    await cost("list slow lanes", sql["slow_lanes"], run_no, 500, "", "\U0010ffff", None, None, 50)
    stage = await db.value("select id from shoal.stage where run = $1", run_no)
    await cost("list partitions", sql["partition_page"], stage, "", 50, None, True)
    await cost("list ungrouped", sql["ungrouped"], run_no, 0, STEP)
    await cost("list runs with ungrouped", sql["runs_with_ungrouped"])
    await cost("list failures", sql["list_failures"], run_no, False, None, None, 50)
    await cost("list a failure", sql["find_failure"], run_no, 1, 0, STEP)
    await cost("list events", sql["events_filtered"], run_no, 2**62, 1_000, "x", None, 50)


STORE_KEYED = """select shoal.store_keyed_records(now(), $1::int, $2::bigint[], $3::int[], $4::json[], $5::text[],
    $6::bytea[], $7::int[], $8::boolean[], $2::bigint[], $9::int[], $10::int[])"""


async def test_an_upsert_costs_as_much_beside_very_many_keys(ledger: PostgresLedger, bench: Bench) -> None:
    queue = await bench.queue()
    run, costs = bench.run.no, []
    for size in (1_000, BACKLOG):
        await ledger.db.fetch("truncate shoal.result, shoal.item, shoal.outcome")
        await fill_done(ledger, queue, size)
        await fill_results(ledger, run)
        await ledger.db.fetch(
            "update shoal.result set record_key = item::text, key_space = 0, key_hash = sha256(item::text::bytea),"
            " first_run = run, changed_run = run"
        )
        await settle(ledger)
        rows = await ledger.db.fetch("select key_hash from shoal.result order by key_hash limit $1", BATCH)
        hashes = [row["key_hash"] for row in rows]
        items = [10**9 + n for n in range(BATCH)]

        def same(value: object) -> list[object]:
            return [value] * BATCH

        columns = (items, same(0), same('{"x":1}'), same("k"), hashes, same(0), same(True), same(run), same(queue))
        attempts = [await bench.probe.pages(STORE_KEYED, bench.worker, *columns)]
        for n in range(3):  # the first call makes plans
            moved = [item + (n + 1) * BATCH for item in items]
            attempts.append(await bench.probe.pages(STORE_KEYED, bench.worker, moved, *columns[1:]))
        pages, scans = min(attempts, key=lambda cost: cost[0])
        assert scans == dict.fromkeys(scans, 0)
        costs.append(pages)
    assert costs[1] < 2 * costs[0], costs
    assert costs[1] < 60 * BATCH, costs
