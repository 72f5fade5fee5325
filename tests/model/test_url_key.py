"""Which URLs are the same page, and which are none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import InvalidItem
from shoal.model.url_key import MAX_URL_BYTES, key_hash, url_host, url_key


@pytest.mark.parametrize(
    ("url", "key"),
    [
        ("https://example.com", "https://example.com/"),
        ("HTTPS://EXAMPLE.com:443/", "https://example.com/"),
        ("http://example.com:80/a", "http://example.com/a"),
        ("http://example.com:8080/a", "http://example.com:8080/a"),
        ("https://example.com/a#part", "https://example.com/a"),
        ("https://example.com/a?", "https://example.com/a"),
        ("https://example.com/a?#x", "https://example.com/a"),
        ("https://example.com/a?b=2&a=1", "https://example.com/a?a=1&b=2"),
        ("https://example.com/a?a=2&a=1", "https://example.com/a?a=2&a=1"),
        ("https://example.com/a?&&b=1&", "https://example.com/a?b=1"),
        ("https://example.com/A/b/../C", "https://example.com/A/C"),
        ("https://münchen.example/ü", "https://xn--mnchen-3ya.example/%C3%BC"),
        ("  https://example.com/ ", "https://example.com/"),
        ("https://example.com/a?utm_source=x&q=1", "https://example.com/a?q=1&utm_source=x"),
    ],
)
def test_version_one_of_the_rules(url: str, key: str) -> None:
    assert url_key(url) == key


def test_paths_keep_their_case() -> None:
    assert url_key("https://example.com/Page") != url_key("https://example.com/page")


def test_tracking_parameters_are_dropped_when_asked_for() -> None:
    url = "https://example.com/?utm_source=x&UTM_medium=y&fbclid=1&id=7"
    assert url_key(url, drop_tracking=True) == "https://example.com/?id=7"


@given(
    st.from_regex(r"\Ahttps?://[a-z][a-z0-9]{0,10}\.example(:[0-9]{1,4})?(/[\w.~%-]{0,8}){0,3}(\?[\w=&%+-]{0,20})?\Z")
)
def test_a_key_is_its_own_key(url: str) -> None:
    key = url_key(url)
    assert url_key(key) == key


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("", "empty"),
        ("   ", "empty"),
        ("/relative", "not a valid absolute URL"),
        ("example.com/x", "not a valid absolute URL"),
        ("http://", "not a valid absolute URL"),
        ("http://exa mple/", "not a valid absolute URL"),
        ("ftp://example.com/", "scheme 'ftp'"),
        ("javascript:alert(1)", "scheme 'javascript'"),
        ("file:///etc/passwd", "scheme 'file'"),
        ("https://example.com/\0", "NUL"),
        ("https://example.com/\ud800", "lone surrogate"),
        ("https://example.com/" + "x" * MAX_URL_BYTES, "bytes long"),
        ("https://example.com/" + "ü" * (MAX_URL_BYTES // 2), "bytes long"),
    ],
)
def test_what_no_client_could_fetch_is_refused(url: str, complaint: str) -> None:
    with pytest.raises(InvalidItem, match=complaint) as caught:
        url_key(url)
    assert len(str(caught.value)) < 300, "a message stays readable"
    assert str(caught.value).isprintable()


def test_the_hash_is_versioned_and_fixed_for_life() -> None:
    """A stored ledger depends on these bytes."""
    expected = "0cc0f3bfb62e358a"
    assert len(key_hash("https://example.com/")) == 32
    assert key_hash("https://example.com/").hex()[:16] == expected


def test_the_host_names_the_site() -> None:
    assert url_host("https://Example.com:443/a") == "example.com"
    assert url_host("http://example.com:8080/") == "example.com:8080"
    with pytest.raises(InvalidItem):
        url_host("nope")
