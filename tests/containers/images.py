"""The images: bases that stand in for those of a registry, then those of deploy/, and what can be said about them."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from tests.containers.engine import Engine
from tests.containers.parts import Parts
from tests.containers.report import Report
from tests.support.binaries import copy_install, wheel_installs
from tests.support.deployments import DEPLOY

PYTHON_IMAGE, DEBIAN_IMAGE, POSTGRES_IMAGE = "local/python", "local/debian", "local/postgres:18"
BASES = {"PYTHON_IMAGE": PYTHON_IMAGE, "DEBIAN_IMAGE": DEBIAN_IMAGE, "POSTGRES_IMAGE": POSTGRES_IMAGE}
# What a program could be compiled or a package be built with.
COMPILERS = ("cc", "gcc", "g++", "clang", "make", "cargo", "rustc", "go", "node", "npm")
CONFINED = ("--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges")
# The variables, the folder and the log-in of the image `postgres`, as far as compose.yaml relies on them.
_START_POSTGRES = """\
#!/bin/sh
set -eu
umask 077
folder=/var/lib/postgresql/18/docker
if [ ! -s "$folder/PG_VERSION" ]; then
    mkdir -p "$folder"
    chown -R postgres /var/lib/postgresql
    cat "$POSTGRES_PASSWORD_FILE" >/tmp/password
    chown postgres /tmp/password
    as="setpriv --reuid=postgres --regid=postgres --clear-groups"
    $as initdb -D "$folder" --username="$POSTGRES_USER" --pwfile=/tmp/password --auth=scram-sha-256 \\
        --encoding=UTF8 --locale=C.UTF-8
    rm /tmp/password
    echo "host all all all scram-sha-256" >>"$folder/pg_hba.conf"
    $as pg_ctl -D "$folder" -w -o "-c listen_addresses= -c unix_socket_directories=/tmp" start
    PGPASSWORD=$(cat "$POSTGRES_PASSWORD_FILE") createdb -h /tmp -U "$POSTGRES_USER" "$POSTGRES_DB"
    $as pg_ctl -D "$folder" -w -m fast stop
fi
exec setpriv --reuid=postgres --regid=postgres --clear-groups postgres -D "$folder" -c listen_addresses='*' \\
    -c unix_socket_directories=/tmp "$@"
"""


def make_bases(engine: Engine, parts: Parts, server: str) -> None:
    """Import Debian, and build the images that the Dockerfiles of deploy/ and compose.yaml begin with."""
    if not engine.docker("images", "--quiet", "local/minbase"):
        engine.docker("import", str(parts.debian), "local/minbase")
    engine.build(
        DEBIAN_IMAGE,
        f'FROM local/minbase\nRUN echo "deb [trusted=yes] {server}/debs ./" >/etc/apt/sources.list\nCMD ["bash"]\n',
    )
    engine.build(
        PYTHON_IMAGE,
        f"FROM {DEBIAN_IMAGE}\n"
        "RUN apt-get update && apt-get install --yes --no-install-recommends python3 python3-pip"
        " && ln -s python3 /usr/bin/python && rm -rf /var/lib/apt/lists/*"
        f" && printf '[global]\\nno-index = true\\nfind-links = {server}/wheels/\\ntrusted-host = {_host(server)}\\n'"
        " >/etc/pip.conf\n",
    )
    with tempfile.TemporaryDirectory() as name:
        context = Path(name)
        programs = copy_install(wheel_installs()[0], context / "pgsql").relative_to(context) / "bin"
        (context / "pgsql").chmod(0o755)
        (context / "start.sh").write_text(_START_POSTGRES)
        engine.build(
            POSTGRES_IMAGE,
            f"FROM {DEBIAN_IMAGE}\nRUN useradd --system --uid 999 --home-dir /var/lib/postgresql postgres\n"
            "COPY pgsql /usr/local/pgsql\nCOPY start.sh /usr/local/bin/start\n"
            f"ENV PATH=/usr/local/{programs}:$PATH\nVOLUME /var/lib/postgresql\nSTOPSIGNAL SIGINT\n"
            'ENTRYPOINT ["sh", "/usr/local/bin/start"]\n',
            context,
        )


def _host(server: str) -> str:
    return server.removeprefix("http://").partition(":")[0]


def build_and_check(engine: Engine, report: Report) -> None:
    """Build what the Compose files name, by Compose, without any network but that of the engine."""
    for file in (DEPLOY / "compose.yaml", DEPLOY / "github" / "compose.yaml"):
        began = time.monotonic()
        engine.docker("compose", "--file", str(file), "--profile", "*", "build", timeout=3600)
        seconds = time.monotonic() - began
        report.check(
            f"{file.relative_to(DEPLOY.parent)} is built", True, f"{seconds:.0f} s, with what an earlier build left"
        )
    check_image(engine, report, "shoal")


def check_image(engine: Engine, report: Report, image: str) -> None:
    """Not root, no compiler, no pip; works on a read-only file system without any right; how big it is."""
    (about,) = engine.inspect(image)
    (base,) = engine.inspect(PYTHON_IMAGE)
    own = (about["Size"] - base["Size"]) / 1e6
    report.figure(f"size of {image}", f"{about['Size'] / 1e6:.0f} MB, {own:.0f} MB of it above the base image")
    report.check(f"{image} runs as user 10001", about["Config"]["User"] == "10001")
    confined = ("run", "--rm", "--network=none", *CONFINED)
    shell = (*confined, "--entrypoint=sh", image, "-c")
    found = engine.docker(*shell, f"for name in {' '.join(COMPILERS)}; do command -v $name; done; true").split()
    report.check(f"{image} has no compiler", not found, " ".join(found))
    in_venv = engine.docker(*shell, "ls /opt/shoal/bin").split()
    report.check(f"the environment in {image} has no pip", not [name for name in in_venv if name.startswith("pip")])
    refused = engine.try_docker(*shell, "touch /app/x || touch /tmp/x").returncode != 0
    report.check(f"nothing can be written in {image}", refused)
    started = engine.docker("run", "--detach", *CONFINED, "--tmpfs=/tmp", image, "serve", "--ledger=/tmp/ledger.db")
    began = time.monotonic()
    engine.docker("stop", "--time=45", started.strip())
    (ended,) = engine.inspect(started.strip())
    detail = f"{time.monotonic() - began:.1f} s, exit code {ended['State']['ExitCode']}"
    report.check(f"{image} can be stopped while it starts", ended["State"]["ExitCode"] != 137, detail)
    engine.docker("rm", started.strip())
    version = engine.docker(*confined, image, "--version").strip()
    report.check(f"{image} answers without network and rights", bool(version), version)
