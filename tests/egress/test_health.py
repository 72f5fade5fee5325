"""The rules of health: what bans an exit, what blocks it at a host, and how it comes back."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from shoal.egress import health as module
from shoal.egress.health import LocalHealth
from shoal.model.egress import Exit, ExitBlock, ExitHealth, ExitState, HealthRules, PoolChanges

RULES = HealthRules(ban_after=3, ban_for=60.0, block_after=2, block_for=30.0)
SHOP, BANK = "shop.example", "bank.example"


def exits(*keys: str) -> list[Exit]:
    return [Exit(pool="homes", key=key, label=f"http://{key}:80") for key in keys]


@pytest.fixture
def health() -> LocalHealth:
    found = LocalHealth(RULES)
    found.list_exits(exits("a", "b"))
    return found


def usable(health: LocalHealth, key: str = "a", host: str = SHOP) -> bool:
    return health.is_usable(health.records[key], host)


def is_urgent(health: LocalHealth) -> bool:
    return health.is_urgent


def fail(health: LocalHealth, times: int, key: str = "a", now: float = 0.0) -> None:
    for _ in range(times):
        health.fail(key, "refused", now)


def told(*changes: ExitHealth, blocks: tuple[ExitBlock, ...] = ()) -> PoolChanges:
    return PoolChanges(at=1.0, exits=changes, blocks=blocks)


def state(key: str, state: ExitState, until: float | None = None) -> ExitHealth:
    return ExitHealth(key=key, state=state, until=until, why="told")


def test_failures_in_a_row_ban_an_exit_everywhere_at_once(health: LocalHealth) -> None:  # S3.18
    fail(health, 2)
    health.succeed("a", SHOP, 0.0)
    fail(health, 2)
    assert usable(health)
    assert not is_urgent(health)
    fail(health, 1)
    assert not usable(health, host=SHOP)
    assert not usable(health, host=BANK)
    assert usable(health, "b")
    assert is_urgent(health)
    [report] = health.take_reports()
    assert (report.key, report.succeeded, report.failed, report.failures_in_row) == ("a", 1, 5, 3)
    assert report.error == "refused"
    assert not is_urgent(health)


def test_blocks_count_at_their_host_only_and_end_by_themselves(health: LocalHealth) -> None:
    health.block("a", SHOP, "403", 0.0)
    health.block("a", BANK, "403", 0.0)
    health.succeed("a", BANK, 0.0)
    health.block("a", BANK, "403", 0.0)
    health.block("a", SHOP, "403", 10.0)
    assert not usable(health, host=SHOP)
    assert usable(health, host=BANK)
    assert usable(health, "b", SHOP)
    [report] = health.take_reports()
    assert {(host.host, host.succeeded, host.blocked, host.blocks_in_row) for host in report.hosts} == {
        (SHOP, 0, 2, 2),
        (BANK, 1, 2, 1),
    }
    assert report.failures_in_row == 0
    assert report.succeeded == 5  # the way to the host worked each time
    health.advance(39.9)
    assert not usable(health)
    health.advance(40.0)
    assert usable(health)
    health.block("a", SHOP, "403", 41.0)  # it still blocks: one request was enough to know
    assert not usable(health)


def test_after_a_ban_one_request_tries_the_exit(health: LocalHealth) -> None:
    fail(health, 3)
    health.advance(59.9)
    assert health.due({"a"}) == []
    health.advance(60.0)
    assert not usable(health)
    assert health.due({"b"}) == []
    [record] = health.due({"a"})
    health.start_trial(record, 180.0)
    assert usable(health)
    assert health.hand_out(record)
    assert not usable(health)
    fail(health, 5, now=61.0)  # old requests that were under way
    assert record.state is ExitState.TRIAL
    health.succeed("a", SHOP, 62.0, trial=True)
    assert usable(health)
    assert [report.trial for report in health.take_reports()] == [True]


def test_a_failed_trial_bans_anew_and_one_without_result_is_repeated(health: LocalHealth) -> None:
    fail(health, 3)
    health.advance(60.0)
    [record] = health.due({"a"})
    health.start_trial(record, 180.0)
    health.hand_out(record)
    health.advance(180.0)
    [record] = health.due({"a"})  # the attempt was cancelled
    health.start_trial(record, 300.0)
    health.hand_out(record)
    health.take_reports()
    health.fail("a", "refused", 200.0, trial=True)
    assert record.state is ExitState.BANNED
    assert record.until == 260.0
    [report] = health.take_reports()
    assert (report.trial, report.failed) == (True, 1)


def test_a_trial_that_told_nothing_is_repeated_soon_by_the_same_worker(health: LocalHealth) -> None:
    fail(health, 3)
    health.advance(60.0)
    [record] = health.due({"a"})
    health.start_trial(record, 180.0)
    health.hand_out(record)
    health.give_up("a", 61.0, trial=True)
    health.apply(told(state("a", ExitState.TRIAL, 119.0)), 62.0)  # our own
    assert not usable(health)
    health.advance(90.0)
    assert health.due({"a"}) == []
    health.advance(91.0)
    assert health.due({"a"}) == [record]
    health.start_trial(record, 210.0)
    health.hand_out(record)
    health.succeed("a", SHOP, 92.0, trial=True)
    health.give_up("a", 92.0, trial=True)
    assert usable(health)


def test_a_trial_that_another_worker_has_is_asked_for_again_later(health: LocalHealth) -> None:
    fail(health, 3)
    health.advance(60.0)
    [record] = health.due({"a"})
    health.refuse_trial(record, 60.0)
    assert health.due({"a"}) == []
    health.advance(66.0)
    assert health.due({"a"}) == [record]


def test_what_the_ledger_tells_replaces_what_was_known(health: LocalHealth) -> None:
    health.apply(told(state("a", ExitState.BANNED, 100.0), state("b", ExitState.RESTING, 5.0)), 0.0)
    assert not usable(health, "a")
    assert not usable(health, "b")
    health.advance(5.0)
    assert usable(health, "b")  # rest ends without a trial
    health.apply(told(state("a", ExitState.GOOD)), 6.0)
    assert usable(health, "a")
    health.apply(told(state("a", ExitState.BANNED)), 6.0)  # by an operator, until it is freed
    health.advance(1e9)
    assert health.due({"a"}) == []
    health.apply(told(state("unknown", ExitState.BANNED)), 6.0)
    health.apply(told(blocks=(ExitBlock(key="b", host=SHOP, seconds=10.0),)), 6.0)
    assert not usable(health, "b", SHOP)
    health.apply(told(blocks=(ExitBlock(key="b", host=SHOP, seconds=0.0),)), 7.0)
    assert usable(health, "b", SHOP)


def test_what_the_ledger_does_not_know_yet_is_not_replaced(health: LocalHealth) -> None:
    fail(health, 3)
    health.apply(told(state("a", ExitState.GOOD)), 0.0)
    assert not usable(health)
    health.take_reports()
    health.apply(told(state("a", ExitState.GOOD)), 0.0)
    assert usable(health)


def test_a_new_list_keeps_the_health_of_exits_that_stay(health: LocalHealth) -> None:
    fail(health, 3)
    assert not health.list_exits(exits("a"))
    assert not usable(health)
    assert health.list_exits(exits("a", "c"))
    assert usable(health, "c")
    health.succeed("b", SHOP, 0.0)  # no longer listed, and still counted
    assert "b" in {report.key for report in health.take_reports()}


def test_memory_is_bounded(health: LocalHealth, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MAX_BLOCKS", "MAX_BLOCK_ROWS", "MAX_PENDING_HOSTS"):
        monkeypatch.setattr(module, name, 50)
    for number in range(1_000):
        for _ in range(2):
            health.block("a", f"{number}.example", "403", float(number % 7))
        health.succeed("b", f"{number}.example", 0.0)
    assert sum(map(len, health.blocks.values())) == 50
    assert "999.example" in health.blocks
    assert len(health._block_rows) == 50
    assert len(health._timers) <= 2_000
    reports = health.take_reports()
    assert sum(len(report.hosts) for report in reports) <= 100
    assert {report.key: report.succeeded for report in reports} == {"a": 2_000, "b": 1_000}


def test_the_cost_of_an_exit_is_what_a_request_probably_takes(health: LocalHealth) -> None:
    slow, fast = health.records["a"], health.records["b"]
    health.measure("a", 2.0)
    health.measure("b", 0.2)
    assert fast.cost < slow.cost
    health.fail("b", "refused", 0.0)
    assert fast.cost > slow.cost
    for _ in range(30):
        health.succeed("b", SHOP, 0.0)
    assert fast.cost < slow.cost


class HealthMachine(RuleBasedStateMachine):
    """Any order of reports, waits and news. The exit's state is what a plain model of the rules says."""

    def __init__(self) -> None:
        super().__init__()
        self.health = LocalHealth(RULES)
        self.health.list_exits(exits("a", "b", "c"))
        self.now = 0.0
        self.rows: dict[str, int] = dict.fromkeys("abc", 0)
        self.handed: set[str] = set()

    keys = st.sampled_from("abc")
    hosts = st.sampled_from([SHOP, BANK])

    @rule(seconds=st.sampled_from([1.0, 10.0, 31.0, 61.0, 121.0]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.health.advance(self.now)
        self.handed &= {key for key, record in self.health.records.items() if record.handed_out}

    @rule(key=keys, host=hosts)
    def succeed(self, key: str, host: str) -> None:
        before = self.health.records[key].state
        self.health.succeed(key, host, self.now)
        self.rows[key] = 0
        assert self.health.records[key].state in (before, ExitState.GOOD)
        assert (key, host) not in self.health._block_rows

    @rule(key=keys, host=hosts)
    def block(self, key: str, host: str) -> None:
        before = self.health.records[key].state
        self.health.block(key, host, "403", self.now)
        self.rows[key] = 0
        # A block at one host changes no state, except that it ends a trial: the way worked.
        assert self.health.records[key].state in (before, ExitState.GOOD)

    @rule(key=keys)
    def fail(self, key: str) -> None:
        record = self.health.records[key]
        before = record.state
        self.health.fail(key, "refused", self.now)
        self.rows[key] += 1
        if before is ExitState.GOOD and self.rows[key] >= RULES.ban_after:
            assert record.state is ExitState.BANNED
            assert record.until == self.now + RULES.ban_for
        else:
            assert record.state is before

    @rule()
    def try_what_is_due(self) -> None:
        for record in self.health.due({"a", "b", "c"}):
            assert record.until <= self.now
            self.health.start_trial(record, self.now + 120.0)
            assert self.health.hand_out(record)
            assert not self.health.is_usable(record, SHOP)
            self.handed.add(record.key)

    @precondition(lambda self: self.handed)
    @rule(works=st.booleans())
    def end_trial(self, works: bool) -> None:
        key = self.handed.pop()
        record = self.health.records[key]
        if str(record.state) != "trial":
            return
        if works:
            self.health.succeed(key, SHOP, self.now, trial=True)
            self.rows[key] = 0
            assert record.state is ExitState.GOOD
        else:
            self.health.fail(key, "refused", self.now, trial=True)
            self.rows[key] += 1
            assert record.state is ExitState.BANNED

    @rule(
        key=keys,
        said=st.sampled_from([ExitState.GOOD, ExitState.BANNED, ExitState.RESTING]),
        until=st.sampled_from([None, 5.0, 50.0]),
    )
    def be_told(self, key: str, said: ExitState, until: float | None) -> None:
        self.health.take_reports()
        self.health.apply(told(state(key, said, until)), self.now)
        assert self.health.records[key].state is said
        if said is ExitState.GOOD:
            self.rows[key] = 0

    @invariant()
    def nobody_uses_what_is_not_good(self) -> None:
        for record in self.health.records.values():
            for host in (SHOP, BANK):
                blocked = record.key in self.health.blocks.get(host, {})
                if self.health.is_usable(record, host):
                    assert not blocked
                    assert record.state is ExitState.GOOD or record.trial_is_ready
            assert (record.state is ExitState.GOOD) == (record.until == math.inf) or record.until == math.inf

    @invariant()
    def blocks_end(self) -> None:
        for at_host in self.health.blocks.values():
            assert all(until > self.now for until in at_host.values())


HealthMachine.TestCase.settings = settings(max_examples=30, stateful_step_count=40, deadline=None)
TestHealthMachine: Any = HealthMachine.TestCase
