"""A Docker engine of our own inside a network that nothing leaves, and its command line."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, Self

from tests.containers.parts import Parts
from tests.support.account import Account
from tests.support.server import ServerProcess

# Of the addresses for documentation: the bridge of builds. Networks of Compose get the others.
_BRIDGE: Final = "198.51.100.1/24"
_POOL: Final = "base=10.96.0.0/16,size=24"
_NEW_NETWORK: Final = 0x40000000
PATH: Final = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"


def enter_network(pid: int) -> None:
    """Move this thread, and with it all threads and processes that it starts from now on, into a process's network."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/proc/{pid}/ns/net") as network:
        if libc.setns(network.fileno(), _NEW_NETWORK) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


class Engine:
    """Use it as a context. Images stay in `parts.folder` for the next time; containers and volumes do not."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with self._stack as stack:
            folder = Path(tempfile.mkdtemp(prefix="shoal-engine-"))
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            plugins = folder / "cli" / "cli-plugins"
            plugins.mkdir(parents=True)
            shutil.copy(self._parts.compose_plugin, plugins)
            self.environment = {
                "PATH": PATH,
                "HOME": str(folder),
                "DOCKER_HOST": f"unix://{folder}/docker.sock",
                "DOCKER_CONFIG": str(folder / "cli"),
            }
            # Mounts of its own: none is left when it is gone, however it went.
            process = ServerProcess(
                [
                    *("env", f"PATH={PATH}", "unshare", "--mount", "--", "dockerd", "--log-level=warn"),
                    *(f"--data-root={self._parts.folder}/engine", f"--exec-root={folder}/exec"),
                    *(f"--pidfile={folder}/docker.pid", f"--host=unix://{folder}/docker.sock"),
                    *(f"--bip={_BRIDGE}", f"--default-address-pool={_POOL}"),
                ],
                account=Account(),
                folder=folder,
                farewell=signal.SIGTERM,
            )
            stack.callback(process.stop, signal.SIGTERM)
            process.wait_until(self._answers, 60)
            self._remove_containers()
            stack.callback(self._remove_containers)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def docker(self, *arguments: str, stdin: str | None = None, timeout: float = 600) -> str:
        """Run `docker` to its end; its output. Raises RuntimeError."""
        done = self.try_docker(*arguments, stdin=stdin, timeout=timeout)
        if done.returncode != 0:
            raise RuntimeError(f"docker {' '.join(arguments)}: {(done.stderr + done.stdout)[-3000:]}")
        return done.stdout

    def try_docker(
        self, *arguments: str, stdin: str | None = None, timeout: float = 600
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["docker", *arguments],
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout,
        )

    def start_docker(self, *arguments: str) -> subprocess.Popen[str]:
        """Start `docker` with its output in a pipe, for what follows something."""
        return subprocess.Popen(
            ["docker", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=self.environment,
            text=True,
        )

    def build(self, tag: str, dockerfile: str, context: Path | None = None) -> None:
        """Build an image from the text of a Dockerfile."""
        place = "-" if context is None else str(context)
        command = ["build", "--quiet", "--tag", tag, *(() if context is None else ("--file", "-")), place]
        environment = self.environment
        self.environment = {**environment, "DOCKER_BUILDKIT": "0"}
        try:
            self.docker(*command, stdin=dockerfile)
        finally:
            self.environment = environment

    def inspect(self, *names: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.docker("inspect", *names)) if names else []
        return found

    def _answers(self) -> bool:
        return self.try_docker("version").returncode == 0

    def _remove_containers(self) -> None:
        if left := self.docker("ps", "--all", "--quiet").split():
            self.docker("rm", "--force", "--volumes", *left)
        self.docker("volume", "prune", "--force")
        self.docker("network", "prune", "--force")
