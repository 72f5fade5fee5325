"""Prometheus's own checks: of metrics, of rules, and of tests of rules."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.support import MissingPartError, missing
from tests.support.binaries import proxy_program


def promtool(*arguments: str | Path, text: str | None = None) -> str:
    """What promtool says; it must be content. Without it the test is skipped."""
    try:
        program = proxy_program("promtool")
    except MissingPartError as error:
        missing(str(error))
    said = subprocess.run([program, *arguments], input=text, capture_output=True, text=True, check=False, timeout=60)
    assert said.returncode == 0, said.stdout + said.stderr
    return said.stdout + said.stderr
