"""The proxies that the environment names: HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY, in upper or lower case."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from shoal.errors import UsageError
from shoal.model.egress import ProxyAddress, ProxyScheme

if TYPE_CHECKING:
    from yarl import URL

_SCHEMES: Mapping[str, ProxyScheme] = {
    "http": "http",
    "https": "https",
    "socks5": "socks5",
    "socks5h": "socks5h",
    "socks": "socks5",  # what desktops write into ALL_PROXY
}
_DEFAULT_PORTS = {"http": 80, "https": 443}
_SOCKS_PORT = 1080
_MAX_CACHED = 1_000


class EnvironmentProxies:
    """Finds the proxy for a URL, by the rules of requests and httpx. `proxies`: variable and proxy by scheme."""

    def __init__(self, proxies: Mapping[str, tuple[str, ProxyAddress]], no_proxy: str) -> None:
        self._variables = {scheme: name for scheme, (name, _) in proxies.items()}
        self._proxies = {scheme: proxy for scheme, (_, proxy) in proxies.items()}
        self._exceptions = [_Exception(entry) for entry in no_proxy.replace(",", " ").split()]
        self._cache: dict[tuple[str, str, int], ProxyAddress | None] = {}

    def proxy(self, url: URL) -> ProxyAddress | None:
        """The proxy of requests to this URL; None: they go out directly."""
        key = (url.scheme, url.raw_host or "", url.port or 0)
        try:
            return self._cache[key]
        except KeyError:
            pass
        if len(self._cache) >= _MAX_CACHED:
            self._cache.clear()
        scheme, host, port = key
        found = self._proxies.get(scheme)
        if any(exception.matches(host, port) for exception in self._exceptions):
            found = None
        self._cache[key] = found
        return found

    def named(self) -> dict[str, str]:
        """The proxies by the variables that name them, without credentials."""
        return {self._variables[scheme]: proxy.address for scheme, proxy in self._proxies.items()}


def environment_proxies(environment: Mapping[str, str]) -> EnvironmentProxies | None:
    """The proxies of this environment; None if it names none. Raises UsageError for one that is not valid."""
    found: dict[str, tuple[str, ProxyAddress]] = {}
    for scheme in ("http", "https"):
        for name in (f"{scheme}_proxy", f"{scheme.upper()}_PROXY", "all_proxy", "ALL_PROXY"):
            value = environment.get(name, "").strip()
            # In a CGI process HTTP_PROXY is the header `Proxy` of whoever sent the request.
            if value and not (name == "HTTP_PROXY" and "REQUEST_METHOD" in environment):
                found[scheme] = (name, parse_proxy_url(value, name))
                break
    if not found:
        return None
    no_proxy = environment.get("no_proxy") or environment.get("NO_PROXY") or ""
    return EnvironmentProxies(found, no_proxy)


def parse_proxy_url(text: str, source: str) -> ProxyAddress:
    """A proxy from its URL, or from `host:port`. Raises UsageError, which names the source and not the text."""
    problem = f"{source} is not the address of a proxy"
    remedy = "Unset it, or write http://host:port, https://host:port or socks5://host:port."
    if "://" not in text:
        text = f"http://{text}"
    try:
        parsed = urlsplit(text)
        port = parsed.port
    except ValueError:
        raise UsageError(f"{problem}: its port or its brackets are not valid.", remedy=remedy) from None
    scheme = _SCHEMES.get(parsed.scheme.lower())
    if scheme is None:
        raise UsageError(f"{problem}: there are no proxies of the kind {parsed.scheme!r} here.", remedy=remedy)
    if not parsed.hostname:
        raise UsageError(f"{problem}: it has no host.", remedy=remedy)
    return ProxyAddress(
        scheme,
        parsed.hostname,
        port or _DEFAULT_PORTS.get(scheme, _SOCKS_PORT),
        unquote(parsed.username or ""),
        unquote(parsed.password or ""),
    )


class _Exception:
    """An entry of NO_PROXY: a host and its subdomains, an address, a network, each with or without a port, or `*`."""

    def __init__(self, entry: str) -> None:
        entry = entry.lower().rpartition("://")[2]
        self._port: int | None = None
        self._network = _network(entry)
        if self._network is None:
            host, _, port = entry.rpartition(":")
            if host and port.isdigit():
                entry, self._port = host, int(port)
                self._network = _network(entry)
        self._host = entry if entry == "*" else entry.removeprefix("*").strip(".")

    def matches(self, host: str, port: int) -> bool:
        if self._port is not None and self._port != port:
            return False
        if self._host == "*":
            return True
        host = host.lower().rstrip(".")
        if self._network is not None:
            try:
                address = ipaddress.ip_address(host)
            except ValueError:
                return False
            return address.version == self._network.version and address in self._network
        return bool(self._host) and (host == self._host or host.endswith(f".{self._host}"))


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    try:
        return ipaddress.ip_network(text.strip("[]"), strict=False)
    except ValueError:
        return None
