"""One run over several nodes, as the site and the ledger saw it."""

from __future__ import annotations

import itertools
from operator import attrgetter

from tests.support import LONG
from tests.support.node_lab import Fleet
from tests.support.node_runs import PATIENCE, pages_of, prove, start_together, start_workers, visits_from
from tests.support.site import most_at_once

STEADY_PAGES, SLOW_PAGES = (300, 60) if LONG else (32, 9)
DELAY = 0.08
LIMIT = 3
# A worker on a busy machine sends a request a little after its time, and the cables add to that.
LEEWAY = 0.06
# What was sent in time may stand behind other packets of its node on a slow line.
SLOW_LINE = 0.08
STRETCH = 18
POLITE = f"""
    shop = Scraper("shop")

    @shop.stage(rate="{1 / DELAY:g}/s", concurrency={LIMIT})
    async def page(page: Page):
        yield {{"url": page.url}}
"""


def test_nodes_share_a_run_and_the_politeness(fleet: Fleet) -> None:
    """S1.8, S2.25, S3.23, law 5: each page once, and the site cannot tell that it is visited from three nodes."""
    fleet.write(POLITE)
    fleet.lab.nodes[2].slow_down("1mbit")
    with fleet.lab.site(pages=STEADY_PAGES) as site:
        # The delay holds the first ones back, the limit the others.
        pages = pages_of(site, STEADY_PAGES) + [f"{site.url}/slow/0.6/{n}" for n in range(SLOW_PAGES)]
        # With one slot each, only all three together can reach the limit.
        run_id = fleet.enqueue(pages)
        team = start_together(fleet, run_id, lambda: start_workers(fleet, run_id, lease=10, slots=1), len(fleet.nodes))
        assert [worker.wait(PATIENCE) for worker in team] == [0, 0, 0]
        visits = site.visits()
    prove(fleet, visits, pages)
    assert all(visits_from(visits, node.address) for node in fleet.lab.nodes), "not all nodes took part"
    assert most_at_once(visits) == LIMIT
    starts = sorted(visits, key=attrgetter("arrived"))
    late = fleet.lab.nodes[2].address
    assert all(
        after.arrived - before.arrived >= DELAY - (SLOW_LINE if before.peer.startswith(late) else LEEWAY)
        for before, after in itertools.pairwise(starts)
    ), [visit.arrived for visit in starts]
    # One that was late may be followed closely, but nodes that do not share the rate come three times as often.
    assert all(
        after.arrived - before.arrived >= STRETCH * DELAY / 2
        for before, after in zip(starts, starts[STRETCH:], strict=False)
    ), [visit.arrived for visit in starts]
    by_node = {attempt.worker.partition("-")[0] for (attempt,) in fleet.operator.attempts().values() if attempt.worker}
    assert by_node == {"node1", "node2", "node3"}, "the ledger knows nodes by their own names"
