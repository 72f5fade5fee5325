"""URLs as they go on the wire: unchanged where possible, as a browser would send them otherwise."""

from __future__ import annotations

import re
from urllib.parse import quote

import can_ada

HTML_WHITESPACE = " \t\n\r\f"

# Everything a browser would leave as it is. Anything else goes through the WHATWG parser.
_CLEAN = re.compile(r"https?://[a-z0-9.-]+(?::[0-9]+)?(?:[/?][\w.~!$&'()*+,;=:@/?%|\[\]-]*)?", re.ASCII)
_FETCHED = ("http:", "https:")
_ASCII_PRINTABLE = "".join(map(chr, range(0x21, 0x7F)))


def is_clean(url: str) -> bool:
    """Whether this absolute URL can be sent byte for byte."""
    return _CLEAN.fullmatch(url) is not None


def resolve(base: can_ada.URL, href: str) -> str | None:
    """The absolute URL of a link, given without whitespace around it; None if no browser could resolve it."""
    if _CLEAN.fullmatch(href):
        return href
    try:
        return (base + href).href
    except (ValueError, TypeError):
        return None


def parsed(url: str) -> can_ada.URL | None:
    """The URL as a browser reads it; None if it cannot."""
    try:
        return can_ada.parse(url)
    except (ValueError, TypeError):
        return None


def without_credentials(url: str) -> str:
    """The URL, fit for messages."""
    if "@" not in url:
        return url
    safe = parsed(url)
    if safe is None:
        return url
    safe.username = safe.password = ""
    return safe.href


def is_fetched(url: can_ada.URL) -> bool:
    return url.protocol in _FETCHED


def header_text(value: str) -> str:
    """A URL from a header: bytes that are no valid UTF-8 are percent-encoded, as the sender's bytes."""
    if value.isascii():
        return value
    return quote(value.encode("utf-8", "surrogateescape"), safe=_ASCII_PRINTABLE)


def may_carry_credentials(source: can_ada.URL, target: can_ada.URL) -> bool:
    """Whether a redirect stays with those who were given the credentials: same origin, or its move to https."""
    if source.origin == target.origin:
        return True
    upgraded = source.protocol == "http:" and target.protocol == "https:"
    return upgraded and source.hostname == target.hostname and not source.port and not target.port
