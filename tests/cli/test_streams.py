"""Commands whose standard streams are closed, full or not UTF-8, and arguments that are no text."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.support.fork_server import COMMAND
from tests.support.project import Shoal, clean_environment

SCRAPER = """
from shoal import Item, Scraper

s = Scraper("s")

@s.stage
async def one(item: Item):
    yield {"é": item.key}

s.start(*[one.item(key=f"k{n}") for n in range(3)])
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a run that has three records."""
    place = tmp_path_factory.mktemp("streams")
    (place / "s.py").write_text(SCRAPER)
    assert in_shell(place, "shoal run s.py -q").returncode == 0
    return place


def in_shell(folder: Path, line: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A line of bash, in which `shoal` is the command under test."""
    script = f'shoal() {{ "{COMMAND[0]}" "$@"; }}\n{line}'
    return subprocess.run(
        ["bash", "-c", script],
        cwd=folder,
        env=clean_environment(folder, **variables),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("closed", ["2>&-", "2>/dev/full", "<&- 2>&-"])
def test_without_notes_the_data_is_the_same(folder: Path, closed: str) -> None:
    said = in_shell(folder, f"shoal export latest {closed}")
    assert said.returncode == 0, said.stderr
    assert [json.loads(line) for line in said.stdout.splitlines()] == [{"é": f"k{n}"} for n in range(3)]


@pytest.mark.parametrize("closed", ["2>&-", "<&- >&- 2>&-"])
def test_a_run_needs_no_streams(folder: Path, closed: str) -> None:
    """The ledger, opened first, would have got the number of the closed stream, and every note with it."""
    said = in_shell(
        folder, f"shoal run s.py --fresh --ledger apart.db {closed}; shoal db check --deep --ledger apart.db"
    )
    assert said.returncode == 0, said.stdout + said.stderr
    assert "no findings" in said.stdout


@pytest.mark.parametrize("command", ["status", "--help"])
@pytest.mark.parametrize(("out", "why"), [(">&-", "it is closed"), (">/dev/full", "No space left on device")])
def test_data_that_cannot_be_written_is_an_error(folder: Path, command: str, out: str, why: str) -> None:
    said = in_shell(folder, f"shoal {command} {out}")
    assert said.returncode == 1
    assert said.stderr.startswith(f"Error: Standard output cannot be written: {why}. ")
    assert said.stderr.count("\n") == 1


def test_a_reader_that_leaves_is_not_told(folder: Path) -> None:
    said = in_shell(folder, "set -o pipefail; shoal --help | true; echo ${PIPESTATUS[0]}")
    assert said.stdout.strip() in ("0", "1")
    assert said.stderr == ""


def test_characters_that_the_terminal_lacks(folder: Path) -> None:
    sample = in_shell(folder, "shoal results sample latest", PYTHONIOENCODING="ascii")
    assert sample.returncode == 0, sample.stderr
    assert json.loads(sample.stdout.splitlines()[0]) == {"é": "k0"}
    error = in_shell(folder, "shoal status Größe", PYTHONIOENCODING="ascii")
    assert error.returncode == 5
    assert r"Gr\xf6\xdfe" in error.stderr


@pytest.mark.parametrize("command", ["status", "alerts ls"])
def test_an_argument_that_is_no_text(folder: Path, command: str) -> None:
    said = in_shell(folder, f"shoal {command} $'\\xff'")
    assert said.returncode == 2
    assert said.stderr == (
        r"Error: The argument '\udcff' is not valid UTF-8. Write it in UTF-8; a file with such a name must be renamed."
        "\n"
    )


def test_a_variable_that_is_no_text(folder: Path) -> None:
    said = in_shell(folder, "SHOAL_LEDGER=$'\\xff' shoal status")
    assert said.returncode == 2
    assert "(from SHOAL_LEDGER)" in said.stderr


def test_addresses_and_places_that_are_no_ledger(folder: Path) -> None:
    said = in_shell(folder, "shoal status --ledger file:x.db")
    assert said.returncode == 2
    assert "file:x.db is not a ledger" in said.stderr
    said = in_shell(folder, "shoal run s.py --ledger /proc/x.db")
    assert said.returncode == 3
    assert "cannot be opened" in said.stderr
    assert "space" not in said.stderr


def test_a_stage_that_is_not_there_or_means_nothing(shoal: Shoal, tmp_path: Path) -> None:
    (tmp_path / "s.py").write_text(SCRAPER)
    for command in (["run", "s.py"], ["enqueue", "s.py"]):
        said = shoal(*command, "--stage", "nope")
        assert said.returncode == 2
        assert "has no stage 'nope'; it has one" in said.stderr
        said = shoal(*command, "--stage", "one")
        assert said.returncode == 2
        assert "--urls-file" in said.stderr
    assert not (tmp_path / ".shoal").exists()
