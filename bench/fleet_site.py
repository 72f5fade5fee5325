"""A website that takes its time: pages are answered after a latency, however many are asked for at once.

The latency varies by a fifth to either side. If it did not, the requests of a worker would march in step: the ledger
would be asked for ten items at once, and then for nothing.

It is a process of its own, `python -m bench.fleet_site LATENCY`, which says its port, ends with whoever started it, and
remembers when each request came. `/page/N` has the title "Page N"; `/arrivals` tells and forgets what it remembers.
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
    """Use it as a context. `latency`: seconds, on average."""

    def __init__(self, latency: float) -> None:
        self.latency = latency

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.fleet_site", str(self.latency)],
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
        return [f"http://127.0.0.1:{self.port}/page/{number}" for number in range(count)]

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


class _Visitor(asyncio.Protocol):
    """One connection. A framework would need more of the two cores than the answers are worth."""

    def __init__(self, latency: float, arrivals: list[float]) -> None:
        self._latency = latency
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
                asyncio.get_running_loop().call_later(latency, self._answer, title + _TEXT)

    def _answer(self, body: bytes) -> None:
        if not self._transport.is_closing():
            head = b"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: %d" % len(body)
            self._transport.write(head + _END + body)


async def _serve(latency: float) -> None:
    loop = asyncio.get_running_loop()
    arrivals: list[float] = []
    over = asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), over.set)
    server = await loop.create_server(lambda: _Visitor(latency, arrivals), "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await over.wait()
    server.close()


if __name__ == "__main__":
    uvloop.run(_serve(float(sys.argv[1])))
