"""A real nginx on loopback: with a configuration of the test's, or with that of deploy/nginx before `shoal serve`."""

import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.support.account import Account
from tests.support.binaries import proxy_program
from tests.support.certificates import Certificate
from tests.support.deployments import DEPLOY
from tests.support.server import LOOPBACK, Host, ServerProcess, free_port

# The name in the configuration of users; they replace it.
SHOAL_NAME = "tools.example.com"
SHOAL_CONFIG = (DEPLOY / "nginx" / "shoal.conf").read_text()

_CONFIG = """\
daemon off;
pid {folder}/nginx.pid;
error_log stderr crit;
worker_processes 1;
events {{ worker_connections {connections}; }}
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
def nginx(
    site: str,
    *,
    port: int,
    files: Mapping[str, str] | None = None,
    host: Host = LOOPBACK,
    connections: int = 256,
) -> Iterator[Path]:
    """Run it with what belongs into its block `http`, in a folder with these files, which `FOLDER` in it stands for.

    It listens on `port` when the context begins. `host`: the node that it runs on. Yields the folder.
    """
    program = proxy_program("nginx")
    account = Account.unprivileged()
    folder = account.scratch_folder("shoal-nginx-")
    for name, text in {**(files or {}), "nginx.conf": _CONFIG.format(folder=folder, connections=connections)}.items():
        (folder / name).write_text(text)
    (folder / "site.conf").write_text(site.replace("FOLDER", str(folder)))
    account.give(folder)
    process = ServerProcess(
        [*host.entry, str(program), "-c", str(folder / "nginx.conf"), "-p", str(folder), "-e", "stderr"],
        account=Account() if host.entry else account,
        folder=folder,
        farewell=signal.SIGTERM,
    )
    try:
        process.wait_until(lambda: is_listening(host, port))
        yield folder
    finally:
        process.stop(signal.SIGTERM)
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def shoal_proxy(upstream: str, certificate: Certificate, *, removes_path: bool = False) -> Iterator[int]:
    """Run it with deploy/nginx/shoal.conf in front of a server at the address `upstream`. Yields its port.

    `removes_path`: it does not pass on the sub-path, as other proxies do.
    """
    port = free_port()
    changes = {
        "listen 443 ssl;": f"listen 127.0.0.1:{port} ssl;",
        "http://127.0.0.1:8642;": f"{upstream}/;" if removes_path else f"{upstream};",
        f"/etc/ssl/{SHOAL_NAME}/fullchain.pem": "FOLDER/fullchain.pem",
        f"/etc/ssl/{SHOAL_NAME}/privkey.pem": "FOLDER/privkey.pem",
    }
    config = SHOAL_CONFIG
    for old, new in changes.items():
        assert config.count(old) == 1, old
        config = config.replace(old, new)
    files = {"fullchain.pem": certificate.path.read_text(), "privkey.pem": certificate.key.read_text()}
    with nginx(config, port=port, files=files):
        yield port


def is_listening(host: Host, port: int) -> bool:
    """Whether something listens on this port of a host, which may be a node."""
    if host.entry:  # on a node, which this process is not on
        code = f"import socket; socket.create_connection(('{host.address}', {port}), 5)"
        command = [*host.entry, sys.executable, "-I", "-S", "-c", code]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    with socket.socket() as probe:
        return probe.connect_ex((host.address, port)) == 0
