"""nginx in front of `shoal serve`, below a sub-path."""

from __future__ import annotations

import shutil
import signal
import socket
from typing import Self

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
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  map $http_upgrade $connection_upgrade {{ default upgrade; '' ''; }}
  server {{
    listen 127.0.0.1:{port};
    location / {{ return 404 "not Shoal"; }}
    location {path}/ {{
      proxy_pass http://127.0.0.1:{upstream}{rest};
      proxy_http_version 1.1;
      proxy_set_header Host $http_host;
      proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
      proxy_set_header X-Forwarded-Proto $scheme;
      proxy_set_header Upgrade $http_upgrade;
      proxy_set_header Connection $connection_upgrade;
      proxy_read_timeout 60s;
    }}
  }}
}}
"""


class ReverseProxy:
    """Use it as a context. `removes_path`: it passes on what follows the sub-path, instead of the whole path."""

    def __init__(self, upstream: int, path: str, *, removes_path: bool) -> None:
        self._program = proxy_program("nginx")
        self._account = Account.unprivileged()
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}{path}"
        self._values = {"upstream": upstream, "path": path, "port": self.port, "rest": "/" if removes_path else ""}

    def __enter__(self) -> Self:
        self._folder = self._account.scratch_folder("shoal-proxy-")
        config = self._folder / "nginx.conf"
        config.write_text(_CONFIG.format(folder=self._folder, **self._values))
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

    def _is_listening(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0
