"""When a listing stops, by the log of its site."""

from __future__ import annotations

import json
from typing import Any

import pytest

from shoal.model.item import ItemState
from tests.support.newspapers import ChangingSite, cards, paged, paths, story, write_paper
from tests.support.project import Project
from tests.support.site import Site

PAGES = {"type": "pagination", "url_template": "/news/{num}", "batch_size": 2}


def pages_visited(project: Project, extra: dict[str, str], *, code: int = 0, why: str = "", **more: Any) -> list[str]:
    """Run a newspaper on these pages; the numbers of the listing pages in the order of the visits."""
    with Site(extra=extra) as site:
        listing = more.pop("listing", PAGES)
        done = project.shoal("run", write_paper(project.folder, site.url, listing, retries=0, **more), code=code)
    assert why in done.stderr
    return [path.removeprefix("/news/") for path in paths(site, "/news/")]


def test_a_failed_batch_ends_the_listing_and_missing_pages_before_are_reported(project: Project) -> None:
    extra = paged(5)
    del extra["/news/2"]
    # Batches are 1+2, 3+4, 5+6, 7+8; only the last of them fails as a whole.
    visited = pages_visited(project, extra, why='why="every page of a batch failed"')
    assert sorted(visited, key=int) == ["1", "2", "2", "3", "4", "5", "6", "7", "8"]
    [dead] = [item for item in project.items() if item.state is ItemState.DEAD]
    assert dead.url is not None
    assert dead.url.endswith("/news/2"), "6, 7 and 8 are only the end"


def test_an_empty_batch_ends_the_listing(project: Project) -> None:
    extra = {**paged(3), "/news/4": cards([]), "/news/5": cards([]), "/news/6": cards([]), "/news/7": cards([7])}
    assert pages_visited(project, extra, why='why="a batch had no article"') == ["1", "2", "3", "4", "5", "6"]


def test_a_repeated_batch_ends_the_listing(project: Project) -> None:
    """Many sites show their last page under every number after it."""
    extra = {**paged(3), **{f"/news/{number}": cards([5, 6]) for number in range(4, 12)}}
    why = 'why="a batch was the same as the one before"'
    assert pages_visited(project, extra, why=why) == ["1", "2", "3", "4", "5", "6"]


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_a_known_batch_ends_the_listing_and_only_new_articles_are_fetched(project: Project, form: str) -> None:
    extra = paged(6)
    with Site(extra=extra) as site:
        known = [f"{site.url}/story/{number}" for number in (2, 5, 6, 7, 8, 9)]
        old = project.folder / f"data/2024/news.{form}"
        old.parent.mkdir(parents=True)
        lines = ["title,url", *(f'"a, b",{url}' for url in known)]
        old.write_text("\n".join(lines if form == "csv" else [json.dumps({"url": url, "body": "x"}) for url in known]))
        project.shoal("run", write_paper(project.folder, site.url, PAGES, known=[f"data/**/*.{form}"]))
        assert len(paths(site, "/news/")) == 8, "files do not say that the listing was read to its end"
        assert sorted(paths(site, "/story/")) == [f"/story/{number}" for number in (1, 10, 11, 12, 3, 4)]
        project.shoal("run", "configs/fiji/times.yaml")
        assert paths(site, "/news/")[8:] == ["/news/1", "/news/2"], "known as a whole"


def test_max_pages_and_max_articles(project: Project) -> None:
    templates = {**PAGES, "url_template": ["/news/{num}", "/other/{num}"]}
    with Site(extra={**paged(3), "/other/1": cards([1, 2])}) as site:
        project.shoal("run", write_paper(project.folder, site.url, templates, max_pages=2))
        assert paths(site, "/news/") + paths(site, "/other/") == ["/news/1", "/news/2"]
        project.shoal("run", write_paper(project.folder, site.url, templates, "configs/fiji/b.yaml", max_articles=3))
        assert sorted(record["url"][-1] for record in project.export()) == ["1", "2", "3"]


def test_several_templates_one_after_another(project: Project) -> None:
    extra = {**paged(1), "/other/1": cards([3]), "/other/3": cards([4]), "/story/3": story(3), "/story/4": story(4)}
    with Site(extra=extra) as site:
        listing = {"type": "pagination", "url_template": ["/news/{num}", "/other/{num}"], "start_page": 1, "step": 2}
        project.shoal("run", write_paper(project.folder, site.url, {**listing, "batch_size": 3}))
        assert len(project.export()) == 4
    assert paths(site, "/news/") == ["/news/1", "/news/3", "/news/5", "/news/7", "/news/9", "/news/11"]
    assert paths(site, "/other/")[:3] == ["/other/1", "/other/3", "/other/5"]


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({"/news/1": "<p>Nothing</p>", "/news/2": "<p>Nothing</p>"}, "check selectors.thumbnail"),
        ({}, "404 Not Found"),
    ],
)
def test_a_listing_without_an_article_is_a_failure(project: Project, extra: dict[str, str], words: str) -> None:
    visited = pages_visited(project, extra, code=1)
    assert set(visited) == {"1", "2"}
    errors = [attempt.error or "" for tries in project.attempts().values() for attempt in tries if attempt.error]
    assert errors
    assert all(words in error for error in errors)


@pytest.mark.parametrize(("pages", "batch_size"), [(4, 5), (11, 12), (30, 12)])
def test_pages_without_an_article_are_a_failure_of_the_file(project: Project, pages: int, batch_size: int) -> None:
    """Also when one page does not exist, and however small the share of the dead items is."""
    extra = {f"/news/{number}": "<p>Nothing</p>" for number in range(1, pages + 1)}
    pages_visited(project, extra, code=1, listing={**PAGES, "batch_size": batch_size})
    errors = [attempt.error for tries in project.attempts().values() for attempt in tries if attempt.error]
    assert [error for error in errors if "404" not in error] == errors[-1:], "404 is not what is wrong"
    assert "no page of the listing has an article: check selectors.thumbnail" in (errors[-1] or "")


def test_such_a_newspaper_has_failed_in_a_collection(project: Project) -> None:
    with Site(extra={f"/news/{number}": "<p>Nothing</p>" for number in range(1, 12)}) as site:
        write_paper(project.folder, site.url, {**PAGES, "batch_size": 12}, retries=0)
        done = project.shoal("run", "configs", "--all", "--set", "member_retries=0", "--json", code=1)
    [member] = [line for line in map(json.loads, done.stdout.splitlines()) if "member" in line]
    assert member["status"] == "failed"
    assert "check selectors.thumbnail" in member["reason"]


def test_an_archive_without_a_page_is_a_failure(project: Project) -> None:
    days = {"start_date": "2024-01-01", "end_date": "2024-01-20"}
    listing = {"type": "archive", "url_template": "/news/{year}/{month}/{day}", **days}
    visited = pages_visited(project, {}, code=1, listing=listing)
    assert len(visited) == 20
    [error] = [attempt.error for tries in project.attempts().values() for attempt in tries if attempt.error]
    assert error == "no page of the listing exists: check listing.url_template"


def test_an_article_without_a_body_is_a_failure_with_the_reason(project: Project) -> None:
    extra = {**paged(1), "/story/2": story(2, body="<div>only a picture</div>")}
    pages_visited(project, extra, code=1)
    assert [record["title"] for record in project.export()] == ["Story 1"]
    [failed] = project.attempts()["/story/2"]
    assert failed.error == "selectors.article.body finds no text on the page"


def test_a_start_url_that_is_a_numbered_page_does_not_end_the_listing(project: Project) -> None:
    assert pages_visited(project, paged(3), listing={**PAGES, "start_url": "/news/2"})[:4] == ["2", "1", "2", "3"]
    assert len(project.export()) == 6


def test_a_failed_page_does_not_end_the_listing(project: Project) -> None:
    listing = {**PAGES, "start_url": "/status/500"}
    assert pages_visited(project, paged(2), listing=listing) == ["1", "2", "3", "4", "5"]
    assert len(project.export()) == 4
    [dead] = [item for item in project.items() if item.state is ItemState.DEAD]
    assert dead.url is not None
    assert dead.url.endswith("/status/500")


@pytest.mark.parametrize("down", [{"/news/1", "/news/2"}, {"/news/3", "/news/4"}])
def test_a_listing_that_an_outage_ended_continues_after_a_retry(project: Project, down: set[str]) -> None:
    """Otherwise the rest of the listing would be missing without an error."""
    with ChangingSite(paged(6), dict.fromkeys(down, 503)) as site:
        paper = write_paper(project.folder, site.url, PAGES, retries=0)
        project.shoal("run", paper, "--set", "robots=false", "--set", "max_dead=1", code=1)
        assert len(project.export()) < 12
        site.errors.clear()
        project.shoal("items", "retry", "latest", "--yes")
        project.shoal("run", paper, "--resume", "--set", "robots=false")
        assert len(project.export()) == 12
    assert project.counts().dead == 0


@pytest.mark.parametrize("kind", ["archive", "pagination"])
def test_a_title_that_cannot_be_cleaned_is_one_dead_item(project: Project, kind: str) -> None:
    """The other articles of its page are read, and the pages behind it."""
    code = "def no_two(title):\n    assert title not in ('Story 1', 'Story 2')\n    return title\n"
    (project.folder / "cleaning.py").write_text(code)
    days = {"start_date": "2024-01-01", "end_date": "2024-01-03"}
    archive = {"type": "archive", "url_template": "/news/{day:d}", **days}
    listing = archive if kind == "archive" else {**PAGES, "batch_size": 1}
    extra = {**paged(3), "/news/3": cards([5, 6])}
    cleaning = {"title": "no_two"}
    pages_visited(project, extra, code=1, listing=listing, cleaning=cleaning)
    assert sorted(record["title"] for record in project.export()) == [f"Story {number}" for number in (3, 4, 5, 6)]
    dead = [item for item in project.items() if item.state is ItemState.DEAD]
    assert [item.url and item.url[-1] for item in dead] == ["1", "2"]
    assert all("no_two failed with AssertionError" in (item.error or "") for item in dead)


def test_a_page_of_an_archive_that_fails_is_a_dead_item(project: Project) -> None:
    days = {"start_date": "2024-01-01", "end_date": "2024-01-04"}
    listing = {"type": "archive", "url_template": "/{day:d}", **days}
    extra = {"/4": cards([1]), "/2": cards([2]), "/story/1": story(1), "/story/2": story(2)}
    with ChangingSite({**extra, "/3": cards([3])}, {"/3": 401}) as site:
        project.shoal("run", write_paper(project.folder, site.url, listing, retries=0), code=1)
    assert sorted(record["title"] for record in project.export()) == ["Story 1", "Story 2"]
    [dead] = [item for item in project.items() if item.state is ItemState.DEAD]
    assert dead.url is not None
    assert dead.url.endswith("/3"), "day 1 has no page, which is no failure"
    assert "401" in (dead.error or "")


@pytest.mark.parametrize("forbidden", ["/news/1\nDisallow: /news/2", "/news/2", "/news/"])
def test_a_listing_that_robots_txt_forbids_is_a_failure(project: Project, forbidden: str) -> None:
    with Site(extra=paged(4), robots=f"User-agent: *\nDisallow: {forbidden}\n") as site:
        project.shoal("run", write_paper(project.folder, site.url, PAGES, retries=0), "--set", "max_dead=0", code=1)
    dead = [item for item in project.items() if item.state is ItemState.DEAD]
    assert dead
    assert all("the listing cannot be read: robots.txt of" in (item.error or "") for item in dead)
    assert len(project.export()) == (6 if forbidden == "/news/2" else 0)
