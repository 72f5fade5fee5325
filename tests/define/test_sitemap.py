"""Sitemaps in the forms that real sites use."""

from __future__ import annotations

import datetime as dt
import gzip
import time
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.fetch.sitemap import MAX_INFLATED, SitemapEntry, read_sitemap, robots_sitemaps

SPACE = 'xmlns="http://www.sitemaps.org/schemas/sitemap/0.9"'
NO_SITEMAP = "It is neither a sitemap, nor a feed, nor a list of URLs."


def locs(body: bytes | str) -> list[str]:
    found = read_sitemap(body.encode() if isinstance(body, str) else body)
    assert found.problem == ""
    return [entry.loc for entry in found.entries]


def urlset(count: int) -> bytes:
    rows = (
        f"<url><loc>https://a.example/{n}?x=1&amp;y=2</loc><lastmod>2026-05-01T10:00:00Z</lastmod>"
        "<priority>0.5</priority></url>\n"
        for n in range(count)
    )
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<urlset {SPACE}>{"".join(rows)}</urlset>'.encode()


def test_pages_with_their_dates_and_priorities() -> None:
    found = read_sitemap(urlset(2))
    assert (found.kind, found.problem) == ("urls", "")
    moment = dt.datetime(2026, 5, 1, 10, tzinfo=dt.UTC)
    assert found.entries == tuple(SitemapEntry(f"https://a.example/{n}?x=1&y=2", moment, 0.5) for n in range(2))


@pytest.mark.parametrize("space", ["", SPACE, 'xmlns="http://www.google.com/schemas/sitemap/0.84"'])
def test_an_index_names_further_sitemaps(space: str) -> None:
    found = read_sitemap(
        f"<sitemapindex {space}><sitemap><loc> https://a.example/1.xml.gz\n</loc><lastmod>2026</lastmod></sitemap>"
        "<sitemap><loc><![CDATA[https://a.example/2.xml?a&b]]></loc></sitemap></sitemapindex>".encode()
    )
    assert (found.kind, found.problem) == ("index", "")
    assert found.entries == (
        SitemapEntry("https://a.example/1.xml.gz", dt.datetime(2026, 1, 1, tzinfo=dt.UTC)),
        SitemapEntry("https://a.example/2.xml?a&b"),
    )


def test_an_empty_index_is_an_index() -> None:
    assert (read_sitemap(b"<sitemapindex/>").kind, read_sitemap(b"<sitemapindex/>").problem) == ("index", "")


def test_addresses_of_images_and_translations_are_not_pages() -> None:
    body = """<s:urlset xmlns:s="http://www.sitemaps.org/schemas/sitemap/0.9" xmlns:image="urn:i" xmlns:x="urn:x">
      <s:url><!-- one --><image:image><image:loc>https://a.example/i.png</image:loc></image:image>
      <image:loc>https://a.example/j.png</image:loc><s:loc>https://a.example/page</s:loc>
      <x:link rel="alternate" href="https://a.example/de"/></s:url>
      <s:url><s:loc> </s:loc></s:url><s:url/></s:urlset>"""
    assert locs(body) == ["https://a.example/page"]


@pytest.mark.parametrize("junk", ["", "\ufeff", "\n\n  ", "Warning: <b>cache</b> missing in line 3\n"])
def test_junk_before_the_start_is_skipped(junk: str) -> None:
    assert len(locs(junk.encode() + urlset(3))) == 3


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "iso-8859-1"])
def test_encodings(encoding: str) -> None:
    text = f"<?xml version='1.0' encoding='{encoding}'?><urlset><url><loc>https://a.example/é</loc></url></urlset>"
    assert locs(text.encode(encoding)) == ["https://a.example/é"]


def test_plain_text() -> None:
    assert locs("\ufeffhttps://a.example/1\r\n\r\n  http://a.example/2?a&b \n") == [
        "https://a.example/1",
        "http://a.example/2?a&b",
    ]
    mixed = read_sitemap(b"https://a.example/1\nnonsense\n")
    assert (len(mixed.entries), mixed.problem) == (1, "1 of its lines are no URLs.")


def test_rss() -> None:
    found = read_sitemap(
        b"""<?xml version="1.0"?><rss version="2.0" xmlns:atom="http://www.w3.org/2005/Atom"><channel>
        <link>https://a.example/</link><atom:link href="https://a.example/feed"/>
        <image><url>https://a.example/i.png</url><link>https://a.example/</link></image>
        <item><title>A</title><link>https://a.example/a</link><atom:link href="https://a.example/feed"/>
        <pubDate>Fri, 01 May 2026 12:00:00 +0200</pubDate></item>
        <item><guid>https://a.example/b</guid></item>
        <item><guid isPermaLink="false">https://a.example/c</guid></item>
        <item><guid>17</guid></item></channel></rss>"""
    )
    assert (found.kind, found.problem) == ("urls", "")
    assert found.entries == (
        SitemapEntry("https://a.example/a", dt.datetime(2026, 5, 1, 10, tzinfo=dt.UTC)),
        SitemapEntry("https://a.example/b"),
    )


def test_atom() -> None:
    found = read_sitemap(
        b"""<feed xmlns="http://www.w3.org/2005/Atom"><link href="https://a.example/"/>
        <entry><link rel="edit" href="https://a.example/edit"/><link href=" https://a.example/a "/>
        <updated>2026-05-01T00:00:00Z</updated></entry>
        <entry><link rel="alternate" href="https://a.example/b"/></entry><entry/></feed>"""
    )
    assert [entry.loc for entry in found.entries] == ["https://a.example/a", "https://a.example/b"]
    assert found.entries[0].lastmod == dt.datetime(2026, 5, 1, tzinfo=dt.UTC)


def test_gzip_once_twice_and_in_members() -> None:
    body = urlset(5)
    for packed in (gzip.compress(body), gzip.compress(gzip.compress(body))):
        assert len(locs(packed)) == 5
    assert len(locs(gzip.compress(body[:99]) + gzip.compress(body[99:]))) == 5
    assert len(locs(gzip.compress(body) + b"\0\0\0")) == 5


@pytest.mark.parametrize(
    ("body", "least", "problem"),
    [
        (urlset(100)[:-50], 99, "Its XML is broken: "),
        (urlset(100).replace(b"/70?x=1&amp;y", b"/70?x=1&y"), 70, "Its XML is broken: "),
        (gzip.compress(urlset(2000), mtime=0)[:-2000], 1000, "Its compressed data ends too early."),
        (b"\x1f\x8bnonsense", 0, "Its compressed data is broken"),
        (b"", 0, "It is empty."),
        (b" \n", 0, "It is empty."),
        (b"<!DOCTYPE html><html><body>https://a.example/</body></html>", 0, NO_SITEMAP),
        (b"<?xml version='1.0'?><html><body/></html>", 0, NO_SITEMAP),
        (b'{"urls": []}', 0, NO_SITEMAP),
    ],
)
def test_what_can_be_read_of_broken_files(body: bytes, least: int, problem: str) -> None:
    found = read_sitemap(body)
    assert least <= len(found.entries) <= least * 2
    assert found.problem.startswith(problem)


@pytest.mark.slow
def test_the_inflated_size_is_limited() -> None:
    bomb = gzip.compress(urlset(10) + b" " * (4 * MAX_INFLATED), 1)
    tracemalloc.start()
    try:
        found = read_sitemap(bomb)
        assert tracemalloc.get_traced_memory()[1] < 4 * MAX_INFLATED
    finally:
        tracemalloc.stop()
    assert found.problem == "It is larger than 50 MiB when inflated."
    assert len(found.entries) == 10


def laughs(where: str) -> bytes:
    levels = "".join(f'<!ENTITY e{n + 1} "{f"&e{n};" * 10}">' for n in range(9))
    return f'<?xml version="1.0"?><!DOCTYPE u [<!ENTITY e0 "haha">{levels}]>{where}'.encode()


@pytest.mark.parametrize(
    "where",
    [
        "<urlset><url><loc>https://a.example/&e9;</loc></url></urlset>",
        "<urlset><url><loc>https://a.example/</loc></url></urlset>",
        '<urlset a="&e9;"><url><loc>https://a.example/</loc></url></urlset>',
    ],
)
def test_entity_bombs_are_refused(where: str) -> None:
    began = time.process_time()
    found = read_sitemap(laughs(where))
    assert found.entries == ()
    assert found.problem
    assert time.process_time() - began < 1


def test_external_entities_are_never_loaded(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("https://a.example/stolen")
    page = "<urlset><url><loc>https://a.example/&x;</loc></url></urlset>"
    for declared in (f'[<!ENTITY x SYSTEM "{secret.as_uri()}">]', f'[<!ENTITY % p SYSTEM "{secret.as_uri()}"> %p;]'):
        found = read_sitemap(f'<?xml version="1.0"?><!DOCTYPE u {declared}>{page}'.encode())
        assert found.entries == ()
        assert "stolen" not in found.problem
    # The name of an outer DTD does no harm by itself, but the address with the unknown entity cannot be known.
    found = read_sitemap(f'<?xml version="1.0"?><!DOCTYPE u SYSTEM "{secret.as_uri()}">{page}'.encode())
    assert found.entries == ()


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-05-01", dt.datetime(2026, 5, 1, tzinfo=dt.UTC)),
        ("2026-05", dt.datetime(2026, 5, 1, tzinfo=dt.UTC)),
        ("2026-05-01T10:30Z", dt.datetime(2026, 5, 1, 10, 30, tzinfo=dt.UTC)),
        ("2026-05-01T10:30:15.5+02:00", dt.datetime(2026, 5, 1, 8, 30, 15, 500_000, tzinfo=dt.UTC)),
        ("2026-05-01 10:30:15", dt.datetime(2026, 5, 1, 10, 30, 15, tzinfo=dt.UTC)),
        ("yesterday", None),
        ("2026-13-45", None),
        ("", None),
    ],
)
def test_dates(text: str, moment: dt.datetime | None) -> None:
    found = read_sitemap(f"<urlset><url><loc>https://a.example/</loc><lastmod>{text}</lastmod></url></urlset>".encode())
    assert found.entries[0].lastmod == moment


@pytest.mark.parametrize(("text", "share"), [("0.8", 0.8), ("1", 1.0), ("high", None), ("7", None), ("nan", None)])
def test_priorities(text: str, share: float | None) -> None:
    body = f"<urlset><url><loc>https://a.example/</loc><priority>{text}</priority></url></urlset>"
    assert read_sitemap(body.encode()).entries[0].priority == share


MARKUP = st.text("<>/&;!?[]urlsetocmdpifn:= \"'0123456789-T", max_size=200).map(str.encode)


@given(st.binary(max_size=200) | MARKUP)
def test_a_page_is_read_whatever_follows_it(rest: bytes) -> None:
    body = b"<urlset><url><loc>https://a.example/</loc></url>\n" + rest
    for whole in (body, gzip.compress(body), gzip.compress(body) + rest):
        assert read_sitemap(whole).entries[0].loc == "https://a.example/"


@given(st.binary(max_size=200) | MARKUP)
def test_a_body_without_pages_gives_none(body: bytes) -> None:
    for whole in (body, b"<?xml version='1.0'?>" + body, b"\x1f\x8b" + body, b"\xff\xfe" + body):
        found = read_sitemap(whole)
        assert found.problem or b"<" in whole or b"://" in whole  # a line with a URL is a list of URLs
        assert all(entry.loc for entry in found.entries)


@pytest.mark.slow
@given(st.text(max_size=40))
def test_every_date_that_is_read_has_a_time_zone(text: str) -> None:
    shown = text.replace("]", "").encode(errors="replace")
    body = b"<urlset><url><loc>https://a.example/</loc><lastmod><![CDATA[" + shown + b"]]></lastmod></url></urlset>"
    for entry in read_sitemap(body).entries:
        assert entry.lastmod is None or entry.lastmod.tzinfo is not None


@pytest.mark.slow
def test_fifty_thousand_entries_are_fast() -> None:
    body = urlset(50_000)
    began = time.process_time()
    assert len(read_sitemap(body).entries) == 50_000
    assert time.process_time() - began < 2  # measured: 0.35 s


def test_sitemaps_of_robots_txt() -> None:
    text = (
        "\ufeffSitemap: https://a.example/1.xml\r\nUser-agent: *\nDisallow: /sitemap: https://a.example/no.xml\n"
        "  SITEMAP :https://a.example/2.xml.gz  # old\n#Sitemap: https://a.example/no.xml\n"
        "sitemap: /relative.xml\nSitemap: https://a.example/1.xml\nSitemap:\nhttps://a.example/no.xml\n"
    )
    assert robots_sitemaps(text) == ["https://a.example/1.xml", "https://a.example/2.xml.gz"]
    assert robots_sitemaps("") == []
