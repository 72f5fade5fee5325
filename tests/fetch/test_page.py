"""Page: text, selectors, links, JSON."""

import codecs
import subprocess
import sys

import pytest

from shoal.errors import Permanent
from shoal.fetch.page import Page

URL = "http://shop.test/a/b.html"


def html(body: str | bytes, content_type: str = "text/html") -> Page:
    return Page.of(URL, body, headers={"Content-Type": content_type})


@pytest.mark.parametrize(
    ("body", "content_type", "text", "encoding"),
    [
        ("é".encode(), "text/html", "é", "utf-8"),
        ("é".encode("latin-1"), "text/html", "é", "cp1252"),
        ("é €".encode("cp1252"), "text/html; charset=ISO-8859-1", "é €", "cp1252"),
        ("é".encode(), 'text/html; charset="UTF-8"', "é", "utf-8"),
        (b"<meta charset=koi8-r>" + "Ж".encode("koi8-r"), "text/html", "<meta charset=koi8-r>Ж", "koi8-r"),
        (b"<meta charset=koi8-r>" + "é".encode(), "text/html; charset=utf-8", "<meta charset=koi8-r>é", "utf-8"),
        (codecs.BOM_UTF8 + "é".encode(), "text/html; charset=latin-1", "é", "utf-8"),
        (codecs.BOM_UTF16_LE + "é".encode("utf-16-le"), "text/html", "é", "utf-16-le"),
        (b"<meta charset=utf-16>" + "é".encode(), "text/html", "<meta charset=utf-16>é", "utf-8"),
        (b'{"a": "<meta charset=koi8-r>\xc3\xa9"}', "application/json", '{"a": "<meta charset=koi8-r>é"}', "utf-8"),
        (b"a\xff", "text/html; charset=utf-8", "a�", "utf-8"),
        ("é".encode(), "text/html; charset=no-such-thing", "é", "utf-8"),
        (b"", "text/html", "", "utf-8"),
    ],
)
def test_bytes_become_text(body: bytes, content_type: str, text: str, encoding: str) -> None:
    page = html(body, content_type)
    assert (page.text, page.encoding) == (text, encoding)


def test_content_type_has_no_parameters() -> None:
    assert html("", "Text/HTML ; charset=x").content_type == "text/html"
    assert Page.of(URL).content_type == ""


def test_headers_ignore_case() -> None:
    assert Page.of(URL, headers={"ETag": "x"}).headers["etag"] == "x"


def test_selectors_by_media_type() -> None:
    page = html("<h1>Hi <b>you</b></h1>")
    page.parse()
    assert page.css("h1 ::text").getall() == ["Hi ", "you"]
    assert page.xpath("//b/text()").get() == "you"
    assert page.selector is page.selector
    feed = html('<?xml version="1.0"?><Feed><Item>1</Item></Feed>', "application/rss+xml")
    assert feed.xpath("//Item/text()").get() == "1"
    assert html('{"a": {"b": ["c"]}}', "application/ld+json").selector.jmespath("a.b").getall() == ["c"]
    assert html("").css("h1").get() is None


def test_json() -> None:
    assert html('{"a": [1, null]}').json() == {"a": [1, None]}
    assert html(codecs.BOM_UTF8 + b"[1]").json() == [1]
    assert html('["é"]'.encode("latin-1"), "application/json; charset=latin-1").json() == ["é"]
    with pytest.raises(Permanent, match=r"http://shop.test/a/b.html is not JSON: .+"):
        html("<html>").json()


@pytest.mark.parametrize(
    ("href", "absolute"),
    [
        ("c.html", "http://shop.test/a/c.html"),
        (" \n../x?q=1&&r=%7e \t", "http://shop.test/x?q=1&&r=%7e"),
        ("/x#part", "http://shop.test/x#part"),
        ("//other.test/y", "http://other.test/y"),
        ("?page=2", "http://shop.test/a/b.html?page=2"),
        ("", "http://shop.test/a/b.html"),
        ("https://other.test/A/../b?x='y'", "https://other.test/A/../b?x='y'"),
        ("/caf\u00e9 1", "http://shop.test/caf%C3%A9%201"),
        ("mailto:a@b.test", "mailto:a@b.test"),
        ("http://[broken", "http://[broken"),
    ],
)
def test_join(href: str, absolute: str) -> None:
    assert html("<p>").join(href) == absolute


def test_join_starts_at_the_base_of_the_page() -> None:
    page = html('<!-- <base href="/wrong/"> --><head><BASE HREF="/deep/er/"></head><a href="x">')
    assert page.join("x") == "http://shop.test/deep/er/x"
    assert page.links() == ["http://shop.test/deep/er/x"]
    assert html("<base href='javascript:alert(1)'>").join("x") == "http://shop.test/a/x"


def test_links() -> None:
    page = html(
        """<a href="/1">one</a> <a href=" 2.html#top ">two</a> <area href="http://other.test/3">
        <a href="#only">no</a> <a>no</a> <a href="mailto:x@y.test">no</a> <a href="javascript:void(0)">no</a>
        <a rel="nofollow" href="/4">kept</a> <a href="/1#again">no</a> <link href="/no"> <a href="2.html">no</a>
        <!-- <a href="/no"> --> <a href='http://[broken'>no</a>"""
    )
    assert page.links() == [
        "http://shop.test/1",
        "http://shop.test/a/2.html",
        "http://other.test/3",
        "http://shop.test/4",
    ]
    assert html('<a href="/1">', "application/pdf").links() == []


def test_importing_a_page_loads_no_parser_and_no_client() -> None:
    heavy = {"aiohttp", "parsel", "lxml", "w3lib"}
    script = f"import sys, shoal.fetch.page; print(sorted({heavy}.intersection(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "[]\n"
