"""51 partitions over any number of workers: every target once, one's own partitions first, then those of others."""

from __future__ import annotations

import asyncio
import datetime as dt
import itertools
import json
import re
from collections import defaultdict
from pathlib import Path

import asyncpg
import pytest

from tests.support import LONG
from tests.support.node_lab import Fleet
from tests.support.node_runs import PATIENCE
from tests.support.site import per_path

# Five states for each of ten workers, and six for the fifth: DC is among them.
ASSIGNMENT = """\
[0] CA, MT, RI, MS, ND
[1] TX, WY, DE, NM, VT
[2] FL, AK, NH, KS, NE
[3] NY, SD, ME, AR, ID
[4] PA, DC, HI, NV, UT, WV
[5] IL, OK, CT, IA, OR
[6] OH, KY, LA, AL, SC
[7] GA, CO, MN, WI, MD
[8] NC, MO, IN, TN, MA
[9] MI, AZ, WA, VA, NJ
"""
STATES = re.findall(r"[A-Z]{2}", ASSIGNMENT)
SLOTS = 8
# Without a lane: a limit of the host would let out targets of all states in turn, and own ones would be there at times
# only. CA is so slow that its owner is the last to be done with its own.
SCRAPER = """
    states = Scraper("states")

    @states.stage(lane=None)
    async def target(page: Page, item: Item):
        if item.partition == "CA":
            await asyncio.sleep(0.2)
        yield {"state": item.partition}
"""
FIRST_CLAIMS = """
    select w.id as worker, q.partition, o.claimed_at
    from shoal.outcome o join shoal.worker w on w.no = o.worker join shoal.queue q on q.id = o.queue
    where o.epoch = 1
"""


ALL, SOME = 10_000, 10_000 if LONG else 2_000


@pytest.mark.parametrize(("workers", "targets"), [(10, ALL), (3, SOME), (25, SOME)])
def test_any_number_of_workers(fleet: Fleet, workers: int, targets: int) -> None:
    """S3.1 to S3.3, as assigned to ten and dealt out to others: by the ledger and by the site's log."""
    fleet.write(SCRAPER, "states.py")
    with fleet.lab.site(pages=targets) as site:
        numbered = zip(range(1, targets + 1), itertools.cycle(STATES), strict=False)
        lines = (json.dumps({"url": f"{site.url}/page/{n}", "partition": state}) for n, state in numbered)
        fleet.operator.shoal("enqueue", "states.py", "--urls-file", fleet.operator.urls(lines))
        node = fleet.nodes[0]
        (node.folder / "who.txt").write_text(ASSIGNMENT)
        node.shoal(
            *("pool", "states.py", "--run-id", fleet.operator.run().id, "--workers", str(workers), "--yes"),
            *(("--assign", "who.txt") if workers == 10 else ()),
            *("--stagger", "0", "--set", f"concurrency={SLOTS}", "--set", "batch_size=20"),
            timeout=2 * PATIENCE,
        )
        visits = per_path(site.visits())
    counts = fleet.operator.counts()
    assert (counts.done, counts.dead, counts.remaining, counts.results) == (targets, 0, 0, targets)
    del visits["/robots.txt"]
    assert len(visits) == targets
    assert {len(found) for found in visits.values()} == {1}
    assert fleet.operator.is_sound()
    check_own_first(fleet, owned_partitions(node.folder / "logs" / "states_pool.log"))


def owned_partitions(log: Path) -> dict[int, set[str]]:
    """What the pool gave to each of its processes."""
    events = [json.loads(line) for line in log.read_text().splitlines()]
    owned = {event["pid"]: set(event["partitions"]) for event in events if event["event"] == "worker started"}
    assert sorted(itertools.chain(*owned.values())) == sorted(STATES), "each state has one owner"
    return owned


def check_own_first(fleet: Fleet, owned: dict[int, set[str]]) -> None:
    """By the ledger's clock: nobody claims a target of others before all of its own; then somebody does."""
    own: dict[int, list[dt.datetime]] = defaultdict(list)
    foreign: dict[int, list[dt.datetime]] = defaultdict(list)
    for pid, state, claimed_at in asyncio.run(first_claims(fleet.operator.ledger)):
        (own if state in owned[pid] else foreign)[pid].append(claimed_at)
    assert foreign, "nobody took over targets of others"
    early = {pid: owned[pid] for pid in foreign if own[pid] and min(foreign[pid]) < max(own[pid])}
    assert not early


async def first_claims(ledger: str) -> list[tuple[int, str, dt.datetime]]:
    """Process, state and time of each claim. A target that a worker returned unstarted was claimed again: left out."""
    connection = await asyncpg.connect(ledger)
    try:
        rows = await connection.fetch(FIRST_CLAIMS)
    finally:
        await connection.close()
    return [(int(row["worker"].split("-")[-2]), row["partition"], row["claimed_at"]) for row in rows]
