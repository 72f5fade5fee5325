"""Whether a claim costs the same however much is waiting, done, grouped or partitioned (law 6).

The ledgers of one series are all open at once and claimed from in turn, so that noise hits the small ones and the
large ones alike.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass

from bench import consumer
from bench.claim_timing import timed_steps
from bench.figures import Lines, Report, percentile
from bench.places import Place
from bench.session import Effort, Session
from bench.snapshot import measure_snapshot
from shoal.ledger.protocols import Entry
from shoal.model.item import NewItem
from shoal.model.lane import LanePolicy

BATCH = 50
CLAIMS_PER_TURN = 10
TURNS_PER_ROUND = 5
ROUNDS = 3
# The claims take three quarters of it.
BASE = 10_000
WAITING: dict[Effort, tuple[int, ...]] = {
    "quick": (BASE, 100_000, 500_000),
    "full": (BASE, 100_000, 1_000_000, 5_000_000),
}
DONE: dict[Effort, tuple[int, ...]] = {"quick": (0, 100_000, 500_000), "full": (0, 100_000, 1_000_000, 5_000_000)}
LANES: dict[Effort, tuple[int, ...]] = {"quick": (1, 100, 10_000), "full": (1, 100, 10_000, 100_000)}
PARTITIONS = (1, 10, 51)
WIDE_LANE = LanePolicy(limit=1_000_000)
BULK_BATCH = 2_000


@dataclass(frozen=True)
class Series:
    name: str
    steps: tuple[int, ...]
    prepare: Callable[[str, int], None]


def run(session: Session) -> Report:
    report = Report(
        "growth",
        "Does a claim cost the same with more waiting, done, lanes and partitions?",
        {"batch": BATCH, "claims": CLAIMS_PER_TURN * TURNS_PER_ROUND * ROUNDS, "smallest_backlog": BASE},
    )
    for series in (
        Series("waiting", session.size(WAITING), lambda address, n: _fill(address, consumer.urls(n))),
        Series("done", session.size(DONE), _with_done),
        Series("lanes", session.size(LANES), lambda address, n: _fill(address, _laned(max(BASE, n), n))),
        Series("partitions", PARTITIONS, lambda address, n: _fill(address, _partitioned(BASE, n))),
    ):
        lines = []
        for place in session.places:
            p95 = []
            for step, rounds in _measure(place, series).items():
                for percent in (50, 95):
                    samples = [percentile(seconds, percent) * 1000 for seconds in rounds]
                    figure = report.add(f"{place.name}, {step} {series.name}, p{percent}", "ms", samples)
                p95.append(figure.value)
            report.target(
                f"{place.name}: p95 with {series.steps[-1]} / {series.steps[0]} {series.name}",
                p95[-1] / p95[0],
                at_most=1.5,
            )
            lines.append((place.name, tuple((float(s), value) for s, value in zip(series.steps, p95, strict=True))))
        report.plots.append(Lines(f"Claim of {BATCH}", series.name, "p95, ms", tuple(lines), log_x=True))
    measure_snapshot(session, report)
    return report


def _measure(place: Place, series: Series) -> dict[int, list[list[float]]]:
    """For every step the claims' seconds, round by round."""
    with ExitStack() as stack:
        addresses = {}
        for step in series.steps:
            address = stack.enter_context(place.fresh())
            series.prepare(address, step)
            place.settle(address)
            addresses[step] = address
        return asyncio.run(_claim_in_turn(addresses))


async def _claim_in_turn(addresses: dict[int, str]) -> dict[int, list[list[float]]]:
    timings: dict[int, list[list[float]]] = {step: [[] for _ in range(ROUNDS)] for step in addresses}
    async with AsyncExitStack() as stack:
        workers = {
            step: await stack.enter_async_context(consumer.consumer(address, BATCH))
            for step, address in addresses.items()
        }
        for worker in workers.values():  # warm connections and plans
            await timed_steps(worker, CLAIMS_PER_TURN)
        for turn in range(TURNS_PER_ROUND * ROUNDS):
            for step, worker in workers.items():
                claims, _ = await timed_steps(worker, CLAIMS_PER_TURN)
                timings[step][turn // TURNS_PER_ROUND] += claims
    return timings


def _fill(address: str, entries: Iterable[Entry]) -> None:
    asyncio.run(consumer.fill(address, entries, WIDE_LANE))


def _with_done(address: str, done: int) -> None:
    if done:
        _fill(address, consumer.urls(done))
        asyncio.run(consumer.consume(address, done, ahead=True, batch=BULK_BATCH))
    _fill(address, consumer.urls(BASE, start=done))


def _laned(items: int, lanes: int) -> Iterable[NewItem]:
    return (NewItem(url=f"https://host{i % lanes}.example.com/{i}", lane=f"host{i % lanes}") for i in range(items))


def _partitioned(items: int, partitions: int) -> Iterable[NewItem]:
    return (NewItem(url=f"https://example.com/{i}", partition=f"part{i % partitions}") for i in range(items))
