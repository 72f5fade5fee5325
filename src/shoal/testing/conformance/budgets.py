"""Budgets of calls: grants, what becomes of them, and what sites say."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from shoal.errors import InvalidItem, InvalidSetting
from shoal.model.egress import (
    BudgetCorrection,
    BudgetGrant,
    BudgetKey,
    BudgetPolicy,
    BudgetView,
    ExitSpec,
    GrantRequest,
    GrantUse,
)
from shoal.testing.harness import LedgerHarness

HOURLY = BudgetPolicy(100, 3_600.0)
CORE = BudgetKey("github", "t1", "core")
_ids = itertools.count(1)


async def take(
    harness: LedgerHarness,
    calls: int,
    policy: BudgetPolicy | None = HOURLY,
    *,
    key: str = "t1",
    resource: str = "core",
    grant: int | None = None,
    said: BudgetCorrection | None = None,
) -> tuple[int, BudgetGrant]:
    number = next(_ids) if grant is None else grant
    request = GrantRequest(grant=number, calls=calls, seconds=30.0, policy=policy)
    return number, await harness.ledger.budgets.take(BudgetKey("github", key, resource), request, said=said)


async def settle(
    harness: LedgerHarness, *used: GrantUse, said: BudgetCorrection | None = None, resource: str = "core"
) -> None:
    await harness.ledger.budgets.settle(BudgetKey("github", "t1", resource), used, said=said)


async def clock(harness: LedgerHarness) -> float:
    return await harness.ledger.lanes.clock()


async def view(harness: LedgerHarness, resource: str = "core", key: str = "t1") -> BudgetView:
    found = {(owner, view.resource): view for owner, view in await harness.ledger.budgets.list("github")}
    return found[key, resource]


def spent(grant: int, at: float, calls: int, *, unspent: int = 0) -> GrantUse:
    return GrantUse(grant=grant, made=calls - unspent, answered=(at,) * (calls - unspent))


class BudgetConformance:
    async def test_no_more_than_the_budget_is_granted(self, harness: LedgerHarness) -> None:
        _, first = await take(harness, 60)
        assert (first.calls, first.seconds, first.left) == (60, 30, 40)
        _, second = await take(harness, 60)
        assert (second.calls, second.left) == (40, 0)
        _, third = await take(harness, 1)
        assert (third.calls, third.left) == (0, 0)
        assert 3_600 < third.seconds <= 3_635, "until the first calls can no longer be in the same window"
        _, other = await take(harness, 1, key="t2")
        _, search = await take(harness, 1, resource="search")
        assert other.calls == search.calls == 1, "of another token, and of another kind"

    async def test_many_workers_at_once_never_get_more(self, harness: LedgerHarness) -> None:
        other = await harness.open_again()
        grants = await asyncio.gather(
            *(
                ledger.budgets.take(CORE, GrantRequest(grant=next(_ids), calls=7, seconds=30.0, policy=HOURLY))
                for ledger in (harness.ledger, other)
                for _ in range(12)
            )
        )
        assert sum(grant.calls for grant in grants) == 100

    async def test_every_window_of_the_policys_length_is_respected(self, harness: LedgerHarness) -> None:
        """Nobody knows when the site's window begins."""
        await take(harness, 70)
        await harness.advance_clock(3_000)
        await take(harness, 30)
        await harness.advance_clock(630)
        assert (await take(harness, 100))[1].calls == 0, "the first may have been made 30 s after they were taken"
        await harness.advance_clock(10)
        assert (await take(harness, 100))[1].calls == 70
        await harness.advance_clock(3_000)
        assert (await take(harness, 100))[1].calls == 30

    async def test_calls_that_were_not_made_return(self, harness: LedgerHarness) -> None:
        one, _ = await take(harness, 50)
        two, _ = await take(harness, 50)
        now = await clock(harness)
        await settle(harness, spent(one, now, 50, unspent=20))
        assert (await take(harness, 100))[1].calls == 20
        await settle(harness, GrantUse(grant=two, made=10))
        assert (await take(harness, 100))[1].calls == 40, "others of it are on their way"
        await settle(harness, GrantUse(grant=99_999, made=0), GrantUse(grant=one, made=0, answered=()))
        assert (await take(harness, 1))[1].calls == 0

    async def test_repeating_a_call_changes_nothing(self, harness: LedgerHarness) -> None:
        grant, first = await take(harness, 50)
        _, again = await take(harness, 50, grant=grant)
        assert (again.calls, again.left) == (first.calls, first.left)
        assert again.seconds <= first.seconds
        now = await clock(harness)
        for _ in range(3):
            await settle(harness, spent(grant, now, 50, unspent=10))
        assert (await view(harness)).free == 60
        await harness.advance_clock(1)
        now = await clock(harness)
        rests = BudgetCorrection(sent_at=now, remaining=30, limit=80, reset_at=now + 600)
        for _ in range(3):
            await settle(harness, said=rests)
        assert (await view(harness)).free == 30

    async def test_a_settled_grant_counts_from_its_last_answer(self, harness: LedgerHarness) -> None:
        grant, _ = await take(harness, 100)
        await harness.advance_clock(10)
        await settle(harness, spent(grant, await clock(harness) - 5, 100))
        await harness.advance_clock(3_594)
        assert (await take(harness, 1))[1].calls == 0
        await harness.advance_clock(2)
        assert (await take(harness, 100))[1].calls == 100

    async def test_a_window_of_many_small_grants_has_few_rows(self, harness: LedgerHarness) -> None:
        policy = BudgetPolicy(1_000, 3_600.0)
        for _ in range(30):
            grant, _ = await take(harness, 1, policy)
            await settle(harness, spent(grant, await clock(harness), 1))
        assert (await view(harness)).free == 970
        await harness.advance_clock(3_700)
        assert (await view(harness)).free == 1_000

    # -- what the site says --------------------------------------------------------------------------------------------

    async def test_what_the_site_says_outranks_the_policy(self, harness: LedgerHarness) -> None:
        grant, _ = await take(harness, 1)
        now = await clock(harness)
        said = BudgetCorrection(sent_at=now, remaining=4_999, limit=5_000, reset_at=now + 900)
        await settle(harness, GrantUse(grant=grant, made=1, answered=(0.0,)), said=said)
        _, granted = await take(harness, 1_000)
        assert (granted.calls, granted.left) == (1_000, 3_999)
        shown = await view(harness)
        assert (shown.capacity, shown.left, shown.free, shown.from_site) == (5_000, 4_999, 3_999, True)
        assert shown.reset_seconds is not None
        assert 450 < shown.reset_seconds <= 900

    async def test_a_lower_number_holds_at_once(self, harness: LedgerHarness) -> None:
        """Somebody else uses the token too."""
        await take(harness, 10)
        now = await clock(harness)
        await settle(harness, said=BudgetCorrection(sent_at=now, remaining=30, limit=100, reset_at=now + 600))
        _, granted = await take(harness, 100)
        assert granted.calls == 20, "ten are on their way, and the site may not have counted them"
        await settle(harness, said=BudgetCorrection(sent_at=now - 1, remaining=3, limit=100, reset_at=now + 600))
        assert (await view(harness)).free == 0
        _, granted = await take(harness, 100)
        assert granted.calls == 0

    async def test_a_spent_budget_waits_for_the_reset(self, harness: LedgerHarness) -> None:
        now = await clock(harness)
        await take(harness, 5, said=BudgetCorrection(sent_at=now, remaining=0, limit=60, reset_at=now + 50))
        _, granted = await take(harness, 5)
        assert granted.calls == 0
        assert 25 < granted.seconds <= 50
        await harness.advance_clock(50)
        _, granted = await take(harness, 500)
        assert (granted.calls, granted.left) == (60, 0)

    async def test_calls_of_a_dead_worker_return_through_the_site(self, harness: LedgerHarness) -> None:
        now = await clock(harness)
        await take(harness, 40, said=BudgetCorrection(sent_at=now, remaining=100, limit=100, reset_at=now + 3_600))
        await harness.advance_clock(20)
        said = BudgetCorrection(sent_at=now + 20, remaining=90, limit=100, reset_at=now + 3_600)
        await settle(harness, said=said)
        assert (await view(harness)).free == 50, "it may still make them"
        await harness.advance_clock(16)
        said = BudgetCorrection(sent_at=now + 36, remaining=90, limit=100, reset_at=now + 3_600)
        await settle(harness, said=said)
        assert (await view(harness)).free == 90, "what it has not made until now, it never will"

    async def test_late_calls_count_in_the_next_window_until_the_site_says_otherwise(
        self, harness: LedgerHarness
    ) -> None:
        now = await clock(harness)
        await settle(harness, said=BudgetCorrection(sent_at=now, remaining=50, limit=100, reset_at=now + 10))
        _, granted = await take(harness, 20)
        assert 5 < granted.seconds <= 10, "a grant ends with the window"
        await harness.advance_clock(11)
        _, granted = await take(harness, 100)
        assert granted.calls == 80, "the 20 may have arrived after the window's end"
        await harness.advance_clock(5)
        now = await clock(harness)
        said = BudgetCorrection(sent_at=now, remaining=90, limit=100, reset_at=now + 3_594)
        await settle(harness, said=said)
        assert (await view(harness)).free == 10, "the other 80 may come yet"

    async def test_a_reset_that_is_not_known_exactly(self, harness: LedgerHarness) -> None:
        """The window may be over a second before it surely is."""
        now = await clock(harness)
        said = BudgetCorrection(sent_at=now, remaining=50, limit=100, reset_from=now + 10, reset_at=now + 11)
        grant, granted = await take(harness, 20, said=said)
        assert 5 < granted.seconds <= 10
        await harness.advance_clock(10.5)
        late, granted = await take(harness, 10)
        assert granted.calls == 10
        assert granted.seconds <= 0.5
        await settle(harness, spent(late, now + 10.6, 10), spent(grant, now + 9, 20))
        await harness.advance_clock(1)
        assert (await take(harness, 100))[1].calls == 90

    async def test_late_words_about_a_window_that_is_over_are_ignored(self, harness: LedgerHarness) -> None:
        now = await clock(harness)
        await settle(harness, said=BudgetCorrection(sent_at=now, remaining=0, limit=100, reset_at=now + 10))
        await harness.advance_clock(11)
        await settle(harness, said=BudgetCorrection(sent_at=now + 8, remaining=0, limit=100, reset_at=now + 10))
        assert (await view(harness)).free == 100
        said = BudgetCorrection(sent_at=now + 10.5, remaining=99, limit=100, reset_at=now + 3_610)
        await settle(harness, said=said)
        await settle(harness, said=BudgetCorrection(sent_at=now + 9, remaining=0, limit=100, reset_at=now + 11.2))
        assert (await view(harness)).free == 99

    async def test_calls_that_the_site_has_counted_are_not_counted_twice(self, harness: LedgerHarness) -> None:
        grant, _ = await take(harness, 10)
        now = await clock(harness)
        await harness.advance_clock(5)
        said = BudgetCorrection(sent_at=now + 4, remaining=92, limit=100, reset_at=now + 600)
        await settle(harness, GrantUse(grant=grant, made=10, answered=(*[now + 3] * 8, 0.0, now + 4.5)), said=said)
        assert (await view(harness)).free == 91, "one of ten was answered after the request was sent that said 92"

    async def test_a_pause_that_the_site_asks_for(self, harness: LedgerHarness) -> None:
        now = await clock(harness)
        await take(harness, 1, resource="search")
        await settle(harness, said=BudgetCorrection(sent_at=now, rests_until=now + 60))
        _, granted = await take(harness, 5)
        assert granted.calls == 0
        assert granted.resting
        assert 30 < granted.seconds <= 60
        assert (await take(harness, 5, resource="search"))[1].calls == 5
        await settle(harness, said=BudgetCorrection(sent_at=now, rests_until=now + 120), resource="")
        _, granted = await take(harness, 5, resource="search")
        assert (granted.calls, granted.resting) == (0, True), "all of the token"
        shown = await view(harness)
        assert (shown.left, shown.free, shown.resting) == (0, 0, True)
        await harness.advance_clock(121)
        assert (await take(harness, 5, resource="search"))[1].calls == 5
        assert (await take(harness, 5))[1].calls == 5

    async def test_without_any_numbers_everything_is_granted(self, harness: LedgerHarness) -> None:
        grant, granted = await take(harness, 1_000_000, None)
        assert (granted.calls, granted.left) == (1_000_000, None)
        assert await harness.ledger.budgets.list("github") == []
        now = await clock(harness)
        await settle(harness, said=BudgetCorrection(sent_at=now, remaining=7))
        assert (await take(harness, 10, None))[1].calls == 0, "the first grant is still in use"
        await settle(harness, GrantUse(grant=grant, made=0, answered=()))
        assert (await take(harness, 10, None))[1].calls == 7

    # -- reads and upkeep ----------------------------------------------------------------------------------------------

    async def test_views(self, harness: LedgerHarness) -> None:
        budgets = harness.ledger.budgets
        assert await budgets.list("github") == []
        grant, _ = await take(harness, 30)
        await take(harness, 1, BudgetPolicy(30, 60.0), resource="search")
        await take(harness, 1, key="t0")
        listed = await budgets.list("github")
        assert [(key, shown.resource) for key, shown in listed] == [("t0", "core"), ("t1", "core"), ("t1", "search")]
        assert [key for key, _ in await budgets.list("github", "t0")] == ["t0"]
        assert await budgets.list("elsewhere") == []
        shown = await view(harness)
        assert (shown.capacity, shown.left, shown.free, shown.from_site) == (100, 100, 70, False)
        assert shown.reset_seconds is None
        await settle(harness, spent(grant, await clock(harness), 30, unspent=10))
        shown = await view(harness)
        assert (shown.left, shown.free) == (80, 80)
        assert shown.reset_seconds is not None
        assert 1_800 < shown.reset_seconds <= 3_600

    async def test_stops_are_told_to_all(self, harness: LedgerHarness) -> None:
        budgets, now = harness.ledger.budgets, await clock(harness)
        for key in ("t0", "t1"):
            await take(harness, 30, key=key)
        assert list(await budgets.stops("github")) == []
        await settle(harness, said=BudgetCorrection(sent_at=now, remaining=1, reset_from=now + 60, reset_at=now + 60))
        assert list(await budgets.stops("github")) == [], "one call is left"
        await settle(harness, said=BudgetCorrection(sent_at=now, remaining=0, reset_from=now + 60, reset_at=now + 60))
        await settle(harness, said=BudgetCorrection(sent_at=now, rests_until=now + 90), resource="")
        assert list(await budgets.stops("elsewhere")) == []
        stops = {(stop.key, stop.resource): stop.seconds for stop in await budgets.stops("github")}
        assert stops == {("t1", "core"): pytest.approx(60, abs=30), ("t1", ""): pytest.approx(90, abs=30)}
        await harness.advance_clock(61)
        assert [stop.resource for stop in await budgets.stops("github")] == [""]
        await harness.advance_clock(30)
        assert list(await budgets.stops("github")) == []

    async def test_the_total_of_a_pool_is_what_can_be_used_now(self, harness: LedgerHarness) -> None:
        tokens = [ExitSpec(key, f"TOKEN_{key}") for key in ("t1", "t2", "t3")]
        worker = await harness.worker(lease_seconds=3_600)
        await harness.ledger.exits.register(worker, "github", "tokens", tokens)
        for token in tokens:
            await take(harness, 10, key=token.key)

        async def total() -> list[tuple[str, int]]:
            (pool,) = await harness.ledger.exits.pools()
            return [(budget.resource, budget.capacity) for budget in pool.budgets]

        assert await total() == [("core", 300)]
        await harness.ledger.exits.ban("github", "t1", None, "401")
        await harness.ledger.exits.rest("github", "t2", 60)
        assert await total() == [("core", 100)], "that of a banned or resting token cannot be spent"
        await harness.ledger.exits.ban("github", "t3", None, "401")
        assert await total() == []
        await harness.ledger.exits.free("github", "t1")
        assert await total() == [("core", 100)]

    async def test_old_rows_are_removed(self, harness: LedgerHarness) -> None:
        await take(harness, 5)
        await harness.advance_clock(3_700)
        await harness.ledger.upkeep.run_once()
        assert (await view(harness)).free == 100
        await harness.advance_clock(40 * 86_400)
        await harness.ledger.upkeep.run_once()
        await harness.advance_clock(61)
        await harness.ledger.upkeep.run_once()
        assert await harness.ledger.budgets.list("github") == []

    async def test_what_is_no_budget_is_refused(self, harness: LedgerHarness) -> None:
        for calls, policy in ((0, HOURLY), (-1, HOURLY), (1, BudgetPolicy(0, 60)), (1, BudgetPolicy(5, 0))):
            with pytest.raises(InvalidSetting):
                await take(harness, calls, policy)
        with pytest.raises(InvalidSetting):
            await harness.ledger.budgets.take(CORE, GrantRequest(grant=1, calls=1, seconds=1e9))
        with pytest.raises(InvalidItem):
            await take(harness, 1, key="")
        now = await clock(harness)
        await settle(harness, said=BudgetCorrection(sent_at=now, remaining=-5, limit=10**15, reset_at=now + 10))
        assert (await take(harness, 1))[1].calls == 0

    async def test_when_a_budget_runs_out(self, harness: LedgerHarness) -> None:
        await take(harness, 10)
        known = await view(harness)
        assert (known.per_minute, known.empty_in_seconds) == (None, None), "nobody can tell from one moment"
        await harness.advance_clock(60)
        await take(harness, 10)
        await harness.advance_clock(60)
        hasty = await view(harness)
        assert hasty.per_minute == pytest.approx(10, rel=0.02)
        assert hasty.empty_in_seconds == pytest.approx(60 * 80 / 10, rel=0.02)
        await harness.advance_clock(295)
        calm = await view(harness)
        assert (calm.per_minute, calm.empty_in_seconds) == (None, None), "nothing was granted of late"
        # At its own pace a budget never runs out.
        await take(harness, 1, BudgetPolicy(100, 60.0), key="t2")
        await harness.advance_clock(30)
        slow = await view(harness, key="t2")
        assert slow.per_minute == pytest.approx(2, rel=0.02)
        assert slow.empty_in_seconds is None
        # What the site has counted: half of the window has passed, and 90 of 100 calls.
        now = await clock(harness)
        said = BudgetCorrection(limit=100, remaining=10, sent_at=now, reset_from=now + 1_800, reset_at=now + 1_800)
        await settle(harness, said=said)
        told = await view(harness)
        assert told.per_minute == pytest.approx(3, rel=0.02)
        assert told.empty_in_seconds == pytest.approx(200, rel=0.02)
