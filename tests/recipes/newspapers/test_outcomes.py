"""What the summary of a collection says of newspapers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.newspapers import ChangingSite, cards, paged, story, write_paper
from tests.support.project import Project
from tests.support.site import Site

PAGES = {"type": "pagination", "url_template": "/news/{num}", "batch_size": 2}


def run_all(project: Project, *options: str, code: int = 0) -> dict[str, Any]:
    """Run the collection, and return the report on its only newspaper."""
    done = project.shoal("run", "configs/", "--all", "--json", *options, code=code)
    return next(line for line in map(json.loads, done.stdout.splitlines()) if line.get("member") == "fiji/times")


@pytest.mark.parametrize(
    ("condition", "exclude"), [("True", "/story/"), ("False", ()), ("'nowhere' in record['body']", ())]
)
def test_a_first_run_that_leaves_everything_out_is_a_warning(
    project: Project, condition: str, exclude: str | tuple[str, ...]
) -> None:
    (project.folder / "cleaning.py").write_text(f"def own(record):\n    return {condition}\n")
    with ChangingSite(paged(2)) as site:
        listing = {**PAGES, "exclude": exclude}
        write_paper(project.folder, site.url, listing, cleaning={"record_filter": "own"})
        report = run_all(project)
    assert (report["status"], report["records"]) == ("warning", 0)
    assert report["reason"] == "no records: everything was left out"


def test_a_day_with_unwanted_articles_only_is_a_success(project: Project) -> None:
    """Earlier runs have records; or files have, when each run has a ledger of its own."""
    (project.folder / "cleaning.py").write_text("def own(record):\n    return 'advert' not in record['body']\n")
    with ChangingSite(paged(2)) as site:
        write_paper(project.folder, site.url, PAGES, cleaning={"record_filter": "own"})
        assert run_all(project, "-o", "data/")["records"] == 4
        site.pages |= {"/news/1": cards([9, 1, 2]), "/story/9": story(9, body="<p>An advert.</p>")}
        for ledger in ("first.db", "second.db"):
            report = run_all(project, "-o", "data/", "--ledger", str(project.folder / ledger))
            assert (report["status"], report["records"], report["reason"]) == ("success", 0, "")
        report = run_all(project, "-o", "data/")
        assert (report["status"], report["records"], report["reason"]) == ("success", 0, "")


def test_a_dead_item_does_not_hide_that_the_dates_are_missing(project: Project) -> None:
    pages = {"/news/1": cards(range(1, 21), day=""), **{f"/story/{number}": story(number) for number in range(2, 21)}}
    with ChangingSite(pages) as site:
        write_paper(project.folder, site.url, PAGES)
        report = run_all(project)
    assert report["status"] == "warning"
    assert report["reason"].startswith("1 of ")
    assert report["reason"].endswith("; date is empty in 19 of 19 records of article")


@pytest.mark.parametrize(("given", "sent"), [("us (mail@example.org)", "us (mail"), ("browser", "Mozilla/5.0")])
def test_the_user_agent_of_the_collection_is_sent_by_its_newspapers(project: Project, given: str, sent: str) -> None:
    (project.folder / "shoal.toml").write_text(f'[scrapers.pacific]\ntarget = "configs/"\nuser_agent = "{given}"\n')
    with Site(extra=paged(1)) as site:
        write_paper(project.folder, site.url, PAGES)
        project.shoal("run", "pacific")
        agents = [visit.headers["user-agent"] for visit in site.visits()]
    assert len(agents) > 3
    assert all(agent.startswith(sent) for agent in agents)


def test_names_of_the_summary_find_runs(project: Project) -> None:
    with ChangingSite(paged(1)) as site:
        write_paper(project.folder, site.url, PAGES)
        member = run_all(project)["member"]
    (row,) = project.shoal("runs", "ls", "--scraper", member, "--json").stdout.splitlines()
    assert json.loads(row)["scraper"] == "fiji.times"
    assert len(project.export(f"latest:{member}")) == 2
