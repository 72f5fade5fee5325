"""URL keys: which URLs count as the same page.

The rules have a version. A run keeps the version it was created with, so resuming it with newer code computes the same
keys. The fetched URL is never changed: only the key is normalised.

Version 1: parse as a browser does (WHATWG), which lower-cases scheme and host, applies IDNA, drops a default port and
resolves `.` and `..`; drop the fragment; sort the query's pairs by their bytes, keeping repeated ones in order; drop
an empty query. Paths keep their case. Optionally drop tracking parameters.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

import can_ada

from shoal.errors import InvalidItem
from shoal.model.redaction import redacted

KEY_VERSION = 1
MAX_URL_BYTES = 8_192
MAX_KEY_BYTES = 2_048
TRACKING_PARAMETERS = frozenset(
    {"fbclid", "gclid", "dclid", "msclkid", "mc_cid", "mc_eid", "igshid", "yclid", "_ga", "ref_src"}
)
_TRACKING_PREFIXES = ("utm_",)
_SCHEMES = ("http:", "https:")


def url_key(url: str, *, drop_tracking: bool = False) -> str:
    """The version 1 key of a URL. Raises InvalidItem for a URL that cannot be fetched."""
    check_text("URL", url, MAX_URL_BYTES)
    try:
        parsed = can_ada.parse(url)
    except ValueError:
        hint = "" if ":" in url else " (a link of a page becomes one with page.join)"
        raise InvalidItem(f"{quoted(url)} is not a valid absolute URL{hint}.") from None
    if parsed.protocol not in _SCHEMES:
        raise InvalidItem(f"{quoted(url)} has the scheme {parsed.protocol[:-1]!r}; only http and https are fetched.")
    parsed.hash = ""
    search: str = parsed.search
    if search:
        parsed.search = _sorted_query(search, drop_tracking=drop_tracking)
    elif parsed.href.endswith("?"):
        parsed.search = ""
    key: str = parsed.href
    return key


def url_host(url: str) -> str:
    """Host and port of a URL: `example.com`, `example.com:8080`."""
    try:
        host: str = can_ada.parse(url).host
    except (ValueError, TypeError):
        raise InvalidItem(f"{quoted(str(url))} is not a valid absolute URL.") from None
    return host


@lru_cache(maxsize=256)
def host_or_none(url: str) -> str | None:
    """The host of a URL; None for an invalid URL, which is reported where it is stored or fetched.

    Several parts of an attempt ask for the same one.
    """
    try:
        return url_host(url)
    except InvalidItem:
        return None


def key_hash(key: str) -> bytes:
    """SHA-256 of a key, prefixed with the version of the rules."""
    return hashlib.sha256(b"shoal-key-%d\0" % KEY_VERSION + key.encode()).digest()


def url_hash(url: str) -> str:
    """The `url_hash` that views and exports give an item of this URL. Raises InvalidItem for an invalid URL."""
    return key_hash(url_key(url)).hex()


def check_text(what: str, value: str, max_bytes: int) -> None:
    """Raise InvalidItem for text that cannot be stored or sent."""
    if not isinstance(value, str):
        raise InvalidItem(f"The {what} must be text, not {type(value).__name__}.")
    if not value or value.isspace():
        raise InvalidItem(f"The {what} is empty.")
    if "\0" in value:
        raise InvalidItem(f"{quoted(value)} contains a NUL byte.")
    # ASCII text, the usual case, need not be encoded to get its size.
    if value.isascii():
        size = len(value)
    else:
        try:
            size = len(value.encode())
        except UnicodeEncodeError:
            raise InvalidItem(f"{quoted(value)} is not valid Unicode (a lone surrogate, often bad UTF-8).") from None
    if size > max_bytes:
        raise InvalidItem(f"{quoted(value)} is {size} bytes long; the {what} may have {max_bytes} at most.")


def quoted(value: str) -> str:
    """A value for a message: short, one line, printable, without secrets."""
    value = redacted(value[:MAX_URL_BYTES])
    text = value if len(value) <= 80 else value[:77] + "..."
    return ascii(text) if not text.isprintable() else repr(text)


def _sorted_query(search: str, *, drop_tracking: bool) -> str:
    pairs = [pair for pair in search[1:].split("&") if pair]
    if drop_tracking:
        pairs = [pair for pair in pairs if not _is_tracking(pair)]
    if len(pairs) > 1:
        # Stable: `a=2&a=1` keeps its order, because servers read repeated names in order.
        pairs.sort(key=lambda pair: pair.partition("=")[0])
    return "&".join(pairs)


def _is_tracking(pair: str) -> bool:
    name = pair.partition("=")[0].lower()
    return name in TRACKING_PARAMETERS or name.startswith(_TRACKING_PREFIXES)
