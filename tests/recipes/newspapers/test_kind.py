"""Newspapers declared in YAML, run as a user runs them, against sites that keep a log."""

from __future__ import annotations

import base64
import datetime as dt
import json
from pathlib import Path
from typing import Any, cast

import pytest

from shoal.define.context import Http
from shoal.define.yaml_scraper import read_yaml_header
from shoal.errors import Transient
from shoal.fetch.page import Page
from shoal.recipes.newspapers.kind import NewspaperContext
from tests.support.newspapers import SELECTORS, ChangingSite, cards, paged, paths, story, write_paper
from tests.support.project import Project
from tests.support.site import Site, closest_starts

PAGES = {"type": "pagination", "url_template": "/news/{num}", "batch_size": 2}


def by_url(records: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {record["url"].rpartition("/")[2]: record for record in records}


def test_numbered_pages_become_articles(project: Project) -> None:
    stories = {
        "/story/1": story(1, tags=["Sea", "Reef", "Sea"]),
        "/story/2": story(2, day="2024-06-03T23:30:00+12:00"),
    }
    with Site(extra={**paged(3), **stories, "/latest": cards([1, 2])}) as site:
        listing = {**PAGES, "url_template": site.url + "/news/{num}", "start_url": site.url + "/latest"}
        paper = write_paper(project.folder, site.url, listing, name="Fiji Times")
        project.shoal("run", paper)
        records = by_url(project.export())
    assert sorted(records) == ["1", "2", "3", "4", "5", "6"]
    assert records["1"] == {
        "url": f"{site.url}/story/1",
        "title": "Story 1",
        "date": "2024-06-05",
        "body": "Story 1 begins. It ends here.",
        "tags": ["Sea", "Reef"],
        "source": "Fiji Times",
        "country": "fiji",
    }
    assert records["2"]["date"] == "2024-06-03", "the article's own date counts for more than the listing's"
    assert project.run().scraper == "fiji.fiji_times"
    assert project.run().settings["rate_limit"] == 0
    assert paths(site, "/latest") + paths(site, "/news/")[:3] == ["/latest", "/news/1", "/news/2", "/news/3"]
    assert len(paths(site, "/story/")) == 6, "each article once, though two pages show it"
    assert project.counts().dead == 0, "pages behind the last one are no failures"


def test_an_archive_is_read_from_its_end_to_its_start(project: Project) -> None:
    months = {"/2024/02/": cards([1]), "/2024/01/": cards([2]), "/2023/12/": cards([3]), "/2023/11/": cards([4])}
    stories = {f"/story/{number}": story(number) for number in range(1, 5)}
    with Site(extra={**months, **stories}) as site:
        listing = {
            "type": "archive",
            "url_template": "/{year}/{month}/",
            "start_date": "2023-12-15",
            "end_date": "2024-02-29",
            "date_format": "monthly",
        }
        project.shoal("run", write_paper(project.folder, site.url, listing))
        assert sorted(by_url(project.export())) == ["1", "2", "3"]
    assert paths(site, "/20") == ["/2024/02/", "/2024/01/", "/2023/12/"]


def test_a_daily_archive_without_an_end_begins_today(project: Project) -> None:
    today = dt.datetime.now(dt.UTC).date()
    # Tomorrow, in case that the day changes now.
    days = {f"/{today - dt.timedelta(days=n):%Y/%m/%d}": cards([n + 1]) for n in range(-1, 3)}
    with Site(extra={**days, **{f"/story/{n}": story(n) for n in range(4)}}) as site:
        start = (today - dt.timedelta(days=1)).isoformat()
        listing = {"type": "archive", "url_template": "/{year}/{month}/{day}", "start_date": start}
        project.shoal("run", write_paper(project.folder, site.url, listing))
        assert {"1", "2"} <= set(by_url(project.export())), "both the first and the last day"


@pytest.mark.parametrize("until", [{}, {"--until": "9999-12-31"}])
def test_an_archive_that_ends_in_the_future_begins_today(project: Project, until: dict[str, str]) -> None:
    today = dt.datetime.now(dt.UTC).date()
    with Site(extra={f"/{today:%Y/%m/%d}": cards([1]), "/story/1": story(1)}) as site:
        days = {"start_date": str(today - dt.timedelta(days=1)), "end_date": "9999-12-30"}
        listing = {"type": "archive", "url_template": "/{year}/{month}/{day}", **days}
        options = [part for option in until.items() for part in option]
        project.shoal("run", write_paper(project.folder, site.url, listing), *options)
        assert list(by_url(project.export())) == ["1"]
        assert len(paths(site, "/2")) <= 3


def test_an_api_is_read_by_its_paths(project: Project) -> None:
    def answer(*numbers: int) -> str:
        posts = [
            {"link": f"/story/{n}", "title": {"rendered": f"News &amp; {n}"}, "when": 1_717_600_000 + n, "kind": kind}
            for n in numbers
            for kind in ["video" if n == 3 else "text"]
        ]
        return json.dumps({"data": {"posts": posts, "count": 5}})

    answers = {"/api/0/2": answer(1, 2), "/api/2/2": answer(3, 4), "/api/4/2": answer(5), "/api/6/2": answer(6)}
    with Site(extra={**answers, **{f"/story/{n}": story(n) for n in range(1, 7)}}) as site:
        listing = {
            "type": "api",
            "pagination_type": "offset",
            "offset_step": 2,
            "url_template": "/api/{offset}/{size}",
            "exclude": "/story/2$",
            "json_paths": {
                "collection": "data.posts",
                "total": "data.count",
                "url": "link",
                "title": "title.rendered",
                "date": "when",
                "fields": {"kind": "kind"},
            },
        }
        (project.folder / "own.py").write_text("def is_text(record):\n    return record['kind'] == 'text'\n")
        cleaning = {"record_filter": ["has_date", "own:is_text"], "title": "plain_text"}
        selectors = {"article": SELECTORS["article"]}
        project.shoal("run", write_paper(project.folder, site.url, listing, cleaning=cleaning, selectors=selectors))
        records = by_url(project.export())
    assert paths(site, "/api/") == ["/api/0/2", "/api/2/2", "/api/4/2"], "the site says that there are five"
    assert sorted(records) == ["1", "4", "5"]
    assert (records["1"]["title"], records["1"]["date"]) == ("News & 1", "2024-06-05")
    assert "kind" not in records["1"]
    assert "/story/2" not in paths(site, "/story/"), "what is excluded is not even fetched"


def test_the_end_of_the_process_reports_no_leaks(project: Project) -> None:
    """An object of the URL parser that lives until then makes it print twenty lines."""
    with Site(extra=paged(1)) as site:
        paper = write_paper(project.folder, site.url, PAGES)
        assert "leaked" not in project.shoal("run", paper).stderr
        assert "leaked" not in project.shoal("run", "configs", "--all", "--dry-run").stderr


@pytest.mark.parametrize(("asked", "words"), [(False, ""), (True, "tags is empty in 20 of 20 records")])
def test_only_fields_that_the_file_asks_for_are_warned_of(project: Project, asked: bool, words: str) -> None:
    article = {**SELECTORS["article"], "tags": ".tag"} if asked else {"body": ".text p"}
    with Site(extra=paged(2, each=10)) as site:
        paper = write_paper(project.folder, site.url, PAGES, selectors={**SELECTORS, "article": article})
        done = project.shoal("run", paper)
    assert ("is empty in" in done.stderr) is asked
    assert words in done.stderr


def test_an_interrupted_listing_continues_at_its_page(project: Project) -> None:
    with Site(extra=paged(4)) as site:
        paper = write_paper(project.folder, site.url, PAGES)
        project.shoal("run", paper, "--limit", "3")
        project.shoal("run", paper)
        assert len(project.export()) == 8
    visited = paths(site, "/news/") + paths(site, "/story/")
    assert len(visited) == len(set(visited)), "nothing is fetched twice"


def test_robots_txt_the_rate_limit_and_the_login_are_respected(project: Project) -> None:
    robots = "User-agent: *\nDisallow: /story/2\n"
    with Site(extra={"/story/9": story(9)}) as elsewhere:
        away = cards([4]).replace(
            "<ul>", f'<ul><li class="card"><h2><a href="{elsewhere.url}/story/9">Away</a></h2></li>'
        )
        with Site(extra={**paged(2), "/news/2": away}, robots=robots) as site:
            paper = write_paper(
                project.folder,
                site.url,
                PAGES,
                rate_limit=0.25,
                headers={"Accept-Language": "fj"},
                auth={"type": "basic", "user_variable": "PAPER_USER", "password_variable": "PAPER_WORD"},
            )
            project.shoal("run", paper, PAPER_USER="reader", PAPER_WORD="open sesame")
            assert sorted(by_url(project.export())) == ["1", "4", "9"]
    assert "/story/2" not in paths(site, "/story/")
    assert closest_starts(site.visits()) >= 0.1, "a busy machine may shorten a gap, not by so much"
    [own] = [visit for visit in site.visits() if visit.path == "/story/1"]
    [other] = [visit for visit in elsewhere.visits() if visit.path == "/story/9"]
    assert base64.b64decode(own.headers["authorization"].removeprefix("Basic ")) == b"reader:open sesame"
    assert own.headers["accept-language"] == other.headers["accept-language"] == "fj"
    assert "authorization" not in other.headers, "another host's business is not ours to log in to"
    assert "open sesame" not in (project.folder / "ledger.db").read_bytes().decode("latin-1")


def test_try_shows_the_output_of_one_page(project: Project) -> None:
    with Site(extra=paged(2)) as site:
        paper = write_paper(project.folder, site.url, PAGES)
        listing = project.shoal("try", paper, f"{site.url}/news/2", "--json")
        lines = [json.loads(line) for line in listing.stdout.splitlines()]
        items = [line["url"] for line in lines if line["kind"] == "item"]
        assert items == [f"{site.url}/story/3", f"{site.url}/story/4"], "a page tried alone leads to no next page"
        article = project.shoal("try", f"{paper}:article", f"{site.url}/story/3")
        assert json.loads(article.stdout)["body"].startswith("Story 3 begins.")


@pytest.mark.parametrize(
    ("page", "warning"),
    [
        ("<p>Nothing</p>", 'why="no element matches selectors.thumbnail.container: check selectors.thumbnail"'),
        ("<li class=card>x", 'why="selectors.thumbnail.url finds no link in 1 containers"'),
        (cards([1, 2], day=""), 'why="check selectors.thumbnail.date"'),
        (
            "<li class=card><h2><a href=/story/1></a></h2><i>5 June 2024</i>",
            'why="check selectors.thumbnail.title"',
        ),
    ],
)
def test_try_says_what_the_selectors_do_not_find(project: Project, page: str, warning: str) -> None:
    article = {"body": ".text p"}
    with Site(extra={"/news/1": page}) as site:
        paper = write_paper(project.folder, site.url, PAGES, selectors={**SELECTORS, "article": article})
        assert warning in project.shoal("try", paper, f"{site.url}/news/1").stderr


def test_try_of_an_article_warns_only_of_what_its_page_should_have(project: Project) -> None:
    article = {"body": ".text p", "date": "time::attr(datetime)"}
    with Site(extra={"/story/1": story(1), "/story/2": story(2, day="2024-06-05")}) as site:
        paper = write_paper(project.folder, site.url, PAGES, selectors={**SELECTORS, "article": article})
        tried = project.shoal("try", f"{paper}:article", f"{site.url}/story/1").stderr
        assert 'why="check selectors.article.date"' in tried
        assert "title of an article comes from the listing" in tried
        assert "shoal try --payload" in tried
        assert "article without" not in project.shoal("try", f"{paper}:article", f"{site.url}/story/2").stderr
        given = ("--payload", '{"date": "2024-06-05"}')
        tried = project.shoal("try", f"{paper}:article", f"{site.url}/story/2", *given).stderr
        assert 'why="check selectors.thumbnail.title"' in tried


def test_try_shows_what_earlier_runs_have(project: Project) -> None:
    with ChangingSite(paged(2)) as site:
        paper = write_paper(project.folder, site.url, {"type": "pagination", "url_template": "/news/{num}"})
        project.shoal("run", paper, "-o", "data/")
        tried = project.shoal("try", paper, f"{site.url}/news/1")
    assert "/story/1" in tried.stderr
    assert "/story/2" in tried.stderr


def test_try_says_which_excluded_field_no_article_has(project: Project) -> None:
    with Site(extra={"/api/1": json.dumps({"posts": [{"url": "/story/1"}]})}) as site:
        listing = {
            "type": "api",
            "pagination_type": "page",
            "url_template": "/api/{page}",
            "exclude": {"sction": "video"},
            "json_paths": {"collection": "posts", "url": "url"},
        }
        paper = write_paper(project.folder, site.url, listing, selectors={"article": {"body": ".text p"}})
        tried = project.shoal("try", paper, f"{site.url}/api/1")
    assert "no article of the page has sction, which exclude names" in tried.stderr
    assert 'why="check json_paths.date"' in tried.stderr


@pytest.mark.parametrize(
    ("template", "more", "why"),
    [
        ("/story/{id}-{slug}", {"slug": "meta.slug"}, "no article has {slug} of url_construction_template"),
        (None, {"url": "link"}, "json_paths.url finds nothing in 1 articles"),
        (None, {"url": "link", "collection": "items"}, "json_paths.collection is empty"),
    ],
)
def test_what_an_api_lacks_is_named(project: Project, template: str | None, more: dict[str, str], why: str) -> None:
    with Site(extra={"/api/1": json.dumps({"posts": [{"id": 7}]})}) as site:
        listing = {
            "type": "api",
            "pagination_type": "page",
            "url_template": "/api/{page}",
            "json_paths": {"collection": "posts", "id": "id", **more},
            **({"url_construction_template": template} if template else {}),
        }
        paper = write_paper(project.folder, site.url, listing, selectors={"article": {"body": ".text p"}})
        assert f'why="{why}: check json_paths"' in project.shoal("try", paper, f"{site.url}/api/1").stderr
        ran = project.shoal("run", paper, code=1).stderr
    assert (why in ran) == bool(template)


def test_a_file_that_is_no_list_of_articles_is_said_at_once(project: Project) -> None:
    with Site(extra=paged(1)) as site:
        paper = write_paper(project.folder, site.url, PAGES)
        folder = project.folder / "data/fiji/times"
        folder.mkdir(parents=True)
        (folder / "news_old.csv").write_text("link,title\n")
        project.shoal("run", paper, code=1)
        (dead,) = [item for item in project.items() if item.state == "dead"]
        assert (dead.outcome, dead.tries) == ("permanent", 1)
        assert (dead.error or "").endswith("news_old.csv has no column url. Move it away, or take it out of known.")


async def test_a_failed_request_waits_at_least_retry_seconds(tmp_path: Path) -> None:
    class Failing:
        async def get(self, url: str, **options: Any) -> Page:
            raise Transient("reset", retry_after=1.0)

    file = write_paper(tmp_path, "https://paper.example", PAGES, retry_seconds=7)
    client = NewspaperContext(read_yaml_header(tmp_path / file)).client
    with pytest.raises(Transient) as ended:
        await client.get(cast("Http", Failing()), "https://paper.example/news/1")
    assert ended.value.retry_after == 7
