"""A pool that chooses how many workers it has, as a user sees it: real commands, processes, a site and PostgreSQL."""

from __future__ import annotations

import asyncio
import json
import signal

import pytest

from shoal.config import Settings
from shoal.wiring import ledger_context
from tests.support.pools import GATED, all_done_once, busy, gated_pool, open_gate, until, workers
from tests.support.project import Project
from tests.support.site import Site

# Whatever else this machine does while the tests run.
WHATEVER_THE_LOAD = ("--set", "max_cpu=100", "--set", "max_memory=100")
PAGES = """
    pages = Scraper("pages", robots=False)

    @pages.stage(concurrency=1_000, retries=3)
    async def one(page: Page):
        yield {"url": page.url}
"""


def changes(project: Project) -> list[tuple[int, int, str]]:
    """From, to and why of each change, oldest first."""

    async def ask() -> list[tuple[int, int, str]]:
        async with ledger_context(Settings(ledger=project.ledger), migrate=False) as ledger:
            events = (await ledger.reads.events(run_id=(await ledger.runs.list(limit=1)).rows[0].id)).rows
        details = [event.detail for event in reversed(events) if event.action == "scaled"]
        return [(detail["from"], detail["to"], detail["why"]) for detail in details]

    return asyncio.run(ask())


def steps(project: Project) -> list[tuple[int, int]]:
    return [(before, after) for before, after, _ in changes(project) if before != after]


def test_it_grows_with_the_backlog_and_shrinks_when_the_site_fails(fleet: Project) -> None:
    """S2.20, S4.18: `shoal status` says why, each time."""
    with Site() as site:
        fleet.write(PAGES, "pages.py")
        slow = [f"{site.url}/slow/0.4/{number}" for number in range(150)]
        failing = [f"{site.url}/status/500?{number}" for number in range(3_000)]
        urls = fleet.urls([*slow, *failing])
        pool = fleet.start(
            *("pool", "pages.py", "--urls-file", urls, "--min", "2", "--max", "4", "--yes", "--stagger", "0"),
            *("--set", "concurrency=3", "--set", "batch_size=3", *WHATEVER_THE_LOAD),
        )
        pool.wait_until_it_says("2 to 4 workers:")
        assert "items are ready and all 2 are busy" in pool.stderr
        assert "went from 2 to 4 workers" in fleet.shoal("status", "latest").stdout
        busy(fleet, 4)
        pool.wait_until_it_says("4 to 2 workers:")
        assert "attempts failed" in changes(fleet)[-1][2]
        until(lambda: len(workers(fleet)), lambda number: number == 2, "not two workers")
        told = fleet.shoal("items", "why", "latest").stdout
        assert "went from 4 to 2 workers" in told
        assert "attempts failed" in told
        pool.tell(signal.SIGTERM)
        pool.tell(signal.SIGINT)
        assert pool.wait() == 130
    assert steps(fleet) == [(2, 4), (4, 2)]
    assert "3150 items wait for 2 to 4 workers" in pool.stdout


def test_a_size_that_an_operator_set_suspends_the_autoscaler(fleet: Project) -> None:
    """S4.18: more and fewer workers while it runs, by the rule and by hand; the run says who it was."""
    pool = gated_pool(fleet, "--min", "1", "--max", "3", "--set", "drain=0.2", *WHATEVER_THE_LOAD)
    busy(fleet, 3)
    assert steps(fleet) == [(1, 2), (2, 3)]
    until(lambda: changes(fleet)[-1][:2], lambda last: last == (3, 3), "it does not say that it is at its most")
    assert "stayed at 3 of 3 workers" in fleet.shoal("status", "latest").stdout
    fleet.shoal("pool", "scale", "gated.py", "1")
    busy(fleet, 1)
    assert steps(fleet)[2:] == [(3, 1)]
    assert "an operator asked for it" in fleet.shoal("status", "latest").stdout
    said = fleet.shoal("pool", "scale", "gated.py", "auto", "--json").stdout
    assert json.loads(said) == {"scraper": "gated", "workers": "auto", "present": 1}
    busy(fleet, 3)
    assert steps(fleet)[3:] == [(1, 2), (2, 3)]
    open_gate(fleet)
    assert pool.wait() == 0
    assert all_done_once(fleet)


def test_the_plan_shows_the_bounds(project: Project) -> None:
    project.write(GATED, "gated.py")
    said = project.shoal("pool", "gated.py", "--min", "2", "--max", "10", "--dry-run")
    assert "It begins with 2 workers, and has more or fewer as needed." in said.stdout
    assert "30 items wait for 2 to 10 workers" in said.stdout
    said = project.shoal("run", "gated.py", "--min", "2", "--max", "10", "--dry-run")
    assert "2 to 10" in said.stdout


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("pool", "gated.py", "--max", "3", "--workers", "2", "--yes"), "--workers, --test or --only"),
        (("pool", "scale", "gated.py", "many"), "'many' is not auto and not from 1 to 1000"),
        (("run", "gated.py", "--min", "3"), "say with --max how far it may go"),
        (("run", "gated.py", "--max", "3", "-j", "2"), "give --min and --max, or -j"),
        (("worker", "gated.py", "--min", "5", "--max", "4"), "5 is more than --max 4"),
    ],
)
def test_bounds_that_make_no_sense_are_refused(project: Project, arguments: tuple[str, ...], complaint: str) -> None:
    project.write(GATED, "gated.py")
    assert complaint in " ".join(project.shoal(*arguments, code=2).stderr.split())
