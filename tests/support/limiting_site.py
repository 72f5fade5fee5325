"""A site that limits each address: nginx with `limit_req`, which answers 429 to what comes too fast."""

import shutil
import signal
import socket
from typing import NamedTuple, Self

from tests.support.account import Account
from tests.support.binaries import proxy_program
from tests.support.server import ServerProcess, free_port

_CONFIG = """\
daemon off;
pid {folder}/nginx.pid;
error_log stderr crit;
worker_processes 1;
events {{ worker_connections 256; }}
http {{
  default_type text/html;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  limit_req_zone $binary_remote_addr zone=addresses:1m rate={rate}r/s;
  limit_req_status 429;
  log_format visit '$remote_addr $status';
  access_log {folder}/visits.log visit;
  server {{
    listen 127.0.0.1:{port};
    root {folder};
    location / {{ limit_req zone=addresses burst={burst} nodelay; try_files /page.html =404; }}
  }}
}}
"""


class LimitedVisit(NamedTuple):
    address: str
    status: int


class LimitingSite:
    """Use it as a context. `rate`: requests per second of an address; `burst`: how many more it may send at once."""

    def __init__(self, *, rate: int, burst: int) -> None:
        self._program = proxy_program("nginx")
        self._account = Account.unprivileged()
        self._rate = rate
        self._burst = burst
        self.port = free_port()

    def __enter__(self) -> Self:
        self._folder = self._account.scratch_folder("shoal-limits-")
        config = self._folder / "nginx.conf"
        config.write_text(_CONFIG.format(folder=self._folder, port=self.port, rate=self._rate, burst=self._burst))
        (self._folder / "page.html").write_text("<h1>product</h1>")
        self._account.give(self._folder)
        self._process = ServerProcess(
            [str(self._program), "-c", str(config), "-p", str(self._folder), "-e", "stderr"],
            account=self._account,
            folder=self._folder,
            farewell=signal.SIGTERM,
        )
        self._process.wait_until(self._is_listening)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.stop(signal.SIGTERM)
        shutil.rmtree(self._folder, ignore_errors=True)

    def urls(self, count: int, folder: str = "page") -> list[str]:
        return [f"http://127.0.0.1:{self.port}/{folder}/{number}" for number in range(count)]

    def visits(self) -> list[LimitedVisit]:
        """Every request that it has answered."""
        lines = (self._folder / "visits.log").read_text().splitlines()
        return [LimitedVisit(address, int(status)) for address, status in map(str.split, lines)]

    def _is_listening(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0
