"""Upgrades without stopping: old and new workers share a run, everybody sees it, and the old ones are told to stop."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import shoal
from shoal.ledger.postgres import schema as postgres_schema
from tests.support.project import Command, Project
from tests.support.releases import releases

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
    return parsed(project.shoal(*arguments, "--json"))


def parsed(command: Command) -> list[dict[str, Any]]:
    return [json.loads(line) for line in command.stdout.splitlines()]


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


# A ledger of the newest release under the workers of this build, upgraded by a later one.

SHOP = """
    from pathlib import Path
    shop = Scraper("shop")

    @shop.stage
    async def listing(item: Item):
        while not Path("go").exists():
            await asyncio.sleep(0.01)
        yield {"listing": item.key or item.url}

    @shop.stage
    async def product(item: Item):
        yield {"product": item.key or item.url}
"""
# It changes a table that workers use and copies data of all runs.
LATER = """
alter table {schema}run add column owner text not null default 'nobody';
create table {schema}visit (item {integer} primary key, url text);
insert into {schema}visit select id, url from {schema}item;
"""


def later_build(folder: Path) -> str:
    """A copy of Shoal with one migration more; the PYTHONPATH with which commands use it."""
    package = Path(shoal.__file__).parent
    shutil.copytree(package, folder / "shoal", ignore=shutil.ignore_patterns("static"))
    version = postgres_schema.code_version() + 1
    for backend, schema, integer in (("postgres", "shoal.", "bigint"), ("sqlite", "", "integer")):
        text = LATER.format(schema=schema, integer=integer)
        (folder / "shoal" / "ledger" / backend / "migrations" / f"{version:04}_later.sql").write_text(text)
    return str(folder)


@pytest.fixture(params=["sqlite", "postgres"])
def released(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Project]:
    """A project on the ledger of the newest release, migrated by this build."""
    release = releases()[-1]
    (tmp_path / "project").mkdir()
    place = str(tmp_path / "released.sqlite3")
    if request.param == "postgres":
        place = request.getfixturevalue("postgres_url")
        asyncio.run(release.put_postgres(place))
    else:
        release.put_sqlite(Path(place))
    with Project(tmp_path / "project", place) as project:
        project.shoal("db", "migrate")
        yield project


def test_a_later_release_upgrades_a_ledger_under_workers_of_this_one(released: Project, tmp_path: Path) -> None:
    project, known = released, postgres_schema.code_version()
    later = later_build(tmp_path / "later")
    project.write(SHOP)
    runs = rows(project, "runs", "ls", "--scraper", "shop")
    run, at_first = runs[0]["run_id"], sum(row["done"] for row in runs)
    old = project.start("worker", "shop.py", "-j", "2", "--batch-size", "2")
    deadline = time.monotonic() + 60
    while not any(row["leased"] for row in rows(project, "workers", "ls") if row["pid"] == old.pid):
        assert time.monotonic() < deadline

    planned = project.shoal("db", "migrate", "--dry-run", PYTHONPATH=later).stdout
    assert f"would go from schema version {known} to {known + 1}, by {known + 1:04}_later." in planned
    refused = project.shoal("status", run, code=3, PYTHONPATH=later).stderr
    assert f"has schema version {known}; this code needs {known + 1}. Run `shoal db migrate`." in refused
    assert f"from schema version {known} to {known + 1}" in project.shoal("db", "migrate", PYTHONPATH=later).stdout
    assert "nothing would be applied" in project.shoal("db", "migrate", "--dry-run", PYTHONPATH=later).stdout

    # The worker of this build finishes what it holds, and says in one sentence why it leaves.
    old.wait_until_it_says("newer schema in ledger")
    (project.folder / "go").touch()
    assert old.wait() == 3
    said = [line for line in old.stderr.splitlines() if "was upgraded" in line]
    assert len(said) == 1
    assert f"beyond schema version {known}" in said[0]
    assert "Upgrade Shoal on this machine" in said[0]

    # Nothing of this build works on the upgraded ledger, and nothing takes the upgrade back.
    for command in (("worker", "shop.py"), ("db", "migrate"), ("db", "migrate", "--dry-run")):
        stderr = project.shoal(*command, code=3).stderr
        assert f"The ledger has schema version {known + 1}; this Shoal knows versions up to {known}." in stderr

    listing = ("runs", "ls", "--scraper", "shop", "--json")
    half_way = parsed(project.shoal(*listing, PYTHONPATH=later))
    project.shoal("worker", "shop.py", PYTHONPATH=later)
    ended = parsed(project.shoal(*listing, PYTHONPATH=later))
    assert {(row["state"], row["remaining"]) for row in ended} == {("finished", 0)}
    assert at_first < sum(row["done"] for row in half_way) < sum(row["done"] for row in ended)
    project.shoal("db", "check", "--deep", PYTHONPATH=later)
