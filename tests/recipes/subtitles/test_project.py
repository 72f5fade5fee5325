"""The project of `shoal init --recipe subtitles`: its own tests, what yt-dlp may run, and its demo."""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from shoal.demo.recipe import write_environment
from shoal.recipes.subtitles.stand_in import VideoSite
from tests.recipes.subtitles.conftest import served_subtitles
from tests.support import LONG
from tests.support.project import Project, clean_environment

# Whole when there is time; else its channel has few videos, and its late answers end sooner.
VIDEOS = 400 if LONG else 20
SMALLER = f"""
from functools import partial
from shoal.recipes.subtitles import demo
demo.VideoSite = partial(demo.VideoSite, videos={VIDEOS})
demo.ATTEMPT_SECONDS, demo.HANG_SECONDS = 4, 60.0
"""
DEMO = f"""
{"" if LONG else SMALLER}
from shoal.cli.main import main
main()
"""


def test_the_tests_of_the_project_pass(project: Project) -> None:
    project.shoal("init", ".", "--recipe", "subtitles")
    assert " passed" in project.run_own_tests()


def test_the_project_is_tried_as_its_readme_says(project: Project) -> None:
    """With the site away at first: then the commands that the README has for it."""
    project.shoal("init", ".", "--recipe", "subtitles")
    try_it, again = [
        [line.partition("#")[0].strip() for line in block.splitlines()]
        for block in re.findall(r"```\n(.*?)```", (project.folder / "README.md").read_text(), re.DOTALL)[:2]
    ]
    install, stand_in, *echoes, run = try_it
    assert install == "pip install -r requirements.txt"
    assert all(echo.startswith("echo ") and echo.endswith(" >> .env") for echo in echoes)
    port = stand_in.partition("--port ")[2].split()[0]
    channels = (project.folder / "channels.txt").read_text()
    assert f":{port}/" in channels, "the channel is one of the stand-in"
    for echo in echoes:
        subprocess.run(["sh", "-c", echo], cwd=project.folder, check=True)

    with closing(socket.create_server(("127.0.0.1", 0))) as closed:
        free = str(closed.getsockname()[1])
    (project.folder / "channels.txt").write_text(channels.replace(port, free))
    shoal, *arguments = shlex.split(run)
    assert shoal == "shoal"
    project.start(*arguments, MAX_RETRIES="0").wait()
    assert project.counts().dead == 1
    command = shlex.split(stand_in.removesuffix("&").replace(port, free))
    site = subprocess.Popen([sys.executable, *command[1:]], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert site.stdout is not None
        assert free in site.stdout.readline()
        retry, run_again = again
        project.shoal(*shlex.split(retry)[1:], "--yes")
        project.start(*shlex.split(run_again)[1:], "--limit", "5").wait()
        counts = project.counts()
        assert counts.total == 401, "the channel is listed"
        assert counts.done >= 1
    finally:
        site.terminate()
        site.communicate(timeout=60)


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"MAX_WORKERS": "50"}, "MAX_WORKERS is 50; it must be from 1 to 20"),
        ({"MAX_WORKERS": "0"}, "MAX_WORKERS is 0; it must be from 1 to 20"),
        ({"MAX_RETRIES": "11"}, "MAX_RETRIES is 11; it must be from 0 to 10"),
    ],
)
def test_a_pool_keeps_the_bounds_of_the_settings(project: Project, variables: dict[str, str], said: str) -> None:
    """S4.2: configured numbers that `POST /settings` would refuse start nothing."""
    project.shoal("init", ".", "--recipe", "subtitles")
    project.urls(["http://127.0.0.1:1/@harbour"], "channels.txt")
    pool = ("pool", "subtitles", "--urls-file", "channels.txt", "--dry-run")
    assert "within their bounds" in project.shoal(*pool, fresh=True).stdout
    write_environment(project.folder, variables)
    refused = project.shoal(*pool, fresh=True, code=2)
    assert said in refused.stdout + refused.stderr
    assert f"Correct {next(iter(variables))} in .env." in refused.stdout + refused.stderr


def test_the_server_says_what_is_out_of_bounds(project: Project) -> None:
    """S4.2: it is shown as it is configured, the server says so at its start, and nothing starts with it."""
    with VideoSite(videos=1, ordinary=True).serving() as site:  # noqa: SIM117
        with served_subtitles(project, site, MAX_WORKERS="50", MAX_RETRIES="11") as served:
            for text in (
                "max_workers of subtitles is configured as 50;",
                "max_retries of subtitles is configured as 11;",
            ):
                assert text in served.command.stderr
            settings = served.get("/settings")
            assert (settings["max_workers"], settings["max_retries"]) == (50, 11)
            served.post("/channels", {"url": site.site.channel_url})
            refused = served.post("/jobs/start", status=422)["error"]
            assert "configured for 50 workers; it must be from 1 to 20" in refused["message"]
            refused = served.post("/jobs/workers/start", {"num_workers": 2}, status=409)["error"]
            assert "MAX_WORKERS is 50; it must be from 1 to 20" in refused["message"]
            assert served.get("/api/v1/pools")["rows"] == []


def test_yt_dlp_runs_no_program_and_no_code_of_the_user(project: Project) -> None:
    """An ffmpeg in PATH and plugins in the home folder are not run; without the options of the project both are."""
    project.shoal("init", ".", "--recipe", "subtitles")
    ffmpeg = project.folder / "bin" / "ffmpeg"
    plugin = project.folder / ".config/yt-dlp/plugins/mine/yt_dlp_plugins/extractor/mine.py"
    for file in (ffmpeg, plugin):
        file.parent.mkdir(parents=True)
    ffmpeg.write_text(f'#!/bin/sh\necho "$0" "$@" >> {project.folder}/ran\n')
    plugin.write_text(f"with open('{project.folder}/ran', 'a') as ran:\n    ran.write('plugin')\n")
    for name in ("ffmpeg", "ffprobe", "deno", "node"):
        file = ffmpeg.with_name(name)
        file.write_text(ffmpeg.read_text())
        file.chmod(0o755)
    path = f"{ffmpeg.parent}:{os.environ['PATH']}"
    with VideoSite(videos=1, ordinary=True).serving() as site:
        url = f"{site.url}/watch/v0001"
        tried = project.shoal("try", "subtitles.py", "--stage", "video", url, fresh=True, PATH=path)
        assert "v0001" in tried.stdout
        assert not (project.folder / "ran").exists(), (project.folder / "ran").read_text()
        plain = f"import yt_dlp; yt_dlp.YoutubeDL({{'quiet': True}}).extract_info({url!r}, download=False)"
        subprocess.run(
            [sys.executable, "-c", plain],
            env={**clean_environment(project.folder), "PATH": path},
            check=True,
            timeout=60,
        )
    ran = (project.folder / "ran").read_text()
    assert "plugin" in ran
    assert "bin/ffmpeg" in ran


def test_the_demo_ends_without_a_problem(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", DEMO, "demo", "subtitles", "--json"],
        cwd=tmp_path,
        env=clean_environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=900 if LONG else 180,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    said = json.loads(done.stdout)
    assert said["problems"] == []
    assert said["stored"] + said["dead"] == VIDEOS
