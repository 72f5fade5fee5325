"""Cables, databases and poolers that go away in the middle of a run, and come back."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

from tests.nodes.conftest import Recovered
from tests.support import LONG
from tests.support.node_lab import Fleet, Lab
from tests.support.node_runs import (
    MARGIN,
    PATIENCE,
    ROUNDS,
    SHOP,
    SLOTS,
    held_by,
    pages_of,
    prove,
    start_workers,
    until,
    until_done,
    until_seen,
    until_visited,
    visits_from,
    workers,
)
from tests.support.site import Site, Visit

PAGES = 1_500 if LONG else 120
CUT_PAGES = 900 if LONG else 360
# Longer than a worker may stand still on a busy machine: nobody but the victim is to lose its items.
LEASE = 2.0 if LONG else 5.0


def test_a_node_is_cut_off_and_comes_back(fleet: Fleet, recovered: Recovered) -> None:
    """Its items run elsewhere after the lease; what it finished meanwhile is refused; it goes on under a new name."""
    fleet.write(SHOP)
    with fleet.lab.site(pages=CUT_PAGES, delay=0.1) as site:
        pages = pages_of(site, CUT_PAGES)
        for node in fleet.nodes:  # until the second node is at work, however late its worker starts
            (node.folder / "hold").touch()
        team = start_workers(fleet, fleet.enqueue(pages), lease=LEASE)
        again = set[str]().union(*(cut_off_and_mend(fleet, site, recovered) for _ in range(ROUNDS)))
        assert [worker.wait(PATIENCE) for worker in team] == [0, 0, 0]
        visits = site.visits()
    prove(fleet, visits, pages, again)
    report = json.loads(team[1].stdout)
    assert report["lost"] >= SLOTS * ROUNDS, "nobody told it that it came too late"
    assert team[1].stderr.count("registering again with a new id") == ROUNDS


def cut_off_and_mend(fleet: Fleet, site: Site, recovered: Recovered) -> set[str]:
    """Cut the second node off while it has its hands full, until its items run elsewhere; return what they are."""
    stray, folder = fleet.lab.nodes[1], fleet.nodes[1].folder
    (folder / "hold").touch()
    until(lambda: list(folder.glob("held-*")), lambda held: len(held) == SLOTS, "not all of its slots hold something")
    for node in (fleet.nodes[0], fleet.nodes[2]):
        (node.folder / "hold").unlink(missing_ok=True)
    (name,) = [worker.id for worker in workers(fleet) if worker.node == stray.name]
    stray.cut_off()
    cut_at = time.monotonic()
    # What it holds is finished now, and its commits are on their way.
    for file in (folder / "hold", *folder.glob("held-*")):
        file.unlink()
    held = held_by(fleet, name)
    moved_at = until_visited(site, held, cut_at)
    what = f"a node is cut off: its items run elsewhere (lease {LEASE:g} s)"
    recovered(what, moved_at - cut_at, LEASE + MARGIN)
    stray.mend()
    mended_at = time.monotonic()
    back = until_seen(site, lambda visits: since(visits, stray.address, mended_at) != [], "it again")
    back_at = since(back, stray.address, mended_at)[0].start
    recovered("a node is mended: it works again", back_at - mended_at, 2 * MARGIN)
    return held


def since(visits: list[Visit], address: str, moment: float) -> list[Visit]:
    return [visit for visit in visits_from(visits, address) if visit.start > moment]


Accident = Callable[[Lab], None]


def restart_fast(lab: Lab) -> None:
    lab.postgres.stop("fast")
    lab.postgres.start()


def restart_after_a_crash(lab: Lab) -> None:
    lab.postgres.restart_immediate()


def restart_pgbouncer(lab: Lab) -> None:
    lab.bouncer.stop()
    lab.bouncer.start()


ACCIDENTS: dict[str, Accident] = {
    "PostgreSQL is restarted (fast)": restart_fast,
    "PostgreSQL crashes (immediate)": restart_after_a_crash,
    "PgBouncer is restarted": restart_pgbouncer,
}


def test_the_database_goes_away_and_comes_back(fleet: Fleet, recovered: Recovered) -> None:
    """Workers wait and go on by themselves; as it is shorter than the lease, no page is even visited twice."""
    fleet.write(SHOP)
    plan = list(ACCIDENTS.items()) * ROUNDS
    with fleet.lab.site(pages=PAGES, delay=0.1) as site:
        pages = pages_of(site, PAGES)
        team = start_workers(fleet, fleet.enqueue(pages), lease=30)
        for number, (what, accident) in enumerate(plan, start=1):
            until_done(fleet, number * PAGES // (len(plan) + 2))
            gone_at = time.monotonic()
            accident(fleet.lab)
            there_at = time.monotonic()
            until_done(fleet, min(PAGES, fleet.operator.counts().done + 1))
            recovered(f"{what}: the next record is stored", time.monotonic() - gone_at, there_at - gone_at + MARGIN)
        assert [worker.wait(PATIENCE) for worker in team] == [0, 0, 0]
        visits = site.visits()
    prove(fleet, visits, pages)
