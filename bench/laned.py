"""Claim + commit behind lanes: what politeness costs, with one lane and with ten thousand."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack

from bench import consumer
from bench.figures import Report
from bench.places import Place
from bench.rounds import Contender, alternate, paired_ratio
from bench.session import Effort, Session
from shoal.model.item import NewItem
from shoal.model.lane import LanePolicy

ITEMS: dict[Effort, int] = {"quick": 20_000, "full": 200_000}
LANES = (1, 100, 10_000)
LIMIT = 8
# With one lane only LIMIT items go round at a time.
SINGLE_LANE_SHARE = 10


def run(session: Session) -> Report:
    items = session.size(ITEMS)
    report = Report(
        "laned",
        "What do lanes cost in claim and commit?",
        {"items": items, "batch": consumer.BATCH, "lane_limit": LIMIT, "lanes": LANES},
    )
    with ExitStack() as stack:
        contenders: dict[str, Contender] = {}
        for place in session.places:
            for lanes in (0, *LANES):
                count = items // SINGLE_LANE_SHARE if lanes == 1 else items
                filled = stack.enter_context(place.fresh())
                entries = _entries(count, lanes) if lanes else consumer.urls(count)
                asyncio.run(consumer.fill(filled, entries, LanePolicy(limit=LIMIT)))
                place.settle(filled)
                contenders[_name(place, lanes)] = _contender(place, filled, count)
        rates = alternate(contenders, session.rounds)
    for name, samples in rates.items():
        report.add(name, "items/s", samples)
    for place in session.places:
        unlaned = rates[_name(place, 0)]
        for lanes in LANES[1:]:
            ratio = paired_ratio(rates[_name(place, lanes)], unlaned)
            report.target(f"{place.name}: {lanes} lanes / no lanes", ratio, at_least=0.4)
    report.bars("Claim + commit with host lanes of limit 8", "items/s")
    return report


def _name(place: Place, lanes: int) -> str:
    return f"shoal on {place.name}, {lanes or 'no'} lane{'' if lanes == 1 else 's'}"


def _entries(count: int, lanes: int) -> Iterator[NewItem]:
    for i in range(count):
        host = f"host{i % lanes}.example.com"
        yield NewItem(url=f"https://{host}/page/{i}", lane=host)


def _contender(place: Place, filled: str, items: int) -> Contender:
    def measure() -> float:
        with place.copy(filled) as address:
            return items / asyncio.run(consumer.consume(address, items, ahead=False))

    return measure
