"""A small campaign of chaos: what `make chaos` does for an hour."""

from __future__ import annotations

from pathlib import Path

from tests.chaos.campaign import Campaign, Hostile
from tests.chaos.faults import FAULTS
from tests.chaos.hostile_site import KINDS
from tests.support.node_lab import Lab

# Those that take a second or two; `make chaos` has all of them.
SHORT = {
    "kill -9 of a worker",
    "kill -9 of a node",
    "SIGTERM of a worker",
    "all database connections ended",
    "restart of the pooler",
    "all retries due at once",
    "connections reset",
    "kill -9 of a proxy",
}
ITEMS, PROXIED = 900, 8
# Workers beside other tests are kept from their core for longer; who ignores a delay comes sooner than this leaves.
TOLERANCE = 0.2
# A page that drips takes as long as its attempts may take together.
QUICK_PAGES = [kind for kind in KINDS if kind != "drip"]


def test_a_run_under_faults_loses_nothing_and_stays_polite(lab: Lab, tmp_path: Path) -> None:
    assert {fault.name for fault in FAULTS} >= SHORT
    hostile = Hostile(QUICK_PAGES, every=60, retries=2)
    campaign = Campaign(
        minutes=3, items=ITEMS, seed=11, faults=SHORT, pause=(0.0, 0.1), hostile=hostile, proxied=PROXIED, adds=1
    )
    campaign.tolerance = TOLERANCE
    report = campaign.execute(lab, tmp_path)
    assert report.problems == [], (report.politeness.examples, report.unexplained, report.stalls, report.runs)
    shop, homes = report.runs["shop"], report.runs["homes"]
    assert shop.done + shop.dead == shop.items > ITEMS * 1.1
    assert homes.done == homes.items == PROXIED
    assert sorted(report.hostile_pages) == sorted(QUICK_PAGES)
    assert report.politeness.visits >= ITEMS + PROXIED
    assert report.faults, "the runs ended before any fault"
