"""The requests of one fetch through its redirects, by the rules of browsers, and cookie jars by name."""

from __future__ import annotations

from base64 import b64encode
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING
from urllib.parse import unquote_to_bytes

from aiohttp import CookieJar, hdrs
from multidict import CIMultiDict
from yarl import URL

from shoal.errors import Permanent
from shoal.fetch import urls
from shoal.model.redaction import is_secret_name, without_sent_secrets
from shoal.model.url_key import quoted

if TYPE_CHECKING:
    import can_ada

    from shoal.fetch.page import Request

REDIRECTS = frozenset({301, 302, 303, 307, 308})
_CREDENTIALS = (hdrs.AUTHORIZATION, hdrs.COOKIE, hdrs.PROXY_AUTHORIZATION)
_BODY_HEADERS = (
    hdrs.CONTENT_TYPE,
    hdrs.CONTENT_LENGTH,
    hdrs.CONTENT_ENCODING,
    hdrs.CONTENT_LANGUAGE,
    hdrs.CONTENT_LOCATION,
)
MAX_JARS = 1_000


class RedirectChain:
    """The next request of a fetch, and the URLs before it. `target` is `url` as it is sent."""

    __slots__ = ("_visited", "body", "headers", "history", "hop", "method", "redirects", "target", "url")

    def __init__(self, request: Request) -> None:
        self.url = request.url
        self.method = request.method.upper()
        self.headers = request.headers
        self.body = request.body
        self.hop = 0
        self.redirects = 0
        self.history: list[str] = []
        self._visited: set[tuple[str, str]] = set()
        self.target, self.headers = request_target(request.url, request.headers)

    def redirect(self, status: int, location: str, *, limit: int, new_cookies: bool) -> None:
        """Continue with the location of a response. Raises Permanent for a loop, too many redirects or no valid URL."""
        source = urls.parse_url(self.url)
        assert source is not None, "it was fetched"
        target = _redirect_target(source, location)
        self._visited.add((self.method, self.url))
        if new_cookies:
            # With new cookies the same URL may respond differently; sites redirect like this to test for cookies.
            self._visited.clear()
        self.history.append(self.url)
        self.redirects += 1
        self._change_method(status)
        if not urls.may_carry_credentials(source, target):
            self._drop_headers(*_CREDENTIALS, *filter(self._is_secret, self.headers))
        self.url = target.href
        if (self.method, self.url) in self._visited:
            repeated = urls.without_credentials(self.url)
            raise Permanent(f"{self._first_url()} redirects in a loop: {repeated} was visited before")
        if self.redirects > limit:
            raise Permanent(f"{self._first_url()} redirects more than {limit} times")
        self.hop += 1
        self.target, self.headers = request_target(self.url, self.headers)

    def _first_url(self) -> str:
        return urls.without_credentials(self.history[0])

    def _change_method(self, status: int) -> None:
        becomes_get = self.method == "POST" if status in (301, 302) else status == 303 and self.method != "HEAD"
        if becomes_get:
            self.method = "GET"
            self.body = None
            self._drop_headers(*_BODY_HEADERS)

    def _is_secret(self, name: str) -> bool:
        """Whether a header is a key of the site by its name, or has a secret that was given by name."""
        value = self.headers[name]
        return is_secret_name(name) or without_sent_secrets(value) != value

    def _drop_headers(self, *names: str) -> None:
        kept = CIMultiDict(self.headers)
        for name in names:
            kept.popall(name, None)
        self.headers = kept


def request_target(url: str, headers: Mapping[str, str]) -> tuple[URL, Mapping[str, str]]:
    """The URL to send, byte for byte where possible, and the headers with its credentials.

    Raises Permanent for a URL that cannot be fetched over HTTP.
    """
    text = url.partition("#")[0]
    if not urls.is_clean(text):
        parsed = urls.parse_url(text)
        if parsed is None:
            raise Permanent(f"{quoted(url)} is not a valid absolute URL")
        if not urls.is_http(parsed):
            named, scheme = quoted(urls.without_credentials(url)), parsed.protocol[:-1]
            raise Permanent(f"{named} has the scheme {scheme!r}; only http and https are fetched")
        if parsed.username or parsed.password:
            headers = _with_credentials(headers, parsed)
            parsed.username = parsed.password = ""
        text = parsed.href
    try:
        return _encode_url(text), headers
    except ValueError:
        raise Permanent(f"{quoted(url)} is not a URL that can be fetched") from None


def _encode_url(text: str) -> URL:
    url = URL(text, encoded=True)
    if text.endswith("?") and not url.raw_query_string:
        # yarl drops an empty query, but keeps it as the end of the path.
        return URL.build(scheme=url.scheme, authority=url.raw_authority, path=f"{url.raw_path}?", encoded=True)
    return url


def _with_credentials(headers: Mapping[str, str], url: can_ada.URL) -> Mapping[str, str]:
    secret = unquote_to_bytes(url.username) + b":" + unquote_to_bytes(url.password)
    complete = CIMultiDict(headers)
    complete.setdefault(hdrs.AUTHORIZATION, "Basic " + b64encode(secret).decode())
    return complete


def _redirect_target(source: can_ada.URL, location: str) -> can_ada.URL:
    try:
        target = source + urls.header_text(location.strip(urls.HTML_WHITESPACE))
    except (ValueError, TypeError):
        start = urls.without_credentials(source.href)
        raise Permanent(f"{start} redirects to {quoted(location)}, which is not a valid URL") from None
    if not urls.is_http(target):
        start = urls.without_credentials(source.href)
        scheme = target.protocol[:-1]
        raise Permanent(f"{start} redirects to the scheme {scheme!r}; only http and https are fetched")
    target.hash = ""
    return target


class CookieJars:
    """The cookies of every session, sent by RFC 6265. Above the limit the least recently used jar is dropped."""

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

    def store(self, name: str, url: URL, set_cookies: Sequence[str]) -> None:
        """Store the cookies of a response from this URL."""
        jar = self._jars.get(name)
        if jar is None:
            # "unsafe" allows cookies of hosts that are IP addresses, as browsers do.
            jar = self._jars[name] = CookieJar(unsafe=True, quote_cookie=False)
            if len(self._jars) > self._limit:
                self._jars.popitem(last=False)
        self._jars.move_to_end(name)
        jar.update_cookies_from_headers(set_cookies, url)
