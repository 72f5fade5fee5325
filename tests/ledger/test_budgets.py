"""Random histories of a budget: workers take calls, send them, die, repeat and answer late. The site counts itself."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from shoal.ledger.protocols import Ledger
from shoal.ledger.sqlite.ledger import open_sqlite
from shoal.model.egress import BudgetCorrection, BudgetKey, BudgetPolicy, GrantRequest, GrantUse
from shoal.testing.harness import LedgerHarness, retry_on_fault, with_faults

WINDOW = 60.0
CALLS = 12
POLICY = BudgetPolicy(CALLS, WINDOW)
_numbers = itertools.count(1)


class Grant:
    def __init__(self, number: int, calls: int, until: float) -> None:
        self.number = number
        self.calls = calls
        self.until = until
        self.made = 0
        self.answers: list[Answer] = []


class Answer(NamedTuple):
    at: float
    said: BudgetCorrection | None


class CountingSite:
    """Counts each call when it arrives, in windows of its own that begin at `phase`."""

    def __init__(self, phase: float, *, speaks: bool) -> None:
        self.phase = phase
        self.speaks = speaks
        self.arrivals: list[float] = []

    def window(self, at: float) -> int:
        return math.floor((at - self.phase) / WINDOW)

    def answer(self, sent: float, at: float) -> BudgetCorrection | None:
        self.arrivals.append(at)
        if not self.speaks:
            return None
        number = self.window(at)
        used = sum(self.window(arrival) == number for arrival in self.arrivals)
        ends = self.phase + (number + 1) * WINDOW
        return BudgetCorrection(
            sent_at=sent, remaining=max(0, CALLS - used), limit=CALLS, reset_at=ends + 1.0, reset_from=ends - 0.1
        )

    def most_in_a_window(self) -> int:
        if self.speaks:
            return max(Counter(self.window(at) for at in self.arrivals).values(), default=0)
        ordered = sorted(self.arrivals)
        return max((sum(at <= other < at + WINDOW for other in ordered) for at in ordered), default=0)


class Simulation:
    """Workers, the network and the site on one clock, the ledger's."""

    def __init__(self, ledger: Ledger, site: CountingSite, advance: Callable[[float], Awaitable[None]]) -> None:
        self.ledger = ledger
        self.site = site
        self.budget = BudgetKey("pool", f"token-{next(_numbers)}", "core")
        self.now = 0.0
        self._advance = advance
        self.grants: list[list[Grant]] = [[], [], []]
        self.words: list[list[BudgetCorrection]] = [[], [], []]
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._last_call: Callable[[], Awaitable[object]] | None = None

    async def read_clock(self) -> None:
        self.now = await retry_on_fault(self.ledger.lanes.clock)

    async def advance(self, seconds: float) -> None:
        await self._advance(seconds)
        await self.read_clock()
        while self._events and self._events[0][0] <= self.now:
            heapq.heappop(self._events)[2]()

    def _later(self, at: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (at, next(_numbers), event))

    async def repeat(self) -> None:
        if self._last_call is not None:
            await retry_on_fault(self._last_call)

    async def take(self, worker: int, calls: int, seconds: float) -> None:
        request = GrantRequest(grant=next(_numbers), calls=calls, seconds=seconds, policy=POLICY)
        await self.read_clock()
        granted = await retry_on_fault(lambda: self.ledger.budgets.take(self.budget, request))
        self._last_call = lambda: self.ledger.budgets.take(self.budget, request)
        if granted.calls:
            self.grants[worker].append(Grant(request.grant, granted.calls, self.now + granted.seconds))

    async def send(self, worker: int, transit: float, answer_after: float) -> None:
        await self.read_clock()
        usable = [grant for grant in self.grants[worker] if grant.made < grant.calls and grant.until > self.now]
        if not usable:
            return
        grant, sent, words = usable[0], self.now, self.words[worker]
        grant.made += 1

        def arrive() -> None:
            said = self.site.answer(sent, sent + transit)
            self._later(sent + transit + answer_after, lambda: finish(said))

        def finish(said: BudgetCorrection | None) -> None:
            answer = Answer(sent + transit + answer_after, said)
            grant.answers.append(answer)
            if said is not None:
                words.append(said)

        self._later(sent + transit, arrive)

    async def settle(self, worker: int, word: int) -> None:
        await self.read_clock()
        said = self.words[worker][word % len(self.words[worker])] if self.words[worker] else None
        used = tuple(
            GrantUse(
                grant=grant.number,
                made=grant.made,
                # The call that the site's numbers came with is in them.
                answered=tuple(0.0 if said and answer.said is said else answer.at for answer in grant.answers)
                if len(grant.answers) == grant.made
                else None,
            )
            for grant in self.grants[worker]
        )
        for grant in self.grants[worker]:
            grant.calls = grant.made
        self._last_call = lambda: self.ledger.budgets.settle(self.budget, used, said=said)
        await retry_on_fault(self._last_call)
        self.grants[worker] = [grant for grant in self.grants[worker] if len(grant.answers) < grant.made]

    def die(self, worker: int) -> None:
        self.grants[worker] = []
        self.words[worker] = []


WORKER = st.integers(0, 2)
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("advance"), st.sampled_from((0.1, 1.0, 3.0, 10.0, 30.0))),
        st.tuples(st.just("take"), WORKER, st.integers(1, CALLS), st.sampled_from((1.0, 5.0, 20.0))),
        st.tuples(
            st.just("send"),
            WORKER,
            st.integers(1, 6),
            st.sampled_from((0.0, 0.5, 4.0)),
            st.sampled_from((0.0, 1.0, 25.0)),
        ),
        st.tuples(st.just("settle"), WORKER, st.integers(-1, 5)),
        st.tuples(st.just("die"), WORKER),
        st.tuples(st.just("repeat")),
    ),
    min_size=5,
    max_size=60,
)


async def replay(simulation: Simulation, actions: list[tuple[object, ...]]) -> None:
    await simulation.read_clock()
    for action, *args in actions:
        match action, args:
            case "advance", [float(seconds)]:
                await simulation.advance(seconds)
            case "take", [int(worker), int(calls), float(seconds)]:
                await simulation.take(worker, calls, seconds)
            case "send", [int(worker), int(calls), float(transit), float(after)]:
                for _ in range(calls):
                    await simulation.send(worker, transit, after)
            case "settle", [int(worker), int(word)]:
                await simulation.settle(worker, word)
            case "die", [int(worker)]:
                simulation.die(worker)
            case _:
                await simulation.repeat()
    await simulation.advance(100.0)


def check_history(path: Path, actions: list[tuple[object, ...]], phase: float, *, speaks: bool) -> None:
    async def run() -> int:
        time = [1_000_000.0]

        async def advance(seconds: float) -> None:
            time[0] += seconds

        ledger = await open_sqlite(path, clock=lambda: time[0])
        try:
            await ledger.schema.migrate()
            site = CountingSite(time[0] + phase, speaks=speaks)
            await replay(Simulation(ledger, site, advance), actions)
            return site.most_in_a_window()
        finally:
            await ledger.close()

    assert asyncio.run(run()) <= CALLS


def busy_history(seed: int, length: int) -> list[tuple[object, ...]]:
    """Actions of workers that always want more than there is."""
    rng = random.Random(seed)
    actions: list[tuple[object, ...]] = []
    while len(actions) < length:
        worker = rng.randrange(3)
        actions.append(("take", worker, rng.randint(1, 6), rng.choice((1.0, 5.0, 20.0))))
        actions.append(("send", worker, rng.randint(1, 6), rng.choice((0.0, 0.5, 4.0)), rng.choice((0.0, 1.0, 25.0))))
        actions.append(("advance", rng.choice((0.0, 0.1, 1.0, 3.0, 9.0))))
        if rng.random() < 0.7:
            actions.append(("settle", rng.randrange(3), -1))
        if rng.random() < 0.1:
            actions.append(("die", rng.randrange(3)))
        if rng.random() < 0.2:
            actions.append(("repeat",))
    return actions


@pytest.mark.parametrize("speaks", [True, False])
async def test_workers_that_want_more_get_the_whole_budget_and_no_more(
    either_harness: LedgerHarness, speaks: bool
) -> None:
    start = await either_harness.ledger.lanes.clock()
    site = CountingSite(start + 11.0, speaks=speaks)
    simulation = Simulation(either_harness.ledger, site, either_harness.advance_clock)
    await replay(simulation, busy_history(7, 300))
    assert CALLS - 2 <= site.most_in_a_window() <= CALLS
    await either_harness.check()


async def test_calls_that_fail_before_in_and_after_their_effect(either_harness: LedgerHarness) -> None:
    ledger, injected = with_faults(either_harness.ledger, rate=0.3, seed=3)
    site = CountingSite(await either_harness.ledger.lanes.clock() + 11.0, speaks=True)
    await replay(Simulation(ledger, site, either_harness.advance_clock), busy_history(11, 200))
    assert CALLS - 2 <= site.most_in_a_window() <= CALLS
    assert {name.split()[0] for name in injected} >= {"budgets.take", "budgets.settle"}


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
)
@given(actions=ACTIONS, phase=st.sampled_from((0.0, 7.0, 31.5)), speaks=st.booleans())
def test_no_history_exceeds_the_budget(
    sqlite_path: Path, actions: list[tuple[object, ...]], phase: float, speaks: bool
) -> None:
    check_history(sqlite_path, actions, phase, speaks=speaks)
