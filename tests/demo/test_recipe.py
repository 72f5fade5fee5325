"""Demos of recipes: commands run in a project of their own, in order, and the first failure ends them."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import asyncpg
import pytest

from shoal.config.sources import read_dotenv
from shoal.demo.recipe import DemoStep, child_environment, run_steps, was_interrupted, write_environment
from shoal.errors import EXIT_INTERRUPTED
from shoal.recipes import RECIPES, find_project
from shoal.recipes.countries.demo import URLS
from shoal.recipes.yellowpages import demo as yellow_pages
from tests.support import LONG
from tests.support.browsers import require_chromium
from tests.support.pools import ARGUMENTS, GATED, PATIENCE, busy, is_alive, open_gate, until
from tests.support.project import Project, clean_environment

WRITE = "import os, pathlib; pathlib.Path('seen').open('a').write(os.environ.get('NAME', '') + '\\n')"


def test_commands_run_in_the_folder_until_one_fails(tmp_path: Path) -> None:
    shown: list[str] = []
    steps = [
        DemoStep(("python", "-c", WRITE)),
        DemoStep(("python", "-c", "raise SystemExit(7)"), exit_codes=(0, 7)),
        DemoStep(("python", "-c", "raise SystemExit(3)")),
        DemoStep(("python", "-c", WRITE)),
    ]
    environ = {**os.environ, "NAME": "value"}
    results = run_steps(steps, tmp_path, environ, announce=lambda step: shown.append(step.shown))
    assert [(result.code, result.failed) for result in results] == [(0, False), (7, False), (3, True)]
    assert len(shown) == 3
    assert (tmp_path / "seen").read_text() == "value\n"
    assert not was_interrupted(results)


def test_a_background_command_is_stopped_after_the_last_step(tmp_path: Path) -> None:
    waits = (
        "import pathlib, signal, sys; signal.signal(signal.SIGINT, lambda *_: sys.exit(0));"
        "pathlib.Path('up').touch(); signal.pause()"
    )
    looks = "import pathlib, time\nwhile not pathlib.Path('up').exists(): time.sleep(0.01)"
    steps = [DemoStep(("python", "-c", waits), background=True), DemoStep(("python", "-c", looks))]
    results = run_steps(steps, tmp_path, os.environ, announce=lambda _: None)
    assert [(result.code, result.step.background) for result in results] == [(0, False), (0, True)]


STEPS = """
import os, sys
from pathlib import Path
from shoal.demo.recipe import DemoStep, run_steps, was_interrupted

pool = ("shoal", "pool", "gated.py", "--workers", "2", *sys.argv[1:])
results = run_steps([DemoStep(pool), DemoStep(("python", "-c", "open('next', 'w')"))], Path("."), os.environ,
                    announce=lambda step: None)
sys.exit(5 if was_interrupted(results) else 0)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL], ids=lambda number: number.name)
def test_a_demo_that_is_terminated_leaves_no_process(project: Project, number: signal.Signals) -> None:
    project.write(GATED, "gated.py")
    environ = clean_environment(project.folder, SHOAL_LEDGER=project.ledger)
    demo = subprocess.Popen(
        [sys.executable, "-c", STEPS, *ARGUMENTS], cwd=project.folder, env=environ, start_new_session=True
    )
    try:
        log = project.folder / "logs" / "gated_worker_1.log"
        until(log.exists, bool, "the last worker was not started")
        pids = {worker.pid for worker in busy(project, 2)}
        pids |= {int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) for pid in pids}
        assert len(pids - {demo.pid}) == 3, "the pool and its workers"
        demo.send_signal(number)
        if number == signal.SIGKILL:
            assert demo.wait(PATIENCE) == -number
        open_gate(project)
        until(lambda: {pid for pid in pids if is_alive(pid)}, lambda left: not left, "processes are left")
        assert demo.wait(PATIENCE) == (-number if number == signal.SIGKILL else 5)
        assert not (project.folder / "next").exists()
        counts = project.counts()
        assert (counts.leased, counts.dead) == (0, 0)
        assert counts.remaining > 0, "they have not ended because the run had"
    finally:
        demo.kill()
        demo.wait()


@pytest.mark.slow
def test_a_demo_that_is_interrupted_complains_about_nothing_that_it_has_not_reached(project: Project) -> None:
    size = "demo.DemoSize(workers=2, proxies=6, dead=1, flaky=0, ban_after=1000)"
    program = PROGRAM.format(recipe="yellowpages", shown=f"demo.YellowPagesDemo({size})")
    with (project.folder / "said").open("w+") as said:
        demo = subprocess.Popen(
            [sys.executable, "-c", program, "demo", "yellowpages"],
            cwd=project.folder,
            env=clean_environment(project.folder, SHOAL_LEDGER=project.ledger),
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
        try:
            log = Path(said.name)
            until(log.read_text, lambda text: "$ shoal pool" in text, "the pool was not started")
            until(project.counts, lambda counts: counts.done > 0, "no target is done")
            os.killpg(demo.pid, signal.SIGINT)  # as the terminal does
            assert demo.wait(PATIENCE) == EXIT_INTERRUPTED
        finally:
            demo.kill()
            demo.wait()
        said.seek(0)
        text = said.read()
    assert "What the stand-in says, up to the interruption\n" in text
    assert "PROBLEM" not in text
    counts = project.counts()
    assert counts.leased == 0
    assert counts.remaining > 0
    assert f"{counts.done} were done exactly once" in text


def test_the_limits_of_the_directory_act_in_its_demo() -> None:
    """A worker asks one address for the pages of a target, some of them sooner than the site wants."""
    assert yellow_pages.MIN_DELAY < yellow_pages.DEMO.stand_in().min_gap < yellow_pages.MAX_DELAY


def test_the_environment_of_a_demo(tmp_path: Path) -> None:
    given = {"PATH": "/bin", "SHOAL_CONCURRENCY": "3", "https_proxy": "http://p", "SHOAL_TOR": "/opt/tor"}
    texts = dict(find_project("github").files())
    assert child_environment(given, None, texts) == {"PATH": "/bin", "SHOAL_TOR": "/opt/tor"}
    assert child_environment(given, "postgresql://me@db/x", texts)["SHOAL_LEDGER"] == "postgresql://me@db/x"
    values = {"URL": "http://127.0.0.1:1/", "TEXT": "two words # no comment", "EMPTY": ""}
    write_environment(tmp_path, values)
    assert read_dotenv(tmp_path / ".env") == values


@pytest.mark.parametrize(
    ("recipe", "names"),
    [
        ("github", ["GITHUB_TOKEN", "GITHUB_TOKEN_2", "GITHUB_API", "LOCATIONS", "MAX_RETRIES", "TOKEN_SHARE"]),
        ("countries", ["TOR_SOCKS_PORT", "TOR_OPTIONS_FILE", "ADDRESS_URL", "WORKER_LEASE_SECONDS", "MAX_RETRIES"]),
        ("newspapers", []),
        ("yellowpages", ["YP_BASE_URL", "PROXY_FILE", "WORKER_COUNT"]),
        ("subtitles", ["MAX_WORKERS", "MAX_RETRIES", "BACKOFF_FACTOR", "VIDEO_TIMEOUT"]),
    ],
)
def test_settings_and_secrets_of_the_shell_do_not_reach_a_demo(recipe: str, names: list[str]) -> None:
    """They would outrank the demo's `.env`, and tokens would go to the stand-in."""
    assert recipe in RECIPES
    texts = dict(find_project(recipe).files())
    example = re.findall(r"([A-Z][A-Z0-9_]+)=", texts.get(".env.example", ""))
    given = dict.fromkeys([*names, *example], "of the shell") | {"PATH": "/bin", "GH_EDITOR": "vi"}
    assert child_environment(given, None, texts) == {"PATH": "/bin", "GH_EDITOR": "vi"}


# Demos of many targets and newspapers, as small as a test can have them.
SMALL = {
    "newspapers": "demo.NewspapersDemo(countries=('fiji', 'nauru'))",
    "yellowpages": (
        "demo.YellowPagesDemo(demo.DemoSize(states='CA,TX,NY,VT', cities=2, categories=3, workers=2,"
        " proxies=6, dead=1, flaky=0, ban_after=2))"
    ),
}
PROGRAM = """
import sys
from shoal.cli.main import main
from shoal.recipes.{recipe} import demo
demo.DEMO = {shown}
sys.exit(main())
"""
CLOSEST = {"newspapers": "the shortest pause was", "yellowpages": "s on average,"}


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["github", "countries", "newspapers", "yellowpages"])
def test_a_demo_runs_to_its_end(tmp_path: Path, recipe: str) -> None:
    """On SQLite, where of the countries only Argentina runs. A token and a setting of the shell are not used.

    Newspapers and Yellow Pages are small; with SHOAL_CHAOS=long they are whole.
    """
    if recipe == "countries":
        require_chromium()
    ended = run_demo(tmp_path, recipe, str(tmp_path / "demo.db"))
    said = json.loads(ended.stdout)
    assert (said["recipe"], said["problems"]) == (recipe, [])
    assert any(CLOSEST.get(recipe, "the two closest requests") in line for line in said["said"])
    if recipe == "github":
        assert said["profiles"] >= 120
    elif recipe == "countries":
        counts = said["argentina"]
        assert (counts["completed"], counts["failed"], counts["total"], counts["wrong"]) == (59, 1, 60, 0)
    elif recipe == "newspapers":
        assert said["records"] >= 50
    else:
        assert said["targets"] == (612 if LONG else 24)
    assert "wxyz" not in ended.stdout + ended.stderr


@pytest.mark.slow
async def test_the_demo_of_the_countries_on_postgresql(tmp_path: Path, postgres_url: str) -> None:  # S1.1, S1.7
    """India and Russia in pools, Russia one worker at a time; Malaysia with the flags of the earlier system."""
    require_chromium()
    urls = URLS if LONG else {"argentina": 5, "india": 14, "malaysia": 4, "russia": 9}
    ended = await asyncio.to_thread(run_demo, tmp_path, "countries", postgres_url, f"demo.CountriesDemo({urls})")
    said = json.loads(ended.stdout)
    assert said["problems"] == []
    for country, count in urls.items():
        gone = count >= 13  # numbers that end in 13
        counts = said[country]
        assert (counts["completed"], counts["failed"], counts["wrong"]) == (count - gone, gone, 0), country
    assert "worker --scraper malaysia --run-id latest --batch-size 10" in ended.stderr
    connection = await asyncpg.connect(postgres_url)
    try:
        spans = await connection.fetch(
            "select min(o.claimed_at), max(o.ended_at) from shoal.outcome o join shoal.run r on r.no = o.run "
            "where r.scraper = 'russia' group by o.worker order by 1"
        )
    finally:
        await connection.close()
    assert spans
    assert all(ended <= begun for (_, ended), (begun, _) in pairwise(spans)), "two workers of Russia at once"


def run_demo(folder: Path, recipe: str, ledger: str, shown: str = "") -> subprocess.CompletedProcess[str]:
    """Run a demo with a shell whose variables it must not use; `shown` is what it shows instead of its own size."""
    shown = shown or ("demo.DEMO" if LONG else SMALL.get(recipe, "demo.DEMO"))
    shell = {"GITHUB_TOKEN": "a-real-token-wxyz", "MAX_RETRIES": "-1", "TOR_SOCKS_PORT": "1"}
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(recipe=recipe, shown=shown), "demo", recipe, "--json"],
        cwd=folder,
        env=clean_environment(folder, SHOAL_LEDGER=ledger, **shell),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended
