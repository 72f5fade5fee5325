"""A real nginx on loopback, with a configuration of the test's."""

import shutil
import signal
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.support.account import Account
from tests.support.binaries import proxy_program
from tests.support.server import ServerProcess

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


def _is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
