"""Exits: bans, blocks, trials, operators, lists and members."""

from __future__ import annotations

import asyncio

import pytest

from shoal.errors import InvalidSetting, NotFound, UsageError, WorkerLost
from shoal.model.egress import ExitReport, ExitSpec, ExitState, ExitView, HealthRules, HostReport, PoolChanges
from shoal.testing.harness import LedgerHarness

POOL = "homes"
RULES = HealthRules(ban_after=3, ban_for=600, block_after=2, block_for=60)
A, B, C = (ExitSpec(key, f"socks5://10.0.0.{n}:1080") for n, key in enumerate(("aaaa", "bbbb", "cccc")))


def failed(key: str, times: int = 1, *, trial: bool = False, error: str = "refused") -> ExitReport:
    return ExitReport(key=key, failed=times, failures_in_row=times, error=error, trial=trial)


def succeeded(key: str, *, trial: bool = False) -> ExitReport:
    return ExitReport(key=key, succeeded=1, trial=trial, hosts=(HostReport(host="shop.example", succeeded=1),))


def blocked(key: str, host: str, times: int = 1) -> ExitReport:
    return ExitReport(key=key, hosts=(HostReport(host=host, blocked=times, blocks_in_row=times, error="403"),))


async def member(harness: LedgerHarness, *exits: ExitSpec, pool: str = POOL) -> str:
    worker = await harness.worker(lease_seconds=3_600)
    await harness.ledger.exits.register(worker, pool, "proxies", exits or (A, B, C))
    return worker


async def report(harness: LedgerHarness, worker: str, *reports: ExitReport, rules: HealthRules = RULES) -> None:
    await harness.ledger.exits.report(worker, POOL, reports, rules)


async def view(harness: LedgerHarness, key: str = A.key) -> ExitView:
    return await harness.ledger.exits.get(POOL, key)


async def state(harness: LedgerHarness, key: str = A.key) -> str:
    return (await view(harness, key)).state.value


async def listed(harness: LedgerHarness, pool: str | None = POOL) -> list[str]:
    return [found.key for found in (await harness.ledger.exits.list(pool)).rows]


async def changes(harness: LedgerHarness, worker: str, since: float | None = None) -> PoolChanges:
    return await harness.ledger.exits.changes(worker, POOL, since)


class ExitsConformance:
    async def test_so_many_failures_in_a_row_ban_an_exit_everywhere(self, harness: LedgerHarness) -> None:
        one, two = await member(harness), await member(harness)
        await report(harness, one, failed(A.key, 2))
        assert await state(harness) == "good"
        await report(harness, two, failed(A.key, error="407 Proxy Authentication Required"))
        found = await view(harness)
        assert (found.state, found.failed, found.failures_in_row) == ("banned", 3, 3)
        assert found.until == pytest.approx(600, abs=5)
        assert found.why == "3 failures in a row: 407 Proxy Authentication Required"
        assert found.by == ""
        assert found.used_seconds == pytest.approx(0, abs=5)
        assert [health.key for health in (await changes(harness, one)).exits] == [A.key]
        await harness.check()

    async def test_a_success_ends_a_row_of_failures(self, harness: LedgerHarness) -> None:
        worker = await member(harness)
        await report(harness, worker, failed(A.key, 2))
        await report(harness, worker, succeeded(A.key))
        await report(harness, worker, failed(A.key, 2))
        # Five failures, two of them after the last success.
        await report(harness, worker, ExitReport(key=A.key, succeeded=1, failed=5, failures_in_row=2))
        found = await view(harness)
        assert (found.state, found.failures_in_row, found.failed, found.succeeded) == ("good", 2, 9, 2)
        await report(harness, worker, failed(A.key))
        assert await state(harness) == "banned"
        await harness.check()

    async def test_what_a_busy_exit_reports_does_not_prolong_its_ban(self, harness: LedgerHarness) -> None:
        worker = await member(harness)
        await report(harness, worker, failed(A.key, 3))
        await harness.advance_clock(300)
        await report(harness, worker, failed(A.key, 5))
        await report(harness, worker, succeeded(A.key))
        found = await view(harness)
        assert found.state is ExitState.BANNED
        assert found.until == pytest.approx(300, abs=5)
        await harness.check()

    async def test_a_ban_ends_with_one_trial_of_one_worker(self, harness: LedgerHarness) -> None:
        one, two = await member(harness), await member(harness)
        exits = harness.ledger.exits
        await report(harness, one, failed(A.key, 3))
        assert not await exits.start_trial(one, POOL, A.key, 30)
        await harness.advance_clock(601)
        assert await state(harness) == "trial"
        assert (await changes(harness, one)).exits[0].until == 0
        won = await asyncio.gather(*(exits.start_trial(worker, POOL, A.key, 30) for worker in (one, two)))
        assert sorted(won) == [False, True]
        winner, loser = (one, two) if won[0] else (two, one)
        assert await exits.start_trial(winner, POOL, A.key, 30), "its first answer may have been lost"
        # Late answers to requests from before the ban decide nothing.
        await report(harness, loser, succeeded(A.key))
        await report(harness, loser, succeeded(A.key, trial=True))
        await report(harness, loser, failed(A.key, 5, trial=True))
        found = await view(harness)
        assert found.state is ExitState.TRIAL
        assert found.until == pytest.approx(30, abs=5)
        await report(harness, winner, succeeded(A.key, trial=True))
        found = await view(harness)
        assert (found.state, found.failures_in_row, found.why, found.until) == ("good", 0, "", None)
        assert not await exits.start_trial(loser, POOL, A.key, 30)
        await harness.check()

    async def test_a_failed_trial_bans_again(self, harness: LedgerHarness) -> None:
        worker = await member(harness)
        await report(harness, worker, failed(A.key, 3))
        await harness.advance_clock(601)
        assert await harness.ledger.exits.start_trial(worker, POOL, A.key, 30)
        await report(harness, worker, failed(A.key, trial=True, error="reset"))
        found = await view(harness)
        assert found.state is ExitState.BANNED
        assert found.until == pytest.approx(600, abs=5)
        assert found.why == "the trial after its ban failed: reset"
        await harness.advance_clock(601)
        assert await harness.ledger.exits.start_trial(worker, POOL, A.key, 30)
        await harness.check()

    async def test_a_trial_that_a_host_blocks_shows_that_the_way_works(self, harness: LedgerHarness) -> None:
        worker = await member(harness)
        await report(harness, worker, failed(A.key, 3))
        await harness.advance_clock(601)
        assert await harness.ledger.exits.start_trial(worker, POOL, A.key, 30)
        hosts = (HostReport(host="shop.example", blocked=1, blocks_in_row=1),)
        await report(harness, worker, ExitReport(key=A.key, trial=True, hosts=hosts))
        assert await state(harness) == "good"
        assert (await view(harness)).failures_in_row == 0

    async def test_a_trial_that_did_not_happen_is_free_at_once(self, harness: LedgerHarness) -> None:
        one, two = await member(harness), await member(harness)
        await report(harness, one, failed(A.key, 3))
        await harness.advance_clock(601)
        assert await harness.ledger.exits.start_trial(one, POOL, A.key, 3_000)
        assert not await harness.ledger.exits.start_trial(two, POOL, A.key, 30)
        await report(harness, one, ExitReport(key=A.key, trial=True))
        assert await harness.ledger.exits.start_trial(two, POOL, A.key, 30)
        await harness.check()

    async def test_a_trial_whose_worker_died_is_free_after_its_time(self, harness: LedgerHarness) -> None:
        one, two = await member(harness), await member(harness)
        await report(harness, one, failed(A.key, 3))
        await harness.advance_clock(601)
        assert await harness.ledger.exits.start_trial(one, POOL, A.key, 30)
        await harness.ledger.workers.mark_dead(one)
        assert not await harness.ledger.exits.start_trial(two, POOL, A.key, 30)
        await harness.advance_clock(31)
        assert await harness.ledger.exits.start_trial(two, POOL, A.key, 30)

    async def test_a_ban_that_is_ended_is_followed_by_one_trial(self, harness: LedgerHarness) -> None:
        one, two = await member(harness), await member(harness)
        exits = harness.ledger.exits
        await report(harness, one, failed(A.key, 3))
        await exits.ban(POOL, B.key, 600, "it lies", by="ann")
        await exits.rest(POOL, C.key, 600)
        at = (await changes(harness, two)).at
        for _ in range(2):  # the first answer may have been lost
            await exits.end_bans(POOL, [A.key, B.key, C.key, "no such"])
        states = {found.key: found.state for found in (await exits.list(POOL)).rows}
        assert states == {A.key: "trial", B.key: "banned", C.key: "resting"}, "what an operator set stays"
        assert A.key in {told.key for told in (await exits.changes(two, POOL, at)).exits if told.state == "trial"}
        assert await exits.start_trial(two, POOL, A.key, 30)
        await exits.end_bans(POOL, [A.key])
        assert not await exits.start_trial(one, POOL, A.key, 30), "a trial under way is not given away"
        await report(harness, two, failed(A.key, trial=True))
        assert await state(harness) == "banned"
        await exits.end_bans("no such", [A.key])
        await exits.end_bans(POOL, [])
        await harness.check()

    async def test_blocks_count_against_an_exit_at_one_host_only(self, harness: LedgerHarness) -> None:
        one, two = await member(harness), await member(harness)
        await report(harness, one, blocked(A.key, "shop.example"), blocked(A.key, "news.example"))
        assert (await changes(harness, one)).blocks == ()
        await report(harness, two, blocked(A.key, "shop.example"))
        (block,) = (await changes(harness, one)).blocks
        assert (block.key, block.host) == (A.key, "shop.example")
        assert block.seconds == pytest.approx(60, abs=5)
        found = await view(harness)
        assert (found.state, found.failed) == ("good", 0)
        worst, other = found.hosts
        assert (worst.host, worst.blocked, worst.blocks_in_row, worst.error) == ("shop.example", 2, 2, "403")
        assert worst.blocked_seconds == pytest.approx(60, abs=5)
        assert (other.host, other.blocked_seconds) == ("news.example", 0)
        # Blocks that arrive late do not prolong it; after it, one more block is enough.
        await harness.advance_clock(30)
        await report(harness, one, blocked(A.key, "shop.example"))
        assert (await view(harness)).hosts[0].blocked_seconds == pytest.approx(30, abs=5)
        await harness.advance_clock(31)
        assert (await changes(harness, one)).blocks == ()
        await report(harness, one, blocked(A.key, "shop.example"))
        assert (await view(harness)).hosts[0].blocked_seconds == pytest.approx(60, abs=5)
        await harness.check()

    async def test_a_page_ends_a_row_of_blocks(self, harness: LedgerHarness) -> None:
        worker = await member(harness)
        await report(harness, worker, blocked(A.key, "shop.example"))
        await report(harness, worker, succeeded(A.key))
        await report(harness, worker, blocked(A.key, "shop.example"))
        assert (await changes(harness, worker)).blocks == ()
        (host,) = (await view(harness)).hosts
        assert (host.succeeded, host.blocked, host.blocks_in_row) == (1, 2, 1)

    async def test_hosts_that_never_block_need_no_place(self, harness: LedgerHarness) -> None:
        worker = await member(harness)
        pages = tuple(HostReport(host=f"{n}.example", succeeded=9) for n in range(50))
        await report(harness, worker, ExitReport(key=A.key, succeeded=450, hosts=pages))
        found = await view(harness)
        assert (found.succeeded, found.hosts) == (450, ())

    async def test_an_exit_remembers_a_bounded_number_of_hosts(self, harness: LedgerHarness) -> None:
        worker = await member(harness)
        await report(harness, worker, blocked(A.key, "old.example", 2))
        for batch in range(3):
            await harness.advance_clock(1)
            hosts = tuple(HostReport(host=f"{batch}-{n}.example", blocked=1, blocks_in_row=1) for n in range(100))
            await report(harness, worker, ExitReport(key=A.key, hosts=hosts))
        await harness.check()
        found = {host.host for host in (await view(harness)).hosts}
        assert "old.example" in found, "it is blocked there now"
        # Hosts that have not answered for long are forgotten altogether.
        await harness.advance_clock(8 * 86_400)
        await harness.ledger.upkeep.run_once()
        assert (await view(harness)).hosts == ()
        await harness.check()

    async def test_changes_since_a_time_are_complete(self, harness: LedgerHarness) -> None:
        worker = await member(harness)
        at = (await changes(harness, worker)).at
        seen: dict[str, str] = {}
        for step in range(6):
            key = (A, B, C)[step % 3].key
            if step < 3:
                await report(harness, worker, failed(key, 3))
            else:
                await harness.ledger.exits.free(POOL, key)
            found = await changes(harness, worker, at)
            seen |= {health.key: health.state.value for health in found.exits}
            assert seen[key] == ("banned" if step < 3 else "good")
            assert found.at >= at
            at = found.at
        await report(harness, worker, blocked(A.key, "shop.example", 2))
        found = await changes(harness, worker, at)
        assert [block.host for block in found.blocks] == ["shop.example"]
        at = found.at
        await harness.ledger.exits.free(POOL, A.key)
        found = await changes(harness, worker, at)
        assert [(block.host, block.seconds) for block in found.blocks] == [("shop.example", 0)]
        # Counters are no change, nor is the passing of time.
        await report(harness, worker, succeeded(B.key), failed(C.key))
        await harness.advance_clock(5)
        assert (await changes(harness, worker, found.at + 1)).exits == ()

    async def test_no_change_is_left_out_while_many_report(self, harness: LedgerHarness) -> None:
        exits = [ExitSpec(f"{n:04x}", f"proxy {n}") for n in range(60)]
        workers = [await member(harness, *exits) for _ in range(3)]
        seen: dict[str, str] = {}
        banned: set[str] = set()

        async def ban(worker: str, part: int) -> None:
            for n in range(part, 60, 3):
                await report(harness, worker, failed(f"{n:04x}", 3))
                banned.add(f"{n:04x}")

        async def watch() -> None:
            at = (await changes(harness, workers[0])).at
            while len(banned) < 60:
                found = await changes(harness, workers[0], at)
                seen.update((health.key, health.state.value) for health in found.exits)
                at = found.at
            found = await changes(harness, workers[0], at)
            seen.update((health.key, health.state.value) for health in found.exits)

        await asyncio.wait_for(asyncio.gather(watch(), *(ban(worker, n) for n, worker in enumerate(workers))), 120)
        assert seen == dict.fromkeys(banned, "banned")
        await harness.check()

    async def test_a_clock_that_was_set_back_hides_no_change(self, harness: LedgerHarness) -> None:
        worker = await member(harness)
        await report(harness, worker, failed(A.key, 3))
        at = (await changes(harness, worker)).at
        await harness.advance_clock(-3_000)
        await report(harness, worker, failed(B.key, 3))
        assert B.key in {health.key for health in (await changes(harness, worker, at)).exits}

    async def test_a_repeated_report_counts_once(self, harness: LedgerHarness) -> None:
        worker, other = await member(harness), await member(harness)
        exits = harness.ledger.exits
        for number in (1, 1, 2, 1, 2):
            await exits.report(worker, POOL, [failed(A.key)], RULES, number=number)
        assert (await view(harness)).failed == 2
        await exits.report(other, POOL, [failed(A.key)], RULES, number=1)
        assert (await view(harness)).failed == 3

    async def test_an_exit_that_is_reported_twice_in_one_call_is_counted_twice(self, harness: LedgerHarness) -> None:
        worker = await member(harness)
        twice = ExitReport(
            key=A.key,
            hosts=(HostReport(host="h", blocked=1, blocks_in_row=1), HostReport(host="h", blocked=1, blocks_in_row=1)),
        )
        await report(harness, worker, failed(A.key), failed(A.key, 2), twice)
        found = await view(harness)
        assert (found.failed, found.state, found.hosts[0].blocked) == (3, "banned", 2)

    async def test_reports_about_unknown_exits_are_ignored(self, harness: LedgerHarness) -> None:
        worker = await harness.worker()
        await report(harness, worker, failed(A.key, 3))
        assert await harness.ledger.exits.pools() == []
        assert await changes(harness, worker) == PoolChanges(at=0.0)
        await member(harness, B)
        await report(harness, worker, failed(A.key, 3), failed(B.key, 1))
        assert await listed(harness) == [B.key]
        assert not await harness.ledger.exits.start_trial(worker, POOL, "no such", 1)
        with pytest.raises(WorkerLost):
            await report(harness, "nobody", failed(B.key))

    async def test_an_operator_outranks_reports(self, harness: LedgerHarness) -> None:
        worker = await member(harness)
        exits = harness.ledger.exits
        rested = await exits.rest(POOL, A.key, 100, by="ann")
        assert (rested.state, rested.by) == ("resting", "ann")
        assert rested.until == pytest.approx(100, abs=5)
        await report(harness, worker, failed(A.key, 9))
        await report(harness, worker, succeeded(A.key))
        assert await state(harness) == "resting"
        await harness.advance_clock(101)
        assert await state(harness) == "good", "a rest needs no trial"
        assert (await view(harness)).by == ""
        await report(harness, worker, failed(A.key, 3))
        assert await state(harness) == "banned"
        freed = await exits.free(POOL, A.key, by="ann")
        assert (freed.state, freed.failures_in_row, freed.why) == ("good", 0, "")
        banned = await exits.ban(POOL, A.key, None, "it lies", by="bob")
        assert (banned.state, banned.until, banned.why, banned.by) == ("banned", None, "it lies", "bob")
        await report(harness, worker, succeeded(A.key, trial=True))
        await harness.advance_clock(10_000)
        assert await state(harness) == "banned"
        assert not await exits.start_trial(worker, POOL, A.key, 30)
        await exits.ban(POOL, A.key, 50, "it lies", by="bob")
        await harness.advance_clock(51)
        assert await state(harness) == "trial", "a ban is followed by a trial, whoever set it"
        await harness.check()
        events = (await harness.ledger.reads.events()).rows
        name = f"{POOL} {A.label}"
        assert [(event.action, event.actor, event.subject) for event in events] == [
            ("exit.banned", "bob", name),
            ("exit.banned", "bob", name),
            ("exit.freed", "ann", name),
            ("exit.rested", "ann", name),
        ]
        assert events[0].detail == {"key": A.key, "seconds": 50, "why": "it lies"}

    async def test_freeing_an_exit_frees_it_at_every_host(self, harness: LedgerHarness) -> None:
        worker = await member(harness)
        await report(harness, worker, blocked(A.key, "shop.example", 2), blocked(B.key, "shop.example", 2))
        await harness.ledger.exits.free(POOL, A.key)
        assert [block.key for block in (await changes(harness, worker)).blocks] == [B.key]
        await report(harness, worker, blocked(A.key, "shop.example"))
        assert [block.key for block in (await changes(harness, worker)).blocks] == [B.key]
        await harness.check()

    async def test_an_operator_ends_a_trial(self, harness: LedgerHarness) -> None:
        worker = await member(harness)
        await report(harness, worker, failed(A.key, 3))
        await harness.advance_clock(601)
        assert await harness.ledger.exits.start_trial(worker, POOL, A.key, 30)
        await harness.ledger.exits.rest(POOL, A.key, None)
        await report(harness, worker, failed(A.key, trial=True))
        found = await view(harness)
        assert (found.state, found.until) == ("resting", None)
        await harness.check()

    async def test_operators_cannot_change_what_does_not_exist(self, harness: LedgerHarness) -> None:
        await member(harness, A)
        exits = harness.ledger.exits
        for pool, key in ((POOL, "no such"), ("no such", A.key)):
            with pytest.raises(NotFound):
                await exits.get(pool, key)
            with pytest.raises(NotFound):
                await exits.free(pool, key)
        for seconds in (-1.0, float("nan"), float("inf"), 1e12):
            with pytest.raises(InvalidSetting):
                await exits.rest(POOL, A.key, seconds)
        assert (await harness.ledger.reads.events()).rows == ()

    async def test_members_are_the_workers_that_are_present(self, harness: LedgerHarness) -> None:
        one, two, three = [await member(harness) for _ in range(3)]
        four = await harness.worker(lease_seconds=30)
        await harness.ledger.exits.register(four, POOL, "proxies", (A, B, C))
        assert (await changes(harness, one)).members == tuple(sorted((one, two, three, four)))
        assert (await harness.ledger.exits.pools())[0].members == 4
        await harness.ledger.workers.stop(two)
        await harness.ledger.workers.mark_dead(three)
        await harness.ledger.workers.drain(one)
        assert (await changes(harness, one)).members == tuple(sorted((one, four)))
        await harness.advance_clock(61)
        await harness.ledger.upkeep.run_once()
        assert (await changes(harness, one)).members == (one,)
        assert (await harness.ledger.exits.pools())[0].members == 1
        await harness.check()

    async def test_an_exit_is_listed_while_a_member_lists_it(self, harness: LedgerHarness) -> None:
        one, two = await member(harness, A, B), await member(harness, B, C)
        assert await listed(harness) == [A.key, B.key, C.key]
        await harness.ledger.exits.register(one, POOL, "proxies", [A])
        assert await listed(harness) == [A.key, B.key, C.key], "the other member still has it"
        await harness.ledger.exits.register(two, POOL, "proxies", [C])
        assert await listed(harness) == [A.key, C.key]
        assert not (await view(harness, B.key)).listed
        assert (await harness.ledger.exits.pools())[0].exits == 2
        await harness.ledger.workers.mark_dead(two)
        await harness.advance_clock(61)
        await harness.ledger.upkeep.run_once()
        assert await listed(harness) == [A.key]
        # What was known about it counts when it comes back.
        await report(harness, one, failed(B.key, 3))
        at = (await changes(harness, one)).at
        await harness.ledger.exits.register(one, POOL, "proxies", [A, B])
        assert [health.key for health in (await changes(harness, one)).exits] == [B.key]
        assert B.key in {health.key for health in (await changes(harness, one, at)).exits}
        await harness.check()

    async def test_the_exits_of_a_pool_that_nobody_uses_stay_listed_for_a_week(self, harness: LedgerHarness) -> None:
        worker = await member(harness)
        await report(harness, worker, failed(A.key, 3), blocked(B.key, "shop.example", 2))
        await harness.ledger.exits.ban(POOL, C.key, None, "it lies")
        await harness.ledger.workers.stop(worker)
        for _ in range(2):
            await harness.advance_clock(61)
            await harness.ledger.upkeep.run_once()
        assert await listed(harness) == [A.key, B.key, C.key]
        (pool,) = await harness.ledger.exits.pools()
        assert (pool.exits, pool.members, pool.banned) == (3, 0, 2)
        await harness.advance_clock(8 * 86_400)
        await harness.ledger.upkeep.run_once()
        assert await listed(harness) == [C.key], "an operator's ban is not forgotten"
        await harness.check()
        await harness.ledger.exits.free(POOL, C.key)
        await harness.advance_clock(61)
        await harness.ledger.upkeep.run_once()
        assert await harness.ledger.exits.pools() == []
        await harness.check()
        again = await member(harness)
        assert await state(harness) == "good"
        assert (await changes(harness, again)).exits == ()

    async def test_exits_that_nobody_lists_are_forgotten_after_a_week(self, harness: LedgerHarness) -> None:
        worker = await harness.worker(lease_seconds=86_400)
        await harness.ledger.exits.register(worker, POOL, "proxies", [A, B])
        await report(harness, worker, blocked(B.key, "shop.example", 2))
        await harness.ledger.exits.register(worker, POOL, "proxies", [A])
        for _ in range(8):
            await harness.advance_clock(86_000)
            await harness.ledger.workers.heartbeat(worker)
            await harness.ledger.upkeep.run_once()
        with pytest.raises(NotFound):
            await view(harness, B.key)
        assert await listed(harness) == [A.key]
        await harness.check()

    async def test_exits_can_be_added_to_a_list(self, harness: LedgerHarness) -> None:
        one, two = await harness.worker(), await harness.worker()
        exits = harness.ledger.exits
        await exits.register(one, POOL, "tor", [A], complete=False)
        await exits.register(one, POOL, "tor", [B], complete=False)
        await exits.register(two, POOL, "tor", [C], complete=False)
        assert await listed(harness) == [A.key, B.key, C.key]
        await exits.register(one, POOL, "tor", [B])
        assert await listed(harness) == [B.key, C.key]
        await exits.register(one, POOL, "tor", [A], complete=False)
        assert await listed(harness) == [A.key, B.key, C.key]
        await harness.check()

    async def test_a_label_and_a_kind_can_change(self, harness: LedgerHarness) -> None:
        worker = await member(harness, A)
        await harness.ledger.exits.register(worker, POOL, "tor", [ExitSpec(A.key, "new label")])
        found = await view(harness)
        assert (found.label, found.kind) == ("new label", "tor")

    async def test_large_pools_are_registered_and_listed_in_pages(self, harness: LedgerHarness) -> None:
        many = [ExitSpec(f"{n:012x}", f"proxy {n:05}") for n in range(10_000)]
        one, two = await harness.worker(), await harness.worker()
        await asyncio.gather(*(harness.ledger.exits.register(w, POOL, "proxies", many) for w in (one, two)))
        await harness.ledger.exits.register(one, POOL, "proxies", list(reversed(many)))
        await report(harness, one, *(failed(spec.key, 3) for spec in many[::20]))
        (pool,) = await harness.ledger.exits.pools()
        assert (pool.exits, pool.good, pool.banned, pool.members) == (10_000, 9_500, 500, 2)
        assert pool.first_back == pytest.approx(600, abs=60)
        assert len((await changes(harness, two)).exits) == 500
        found: list[str] = []
        cursor = None
        while True:
            page = await harness.ledger.exits.list(POOL, state="banned", cursor=cursor, limit=200)
            found += [row.key for row in page.rows]
            if (cursor := page.cursor) is None:
                break
        assert found == [spec.key for spec in many[::20]]
        await harness.check()

    async def test_lists_name_the_exits_of_all_pools(self, harness: LedgerHarness) -> None:
        worker = await member(harness, A)
        await member(harness, B, pool="airport")
        await member(harness, C, pool="zoo")
        assert await listed(harness, None) == [B.key, A.key, C.key]
        assert await listed(harness, "zoo") == [C.key]
        page = await harness.ledger.exits.list(limit=2)
        assert [row.pool for row in (await harness.ledger.exits.list(cursor=page.cursor)).rows] == ["zoo"]
        await report(harness, worker, failed(A.key, 3))
        for wanted, keys in (("banned", [A.key]), ("good", [B.key, C.key]), ("trial", []), ("resting", [])):
            assert [row.key for row in (await harness.ledger.exits.list(state=wanted)).rows] == keys
        await harness.advance_clock(601)
        assert [row.key for row in (await harness.ledger.exits.list(state="trial")).rows] == [A.key]
        assert [pool.pool for pool in await harness.ledger.exits.pools()] == ["airport", POOL, "zoo"]
        assert [pool.trial for pool in await harness.ledger.exits.pools()] == [0, 1, 0]
        with pytest.raises(UsageError):
            await harness.ledger.exits.list(state="bad")
        with pytest.raises(UsageError):
            await harness.ledger.exits.list(cursor="x")

    async def test_removing_a_run_does_not_touch_exits(self, harness: LedgerHarness) -> None:
        run = await harness.run()
        await harness.put(run, "a")
        worker = await member(harness)
        await report(harness, worker, failed(A.key, 3))
        await harness.ledger.runs.cancel(run.id)
        await harness.ledger.runs.remove(run.id)
        assert await state(harness) == "banned"
        assert await listed(harness) == [A.key, B.key, C.key]
        await harness.check()

    async def test_texts_that_cannot_be_stored_do_not_stop_a_report(self, harness: LedgerHarness) -> None:
        worker = await member(harness)
        hosts = tuple(
            HostReport(host=host, blocked=1, error="\0\ud800" * 3_000)
            for host in ("", "\0", "\ud800", "ü" * 200, "h" * 300, "good.example")
        )
        error = "no route to http://ann:geheim@10.0.0.1 \0 \ud800"
        await report(harness, worker, ExitReport(key=A.key, failed=3, failures_in_row=3, error=error, hosts=hosts))
        found = await view(harness)
        assert [host.host for host in found.hosts] == ["good.example"]
        assert found.state is ExitState.BANNED
        assert "geheim" not in found.why + found.error
        for spec in (ExitSpec("", "x"), ExitSpec("x", ""), ExitSpec("a b", "x"), ExitSpec("x", "\0")):
            with pytest.raises(UsageError):
                await harness.ledger.exits.register(worker, POOL, "proxies", [spec])
