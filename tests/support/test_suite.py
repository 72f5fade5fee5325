"""What fails beside others is tried once more alone; what fails twice fails."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.project import clean_environment
from tests.support.suite import MOST_REPEATED

ROOT = Path(__file__).resolve().parents[2]
FINE = "def test_fine():\n    pass\n"
FAILS_ONCE = """
import pytest
from pathlib import Path

@pytest.mark.xdist_group("broker")
@pytest.mark.parametrize("name", ["a b", "c::d"])
def test_busy(name):
    mark = Path(name.replace("::", "-"))
    before = mark.exists()
    mark.touch()
    assert before
"""


def run_in(folder: Path, test: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_it.py").write_text(FINE + test)
    return subprocess.run(
        [sys.executable, "-m", "tests.support.suite", "-n", "2", "--dist", "loadgroup"],
        cwd=folder,
        env=clean_environment(folder, PYTHONPATH=str(ROOT)),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.slow
def test_what_passes_alone_is_named_and_does_not_fail(tmp_path: Path) -> None:
    ended = run_in(tmp_path, FAILS_ONCE)
    assert ended.returncode == 0, ended.stdout
    assert "2 failed, 1 passed" in ended.stdout
    assert "2 passed" in ended.stdout
    told = ended.stdout.partition("passed alone")[2]
    assert "test_busy[a b]" in told
    assert "test_busy[c::d]" in told
    assert "test_fine" not in told


@pytest.mark.slow
@pytest.mark.parametrize(
    "broken",
    [
        "def test_wrong():\n    assert False\n",
        "import missing_module\n",
        "import os\ndef test_gone():\n    os._exit(3)\n",
        "import pytest\n@pytest.fixture\ndef bad():\n    yield\n    assert False\ndef test_teardown(bad):\n    pass\n",
    ],
)
def test_what_fails_twice_fails(tmp_path: Path, broken: str) -> None:
    ended = run_in(tmp_path, broken)
    assert ended.returncode != 0, ended.stdout
    assert "passed alone" not in ended.stdout


@pytest.mark.slow
def test_many_failures_are_not_repeated(tmp_path: Path) -> None:
    wrong = "def test_wrong(n):\n    assert False\n"
    ended = run_in(tmp_path, f"import pytest\n@pytest.mark.parametrize('n', range({MOST_REPEATED + 1}))\n{wrong}")
    assert ended.returncode == 1
    assert "Once more" not in ended.stdout
