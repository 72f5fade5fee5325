"""Cookies by jar name: made when the first cookie arrives, the least used jar forgotten first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from aiohttp import CookieJar

if TYPE_CHECKING:
    from yarl import URL

MAX_JARS = 1_000


class Jars:
    """The cookies of every session; which host and path gets which is decided by the rules of RFC 6265."""

    def __init__(self, limit: int = MAX_JARS) -> None:
        self._limit = limit
        self._jars: OrderedDict[str, CookieJar] = OrderedDict()

    def header(self, name: str, url: URL) -> str:
        """The Cookie header for a request to this URL; empty if there is nothing to send."""
        jar = self._jars.get(name)
        if jar is None:
            return ""
        self._jars.move_to_end(name)
        return "; ".join(f"{morsel.key}={morsel.coded_value}" for morsel in jar.filter_cookies(url).values())

    def keep(self, name: str, url: URL, set_cookies: Sequence[str]) -> None:
        """Store what an answer from this URL asked to keep."""
        jar = self._jars.get(name)
        if jar is None:
            # "unsafe" allows cookies of hosts named by an address. Browsers do so too, for that address alone.
            jar = self._jars[name] = CookieJar(unsafe=True, quote_cookie=False)
            if len(self._jars) > self._limit:
                self._jars.popitem(last=False)
        self._jars.move_to_end(name)
        jar.update_cookies_from_headers(set_cookies, url)
