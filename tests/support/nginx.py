"""A real nginx on loopback: with a configuration of the test's, or as a reverse proxy below a sub-path."""

import shutil
import signal
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

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
  access_log {folder}/access.log;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  include {folder}/site.conf;
}}
"""
_REVERSE_PROXY = """\
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
"""


@contextmanager
def nginx(site: str, *, port: int, files: Mapping[str, str] | None = None) -> Iterator[Path]:
    """Run it with what belongs into its block `http`, in a folder with these files, which `FOLDER` in it stands for.

    It listens on `port` when the context begins. Yields the folder.
    """
    program = proxy_program("nginx")
    account = Account.unprivileged()
    folder = account.scratch_folder("shoal-nginx-")
    for name, text in {**(files or {}), "nginx.conf": _CONFIG.format(folder=folder)}.items():
        (folder / name).write_text(text)
    (folder / "site.conf").write_text(site.replace("FOLDER", str(folder)))
    account.give(folder)
    process = ServerProcess(
        [str(program), "-c", str(folder / "nginx.conf"), "-p", str(folder), "-e", "stderr"],
        account=account,
        folder=folder,
        farewell=signal.SIGTERM,
    )
    try:
        process.wait_until(lambda: _is_listening(port))
        yield folder
    finally:
        process.stop(signal.SIGTERM)
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def reverse_proxy(upstream: int, path: str, *, removes_path: bool) -> Iterator[str]:
    """A proxy before the server at a port, below a sub-path. Yields its address.

    `removes_path`: it passes on what follows the sub-path, instead of the whole path.
    """
    port = free_port()
    site = _REVERSE_PROXY.format(port=port, path=path, upstream=upstream, rest="/" if removes_path else "")
    with nginx(site, port=port):
        yield f"http://127.0.0.1:{port}{path}"


def _is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
