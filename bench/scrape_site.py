"""A website that is faster than any scraper: nginx with answers made from its configuration, and what it saw.

`/small/N` and `/large/N` are pages of about 1 KB and 20 KB with the title "Page N". `/tree/DIGITS` leads to ten pages
with one digit more, down to `depth` digits, and back to a few that are known already, as the menus of real sites do.
"""

from __future__ import annotations

import http.client
import shutil
import signal
import socket
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from tests.support import MissingPartError
from tests.support.account import Account
from tests.support.certificates import Certificate
from tests.support.server import ServerProcess, free_port

# One worker process, free to run on any core: on loopback it needs a fraction of what its visitors need. Of every
# connection only the first request is logged, so that the log costs nothing and still tells when a visitor came.
_CONFIG = """\
daemon off;
pid {folder}/nginx.pid;
error_log stderr warn;
worker_processes 1;
events {{ worker_connections 1024; }}
http {{
  default_type text/html;
  charset utf-8;
  server_tokens off;
  keepalive_requests 1000000000;
  keepalive_timeout 600s;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  map $connection_requests $is_first {{ 1 1; default 0; }}
  log_format moment '$msec';
  access_log {folder}/first.log moment if=$is_first;
  server {{
    listen 127.0.0.1:{port} backlog=1024;
    {tls}
    set $text "{text}";
    location = /robots.txt {{ default_type text/plain; return 200 "User-agent: *\\nDisallow: /private/\\n"; }}
    location ~ ^/small/(\\d+)$ {{ return 200 "{head}$1{body}$text</body></html>"; }}
    location ~ ^/large/(\\d+)$ {{ return 200 "{head}$1{body}{twenty_texts}</body></html>"; }}
    location ~ "^/tree/(\\d{{0,{inner}}})$" {{ return 200 "{head}$1{body}{menu}{children}$text</body></html>"; }}
    location ~ "^/tree/(\\d{{{depth}}})$" {{ return 200 "{head}$1{body}{menu}$text</body></html>"; }}
  }}
}}
"""
_HEAD = "<!DOCTYPE html><html lang='en'><head><meta charset='utf-8'><title>Page "
_BODY = "</title></head><body><h1>A page</h1>"
_SENTENCE = "<p class='words'>A shoal has no leader: every fish moves by itself and takes what nobody else has.</p>\n"
_MENU = "".join(f"<a href='/tree/{place}'>menu</a>" for place in ("", 1, 2, 3))
_CHILDREN = "".join(f"<p><a href='/tree/$1{digit}'>further</a></p>" for digit in range(10))
_PROGRAM_FOLDERS = "/usr/sbin:/usr/local/sbin"


def nginx_program() -> str:
    """Where nginx is; Debian puts it outside the PATH of plain users."""
    found = shutil.which("nginx") or shutil.which("nginx", path=_PROGRAM_FOLDERS)
    if found is None:
        raise MissingPartError("nginx is not installed: run `apt-get install nginx-light` as root")
    return found


class FastSite:
    """Use it as a context. `depth`: how many digits the leaves of the tree have. `certificate`: it also serves TLS."""

    def __init__(self, *, depth: int = 4, certificate: Certificate | None = None) -> None:
        self._program = nginx_program()
        self._certificate = certificate
        self._depth = depth
        self._account = Account.unprivileged()
        self.port = free_port()
        self._tls_port = free_port()

    def __enter__(self) -> Self:
        self._folder = self._account.scratch_folder("shoal-nginx-")
        config = self._folder / "nginx.conf"
        config.write_text(self._config())
        self._account.give(self._folder)
        self._process = ServerProcess(
            [self._program, "-c", str(config), "-p", str(self._folder), "-e", "stderr"],
            account=self._account,
            folder=self._folder,
            farewell=signal.SIGTERM,
        )
        self._process.wait_until(self._answers)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.stop(signal.SIGTERM)
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def tls_url(self) -> str:
        """The same site by HTTPS, with HTTP/2."""
        return f"https://127.0.0.1:{self._tls_port}"

    def urls(self, kind: str, count: int) -> list[str]:
        """So many pages of a kind, small or large."""
        return [f"{self.url}/{kind}/{number}" for number in range(count)]

    @property
    def tree_pages(self) -> int:
        """How many pages a crawl from /tree/ finds."""
        return int("1" * (self._depth + 1))

    def visitors(self) -> int:
        """How many connections have come so far; hand it to `first_visit` later."""
        return len(self._log())

    def first_visit(self, since: int) -> float:
        """When the first answer after those visitors was given, by the wall clock, to the millisecond."""
        return float(self._log()[since])

    def seconds_used(self) -> float:
        """The processor time it has taken so far."""
        main = psutil.Process(self._process.pid)
        times = [process.cpu_times() for process in (main, *main.children(recursive=True))]
        return float(sum(time.user + time.system for time in times))

    def _config(self) -> str:
        return _CONFIG.format(
            folder=self._folder,
            port=self.port,
            tls=self._tls_config(),
            text=_SENTENCE * 9,
            twenty_texts="$text" * 23,
            head=_HEAD,
            body=_BODY,
            menu=_MENU,
            children=_CHILDREN,
            depth=self._depth,
            inner=self._depth - 1,
        )

    def _tls_config(self) -> str:
        if self._certificate is None:
            return ""
        for file in (self._certificate.path, self._certificate.key):
            shutil.copy(file, self._folder)
            self._account.give(self._folder / file.name)
        folder, files = self._folder, self._certificate
        return (
            f"listen 127.0.0.1:{self._tls_port} ssl http2; ssl_certificate {folder / files.path.name}; "
            f"ssl_certificate_key {folder / files.key.name};"
        )

    def _log(self) -> list[str]:
        return (Path(self._folder) / "first.log").read_text().split()

    def _answers(self) -> bool:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", self.port)) != 0:
                return False
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        connection.request("GET", "/small/1")
        answer = connection.getresponse()
        answer.read()
        connection.close()
        return answer.status == 200
