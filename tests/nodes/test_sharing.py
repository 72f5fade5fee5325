"""One run over several nodes, as the site and the ledger saw it."""

from __future__ import annotations

import itertools

from tests.support import LONG
from tests.support.node_lab import Fleet
from tests.support.node_runs import PATIENCE, pages_of, prove, start_workers, visits_from
from tests.support.site import most_at_once

STEADY_PAGES, SLOW_PAGES = (300, 60) if LONG else (32, 9)
DELAY = 0.08
LIMIT = 3
# The site writes a request down when it reads it; the cables and a busy machine add a little to that.
LEEWAY = 0.04
# What was sent in time may stand behind other packets of its node on a slow line.
SLOW_LINE = 0.08
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
        team = start_workers(fleet, fleet.enqueue(pages), lease=10, slots=1)
        assert [worker.wait(PATIENCE) for worker in team] == [0, 0, 0]
        visits = site.visits()
    prove(fleet, visits, pages)
    assert all(visits_from(visits, node.address) for node in fleet.lab.nodes), "not all nodes took part"
    assert most_at_once(visits) == LIMIT
    starts = sorted(visits, key=lambda visit: visit.start)
    late = fleet.lab.nodes[2].address
    assert all(
        after.arrived - before.arrived >= DELAY - (SLOW_LINE if before.peer.startswith(late) else LEEWAY)
        for before, after in itertools.pairwise(starts)
    ), [visit.start for visit in starts]
    # One that was late may be followed closely, but there are never more than the rate allows.
    assert all(
        after.arrived - before.arrived >= 9 * DELAY - SLOW_LINE
        for before, after in zip(starts, starts[9:], strict=False)
    ), [visit.start for visit in starts]
    by_node = {attempt.worker.partition("-")[0] for (attempt,) in fleet.operator.attempts().values() if attempt.worker}
    assert by_node == {"node1", "node2", "node3"}, "the ledger knows nodes by their own names"
