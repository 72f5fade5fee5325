"""A Compose project of deploy/ with an override, and what its containers did."""

from __future__ import annotations

import json
import secrets
import shutil
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, Self

import yaml

from tests.containers.engine import Engine


class Ended(NamedTuple):
    """A container that ended: its service, its exit code and when, by the monotonic clock."""

    service: str
    exit_code: int
    at: float


class ComposeProject:
    """`docker compose` with the file as it is, and an override for addresses that only exist here.

    Use it as a context: containers and volumes are removed at the end. `files` of the override are in `folder`.
    """

    def __init__(self, engine: Engine, file: Path, name: str, database: str) -> None:
        self.engine = engine
        self.folder = Path(tempfile.mkdtemp(prefix=f"shoal-{name}-"))
        self.folder.chmod(0o755)
        self.name = name
        self.database = database
        self.ended: list[Ended] = []
        self._password = secrets.token_hex(24)
        self.write("db_password", f"{self._password}\n")
        self._override = self.folder / "override.yaml"
        self._begin = ["compose", "--project-name", name, "--file", str(file), "--file", str(self._override)]
        self._variables = {"DB_PASSWORD_PATH": str(self.folder / "db_password")}
        self.override({})

    def override(self, services: Mapping[str, Any]) -> None:
        self._override.write_text(yaml.safe_dump({"services": dict(services)}))

    def write(self, name: str, text: str) -> None:
        """A file for containers to mount: `folder`/`name`."""
        (self.folder / name).write_text(text)
        (self.folder / name).chmod(0o644)

    def __enter__(self) -> Self:
        filters = [f"label=com.docker.compose.project={self.name}", "event=die"]
        arguments = [part for each in filters for part in ("--filter", each)]
        self._events = self.engine.start_docker("events", "--format", "{{json .}}", *arguments)
        self._reader = threading.Thread(target=self._read_events, daemon=True)
        self._reader.start()
        return self

    def __exit__(self, *exception: object) -> None:
        try:
            if exception[0] is not None:
                print(self.compose("logs", "--tail=15", "--no-color"))
            self.compose("--profile", "*", "down", "--volumes", "--timeout", "5")
        finally:
            self._events.terminate()
            self._events.wait()
            self._reader.join()
            shutil.rmtree(self.folder, ignore_errors=True)

    def _read_events(self) -> None:
        assert self._events.stdout is not None
        with self._events.stdout as lines:
            for line in lines:
                with suppress(ValueError, KeyError):
                    about = json.loads(line)["Actor"]["Attributes"]
                    service = about["com.docker.compose.service"]
                    self.ended.append(Ended(service, int(about["exitCode"]), time.monotonic()))

    def compose(self, *arguments: str, timeout: float = 900) -> str:
        with self._environment():
            return self.engine.docker(*self._begin, *arguments, timeout=timeout)

    def up(self, scale: Mapping[str, int], *arguments: str) -> str:
        scales = [f"--scale={service}={number}" for service, number in scale.items()]
        return self.compose("up", "--detach", *scales, *arguments)

    def follow(self, *arguments: str) -> subprocess.Popen[str]:
        with self._environment():
            return self.engine.start_docker(*self._begin, *arguments)

    def containers(self, service: str, *, all: bool = False) -> list[dict[str, Any]]:
        """The running containers of a service, or all of them, as `docker inspect` has them."""
        found = self.compose("ps", "--quiet", *(("--all",) if all else ()), service).split()
        return self.engine.inspect(*found)

    def running(self, *services: str) -> dict[str, int]:
        return {
            service: sum(each["State"]["Status"] == "running" for each in self.containers(service))
            for service in services
        }

    def query(self, sql: str) -> list[str]:
        """Rows of a query, asked by psql inside the container of PostgreSQL."""
        (container,) = self.containers("postgres")
        psql = ("psql", "-h", "/tmp", "-U", self.database, "-d", self.database, "-Atc", sql)
        return self.engine.docker("exec", "--env", f"PGPASSWORD={self._password}", container["Id"], *psql).splitlines()

    def records(self, service: str, stage: str) -> list[dict[str, Any]]:
        """The records of a stage, by `shoal export` in a container of a service."""
        text = self.compose("run", "--rm", "--no-deps", "-T", service, "export", "latest", "--stage", stage, "-q")
        return [json.loads(line) for line in text.splitlines()]

    def exit_codes(self, first: int, expected: int, *services: str) -> Counter[int]:
        """Exit codes of the containers of these services in `ended[first:]`, once there are as many as expected.

        The engine reports an end after the command that caused it has returned.
        """

        def found() -> list[int]:
            return [each.exit_code for each in self.ended[first:] if each.service in services]

        self.wait_until(lambda: len(found()) >= expected, f"the ends of {expected} containers", 120)
        return Counter(found())

    def wait_until(self, done: Callable[[], bool], what: str, timeout: float) -> float:
        """Seconds until something is the case. Raises TimeoutError."""
        began = time.monotonic()
        while not done():
            if time.monotonic() - began > timeout:
                raise TimeoutError(f"{what}: not within {timeout:.0f} s")
            time.sleep(0.5)
        return time.monotonic() - began

    @contextmanager
    def _environment(self) -> Iterator[None]:
        before = self.engine.environment
        self.engine.environment = {**before, **self._variables}
        try:
            yield
        finally:
            self.engine.environment = before
