"""What holds for every command: help, output streams, exit codes, and how errors are told."""

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.cli.main import main
from shoal.cli.render.session import Session
from shoal.config import NAMES
from shoal.config.egress import parse_duration
from tests.support.fork_server import COMMAND
from tests.support.project import Shoal, clean_environment

COMMANDS = [["demo"], ["db", "migrate"], ["db", "check"], ["db", "show"], ["config", "show"]]


def test_help_is_quick(shoal: Shoal) -> None:
    """The goal is 150 ms. Measured as CPU time, which other processes on the machine change little."""
    times = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert shoal("--help", fresh=True).returncode == 0
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert 0 < min(times) < 0.4


@pytest.mark.parametrize("command", [["runs", "ls"], ["status"], ["db", "show", "--scraper", "books"]], ids=" ".join)
def test_short_commands_do_not_import_pydantic(shoal: Shoal, command: list[str]) -> None:
    """Importing it and building its validators would double their time."""
    shoal("db", "migrate")
    done = shoal(*command, fresh=True, PYTHONPROFILEIMPORTTIME="1")
    assert done.returncode == 0
    assert "typer" in done.stderr
    for heavy in ("pydantic", "asyncpg", "aiohttp", "uvloop", "rich"):
        assert f" {heavy}\n" not in done.stderr


def test_help_imports_nothing_heavy(shoal: Shoal) -> None:
    imported = shoal("--help", PYTHONPROFILEIMPORTTIME="1").stderr
    assert "typer" in imported
    for heavy in ("asyncpg", "asyncio", "rich", "msgspec", "sqlite3", "can_ada"):
        assert f" {heavy}\n" not in imported


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_has_the_common_options(shoal: Shoal, command: list[str]) -> None:
    text = shoal(*command, "--help").stdout
    for option in ("--ledger", "--db-host", "--db-port", "--db-name", "--db-user", "--set", "--json", "-q", "-v"):
        assert option in text
    assert "-password" not in text


def test_python_m_shoal_is_shoal(tmp_path: Path, shoal: Shoal) -> None:
    said = subprocess.run(
        [sys.executable, "-m", "shoal", "--version"],
        env=clean_environment(tmp_path),
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout == shoal("--version").stdout != ""


@pytest.mark.parametrize(
    "arguments", [["db", "chek"], ["db", "check", "--depe"], ["config", "show", "--set", "patience"]]
)
def test_usage_errors_exit_2_without_data(shoal: Shoal, arguments: list[str]) -> None:
    refused = shoal(*arguments)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "Error: " in refused.stderr


def test_configuration_errors_exit_2_with_one_sentence_and_its_remedy(shoal: Shoal) -> None:
    refused = shoal("config", "show", SHOAL_LEGDER="x")
    assert refused.returncode == 2
    assert refused.stderr == (
        "Error: SHOAL_LEGDER is not a setting; did you mean SHOAL_LEDGER? "
        "Correct or remove it; `shoal config show` lists every setting.\n"
    )


def test_config_show_says_where_values_come_from(shoal: Shoal, tmp_path: Path) -> None:
    (tmp_path / "shoal.toml").write_text("busy_timeout = 2\n")
    said = shoal("config", "show", "--origin", "--json", "--set", "pool-size=7", SHOAL_LEDGER="a.db")
    rows = {row["name"]: (row["value"], row["origin"]) for row in map(json.loads, said.stdout.splitlines())}
    expected = {
        "ledger": ("a.db", "SHOAL_LEDGER"),
        "pool_size": (7, "--set pool_size"),
        "patience": (60.0, "default"),
        "busy_timeout": (2.0, "busy_timeout in shoal.toml"),
        "robots": (True, "default"),
        "max_dead": ("10%", "default"),
    }
    assert {name: rows[name] for name in expected} == expected
    assert tuple(rows) == NAMES
    assert "ORIGIN" not in shoal("config", "show").stdout


def test_config_show_prints_times_as_a_file_has_them(shoal: Shoal, tmp_path: Path) -> None:
    (tmp_path / "shoal.toml").write_text(
        '[egress.homes]\nkind = "proxies"\nfile = "proxies.txt"\nban_for = "60m"\nrefresh = 0.5\nblock_for = "90s"\n'
    )
    words = dict(line.split()[:2] for line in shoal("config", "show").stdout.splitlines())
    assert (words["patience"], words["backoff_jitter"]) == ("60", "0.2")
    times = {name: words[f"egress.homes.{name}"] for name in ("ban_for", "refresh", "block_for")}
    assert times == {"ban_for": "1h", "refresh": "0.5s", "block_for": "90s"}
    assert {parse_duration(text) for text in times.values()} == {3_600.0, 0.5, 90.0}


def test_config_show_of_a_scraper(shoal: Shoal, tmp_path: Path) -> None:
    (tmp_path / "shoal.toml").write_text(
        "lease = 9\n[scrapers.books]\nrobots = false\nsettings.service_key = 'k3y'\nstages.listing.rate = '2/s'\n"
    )
    said = shoal("config", "show", "books", "--origin").stdout.splitlines()
    rows = {name: (value, " ".join(origin)) for name, value, *origin in map(str.split, said)}
    assert rows["mode"] == ("single", "default")
    assert rows["lease"] == ("9", "lease in shoal.toml")
    assert rows["robots"] == ("false", "scrapers.books.robots in shoal.toml")
    assert rows["stages.listing.rate"] == ("2/s", "scrapers.books.stages.listing.rate in shoal.toml")
    everything = shoal("config", "show").stdout
    assert "scrapers.books.robots" in everything
    assert "settings.service_key" in everything
    assert "k3y" not in everything
    unknown = shoal("config", "show", "bokos")
    assert (unknown.returncode, unknown.stdout) == (5, "")
    assert "scrapers with a table: books" in unknown.stderr


@pytest.mark.parametrize("verbose", [False, True])
def test_a_bug_exits_70_and_keeps_secrets(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], verbose: bool
) -> None:
    def broken(session: Session) -> None:
        raise RuntimeError("lost postgresql://me:s3cret@h/db")

    monkeypatch.setattr(Session, "settings", property(broken))
    assert main(["config", "show", *(["-v"] if verbose else [])]) == 70
    said = capsys.readouterr()
    assert said.out == ""
    assert "postgresql://me:***@h/db" in said.err
    assert "s3cret" not in said.err
    assert ("Traceback" in said.err) == verbose


def test_a_reader_that_leaves_early_is_no_error(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*COMMAND, "config", "show"],
        cwd=tmp_path,
        env=clean_environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    with process.stderr:
        assert process.stderr.read() == ""
    process.wait()
