"""Classification of responses."""

from datetime import UTC, datetime

import pytest

from shoal.errors import (
    AttemptEnded,
    Blocked,
    PageMissing,
    Permanent,
    RequestRefused,
    Throttled,
    Transient,
    Unauthorized,
)
from shoal.fetch.classify import classify_page, retry_after
from shoal.fetch.page import Page

NOW = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)


def answer(status: int = 200, body: str | bytes = "<p>hello", **headers: str) -> Page:
    named = {"Content-Type": "text/html"} | {name.replace("_", "-"): value for name, value in headers.items()}
    return Page.of("http://shop.test/", body, status=status, headers=named)


@pytest.mark.parametrize(
    ("status", "outcome", "message"),
    [
        (403, Blocked, "403 Forbidden"),
        (404, PageMissing, "404 Not Found"),
        (410, PageMissing, "410 Gone"),
        (451, Permanent, "451 Unavailable For Legal Reasons"),
        (400, RequestRefused, "400 Bad Request"),
        (416, RequestRefused, "416 Requested Range Not Satisfiable"),
        (499, Permanent, "499"),
        (401, Unauthorized, "401 Unauthorized: a login is asked for"),
        (407, Permanent, "407 Proxy Authentication Required: a login is asked for"),
        (302, Permanent, "302 Found, but it names no address to follow"),
        (408, Transient, "408 Request Timeout"),
        (425, Transient, "425 Too Early"),
        (429, Throttled, "429 Too Many Requests"),
        (500, Transient, "500 Internal Server Error"),
        (503, Transient, "503 Service Unavailable"),
        (520, Transient, "520"),
    ],
)
def test_statuses(status: int, outcome: type[AttemptEnded], message: str) -> None:
    ended = classify_page(answer(status))
    assert type(ended) is outcome
    assert str(ended) == message


@pytest.mark.parametrize("status", [200, 201, 204, 206])
def test_good_statuses(status: int) -> None:
    assert classify_page(answer(status)) is None


def test_throttled_has_the_wait() -> None:
    for status in (429, 503):
        ended = classify_page(answer(status, Retry_After="7"))
        assert isinstance(ended, Throttled)
        assert ended.retry_after == 7.0
    assert isinstance(classify_page(answer(503, Retry_After="soon")), Transient)
    assert isinstance(classify_page(answer(500, Retry_After="7")), Transient)


def test_a_retry_after_date_is_relative_to_the_clock_of_the_site() -> None:
    ended = classify_page(
        answer(429, Date="Wed, 01 Jan 2020 00:00:00 GMT", Retry_After="Wed, 01 Jan 2020 00:02:00 GMT")
    )
    assert isinstance(ended, Throttled)
    assert ended.retry_after == 120.0


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("0", 0.0),
        (" 120 ", 120.0),
        ("1.5", 1.5),
        ("-5", 0.0),
        ("99999999", 86_400.0),
        ("Thu, 01 Jan 2026 12:00:30 GMT", 30.0),
        ("Thursday, 01-Jan-26 12:00:30 GMT", 30.0),
        ("Thu, 01 Jan 2026 11:00:00 GMT", 0.0),
        ("Fri, 01 Jan 2027 12:00:00 GMT", 86_400.0),
        ("", None),
        ("soon", None),
        ("nan", None),
        ("1e5", None),
        ("٣", None),
        ("Thu, 99 Foo 2026 12:00:00 GMT", None),
    ],
)
def test_retry_after(value: str, seconds: float | None) -> None:
    assert retry_after(value, NOW) == seconds


@pytest.mark.parametrize(
    ("page", "sign"),
    [
        (answer(body=""), "soft block: the page is empty"),
        (answer(body=" \n "), "soft block: the page is empty"),
        (answer(cf_mitigated="challenge"), "soft block: the header cf-mitigated announces a challenge"),
        (answer(202, x_amzn_waf_action="challenge"), "soft block: the header x-amzn-waf-action announces a challenge"),
        (
            answer(503, cf_mitigated="challenge"),
            "503 Service Unavailable: the header cf-mitigated announces a challenge",
        ),
        (
            answer(body='<title>Shop</title><script>window._cf_chl_opt={};a="/cdn-cgi/challenge-platform/"</script>'),
            "soft block: the page is a Cloudflare challenge",
        ),
        (
            answer(body="<script>var dd={'host':'geo.captcha-delivery.com'}</script>"),
            "soft block: the page is a DataDome captcha",
        ),
        (answer(body='<div id="px-captcha">'), "soft block: the page is a HUMAN captcha"),
        (
            answer(body="<iframe>Request unsuccessful. Incapsula incident ID: 1-2</iframe>"),
            "soft block: the page is an Imperva block",
        ),
        (answer(body="<title>\nJust a moment...</title>"), "soft block: the page's title is 'Just a moment...'"),
        (answer(body="<html><title lang=en>Robot Check</title>"), "soft block: the page's title is 'Robot Check'"),
    ],
)
def test_soft_blocks(page: Page, sign: str) -> None:
    ended = classify_page(page)
    assert isinstance(ended, Blocked)
    assert str(ended) == sign


@pytest.mark.parametrize(
    "page",
    [
        answer(204, body=""),
        answer(body="", Content_Type="text/plain"),
        Page.of("http://shop.test/pixel"),
        Page("http://shop.test/", status=200, headers={"Content-Type": "text/html"}, body=b"", method="HEAD"),
        answer(body="<title>How a captcha works</title><p>px-captcha, challenge, captcha"),
        answer(body='<script src="/cdn-cgi/challenge-platform/scripts/jsd/main.js"></script><p>a normal page'),
        answer(body='<form><div class="g-recaptcha"></div></form>'),
        answer(body='<script src="/_Incapsula_Resource?SWJIYLWA=1"></script><p>a normal page'),
        answer(body="<p>captcha _cf_chl_opt " + "x" * 70_000),
        answer(body='{"script": "captcha _cf_chl_opt"}', Content_Type="application/json"),
        answer(cf_mitigated=""),
    ],
)
def test_pages_that_are_not_soft_blocks(page: Page) -> None:
    assert classify_page(page) is None
