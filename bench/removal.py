"""Orders about a big run: how soon it is hidden and gone, paused, active again, cancelled; what others feel of it.

The items of the run that is paused and cancelled stand behind very many lanes, which is the dearest case.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack
from dataclasses import dataclass

from bench import consumer
from bench.figures import Report, percentile
from bench.places import Place, open_ledger
from bench.session import Effort, Session
from shoal.errors import NotFound
from shoal.ledger.protocols import Ledger
from shoal.model.item import NewItem
from shoal.model.lane import LanePolicy
from shoal.model.worker import Scope

ITEMS: dict[Effort, int] = {"quick": 200_000, "full": 1_000_000}
OTHER_ITEMS: dict[Effort, int] = {"quick": 100_000, "full": 500_000}
BATCH = 50
QUIET_CLAIMS = 200
POLL_SECONDS = 0.01


ITEMS_TO_A_LANE = 5


@dataclass
class Orders:
    """Seconds that each order took, and claims of another run meanwhile."""

    pause: float
    resume: float
    cancel: float
    claims_meanwhile: list[float]


@dataclass
class Removal:
    hidden: float
    gone: float
    quiet_claims: list[float]
    claims_meanwhile: list[float]


def run(session: Session) -> Report:
    items, others = session.size(ITEMS), session.size(OTHER_ITEMS)
    report = Report(
        "removal",
        "How long does it take to remove a big run, half of it done?",
        {"items": items, "items_of_the_other_run": others},
    )
    for place in session.places:
        with ExitStack() as stack:
            alone = stack.enter_context(place.fresh())
            run_id = asyncio.run(_half_done(alone, items))
            place.settle(alone)
            beside = stack.enter_context(place.copy(alone))
            other = asyncio.run(consumer.fill(beside, consumer.urls(others)))
            place.settle(beside)
            _report(report, f"{place.name}, alone", [_remove(place, alone, run_id) for _ in range(session.rounds)])
            removals = [_remove(place, beside, run_id, other) for _ in range(session.rounds)]
            _report(report, f"{place.name}, beside another run", removals)
            meanwhile = [seconds for removal in removals for seconds in removal.claims_meanwhile]
            quiet = [seconds for removal in removals for seconds in removal.quiet_claims]
            p95 = (percentile(quiet, 95), percentile(meanwhile, 95))
            report.add(f"{place.name}, other run's claim p95 before", "ms", [p95[0] * 1000])
            report.add(f"{place.name}, other run's claim p95 meanwhile", "ms", [p95[1] * 1000])
            report.add(f"{place.name}, other run's slowest claim meanwhile", "ms", [max(meanwhile) * 1000])
            report.target(f"{place.name}: other run's claim p95, meanwhile / before", p95[1] / p95[0], at_most=3)
        _report_orders(report, place, items, others, session.rounds, p95[0])
    report.bars("Removing a run", "s")
    return report


def _report_orders(report: Report, place: Place, items: int, others: int, rounds: int, quiet_p95: float) -> None:
    with place.fresh() as filled:
        entries = (
            NewItem(
                url=f"https://h{n % (items // ITEMS_TO_A_LANE)}.example/{n}", lane=f"h{n % (items // ITEMS_TO_A_LANE)}"
            )
            for n in range(items)
        )
        run_id = asyncio.run(consumer.fill(filled, entries, LanePolicy(limit=1)))
        other = asyncio.run(consumer.fill(filled, consumer.urls(others)))
        place.settle(filled)
        orders = []
        for _ in range(rounds):
            with place.copy(filled) as address:
                orders.append(asyncio.run(_timed_orders(address, run_id, other)))
    pause = report.add(f"{place.name}, pause", "s", [one.pause for one in orders])
    resume = report.add(f"{place.name}, resume", "s", [one.resume for one in orders])
    report.add(f"{place.name}, cancel", "s", [one.cancel for one in orders])
    meanwhile = percentile([seconds for one in orders for seconds in one.claims_meanwhile], 95)
    report.add(f"{place.name}, other run's claim p95 during a cancel", "ms", [meanwhile * 1000])
    report.target(f"{place.name}: seconds until paused", pause.value, at_most=1)
    report.target(f"{place.name}: seconds until active again", resume.value, at_most=1)
    report.target(f"{place.name}: other run's claim p95, during a cancel / before", meanwhile / quiet_p95, at_most=3)


async def _timed_orders(address: str, run_id: str, other: str) -> Orders:
    operator = await open_ledger(address)
    try:
        async with consumer.consumer(address, BATCH) as worker:
            worker.scope = Scope(run_ids=(other,))
            seconds = []
            for order in (operator.runs.pause, operator.runs.resume):
                began = time.perf_counter()
                await order(run_id)
                seconds.append(time.perf_counter() - began)
            began = time.perf_counter()
            cancelling = asyncio.create_task(operator.runs.cancel(run_id))
            claims = [await _claim(worker)]
            while not cancelling.done():
                claims.append(await _claim(worker))
            await cancelling
            pause, resume = seconds
            return Orders(pause, resume, time.perf_counter() - began, claims)
    finally:
        await operator.close()


def _report(report: Report, name: str, removals: list[Removal]) -> None:
    hidden = report.add(f"{name}, hidden after", "s", [removal.hidden for removal in removals])
    report.add(f"{name}, gone after", "s", [removal.gone for removal in removals])
    report.target(f"{name}: seconds until hidden", hidden.value, at_most=1)


async def _half_done(address: str, items: int) -> str:
    run_id = await consumer.fill(address, consumer.urls(items))
    await consumer.consume(address, items // 2, ahead=True, batch=1_000)
    return run_id


def _remove(place: Place, filled: str, run_id: str, other: str | None = None) -> Removal:
    with place.copy(filled) as address:
        return asyncio.run(_timed_removal(address, run_id, other))


async def _timed_removal(address: str, run_id: str, other: str | None) -> Removal:
    onlooker = await open_ledger(address)
    try:
        async with consumer.consumer(address, BATCH) as worker:
            worker.scope = Scope(run_ids=(other,)) if other else Scope()
            quiet = [await _claim(worker) for _ in range(QUIET_CLAIMS)] if other else []
            began = time.perf_counter()
            removing = asyncio.create_task(onlooker.runs.remove(run_id))
            hiding = asyncio.create_task(_seconds_until_hidden(worker.ledger, run_id, began))
            meanwhile = []
            while other and not removing.done():
                meanwhile.append(await _claim(worker))
            await removing
            gone = time.perf_counter() - began
            return Removal(await hiding, gone, quiet, meanwhile)
    finally:
        await onlooker.close()


async def _claim(worker: consumer.Consumer) -> float:
    began = time.perf_counter()
    batch = await worker.claim()
    seconds = time.perf_counter() - began
    if batch:
        await worker.commit(batch)
    return seconds


async def _seconds_until_hidden(ledger: Ledger, run_id: str, began: float) -> float:
    while True:
        try:
            await ledger.runs.get(run_id)
        except NotFound:
            return time.perf_counter() - began
        await asyncio.sleep(POLL_SECONDS)
