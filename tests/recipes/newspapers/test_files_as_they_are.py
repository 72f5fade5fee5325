"""What existing files use: functions by bare name, fields of APIs, classes with a space, dates of other languages."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import pytest

from shoal.config.settings import BROWSER_USER_AGENT
from shoal.define.yaml_scraper import read_yaml_header
from shoal.errors import InvalidScraper, Permanent, Skipped
from shoal.fetch.page import Page
from shoal.recipes.newspapers.client import NewspaperClient
from shoal.recipes.newspapers.dates import read_day
from shoal.recipes.newspapers.json_paths import json_at
from shoal.recipes.newspapers.kind import NewspaperContext
from shoal.recipes.newspapers.paging import Paging
from shoal.recipes.newspapers.selectors import class_reading
from tests.support.newspapers import SELECTORS, cards, story, write_paper

URL = "https://paper.example"
PAGES = {"type": "pagination", "url_template": "/news/{num}"}
API: dict[str, Any] = {"type": "api", "pagination_type": "page", "url_template": "/api/{page}"}


def context(folder: Path, listing: dict[str, Any] = PAGES, **more: Any) -> NewspaperContext:
    file = write_paper(folder, URL, listing, **more)
    return NewspaperContext(read_yaml_header(folder / file, folder))


def api(folder: Path, posts: list[dict[str, Any]], paths: dict[str, Any], **more: Any) -> Any:
    """The listing page of an API with these posts."""
    listing = {**API, **more.pop("listing", {}), "json_paths": {"collection": "posts", **paths}}
    paper = context(folder, listing, **more)
    return paper, paper.reader.listing(Page.of(f"{URL}/api/1", json.dumps({"posts": posts})))


@pytest.mark.parametrize("place", ["configs/fiji", "configs", "."])
def test_cleaning_functions_by_bare_name(tmp_path: Path, place: str) -> None:
    folder = tmp_path / place
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cleaning.py").write_text("def cut(body):\n    assert '\\n' not in body\n    return body[:7]\n")
    paper = context(tmp_path, cleaning={"body": "cut", "content": "anything", "title": "one_line"})
    page = Page.of(f"{URL}/story/1", story(1))
    assert paper.reader.article(page, f"{URL}/story/1", {})["body"] == "Story 1"
    assert [file.name for file in paper.cleaner.files] == ["cleaning.py"], "a change of it is a change of the code"


@pytest.mark.parametrize(
    ("code", "field", "words"),
    [
        ("return 7", "title", "cleaning.title: own returned int; it must return a text"),
        ("return 'a, b'", "tags", "cleaning.tags: own returned str; it must return a list of texts"),
        ("return [1]", "tags", "it must return a list of texts"),
        ("return None if value else ''", "url", "cleaning.url: own returned NoneType; it must return a text"),
        ("return value['x']", "body", "cleaning.body: own failed with TypeError"),
        ("return '/x'", "url", "cleaning.url: own returned '/x'; it must return an absolute URL"),
        ("return ''", "url", "cleaning.url: own returned ''; it must return an absolute URL"),
        ("return wait(value)", "title", "cleaning.title: own is asynchronous; write a plain function"),
    ],
)
def test_the_result_of_a_cleaning_function_is_checked(tmp_path: Path, code: str, field: str, words: str) -> None:
    (tmp_path / "cleaning.py").write_text(f"async def wait(value):\n    return value\n\ndef own(value):\n    {code}\n")
    cleaner = context(tmp_path, cleaning={field: "own"}).cleaner
    given = {"tags": ["a"], "url": f"{URL}/story/1"}
    with pytest.raises(Permanent, match="cleaning") as ended:
        cleaner.clean(field, given.get(field, "text"))
    assert words in str(ended.value)


def test_an_article_whose_url_a_function_spoils_ends_with_that_reason(tmp_path: Path) -> None:
    (tmp_path / "cleaning.py").write_text("def own(url):\n    return url.partition('.example')[2] or url\n")
    paper = context(tmp_path, cleaning={"url": "own"})
    page = cards([1]).replace("</ul>", '<li class="card"><h2><a href="mailto:us@paper.test">Write</a></h2></li></ul>')
    (entry,) = paper.reader.listing(Page.of(f"{URL}/news/1", page)).entries
    assert entry.url == f"{URL}/story/1"
    assert entry.failure == "cleaning.url: own returned '/story/1'; it must return an absolute URL"


@pytest.mark.parametrize("field", ["record_filter", "title"])
@pytest.mark.parametrize("code", ["async def own(value):\n    return value", "def own(value):\n    yield value"])
def test_an_asynchronous_function_is_a_mistake_of_the_file(tmp_path: Path, code: str, field: str) -> None:
    """As a filter it would keep every article: what it returns is true."""
    (tmp_path / "cleaning.py").write_text(code + "\n")
    with pytest.raises(InvalidScraper, match=f"cleaning.{field}: own is asynchronous, or a generator") as refused:
        context(tmp_path, cleaning={field: "own"})
    assert refused.value.remedy == "Write a plain function that returns a value."


def test_a_filter_that_returns_a_coroutine_keeps_nothing(tmp_path: Path) -> None:
    (tmp_path / "cleaning.py").write_text(
        "async def wait(record):\n    return False\n\ndef own(record):\n    return wait(record)\n"
    )
    paper = context(tmp_path, cleaning={"record_filter": "own"})
    (entry,) = paper.reader.listing(Page.of(f"{URL}/news/1", cards([1]))).entries
    with pytest.raises(Permanent, match=r"cleaning\.record_filter: own is asynchronous; write a plain function"):
        paper.reader.article(Page.of(entry.url, story(1)), entry.url, entry.payload())


@pytest.mark.parametrize("field", ["record_filter", "url", "title"])
def test_a_function_that_returns_nothing_is_a_mistake_of_the_file(tmp_path: Path, field: str) -> None:
    """A filter would drop every article, and a title be empty in every record."""
    (tmp_path / "cleaning.py").write_text("def own(value):\n    bool(value)\n")
    with pytest.raises(InvalidScraper, match=f"cleaning.{field}: own never returns a value"):
        context(tmp_path, cleaning={field: "own"})


@pytest.mark.parametrize(("code", "kept"), [("record['title']", 2), ("re.search('Story 1', record['title'])", 1)])
def test_what_a_filter_returns_counts_as_true_or_false(tmp_path: Path, code: str, kept: int) -> None:
    (tmp_path / "cleaning.py").write_text(f"import re\ndef own(record):\n    return {code}\n")
    paper = context(tmp_path, cleaning={"record_filter": "own"})
    assert len(paper.reader.listing(Page.of(f"{URL}/news/1", cards([1, 2]))).entries) == kept


@pytest.mark.parametrize(
    "code", ["from other import own", "def cut(body): return body\nown = cut", "import other as own"]
)
def test_bare_names_are_found_however_they_are_defined(tmp_path: Path, code: str) -> None:
    (tmp_path / "other.py").write_text("def own(body):\n    return 'Mine'\n")
    (tmp_path / "cleaning.py").write_text(f"{code}\n")
    if code.startswith("import"):
        with pytest.raises(InvalidScraper, match="own is no function"):
            context(tmp_path, cleaning={"body": "own"})
    else:
        assert context(tmp_path, cleaning={"body": "own"}).cleaner.files


def test_a_bare_name_is_not_the_beginning_of_another(tmp_path: Path) -> None:
    (tmp_path / "cleaning.py").write_text("def one_line_of_ours(text):\n    return 'wrong'\n\n# def plain_text\n")
    cleaner = context(tmp_path, cleaning={"title": "one_line", "body": "plain_text"}).cleaner
    assert (cleaner.clean("title", "a\nb"), cleaner.clean("body", "<b>a</b>")) == ("a b", "a")


def test_a_date_may_be_a_date(tmp_path: Path) -> None:
    (tmp_path / "cleaning.py").write_text(
        "import datetime\n\ndef own(text):\n    return datetime.datetime.strptime(text, '%d|%m|%Y')\n"
    )
    assert context(tmp_path, cleaning={"date": "own"}).cleaner.day("05|06|2024") == "2024-06-05"


def test_further_keys_of_json_paths_are_fields(tmp_path: Path) -> None:
    posts = [{"id": 7, "t": "A", "s": {"name": "local"}, "rating": 4.5, "cats": [{"n": "Sea"}, {"n": "Reef"}]}]
    paths = {"title": "t", "section": "s.name", "rating": "rating", "tags": "cats.n", "fields": {"id": "id"}}
    paper, page = api(tmp_path, posts, paths, listing={"url_construction_template": "/story/{id}"})
    (entry,) = page.entries
    assert (entry.url, entry.title) == (f"{URL}/story/7", "A")
    record = paper.reader.article(Page.of(entry.url, story(7)), entry.url, entry.payload())
    assert (record["section"], record["rating"], record["tags"]) == ("local", 4.5, ["Sea", "Reef"])
    assert "id" not in record


def test_values_may_be_in_lists_of_lists(tmp_path: Path) -> None:
    posts = [{"url": [["/story/1"]], "cats": [["Sea", "Reef"], ["Fish"]]}]
    _, page = api(tmp_path, posts, {"url": "url", "tags": "cats[*]"})
    assert (page.urls, page.entries[0].tags) == ((f"{URL}/story/1",), ("Sea", "Reef", "Fish"))


def test_an_article_whose_json_has_everything_is_not_fetched(tmp_path: Path) -> None:
    posts = [{"url": "/story/1", "html": "<p>One <b>two</b>.</p><p>Three.</p>"}, {"url": "/story/2"}]
    paths = {"url": "url", "body": "html"}
    paper, page = api(tmp_path, posts, paths, selectors={"article": {"body": ".text p"}})
    first, second = (entry.payload() for entry in page.entries)
    assert [paper.reader.needs_page(given) for given in (first, second)] == [False, True]
    assert paper.reader.article(None, f"{URL}/story/1", first)["body"] == "One two. Three."


@pytest.mark.parametrize(
    ("paths", "name"),
    [
        ({"fields": {"sort": "kind"}}, "sort"),
        ({"sort": "kind"}, "sort"),
        ({"tags": "kind"}, "tags"),
        ({}, "kind"),
    ],
    ids=["declared", "stored", "of the record", "from the response"],
)
def test_articles_are_excluded_by_a_field(tmp_path: Path, paths: dict[str, Any], name: str) -> None:
    posts: list[dict[str, Any]] = [
        {"url": "/1", "kind": "Video"},
        {"url": "/2", "kind": "text"},
        {"url": "/3", "kind": ["text", "gallery"]},
        {"url": "/4"},
    ]
    _, page = api(tmp_path, posts, {"url": "url", **paths}, listing={"exclude": {name: ["video", "gallery"]}})
    assert [entry.url[-1] for entry in page.entries] == ["2", "4"]
    assert (len(page.urls), page.left_out) == (4, 2)
    assert page.without_excluded == ()


def test_an_excluded_field_that_no_article_has_is_reported(tmp_path: Path) -> None:
    _, page = api(tmp_path, [{"url": "/1"}], {"url": "url"}, listing={"exclude": {"sction": "video"}})
    assert page.without_excluded == ("sction",)


@pytest.mark.parametrize(
    ("code", "kept_before"),
    [
        ("return record['kind'] == 'text'", False),
        ("return record.get('kind') == 'text'", False),
        ("return 'body' in record and record['kind'] == 'text'", True),
        ("return record['kind'] == 'text' or len(record) > 90", True),
        ("try:\n        return len(record['body']) > 99\n    except Exception:\n        return False", True),
        ("return any(key == 'kind' for key in record)", True),
    ],
)
def test_a_filter_decides_early_only_without_the_page(tmp_path: Path, code: str, kept_before: bool) -> None:
    (tmp_path / "cleaning.py").write_text(f"def own(record):\n    {code}\n")
    paths = {"url": "url", "kind": "kind"}
    paper, page = api(tmp_path, [{"url": "/1", "kind": "video"}], paths, cleaning={"record_filter": "own"})
    assert bool(page.entries) is kept_before
    if "99" in code:
        (entry,) = page.entries
        with pytest.raises(Skipped):
            paper.reader.article(Page.of(entry.url, story(1)), entry.url, entry.payload())


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("a.b", 1),
        ("list.0.x", 1),
        ("list[1].x", 2),
        ("list.x", [1, 2]),
        ("list[].x", [1, 2]),
        ("$.list[*].x", [1, 2]),
        ("list.tags.n", ["p", "q"]),
        ("terms.n", ["p", "q", "r"]),
        ("terms.*.n", ["p", "q", "r"]),
        ("terms[*][*].n", ["p", "q", "r"]),
        ("terms.1.n", ["r"]),
        ("list.9.x", None),
        ("a.b.c", None),
        ("nothing", None),
    ],
)
def test_paths_go_through_lists(path: str, value: Any) -> None:
    answer = {
        "a": {"b": 1},
        "list": [{"x": 1, "tags": [{"n": "p"}, {"n": "q"}]}, {"x": 2}],
        "terms": [[{"n": "p"}, {"n": "q"}], [{"n": "r"}], []],
    }
    assert json_at(answer, path) == value


@pytest.mark.parametrize(
    ("selector", "read"),
    [
        (".card wide", ".card.wide"),
        ("story-card wide", ".story-card.wide"),
        (".card h2 a", None),
        ("div.card lead::text", "div.card.lead::text"),
        (".card > .wide", None),
        ("article header time::attr(datetime)", None),
    ],
)
def test_a_class_with_a_space(selector: str, read: str | None) -> None:
    assert class_reading(selector) == read


def test_a_listing_with_such_a_class(tmp_path: Path) -> None:
    thumbnail = {**SELECTORS["thumbnail"], "container": ".card wide"}
    paper = context(tmp_path, selectors={**SELECTORS, "thumbnail": thumbnail})
    page = cards([1, 2]).replace('class="card"', 'class="card wide"')
    assert len(paper.reader.listing(Page.of(f"{URL}/news/1", page)).entries) == 2


@pytest.mark.parametrize(
    ("written", "language", "day"),
    [
        ("mardi 5 juin 2024", None, "2024-06-05"),
        ("Publié le 1er août 2023 à 10h", "fr", "2023-08-01"),
        ("5 de junho de 2024", None, "2024-06-05"),
        ("5 июня 2024", None, "2024-06-05"),
        ("par la rédaction", "fr", None),
    ],
)
def test_dates_of_other_languages(written: str, language: str | None, day: str | None) -> None:
    found = read_day(written, now=dt.datetime(2024, 6, 5, tzinfo=dt.UTC), language=language)
    assert (found.isoformat() if found else None) == day


def test_an_unknown_language_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(InvalidScraper, match="language is 'klingon'"):
        context(tmp_path, language="klingon")


@pytest.mark.parametrize(
    ("given", "sent"), [("browser", BROWSER_USER_AGENT), ("news-bot/1", "news-bot/1"), (None, None)]
)
async def test_the_user_agent_is_an_option(tmp_path: Path, given: str | None, sent: str | None) -> None:
    seen: dict[str, str] = {}

    class Http:
        async def get(self, url: str, **options: Any) -> Page:
            seen.update(options["headers"])
            return Page.of(url, "")

    file = write_paper(tmp_path, URL, PAGES, user_agent=given)
    header = read_yaml_header(tmp_path / file)
    http: Any = Http()
    await NewspaperClient(header, context(tmp_path, user_agent=given).paper).get(http, f"{URL}/news/1")
    assert seen.get("User-Agent") == sent


def test_an_archive_goes_on_over_days_without_articles() -> None:
    paging = Paging(newest=dt.date(2024, 1, 1))
    for _ in range(3):
        paging = paging.after_page((), taken=0, fresh=False)
    assert paging.end_reason(3, by_days=True) is None
    assert paging.end_reason(3, by_days=False) == "a batch had no article"
    known = Paging(newest=dt.date(2024, 1, 1)).after_page(("a",), taken=0, fresh=False, known=True)
    assert known.end_reason(1, by_days=True) is None, "an earlier run may have ended here"
    read = Paging(newest=dt.date(2024, 1, 1)).after_page(("a",), taken=0, fresh=False, known=True, marked={"a"})
    assert read.end_reason(1, by_days=True) == "all articles of a batch are known"
    dropped = Paging(newest=dt.date(2024, 1, 1)).after_page(("a",), taken=0, fresh=False)
    assert dropped.end_reason(1, by_days=False) is None, "excluded articles say nothing about the next page"
