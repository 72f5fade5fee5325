"""A website to test against, in a process of its own, and what it saw.

Its routes (tests/support/website): /page/N, /link/N (a tree: N leads to 2N and 2N+1), /slow/SECONDS/...,
/status/CODE, /status/CODE?retry-after=VALUE, /status/CODE/then-ok/N/..., /throttle/SECONDS[/date], /redirect/N,
/elsewhere/HOST/PATH, /moved/PATH, /loop, /scheme, /empty, /captcha, /latin1[/meta], /etag/...,
/cookie/set?NAME=VALUE, /cookie/show, /robots.txt, /sitemap.xml; and the unruly ones: /reset, /stall, /hang,
/lie/long, /lie/short, /bomb, /big/MB.
What remembers (then-ok, throttle) does so per host, path and query.
"""

import itertools
import json
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tests.support.server import LOOPBACK, Host

HOSTS = tuple(f"127.0.0.{number}" for number in range(1, 10))
_REPOSITORY = Path(__file__).parents[2]
_FAREWELL_SECONDS = 5.0


@dataclass(frozen=True)
class Visit:
    """One request as the site saw it.

    `start` and `end` are by time.monotonic(), which on Linux is the same clock in every process. `arrived` is when the
    kernel had the request, to a few milliseconds: unlike `start` it is right however late the site reads. `end` is None
    while it goes on; `status` is 0 if no answer began. `path` has the query. Header names are in lower case.
    """

    start: float
    arrived: float
    end: float | None
    host: str
    path: str
    method: str
    status: int
    peer: str
    connection: int
    headers: Mapping[str, str]

    @property
    def user_agent(self) -> str:
        return self.headers.get("user-agent", "")


class Site:
    """Use it as a context; it answers on one port of 127.0.0.1 to 127.0.0.9, which count as nine hosts.

    pages: how many /page/N and /link/N there are. delay: the seconds that each of them takes. robots: the text of
    robots.txt, or a status to answer instead, for all hosts or by host; hosts without one answer 404. extra: pages of
    your own, HTML by path. host: the node that it is on, whose address is then its only host.
    """

    def __init__(
        self,
        *,
        pages: int = 100,
        delay: float = 0.0,
        robots: str | int | Mapping[str, str | int] | None = None,
        extra: Mapping[str, str] | None = None,
        host: Host = LOOPBACK,
    ) -> None:
        self._hosts = (host.address,) if host.entry else HOSTS
        self._entry = host.entry
        by_host = (
            robots if isinstance(robots, Mapping) else {name: robots for name in self._hosts if robots is not None}
        )
        self._plan = {
            "hosts": self._hosts,
            "pages": pages,
            "delay": delay,
            "robots": dict(by_host),
            "extra": dict(extra or {}),
        }
        self._asking = threading.Lock()
        self._last: list[Visit] = []
        self._open = False
        self.port = 0

    def __enter__(self) -> Self:
        # Isolated from the environment and from installed packages: it needs none of them and starts at once.
        self._process = subprocess.Popen(
            [*self._entry, sys.executable, "-E", "-s", "-S", "-m", "tests.support.website"],
            cwd=_REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            self.port = json.loads(self._ask(json.dumps(self._plan)))
        except BaseException:
            self._stop()
            raise
        self._open = True
        return self

    def __exit__(self, *exception: object) -> None:
        try:
            self.visits()
        finally:
            self._open = False
            self._stop()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def url(self) -> str:
        """The first host, without a slash at the end."""
        return self.url_of(self._hosts[0])

    def url_of(self, host: str) -> str:
        return f"http://{host}:{self.port}"

    def visits(self) -> list[Visit]:
        """Every request so far, in the order of their starts. After the end, what was known then."""
        if self._open:
            self._last = [Visit(*line) for line in json.loads(self._ask("visits"))]
        return self._last

    def wait_until(self, seen: Callable[[list[Visit]], bool], timeout: float = 30.0) -> list[Visit]:
        """Wait until the visits satisfy `seen`, and return them. In async code call it through asyncio.to_thread."""
        deadline = time.monotonic() + timeout
        while not seen(visits := self.visits()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"not seen within {timeout:g} s; of {len(visits)} visits the last: {visits[-5:]}")
            time.sleep(0.01)
        return visits

    def _ask(self, line: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._asking:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the site ended by itself with {self._process.wait()}")
        return answer

    def _stop(self) -> None:
        try:
            self._process.communicate(timeout=_FAREWELL_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()


def of_host(visits: Iterable[Visit], host: str | None) -> list[Visit]:
    """Those of one host, or all of them."""
    return [visit for visit in visits if host is None or visit.host == host]


def most_at_once(visits: Iterable[Visit], host: str | None = None) -> int:
    """How many requests went on at the same time, at most. One that ends as another starts is not beside it."""
    changes = []
    for visit in of_host(visits, host):
        changes.append((visit.start, 1))
        if visit.end is not None:
            changes.append((visit.end, -1))
    return max(itertools.accumulate(step for _, step in sorted(changes)), default=0)


def closest_starts(visits: Iterable[Visit], host: str | None = None) -> float:
    """The shortest time between two arrivals, in seconds; infinite if there are not two."""
    starts = sorted(visit.arrived for visit in of_host(visits, host))
    return min((later - earlier for earlier, later in itertools.pairwise(starts)), default=float("inf"))


def per_path(visits: Iterable[Visit]) -> dict[str, list[Visit]]:
    """The visits of each path, whatever the host."""
    paths: dict[str, list[Visit]] = defaultdict(list)
    for visit in visits:
        paths[visit.path].append(visit)
    return dict(paths)
