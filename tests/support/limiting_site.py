"""A site that limits each address: nginx with `limit_req`, which answers 429 to what comes too fast."""

from contextlib import ExitStack
from typing import NamedTuple, Self

from tests.support.binaries import proxy_program
from tests.support.nginx import nginx
from tests.support.server import free_port

_SITE = """\
limit_req_zone $binary_remote_addr zone=addresses:1m rate={rate}r/s;
limit_req_status 429;
log_format visit '$remote_addr $status';
access_log FOLDER/visits.log visit;
server {{
  listen 127.0.0.1:{port};
  root FOLDER;
  location / {{ limit_req zone=addresses burst={burst} nodelay; try_files /page.html =404; }}
}}
"""


class LimitedVisit(NamedTuple):
    address: str
    status: int


class LimitingSite:
    """Use it as a context. `rate`: requests per second of an address; `burst`: how many more it may send at once."""

    def __init__(self, *, rate: int, burst: int) -> None:
        proxy_program("nginx")  # raises MissingPartError
        self._rate = rate
        self._burst = burst
        self._stack = ExitStack()
        self.port = free_port()

    def __enter__(self) -> Self:
        site = _SITE.format(port=self.port, rate=self._rate, burst=self._burst)
        files = {"page.html": "<h1>product</h1>"}
        self._folder = self._stack.enter_context(nginx(site, port=self.port, files=files))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def urls(self, count: int, folder: str = "page") -> list[str]:
        return [f"http://127.0.0.1:{self.port}/{folder}/{number}" for number in range(count)]

    def visits(self) -> list[LimitedVisit]:
        """Every request that it has answered."""
        lines = (self._folder / "visits.log").read_text().splitlines()
        return [LimitedVisit(address, int(status)) for address, status in map(str.split, lines)]
