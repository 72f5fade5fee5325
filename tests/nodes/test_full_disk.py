"""A disk without room: on a worker's node, and under the ledger itself. What is to be done goes on, or says why not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.node_lab import Fleet
from tests.support.node_runs import LIMIT, PATIENCE, SHOP, SLOTS, answered, pages_of, prove, start_worker, until_seen
from tests.support.project import Project
from tests.support.site import Site

PAGES = 40
# Pages large enough for a full disk to be noticed at once, and no second try: whatever is held against an item shows.
LARGE = f"""
    import os

    shop = Scraper("shop")

    @shop.stage(concurrency={LIMIT}, retries=0)
    async def page(page: Page):
        await asyncio.sleep(0.1)
        yield {{"url": page.url, "text": os.urandom(10_000).hex()}}
"""
ON_DISK = ("--set", "patience=0.1", "-j", str(SLOTS))


@contextmanager
def filled(disk: Path) -> Iterator[None]:
    """No room at all, until the end of the block."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while file.write(b"x" * size):
                    pass
            except OSError:
                continue
    try:
        yield
    finally:
        filler.unlink()


def test_a_full_disk_under_the_log_stops_nobody(fleet: Fleet) -> None:
    fleet.write(SHOP)
    disk = fleet.disk(0, "1m")
    with fleet.lab.site(pages=PAGES, delay=0.1) as site:
        pages = pages_of(site, PAGES)
        (fleet.nodes[0].folder / "shoal.toml").write_text('log_dir = "disk/logs"\n')
        worker = start_worker(fleet, 0, fleet.enqueue(pages), lease=10)
        until_seen(site, lambda visits: answered(visits) >= SLOTS, "work")
        with filled(disk):
            assert worker.wait(PATIENCE) == 0
        visits = site.visits()
    assert "Cannot write to the log file disk/logs/shop-worker.log" in worker.stderr
    prove(fleet, visits, pages)


def test_a_full_store_is_no_fault_of_the_items(fleet: Fleet) -> None:
    """The worker leaves and says why. Its items are not charged; others do them, or it does when there is room."""
    fleet.write(LARGE)
    disk = fleet.disk(0, "1m")
    with fleet.lab.site(pages=PAGES, delay=0.1) as site:
        pages = pages_of(site, PAGES)
        run_id = fleet.enqueue(pages)
        (fleet.nodes[0].folder / "shoal.toml").write_text('store = "disk/store"\n')
        unlucky = start_worker(fleet, 0, run_id, lease=10)
        until_seen(site, lambda visits: answered(visits) >= SLOTS, "work")
        with filled(disk):
            assert unlucky.wait(PATIENCE) == 3
        assert unlucky.stderr.splitlines()[-1].startswith("Error: ")
        assert "could not be written to the store: No space left on device. Free disk space" in unlucky.stderr
        counts = fleet.operator.counts()
        assert (counts.dead, counts.leased) == (0, 0)
        team = [start_worker(fleet, number, run_id, lease=10) for number in (0, 1)]
        assert [worker.wait(PATIENCE) for worker in team] == [0, 0]
    counts = fleet.operator.counts()
    assert (counts.done, counts.dead, counts.results) == (PAGES, 0, PAGES)
    assert {item.tries for item in fleet.operator.items()} == {1}, "the full disk cost somebody a try"
    assert fleet.operator.is_sound()


@pytest.fixture
def cramped(fleet: Fleet) -> tuple[Project, Path]:
    """A project whose SQLite ledger is on a small disk, and the disk."""
    disk, project = fleet.disk(0, "8m"), fleet.nodes[0]
    project.ledger = "disk/ledger.db"
    project.write(LARGE)
    return project, disk


def prove_alone(project: Project, site: Site, pages: list[str]) -> None:
    """As `prove`, asking by commands alone: the ledger is on a disk that only the node has."""
    records = Counter(record["url"] for record in project.export())
    assert set(records) == set(pages)
    assert set(records.values()) == {1}
    project.shoal("db", "check", "--deep")
    assert answered(site.visits()) <= len(pages) + LIMIT, "more was done again than could have been in its hands"


def test_the_ledgers_disk_is_full_for_a_while(fleet: Fleet, cramped: tuple[Project, Path]) -> None:
    """It is waited for, and who asks meanwhile is told."""
    project, disk = cramped
    with fleet.lab.site(pages=PAGES, delay=0.1) as site:
        pages = pages_of(site, PAGES)
        run = project.start("run", "shop.py", "--urls-file", project.urls(pages), "-j", str(SLOTS))
        until_seen(site, lambda visits: answered(visits) >= SLOTS, "work")
        with filled(disk):
            run.wait_until_it_says("ledger disk full; waiting for space")
            (row,) = project.shoal("status").stdout.splitlines()[1:]
            assert row.endswith("space on the ledger's disk"), row
            assert "There is no space left for disk/ledger.db." in project.shoal("items", "why", "latest").stdout
            checks = project.shoal("doctor", code=1).stdout.splitlines()
            (check,) = [line for line in checks if line.split()[:2] in (["ok", "disk"], ["wrong", "disk"])]
            assert check.startswith("wrong")
        assert run.wait(PATIENCE) == 0
        prove_alone(project, site, pages)


def test_the_ledgers_disk_stays_full(fleet: Fleet, cramped: tuple[Project, Path]) -> None:
    """One sentence says what to do; when that is done, the run is resumed as if nothing had been."""
    project, disk = cramped
    with fleet.lab.site(pages=PAGES, delay=0.1) as site:
        pages = pages_of(site, PAGES)
        run = project.start("run", "shop.py", "--urls-file", project.urls(pages), *ON_DISK)
        until_seen(site, lambda visits: answered(visits) >= SLOTS, "work")
        with filled(disk):
            assert run.wait(PATIENCE) == 3
            says_what_to_do(run.stderr)
            project.shoal("status")
        project.shoal("run", "shop.py", "--resume", *ON_DISK)
        prove_alone(project, site, pages)


def test_nothing_can_be_started_on_a_full_disk(fleet: Fleet, cramped: tuple[Project, Path]) -> None:
    project, disk = cramped
    with fleet.lab.site(pages=PAGES, delay=0.1) as site:
        run = project.start("run", "shop.py", "--urls-file", project.urls(pages_of(site, PAGES)), *ON_DISK)
        until_seen(site, lambda visits: answered(visits) >= SLOTS, "work")
        with filled(disk):
            assert run.wait(PATIENCE) == 3
        with filled(disk):
            refused = project.shoal("run", "shop.py", "--resume", *ON_DISK, code=3)
    says_what_to_do(refused.stderr)


def says_what_to_do(stderr: str) -> None:
    assert stderr.splitlines()[-1].startswith("Error: There is no space left for "), stderr
    assert "Free disk space" in stderr.splitlines()[-1]
    assert "Traceback" not in stderr
