"""51 partitions over any number of workers: every target once, one's own partitions first, then those of others."""

from __future__ import annotations

import itertools
import json
import re
from collections import defaultdict
from pathlib import Path

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
    import os

    states = Scraper("states")

    @states.stage(lane=None)
    async def target(page: Page, item: Item):
        began = time.monotonic()
        if item.partition == "CA":
            await asyncio.sleep(0.2)
        yield {"state": item.partition, "pid": os.getpid(), "began": began}
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
    """Nobody begins a target of others before its own are all begun, and somebody does then."""
    states: dict[int, list[str]] = defaultdict(list)
    for record in sorted(fleet.operator.export(), key=lambda record: record["began"]):
        states[record["pid"]].append(record["state"])
    took_over = 0
    for pid, own in owned.items():
        first_foreign = next((n for n, state in enumerate(states[pid]) if state not in own), len(states[pid]))
        # Pages that are fetched at the same time may arrive in any order.
        assert own.isdisjoint(states[pid][first_foreign + SLOTS :]), f"{own}: {states[pid]}"
        took_over += first_foreign < len(states[pid])
    assert took_over > 0
