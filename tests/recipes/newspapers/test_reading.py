"""Reading pages: selectors with fall-backs, dates in many formats, cleaning."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pytest
from parsel import Selector

from shoal.define.yaml_scraper import read_yaml_header
from shoal.errors import Skipped
from shoal.fetch.page import Page
from shoal.recipes.newspapers.dates import read_day
from shoal.recipes.newspapers.kind import NewspaperContext
from shoal.recipes.newspapers.selectors import class_reading, link, text, text_in, texts
from tests.support.newspapers import SELECTORS, story, write_paper

NOW = dt.datetime(2024, 6, 5, 1, 30, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("written", "day"),
    [
        ("2024-06-05", "2024-06-05"),
        ("2024-06-05T23:59:00-10:00", "2024-06-05"),
        ("Published: 2024/6/5, 10:00", "2024-06-05"),
        ("20240605", "2024-06-05"),
        ("Wed, 05 Jun 2024 10:00:00 GMT", "2024-06-05"),
        ("June 5, 2024", "2024-06-05"),
        ("Jun. 5th, 2024 at 9 am", "2024-06-05"),
        ("5th of June 2024", "2024-06-05"),
        ("5 Sept 2024", "2024-09-05"),
        ("05-Jun-2024", "2024-06-05"),
        ("3/4/2024", "2024-04-03"),
        ("12/25/2024", "2024-12-25"),
        ("05.06.24", "2024-06-05"),
        ("2024年6月5日", "2024-06-05"),
        ("1717545600", "2024-06-05"),
        ("1717545600000", "2024-06-05"),
        ("2 hours ago", "2024-06-04"),
        ("an hour ago", "2024-06-05"),
        ("3 days ago", "2024-06-02"),
        ("Yesterday", "2024-06-04"),
        ("today, 10:15", "2024-06-05"),
        ("05 มิถุนายน 2567", "2024-06-05"),
        ("5/6/2567", "2024-06-05"),
        ("5 June 2025", "2025-06-05"),
        ("7 June 2025", None),
        ("5 June 2042", None),
        ("3 months ago", None),
        ("2024-13-45", None),
        ("31 February 2024", None),
        ("by our reporter", None),
        ("", None),
    ],
)
def test_days(written: str, day: str | None) -> None:
    found = read_day(written, now=NOW)
    assert (found.isoformat() if found else None) == day


def test_the_month_first() -> None:
    assert read_day("3/4/2024", now=NOW, month_first=True) == dt.date(2024, 3, 4)
    assert read_day("25/12/2024", now=NOW, month_first=True) == dt.date(2024, 12, 25)


def test_selectors_fall_back_to_the_next_that_finds_something() -> None:
    page = Selector(
        text="<div class=card><h2> </h2><h3>Big <b>news</b></h3><a href=' /a '>more</a><ul><li>x<li> y </ul></div>"
    )
    assert text(page, ("h1", "h2", "h3")) == "Big news"
    assert text(page, "h3::text") == "Big news", "::text is the whole text of the element"
    assert text(page, "h3 b::text") == text(page, "h3 > b::text") == "news"
    assert texts(page, "ul li::text") == ["x", "y"]
    assert texts(page.css("ul")[0], ".card ul li") == ["x", "y"], "ancestors may lie outside of the scope"
    assert texts(page.css("h2")[0], ".card ul li") == []
    assert link(page, (".none a", "a")) == "/a"
    assert link(page, "a::attr(href)") == "/a"
    assert texts(page, ("ol li", "ul li")) == ["x", "y"]
    assert text(page, ()) is None


def test_each_selector_of_a_group_has_its_own_pseudo_element() -> None:
    page = Selector(
        text="<p>One, <b>two</b></p><ul><li>three</ul><time datetime='2024-06-05'></time><a href=/a title='y,z'>x</a>"
    )
    assert texts(page, "li::text, p::text") == ["One, two", "three"], "in the order of the page"
    assert texts(page, "a::attr(href), time::attr(datetime)") == ["2024-06-05", "/a"]
    assert text(page, "h1, a[title='y,z']::attr(title)") == "y,z"
    assert link(page, "i a, li, a") == "/a"
    assert class_reading(".card wide::text, a.b lead") == ".card.wide::text, a.b.lead"


@pytest.mark.parametrize(
    "selector",
    ["p:not(.a, .b)", "p:not(.a):not(i, .b)", "p:not([title='x,)'], .b)", "p:-soup-contains('three')"],
)
def test_selectors_of_other_libraries(selector: str) -> None:
    page = Selector(text="<p class=a title='x,)'>one</p><p class=b>two</p><p>three</p>")
    assert texts(page, selector) == texts(page, f"{selector}::text, u") == ["three"]


@pytest.mark.parametrize("selector", [".content *::text", ".content div, .content p", ".content, .content b::text"])
def test_elements_in_each_other_give_their_text_once(selector: str) -> None:
    page = Selector(text="<div class=content><div><p>Hello <b>brave</b> world</p></div></div>")
    assert texts(page, selector) == ["Hello brave world"]


def test_the_text_of_an_element_is_its_visible_text() -> None:
    page = "<div>One\n two<p>three<!-- no --> four</p><style>p {}</style>five<br>six<ul><li>a<li>b</ul></div>"
    assert text_in(Selector(text=page).css("div")[0].root) == "One two\nthree four\nfive\nsix\na\nb"
    deep = "<div>" * 1500 + "bottom" + "</div>" * 1500
    assert text_in(Selector(text=deep).css("body")[0].root) == "bottom"


def record(folder: Path, page: str, given: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """An article as a newspaper with these settings reads it."""
    listing = {"type": "pagination", "url_template": "/news/{num}"}
    file = write_paper(folder, "https://paper.example", listing, **more)
    context = NewspaperContext(read_yaml_header(folder / file, folder))
    url = "https://paper.example/story/1"
    return context.reader.article(Page.of(url, page), url, given or {})


def test_the_first_valid_day_counts(tmp_path: Path) -> None:
    article = {**SELECTORS["article"], "date": ["h1", ".tag", "time"]}
    selectors = {**SELECTORS, "article": article}
    found = record(tmp_path, story(1, day="7 May 2024"), {"date": "2020-01-01"}, selectors=selectors)
    assert found["date"] == "2024-05-07"
    found = record(tmp_path, story(1, day="soon"), {"date": "2020-01-01", "title": "Given"}, selectors=selectors)
    assert (found["date"], found["title"]) == ("2020-01-01", "Given")


def test_fields_are_cleaned_by_name_and_by_functions_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "our_cleaning.py").write_text("def shout(text):\n    return text.upper()\n")
    cleaning = {
        "body": ["one_line", "our_cleaning:shout"],
        "date": "month_first",
        "tags": ["split_commas", "lower_case"],
    }
    found = record(tmp_path, story(1, day="3/4/2024", tags=["Sea, Reef", "Fish"]), cleaning=cleaning)
    assert found["body"] == "STORY 1 BEGINS. IT ENDS HERE."
    assert found["date"] == "2024-03-04"
    assert found["tags"] == ["sea", "reef", "fish"]


def test_a_filter_decides_which_records_are_kept(tmp_path: Path) -> None:
    cleaning = {"record_filter": "has_tags"}
    with pytest.raises(Skipped):
        record(tmp_path, story(1), cleaning=cleaning)
    assert record(tmp_path, story(1, tags=["Sea"]), cleaning=cleaning)["tags"] == ["Sea"]
