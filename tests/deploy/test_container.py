"""The images and the compose file: linted, and their commands run for real, on PostgreSQL behind PgBouncer."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from shoal.config import load_settings
from tests.support import MissingPartError, missing, missing_optional
from tests.support.account import Account
from tests.support.binaries import pgbouncer_program
from tests.support.deployments import DB_VARIABLES, DEPLOY, ROOT, compose, shoal_services
from tests.support.project import Command, Project, clean_environment
from tests.support.server import ServerProcess, free_port
from tests.support.site import Site

BIN = Path(sys.executable).parent
IMAGES = sorted(DEPLOY.rglob("Dockerfile"))
PEOPLE = 4
PAGES = {
    "/people": "".join(f'<a href="/person/{number}">.</a>' for number in range(PEOPLE)),
    **{f"/person/{n}": f'<h1>Person {n}</h1><a class="social" href="/social/{n}">.</a>' for n in range(PEOPLE)},
    **{f"/social/{number}": f"<title>Social {number}</title>" for number in range(PEOPLE)},
}


@pytest.mark.parametrize("image", IMAGES, ids=[image.parent.name for image in IMAGES])
def test_a_dockerfile_is_good_style(image: Path) -> None:  # S0.12, S2.26
    said = subprocess.run([BIN / "hadolint", image], capture_output=True, text=True, check=False, timeout=60)
    assert (said.returncode, said.stdout) == (0, "")


@pytest.mark.parametrize("image", IMAGES, ids=[image.parent.name for image in IMAGES])
def test_an_image_is_not_root_and_has_no_secret(image: Path) -> None:
    lines = image.read_text().splitlines()
    users = [line for line in lines if line.startswith("USER ")]
    assert users
    assert users[-1].removeprefix("USER ").isdigit()
    assert not any("PASSWORD" in line.upper() for line in lines)
    for line in lines:
        if line.startswith("COPY ") and "--from" not in line and "$" not in line:
            *sources, _ = line.removeprefix("COPY ").split()
            context = ROOT if image.parent == DEPLOY else image.parent
            assert all((context / source).exists() for source in sources)


def test_what_the_image_is_made_from_is_not_left_out() -> None:
    """Each file that the Dockerfile copies from the repository is let in by the list of what stays out."""
    let_in = [
        line[1:] for line in (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines() if line.startswith("!")
    ]
    lines = (
        (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ").replace("${SCRAPERS}", "deploy/scrapers").splitlines()
    )
    assert "ARG SCRAPERS=deploy/scrapers" in lines
    copied = [
        source
        for line in lines
        if line.startswith("COPY ") and "--from=" not in line
        for source in [word for word in line.split()[1:] if not word.startswith("--")][:-1]
    ]
    assert {"pyproject.toml", "src"} <= set(copied)
    assert [source for source in copied if not any(is_below(source, allowed) for allowed in let_in)] == []
    # Nothing else is sent to the engine: no secret, no build output, no history.
    assert set(let_in) == {"pyproject.toml", "README.md", "LICENSE", "requirements/dev.txt", "src", "deploy/scrapers"}


def is_below(path: str, folder: str) -> bool:
    return Path(path) == Path(folder) or Path(folder) in Path(path).parents


def test_the_compose_file_keeps_to_its_schema() -> None:  # S0.28: one service a stage, so logs are followed per service
    said = subprocess.run(
        [BIN / "check-jsonschema", "--builtin-schema", "vendor.compose-spec", DEPLOY / "compose.yaml"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert said.returncode == 0, said.stdout


def test_services_and_secrets_that_are_named_exist() -> None:
    services = compose()["services"]
    for service in services.values():
        assert set(service.get("depends_on", {})) <= set(services)
        assert set(service.get("secrets", [])) <= set(compose()["secrets"])


def test_docker_compose_takes_it(tmp_path: Path) -> None:
    """By its own check."""
    found = subprocess.run(["sh", "-c", "docker compose version"], capture_output=True, check=False, timeout=30)
    if found.returncode != 0:
        missing_optional("docker compose")
    command = ["docker", "compose", "-f", str(DEPLOY / "compose.yaml"), "--profile", "*", "config", "-q"]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=30)
    assert said.returncode == 0, said.stderr


def test_services_can_be_scaled() -> None:
    """S0.11, S1.25: what is to be scaled has neither a fixed name nor a port of the host."""
    services = compose()["services"]
    assert {"worker", "username", "profile", "social"} <= set(services)
    for name, service in services.items():
        assert not {"container_name", "ports"} & set(service) or name == "serve"
    assert services["serve"]["ports"] == ["127.0.0.1:8642:8642"]
    assert services["tor"]["profiles"] == ["tor"]
    assert services["worker"]["depends_on"]["migrate"]["condition"] == "service_completed_successfully"


def test_the_tor_service_is_a_pool_of_the_workers() -> None:
    """S1.25: a stage with egress = "onion" goes out through the service."""
    socks = load_settings({}, environ={}, folder=DEPLOY / "scrapers").egress["onion"].socks
    assert socks == "tor:9050"
    assert "SocksPort 0.0.0.0:9050 IsolateSOCKSAuth" in (DEPLOY / "tor" / "torrc").read_text()


def test_no_password_is_in_the_compose_file() -> None:
    for service in compose()["services"].values():
        for name in service.get("environment", {}):
            assert "PASSWORD" not in name or name.endswith("_FILE")
    for service in shoal_services().values():
        assert set(service["environment"]) == DB_VARIABLES | {"DB_PASSWORD_FILE"}


class Moved:
    """The compose project without containers: the same commands and variables, other addresses."""

    def __init__(self, folder: Path, postgres_url: str, bouncer: int, site: Site) -> None:
        self._postgres = urlsplit(postgres_url)
        self._bouncer = bouncer
        self.project = Project(folder, postgres_url)
        self.password_file = folder / "db_password"
        self.password_file.write_text(f"{self._postgres.password}\n")
        shutil.copy(DEPLOY / "scrapers" / "people.py", folder)
        self.project.urls([f"{site.url}/people"])
        self._number = 100

    def variables(self, service: Mapping[str, Any]) -> dict[str, str]:
        port = {"postgres": self._postgres.port or 5432, "pgbouncer": self._bouncer}[service["environment"]["DB_HOST"]]
        return {
            **service["environment"],
            "DB_HOST": "127.0.0.1",
            "DB_PORT": str(port),
            "DB_NAME": self._postgres.path.removeprefix("/"),
            "DB_USER": str(self._postgres.username),
            "DB_PASSWORD_FILE": str(self.password_file),
        }

    def start(self, name: str) -> Command:
        service = shoal_services()[name]
        environment = clean_environment(self.project.folder, SHOAL_LOG_FORMAT="json", SHOAL_LOG_DIR="")
        self._number += 1
        return Command(
            self.project.folder, tuple(service["command"]), {**environment, **self.variables(service)}, self._number
        )

    def run(self, name: str) -> str:
        command = self.start(name)
        assert command.wait() == 0, command.stderr
        return command.stdout


@contextmanager
def bouncer_as_in_its_image(postgres_url: str, port: int) -> Iterator[None]:
    """start.sh and pgbouncer.ini as they are, but for the folders and the port."""
    try:
        program = pgbouncer_program()
    except MissingPartError as error:
        missing(str(error))
    account = Account.unprivileged()
    folder = account.scratch_folder("shoal-deploy-")
    place = urlsplit(postgres_url)
    try:
        for name in ("start.sh", "pgbouncer.ini"):
            text = (DEPLOY / "pgbouncer" / name).read_text()
            moved = text.replace("/tmp/pgbouncer", f"{folder}/tmp").replace("/etc/shoal", str(folder))
            moved = moved.replace("listen_port = 6432", f"listen_port = {port}").replace("= *", "= 127.0.0.1")
            (folder / name).write_text(moved)
        (folder / "password").write_text(f"{place.password}\n")
        account.give(folder)
        variables = {
            "PATH": f"{program.parent}:{os.environ['PATH']}",
            "DB_HOST": str(place.hostname),
            "DB_PORT": str(place.port or 5432),
            "DB_NAME": place.path.removeprefix("/"),
            "DB_USER": str(place.username),
            "DB_PASSWORD_FILE": str(folder / "password"),
        }
        process = ServerProcess(
            ["env", *(f"{name}={value}" for name, value in variables.items()), "sh", str(folder / "start.sh")],
            account=account,
            folder=folder,
            farewell=signal.SIGTERM,
        )
        process.wait_until(lambda: _answers(port))
        try:
            yield
        finally:
            process.stop(signal.SIGTERM)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_the_services_do_their_work(tmp_path: Path, postgres_url: str) -> None:
    """S0.9, S0.11, S0.15, S1.25: migrate, enqueue, a worker per stage; each ends well when it is told to stop."""
    port = free_port()
    with Site(extra=PAGES) as site, bouncer_as_in_its_image(postgres_url, port):
        moved = Moved(tmp_path, postgres_url, port, site)
        moved.run("migrate")
        answer = json.loads(moved.run("enqueue"))
        assert (answer["status"], answer["enqueued"]) == ("queued", 1)
        workers = [moved.start(stage) for stage in ("username", "profile", "social")]
        try:
            site.wait_until(lambda visits: len({visit.path for visit in visits} & set(PAGES)) == len(PAGES))
            for worker in workers:
                worker.tell(signal.SIGTERM)
            assert [worker.wait() for worker in workers] == [130, 130, 130]
        finally:
            for worker in workers:
                worker.kill()
        records = moved.project.export()
        assert len(records) == 2 * PEOPLE
        assert moved.project.counts().remaining == 0
        assert moved.project.is_sound()
