"""An update fetches only what is new: what earlier runs stored, or files have, is known by itself."""

from __future__ import annotations

import csv
import itertools
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from shoal.recipes.newspapers import files
from shoal.storage.targets import Target, open_target
from tests.support.newspapers import SELECTORS, ChangingSite, cards, paged, story, write_paper
from tests.support.project import Command, Project

PAGES = {"type": "pagination", "url_template": "/news/{num}", "batch_size": 2}


def news(folder: Path, name: str = "news.csv") -> list[dict[str, str]]:
    with (folder / name).open(newline="") as lines:
        return list(csv.DictReader(lines))


def test_a_second_run_fetches_only_what_is_new(either: Project) -> None:  # S2.7
    old, new = paged(6), {"/news/1": cards([20, 1, 2]), "/story/20": story(20)}
    with ChangingSite(old) as site:
        paper = write_paper(either.folder, site.url, PAGES)
        either.shoal("run", paper)
        site.pages |= new
        site.asked.clear()
        either.shoal("run", paper)
        assert site.stories() == ["20"]
        assert site.listed() == [f"/news/{n}" for n in (1, 2, 3, 4)], "3 and 4 are known as a whole"
        either.shoal("run", paper)
        assert site.stories() == ["20"], "nothing was new"
        assert either.counts().results == 0
        either.shoal("run", paper, "--from-scratch")
        assert len(site.stories()) == 1 + 13
    assert either.is_sound()


def test_filtered_articles_are_neither_new_nor_fetched_again(project: Project) -> None:
    """Page by page: 1 and 2 are kept, 3 is dropped by its text, 4 by its URL."""
    (project.folder / "configs").mkdir()
    (project.folder / "configs/cleaning.py").write_text(
        "def no_ads(record):\n    return 'advert' not in record['body']\n"
    )
    pages = {"/news/1": cards([1, 2]), "/news/2": cards([3, 4]), "/news/3": cards([5]), "/news/4": cards([])}
    texts = {**{f"/story/{n}": story(n) for n in (1, 2, 4, 5)}, "/story/3": story(3, body="<p>An advert.</p>")}
    with ChangingSite({**pages, **texts}) as site:
        listing = {**PAGES, "exclude": "/story/4"}
        paper = write_paper(project.folder, site.url, listing, cleaning={"record_filter": "no_ads"})
        project.shoal("run", paper)
        assert project.counts().skipped == 1
        assert site.stories() == ["1", "2", "3", "5"]
        project.shoal("run", paper)
        assert site.stories() == ["1", "2", "3", "5"]
        assert project.counts().total == 2, "the first batch is known, without its dropped articles"
        assert site.listed()[-2:] == ["/news/1", "/news/2"]
        site.asked.clear()
        for ledger in ("second.db", "third.db"):
            project.shoal("run", paper, "-o", "data/", "--ledger", str(project.folder / ledger))
            assert site.stories() == ["1", "2", "3", "5"], "by data/ alone too"
        assert [row["url"][-1] for row in news(project.folder / "data/fiji/times", "dropped.csv")] == ["3"]


def test_a_listing_that_was_not_read_to_its_end_is_read_on(project: Project) -> None:
    """After limits, and after an outage; known articles are not fetched again."""
    with ChangingSite(paged(8)) as site:
        project.shoal("run", write_paper(project.folder, site.url, PAGES, max_articles=5))
        project.shoal("run", write_paper(project.folder, site.url, PAGES, max_pages=4))
        assert site.stories() == [str(n) for n in range(1, 9)]
        paper = write_paper(project.folder, site.url, PAGES, retries=0)
        site.errors = {"/news/5": 503, "/news/6": 503}
        project.shoal("run", paper, "--set", "max_dead=0", code=1)
        assert len(site.stories()) == 8, "an outage ended it"
        site.errors = {}
        project.shoal("run", paper)
        assert site.stories() == sorted(str(n) for n in range(1, 17))
        site.asked.clear()
        project.shoal("run", paper)
    assert site.asked == ["/robots.txt", "/news/1", "/news/2"], "all has been read behind the newest articles"


def test_the_end_of_a_listing_may_be_a_refused_request(project: Project) -> None:
    """As APIs answer behind their last page. In the middle such a page is a failure, and so is the first one."""
    with ChangingSite(paged(5), dict.fromkeys([f"/news/{n}" for n in range(6, 10)], 400)) as site:
        paper = write_paper(project.folder, site.url, PAGES)
        project.shoal("run", paper, "--max-dead", "0")
        assert len(site.stories()) == 10
        site.asked.clear()
        project.shoal("run", paper, "--max-dead", "0")
        assert site.listed() == ["/news/1", "/news/2"], "the first run has read the listing to its end"
        site.errors["/news/2"] = 422
        project.shoal("run", paper, "--max-dead", "0", "--from-scratch", code=1)
        assert len(site.stories()) == 8
        site.errors["/news/1"] = 400
        project.shoal("run", paper, "--max-dead", "0", code=1)


def test_an_article_that_failed_is_tried_again_by_the_next_runs(either: Project) -> None:
    """Also when its listing page is not read again; a permanent error stays."""
    with ChangingSite(paged(6), {"/story/9": 503, "/story/11": 410}) as site:
        paper = write_paper(either.folder, site.url, PAGES, retries=0)
        either.shoal("run", paper, "--set", "max_dead=2")
        for _ in range(2):
            site.asked.clear()
            either.shoal("run", paper, "--set", "max_dead=1", code=1)  # nothing else was found
            assert site.stories() == ["9"]
            assert site.listed() == ["/news/1", "/news/2"]
        site.errors = {}
        either.shoal("run", paper)
        assert [record["url"][-1] for record in either.export()] == ["9"]
        site.asked.clear()
        either.shoal("run", paper)
        assert site.stories() == []


def test_an_article_that_failed_is_tried_again_behind_a_run_of_a_period(either: Project) -> None:
    """A run with --since tries none again; the next one without it does."""
    with ChangingSite(paged(6), {"/story/9": 503}) as site:
        paper = write_paper(either.folder, site.url, PAGES, retries=0)
        either.shoal("run", paper, "-o", "data/")
        site.errors = {}
        site.asked.clear()
        for _ in range(2):
            either.shoal("run", paper, "--since", "2024-06-20", "-o", "data/")
        assert site.stories() == []
        either.shoal("run", paper, "-o", "data/")
        assert site.stories() == ["9"]
    folder = either.folder / "data/fiji/times"
    assert len(news(folder)) == 12
    assert not list(folder.glob("failed_*"))


def test_the_files_are_enough_to_try_an_article_again(project: Project) -> None:
    """As in a job whose ledger is new each time: with all that its listing said, and up to five times."""
    ledgers = (str(project.folder / f"{number}.db") for number in itertools.count())
    posts = {"posts": [{"id": n, "kind": "text", "t": f"T{n}", "d": "2024-06-05"} for n in (1, 2)]}
    pages = {"/api/1": json.dumps(posts), "/api/2": '{"posts": []}', **{f"/story/{n}": story(n) for n in (1, 2)}}
    listing = {
        "type": "api",
        "pagination_type": "page",
        "url_template": "/api/{page}",
        "batch_size": 1,
        "url_construction_template": "/story/{id}",
        "json_paths": {"collection": "posts", "title": "t", "date": "d", "kind": "kind", "fields": {"id": "id"}},
    }
    with ChangingSite(pages, {"/story/2": 503}) as site:
        paper = write_paper(project.folder, site.url, listing, selectors={"article": SELECTORS["article"]}, retries=0)
        project.shoal("run", paper, "-o", "data/", "--max-dead", "1", "--ledger", next(ledgers))
        site.pages["/api/1"] = json.dumps({"posts": posts["posts"][:1]})
        for number in (1, 2):
            site.asked.clear()
            project.shoal("run", paper, "-o", "data/", "--max-dead", "1", "--ledger", next(ledgers), code=1)
            assert site.stories() == ["2"]
            (failed,) = (project.folder / "data/fiji/times").glob("failed_news_*.csv")
            (row,) = news(failed.parent, failed.name)
            assert json.loads(row["payload"])["failed_before"] == number
        site.errors = {}
        project.shoal("run", paper, "-o", "data/", "--ledger", next(ledgers))
        site.asked.clear()
        project.shoal("run", paper, "-o", "data/", "--ledger", next(ledgers))
        assert site.stories() == []
    assert [(row["url"][-1], row["kind"]) for row in news(failed.parent)] == [("1", "text"), ("2", "text")]
    assert not failed.exists()


def test_an_article_that_failed_permanently_is_reported_once(either: Project) -> None:
    """S2.12: near the top of the listing it makes no quiet day a failure; when the file changes it is tried again."""
    pages = {**paged(6), "/story/3": story(3, body=" ")}
    with ChangingSite(pages, {"/story/2": 404}) as site:
        paper = write_paper(either.folder, site.url, PAGES)
        either.shoal("run", paper, "--set", "max_dead=1", code=1)
        assert {item.url[-1] for item in either.items() if item.state == "dead" and item.url} == {"2", "3"}
        for _ in range(2):
            site.asked.clear()
            either.shoal("run", paper)
            assert (site.stories(), site.listed()) == ([], ["/news/1", "/news/2"]), "the batch is known as a whole"
        site.asked.clear()
        either.shoal("run", paper, "--from-scratch", "--set", "max_dead=2")
        assert {"2", "3"} < set(site.stories())
        site.asked.clear()
        either.shoal("run", write_paper(either.folder, site.url, PAGES, retries=0), code=1)
        assert site.stories() == ["2", "3"], "with other settings an article may be found"


def test_an_article_that_failed_permanently_is_known_by_the_files_alone(project: Project) -> None:
    """With a new ledger each time; what failed otherwise is fetched again, and after a change of the file all is."""
    with ChangingSite(paged(6), {"/story/2": 404, "/story/3": 503}) as site:
        paper = write_paper(project.folder, site.url, PAGES, retries=0)
        project.shoal("run", paper, "-o", "data/", "--set", "max_dead=2")
        site.errors = {"/story/2": 404}
        for ledger, asked in (("second.db", ["3"]), ("third.db", [])):
            site.asked.clear()
            project.shoal("run", paper, "-o", "data/", "--ledger", str(project.folder / ledger))
            assert site.stories() == asked
        paper = write_paper(project.folder, site.url, PAGES, retries=1)
        for ledger, code, asked in (("fourth.db", 1, ["2"]), ("fifth.db", 0, [])):
            site.asked.clear()
            project.shoal("run", paper, "-o", "data/", "--ledger", str(project.folder / ledger), code=code)
            assert site.stories() == asked
        assert [row["url"][-1] for row in news(project.folder / "data/fiji/times", "dropped.csv")] == ["2"]


def test_only_what_lies_before_the_end_of_an_earlier_run_is_read_on(project: Project) -> None:
    """A gap above it is closed without reading the whole listing again."""
    stories = {f"/story/{n}": story(n) for n in range(1, 41)}

    def newest(last: int) -> dict[str, str]:
        return {f"/news/{number // 2 + 1}": cards([last - number, last - number - 1]) for number in range(0, last, 2)}

    with ChangingSite(stories | newest(20)) as site:
        paper = write_paper(project.folder, site.url, PAGES)
        project.shoal("run", paper)
        site.pages |= newest(40)
        project.shoal("run", write_paper(project.folder, site.url, PAGES, max_pages=2))
        site.asked.clear()
        project.shoal("run", write_paper(project.folder, site.url, PAGES))
    assert site.stories() == sorted(str(n) for n in range(21, 37))
    assert site.listed() == [f"/news/{n}" for n in range(1, 13)]


def test_the_files_are_enough_for_an_update_with_a_new_ledger(project: Project) -> None:
    """As in a job that keeps `data/` only: what was read to its end is read no further."""
    with ChangingSite(paged(20)) as site:
        paper = write_paper(project.folder, site.url, PAGES)
        project.shoal("run", paper, "-o", "data/")
        assert len(site.listed()) >= 20
        for name in ("second.db", "third.db"):
            site.asked.clear()
            project.shoal("run", paper, "-o", "data/", "--ledger", str(project.folder / name))
            assert (site.stories(), site.listed()) == ([], ["/news/1", "/news/2"])


def test_a_listing_whose_articles_are_all_left_out_is_warned_of(project: Project) -> None:
    with ChangingSite(paged(3)) as site:
        paper = write_paper(project.folder, site.url, {**PAGES, "exclude": "/story/"})
        assert 'why="check listing.exclude, cleaning.url' in project.shoal("run", paper).stderr
        tried = project.shoal("try", paper, f"{site.url}/news/1")
    assert "every article of the page is left out" in tried.stderr + tried.stdout


def test_a_filter_that_sees_fields_of_the_api_runs_before_the_article_is_fetched(project: Project) -> None:
    (project.folder / "configs").mkdir()
    (project.folder / "configs/cleaning.py").write_text(
        "def is_text(record):\n    return record.get('kind') == 'text' and 'x' not in record['body']\n"
    )
    posts = [{"id": n, "kind": "video" if n == 2 else "text", "t": f"T{n}", "d": "2024-06-05"} for n in (1, 2, 3)]
    extra = {"/api/1": json.dumps({"posts": posts}), "/api/2": '{"posts": []}', "/api/3": '{"posts": []}'}
    with ChangingSite({**extra, **{f"/story/{n}": story(n) for n in (1, 2, 3)}}) as site:
        listing = {
            "type": "api",
            "pagination_type": "page",
            "url_template": "/api/{page}",
            "batch_size": 1,
            "url_construction_template": "/story/{id}",
            "json_paths": {"collection": "posts", "title": "t", "date": "d", "kind": "kind", "fields": {"id": "id"}},
        }
        selectors = {"article": SELECTORS["article"]}
        cleaning = {"record_filter": "is_text"}
        project.shoal("run", write_paper(project.folder, site.url, listing, selectors=selectors, cleaning=cleaning))
        assert site.stories() == ["1", "3"]
        assert [record["kind"] for record in project.export()] == ["text", "text"]


def test_files_of_earlier_runs_are_known(project: Project) -> None:
    with ChangingSite(paged(6)) as site:
        paper = write_paper(project.folder, site.url, PAGES)
        folder = project.folder / "data/fiji/times"
        folder.mkdir(parents=True)
        known = [f"{site.url}/story/{n}" for n in range(2, 13)]
        (folder / "news.csv").write_text("url,title\n" + "".join(f"{url},x\n" for url in known))
        (folder / "failed_news_20240101.csv").write_text(f"url,error\n{site.url}/story/1,404\n")
        project.shoal("run", paper, "-o", "data/")
        assert site.stories() == ["1"]
        assert [row["url"] for row in news(folder)] == [*known, f"{site.url}/story/1"]


def test_the_files_of_a_newspaper(project: Project) -> None:
    """urls.csv and news.csv grow; what failed is in files of the day."""
    extra = paged(2)
    del extra["/story/3"]
    with ChangingSite(extra) as site:
        paper = write_paper(project.folder, site.url, PAGES)
        done = project.shoal("run", paper, "-o", "out/", "--max-dead", "100%")
        check_first_files(project, done)
        site.pages |= paged(2)
        site.asked.clear()
        project.shoal("run", write_paper(project.folder, site.url, PAGES, retries=2), "-o", "out/")
        assert site.stories() == ["3"], "what failed is tried again with other settings"
    folder = project.folder / "out/fiji/times"
    assert sorted(row["url"][-1] for row in news(folder)) == ["1", "2", "3", "4"]
    assert not list(folder.glob("failed_*"))


def check_first_files(project: Project, done: Command) -> None:
    folder = project.folder / "out/fiji/times"
    assert "3 new records in out/fiji/times/." in done.stderr
    assert [row["url"][-1] for row in news(folder)] == ["1", "2", "4"]
    assert news(folder)[0]["body"] == "Story 1 begins. It ends here."
    assert [row["url"][-1] for row in news(folder, "urls.csv")] == ["1", "2", "3", "4"]
    (failed,) = folder.glob("failed_news_*.csv")
    assert [(row["url"][-1], "404" in row["error"]) for row in news(folder, failed.name)] == [("3", True)]
    facts = json.loads((folder / "metadata.json").read_text())
    assert (facts["new_articles"], facts["failed_articles"]) == (3, 1)


def test_a_listing_page_that_succeeds_later_is_no_failure_of_the_day(project: Project) -> None:
    with ChangingSite(paged(3), {"/news/2": 503}) as site:
        paper = write_paper(project.folder, site.url, PAGES, retries=0)
        project.shoal("run", paper, "-o", "out/", "--set", "max_dead=50%")
        folder = project.folder / "out/fiji/times"
        (failed,) = folder.glob("failed_urls_*.csv")
        assert [row["url"][-1] for row in news(folder, failed.name)] == ["2"]
        site.errors = {}
        project.shoal("run", paper, "-o", "out/")
    assert not list(folder.glob("failed_*"))
    assert sorted(row["url"][-1] for row in news(folder)) == ["1", "2", "3", "4", "5", "6"]


def test_a_new_folder_gets_what_the_ledger_has(either: Project) -> None:
    """Of all runs, the newest record of each article; of a period only its days."""
    pages = {f"/news/{n}": cards([n], day=f"2024-06-{20 - n:02d}") for n in range(1, 5)}
    stories = {f"/story/{n}": story(n, day=f"2024-06-{20 - n:02d}") for n in range(1, 5)}
    with ChangingSite({**pages, **stories}) as site:
        paper = write_paper(either.folder, site.url, PAGES)
        either.shoal("run", write_paper(either.folder, site.url, PAGES, max_articles=2))
        either.shoal("run", write_paper(either.folder, site.url, PAGES))
        site.pages["/story/4"] = story(4, day="2024-06-16", body="<p>Corrected.</p>")
        either.shoal("run", paper, "--from-scratch")
        site.asked.clear()
        done = either.shoal("run", paper, "-o", "data/")
        assert "4 new records in data/fiji/times/." in done.stderr
        either.shoal("run", paper, "-o", "some/", "--since", "2024-06-16", "--until", "2024-06-18")
        assert site.stories() == []
        assert "0 new records" in either.shoal("run", paper, "-o", "data/").stderr
    rows = {row["url"][-1]: row["body"] for row in news(either.folder / "data/fiji/times")}
    assert sorted(rows) == ["1", "2", "3", "4"]
    assert rows["4"] == "Corrected."
    assert sorted(row["url"][-1] for row in news(either.folder / "some/fiji/times")) == ["2", "3", "4"]


def test_from_scratch_replaces_what_the_files_have(project: Project) -> None:
    with ChangingSite(paged(2)) as site:
        paper = write_paper(project.folder, site.url, PAGES)
        project.shoal("run", paper, "-o", "out/")
        site.pages["/story/2"] = story(2, body="<p>Corrected.</p>")
        del site.pages["/news/2"]
        project.shoal("run", paper, "-o", "out/", "--from-scratch")
    rows = {row["url"][-1]: row["body"] for row in news(project.folder / "out/fiji/times")}
    assert sorted(rows) == ["1", "2", "3", "4"], "each once, also those that are no longer listed"
    assert rows["2"] == "Corrected."


async def test_a_file_is_written_once_for_all_pages_of_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, opened = tmp_path / "news.csv", list[str]()

    async def pages() -> AsyncIterator[list[files.Row]]:
        for number in range(5):
            yield [{"url": f"/{number}", "body": "x", f"further_{number}": number}]

    def counted(path: str) -> Target:
        opened.append(path)
        return open_target(path)

    monkeypatch.setattr(files, "open_target", counted)
    assert await files._add_rows(file, ("url", "body"), pages, replace=False) == 5
    assert await files._add_rows(file, ("url", "body"), pages, replace=False) == 0
    assert opened == [str(file)]
    assert [row["url"] for row in news(tmp_path)] == [f"/{number}" for number in range(5)]
    assert news(tmp_path)[4]["further_4"] == "4"


def archive(**more: Any) -> dict[str, Any]:
    listing = {"type": "archive", "url_template": "/{year}/{month}/{day}", "start_date": "2000-01-01"}
    return {**listing, "end_date": "2024-02-10", "batch_size": 2, **more}


def test_one_month_of_a_long_archive(project: Project) -> None:
    days = {"/2024/01/20": cards([1]), "/2024/01/05": cards([2]), "/2024/02/01": cards([3]), "/2023/12/31": cards([4])}
    with ChangingSite({**days, **{f"/story/{n}": story(n) for n in range(1, 5)}}) as site:
        paper = write_paper(project.folder, site.url, archive())
        project.shoal("run", paper, "--since", "2024-01-01", "--until", "2024-01-31")
        assert site.stories() == ["1", "2"], "days without articles do not end an archive"
        assert len(site.listed()) == 31
        quiet = project.shoal("run", paper, "--since", "2024-01-08", "--until", "2024-01-09", "--fresh")
        assert "0 records" in quiet.stdout + quiet.stderr
        refused = project.shoal("run", paper, "--since", "2024-02-01", "--until", "2024-01-31", "--fresh", code=2)
        assert "until is 2024-01-31, which is before since" in refused.stderr
        assert (
            "since is 2024-02-31, which is no day."
            in project.shoal("run", paper, "--since", "2024-02-31", code=2).stderr
        )


def test_a_quiet_period_of_an_archive_is_a_success(project: Project) -> None:
    """Whether its empty days have a page or none; no selector is blamed as soon as articles are known."""
    with ChangingSite({"/2024/01/20": cards([]), "/2024/01/19": cards([1]), "/story/1": story(1)}) as site:
        paper = write_paper(project.folder, site.url, archive())
        first = project.shoal("run", paper, "--since", "2024-01-20", "--until", "2024-01-21", "-o", "data/")
        assert 'why="it was quiet, or check selectors.thumbnail"' in first.stderr
        project.shoal("run", paper, "--since", "2024-01-19", "--until", "2024-01-21", "-o", "data/")
        later = project.shoal("run", paper, "--since", "2024-01-20", "--until", "2024-01-21", "-o", "data/")
        assert "selectors" not in later.stderr
    assert len(news(project.folder / "data/fiji/times")) == 1


def test_a_period_of_numbered_pages_ends_with_older_articles(project: Project) -> None:
    pages = {f"/news/{n}": cards([n], day=f"2024-06-{20 - n:02d}") for n in range(1, 12)}
    with ChangingSite({**pages, **{f"/story/{n}": story(n) for n in range(1, 12)}}) as site:
        paper = write_paper(project.folder, site.url, PAGES)
        project.shoal("run", paper, "--since", "2024-06-15", "--until", "2024-06-17")
        assert site.stories() == ["3", "4", "5"]
        assert len(site.listed()) == 8, "a whole batch is older"


class FailsOnce(dict[str, int]):
    """The errors of a site whose pages fail the first time only."""

    def get(self, path: str, default: Any = None) -> Any:
        return self.pop(path, default)


def test_a_listing_page_that_is_read_again_keeps_its_period(project: Project) -> None:
    pages = {f"/news/{n}": cards([n], day=f"2024-06-{20 - n:02d}") for n in range(1, 12)}
    with ChangingSite({**pages, **{f"/story/{n}": story(n) for n in range(1, 12)}}) as site:
        paper = write_paper(project.folder, site.url, PAGES, retries=0)
        for asked, read in ((("--since", "2024-06-15"), 5), (("--from-scratch",), 11)):
            site.errors = FailsOnce({"/news/6": 503})
            site.asked.clear()
            project.shoal("run", paper, *asked)
            assert len(site.stories()) == read
            assert site.listed().count("/news/6") == 2


def test_a_period_without_dates_in_the_listing_goes_by_the_pages(project: Project) -> None:
    """What is outside is not stored; later runs fetch it, and what was stored is known."""
    pages = {f"/news/{n}": cards([n], day="") for n in range(1, 4)}
    stories = {f"/story/{n}": story(n, day=f"2024-06-{20 - n:02d}") for n in range(1, 4)}
    with ChangingSite({**pages, **stories}) as site:
        paper = write_paper(project.folder, site.url, PAGES)
        for _ in range(2):
            project.shoal("run", paper, "--since", "2024-06-18", "--until", "2024-06-18", "--fresh", "-o", "data/")
            assert site.stories() == ["1", "2", "3"], "the second time nothing is fetched"
            assert [row["url"][-1] for row in news(project.folder / "data/fiji/times")] == ["2"]
        project.shoal("run", paper, "--fresh")
        assert site.stories() == ["1", "1", "2", "3", "3"]
    assert sorted(record["url"][-1] for record in project.export()) == ["1", "3"]


def test_a_redesign_is_a_failure_also_of_a_period(project: Project) -> None:
    with ChangingSite({f"/news/{n}": "<p>Nothing</p>" for n in range(1, 4)}) as site:
        paper = write_paper(project.folder, site.url, PAGES)
        project.shoal("run", paper, "--since", "2024-06-18", code=1)
    assert "check selectors.thumbnail" in (project.items()[-1].error or "")
