"""Invalid dates, numbers and charsets count as absent."""

import datetime as dt

import pytest

from shoal.errors import Permanent, Throttled
from shoal.fetch.classify import classify_page, read_date, read_decimal
from shoal.fetch.page import Page
from shoal.fetch.sitemap import read_sitemap
from shoal.recipes.newspapers.dates import read_day
from tests.support.memory_growth import growth

NOW = dt.datetime(2024, 5, 6, tzinfo=dt.UTC)
ABSURD_DATES = (
    "Tue, 15 Nov 1994 08:12:31 +9999999999999999",
    "Tue, 15 Nov 1994 08:12:31 -99999999999999999999999999",
    "Tue, 15 Nov 99999 08:12:31 GMT",
    "0001-01-01T00:00:00+23:59",
    "9999-12-31T23:59:59-23:59",
    "2024-01-01T00:00:00+9999999999999999",
    "9" * 400,
    "9" * 5_000,
    "1e400",
    "nan",
)


@pytest.mark.parametrize("text", ABSURD_DATES)
def test_an_invalid_date_is_absent(text: str) -> None:
    assert read_date(text) is None
    assert read_decimal(text) is None


@pytest.mark.parametrize("text", ABSURD_DATES)
def test_a_429_with_an_invalid_wait_is_still_throttled(text: str) -> None:
    for headers in ({"Retry-After": text}, {"Retry-After": "Tue, 15 Nov 1994 08:12:31 GMT", "Date": text}):
        ended = classify_page(Page.of("http://shop.test/", status=429, headers=headers))
        assert isinstance(ended, Throttled)


@pytest.mark.parametrize("text", ABSURD_DATES)
def test_an_invalid_lastmod_does_not_affect_the_entry(text: str) -> None:
    entries = f"<url><loc>http://a.test/1</loc><lastmod>{text}</lastmod></url><url><loc>http://a.test/2</loc></url>"
    sitemap = read_sitemap(f"<urlset>{entries}</urlset>".encode())
    assert [(entry.loc, entry.lastmod) for entry in sitemap.entries] == [
        ("http://a.test/1", None),
        ("http://a.test/2", None),
    ]


def test_valid_dates_are_parsed() -> None:
    assert read_date("Tue, 15 Nov 1994 08:12:31 +0100") == dt.datetime(1994, 11, 15, 7, 12, 31, tzinfo=dt.UTC)
    assert read_date("2024-02") == dt.datetime(2024, 2, 1, tzinfo=dt.UTC)
    assert read_date("2024-02-03T04:05:06+01:00") == dt.datetime(2024, 2, 3, 3, 5, 6, tzinfo=dt.UTC)
    assert read_decimal(" 120 ") == 120.0


def test_an_excessive_age_is_not_a_day() -> None:
    assert read_day("9" * 5_000 + " days ago", now=NOW) is None
    assert read_day("2 days ago", now=NOW) == dt.date(2024, 5, 4)


@pytest.mark.parametrize(
    "name",
    ["base64", "rot13", "punycode", "idna", "unicode_escape", "raw_unicode_escape", "zlib", "quopri", "uu", "utf-32"],
)
def test_only_encodings_of_the_web_standard_are_accepted(name: str) -> None:
    body = "<p>é \\x41 aGk=</p>".encode()
    by_header = Page.of("http://a.test/", body, headers={"Content-Type": f"text/html; charset={name}"})
    assert (by_header.encoding, by_header.text) == ("utf-8", body.decode())
    declared = f"<meta charset={name}>".encode() + body
    by_markup = Page.of("http://a.test/", declared, headers={"Content-Type": "text/html"})
    assert (by_markup.encoding, by_markup.text) == ("utf-8", declared.decode())


def test_decoding_takes_linear_time_for_every_declared_charset() -> None:
    def decode(size: int) -> str:
        return Page.of("http://a.test/", b"9" * size, headers={"Content-Type": "text/html; charset=punycode"}).text

    assert growth(decode, 40_000) < 10


def test_json_that_is_nested_too_deeply_is_refused() -> None:
    with pytest.raises(Permanent, match="nests its JSON too deeply"):
        Page.of("http://a.test/", b"[" * 200_000).json()
