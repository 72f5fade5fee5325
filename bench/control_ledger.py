"""A ledger of the size that the control plane is measured with, filled by plain SQL in some minutes.

    python -m bench.control_ledger LEDGER [--items 5000000] [--lanes 100000] [--workers 1000]

LEDGER is a PostgreSQL URL or the path of a SQLite file, without Shoal's tables or empty. It gets a run in the
middle of its work: items of all states, lanes with delays, dead items of many kinds, workers with reports, exits with
blocks, budgets, events and results. The counters are those of the rows, so that `shoal db check --deep` finds nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import sqlite3
import time
from collections.abc import Callable
from functools import partial

import asyncpg
import msgspec

from bench.places import open_ledger
from shoal.ledger.protocols import Ledger
from shoal.model.egress import BudgetKey, BudgetPolicy, ExitReport, ExitSpec, GrantRequest, HealthRules, HostReport
from shoal.model.item import NewItem
from shoal.model.lane import LanePolicy
from shoal.model.run import Run, RunSpec, StageSpec
from shoal.model.url_key import key_hash
from shoal.model.worker import WorkerReport, WorkerSpec

PARTITIONS = 51
NODES = 40
DEAD_HOSTS = 100
# Shares of the items, in the order of their ids: what has ended, then what is leased, ready, delayed; the rest waits.
ENDED, LEASED, READY, DELAYED = 0.74, 0.742, 0.76, 0.764
EXITS, EXIT_HOSTS = 2_000, 60
EVENTS = 20_000
BIG_TABLES = ("item", "outcome", "waiting", "minute_count")
MINUTES = 60
# The history of the big run: two days by the minute, before that five days by the hour.
HISTORY_MINUTES, HISTORY_HOURS = 2_880, 120
BUCKETS = (0, 0, 0, 1, 3, 9, 20, 41, 60, 81, 44, 30, 22, 17, 9, 12, 5, 1, 0, 2)
ERRORS = (
    "404 Not Found",
    "410 Gone",
    "timed out after 30.0 s",
    "the page has no element 'div.price'",
    "403 Forbidden: https://h.example/challenge/81723",
    "connection reset by peer",
    "JSONDecodeError: Expecting value: line 1 column 1 (char 0)",
    "KeyError: 'sku-99812'",
)


class LedgerSize(msgspec.Struct, frozen=True, kw_only=True):
    items: int = 5_000_000
    lanes: int = 100_000
    workers: int = 1_000


class FilledLedger(msgspec.Struct, frozen=True, kw_only=True):
    """The big run, and the number before its first item: item n has the URL `https://hX.example/p/n`."""

    run: Run
    base: int
    size: LedgerSize


async def fill_ledger(address: str, size: LedgerSize, tell: Callable[[str], object] = str) -> FilledLedger:
    """Fill an empty ledger at a PostgreSQL URL or a path. `tell` gets a line for each statement."""
    ledger = await open_ledger(address)
    try:
        await ledger.schema.migrate()
        run = await _begin(ledger, size)
        fill = _fill_postgres if address.startswith("postgresql://") else _fill_sqlite
        base = await fill(address, run, size, tell)
        await _fill_workers(ledger, size)
        await _fill_exits(ledger)
        while (await ledger.upkeep.run_once()).more:
            pass
    finally:
        await ledger.close()
    return FilledLedger(run=run, base=base, size=size)


async def _begin(ledger: Ledger, size: LedgerSize) -> Run:
    """Some small runs, one of the same scraper, the workers, the big run with one item in each of its queues."""
    policy = LanePolicy(limit=4)
    stages = (StageSpec("list", lane=policy), StageSpec("page", lane=policy))
    for n, scraper in enumerate(("small0", "small1", "shop")):
        small = await ledger.runs.create(RunSpec(scraper=scraper, stages=stages))
        await ledger.intake.enqueue(small.id, [f"https://small{n}.example/{i}" for i in range(100)])
    run = await ledger.runs.create(RunSpec(scraper="shop", stages=stages))
    for stage in run.stages:
        first = [NewItem(key=f"first of p{p:02}", partition=f"p{p:02}", stage=stage) for p in range(PARTITIONS)]
        await ledger.intake.enqueue(run.id, first)
    for n in range(size.workers):
        spec = WorkerSpec(id=f"w{n:04}", node=f"node-{n % NODES:02}", pid=n + 1, version="1.0", lease_seconds=86_400)
        await ledger.workers.register(spec)
    return run


async def _fill_workers(ledger: Ledger, size: LedgerSize) -> None:
    """Each worker reports some of the items that it has leased."""
    stale = await ledger.reads.stale(older_than=0.0, limit=20 * size.workers)
    held: dict[str, list[tuple[int, float]]] = {}
    for claim in stale:
        held.setdefault(claim.claimed_by, []).append((claim.item, 60 * claim.minutes_ago))
    for worker, items in held.items():
        await ledger.workers.heartbeat(worker, WorkerReport(items=tuple(items[:10])))


async def _fill_exits(ledger: Ledger) -> None:
    rules = HealthRules()
    specs = [ExitSpec(f"proxy{n:04}", f"10.0.{n // 250}.{n % 250}:8080") for n in range(EXITS)]
    await ledger.exits.register("w0000", "datacenter", "proxies", specs)
    for at in range(0, EXITS, 100):
        reports = [
            ExitReport(
                key=spec.key,
                succeeded=9,
                hosts=tuple(
                    HostReport(host=f"h{(at + k * 13 + n) % EXIT_HOSTS}.example", blocked=1 + n % 5, blocks_in_row=3)
                    for k in range(6)
                ),
            )
            for n, spec in enumerate(specs[at : at + 100])
        ]
        await ledger.exits.report("w0000", "datacenter", reports, rules)
    await ledger.exits.register("w0001", "api", "tokens", [ExitSpec(f"token{n}", f"token {n}") for n in range(50)])
    for n in range(50):
        budget = BudgetKey("api", f"token{n}", "search")
        request = GrantRequest(grant=n + 1, calls=10 + n, seconds=30.0, policy=BudgetPolicy(5_000, 3_600.0))
        await ledger.budgets.take(budget, request)


def _statements(dialect: str, run: int, base: int, lane: int, worker: int, size: LedgerSize, now: int) -> list[str]:
    """The rows of the big run. `base`, `lane`, `worker`: the numbers before its first item, lane and worker."""
    total = size.items
    ended, leased, ready, delayed = (round(total * share) for share in (ENDED, LEASED, READY, DELAYED))
    postgres = dialect == "postgres"

    def ago(seconds: str) -> str:
        if postgres:
            return f"(shoal.clock() - make_interval(secs => ({seconds})::float8))"
        return f"({now} - cast(1e6 * ({seconds}) as integer))"

    def numbers(begin: int, end: int) -> str:
        if postgres:
            return f"generate_series({begin}, {end}) as s(n)"
        return (
            f"(with recursive c(n) as (select {begin} union all select n + 1 from c where n < {end}) "
            f"select n from c where n <= {end}) s"
        )

    no = "false" if postgres else "0"
    # What has ended is spread over a day, the last just now.
    end = f"({ended} - n) * (86400.0 / {ended})"
    number = f"case when n % 5 = 0 then (n / 5) % {DEAD_HOSTS} else n % {size.lanes} end"
    url = f"'https://h' || ({number}) || '.example/p/' || n"
    state = "case when n % 5 = 0 and (n / 5) % 8 = 3 then 'dead' when n % 97 = 5 then 'skipped' else 'done' end"
    partition = "'p' || substr('0' || (n % 51), -2)" if not postgres else "'p' || lpad((n % 51)::text, 2, '0')"
    errors = " ".join(f"when {k} then '{text.replace(chr(39), chr(39) * 2)}'" for k, text in enumerate(ERRORS))
    error = f"case (n / 40) % {len(ERRORS)} {errors} end"
    queue = (
        f"join shoal.stage g on g.run = {run} and g.name = case n % 2 when 0 then 'list' else 'page' end "
        f"join shoal.queue k on k.stage = g.id and k.partition = {partition}"
    )
    hash_ = "sha256(convert_to('shoal-key-1', 'UTF8') || '\\x00'::bytea || convert_to(u.url, 'UTF8'))"
    lane_no = f"{lane} + ({number})"
    minute = ago("60 * (n / 3000)")
    minute = f"date_trunc('minute', {minute})" if postgres else f"{minute} - {now % 60_000_000}"
    statements = [
        f"""insert into shoal.lane (run, key, max_active, delay_min, delay_max, own_delay_min, own_delay_max, ordered)
            select 0, 'h' || n || '.example', 4, d, d, d, d, {no}
            from (select n, case when n % 10 = 0 then 2.0 + n % 7 else 0.0 end as d
                  from {numbers(0, size.lanes - 1)} order by n) x""",
        f"""insert into shoal.item (id, lane, parent, created_at, run, stage, queue, priority, key_hash, url)
            select {base} + n, {lane} + u.lane, case when n % 50 <> 0 then {base} + n / 50 * 50 end, {ago("90000")},
                   {run}, g.id, k.id, 0, {hash_ if postgres else "key_hash(u.url)"}, u.url
            from (select n, {number} as lane, {url} as url from {numbers(1, total)}) u {queue}""",
        f"""insert into shoal.outcome (item, claimed_at, ended_at, run, queue, epoch, worker, seconds, tries, rescues,
                                       state, outcome, error)
            select {base} + n, {ago(f"{end} + 1.5")}, {ago(end)}, {run}, k.id, case when n % 20 = 3 then 2 else 1 end,
                   {worker} + n % {size.workers}, 0.5 + n % 9 / 10.0, 1, 0, {state},
                   case {state} when 'dead' then 'permanent' else {state} end,
                   case {state} when 'dead' then {error} when 'skipped' then 'robots.txt forbids it' end
            from {numbers(1, ended)} {queue}""",
        f"""insert into shoal.attempt (item, claimed_at, ended_at, run, epoch, worker, seconds, outcome, error)
            select {base} + n, {ago(f"{end} + 60")}, {ago(f"{end} + 59")}, {run}, 1, {worker} + n % {size.workers}, 0.7,
                   'transient', 'timed out'
            from {numbers(1, ended)} where n % 20 = 3""",
        f"""insert into shoal.result (item, run, n, record)
            select {base} + n, {run}, 0, '{{"title": "A chair", "price": 12.5}}'
            from {numbers(1, ended)} where n % 10 = 1 and {state} = 'done'""",
        f"""insert into shoal.lease (item, lane, claimed_at, started_at, epoch, worker,
                                     {"claim_no, " if postgres else ""}run, queue, priority, tries, rescues, paced)
            select {base} + n, {lane_no}, {ago("n % 60")}, {ago("n % 60")}, 1, {worker} + n % {size.workers},
                   {"1, " if postgres else ""}{run}, k.id, 0, 0, 0, {no}
            from {numbers(ended + 1, leased)} {queue}""",
        f"""insert into shoal.ready (item, lane, since, queue, priority, epoch, tries, rescues)
            select {base} + n, {lane_no}, {ago("n % 600")}, k.id, 0, 0, 0, 0
            from {numbers(leased + 1, ready)} {queue}""",
        f"""insert into shoal.delayed (item, lane, due_at, since, run, queue, priority, epoch, tries, rescues, slotted,
                                       reason)
            select {base} + n, {lane_no}, {ago("- 3600 - n % 3600")}, {ago("n % 600")}, {run}, k.id, 0, 1, 1, 0, {no},
                   'retry'
            from {numbers(ready + 1, delayed)} {queue}""",
        f"""insert into shoal.waiting (item, lane, since, run, queue, priority, epoch, tries, rescues)
            select {base} + n, {lane_no}, {ago("3600")}, {run}, k.id, 0, 0, 0, 0
            from {numbers(delayed + 1, total)} {queue}""",
        f"""update shoal.lane as l set waiting = l.waiting + c.waiting, taken = l.taken + c.taken,
                                     unstarted = l.unstarted + c.unstarted
           from (select x.lane, sum(x.w) as waiting, sum(x.t) as taken, sum(x.u) as unstarted
                 from (select w.lane, 1 as w, 0 as t, 0 as u from shoal.waiting w where w.run = {run}
                       union all select r.lane, 0, 1, 1 from shoal.ready r where r.lane >= {lane}
                       union all select s.lane, 0, 1, 0 from shoal.lease s where s.run = {run}) x
                 group by x.lane) c
           where l.id = c.lane""",
        _counted(run),
        f"""insert into shoal.minute_count (minute, queue, worker, done, dead, skipped, retried, throttled, results,
                                            seconds)
            select {minute}, k.id, {worker} + (n / 3) % 1000, 5, 1, 0, 1, 0, 5, 4.5
            from {numbers(0, 3_000 * MINUTES - 1)} {queue}
            where (n / 3) % 1000 < {size.workers} on conflict do nothing""",
        *(
            statement
            for step, begin, steps in ((60, 0, HISTORY_MINUTES), (3_600, HISTORY_MINUTES // 60, HISTORY_HOURS))
            for statement in _history(dialect, run, now, step, numbers(begin, begin + steps - 1), total)
        ),
        f"""insert into shoal.event (at, run, actor, action, subject, detail)
            select {ago("n")}, case when n % 2 = 0 then {run} end, 'operator' || n % 7,
                   case when n % 3 = 0 then 'run.noted' else 'lane.set' end, 'h' || n || '.example', '{{}}'
            from {numbers(1, EVENTS)}""",
    ]
    if postgres:
        statements += [
            f"""insert into shoal.result_change (at, run, stage, records, items)
                select shoal.clock(), {run}, i.stage, count(*), array_agg(r.item order by r.item)
                from shoal.result r join shoal.item i on i.run = r.run and i.id = r.item
                where r.run = {run} group by i.stage, r.item / 1000""",
            f"delete from shoal.count_delta d using shoal.queue k where k.id = d.queue and k.run = {run}",
            f"select setval('shoal.item_id', {base + total})",
        ]
    else:
        statements += [
            f"""insert into result_change (run, stage, at, records, items)
                select {run}, x.stage, {now}, count(*), json_group_array(x.item)
                from (select r.item, i.stage from result r join item i on i.id = r.item
                      where r.run = {run} order by i.stage, r.item) x
                group by x.stage, x.item / 1000""",
            f"update counter set value = {base + total} where name = 'item'",
        ]
    if not postgres:
        statements = [text.replace("shoal.", "") for text in statements]
    return statements


def _history(dialect: str, run: int, now: int, step: int, numbers: str, total: int) -> list[str]:
    """The history of a run in steps, which `numbers` counts backwards from now."""
    buckets = ", ".join(map(str, BUCKETS))
    if dialect == "postgres":
        unit = "minute" if step == 60 else "hour"
        at = f"date_trunc('{unit}', shoal.clock()) - make_interval(secs => n * {step})"
        buckets, causes = f"'{{{buckets}}}'", "json_build_object('lane', n % 900, 'workers', 12)"
    else:
        at = f"{now - now % (step * 1_000_000)} - n * {step * 1_000_000}"
        buckets, causes = f"'[{buckets}]'", "json_object('lane', n % 900, 'workers', 12)"
    return [
        f"""insert into shoal.run_activity (run, step, at, done, dead, skipped, retried, throttled, results, seconds,
                                            waits, works)
            select {run}, {step}, {at}, 300 + n % 70, n % 9, n % 4, n % 7, n % 3, 290 + n % 70, 250.0,
                   {buckets}, {buckets}
            from {numbers}""",
        f"""insert into shoal.run_state (run, step, at, ready, waiting, delayed, leased, done, dead, skipped, cancelled,
                                         waiting_for)
            select {run}, {step}, {at}, 900, {total} / 4 + 300 * n, 400, 90, {total} / 2 - 300 * n, 9000, 5000, 0,
                   {causes}
            from {numbers}""",
    ]


def _counted(run: int) -> str:
    """The counters of the queues, from the rows."""
    states = ("ready", "waiting", "delayed", "leased", "done", "dead", "skipped", "cancelled")
    sums = ", ".join(f"{state} = c.{state}" for state in states)
    columns = ", ".join(f"sum(case x.state when '{state}' then x.n else 0 end) as {state}" for state in states)
    return f"""update shoal.queue_count as q set {sums}, results = c.results
        from (select x.queue, {columns}, sum(case x.state when 'results' then x.n else 0 end) as results
              from (select queue, 'ready' as state, count(*) as n from shoal.ready group by queue
                    union all select queue, 'waiting', count(*) from shoal.waiting group by queue
                    union all select queue, 'delayed', count(*) from shoal.delayed group by queue
                    union all select queue, 'leased', count(*) from shoal.lease group by queue
                    union all select queue, state, count(*) from shoal.outcome group by queue, state
                    union all select i.queue, 'results', count(*) from shoal.result r
                              join shoal.item i on i.run = r.run and i.id = r.item group by i.queue) x
              group by x.queue) c
        where q.queue = c.queue and q.queue in (select k.id from shoal.queue k where k.run = {run})"""


async def _fill_postgres(address: str, run: Run, size: LedgerSize, tell: Callable[[str], object]) -> int:
    connection = await asyncpg.connect(address)
    try:
        # The counters exist once the first items are folded.
        await connection.execute("set synchronous_commit = off")
        await connection.execute(
            "insert into shoal.queue_count (queue) select k.id from shoal.queue k on conflict do nothing"
        )
        base = await connection.fetchval("select nextval('shoal.item_id')")
        lane = await connection.fetchval("select nextval(pg_get_serial_sequence('shoal.lane', 'id')) + 1")
        worker = await connection.fetchval("select min(no) from shoal.worker")
        # Indexes are made faster afterwards than row by row.
        indexes = await connection.fetch(
            "select x.indexname, x.indexdef from pg_indexes x where x.schemaname = 'shoal' and x.tablename = any ($1) "
            "and not exists (select 1 from pg_constraint c where c.conname = x.indexname)",
            list(BIG_TABLES),
        )
        for name, _ in indexes:
            await connection.execute(f"drop index shoal.{name}")
        statements = _statements("postgres", run.no, base, lane, worker, size, 0)
        for sql in (*statements, *(definition for _, definition in indexes)):
            begun = time.monotonic()
            await connection.execute(sql, timeout=3_600)
            tell(_line(sql, begun))
        await connection.execute("vacuum analyze", timeout=3_600)
    finally:
        await connection.close()
    return int(base)


async def _fill_sqlite(address: str, run: Run, size: LedgerSize, tell: Callable[[str], object]) -> int:
    connection = sqlite3.connect(address, isolation_level=None)
    try:
        connection.execute("pragma synchronous = off")
        connection.execute("pragma cache_size = -400000")
        connection.create_function("key_hash", 1, key_hash, deterministic=True)
        base = connection.execute("select value from counter where name = 'item'").fetchone()[0]
        lane = connection.execute(
            "select coalesce(max(seq), 0) + 1 from sqlite_sequence where name = 'lane'"
        ).fetchone()[0]
        worker = connection.execute("select min(no) from worker").fetchone()[0]
        indexes = connection.execute(
            "select name, sql from sqlite_schema where type = 'index' and sql is not null "
            f"and tbl_name in ({', '.join(map(repr, BIG_TABLES))})"
        ).fetchall()
        for name, _ in indexes:
            connection.execute(f"drop index {name}")
        statements = _statements("sqlite", run.no, base, lane, worker, size, time.time_ns() // 1_000)
        for sql in (*statements, *(definition for _, definition in indexes)):
            begun = time.monotonic()
            connection.execute(sql)
            tell(_line(sql, begun))
        connection.execute("analyze")
    finally:
        connection.close()
    return int(base)


def _line(sql: str, begun: float) -> str:
    return f"{time.monotonic() - begun:7.1f} s  {' '.join(sql.split())[:70]}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.control_ledger", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("ledger", help="postgresql://... or a path")
    for name, value in (("items", 5_000_000), ("lanes", 100_000), ("workers", 1_000)):
        parser.add_argument(f"--{name}", type=int, default=value)
    given = parser.parse_args()
    size = LedgerSize(items=given.items, lanes=given.lanes, workers=given.workers)
    filled = asyncio.run(fill_ledger(given.ledger, size, partial(print, flush=True)))
    print(f"The run {filled.run.id} has {size.items} items in {size.lanes} lanes.")


if __name__ == "__main__":
    main()
