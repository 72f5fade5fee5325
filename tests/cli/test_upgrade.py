"""Upgrades without stopping: old and new workers share a run, everybody can see it, and the old ones are sent home."""

from __future__ import annotations

import json
import time
from typing import Any

from tests.support.project import Project

# Both wait until a file is there, so that the test decides how long they work side by side.
CODE = """
    import shoal
    from pathlib import Path
    if {version!r}:
        shoal.__version__ = {version!r}

    people = Scraper("people")

    @people.stage
    async def profile(item: Item):
        while not Path("go").exists():
            await asyncio.sleep(0.01)
        yield {{"user": item.key, "by": {name!r}}}

    people.start(profile.item(key=f"user-{{n}}") for n in range(12))
"""


def rows(project: Project, *arguments: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in project.shoal(*arguments, "--json").stdout.splitlines()]


def test_old_and_new_workers_side_by_side(fleet: Project) -> None:
    fleet.write(CODE.format(version="0.0.9", name="old"), "old.py")
    fleet.write(CODE.format(version="", name="new"), "new.py")
    fleet.shoal("enqueue", "old.py")
    workers = [fleet.start("worker", f"{name}.py", "-j", "4", "--batch-size", "4") for name in ("old", "new")]
    deadline = time.monotonic() + 30
    while len(present := [row for row in rows(fleet, "workers", "ls") if row["leased"]]) < 2:
        assert time.monotonic() < deadline
    old = next(row for row in present if row["version"] == "0.0.9")
    new = next(row for row in present if row["version"] != "0.0.9")
    assert old["code_version"] != new["code_version"]

    table = fleet.shoal("workers", "ls").stdout
    assert {"VERSION", "CODE", "0.0.9", old["code_version"], new["code_version"]} <= set(table.split())
    status = fleet.shoal("status", "latest").stdout
    assert "Workers run different versions of Shoal:" in status
    assert f"{old['code_version']} (1 worker)" in status
    assert "`shoal workers stop`" in status
    assert rows(fleet, "status", "latest")[0]["code_versions"] == {old["code_version"]: 1, new["code_version"]: 1}
    found = [json.loads(line) for line in fleet.shoal("doctor", "--json", code=1).stdout.splitlines()]
    assert {check["check"] for check in found if not check["ok"]} == {"versions", "code"}

    fleet.shoal("workers", "stop", old["worker"])
    (fleet.folder / "go").touch()
    # 130: it was told to stop before the run ended; 0: the run ended first.
    assert workers[0].wait() in (0, 130)
    assert workers[1].wait() == 0
    records = fleet.export()
    assert sorted(record["user"] for record in records) == sorted(f"user-{n}" for n in range(12))
    assert {record["by"] for record in records} == {"old", "new"}
    assert all(len(attempts) == 1 for attempts in fleet.attempts().values())
    assert "different" not in fleet.shoal("status", "latest").stdout


GROWN = """
    grown = Scraper("grown")

    @grown.stage
    async def found(item: Item):
        yield {new}

    grown.start(found.item(key=str(n)) for n in range(4))
"""
ADDED = """
    @grown.stage
    async def added(item: Item):
        yield {"added": item.key}
"""


def test_an_older_worker_leaves_a_stage_alone_that_it_does_not_have(project: Project) -> None:
    project.write(GROWN.format(new="added.item(item)") + ADDED, "new.py")
    project.write(GROWN.format(new="{}"), "old.py")
    project.shoal("enqueue", "new.py")
    project.shoal("worker", "new.py", "--stage", "found", "--limit", "2")
    project.shoal("worker", "old.py", "--drain")
    assert [(item.stage, item.state) for item in project.items()] == [("found", "done")] * 4 + [("added", "ready")] * 2
    project.shoal("worker", "new.py")
    assert project.counts().done == 6
