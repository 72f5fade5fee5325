"""The shop from a seed to an open door: served from a thread with an event loop of its own."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager

from shoal.demo.shop.catalogue import make_catalogue
from shoal.demo.shop.counter import Counter, Visit
from shoal.demo.shop.facts import Facts, gather_facts
from shoal.demo.shop.faults import spread_trouble
from shoal.demo.shop.listening import SHOP_HOST, listen
from shoal.demo.shop.site import outlet_places, shop_places
from shoal.errors import InvalidSetting

# How long visitors who are still being served at closing time may stay.
_CLOSING_SECONDS = 1.0


class OpenShop:
    """A shop that is being served; it remembers its visitors."""

    def __init__(self, *, url: str, outlet_url: str, facts: Facts, visits: deque[Visit]) -> None:
        self.url = url
        self.outlet_url = outlet_url
        self._facts = facts
        self._visits = visits

    def facts(self) -> Facts:
        """What a complete scrape must have found."""
        return self._facts

    def log(self) -> list[Visit]:
        """The visits that ended so far, in that order: the last 200,000 of them."""
        return list(self._visits)


class Shop:
    """A shop made from a seed. `latency`: the least and the most seconds that a page takes, the same for each path."""

    def __init__(
        self,
        *,
        seed: int = 7,
        per_category: int = 104,
        latency: tuple[float, float] = (0.002, 0.005),
        port: int = 0,
    ) -> None:
        if not 0 <= latency[0] <= latency[1]:
            raise InvalidSetting(f"Pages cannot take from {latency[0]} to {latency[1]} seconds.")
        if not 0 <= port <= 65_535:
            raise InvalidSetting(
                f"There is no port {port}.", remedy="Choose one up to 65535, or 0 for any that is free."
            )
        self._catalogue = make_catalogue(seed, per_category)
        products = [product for category in self._catalogue.categories for product in category.products]
        self._trouble = spread_trouble(seed, products)
        self._latency = latency
        self._port = port

    @contextmanager
    def serving(self) -> Iterator[OpenShop]:
        """Open the shop: nobody has been there before, whatever happened at an earlier opening."""
        sockets, outlet_host = listen(self._port)
        port = sockets[0].getsockname()[1]
        url, outlet_url = f"http://{SHOP_HOST}:{port}", f"http://{outlet_host}:{port}"
        catalogue, trouble = self._catalogue, self._trouble
        counter = Counter(
            shop=shop_places(catalogue, trouble, url, outlet_url),
            outlet=outlet_places(catalogue.outlet, outlet_url, url),
            outlet_host=outlet_host,
            latency=self._latency,
        )
        facts = gather_facts(catalogue, trouble, url, outlet_url)
        with _served(counter, sockets):
            yield OpenShop(url=url, outlet_url=outlet_url, facts=facts, visits=counter.visits)


@contextmanager
def _served(counter: Counter, sockets: Sequence[socket.socket]) -> Iterator[None]:
    opened: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()
    thread = threading.Thread(target=_run, args=(counter, sockets, opened), name="shop", daemon=True)
    thread.start()
    loop, closing = opened.result()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(closing.set)
        thread.join()


def _run(
    counter: Counter,
    sockets: Sequence[socket.socket],
    opened: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]],
) -> None:
    async def serve() -> None:
        from aiohttp import web

        closing = asyncio.Event()
        runner = web.ServerRunner(web.Server(counter.respond, access_log=None), shutdown_timeout=_CLOSING_SECONDS)
        await runner.setup()
        for listener in sockets:
            await web.SockSite(runner, listener).start()
        opened.set_result((asyncio.get_running_loop(), closing))
        await closing.wait()
        await runner.cleanup()

    try:
        asyncio.run(serve())
    except BaseException as error:
        if opened.done():
            raise
        opened.set_exception(error)
