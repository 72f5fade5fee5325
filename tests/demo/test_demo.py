"""`shoal demo`: a real scrape of the bundled shop, judged by the shop itself."""

import json
import os
import pty
import signal
import sqlite3
import subprocess
from pathlib import Path

from shoal.demo.scraper import OUTLET_DELAY, TOLERANCE_SECONDS
from tests.support.fork_server import COMMAND
from tests.support.project import Shoal, clean_environment


def test_in_a_pipe(shoal: Shoal, tmp_path: Path) -> None:
    """Data on stdout, plain lines on stderr, and a ledger in a temporary folder that the next commands can read."""
    said = shoal("demo")
    assert said.returncode == 0, said.stdout + said.stderr
    assert "\x1b" not in said.stdout + said.stderr
    assert "1259 of 1259 products were found, 0 twice, 0 wrong" in said.stdout
    assert "done " in said.stderr
    assert not (tmp_path / ".shoal").exists()
    following = next(line for line in said.stderr.splitlines() if "shoal results coverage" in line)
    covered = shoal(*following.split()[1:])
    assert covered.returncode == 0, covered.stderr
    assert "price" in covered.stdout
    assert "shoal init my-project" in said.stderr
    (ledger,) = (word for word in following.split() if word.endswith(".db"))
    connection = sqlite3.connect(f"file:{ledger}?mode=ro", uri=True)
    try:
        states = dict(connection.execute("select status, sum(items) from status_counts group by status").fetchall())
        classes = {name for (name,) in connection.execute("select distinct outcome from attempt").fetchall()}
        results = connection.execute("select count(*) from result").fetchone()
    finally:
        connection.close()
    assert set(states) == {"done", "dead"}
    assert (states["dead"], results) == (4, (1259,))
    assert {"transient", "throttled", "blocked"} <= classes  # S4.6


def test_the_shop_was_scraped_completely_and_politely_on_postgres(shoal: Shoal, postgres_url: str) -> None:
    refused = shoal("demo", SHOAL_LEDGER=postgres_url)
    assert refused.returncode == 3
    assert "shoal db migrate" in refused.stderr
    shoal("db", "migrate", SHOAL_LEDGER=postgres_url)
    said = shoal("demo", "-q", "--json", SHOAL_LEDGER=postgres_url)
    answer = json.loads(said.stdout)
    seen = answer["checks"]
    in_time = seen["closest_at_outlet"] >= OUTLET_DELAY - TOLERANCE_SECONDS
    assert said.returncode == (0 if in_time else 1), said.stdout + said.stderr
    assert answer["state"] == "finished"
    assert seen["products"] >= 1000
    assert (seen["found"], seen["missing"], seen["twice"], seen["wrong"]) == (seen["products"], [], [], [])
    assert seen["again"] == 0
    assert seen["most_at_once"] <= 16
    # On a busy machine a request is sent a little later than it was allowed to, and the next one in time.
    assert seen["closest_at_outlet"] >= 0.05
    assert (answer["dead"], answer["records"]) == (4, seen["products"])
    assert [answer[state] for state in ("ready", "waiting", "delayed", "leased")] == [0, 0, 0, 0]


def test_on_a_terminal_it_can_be_interrupted(tmp_path: Path) -> None:
    """The bars are drawn, Ctrl-C stops it long before its end, and it says how to go on."""
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
        while True:
            try:
                seen += os.read(master, 65_536)
            except OSError:
                break
        assert process.wait(timeout=60) == 130, seen.decode()
    finally:
        process.kill()
        process.wait()
        os.close(master)
    assert b"Stopping" in seen
    assert b"unfinished" in seen
