"""Workers that freeze, pools that are killed: others finish what they held."""

from __future__ import annotations

import os
import signal
import time

import pytest

from tests.nodes.conftest import Recovered
from tests.support import LONG
from tests.support.node_lab import Fleet
from tests.support.node_runs import (
    MARGIN,
    PATIENCE,
    SHOP,
    SLOTS,
    answered,
    held_by,
    pages_of,
    prove,
    start_workers,
    until,
    until_seen,
    until_visited,
    visits_from,
    workers,
)

PAGES = 600 if LONG else 64
# Longer than a worker may stand still on a busy machine: nobody but the victim is to lose its items.
LEASE = 2.0 if LONG else 5.0
POOL = ("--yes", "--workers", "2", "--stagger", "0", "--set", "batch_size=4", "--set", f"concurrency={SLOTS}")


def test_a_worker_freezes_and_wakes_up(fleet: Fleet, recovered: Recovered) -> None:
    """SIGSTOP beyond the lease, then SIGCONT: what it had in its hands is not stored a second time."""
    fleet.write(SHOP)
    sleeper = fleet.lab.nodes[0]
    with fleet.lab.site(pages=PAGES, delay=0.1) as site:
        pages = pages_of(site, PAGES)
        team = start_workers(fleet, fleet.enqueue(pages), lease=LEASE)
        until_seen(site, lambda visits: answered(visits_from(visits, sleeper.address)) >= SLOTS, "the sleeper")
        (name,) = [worker.id for worker in workers(fleet) if worker.node == sleeper.name]
        team[0].tell(signal.SIGSTOP)
        stopped_at = time.monotonic()
        held = held_by(fleet, name)
        moved_at = until_visited(site, held, stopped_at)
        what = f"a worker freezes: its items run elsewhere (lease {LEASE:g} s)"
        recovered(what, moved_at - stopped_at, LEASE + MARGIN)
        team[0].tell(signal.SIGCONT)
        assert [worker.wait(PATIENCE) for worker in team] == [0, 0, 0]
        visits = site.visits()
    # When the others have finished the run meanwhile, it does not register again.
    noticed = ("registering again with a new id", "lease lost before commit")
    assert any(text in team[0].stderr for text in noticed)
    prove(fleet, visits, pages, again=held)


@pytest.mark.parametrize("alone", [True, False], ids=["pool", "pool and workers"])
def test_a_pool_is_killed(fleet: Fleet, recovered: Recovered, alone: bool) -> None:
    """kill -9 of the pool: its workers finish what runs and leave. Of everything: the lease frees what they held."""
    fleet.write(SHOP)
    with fleet.lab.site(pages=PAGES, delay=0.1) as site:
        pages = pages_of(site, PAGES)
        run = ("--run-id", fleet.enqueue(pages))
        pool = fleet.nodes[0].start("pool", "shop.py", *run, *POOL, "--set", f"lease={30 if alone else LEASE}")
        until_seen(site, lambda visits: answered(visits) >= 4 * SLOTS, "the pool at work")
        there = workers(fleet)
        pool.kill()
        killed_at = time.monotonic()
        if not alone:
            for worker in there:
                os.kill(worker.pid, signal.SIGKILL)
        held = set().union(*(held_by(fleet, worker.id) for worker in there))
        if alone:
            until(lambda: workers(fleet), lambda found: not found, "workers live on without their pool")
            recovered("a pool is killed: its workers have left", time.monotonic() - killed_at, MARGIN)
            assert fleet.operator.counts().leased == 0
        successor = fleet.nodes[1].start("pool", "shop.py", *run, *POOL, "--set", f"lease={LEASE}")
        if not alone:
            moved_at = until_visited(site, held, killed_at)
            what = f"a pool and its workers are killed: their items run elsewhere (lease {LEASE:g} s)"
            recovered(what, moved_at - killed_at, LEASE + MARGIN)
        assert successor.wait(PATIENCE) == 0
        visits = site.visits()
    prove(fleet, visits, pages, again=() if alone else held)
