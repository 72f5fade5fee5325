"""The requests of one fetch through its redirects, by the rules of browsers, and cookie jars by name."""

from __future__ import annotations

from base64 import b64encode
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from email.utils import formatdate
from http.cookies import Morsel
from typing import TYPE_CHECKING
from urllib.parse import unquote_to_bytes

from aiohttp import CookieJar, hdrs
from multidict import CIMultiDict
from yarl import URL

from shoal.errors import Permanent
from shoal.fetch import urls
from shoal.fetch.session import Cookie
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
        self._open(name).update_cookies_from_headers(set_cookies, url)

    def export(self, name: str) -> tuple[Cookie, ...]:
        """All cookies of a jar that have not expired."""
        jar = self._jars.get(name)
        return () if jar is None else tuple(_exported(jar, morsel) for morsel in jar)

    def load(self, name: str, cookies: Iterable[Cookie]) -> None:
        """Fill a jar with these cookies, in place of what it has."""
        self.drop(name)
        jar = self._open(name)
        for cookie in cookies:
            _add_cookie(jar, cookie)

    def drop(self, name: str) -> None:
        self._jars.pop(name, None)

    def _open(self, name: str) -> CookieJar:
        jar = self._jars.get(name)
        if jar is None:
            # "unsafe" allows cookies of hosts that are IP addresses, as browsers do.
            jar = self._jars[name] = CookieJar(unsafe=True, quote_cookie=False)
            if len(self._jars) > self._limit:
                self._jars.popitem(last=False)
        self._jars.move_to_end(name)
        return jar


def _exported(jar: CookieJar, morsel: Morsel[str]) -> Cookie:
    name, domain, path = morsel.key, morsel["domain"], morsel["path"] or "/"
    # Versions of aiohttp differ in whether a path ends with a slash here, and belongs to a host's own cookie.
    paths = (path, path.rstrip("/"))
    host_only: Collection[tuple[str, ...]] = jar._host_only_cookies
    is_host_only = (domain, name) in host_only or any((domain, each, name) in host_only for each in paths)
    expires = next((when for each in paths if (when := jar._expirations.get((domain, each, name))) is not None), -1)
    return Cookie(
        name=name,
        value=morsel.coded_value,
        domain=domain if is_host_only else f".{domain}",
        path=path,
        expires=int(expires),
        secure=bool(morsel["secure"]),
        httpOnly=bool(morsel["httponly"]),
        sameSite=morsel["samesite"].capitalize() or "Lax",
    )


def _add_cookie(jar: CookieJar, cookie: Cookie) -> None:
    """Add a cookie by the header that a site would have sent; an invalid one is left out."""
    host = cookie.domain.removeprefix(".")
    parts = [f"{cookie.name}={cookie.value}", f"Path={cookie.path}"]
    if host != cookie.domain:
        parts.append(f"Domain={host}")
    if cookie.expires >= 0:
        parts.append(f"Expires={formatdate(cookie.expires, usegmt=True)}")
    parts += [word for word, given in (("Secure", cookie.secure), ("HttpOnly", cookie.httpOnly)) if given]
    if cookie.sameSite:
        parts.append(f"SameSite={cookie.sameSite}")
    with suppress(ValueError):  # a host that no URL can have
        url = URL.build(scheme="https", host=host, path="/")
        jar.update_cookies_from_headers(["; ".join(parts)], url)
