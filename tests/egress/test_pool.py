"""A pool in a worker: its list, its part, what it tells the ledger and hears from it, why nothing can be used.

The ledger's role is a small one in memory, with a clock that the test sets; the real ones are used in test_proxies.py.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from shoal.config.egress import EgressConfig
from shoal.egress.pool import ExitIdentity, ExitPool
from shoal.egress.proxies import ProxyPool
from shoal.errors import EgressUnavailable, InvalidSetting, LedgerUnavailable
from shoal.ledger.protocols import Ledger
from shoal.model.egress import ExitHealth, ExitReport, ExitSpec, ExitState, HealthRules, PoolChanges, PoolKind

SHOP, BANK = "shop.example", "bank.example"
FREE = "`shoal proxies free homes` ends bans now"


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


class MemoryExits:
    """The health of one pool's exits as a ledger keeps it. `fails`: it cannot be reached."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.members: dict[str, tuple[str, ...]] = {}
        self.labels: dict[str, str] = {}
        self.states: dict[str, tuple[ExitState, float | None]] = {}
        self.reports: list[ExitReport] = []
        self.trials: list[tuple[str, str]] = []
        self.fails = False
        self.loses_answer = False
        self.last_number = 0
        self.calls = 0

    def _call(self) -> None:
        self.calls += 1
        if self.fails:
            raise LedgerUnavailable("the ledger is away")

    async def register(
        self, worker: str, pool: str, kind: PoolKind, exits: Sequence[ExitSpec], *, complete: bool = True
    ) -> None:
        self._call()
        self.members[worker] = tuple(spec.key for spec in exits)
        self.labels |= {spec.key: spec.label for spec in exits}

    async def report(
        self, worker: str, pool: str, reports: Sequence[ExitReport], rules: HealthRules, *, number: int
    ) -> None:
        self._call()
        assert number >= self.last_number
        if number == self.last_number:
            return
        self.last_number = number
        for report in reports:
            self.reports.append(report)
            if report.failures_in_row >= rules.ban_after or (report.trial and not report.succeeded):
                self.states[report.key] = (ExitState.BANNED, self._clock() + rules.ban_for)
            elif report.trial:
                self.states[report.key] = (ExitState.GOOD, None)
        if self.loses_answer:
            raise LedgerUnavailable("the connection was lost")

    async def changes(self, worker: str, pool: str, since: float | None = None) -> PoolChanges:
        self._call()
        await asyncio.sleep(0)
        exits = tuple(
            ExitHealth(key=key, state=state, until=None if until is None else until - self._clock())
            for key, (state, until) in self.states.items()
        )
        return PoolChanges(at=self._clock(), exits=exits, members=tuple(sorted(self.members)))

    async def start_trial(self, worker: str, pool: str, key: str, seconds: float) -> bool:
        self._call()
        state, until = self.states.get(key, (ExitState.GOOD, None))
        is_own = state is ExitState.TRIAL and (worker, key) in self.trials
        if state is ExitState.GOOD or until is None or (until > self._clock() and not is_own):
            return False
        self.trials.append((worker, key))
        self.states[key] = (ExitState.TRIAL, self._clock() + seconds)
        return True

    async def end_bans(self, pool: str, keys: Sequence[str]) -> None:
        self._call()
        for key in keys:
            self.states[key] = (ExitState.BANNED, self._clock())


class MemoryLedger:
    def __init__(self, clock: Clock) -> None:
        self.exits = MemoryExits(clock)


class RecordedLog:
    """A log that keeps what is warned of."""

    def __init__(self) -> None:
        self.warnings: list[tuple[str, dict[str, Any]]] = []

    def bind(self, **fields: Any) -> RecordedLog:
        return self

    def debug(self, event: str, **fields: Any) -> None: ...

    def info(self, event: str, **fields: Any) -> None: ...

    def warning(self, event: str, **fields: Any) -> None:
        self.warnings.append((event, fields))

    error = warning


class Fleet:
    """Workers with a pool each, on one ledger."""

    def __init__(self, path: Path) -> None:
        self.clock = Clock()
        self.ledger = MemoryLedger(self.clock)
        self.path = path
        self.log = RecordedLog()
        self.options: dict[str, Any] = {"ban_after": 2, "ban_for": 60.0, "block_after": 1, "block_for": 30.0}

    def write(self, *numbers: int) -> None:
        self.path.write_text("".join(f"192.0.2.{number}:80:ann:wOrd-number-{number}\n" for number in numbers))

    async def pool(self, worker: str = "w1", **options: Any) -> ProxyPool:
        config = EgressConfig(name="homes", kind="proxies", file=str(self.path), **{**self.options, **options})
        pool = ProxyPool(config, log=self.log, now=self.clock, rng=random.Random(1))
        await pool.start()
        await self.sync(pool, worker)
        return pool

    async def sync(self, pool: ExitPool, worker: str = "w1") -> None:
        await pool.sync(cast(Ledger, self.ledger), worker)


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    fleet = Fleet(tmp_path / "proxies.txt")
    fleet.write(1, 2, 3)
    return fleet


def labels(pool: ProxyPool, times: int, host: str = SHOP, **options: Any) -> list[str]:
    return [pool.choose(host, **options).exit.label.removeprefix("http://192.0.2.") for _ in range(times)]


def needs_sync(pool: ExitPool) -> bool:
    return pool.needs_sync


def works_for_others(identity: ExitIdentity) -> bool:
    return identity.works_for_others


def fail_all(pool: ProxyPool, times: int = 2) -> None:
    for record in list(pool.health.records.values()):
        for _ in range(times):
            pool.health.fail(record.key, "refused", pool._now())


async def test_attempts_get_the_proxies_in_turn_with_their_logins(fleet: Fleet) -> None:
    pool: ExitPool = await fleet.pool()
    identity = pool.choose(SHOP)
    assert identity.proxy is not None
    assert (identity.proxy.username, identity.proxy.password) == ("ann", "wOrd-number-1")
    assert identity.exit.name == "homes http://192.0.2.1:80"
    assert await identity.before_request("http://shop.example/", 0) == {}
    assert labels(cast(ProxyPool, pool), 3) == ["2:80", "3:80", "1:80"]
    assert {*fleet.ledger.exits.labels.values()} == {f"http://192.0.2.{number}:80" for number in (1, 2, 3)}
    assert "wOrd" not in repr(identity) + repr(identity.exit) + repr(fleet.ledger.exits.__dict__)


async def test_no_exit_is_used_before_the_ledger_told_its_state(fleet: Fleet) -> None:
    config = EgressConfig(name="homes", kind="proxies", file=str(fleet.path))
    pool = ProxyPool(config, log=fleet.log, now=fleet.clock)
    await pool.start()
    assert needs_sync(pool)
    with pytest.raises(EgressUnavailable, match="homes is not ready: the ledger has not told its state yet"):
        pool.choose(SHOP)
    assert pool.wait() is not None
    fleet.ledger.exits.fails = True
    with pytest.raises(LedgerUnavailable):
        await fleet.sync(pool)
    assert pool.wait() is not None
    fleet.ledger.exits.fails = False
    await fleet.sync(pool)
    assert pool.wait() is None
    alone = ProxyPool(config, log=fleet.log, alone=True)
    await alone.start()
    assert alone.choose(SHOP).proxy is not None
    assert not needs_sync(alone)


async def test_a_ban_is_known_here_at_once_and_elsewhere_after_a_sync(fleet: Fleet) -> None:
    one, two = await fleet.pool("w1"), await fleet.pool("w2")
    banned = one.choose(SHOP)
    banned.record_failure("refused")
    assert not needs_sync(one)
    banned.record_failure("refused")
    assert banned.exit.label not in [one.choose(SHOP).exit.label for _ in range(6)]
    fleet.clock.now += 2
    assert needs_sync(one)
    await fleet.sync(one, "w1")
    assert not needs_sync(one)
    assert banned.exit.key in [two.choose(SHOP).exit.key for _ in range(6)]
    await fleet.sync(two, "w2")
    assert banned.exit.key not in [two.choose(SHOP).exit.key for _ in range(6)]
    restarted = await fleet.pool("w3")
    assert banned.exit.key not in [restarted.choose(SHOP).exit.key for _ in range(6)]


async def test_one_worker_tries_an_exit_after_its_ban_with_one_request(fleet: Fleet) -> None:
    fleet.write(1)
    one, two = await fleet.pool("w1"), await fleet.pool("w2")
    for _ in range(2):
        one.choose(SHOP).record_failure("refused")
    for pool, worker in ((one, "w1"), (two, "w2")):
        await fleet.sync(pool, worker)
        wait = pool.wait()
        assert wait is not None
        assert (wait.why, wait.until) == (f"the only proxy of homes is banned; {FREE}", 60.0)
    fleet.clock.now += 61
    waits = [pool.wait() for pool in (one, two)]
    assert all(wait is not None and wait.until == 0 for wait in waits)
    await fleet.sync(one, "w1")
    await fleet.sync(two, "w2")
    assert fleet.ledger.exits.trials == [("w1", next(iter(one.health.records)))]
    assert one.wait() is None
    assert two.wait() is not None
    trial = one.choose(SHOP)
    assert trial.trial
    with pytest.raises(EgressUnavailable, match="the only proxy of homes is being tried") as ended:
        one.choose(SHOP)
    assert ended.value.retry_after == 5.0
    trial.record_success(SHOP)
    assert not one.choose(SHOP).trial
    fleet.clock.now += 2
    assert needs_sync(one)
    await fleet.sync(one, "w1")
    await fleet.sync(two, "w2")
    assert two.choose(SHOP).trial is False


async def test_a_trial_whose_attempt_ended_without_a_result_is_repeated(fleet: Fleet) -> None:
    fleet.write(1)
    pool = await fleet.pool()
    fail_all(pool)
    await fleet.sync(pool)
    for _ in range(3):
        fleet.clock.now += 61
        assert pool.wait() is not None
        await fleet.sync(pool)
        pool.choose(SHOP).release()
    assert len(fleet.ledger.exits.trials) == 3


async def test_a_banned_proxy_with_another_password_is_tried_soon(fleet: Fleet) -> None:
    pool = await fleet.pool(ban_for=3_600.0)
    fail_all(pool)
    await fleet.sync(pool)
    fleet.path.write_text(fleet.path.read_text().replace("wOrd-number-1", "cOrrected"))
    os.utime(fleet.path, (1, 1))  # nobody is writing it any more
    assert pool.wait() is not None
    fleet.ledger.exits.fails = True
    with pytest.raises(LedgerUnavailable):
        await fleet.sync(pool)
    fleet.ledger.exits.fails = False
    await fleet.sync(pool)
    trial = pool.choose(SHOP)
    assert trial.trial
    assert trial.proxy is not None
    assert trial.proxy.password == "cOrrected"
    with pytest.raises(EgressUnavailable, match="2 banned, 1 being tried"):
        pool.choose(SHOP)
    trial.record_failure("407")
    await fleet.sync(pool)
    fleet.clock.now += 600
    assert pool.wait() is not None
    await fleet.sync(pool)
    assert len(fleet.ledger.exits.trials) == 1, "the same password is not tried again before its ban ends"


async def test_no_trial_is_asked_for_while_nobody_wants_an_exit(fleet: Fleet) -> None:
    pool = await fleet.pool()
    fail_all(pool)
    await fleet.sync(pool)
    fleet.clock.now += 61
    pool.health.advance(fleet.clock.now)
    pool._was_asked = False
    await fleet.sync(pool)
    assert fleet.ledger.exits.trials == []
    assert pool.wait() is not None  # a worker that looks wants one
    assert not needs_sync(pool)
    fleet.clock.now += 2
    assert needs_sync(pool)
    await fleet.sync(pool)
    assert len(fleet.ledger.exits.trials) == 3


async def test_what_all_exits_wait_for_is_said(fleet: Fleet) -> None:
    pool = await fleet.pool(ban_for=600.0)
    for label in ("1", "2", "3"):
        key = next(key for key, record in pool.health.records.items() if f".{label}:" in record.exit.label)
        for _ in range(2):
            pool.health.fail(key, "refused", fleet.clock())
        if label != "3":
            fleet.clock.now += 60
    wait = pool.wait()
    assert wait is not None
    assert (wait.pool, wait.why, wait.until) == ("homes", f"all 3 proxies of homes are banned; {FREE}", 480.0)
    with pytest.raises(EgressUnavailable) as ended:
        pool.choose(SHOP)
    assert (ended.value.message, ended.value.retry_after) == (wait.why, 480.0)
    fleet.clock.now += 30
    later = pool.wait()
    assert later is not None
    assert (later.since, later.until) == (30.0, 450.0)
    await fleet.sync(pool)
    fleet.ledger.exits.states[next(iter(pool.health.records))] = (ExitState.RESTING, None)
    await fleet.sync(pool)
    wait = pool.wait()
    assert wait is not None
    assert wait.why == f"none of the 3 proxies of homes can be used: 2 banned, 1 resting; {FREE}"


async def test_exits_that_a_host_blocks_are_used_for_others(fleet: Fleet) -> None:
    pool = await fleet.pool()
    for _ in range(3):
        pool.choose(SHOP).record_block(SHOP, "403")
    fleet.clock.now += 10
    with pytest.raises(EgressUnavailable) as ended:
        pool.choose(SHOP)
    assert ended.value.message == "all 3 proxies of homes are blocked by shop.example"
    assert ended.value.retry_after == 20.0
    assert pool.wait() is None
    for _ in range(2):
        pool.choose(BANK).record_failure("refused")
        pool.choose(BANK, avoid=[]).record_success(BANK)
    fleet.clock.now += 20
    assert labels(pool, 3)


async def test_an_avoided_exit_is_used_when_there_is_no_other(fleet: Fleet) -> None:
    pool = await fleet.pool()
    keys = [*pool.health.records]
    assert {pool.choose(SHOP, avoid=keys[:2]).exit.key for _ in range(5)} == {keys[2]}
    assert pool.choose(SHOP, avoid=keys).exit.key in keys


async def test_workers_have_disjoint_parts_and_wait_when_theirs_is_banned(fleet: Fleet) -> None:  # S3.17
    fleet.write(*range(1, 51))
    workers = {f"w{number}": await fleet.pool(f"w{number}", share="split") for number in range(10)}
    for worker, pool in workers.items():
        await fleet.sync(pool, worker)
    parts = {worker: {*labels(pool, 20)} for worker, pool in workers.items()}
    assert {len(part) for part in parts.values()} == {5}
    assert len(set.union(*parts.values())) == 50
    pool = workers["w3"]
    assert pool._part is not None
    for key in pool._part.keys:
        for _ in range(2):
            pool.health.fail(key, "refused", fleet.clock())
    with pytest.raises(EgressUnavailable, match="all 5 proxies of homes that this worker has are banned"):
        pool.choose(SHOP)
    del fleet.ledger.exits.members["w9"]  # it died
    await fleet.sync(pool, "w3")
    assert len(pool._part.keys) in (5, 6)


async def test_fewer_proxies_than_workers_are_shared_with_one_warning(fleet: Fleet) -> None:  # S3.24
    workers = {f"w{number}": await fleet.pool(f"w{number}", share="split") for number in range(7)}
    fleet.log.warnings.clear()
    for _ in range(2):
        for worker, pool in workers.items():
            await fleet.sync(pool, worker)
    used = [part for pool in workers.values() for part in {*labels(pool, 5)}]
    assert sorted(map(used.count, {*used})) == [2, 2, 3]
    assert ("fewer proxies than workers; some share one", {"exits": 3, "workers": 7}) in fleet.log.warnings
    assert len(fleet.log.warnings) <= 7


async def test_shared_pools_start_at_different_places(fleet: Fleet) -> None:
    fleet.write(*range(1, 11))
    await fleet.pool("w1")
    assert labels(await fleet.pool("w2"), 2) == ["6:80", "7:80"]


async def test_a_list_that_changes_is_used_after_a_sync_and_keeps_the_health(fleet: Fleet) -> None:
    pool = await fleet.pool()
    first = pool.choose(SHOP)
    for _ in range(2):
        first.record_failure("refused")
    fleet.write(1, 3, 4)
    await fleet.sync(pool)
    await fleet.sync(pool)  # the file was the same twice
    assert {*labels(pool, 6)} == {"3:80", "4:80"}
    assert len(fleet.ledger.exits.members["w1"]) == 3


@pytest.mark.parametrize("content", ["", "# nothing\n", "nonsense wOrd-secret\n", None])
async def test_a_list_that_becomes_useless_is_not_used(fleet: Fleet, content: str | None) -> None:
    pool = await fleet.pool()
    if content is None:
        fleet.path.unlink()
    else:
        fleet.path.write_text(content)
    for _ in range(4):
        await fleet.sync(pool)
    assert {*labels(pool, 6)} == {"1:80", "2:80", "3:80"}
    [(event, fields)] = fleet.log.warnings
    assert event == "list of proxies cannot be read; the old one stays in use"
    assert "wOrd" not in fields["why"]
    fleet.write(7)
    for _ in range(2):
        await fleet.sync(pool)
    assert {*labels(pool, 6)} == {"7:80"}


async def test_bad_lines_are_warnings_with_their_numbers(fleet: Fleet) -> None:
    fleet.path.write_text("192.0.2.1:80\n" + "gate.example:wOrd-secret\n" * 12)
    await fleet.pool()
    assert len(fleet.log.warnings) == 11
    assert fleet.log.warnings[0][1]["line"] == 2
    assert fleet.log.warnings[10][1]["lines"] == 2
    assert "wOrd" not in repr(fleet.log.warnings)


async def test_a_pool_that_can_never_work_is_an_error_at_the_start(fleet: Fleet) -> None:
    fleet.path.write_text("\n")
    with pytest.raises(InvalidSetting, match=r"has no usable proxy. Give one proxy per line"):
        await fleet.pool()
    fleet.path.unlink()
    with pytest.raises(InvalidSetting, match="cannot be read: No such file"):
        await fleet.pool()


async def test_a_provider_that_is_away_at_the_start_is_asked_again(fleet: Fleet) -> None:
    config = EgressConfig(name="homes", kind="proxies", url="http://127.0.0.1:1/list?key=hunter22")
    pool = ProxyPool(config, log=fleet.log, now=fleet.clock)
    await pool.start()
    await fleet.sync(pool)
    wait = pool.wait()
    assert wait is not None
    assert wait.why == "http://127.0.0.1/... could not be fetched: ClientConnectorError"
    fleet.clock.now += 11
    await fleet.sync(pool)
    assert pool._reading is not None
    await pool.close()
    assert "hunter22" not in repr(fleet.log.warnings)


async def test_what_could_not_be_reported_is_reported_later(fleet: Fleet) -> None:
    pool = await fleet.pool()
    pool.choose(SHOP).record_failure("refused")
    fleet.ledger.exits.fails = True
    with pytest.raises(LedgerUnavailable):
        await fleet.sync(pool)
    pool.choose(SHOP).record_success(SHOP)
    fleet.ledger.exits.fails = False
    await fleet.sync(pool)
    await fleet.sync(pool)
    assert [(report.failed, report.succeeded) for report in fleet.ledger.exits.reports] == [(1, 0), (0, 1)]


async def test_a_report_whose_answer_was_lost_counts_once(fleet: Fleet) -> None:
    pool = await fleet.pool()
    fail_all(pool)
    fleet.ledger.exits.loses_answer = True
    with pytest.raises(LedgerUnavailable):
        await fleet.sync(pool)
    fleet.ledger.exits.loses_answer = False
    fleet.clock.now += 2
    assert needs_sync(pool)
    await fleet.sync(pool)
    assert len(fleet.ledger.exits.reports) == 3
    assert not needs_sync(pool)


async def test_a_worker_with_a_new_id_is_a_member_again(fleet: Fleet) -> None:
    pool = await fleet.pool("w1")
    calls = fleet.ledger.exits.calls
    await fleet.sync(pool, "w1")
    assert fleet.ledger.exits.calls == calls + 1  # nothing to report: only the changes
    del fleet.ledger.exits.members["w1"]
    await fleet.sync(pool, "w2")
    assert "w2" in fleet.ledger.exits.members
    del fleet.ledger.exits.members["w2"]
    await fleet.sync(pool, "w2")
    await fleet.sync(pool, "w2")
    assert "w2" in fleet.ledger.exits.members


async def test_an_operator_takes_effect_with_the_next_sync(fleet: Fleet) -> None:
    pool = await fleet.pool()
    key = next(iter(pool.health.records))
    for state, until in ((ExitState.RESTING, None), (ExitState.BANNED, None)):
        fleet.ledger.exits.states[key] = (state, until)
        await fleet.sync(pool)
        assert key not in [pool.choose(SHOP).exit.key for _ in range(6)]
        fleet.ledger.exits.states[key] = (ExitState.GOOD, None)
        await fleet.sync(pool)
        fleet.clock.now += 2
        assert key in [pool.choose(SHOP).exit.key for _ in range(6)]


async def test_the_speed_of_an_exit_is_measured_from_its_requests(fleet: Fleet) -> None:
    pool = await fleet.pool(choose="healthiest")
    identity = pool.choose(SHOP)
    await identity.before_request("http://shop.example/", 0)
    fleet.clock.now += 0.5
    identity.on_response("http://shop.example/", 200, {})
    assert pool.health.records[identity.exit.key].latency == 0.5
    identity.record_success(SHOP)


async def test_an_exit_works_for_others_if_it_has_served_another_attempt_since_it_was_chosen(fleet: Fleet) -> None:
    pool = await fleet.pool(choose="sticky")
    earlier, identity, later = (pool.choose(SHOP, sticky="s") for _ in range(3))
    assert earlier.exit.key == later.exit.key
    fleet.clock.now += 1
    identity.record_success(SHOP)
    assert not works_for_others(identity), "its own success tells nothing"
    assert works_for_others(later)
    fleet.clock.now += 1
    assert not works_for_others(pool.choose(SHOP, sticky="s")), "it may have died since"


async def test_bans_are_logged_once_and_summed_up_when_there_are_many(fleet: Fleet) -> None:
    pool = await fleet.pool()
    key = next(iter(pool.health.records))
    for _ in range(2):
        pool.health.fail(key, "refused", fleet.clock())
    for _ in range(3):
        await fleet.sync(pool)
    [(event, fields)] = fleet.log.warnings
    assert (event, fields["exit"], fields["seconds"]) == ("proxy banned", "http://192.0.2.1:80", 60)
    fleet.write(*range(1, 21))
    other = await fleet.pool("w2")
    fleet.log.warnings.clear()
    fail_all(other)
    await fleet.sync(other, "w2")
    assert fleet.log.warnings == [("proxies banned", {"count": 19})]
