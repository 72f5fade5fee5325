"""The browser as a process: none stays behind, whoever is killed; what is missing is said in one sentence."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from shoal.errors import UsageError
from shoal.fetch.chromium import BrowserMissing, check_playwright, find_chromium
from tests.support.browsers import children, make_browser

WORKER = """
import asyncio, os, sys
from tests.support.browsers import make_browser
async def main():
    browser = make_browser()
    await browser.start()
    async with browser.open_tab(jar="a") as tab:
        print(browser._browsers[0].chromium.process, flush=True)
        await asyncio.sleep(600)
asyncio.run(main())
"""


def is_running(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2][0]
    except OSError:
        return False
    return state not in "ZX"


@pytest.mark.parametrize("victims", ["worker", "worker and driver"])
def test_no_process_and_no_folder_stays_behind_after_kill_9(tmp_path: Path, victims: str) -> None:
    make_browser()
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    worker = subprocess.Popen(
        [sys.executable, "-c", WORKER],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert worker.stdout is not None
    try:
        assert worker.stdout.readline().strip().isdigit()
        below = children(worker.pid)
        assert any("--user-data-dir" in line for line in below.values())
        drivers = [process for process, line in below.items() if "run-driver" in line]
        if victims != "worker":
            # Stopped, so that they cannot end what they have started.
            for process in drivers:
                os.kill(process, signal.SIGSTOP)
    finally:
        worker.kill()
        worker.wait()
        worker.stdout.close()
    give_up = time.monotonic() + 30
    while (left := [process for process in below if is_running(process)]) or list(tmp_path.iterdir()):
        assert time.monotonic() < give_up, (left, list(tmp_path.iterdir()))
        time.sleep(0.05)


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BrowserMissing, match="chromium-headless-shell"):
        find_chromium("", "")
    with pytest.raises(BrowserMissing, match="SHOAL_CHROMIUM"):
        find_chromium("/no/such/program", "")
    (tmp_path / "chromium").write_text("#!/bin/sh\n")
    (tmp_path / "chromium").chmod(0o755)
    assert find_chromium("", "") == str(tmp_path / "chromium")
    own = tmp_path / "own"
    own.touch()
    assert find_chromium("", str(own)) is None
    monkeypatch.setitem(sys.modules, "playwright.async_api", None)
    with pytest.raises(UsageError, match=r"pip install 'shoal\[browser\]'"):
        check_playwright()
