"""Serves the shop from a thread with its own event loop, on one loopback port and two hosts, and logs every visit."""

from __future__ import annotations

import asyncio
import socket
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from shoal.demo.shop.catalogue import assign_faults, make_catalogue
from shoal.demo.shop.search import ShopSearch
from shoal.demo.shop.site import Routes, ShopFacts, ShopResponse, gather_facts, not_found, outlet_routes, shop_routes
from shoal.demo.stand_in import CannotBind, Visit, check_latency, check_port, latency_of, listen, serve_in_thread

if TYPE_CHECKING:
    from aiohttp import web

SHOP_HOST = "127.0.0.1"
_OUTLET_HOST = "127.0.0.2"
# Some systems have only one loopback address. There the outlet has another name of the same address.
_OUTLET_NAME = "localhost"
# Limits the memory of a shop that runs for days.
LOG_LENGTH = 200_000


def _listen(port: int) -> tuple[list[socket.socket], str]:
    """The sockets of both hosts on one port, and the outlet's host."""
    try:
        return listen((SHOP_HOST, _OUTLET_HOST), port), _OUTLET_HOST
    except CannotBind as error:
        if error.taken:
            raise
        return listen((SHOP_HOST,), port), _OUTLET_NAME


class RequestHandler:
    """Answers requests and records which paths were visited."""

    def __init__(
        self, *, shop: Routes, outlet: Routes, search: ShopSearch, outlet_host: str, latency: tuple[float, float]
    ) -> None:
        self._shop, self._outlet, self._search = shop, outlet, search
        self._outlet_host = outlet_host
        self._latency = latency
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
        latency = latency_of(path, self._latency)
        if host != self._outlet_host:
            place, _, query = path.partition("?")
            found = self._search.answer(request.method, place, query, request.headers, await request.read())
            if found is not None:
                await asyncio.sleep(latency)
                return found.status, _response(request, found)
        if request.method not in ("GET", "HEAD"):
            return 405, _response(request, ShopResponse(status=405, headers={"Allow": "GET, HEAD"}))
        route = (self._outlet if host == self._outlet_host else self._shop).get(path)
        answer, extra = self._not_found, 0.0
        if route is not None:
            answer, extra = route.answer, route.extra_seconds
            # Recorded before the wait, so that only one of two concurrent visits is the first.
            if route.first is not None and request.method == "GET" and path not in self._visited:
                self._visited.add(path)
                answer = route.first
        await asyncio.sleep(latency + extra)
        return answer.status, _response(request, answer)


def _response(request: web.BaseRequest, answer: ShopResponse) -> web.Response:
    from aiohttp import web

    headers = {"Content-Type": answer.content_type, **answer.headers}
    body = answer.body
    if answer.gzipped is not None:
        headers["Vary"] = "Accept-Encoding"
        if "gzip" in request.headers.get("Accept-Encoding", ""):
            headers["Content-Encoding"] = "gzip"
            body = answer.gzipped
    return web.Response(body=body, status=answer.status, headers=headers)


class RunningShop:
    """A shop that is being served, with its log."""

    def __init__(self, *, url: str, outlet_url: str, facts: ShopFacts, visits: deque[Visit]) -> None:
        self.url = url
        self.outlet_url = outlet_url
        self._facts = facts
        self._visits = visits

    def facts(self) -> ShopFacts:
        """What a complete scrape must find."""
        return self._facts

    def log(self) -> list[Visit]:
        """The visits that have ended, in that order: at most the last 200,000."""
        return list(self._visits)


class Shop:
    """A shop made from a seed. `latency`: the least and the most seconds of a response, constant for each path."""

    def __init__(
        self,
        *,
        seed: int = 7,
        per_category: int = 104,
        latency: tuple[float, float] = (0.002, 0.005),
        port: int = 0,
    ) -> None:
        check_latency(latency)
        check_port(port)
        self._catalogue = make_catalogue(seed, per_category)
        products = [product for category in self._catalogue.categories for product in category.products]
        self._fault_plan = assign_faults(seed, products)
        self._latency = latency
        self._port = port

    @contextmanager
    def serving(self) -> Iterator[RunningShop]:
        """Serve the shop, with an empty log and every first visit still to come."""
        sockets, outlet_host = _listen(self._port)
        port = sockets[0].getsockname()[1]
        url, outlet_url = f"http://{SHOP_HOST}:{port}", f"http://{outlet_host}:{port}"
        catalogue, fault_plan = self._catalogue, self._fault_plan
        handler = RequestHandler(
            shop=shop_routes(catalogue, fault_plan, url, outlet_url),
            outlet=outlet_routes(catalogue.outlet, outlet_url, url),
            search=ShopSearch(catalogue),
            outlet_host=outlet_host,
            latency=self._latency,
        )
        facts = gather_facts(catalogue, fault_plan, url, outlet_url)
        with serve_in_thread(handler.respond, sockets, name="shop"):
            yield RunningShop(url=url, outlet_url=outlet_url, facts=facts, visits=handler.visits)
