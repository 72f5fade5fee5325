"""The private PostgreSQL of a demo ends with the demo, however that ends."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.account import Account

HOLD = """
import sys
from shoal.demo.database import private_postgres
with private_postgres() as database:
    print(database.port, flush=True)
    sys.stdin.read()
"""


def listens(port: int) -> bool:
    """Whether a process of this machine listens on the port."""
    wanted = f":{port:04X} "
    return any(wanted in line and " 0A " in line for line in Path("/proc/net/tcp").read_text().splitlines())


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A folder that the account of the server reaches too."""
    folder = Account.unprivileged().scratch_folder("shoal-demo-test-")
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize("killed", [False, True])
def test_it_is_gone_when_the_demo_is_gone(scratch: Path, killed: bool) -> None:
    environ = {**os.environ, "TMPDIR": str(scratch)}
    demo = subprocess.Popen([sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ)
    assert demo.stdin is not None
    assert demo.stdout is not None
    with demo:
        port = int(demo.stdout.readline())
        assert listens(port)
        if killed:
            demo.send_signal(signal.SIGKILL)
        else:
            demo.stdin.close()
        demo.wait()
    deadline = time.monotonic() + 60
    while listens(port) or list(scratch.iterdir()):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_it_starts_below_a_folder_that_its_account_cannot_enter(tmp_path: Path) -> None:
    """As root, it runs as another account, which has no way through private folders for temporary files."""
    tmp_path.chmod(0o700)
    environ = {**os.environ, "TMPDIR": str(tmp_path)}
    said = subprocess.run(
        [sys.executable, "-c", HOLD], input="", capture_output=True, text=True, check=False, env=environ
    )
    assert said.returncode == 0, said.stderr
    assert int(said.stdout) > 0


def test_a_server_that_does_not_start_is_one_sentence(scratch: Path) -> None:
    for name, script in (("postgres", "exit 0"), ("initdb", "echo no room left >&2; exit 1")):
        program = scratch / name
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
    environ = {**os.environ, "PATH": f"{scratch}:{os.environ['PATH']}"}
    said = subprocess.run(
        [sys.executable, "-c", HOLD], input="", capture_output=True, text=True, check=False, env=environ
    )
    assert said.returncode == 1
    error = "shoal.errors.UsageError: A private PostgreSQL cannot be started for the demo (initdb: no room left)."
    assert said.stderr.splitlines()[-1].startswith(error)
