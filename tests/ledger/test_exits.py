"""Exits on both ledgers: random histories against the pure rules, faults, and costs with many exits."""

from __future__ import annotations

import asyncio
import itertools
import random
import re
import sqlite3
from pathlib import Path

import asyncpg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shoal.ledger.postgres.ledger import PostgresLedger, open_postgres
from shoal.ledger.protocols import Ledger
from shoal.ledger.sqlite.ledger import SqliteLedger, named_queries
from shoal.model.egress import ExitReport, ExitSpec, ExitState, HealthRules, HostReport
from shoal.model.exit_health import (
    MICRO,
    ExitRecord,
    HostRecord,
    after_ban,
    after_host_report,
    after_report,
    set_by_operator,
    with_trial,
)
from shoal.model.worker import WorkerSpec
from shoal.testing.harness import InjectedFault, LedgerHarness, retry_on_fault, with_faults
from tests.ledger.test_faults import BrokenWire
from tests.support import LONG
from tests.support.ledgers import postgres_harness, sqlite_harness

# Times are so far apart that the real time of a step, which counts too, makes no difference.
UNIT = 1_000.0
RULES = HealthRules(ban_after=3, ban_for=5 * UNIT, block_after=2, block_for=3 * UNIT)
KEYS = ("aaaa", "bbbb")
COUNT = st.integers(0, 3)
REPORTS = st.builds(
    ExitReport,
    key=st.sampled_from(KEYS),
    succeeded=COUNT,
    failed=COUNT,
    failures_in_row=COUNT,
    error=st.sampled_from(("", "reset", "407")),
    trial=st.booleans(),
    hosts=st.lists(
        st.builds(HostReport, host=st.sampled_from(("x", "y")), succeeded=COUNT, blocked=COUNT, blocks_in_row=COUNT),
        max_size=2,
        unique_by=lambda report: report.host,
    ).map(tuple),
)
WORKER = st.integers(0, 1)
SPAN = st.sampled_from((None, 1, 3, 7))
STEPS = st.one_of(
    st.tuples(st.just("report"), WORKER, st.lists(REPORTS, max_size=2, unique_by=lambda report: report.key)),
    st.tuples(st.just("fail"), WORKER, st.sampled_from(KEYS)),
    st.tuples(st.just("pass"), st.sampled_from((2, 4, 6))),
    st.tuples(st.just("trial"), WORKER, st.sampled_from(KEYS), st.sampled_from((1, 3))),
    st.tuples(st.just("end"), st.sampled_from(KEYS)),
    st.tuples(st.just("set"), st.sampled_from(KEYS), st.sampled_from(tuple(ExitState)[:3]), SPAN),
)


@pytest.fixture
def harness(either_harness: LedgerHarness) -> LedgerHarness:
    return either_harness


class Expected:
    """What the pure rules say, and what a worker knows that only asks for changes."""

    def __init__(self, workers: list[str]) -> None:
        self.workers = workers
        self.now = 0
        self.exits = dict.fromkeys(KEYS, ExitRecord())
        self.hosts: dict[tuple[str, str], HostRecord] = {}
        self.at: float | None = None
        self.known: dict[str, tuple[ExitState, float | None]] = {}
        self.blocks: dict[tuple[str, str], float] = {}

    def report(self, worker: int, reports: list[ExitReport]) -> None:
        for report in reports:
            self.exits[report.key] = after_report(self.exits[report.key], worker, report, RULES, self.now)
            for host in report.hosts:
                before = self.hosts.get((report.key, host.host))
                if before is not None or host.blocked:
                    after = after_host_report(before or HostRecord(), host, RULES, self.now)
                    self.hosts[report.key, host.host] = after

    def set(self, key: str, state: ExitState, seconds: float | None) -> None:
        self.exits[key] = set_by_operator(self.exits[key], state, seconds, "it lies", "ann", self.now)
        if state is ExitState.RESTING:
            self.exits[key] = set_by_operator(self.exits[key], state, seconds, "", "ann", self.now)
        if state is ExitState.GOOD:
            self.hosts = {
                at: HostRecord(succeeded=host.succeeded, blocked=host.blocked, error=host.error)
                if at[0] == key
                else host
                for at, host in self.hosts.items()
            }

    async def compare(self, ledger: Ledger, pool: str) -> None:
        changes = await ledger.exits.changes(self.workers[0], pool, self.at)
        self.at = changes.at
        clock = self.now / MICRO
        for health in changes.exits:
            self.known[health.key] = (health.state, None if health.until is None else clock + health.until)
        for block in changes.blocks:
            self.blocks[block.key, block.host] = clock + block.seconds
        for key, record in self.exits.items():
            found = await ledger.exits.get(pool, key)
            state = record.state_at(self.now)
            assert found.state is state
            good = state is ExitState.GOOD
            assert (found.why, found.by) == (("", "") if good else (record.why, record.by))
            assert (found.succeeded, found.failed) == (record.succeeded, record.failed)
            assert (found.failures_in_row, found.error) == (record.failures_in_row, record.error)
            ends = (
                max(self.now, record.trial_until or 0) if state is ExitState.TRIAL else None if good else record.until
            )
            assert found.until == (None if ends is None else pytest.approx((ends - self.now) / MICRO, abs=UNIT / 2))
            known, ends_at = self.known.get(key, (ExitState.GOOD, None))
            if known in (ExitState.BANNED, ExitState.RESTING) and ends_at is not None and ends_at <= clock + UNIT / 2:
                known = ExitState.TRIAL if known is ExitState.BANNED else ExitState.GOOD
            assert known is state, "a worker that asks for changes knows the state"
            hosts = {host.host: host for host in found.hosts}
            assert set(hosts) == {host for owner, host in self.hosts if owner == key}
            for host, seen in hosts.items():
                wanted = self.hosts[key, host]
                assert (seen.succeeded, seen.blocked) == (wanted.succeeded, wanted.blocked)
                assert (seen.blocks_in_row, seen.error) == (wanted.blocks_in_row, wanted.error)
                left = max(0.0, ((wanted.blocked_until or 0) - self.now) / MICRO)
                assert seen.blocked_seconds == pytest.approx(left, abs=UNIT / 2)
                assert (left > 0) == (self.blocks.get((key, host), 0.0) > clock + UNIT / 2)


async def follow(harness: LedgerHarness, pool: str, steps: list[tuple[object, ...]]) -> None:
    ledger = harness.ledger
    workers = [await harness.worker(lease_seconds=86_400) for _ in range(2)]
    for member in workers:
        await ledger.exits.register(member, pool, "proxies", [ExitSpec(key, f"proxy {key}") for key in KEYS])
    expected = Expected(workers)
    for step in steps:
        match step:
            case ("report", int(worker), list(reports)):
                await ledger.exits.report(workers[worker], pool, reports, RULES)
                expected.report(worker, reports)
            case ("fail", int(worker), str(key)):
                failed = [ExitReport(key=key, failed=3, failures_in_row=3, error="refused", trial=True)]
                await ledger.exits.report(workers[worker], pool, failed, RULES)
                expected.report(worker, failed)
            case ("pass", int(units)):
                await harness.advance_clock(units * UNIT)
                expected.now += round(units * UNIT * MICRO)
            case ("trial", int(worker), str(key), int(units)):
                won = await ledger.exits.start_trial(workers[worker], pool, key, units * UNIT)
                tried = with_trial(expected.exits[key], worker, units * UNIT, expected.now)
                assert won == (tried is not None)
                expected.exits[key] = tried or expected.exits[key]
            case ("end", str(key)):
                await ledger.exits.end_bans(pool, [key])
                expected.exits[key] = after_ban(expected.exits[key], expected.now) or expected.exits[key]
            case ("set", str(key), ExitState() as state, units):
                seconds = None if units is None else units * UNIT  # type: ignore[operator]
                if state is ExitState.BANNED:
                    await ledger.exits.ban(pool, key, seconds, "it lies", by="ann")
                elif state is ExitState.RESTING:
                    await ledger.exits.rest(pool, key, seconds, by="ann")
                else:
                    await ledger.exits.free(pool, key, by="ann")
                expected.set(key, state, seconds)
        await expected.compare(ledger, pool)
    assert await ledger.upkeep.audit() == []


@pytest.mark.slow
def test_random_histories_follow_the_rules(place: Path | str) -> None:
    """On PostgreSQL the rules are SQL: any history must have the same end. Each history has a pool of its own."""
    numbers = itertools.count(1)
    opened = sqlite_harness(place) if isinstance(place, Path) else postgres_harness(place)
    with asyncio.Runner() as runner:
        harness = runner.run(opened.__aenter__())

        @settings(
            max_examples=600 if LONG else 40 if isinstance(place, Path) else 25,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(st.lists(STEPS, min_size=3, max_size=14))
        def check(steps: list[tuple[object, ...]]) -> None:
            runner.run(follow(harness, f"homes {next(numbers)}", steps))

        try:
            check()
        finally:
            runner.run(opened.__aexit__(None, None, None))


async def report_all(ledger: Ledger, name: str, rng: random.Random) -> None:
    """A worker that makes every call again until it answers; 60 successes and 60 failures in numbered reports."""
    await retry_on_fault(lambda: ledger.workers.register(WorkerSpec(id=name, node="n", pid=1, lease_seconds=3_600)))
    specs = [ExitSpec(f"{n:04x}", f"proxy {n}") for n in range(20)]
    at: float | None = None
    for number in range(1, 61):
        exit = rng.randrange(20)
        hosts = (HostReport(host="shop.example", blocked=1, blocks_in_row=1),)
        reports = [ExitReport(key=f"{exit:04x}", succeeded=1, failed=1, failures_in_row=1, hosts=hosts)]
        if number % 10 == 1:
            await retry_on_fault(lambda: ledger.exits.register(name, "homes", "proxies", specs))
        await retry_on_fault(
            lambda reports=reports, number=number: ledger.exits.report(name, "homes", reports, RULES, number=number)  # type: ignore[misc]
        )
        at = (await retry_on_fault(lambda at=at: ledger.exits.changes(name, "homes", at))).at  # type: ignore[misc]


async def test_reports_count_once_whatever_call_fails(harness: LedgerHarness) -> None:
    flaky, injected = with_faults(harness.ledger, rate=0.35, seed=6)
    rng = random.Random(6)
    await asyncio.wait_for(asyncio.gather(*(report_all(flaky, f"w{n}", rng) for n in range(3))), timeout=120)
    exits = (await harness.ledger.exits.list("homes")).rows
    assert (sum(found.succeeded for found in exits), sum(found.failed for found in exits)) == (180, 180)
    hosts = [(await harness.ledger.exits.get("homes", found.key)).hosts for found in exits]
    assert sum(host.blocked for found in hosts for host in found) == 180
    assert await harness.ledger.upkeep.audit() == []
    for call in ("report", "register", "changes"):
        assert any(injected[f"exits.{call} {kind}"] for kind in ("before", "after", "timeout"))
    assert min(injected[f"exits.report {kind}"] for kind in ("before", "after", "timeout")) > 0


async def test_one_worker_wins_a_trial_whatever_call_fails(harness: LedgerHarness) -> None:
    exits = [ExitSpec(f"{n:04x}", f"proxy {n}") for n in range(12)]
    workers = [await harness.worker(lease_seconds=86_400) for _ in range(3)]
    for worker in workers:
        await harness.ledger.exits.register(worker, "homes", "proxies", exits)
    failed = [ExitReport(key=spec.key, failed=3, failures_in_row=3) for spec in exits]
    await harness.ledger.exits.report(workers[0], "homes", failed, RULES)
    await harness.advance_clock(5 * UNIT + 1)
    flaky, injected = with_faults(harness.ledger, rate=0.35, seed=7)

    async def win(worker: str) -> list[str]:
        won = []
        for spec in exits:
            if await retry_on_fault(lambda spec=spec: flaky.exits.start_trial(worker, "homes", spec.key, 600)):  # type: ignore[misc]
                won.append(spec.key)
        return won

    won = await asyncio.gather(*(win(worker) for worker in workers))
    assert sorted(key for keys in won for key in keys) == [spec.key for spec in exits]
    assert injected["exits.start_trial after"] > 0
    # Operators repeat their calls too.
    for spec in exits:
        try:
            await flaky.exits.free("homes", spec.key)
        except InjectedFault:
            await retry_on_fault(lambda spec=spec: flaky.exits.free("homes", spec.key))  # type: ignore[misc]
    (pool,) = await harness.ledger.exits.pools()
    assert (pool.good, pool.trial) == (12, 0)
    assert await harness.ledger.upkeep.audit() == []


async def test_lost_and_late_reports_are_hidden_from_callers(postgres_url: str) -> None:
    """Without numbers: the PostgreSQL ledger itself repeats a call whose answer was lost."""
    ledger = await open_postgres(postgres_url)
    await ledger.workers.register(WorkerSpec(id="w", node="n", pid=1, lease_seconds=3_600))
    await ledger.exits.register("w", "homes", "proxies", [ExitSpec("aaaa", "proxy")])
    wire = BrokenWire(ledger, rate=0.4, seed=3)
    for _ in range(60):
        await ledger.exits.report("w", "homes", [ExitReport(key="aaaa", succeeded=1)], RULES)
    await asyncio.gather(*wire.late)
    assert min(wire.injected[kind] for kind in ("before", "after", "late")) > 3, wire.injected
    wire.rate = 0.0
    assert (await ledger.exits.get("homes", "aaaa")).succeeded == 60
    await ledger.close()


DAMAGE = (
    ("audit_exits", "update {}exit set why = 'x' where key = 'aaaa'", "it is good, and has the marks of a ban"),
    ("audit_exits", "update {}exit set trial_by = 1 where key = 'aaaa'", "it is tried without a ban"),
    ("audit_exits", "update {}exit set failures_in_row = 9 where key = 'aaaa'", "more failures in a row than failures"),
    ("audit_exits", "update {}exit set pool = 'zoo' where key = 'aaaa'", "its pool is missing"),
    ("audit_exit_pools", "update {}exit_pool set listed = 7", "says 7 exits, has 2"),
    ("audit_exit_pools", "update {}exit_member set list = 'x'", "the list of the worker"),
    ("audit_exit_pools", "delete from {}exit_member", "nobody has the list"),
    (
        "audit_exit_pools",
        "update {}exit set key = 'cccc' where key = 'aaaa'",
        "the exit aaaa is in a list, and not listed",
    ),
    ("audit_exit_hosts", "update {}exit_host set exit = 0", "there is no such exit"),
    ("audit_exit_hosts", "update {}exit_host set blocks_in_row = 9", "more blocks in a row than blocks"),
)


@pytest.mark.parametrize(("rule", "damage", "found"), DAMAGE, ids=[damage[2] for damage in DAMAGE])
@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
async def test_an_audit_finds_damaged_exits(harness: LedgerHarness, rule: str, damage: str, found: str) -> None:
    await damage_exits(harness, rule, damage.format(""), found)


async def test_an_audit_finds_damaged_exits_on_postgres(postgres_url: str) -> None:
    async with postgres_harness(postgres_url) as harness:
        await damage_exits(harness, DAMAGE[0][0], DAMAGE[0][1].format("shoal."), DAMAGE[0][2])


async def damage_exits(harness: LedgerHarness, rule: str, damage: str, found: str) -> None:
    worker = await harness.worker()
    await harness.ledger.exits.register(worker, "homes", "proxies", [ExitSpec(key, f"proxy {key}") for key in KEYS])
    blocked = (HostReport(host="shop.example", blocked=1, blocks_in_row=1),)
    await harness.ledger.exits.report(worker, "homes", [ExitReport(key="aaaa", hosts=blocked)], RULES)
    assert await harness.ledger.upkeep.audit() == []
    assert isinstance(harness.ledger, SqliteLedger | PostgresLedger)
    await harness.ledger.db.fetch(damage)
    findings = await harness.ledger.upkeep.audit()
    assert any(finding.rule == rule and found in finding.detail for finding in findings), findings


async def test_a_list_that_is_known_is_registered_without_a_write(harness: LedgerHarness) -> None:
    ledger = harness.ledger
    assert isinstance(ledger, SqliteLedger | PostgresLedger)
    worker = await harness.worker()
    specs = [ExitSpec(f"{n:04x}", f"proxy {n}") for n in range(300)]
    await ledger.exits.register(worker, "homes", "proxies", specs)
    statements: list[str] = []
    real = ledger.db.fetch

    async def counting(sql: str, *args: object) -> object:
        statements.append(sql)
        return await real(sql, *args)

    ledger.db.fetch = counting  # type: ignore[method-assign,assignment]
    await ledger.exits.register(worker, "homes", "proxies", specs[::-1])
    assert len(statements) == 1
    assert "select m.list" in statements[0]


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
async def test_sqlite_reads_exits_by_an_index(harness: LedgerHarness) -> None:
    assert isinstance(harness.ledger, SqliteLedger)

    def explain(connection: sqlite3.Connection) -> dict[str, list[str]]:
        found = {}
        for name, sql in named_queries().items():
            if re.search(r"\bexit(_host)?\b", sql) and not name.startswith(("audit", "unlist")):
                count = max((int(n) for n in re.findall(r"\?(\d+)", sql)), default=0)
                rows = connection.execute(f"explain query plan {sql}", [None] * count).fetchall()
                found[name] = [str(row[3]) for row in rows if re.match(r"SCAN (e|h|exit|exit_host)\b", str(row[3]))]
        return found

    found = await harness.ledger.db.change_schema(explain)
    assert len(found) > 15
    assert {name: scans for name, scans in found.items() if scans} == {}


async def test_postgres_reads_only_the_exits_that_changed(postgres_url: str) -> None:
    async with postgres_harness(postgres_url) as harness:
        assert isinstance(harness.ledger, PostgresLedger)
        worker = await harness.worker(lease_seconds=3_600)
        for pool in ("airport", "homes"):
            specs = [ExitSpec(f"{n:06x}", f"proxy {n:05}") for n in range(5_000)]
            await harness.ledger.exits.register(worker, pool, "proxies", specs)
        banned = [ExitReport(key=f"{n:06x}", failed=3, failures_in_row=3) for n in range(0, 5_000, 500)]
        at = (await harness.ledger.exits.changes(worker, "homes")).at
        await harness.ledger.exits.report(worker, "homes", banned, RULES)
        person = await asyncpg.connect(postgres_url)
        try:
            await person.execute("analyze")
            sql = harness.ledger.exits._sql
            for call, args in (
                (sql["pool_changes"], ("homes", at)),
                (sql["pool_state"], ("homes",)),
                (sql["list_pools"], ()),
                (sql["list_exits"], ("homes", "homes", "", "", None, 50)),
                (sql["list_exits_not_good"], (None, "", "", "", "banned", 50)),
                (sql["get_exit"], ("homes", banned[0].key)),
            ):
                plan = await person.fetchval(f"explain (analyze, buffers, format json) {call}", *args)
                pages = re.search(r'"Shared Hit Blocks": (\d+)', plan)
                assert pages is not None
                # The clock of the tests is a page for each row too; reading a whole pool would be more than 5,000.
                assert int(pages[1]) < 1_000, (call, plan)
        finally:
            await person.close()
