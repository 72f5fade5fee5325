"""What pages say about themselves, also when it is broken or hostile; and the text of articles."""

from __future__ import annotations

import builtins
import sys
import time
from typing import Any

import msgspec
import pytest

from shoal.errors import Permanent, UsageError
from shoal.fetch.metadata import MAX_ITEMS, Metadata
from shoal.fetch.page import Page

URL = "http://shop.example/dir/rake"


def metadata(html: str, **headers: str) -> Metadata:
    return Page.of(URL, html, headers=headers).metadata()


def test_title_links_and_meta() -> None:
    found = metadata(
        """<html lang=" en-GB "><head><title> Rake
        &amp; hoe </title><link rel="nofollow CANONICAL" href="../rake?x=1"><link rel=canonical href=/second>
        <meta name=Description content=" A rake "><meta name=keywords content=a><meta name=keywords content=b>
        <meta property=og:title content="Rake!"><meta property="og:image" content=/1.png><meta property="og:image"
        content=/2.png><meta name=og:type content=product><meta property=article:tag content=garden>
        <meta name="twitter:card" content=summary><meta charset=utf-8><meta name=empty>
        </head><body><svg><title>icon</title></svg>"""
    )
    assert found == Metadata(
        title="Rake & hoe",
        canonical="http://shop.example/rake?x=1",
        language="en-GB",
        opengraph={"title": "Rake!", "image": ["/1.png", "/2.png"], "type": "product", "article:tag": "garden"},
        twitter={"card": "summary"},
        meta={"description": "A rake", "keywords": ["a", "b"]},
    )
    assert msgspec.json.decode(msgspec.json.encode(found))["title"] == "Rake & hoe"


PRODUCT = {"@type": "Product", "name": "Rake"}


@pytest.mark.parametrize(
    "script",
    [
        '{"@type": "Product", "name": "Rake"}',
        '  [{"@type": "Product", "name": "Rake"}] ;',
        '<!-- {"@type": "Product", "name": "Rake"} -->',
        '//<![CDATA[\n{"@type": "Product", "name": "Rake"}\n//]]>',
        '/*<![CDATA[*/ {"@type": "Product", "name": "Rake"} /*]]>*/',
        '<![CDATA[{"@type": "Product", "name": "Rake"}]]>',
        '{"@context": "https://schema.org", "@graph": [{"@type": "Product", "name": "Rake"}]}',
        '{"@type": "Product", "name": "Rake",}',
        "{&quot;@type&quot;: &quot;Product&quot;, &quot;name&quot;: &quot;Rake&quot;}",
    ],
)
def test_json_ld_as_it_is_written_in_the_wild(script: str) -> None:
    assert metadata(f'<script type="application/LD+JSON; charset=utf-8">{script}</script>').json_ld == [PRODUCT]


def test_a_line_break_within_a_text_is_kept() -> None:
    assert metadata('<script type=application/ld+json>{"name": "a\nb", "n": NaN}</script>').json_ld == [
        {"name": "a\nb", "n": None}
    ]


@pytest.mark.parametrize(
    "script", ["", "not JSON", '{"@type": "Product"', "[" * 100_000, '"text"', "7", "null", "[[[7]]]", "{}" * 3]
)
def test_broken_json_ld_is_left_out_and_the_rest_is_read(script: str) -> None:
    html = f'<script type=application/ld+json>{script}</script><script type=application/ld+json>{{"a": 1}}</script>'
    assert metadata(html).json_ld == [{"a": 1}]


def test_a_graph_gives_its_items_one_by_one() -> None:
    html = """<script type="application/ld+json">{"@context": "x", "@type": "WebPage", "@graph":
        [{"@type": "Product"}, {"@graph": {"@type": "Offer"}}, 7]}</script>"""
    assert [item.get("@type") for item in metadata(html).json_ld] == ["WebPage", "Product", "Offer"]


MICRODATA = """
<div itemscope itemtype="https://schema.org/Product https://schema.org/Thing" itemid="/p/1" itemref="more none">
  <h1 itemprop="name">A <b>rake</b><script>no</script></h1> <img itemprop=image src=/1.png> <a itemprop="url sameAs"
  href=x>x</a> <meta itemprop=sku content=" X7 "> <time itemprop=releaseDate datetime=2026-01-31>yesterday</time>
  <data itemprop=weight value=3>three</data>
  <div itemprop=offers itemscope itemtype=http://schema.org/Offer><span itemprop=price>9.50</span></div>
  <div itemprop=offers itemscope itemtype=http://schema.org/Offer><span itemprop=price>8</span></div>
  <div itemscope><i itemprop=other>not a property of the product</i></div>
</div>
<p id=more><b itemprop="http://schema.org/color">blue</b></p>
"""


def test_microdata_has_the_form_of_json_ld() -> None:
    product, other = metadata(MICRODATA).microdata
    assert product == {
        "@context": "https://schema.org",
        "@type": ["Product", "Thing"],
        "@id": "http://shop.example/p/1",
        "name": "A rake",
        "image": "http://shop.example/1.png",
        "url": "http://shop.example/dir/x",
        "sameAs": "http://shop.example/dir/x",
        "sku": "X7",
        "releaseDate": "2026-01-31",
        "weight": "3",
        "offers": [
            {"@context": "http://schema.org", "@type": "Offer", "price": "9.50"},
            {"@context": "http://schema.org", "@type": "Offer", "price": "8"},
        ],
        "color": "blue",
    }
    assert other == {"other": "not a property of the product"}


def test_items_are_found_by_type_wherever_they_are() -> None:
    script = '{"@type": ["schema:WebPage"], "mainEntity": {"@type": "https://schema.org/Product", "name": "first"}}'
    found = metadata(f"<script type=application/ld+json>{script}</script>{MICRODATA}")
    assert [item["name"] for item in found.items("Product")] == ["first", "A rake"]
    assert [item["price"] for item in found.items("Offer")] == ["9.50", "8"]
    assert [item["@type"] for item in found.items("WebPage", "Offer")] == [["schema:WebPage"], "Offer", "Offer"]
    assert found.items("Recipe") == []


def test_an_item_that_refers_to_itself_ends() -> None:
    html = "<div id=a itemscope itemref='a b'><b itemprop=x>1</b></div><div id=b itemprop=y itemscope itemref=a></div>"
    [item] = metadata(html).microdata
    assert item["x"] == "1"


@pytest.mark.parametrize(
    "html",
    [
        "<script type=application/ld+json>" + " " * 1_000_000 + "x</script>",
        "<script type=application/ld+json>" + "[" + "[]," * 150_000 + "[]]</script>",
        "<script type=application/ld+json>" + "{,}" * 50_000 + "</script>",
        "<meta property=og:image content=x>" * 20_000,
        "<div itemscope>" + "<b itemprop=x>y</b>" * 60_000 + "</div>",
        "<div itemscope itemref=t></div>" * 3_000 + "<div id=t>" + "<b itemprop=x>y</b>" * 3_000 + "</div>",
        "<div itemscope itemprop=a>" * 200 + "text" + "</div>" * 200,
        "<div itemscope>" + "<div itemprop=a>" * 150 + "<i>t</i>" * 20_000 + "</div>" * 150,
    ],
    ids=["white space", "empty lists", "commas", "meta", "wide item", "itemref", "deep items", "nested texts"],
)
def test_the_work_for_a_hostile_page_is_bounded(html: str) -> None:
    began = time.process_time()
    found = metadata(html)
    assert time.process_time() - began < 10
    assert len(found.json_ld) <= MAX_ITEMS
    assert len(msgspec.json.encode(found)) < 100 << 20


@pytest.mark.parametrize("kind", ["application/json", "application/xml", "text/plain"])
def test_pages_that_are_not_html_have_none(kind: str) -> None:
    body = "{}" if "json" in kind else "<a><title>x</title></a>"
    found = Page.of(URL, body, headers={"Content-Type": kind}).metadata()
    assert found.json_ld == []
    assert kind == "text/plain" or found == Metadata()


# --- articles

SENTENCE = "This is a sentence about rakes, which are useful in every garden, and it is long enough to count as text. "
ARTICLE = f"""<html lang=en><head><title>Rake news - Daily</title><meta name=author content="Ann Example">
<meta property=og:site_name content=Daily><meta property=article:published_time content=2026-01-31T10:00:00Z></head>
<body><nav>{"<a href=/m>Menu item</a> " * 30}</nav><article><h1>Rake news</h1><p>{SENTENCE * 3}</p><p>{SENTENCE * 2}</p>
</article><footer>Imprint and cookies</footer></body></html>"""


def test_an_article_is_its_text_without_the_rest() -> None:
    article = Page.of(URL, ARTICLE).article()
    assert (article.title, article.author, article.date) == ("Rake news", "Ann Example", "2026-01-31")
    assert (article.site, article.language, article.url) == ("Daily", "en", URL)
    assert article.text.count("This is a sentence") == 5
    assert "Menu item" not in article.text
    assert "Imprint" not in article.text


@pytest.mark.parametrize("body", ["", "<p>", "<" * 1000])
def test_a_page_without_an_article_is_permanent(body: str) -> None:
    with pytest.raises(Permanent, match=r"http://shop.example/dir/rake.* has no article"):
        Page.of(URL, body).article()


def test_a_page_that_is_too_large_is_permanent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.fetch.article.MAX_CHARS", 100)
    with pytest.raises(Permanent, match="too large for an article"):
        Page.of(URL, ARTICLE).article()


def test_without_the_extra_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def missing(name: str, *arguments: Any, **options: Any) -> Any:
        if name.partition(".")[0] == "trafilatura":
            raise ImportError(name)
        return real(name, *arguments, **options)

    monkeypatch.delitem(sys.modules, "trafilatura", raising=False)
    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(UsageError, match=r"needs the package trafilatura.*pip install 'shoal\[articles\]'"):
        Page.of(URL, ARTICLE).article()
