"""`shoal demo`: it must work off its run, tell the truth about it, and leave a sound ledger behind."""

import json
import os
import pty
import signal
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from shoal.demo.bookshop import PAGES, REPEATED
from tests.acceptance.conftest import COMMAND, Shoal, clean_environment
from tests.parts.postgres import PostgresDatabases

LISTINGS = sum(PAGES.values())
ITEMS = 2 * LISTINGS


@pytest.fixture
def summary(shoal: Shoal, sqlite_path: Path) -> dict[str, Any]:
    said = shoal("demo", "--json", "--ledger", str(sqlite_path))
    assert said.returncode == 0, said.stderr
    found: dict[str, Any] = json.loads(said.stdout)
    return found


def test_the_summary_adds_up(summary: dict[str, Any]) -> None:
    counts = summary["counts"]
    assert summary["run"]["state"] == "finished"
    assert (summary["intake"]["enqueued"], summary["intake"]["invalid"]) == (LISTINGS, 1)
    assert summary["intake"]["duplicates"] == REPEATED * len(PAGES)
    assert (counts["done"], counts["dead"], counts["results"]) == (ITEMS - 1, 1, LISTINGS - 1)
    assert [counts[state] for state in ("ready", "waiting", "delayed", "leased")] == [0, 0, 0, 0]
    assert sum(progress["counts"]["done"] for progress in summary["partitions"]) == counts["done"]
    assert summary["findings"] == []


def test_the_stories_happened(summary: dict[str, Any]) -> None:
    assert summary["retried"] >= ITEMS // 17 - 4
    assert [failed["error_message"] for failed in summary["dead"]] == ["404 Not Found"]
    assert any(gate["code"].startswith("lane_") for gate in summary["waiting_item"]["gates"])
    assert summary["rescued"] >= 1
    outcomes = [attempt["outcome"] for attempt in summary["rescued_item"]["attempts"]]
    assert "crashed" in outcomes
    assert outcomes[-1] == "done"


def test_the_numbers_are_those_of_the_ledger(summary: dict[str, Any], sqlite_path: Path) -> None:
    connection = sqlite3.connect(f"file:{sqlite_path}?mode=ro", uri=True)
    try:
        states = dict(connection.execute("select status, items from status_counts").fetchall())
    finally:
        connection.close()
    assert states == {"done": summary["counts"]["done"], "dead": summary["counts"]["dead"]}


def test_in_a_pipe(shoal: Shoal, tmp_path: Path) -> None:
    """Data on stdout, plain lines on stderr, and a ledger in a temporary folder that the next commands can read."""
    said = shoal("demo")
    assert said.returncode == 0, said.stderr
    assert "\x1b" not in said.stdout + said.stderr
    assert "the audit has no findings" in said.stdout
    assert f"ended {ITEMS}/{ITEMS} 100%" in said.stderr
    assert not (tmp_path / ".shoal").exists()
    following = next(line for line in said.stderr.splitlines() if "shoal db check" in line)
    assert shoal(*following.split()[1:]).returncode == 0


def test_on_postgres(shoal: Shoal, postgres_url: str) -> None:
    refused = shoal("demo", SHOAL_LEDGER=postgres_url)
    assert refused.returncode == 3
    assert "shoal db migrate" in refused.stderr
    shoal("db", "migrate", SHOAL_LEDGER=postgres_url)
    said = shoal("demo", "-q", "--json", SHOAL_LEDGER=postgres_url)
    assert (said.returncode, said.stderr) == (0, "")
    assert json.loads(said.stdout)["findings"] == []


def test_the_ledger_of_a_project_is_not_touched(shoal: Shoal, tmp_path: Path) -> None:
    (tmp_path / "shoal.toml").write_text("ledger = 'mine.db'\n")
    assert shoal("demo", "-q").returncode == 0
    assert not (tmp_path / "mine.db").exists()


def test_ctrl_c_exits_130(tmp_path: Path) -> None:
    with demo_under_way(tmp_path) as process:
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        assert process.stderr.read().splitlines()[-1] == "Interrupted."
        assert process.wait() == 130


def test_a_database_that_goes_away_is_one_sentence(
    shoal: Shoal, tmp_path: Path, postgres_server: PostgresDatabases, postgres_url: str
) -> None:
    shoal("db", "migrate", SHOAL_LEDGER=postgres_url)
    with demo_under_way(tmp_path, SHOAL_LEDGER=postgres_url, SHOAL_PATIENCE="0") as process:
        postgres_server.drop_database(urlsplit(postgres_url).path[1:])
        assert process.stderr is not None
        *_, complaint = process.stderr.read().splitlines()
        assert complaint.startswith("Error: ")
        assert "bug" not in complaint
        assert process.wait() == 3


@contextmanager
def demo_under_way(folder: Path, **variables: str) -> Iterator[subprocess.Popen[str]]:
    """A demo that has said its first line of progress."""
    with subprocess.Popen(
        [*COMMAND, "demo"],
        cwd=folder,
        env=clean_environment(folder, **variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        while not process.stderr.readline().startswith("ended"):
            assert process.poll() is None
        yield process


@pytest.mark.parametrize("no_color", [False, True])
def test_on_a_terminal(tmp_path: Path, no_color: bool) -> None:
    """Bars instead of lines; NO_COLOR is respected."""
    ours, theirs = pty.openpty()
    variables = {"TERM": "xterm-256color", "COLUMNS": "100", "LINES": "30"} | ({"NO_COLOR": "1"} if no_color else {})
    process = subprocess.Popen(
        [*COMMAND, "demo"],
        cwd=tmp_path,
        env=clean_environment(tmp_path, **variables),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    said = b""
    try:
        while chunk := os.read(ours, 65536):
            said += chunk
    except OSError:
        pass  # how Linux says that the other end was closed
    os.close(ours)
    assert process.wait() == 0
    text = said.decode()
    assert "━" in text
    assert "ended " not in text
    assert ("\x1b[2mSTAGE" in text) != no_color
    assert ("\x1b[33m" in text) != no_color
