"""Classifies a response: usable, permanent, transient, throttled or blocked. Also parses dates and numbers that sites
send; unreadable ones count as absent.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import TYPE_CHECKING

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
from shoal.model.url_key import host_or_none

if TYPE_CHECKING:
    from shoal.fetch.page import Page

MAX_RETRY_AFTER = 86_400.0
# Challenge pages are small; a larger page that contains such a text is about challenges.
_MAX_CHALLENGE_BYTES = 64 * 1024
_HTML = ("text/html", "application/xhtml+xml", "")

# Headers and values that only a challenge has.
_CHALLENGE_HEADERS = (("cf-mitigated", ("challenge",)), ("x-amzn-waf-action", ("challenge", "captcha")))

# Texts that are in challenges and not in the pages behind them; the vendors' ordinary scripts are on every page they
# protect, so none of those is here. Challenges also have "challenge" or "captcha" near their beginning, so two short
# searches suffice for a normal page.
_HEAD_BYTES = 8 * 1024
_HINTED_MARKERS = (
    (b"_cf_chl_opt", "a Cloudflare challenge"),
    (b"geo.captcha-delivery.com", "a DataDome captcha"),
    (b'id="px-captcha"', "a HUMAN captcha"),
    (b"sec-if-cpt-container", "an Akamai challenge"),
    (b"ddos-guard/js-challenge", "a DDoS-Guard challenge"),
    (b'id="anubis_challenge"', "an Anubis challenge"),
)
_IMPERVA_MARKER = b"Incapsula incident ID"
_MAX_IMPERVA_BYTES = 4 * 1024
# Compared with the whole title, so that a page about captchas does not match.
_TITLES = frozenset(
    {
        b"access denied",
        b"access to this page has been denied",
        b"are you a human?",
        b"are you a robot?",
        b"are you human?",
        b"attention required! | cloudflare",
        b"bot verification",
        b"captcha",
        b"checking your browser",
        b"human verification",
        b"just a moment...",
        b"pardon our interruption",
        b"please verify you are a human",
        b"robot check",
        b"verify you are human",
        b"you have been blocked",
    }
)
# No date or number is longer; Python takes quadratic time to parse very long ones.
_MAX_LENGTH = 100
_STATUS_ERRORS = {401: Unauthorized, 404: PageMissing, 410: PageMissing} | dict.fromkeys(
    (400, 416, 422), RequestRefused
)
_MONTH = re.compile(r"\d{4}(-\d\d)?", re.ASCII)
_DECIMAL = re.compile(r"[+-]?[0-9]{1,18}(\.[0-9]*)?", re.ASCII)


def classify_page(page: Page) -> AttemptEnded | None:
    """The error that this response ends its attempt with; None if the page is usable."""
    status = page.status
    if 200 <= status < 300:
        reason = _soft_block(page)
        return None if reason is None else Blocked(f"soft block: {reason}")
    text = _status_text(status)
    if status == 429:
        return Throttled(text, retry_after=_retry_after_of(page), host=host_or_none(page.url))
    if reason := _challenge_header(page):
        return Blocked(f"{text}: {reason}")
    if status >= 500:
        wait = _retry_after_of(page) if status == 503 else None
        return Transient(text) if wait is None else Throttled(text, retry_after=wait, host=host_or_none(page.url))
    if status == 403:
        return Blocked(text)
    if status in (408, 425):
        return Transient(text)
    return _STATUS_ERRORS.get(status, Permanent)(text + _status_hint(status))


def retry_after(value: str, now: datetime) -> float | None:
    """The wait that a Retry-After header requests, in seconds up to a day; None if it is invalid."""
    if (seconds := read_decimal(value)) is not None:
        return _clamp(seconds)
    date = read_date(value)
    return None if date is None else _clamp((date - now).total_seconds())


def _retry_after_of(page: Page) -> float | None:
    value = page.headers.get("Retry-After")
    if value is None:
        return None
    # The date is relative to the site's clock; the local one may differ.
    now = read_date(page.headers.get("Date")) or datetime.now(UTC)
    return retry_after(value, now)


def _clamp(seconds: float) -> float:
    return min(max(seconds, 0.0), MAX_RETRY_AFTER)


def _status_text(status: int) -> str:
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)


def _status_hint(status: int) -> str:
    if status in (401, 407):
        return ": a login is asked for"
    if status < 400:
        return ", but it names no address to follow"
    return ""


def _challenge_header(page: Page) -> str | None:
    headers = page.headers
    for name, values in _CHALLENGE_HEADERS:
        if name in headers and headers[name].strip().lower() in values:
            return f"the header {name} announces a challenge"
    return None


def _soft_block(page: Page) -> str | None:
    """Why a response with a good status is a block after all; None if it is not."""
    if reason := _challenge_header(page):
        return reason
    body = page.body
    size = len(body)
    if size >= _MAX_CHALLENGE_BYTES or page.content_type not in _HTML:
        return None
    if size < 1024 and not body.strip():
        # A response without a type, to HEAD, or 204 is empty on purpose.
        is_intended = page.method == "HEAD" or page.status in (204, 205) or not page.content_type
        return None if is_intended else "the page is empty"
    if size < _MAX_IMPERVA_BYTES and _IMPERVA_MARKER in body:
        return "the page is an Imperva block"
    if body.find(b"challenge", 0, _HEAD_BYTES) >= 0 or body.find(b"captcha", 0, _HEAD_BYTES) >= 0:
        for marker, name in _HINTED_MARKERS:
            if marker in body:
                return f"the page is {name}"
    return _challenge_title(body)


def _challenge_title(body: bytes) -> str | None:
    start = body.find(b"<title", 0, _HEAD_BYTES)
    if start < 0:
        return None
    start = body.find(b">", start, start + 200)
    end = body.find(b"<", start + 1, start + 100)
    title = body[start + 1 : end].strip()
    if start < 0 or end < 0 or title.lower() not in _TITLES:
        return None
    return f"the page's title is {title.decode()!r}"


def read_date(text: str | None) -> dt.datetime | None:
    """A date of HTTP, mail or RSS (RFC 5322) or of a sitemap (W3C), in UTC, which is also the default zone."""
    text = (text or "").strip()
    if not text or len(text) > _MAX_LENGTH:
        return None
    if _MONTH.fullmatch(text):
        text = f"{text}-01" if len(text) == 7 else f"{text}-01-01"
    for parse in (dt.datetime.fromisoformat, parsedate_to_datetime):
        try:
            date = parse(text)
            # The conversion may leave the range of datetime.
            return date.replace(tzinfo=dt.UTC) if date.tzinfo is None else date.astimezone(dt.UTC)
        except (ValueError, OverflowError, TypeError, IndexError):
            continue
    return None


def read_decimal(text: str | None) -> float | None:
    """A plain decimal number of at most eighteen digits before its point."""
    text = (text or "").strip()
    return float(text) if len(text) <= _MAX_LENGTH and _DECIMAL.fullmatch(text) else None


def ratio(numerator: int, denominator: int) -> float:
    """The quotient of two numbers of any size; infinite where it is too large for a float."""
    try:
        return numerator / denominator
    except OverflowError:
        return math.inf
