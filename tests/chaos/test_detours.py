"""Hosts that only redirects lead to, visited by processes of which some are killed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import LONG
from tests.support.project import Project
from tests.support.site import HOSTS, Site, most_at_once, of_host

WORKERS = 6 if LONG else 2
ITEMS = 400 if LONG else 24
LIMIT = 3
TARGET = HOSTS[8]
SCRAPER = f"""
    shop = Scraper("shop")

    @shop.stage(concurrency={LIMIT})
    async def page(page: Page):
        yield {{"url": page.url}}
"""


@pytest.fixture(params=["sqlite", "postgres"])
def project(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Project]:
    ledger = None if request.param == "sqlite" else str(request.getfixturevalue("postgres_url"))
    with Project(tmp_path, ledger) as project:
        project.shoal("db", "migrate", "-q")
        yield project


def test_a_limit_holds_over_processes_and_a_killed_one_gives_its_places_back(project: Project) -> None:
    project.write(SCRAPER)
    with Site() as site:
        urls = [f"{site.url_of(HOSTS[n % 8])}/elsewhere/{TARGET}/slow/0.1/{n}" for n in range(ITEMS)]
        project.shoal("enqueue", "shop.py", "--urls-file", project.urls(urls))
        fleet = [project.start("worker", "shop.py", "--set", "lease=2") for _ in range(WORKERS)]
        site.wait_until(lambda visits: len(of_host(visits, TARGET)) >= LIMIT + 1, timeout=30)
        fleet[0].kill()
        killed_at = time.monotonic()
        assert [command.wait(120) for command in fleet[1:]] == [0] * (WORKERS - 1)
        visits = of_host(site.visits(), TARGET)
    # What the killed one had sent goes on at the site for a moment.
    assert most_at_once(visit for visit in visits if visit.start < killed_at) <= LIMIT
    assert most_at_once(visit for visit in visits if visit.start > killed_at + 1) <= LIMIT
    assert project.counts().done == ITEMS
    assert project.is_sound()
