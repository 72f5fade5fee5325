"""The project of `shoal init --recipe countries`: its tests pass, its settings have their old names, its demo runs."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from shoal.config import load_settings
from shoal.demo.recipe import write_environment
from tests.recipes.countries.conftest import Countries
from tests.support.browsers import require_chromium
from tests.support.project import Project, clean_environment


def test_the_tests_of_the_project_pass(project: Project) -> None:
    project.shoal("init", ".", "--recipe", "countries")
    assert "2 passed" in project.run_own_tests()


def test_settings_by_their_old_names(tmp_path: Path) -> None:  # S1.1, S1.7, S1.10, S1.16, S1.17
    with Countries(tmp_path, "postgresql://me:secret-secret@db.example:6543/scraper_db") as project:
        project.configure(
            "http://127.0.0.1:1",
            TOR_SOCKS_PORT="9050",
            TOR_CONTROL_PORT="9051",
            WORKER_BATCH_SIZE="25",
            WORKER_LEASE_SECONDS="300",
            MAX_RETRIES="5",
        )
        modes, shown = {}, ""
        for name in ("india", "malaysia", "russia", "argentina"):
            shown = project.shoal("config", "show", name, "--json").stdout
            settings = {each["name"]: each["value"] for each in map(json.loads, shown.splitlines())}
            modes[name] = (settings["mode"], settings["worker_limit"])
            assert (settings["batch_size"], settings["lease"], settings["retries"]) == (25, 300, 5)
            assert settings["ledger"] == "postgresql://me:***@db.example:6543/scraper_db"
    assert modes == {
        "india": ("distributed", 0),
        "malaysia": ("distributed", 0),
        "russia": ("distributed", 1),
        "argentina": ("single", 0),
    }
    tor = load_settings({}, environ={}, folder=tmp_path).egress["tor"]
    assert "secret-secret" not in shown
    assert (tor.socks, tor.control) == ("127.0.0.1:9050", "127.0.0.1:9051")


@pytest.mark.parametrize("names", ["POSTGRES_HOST PORT DB USER", "DB_HOST PORT NAME USER", "PGHOST PORT DATABASE USER"])
def test_the_worker_command_names_the_database_whatever_named_it(countries: Countries, names: str) -> None:  # S1.5
    """As it stands, without these variables, it finds the run; the password is not in it."""
    prefix = names[: names.index("HOST")]
    at = urlsplit(countries.ledger)
    values = (at.hostname, str(at.port), at.path.removeprefix("/"), at.username)
    variables = {
        f"{prefix}{name.removeprefix(prefix)}": value or "" for name, value in zip(names.split(), values, strict=True)
    }
    password = unquote(at.password or "")
    write_environment(countries.folder, {**variables, f"{prefix}PASSWORD": password, "TOR_SOCKS_PORT": "1"})
    urls = countries.urls(["http://127.0.0.1:1/russia/drug/1"], "urls/russia.txt")
    said = countries.shoal("start", "russia", "--urls-file", urls)
    command = shlex.split(json.loads(said.stdout)["worker_command"])
    assert password not in said.stdout + said.stderr
    write_environment(countries.folder, {"TOR_SOCKS_PORT": "1"})
    run, ledger = (command[command.index(flag) + 1] for flag in ("--run-id", "--ledger"))
    counts = countries.shoal("stats", "russia", run, "--json", "--ledger", ledger, PGPASSWORD=password).stdout
    assert json.loads(counts)["pending"] == 1


def test_a_cluster_gets_the_worker_command_by_ssh(tmp_path: Path) -> None:
    """The script of the project, with an `ssh` that writes down what it is called with, and runs it here."""
    answer = {"run_id": "20261118_010203", "worker_command": "shoal-of-node worker india --run-id 20261118_010203"}
    with Countries(tmp_path, "postgresql://x/y"):
        (tmp_path / "countries").mkdir()
        write_program(tmp_path / "bin/ssh", 'for word in "$@"; do echo "$word"; done >> calls.txt; exec sh -c "$word"')
        missing = start_cluster(tmp_path, json.dumps(answer))
        assert missing.returncode == 1
        assert "scraper@worker2.example.org: failed with 127" in missing.stdout
        assert "there is no shoal-of-node" in missing.stderr
        assert "worker1.example.org: failed with 127" in missing.stdout
        assert "there is no .venv/bin/shoal" in missing.stderr, "what cluster.toml says of this node"
        write_program(tmp_path / "bin/shoal-of-node", 'echo "$@" >> started.txt')
        write_program(tmp_path / "countries/.venv/bin/shoal", 'echo "$@" >> started.txt')
        done = start_cluster(tmp_path, json.dumps(answer))
        assert done.returncode == 0, done.stderr
        assert "scraper@worker2.example.org: 5 workers of run 20261118_010203" in done.stdout
        assert (tmp_path / "calls.txt").read_text().splitlines()[:2] == ["-i", str(tmp_path / ".ssh/id_ed25519")]
        started, deadline = tmp_path / "countries/started.txt", time.monotonic() + 60
        while not started.exists() or len(started.read_text().splitlines()) < 10:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert set(started.read_text().splitlines()) == {"worker india --run-id 20261118_010203"}


@pytest.mark.parametrize("answer", ["", "null", "[]", '{"run_id": "20261118_010203"}', '{"worker_command": ""}'])
def test_a_cluster_without_an_answer_starts_nothing(tmp_path: Path, answer: str) -> None:
    with Countries(tmp_path, "postgresql://x/y"):
        ended = start_cluster(tmp_path, answer)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "no worker was started" in ended.stderr
    assert "Traceback" not in ended.stderr


def write_program(path: Path, script: str) -> None:
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def start_cluster(folder: Path, answer: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "cluster.py"],
        cwd=folder,
        input=answer,
        env={**clean_environment(folder), "PATH": f"{folder / 'bin'}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_demo_says_what_is_missing(tmp_path: Path) -> None:
    said = subprocess.run(
        [sys.executable, "-m", "shoal", "demo", "countries"],
        cwd=tmp_path,
        env=clean_environment(tmp_path, SHOAL_CHROMIUM="/nonexistent/chromium"),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert said.returncode == 2
    assert "The setting chromium is /nonexistent/chromium, which is no program." in said.stderr


def test_the_dashboard_of_the_demo_starts_after_the_migration(tmp_path: Path, postgres_url: str) -> None:
    """Otherwise it reports a ledger without a schema as away."""
    require_chromium()
    demo = subprocess.Popen(
        [sys.executable, "-m", "shoal", "demo", "countries"],
        cwd=tmp_path,
        env=clean_environment(tmp_path, SHOAL_LEDGER=postgres_url),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert demo.stderr is not None
    said = []
    with demo:
        for line in demo.stderr:
            said.append(line)
            if "start argentina" in line:
                break
        os.killpg(demo.pid, signal.SIGINT)
        demo.stderr.read()
    text = "".join(said)
    assert 0 < text.find("$ shoal db migrate") < text.find("Dashboard: ") < text.find("$ shoal start argentina"), text
    assert "ledger away" not in text
