"""`python -m tests.support.suite OPTIONS`: pytest with these options, then once more what failed, alone.

Three test processes share two cores, and whatever else the machine does. A test that fails beside others and passes
alone is named at the end, as a defect to be mended, but does not fail the suite. A test that fails twice does, and so
do more than `MOST_REPEATED` failures, and whatever is not the failure of a test.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

MOST_REPEATED = 10
# One test process. Names of tests are those of the first run only if tests are distributed in the same way.
ALONE = ("-n", "1", "--dist", "loadgroup")


def run_suite(options: Sequence[str]) -> int:
    """The exit code."""
    code = _pytest("--cache-clear", *options)
    if code != pytest.ExitCode.TESTS_FAILED:
        return code
    failed = _failed()
    if not 1 <= len(failed) <= MOST_REPEATED:
        return code
    print(f"\nOnce more, with nothing beside: {len(failed)} that failed.", flush=True)
    code = _pytest(*ALONE, "--last-failed", "--last-failed-no-failures", "none")
    if code == pytest.ExitCode.OK:
        print("\nFailed beside others and passed alone. Each is a defect, of the test or of what it tests:")
        for name in failed:
            print(f"    {name}")
    return code


def _pytest(*options: str) -> int:
    return subprocess.run([sys.executable, "-m", "pytest", *options], check=False).returncode


def _failed() -> list[str]:
    """The tests that failed in the last run, by pytest's own note of them."""
    note = Path(".pytest_cache/v/cache/lastfailed")
    return sorted(json.loads(note.read_text())) if note.exists() else []


if __name__ == "__main__":
    sys.exit(run_suite(sys.argv[1:]))
