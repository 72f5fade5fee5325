"""The well-behaved half of the site, and who answers which path."""

import asyncio
import math
import time
from collections.abc import Mapping, Sequence
from email.utils import formatdate
from typing import TypedDict
from urllib.parse import parse_qsl

from tests.support.website import unruly
from tests.support.website.wire import Request

_TAG = '"v1"'
_MODIFIED = "Sat, 01 Aug 2026 10:00:00 GMT"
_LONGEST_SLEEP = 60.0


class Plan(TypedDict):
    """What a test asked for."""

    hosts: Sequence[str]
    pages: int
    delay: float
    robots: Mapping[str, str | int]
    extra: Mapping[str, str]


class Site:
    """Answers every path by its first segment; remembers what the stateful ones need."""

    def __init__(self, plan: Plan) -> None:
        self._pages = plan["pages"]
        self._delay = plan["delay"]
        self._robots = plan["robots"]
        self._extra = plan["extra"]
        self._failed: dict[str, int] = {}
        self._throttled_until: dict[str, float] = {}
        self._routes = {
            "": self._home,
            "page": self._page,
            "link": self._link,
            "slow": self._slow,
            "status": self._status,
            "throttle": self._throttle,
            "redirect": self._redirect,
            "elsewhere": self._elsewhere,
            "moved": self._moved,
            "loop": self._loop,
            "scheme": self._scheme,
            "empty": self._empty,
            "captcha": self._captcha,
            "latin1": self._latin1,
            "etag": self._etag,
            "cookie": self._cookie,
            "robots.txt": self._robots_txt,
            "sitemap.xml": self._sitemap,
            **unruly.ROUTES,
        }

    async def answer(self, request: Request) -> None:
        if request.path in self._extra:
            await asyncio.sleep(self._delay)
            request.answer(self._extra[request.path])
            return
        first, *rest = request.path.removeprefix("/").split("/")
        route = self._routes.get(first)
        try:
            if route is None:
                raise LookupError
            await route(request, rest)
        except (LookupError, ValueError):
            request.answer(html("Not found"), 404)

    async def _home(self, request: Request, rest: list[str]) -> None:
        links = "".join(f'<li><a href="/page/{number}">Page {number}</a></li>' for number in self._numbers())
        request.answer(html("Home", f"<ul>{links}</ul>"))

    async def _page(self, request: Request, rest: list[str]) -> None:
        number = int(rest[0])
        self._numbers().index(number)
        await asyncio.sleep(self._delay)
        request.answer(html(f"Page {number}", f'<p class="number">{number}</p>'))

    async def _link(self, request: Request, rest: list[str]) -> None:
        number = int(rest[0])
        self._numbers().index(number)
        children = [child for child in (2 * number, 2 * number + 1) if child <= self._pages]
        await asyncio.sleep(self._delay)
        request.answer(html(f"Link {number}", "".join(f'<a href="/link/{child}">{child}</a> ' for child in children)))

    async def _slow(self, request: Request, rest: list[str]) -> None:
        await asyncio.sleep(min(float(rest[0]), _LONGEST_SLEEP))
        request.answer(html(f"Slow {rest[0]}"))

    async def _status(self, request: Request, rest: list[str]) -> None:
        """/status/CODE[/then-ok/N[/...]][?retry-after=VALUE]"""
        code = int(rest[0])
        if rest[1:2] == ["then-ok"]:
            failed = self._failed.get(request.key, 0)
            if failed >= int(rest[2]):
                request.answer(html("At last"))
                return
            self._failed[request.key] = failed + 1
        wait = dict(parse_qsl(request.query)).get("retry-after")
        request.answer(html(f"Status {code}"), code, **({} if wait is None else {"Retry_After": wait}))

    async def _throttle(self, request: Request, rest: list[str]) -> None:
        """/throttle/SECONDS[/date][?...]: 429 from the first visit until the time has passed, then 200."""
        now = time.monotonic()
        until = self._throttled_until.setdefault(request.key, now + min(float(rest[0]), _LONGEST_SLEEP))
        if now >= until:
            request.answer(html("At last"))
            return
        # Rounded up, because a visit at the very time that was named must succeed.
        whole = math.ceil(until - now)
        dated = formatdate(math.ceil(time.time() + until - now), usegmt=True)
        request.answer(html("Slow down"), 429, Retry_After=dated if rest[1:] == ["date"] else str(whole))

    async def _redirect(self, request: Request, rest: list[str]) -> None:
        left = int(rest[0])
        if left > 0:
            request.answer(b"", 302, Location=f"/redirect/{left - 1}")
        else:
            request.answer(html("Redirected"))

    async def _elsewhere(self, request: Request, rest: list[str]) -> None:
        """/elsewhere/HOST/PATH: a redirect to another host of this site."""
        port = request.headers.get("host", "").rpartition(":")[2]
        request.answer(b"", 302, Location=f"http://{rest[0]}:{port}/{'/'.join(rest[1:])}")

    async def _moved(self, request: Request, rest: list[str]) -> None:
        """/moved/PATH: a redirect to the path."""
        await asyncio.sleep(self._delay)
        request.answer(b"", 301, Location=f"/{'/'.join(rest)}")

    async def _loop(self, request: Request, rest: list[str]) -> None:
        request.answer(b"", 302, Location="/loop" if rest else "/loop/again")

    async def _scheme(self, request: Request, rest: list[str]) -> None:
        request.answer(b"", 302, Location="ftp://127.0.0.1/file")

    async def _empty(self, request: Request, rest: list[str]) -> None:
        request.answer(b"")

    async def _captcha(self, request: Request, rest: list[str]) -> None:
        request.answer(html("Are you a robot?", '<div id="captcha">Solve the captcha to verify you are human.</div>'))

    async def _latin1(self, request: Request, rest: list[str]) -> None:
        """/latin1 says so in a header, /latin1/meta in a meta tag only."""
        body = "<p>Crème brûlée, naïve façade</p>"
        if rest == ["meta"]:
            page = html("Café", body).replace("utf-8", "iso-8859-1")
            request.answer(page.encode("latin-1"), kind="text/html")
        else:
            page = html("Café", body).replace('<meta charset="utf-8">', "")
            request.answer(page.encode("latin-1"), kind="text/html; charset=iso-8859-1")

    async def _etag(self, request: Request, rest: list[str]) -> None:
        asked = request.headers
        # A tag is the stronger statement: where there is one, the date does not count.
        known = asked.get("if-none-match", _TAG if asked.get("if-modified-since") == _MODIFIED else "")
        if known == _TAG:
            request.answer(b"", 304, ETag=_TAG, Last_Modified=_MODIFIED)
        else:
            request.answer(html("Tagged"), ETag=_TAG, Last_Modified=_MODIFIED)

    async def _cookie(self, request: Request, rest: list[str]) -> None:
        """/cookie/set?NAME=VALUE gives one, /cookie/show tells which came back."""
        if rest == ["set"]:
            name, value = parse_qsl(request.query)[0]
            request.answer(html("Have a cookie"), Set_Cookie=f"{name}={value}; Path=/")
        elif rest == ["show"]:
            request.answer(request.headers.get("cookie", ""), kind="text/plain; charset=utf-8")
        else:
            raise LookupError

    async def _robots_txt(self, request: Request, rest: list[str]) -> None:
        rules = self._robots[request.host]
        if isinstance(rules, int):
            request.answer(html(f"Status {rules}"), rules)
        else:
            request.answer(rules, kind="text/plain; charset=utf-8")

    async def _sitemap(self, request: Request, rest: list[str]) -> None:
        base = f"http://{request.headers['host']}"
        places = "".join(f"<url><loc>{base}/page/{number}</loc></url>\n" for number in self._numbers())
        space = "http://www.sitemaps.org/schemas/sitemap/0.9"
        text = f'<?xml version="1.0" encoding="UTF-8"?>\n<urlset xmlns="{space}">\n{places}</urlset>\n'
        request.answer(text, kind="application/xml")

    def _numbers(self) -> range:
        return range(1, self._pages + 1)


def html(title: str, body: str = "") -> str:
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title></head>\n'
        f"<body><h1>{title}</h1>{body}</body></html>\n"
    )
