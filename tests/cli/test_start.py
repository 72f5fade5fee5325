"""One command for every scraper: it runs a single one here, enqueues a distributed one; how many workers may work."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.support.project import Project
from tests.support.site import Site

PAGES = """
    {name} = Scraper("{name}")

    @{name}.stage(concurrency=4)
    async def page(page: Page):
        yield {{"url": page.url}}
"""
REGISTRY = """
    [scrapers.india]
    target = "india.py"
    mode = "distributed"

    [scrapers.russia]
    target = "russia.py"
    mode = "distributed"
    worker_limit = 1

    [scrapers.argentina]
    target = "argentina.py"
"""


@pytest.fixture
def countries(fleet: Project) -> Project:
    for name in ("india", "russia", "argentina"):
        fleet.write(PAGES.format(name=name), f"{name}.py")
    (fleet.folder / "shoal.toml").write_text("\n".join(line.strip() for line in REGISTRY.splitlines()))
    return fleet


def test_a_single_scraper_runs_at_once_also_on_postgresql(countries: Project) -> None:  # S1.1, S1.26
    with Site() as site:
        urls = countries.urls(f"{site.url}/page/{n}" for n in range(1, 4))
        said = countries.shoal("start", "argentina", "--urls-file", urls, "--json")
    record = json.loads(said.stdout)
    assert (record["mode"], record["done"], record["state"]) == ("single", 3, "finished")


def test_a_distributed_scraper_waits_for_workers(countries: Project) -> None:  # S1.3 to S1.5, S1.8
    with Site() as site:
        urls = countries.urls([f"{site.url}/page/{n}" for n in range(1, 4)] + [f"{site.url}/page/1"])
        queued = json.loads(countries.shoal("start", "india", "--urls-file", urls).stdout)
        assert site.visits() == []
        assert {name: queued[name] for name in ("status", "mode", "enqueued", "duplicates")} == {
            "status": "queued",
            "mode": "distributed",
            "enqueued": 3,
            "duplicates": 1,
        }
        assert re.fullmatch(r"\d{8}_\d{6}", queued["run_id"])
        again = json.loads(countries.shoal("start", "india", "--resume").stdout)
        assert (again["run_id"], again["enqueued"]) == (queued["run_id"], 0)
        waiting = countries.start("start", "india", "--wait", "--urls-file", urls)
        command = shlex.split(queued["worker_command"])
        assert command[command.index("--ledger") + 1].startswith("postgresql://")
        waiting.wait_until_it_says("Waiting for workers")
        password = unquote(urlsplit(countries.ledger).password or "")
        countries.shoal(*command[command.index("worker") :], PGPASSWORD=password)
        assert waiting.wait() == 0
        fresh = json.loads(countries.shoal("start", "india", "--urls-file", urls, "--fresh").stdout)
    assert "3 done" in waiting.stderr
    assert fresh["run_id"] != queued["run_id"]


def test_one_worker_of_a_limited_scraper_works_at_a_time(countries: Project) -> None:  # S1.3
    """The second waits and says for whom, `why` says it too; it goes on when the first was killed."""
    with Site() as site:
        urls = countries.urls(f"{site.url}/slow/0.2/{n}" for n in range(70))
        run = json.loads(countries.shoal("start", "russia", "--urls-file", urls).stdout)["run_id"]
        work = ("worker", "russia", "--run-id", run, "-j", "1", "--set", "lease=2", "--json")
        first = countries.start(*work)
        site.wait_until(lambda visits: len(visits) >= 2)
        second = countries.start(*work)
        second.wait_until_it_says("Waiting for a place")
        assert f"-{first.pid}-" in second.stderr
        why = countries.shoal("items", "why", run).stdout
        assert "worker_limit" in why
        assert f"-{first.pid}-" in why
        seen = len(site.visits())
        first.kill()
        assert second.wait() == 0
        assert len(site.visits()) > seen
    assert json.loads(second.stdout)["done"] > 0
    assert countries.counts(run).done == 70


def test_the_password_is_refused_as_a_flag(countries: Project, tmp_path: Path) -> None:  # S1.7
    said = countries.shoal("worker", "--scraper", "india", "--db-password", "hunter2-hunter2", code=2)
    assert "PGPASSWORD" in said.stderr
    assert "hunter2" not in said.stderr + said.stdout
    (sentence,) = said.stderr.strip().splitlines()
    assert ". " not in sentence
    assert sentence.count(".") == 1
