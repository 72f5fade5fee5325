"""A website that takes its time: pages are answered after a latency, however many are asked for at once.

The latency varies by a fifth to either side. If it did not, the requests of a worker would march in step: the ledger
would be asked for ten items at once, and then for nothing.

It is a process of its own, `python -m bench.fleet_site LATENCY SIZE HOSTS`, which says its port, ends with whoever
started it, and remembers when each request came. `/page/N` has the title "Page N"; `/arrivals` tells and forgets what
it remembers. Its hosts are addresses of this machine: 127.0.0.1, 127.0.0.2 and so on.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import random
import subprocess
import sys
import time
from types import TracebackType
from typing import Self, cast

import psutil
import uvloop

from bench.scrape_trial import REPOSITORY

SPREAD = 0.2
_END = b"\r\n\r\n"
_TEXT = b"<p>A shoal has no leader: every fish moves by itself and takes what nobody else has.</p>\n" * 9


class LateSite:
    """Use it as a context. `latency`: seconds, on average. `size`: bytes of a page, about. `hosts`: how many it has."""

    def __init__(self, latency: float, *, size: int = len(_TEXT), hosts: int = 1) -> None:
        self.latency = latency
        self._size = size
        self._hosts = hosts

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.fleet_site", str(self.latency), str(self._size), str(self._hosts)],
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.communicate()

    def urls(self, count: int) -> list[str]:
        hosts = _addresses(self._hosts)
        return [f"http://{hosts[number % len(hosts)]}:{self.port}/page/{number}" for number in range(count)]

    def arrivals(self) -> list[float]:
        """When each request since the last call came, by the monotonic clock that all processes here share."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        try:
            connection.request("GET", "/arrivals")
            return [float(moment) for moment in json.loads(connection.getresponse().read())]
        finally:
            connection.close()

    def seconds_used(self) -> float:
        """The processor time it has taken so far."""
        times = psutil.Process(self._process.pid).cpu_times()
        return float(times.user + times.system)


def _addresses(count: int) -> list[str]:
    return [f"127.0.{number // 250}.{number % 250 + 1}" for number in range(count)]


class _Visitor(asyncio.Protocol):
    """One connection. A framework would need more of the two cores than the answers are worth."""

    def __init__(self, latency: float, text: bytes, arrivals: list[float]) -> None:
        self._latency = latency
        self._text = text
        self._arrivals = arrivals
        self._unread = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._unread += data
        while _END in self._unread:
            head, _, self._unread = self._unread.partition(_END)
            path = head.split(b" ", 2)[1]
            if path == b"/arrivals":
                told = json.dumps(self._arrivals).encode()
                self._arrivals.clear()
                self._answer(told)
            else:
                self._arrivals.append(time.monotonic())
                title = b"<title>Page %s</title>" % path.rpartition(b"/")[2]
                latency = self._latency * random.uniform(1 - SPREAD, 1 + SPREAD)
                asyncio.get_running_loop().call_later(latency, self._answer, title + self._text)

    def _answer(self, body: bytes) -> None:
        if not self._transport.is_closing():
            head = b"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: %d" % len(body)
            self._transport.write(head + _END + body)


async def _serve(latency: float, size: int, hosts: int) -> None:
    loop = asyncio.get_running_loop()
    arrivals: list[float] = []
    over = asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), over.set)
    text = _TEXT * (size // len(_TEXT)) + _TEXT[: size % len(_TEXT)]

    def visitor() -> _Visitor:
        return _Visitor(latency, text, arrivals)

    first, *others = _addresses(hosts)
    server = await loop.create_server(visitor, first, 0, backlog=1024)
    port = server.sockets[0].getsockname()[1]
    if others:
        await loop.create_server(visitor, others, port, backlog=1024)
    print(port, flush=True)
    await over.wait()
    server.close()


if __name__ == "__main__":
    uvloop.run(_serve(float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
