"""URLs as they are sent: unchanged where possible, otherwise as a browser would send them; and `public_socket`, which
refuses addresses that are not public (`deny_private`).
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import can_ada

HTML_WHITESPACE = " \t\n\r\f"

# URLs that a browser would leave unchanged. All others go through the WHATWG parser.
_CLEAN = re.compile(r"https?://[a-z0-9.-]+(?::[0-9]+)?(?:[/?][\w.~!$&'()*+,;=:@/?%|\[\]-]*)?", re.ASCII)
_HTTP_SCHEMES = ("http:", "https:")
_ASCII_PRINTABLE = "".join(map(chr, range(0x21, 0x7F)))
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


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


def parse_url(url: str) -> can_ada.URL | None:
    """The URL as a browser parses it; None if it is invalid."""
    try:
        return can_ada.parse(url)
    except (ValueError, TypeError):
        return None


def without_credentials(url: str) -> str:
    """The URL for messages."""
    if "@" not in url:
        return url
    safe = parse_url(url)
    if safe is None:
        return url
    safe.username = safe.password = ""
    return safe.href


def is_http(url: can_ada.URL) -> bool:
    return url.protocol in _HTTP_SCHEMES


def header_text(value: str) -> str:
    """A URL from a header: bytes that are not valid UTF-8 are percent-encoded unchanged."""
    if value.isascii():
        return value
    return quote(value.encode("utf-8", "surrogateescape"), safe=_ASCII_PRINTABLE)


def may_carry_credentials(source: can_ada.URL, target: can_ada.URL) -> bool:
    """Whether a redirect may keep the credentials: to the same origin, or from http to https of the same host."""
    if source.origin == target.origin:
        return True
    upgraded = source.protocol == "http:" and target.protocol == "https:"
    return upgraded and source.hostname == target.hostname and not source.port and not target.port


class PrivateAddress(OSError):
    """A refused connection. Its text has no address, so that aiohttp treats several of them as one."""

    def __init__(self) -> None:
        super().__init__("the address is not public")


def public_socket(address_info: Sequence[Any]) -> socket.socket:
    """A socket for the resolved address of a host name. Raises PrivateAddress.

    aiohttp calls it with the address that it connects to next, so DNS rebinding and unusual spellings of an address
    make no difference.
    """
    family, kind, protocol, _, target = address_info
    if not is_public(target[0]):
        raise PrivateAddress
    return socket.socket(family, kind, protocol)


def is_public(text: str) -> bool:
    """Whether an address is globally reachable: not loopback, private, link-local, shared, multicast ..."""
    address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        if address.is_site_local:
            return False
        inner = _embedded_ipv4(address)
        if inner is not None:
            address = inner
    return address.is_global and not address.is_multicast


def may_be_public(url: str) -> bool:
    """Whether the host of this URL is a public address, or a name, which only a resolver knows more about."""
    parsed = parse_url(url)
    host = "" if parsed is None else parsed.hostname.strip("[]").rstrip(".")
    if host == "localhost" or host.endswith(".localhost"):
        return False
    try:
        return is_public(host)
    except ValueError:
        return True


def _embedded_ipv4(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """The IPv4 address that a gateway would translate this one to."""
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    if address.teredo is not None:
        return address.teredo[1]
    return address.ipv4_mapped or address.sixtofour
