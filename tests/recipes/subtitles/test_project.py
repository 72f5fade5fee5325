"""The project of `shoal init --recipe subtitles`: its own tests, what yt-dlp may run, and its demo."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from shoal.recipes.subtitles.stand_in import VideoSite
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
