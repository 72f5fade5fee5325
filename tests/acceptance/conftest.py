"""The command line as a user has it: a real process, a folder of its own, nothing inherited but the PATH."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Finished = subprocess.CompletedProcess[str]
Shoal = Callable[..., Finished]
COMMAND = [str(Path(sys.executable).with_name("shoal"))]


def clean_environment(home: Path, **variables: str) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": str(home), "TMPDIR": str(home), **variables}


@pytest.fixture
def shoal(tmp_path: Path) -> Shoal:
    """Run `shoal` with these arguments in `tmp_path`; keywords are environment variables."""

    def run(*arguments: str, **variables: str) -> Finished:
        return subprocess.run(
            [*COMMAND, *arguments],
            cwd=tmp_path,
            env=clean_environment(tmp_path, **variables),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return run
