"""`shoal demo`: a real scrape of the bundled shop, checked against the shop."""

import json
import os
import pty
import signal
import sqlite3
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.project import COMMAND, Shoal, clean_environment


@pytest.fixture
def answer(shoal: Shoal, sqlite_path: Path) -> dict[str, Any]:
    result = shoal("demo", "--json", "--ledger", str(sqlite_path))
    assert result.returncode == 0, result.stdout + result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_the_shop_was_scraped_completely_and_politely(answer: dict[str, Any], sqlite_path: Path) -> None:
    counts, seen = answer["counts"], answer["checks"]
    assert answer["state"] == "finished"
    assert seen["products"] >= 1000
    assert (seen["found"], seen["missing"], seen["twice"], seen["wrong"]) == (seen["products"], [], [], [])
    assert seen["again"] == 0
    assert seen["most_at_once"] <= 16
    assert seen["closest_at_outlet"] >= 0.15, "0.2 s, less what the shop may be late in reading"
    assert (counts["dead"], counts["results"]) == (4, seen["products"])
    assert [counts[state] for state in ("ready", "waiting", "delayed", "leased")] == [0, 0, 0, 0]
    connection = sqlite3.connect(f"file:{sqlite_path}?mode=ro", uri=True)
    try:
        states = dict(connection.execute("select status, sum(items) from status_counts group by status").fetchall())
        classes = {name for (name,) in connection.execute("select distinct outcome from attempt").fetchall()}
    finally:
        connection.close()
    assert states == {"done": counts["done"], "dead": counts["dead"]}
    assert {"transient", "throttled", "blocked"} <= classes  # S4.6


def test_in_a_pipe(shoal: Shoal, tmp_path: Path) -> None:
    """Data on stdout, plain lines on stderr, and a ledger in a temporary folder that the next commands can read."""
    result = shoal("demo")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "\x1b" not in result.stdout + result.stderr
    assert "1259 of 1259 products were found, 0 twice, 0 wrong" in result.stdout
    assert "done " in result.stderr
    assert not (tmp_path / ".shoal").exists()
    following = next(line for line in result.stderr.splitlines() if "shoal results coverage" in line)
    covered = shoal(*following.split()[1:])
    assert covered.returncode == 0, covered.stderr
    assert "price" in covered.stdout
    assert "shoal init my-project" in result.stderr


def test_on_postgres(shoal: Shoal, postgres_url: str) -> None:
    refused = shoal("demo", SHOAL_LEDGER=postgres_url)
    assert refused.returncode == 3
    assert "shoal db migrate" in refused.stderr
    shoal("db", "migrate", SHOAL_LEDGER=postgres_url)
    result = shoal("demo", "-q", "--json", SHOAL_LEDGER=postgres_url)
    assert result.returncode == 0, result.stdout + result.stderr
    assert json.loads(result.stdout)["checks"]["missing"] == []


def test_on_a_terminal_it_can_be_interrupted(tmp_path: Path) -> None:
    """The bars are drawn, Ctrl-C stops it within about a second, and it says how to continue."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, "demo"],
        cwd=tmp_path,
        env=clean_environment(tmp_path, TERM="xterm-256color", COLUMNS="100"),
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
    )
    os.close(slave)
    seen = b""
    try:
        while b"/min" not in seen:
            seen += os.read(master, 65_536)
        process.send_signal(signal.SIGINT)
        asked = time.monotonic()
        while True:
            try:
                seen += os.read(master, 65_536)
            except OSError:
                break
        assert process.wait(timeout=10) == 130, seen.decode()
        assert time.monotonic() - asked < 5
    finally:
        process.kill()
        process.wait()
        os.close(master)
    assert b"Stopping" in seen
    assert b"unfinished" in seen
