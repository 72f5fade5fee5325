"""What `status`, `why`, `workers ls` and a worker itself say when nothing continues: it must be true."""

import json
import signal
import time
from collections.abc import Callable
from typing import Any, cast

from tests.support.project import Project

PATIENCE = 30.0
HANGS = """
    from pathlib import Path

    shop = Scraper("shop")

    @shop.stage(lane=None)
    async def page(item: Item):
        Path(f"began-{item.key}").touch()
        await asyncio.sleep(600 if item.key == "0" else 0)
        yield {"key": item.key}

    shop.start(page.item(key=str(number)) for number in range(8))
"""


def until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def status(project: Project) -> dict[str, Any]:
    (row,) = map(json.loads, project.shoal("status", "--json").stdout.splitlines())
    return cast(dict[str, Any], row)


def test_a_killed_worker_is_no_worker_to_anybody_who_asks(project: Project) -> None:
    """The only one, with nobody left who would notice. Its items come back by hand, without waiting for a worker."""
    project.write(HANGS)
    killed = project.start("run", "shop.py", "-j", "1", "--set", "lease=1")
    until((project.folder / "began-0").exists)
    killed.kill()
    until(lambda: status(project)["waiting_for"] == "a live worker")
    row = status(project)
    assert row["eta_seconds"] is None
    assert "No live worker serves the stage page of shop. Start one: `shoal worker`" in row["waiting_because"]
    whole = project.shoal("status", "latest").stdout
    assert "held by a dead worker: " in whole
    assert "being worked on" not in whole
    held = project.shoal("items", "why", "latest", "--key", "0").stdout
    assert held.startswith("Held by a dead worker: ")
    listed = project.shoal("workers", "ls")
    assert listed.stdout.splitlines()[1].split()[1] == "dead"
    assert "no heartbeat for " in listed.stderr
    assert "when any worker of this ledger or `shoal release` runs" in listed.stderr
    assert "are dead or disconnected" in project.shoal("doctor", code=1).stdout
    assert "Released from dead workers: " in project.shoal("release").stdout
    counts = project.counts()
    assert (counts.leased, counts.remaining) == (0, 8)


def test_a_worker_says_which_run_it_serves_and_why_nothing_happens(project: Project) -> None:
    """An older run was set aside, and the new one has ended: the worker waits for ever, so it says for what."""
    project.write(HANGS.replace("600 if", "0 if"))
    project.shoal("enqueue", "shop.py")
    old = project.run().id
    assert f"Run {old} of shop is unfinished and was paused" in project.shoal("run", "shop.py", "--fresh").stderr
    worker = project.start("worker", "shop.py")
    worker.wait_until_it_says(f"Working on run {old} (paused) of shop; Ctrl-C stops.")
    worker.wait_until_it_says(
        f"Nothing to do for run {old} of shop: it is paused. `shoal runs resume {old}` continues it"
    )
    project.shoal("runs", "resume", old)
    assert worker.wait() == 0
    assert "8 done" in worker.stderr


def test_nobody_promises_an_end_after_ctrl_c(project: Project) -> None:
    project.write(HANGS)
    run = project.start("run", "shop.py", "-j", "2", "--set", "drain=0.1")
    until((project.folder / "began-7").exists)
    run.tell(signal.SIGINT)
    assert run.wait() == 130
    row = status(project)
    assert (row["done"], row["waiting_for"], row["eta_seconds"]) == (7, "a live worker", None)
