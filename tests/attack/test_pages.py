"""Pages that are made to cost a parser time."""

import contextlib
from collections.abc import Callable

import pytest

from shoal import Item, Scraper
from shoal.define.follow import Follow
from shoal.errors import Permanent
from shoal.fetch.html_links import MAX_ATTRIBUTES, has_overlong_tag, links
from shoal.fetch.page import Page
from shoal.model.item import NewItem
from shoal.recipes.newspapers.cleaning import plain_text
from tests.support.memory_growth import growth

URL = "http://a.test/dir/page"


def page(body: str) -> Page:
    return Page.of(URL, body, headers={"Content-Type": "text/html"})


def many_attributes(count: int, value: str = "1") -> str:
    return "<p " + " ".join(f"a{number}='{value}'" for number in range(count)) + ">"


def distinct(opening: str, count: int) -> str:
    return "".join(f"<{opening} a={number}>" for number in range(count))


HOSTILE: dict[str, Callable[[int], str]] = {
    "nested elements": lambda size: "<div>" * size,
    "nested and mismatched": lambda size: "<p><div></span>" * size,
    "many attributes": many_attributes,
    "attributes that hide the end of the tag": lambda size: many_attributes(size, ">"),
    "formatting that is built again and again": lambda size: distinct("b", size) + "<p>x" * size,
    "tags that never end": lambda size: "<a " * size,
    "values that never end": lambda size: "<a b='" * size,
    "comments that never end": lambda size: "<!--" * size,
    "scripts that never end": lambda size: "<script>" * size + "</scrip" * size,
    "titles that never end": lambda size: "<title>" * size,
    "only equals signs": lambda size: "<a " + "=" * size,
    "only opening brackets": lambda size: "<" * size,
    "references that never end": lambda size: "<a href='" + "&aaaa" * size + "'>",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_finding_links_takes_linear_time(name: str) -> None:
    assert growth(lambda size: page(HOSTILE[name](size)).links(), 20_000) < 10


@pytest.mark.parametrize("name", HOSTILE)
def test_a_tree_is_built_in_linear_time_or_refused(name: str) -> None:
    def build(size: int) -> None:
        with contextlib.suppress(Permanent):
            page(HOSTILE[name](size)).parse()

    assert growth(build, 20_000) < 10


def test_a_page_that_is_too_deep_is_refused_with_the_reason() -> None:
    with pytest.raises(Permanent, match=r"/dir/page cannot be parsed: excessive depth in document: 2048"):
        page("<div>" * 5_000 + "<h1>deep</h1>").css("h1")
    assert page("<div>" * 1_000 + "<h1>deep</h1>").css("h1::text").get() == "deep"


def test_an_element_with_too_many_attributes_is_refused_with_the_reason() -> None:
    with pytest.raises(Permanent, match=f"an element has more than {MAX_ATTRIBUTES} attributes"):
        page(many_attributes(20_000)).css("p")


@pytest.mark.parametrize("harmless", ["<a b='1' c=2>" * 9_000, "<script>" + "if (a<b) c; " * 9_000 + "</script>"])
def test_large_pages_with_ordinary_tags_are_not_refused(harmless: str) -> None:
    assert len(harmless) > 65_536
    assert not has_overlong_tag(harmless)
    assert not has_overlong_tag(harmless + many_attributes(MAX_ATTRIBUTES))
    assert not has_overlong_tag(f"{harmless}<p title='{'x = 1 ' * 5_000}'>{harmless}")
    assert has_overlong_tag(harmless + many_attributes(20_000))
    assert has_overlong_tag(harmless + many_attributes(20_000, ">"))


@pytest.mark.parametrize(
    ("markup", "found"),
    [
        ("<A HREF=x>", ["x"]),
        ("<a\nhref\n=\n'x'\n>", ["x"]),
        ("<a title='a>b' href=x>", ["x"]),
        ("<p title='<a href=q>'><area alt=1 href = \"x\">", ["x"]),
        ("<a href=x href=y>", ["x"]),
        ("<a data-href=n hrefx=n x='1'href=x>", ["x"]),
        ("<a/href=x>", ["x"]),
        ("<a href>", [""]),
        ("<a name=n><abbr href=n></a href=n>< a href=n></ a href=n><? <a href=n>", []),
        ("<!-- <a href=n> --><script>'<a href=n>'</SCRIPT ><a href=x>", ["x"]),
        ("<title><a href=n></title><textarea><a href=n></textarea><style>a<b</style><a href=x>", ["x"]),
        ("<!--><a href=x><!-- > <a href=n> --!><a href=y>", ["x", "y"]),
        ("<a href='?a=1&amp;b=2&copy=3&reg;&notit;&#x2F;&#0047;'>", ["?a=1&b=2&copy=3®&notit;//"]),
        (f"<a href='&#0;&#x110000;&#{'9' * 5_000};'>", ["\ufffd" * 3]),
        ("&lt;a href=n&gt; <a href=x", ["x"]),
    ],
)
def test_links_are_read_as_browsers_read_them(markup: str, found: list[str]) -> None:
    assert [link.href for link in links(markup)] == found


@pytest.mark.slow
def test_following_links_inside_of_nested_elements_reads_each_once() -> None:
    def follow(size: int) -> list[NewItem]:
        shop = Scraper("shop")
        stage = shop.stage(follow=Follow(css="div"))(visit)
        body = "<div>" * 1_000 + "<a href=/1>" * size + "</div>" * 1_000 + "<div><b><div><a href=/2></div></b></div>"
        return Follow(css="div").items(page(body), Item(URL), stage)

    assert [new.url for new in follow(10)] == ["http://a.test/1", "http://a.test/2"]
    assert growth(follow, 2_000) < 10


def visit(page: Page) -> None: ...


@pytest.mark.parametrize("text", ["<" * 50_000, f"a&#{'9' * 5_000};b", f"a&#x{'f' * 5_000}b"])
def test_stripping_markup_takes_linear_time(text: str) -> None:
    assert growth(lambda size: plain_text(text * size), 1) < 10
    assert plain_text("<b>1 &lt; 2</b> &#65;") == "1 < 2 A"
