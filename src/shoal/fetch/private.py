"""Addresses that are not public: of this machine, its network, its provider. Who lets others name URLs refuses them."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence
from typing import Any

_NAT64 = ipaddress.ip_network("64:ff9b::/96")


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
        inner = _embedded(address)
        if inner is not None:
            address = inner
    return address.is_global and not address.is_multicast


def _embedded(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """The IPv4 address that a gateway on the way would make of this one."""
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    if address.teredo is not None:
        return address.teredo[1]
    return address.ipv4_mapped or address.sixtofour
