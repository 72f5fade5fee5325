"""Who answers at the shop: looks the path up, takes its time, and keeps a log of the visitors."""

from __future__ import annotations

import asyncio
import time
import zlib
from collections import deque
from typing import TYPE_CHECKING

import msgspec

from shoal.demo.shop.site import Answer, Places, not_found

if TYPE_CHECKING:
    from aiohttp import web

# A shop left open for days must not fill the memory.
LOG_LENGTH = 200_000


class Visit(msgspec.Struct, frozen=True, kw_only=True):
    """One request as the shop saw it: `at` and `ended` by the monotonic clock, `host` without its port."""

    at: float
    ended: float
    host: str
    path: str
    status: int
    peer: str
    user_agent: str


class Counter:
    """Answers requests, and knows which paths were visited before."""

    def __init__(self, *, shop: Places, outlet: Places, outlet_host: str, latency: tuple[float, float]) -> None:
        self._shop, self._outlet = shop, outlet
        self._outlet_host = outlet_host
        self._fastest, self._spread = latency[0], latency[1] - latency[0]
        self._visited: set[str] = set()
        self._not_found = not_found()
        self.visits: deque[Visit] = deque(maxlen=LOG_LENGTH)

    async def respond(self, request: web.BaseRequest) -> web.StreamResponse:
        at = time.monotonic()
        host, path = request.host.partition(":")[0], request.raw_path
        status, response = await self._answer(request, host, path)
        self.visits.append(
            Visit(
                at=at,
                ended=time.monotonic(),
                host=host,
                path=path,
                status=status,
                peer=request.remote or "",
                user_agent=request.headers.get("User-Agent", ""),
            )
        )
        return response

    async def _answer(self, request: web.BaseRequest, host: str, path: str) -> tuple[int, web.StreamResponse]:
        if request.method not in ("GET", "HEAD"):
            return 405, _response(request, Answer(status=405, headers={"Allow": "GET, HEAD"}))
        place = (self._outlet if host == self._outlet_host else self._shop).get(path)
        usual = self._fastest + self._spread * (zlib.crc32(path.encode()) % 1000) / 1000
        answer, extra = self._not_found, 0.0
        if place is not None:
            answer, extra = place.answer, place.extra_seconds
            # Noted before the wait, so that of two visits at a time only one is the first.
            if place.first is not None and request.method == "GET" and path not in self._visited:
                self._visited.add(path)
                answer = place.first
        await asyncio.sleep(usual + extra)
        return answer.status, _response(request, answer)


def _response(request: web.BaseRequest, answer: Answer) -> web.Response:
    from aiohttp import web

    headers = {"Content-Type": answer.content_type, **answer.headers}
    body = answer.body
    if answer.packed is not None:
        headers["Vary"] = "Accept-Encoding"
        if "gzip" in request.headers.get("Accept-Encoding", ""):
            headers["Content-Encoding"] = "gzip"
            body = answer.packed
    return web.Response(body=body, status=answer.status, headers=headers)
