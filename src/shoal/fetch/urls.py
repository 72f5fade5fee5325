"""URLs as they are sent, and addresses that are not public.

URLs as they go on the wire: unchanged where possible, as a browser would send them otherwise.

Addresses that are not public: of this machine, its network, its provider. Who lets others name URLs refuses them.
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

# Everything a browser would leave as it is. Anything else goes through the WHATWG parser.
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
    """The URL as a browser reads it; None if it cannot."""
    try:
        return can_ada.parse(url)
    except (ValueError, TypeError):
        return None


def without_credentials(url: str) -> str:
    """The URL, fit for messages."""
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


class PrivateAddress(OSError):
    """A connection that was not made. Its text names no address, so that several of them look alike to the client."""

    def __init__(self) -> None:
        super().__init__("the address is not public")


def public_socket(found: Sequence[Any]) -> socket.socket:
    """A socket for what a host name was resolved to. Raises PrivateAddress.

    The client calls it with the very address that it connects to next, so a name that is resolved to something else a
    moment later, or a number written in an unusual way, makes no difference.
    """
    family, kind, protocol, _, target = found
    if not is_public(target[0]):
        raise PrivateAddress
    return socket.socket(family, kind, protocol)


def is_public(text: str) -> bool:
    """Whether an address can be reached by everybody: none of loopback, private, link-local, shared, multicast ..."""
    address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        if address.is_site_local:
            return False
        inner = _embedded_ipv4(address)
        if inner is not None:
            address = inner
    return address.is_global and not address.is_multicast


def _embedded_ipv4(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """The IPv4 address that a gateway on the way would make of this one."""
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    if address.teredo is not None:
        return address.teredo[1]
    return address.ipv4_mapped or address.sixtofour
