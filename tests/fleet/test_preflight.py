"""Before a pool starts anything: each check in a line, the plan, and a question."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shoal.fleet.plan import PartitionAssigner, Workload
from tests.support.pools import GATED
from tests.support.project import Project


def test_a_dry_run_shows_the_plan_and_stores_nothing(project: Project) -> None:
    """S3.1, S3.2, S3.9, S3.22: 51 partitions over ten workers."""
    project.write(
        """
        states = Scraper("states")

        @states.stage
        async def one(item: Item): ...

        states.start(one.item(key=f"{s}-{n}", partition=f"S{s:02d}") for s in range(51) for n in range(4))
        """,
        "states.py",
    )
    said = project.shoal("pool", "states.py", "--workers", "10", "--dry-run").stdout
    rows = [line.split() for line in said.splitlines() if line.strip()[:1].isdigit()][:10]
    assert sorted(int(row[1]) for row in rows) == [5] * 9 + [6]
    assert sum(int(row[2]) for row in rows) == 204
    assert {row[3] for row in rows} == {"-"}
    assert not (project.folder / "ledger.db").exists()
    assert not (project.folder / "logs").exists()


def test_nothing_is_started_without_a_yes(project: Project) -> None:
    """S3.7"""
    project.write(GATED, "gated.py")
    said = project.shoal("pool", "gated.py", code=2)
    assert "--yes" in said.stderr
    assert not (project.folder / "ledger.db").exists()


@pytest.mark.parametrize(
    ("code", "arguments", "exit_code", "failed", "fix"),
    [
        (GATED, ["--set", "lease=0"], 2, "settings", "Correct --set lease"),
        ("import nothing_like_it", [], 2, "scraper", "Correct"),
        (GATED, ["--ledger", "postgresql://nobody@127.0.0.1:1/none", "--set", "patience=0.1"], 3, "ledger", "Check"),
        (GATED, ["--log-dir", "gated.py"], 2, "logs", "--log-dir"),
        (GATED, ["--run-id", "20200101_000000"], 5, "run", "lists the runs"),
        (GATED.replace("gated.start", "list"), [], 2, "run", "--urls-file"),
        (GATED, ["--assign", "who.txt"], 2, "partitions", "Add the missing partitions"),
    ],
    ids=["settings", "scraper", "ledger", "logs", "no run", "no items", "partitions"],
)
def test_a_failed_check_names_its_remedy(
    project: Project, code: str, arguments: list[str], exit_code: int, failed: str, fix: str
) -> None:
    """S3.8: and nothing is started."""
    project.write(code, "gated.py")
    (project.folder / "who.txt").write_text("[0] a, b\n")
    said = project.shoal("pool", "gated.py", "--yes", *arguments, code=exit_code).stdout
    lines = said.splitlines()
    assert [line.split()[1] for line in lines if line.startswith("failed")] == [failed]
    assert fix in lines[-1]
    assert not list(project.folder.glob("logs/*worker*"))


def test_the_number_of_workers_comes_from_the_settings(project: Project) -> None:
    """S3.6: unless the command line says otherwise."""
    project.write(GATED, "gated.py")

    def planned(*arguments: str) -> int:
        said = project.shoal("pool", "gated.py", "--dry-run", "--json", *arguments)
        return sum("partitions" in json.loads(line) for line in said.stdout.splitlines())

    (project.folder / "shoal.toml").write_text("[scrapers.gated]\nworkers = 3\n")
    assert planned() == 3
    assert planned("--set", "workers=2") == 2
    assert planned("--workers", "1") == 1


def test_partitions_need_not_be_assigned(project: Project) -> None:
    """assign = "none": no worker prefers a partition; those of the command line are assigned."""
    project.write(GATED, "gated.py")
    (project.folder / "shoal.toml").write_text("[scrapers.gated]\nassign = 'none'\nworkers = 2\n")

    def planned(*arguments: str) -> list[list[str]]:
        said = project.shoal("pool", "gated.py", "--dry-run", "--json", *arguments).stdout
        return [record["partitions"] for line in said.splitlines() if "partitions" in (record := json.loads(line))]

    assert planned() == [[], []]
    assert planned("--partition", "a", "--partition", "b") == [["a"], ["b"]]
    own = "A worker that has finished its own partitions takes items of the others."
    said = [project.shoal("pool", "gated.py", "--dry-run", *more).stdout for more in ((), ("--partition", "a"))]
    assert [own in text for text in said] == [False, True]
    assert "No worker has partitions of its own: each takes what comes first in the run." in said[0]


async def test_a_reload_reads_changed_settings() -> None:
    configured = 2

    async def look() -> Workload:
        return Workload(waiting={"a": 1, "b": 1, "c": 1})

    assigner = PartitionAssigner(look, assignment=None, workers=None, configured=lambda: configured)
    assert len(await assigner.assign()) == 2
    assert len(await assigner.assign(1)) == 1
    assert len(await assigner.assign()) == 1, "what somebody asked for stays"
    configured = 3
    assert len(await assigner.assign()) == 3


async def test_parts_that_are_fixed_by_a_number_stay_where_they_are(tmp_path: Path) -> None:  # S3.17
    """They are divided by the most workers that the pool may have, and by more when somebody asks for more."""

    async def look() -> Workload:
        return Workload(waiting={"a": 1, "b": 1})

    (tmp_path / "who.txt").write_text("[0] a\n[1] b\n")
    for assignment in (None, tmp_path / "who.txt"):
        elastic = PartitionAssigner(look, assignment=assignment, workers=2, configured=lambda: 2, most=10)
        sizes = [elastic.places]
        for workers in (None, 7, 12, 3):
            await elastic.assign(workers)
            sizes.append(elastic.places)
        assert sizes == [10, 10, 10, 12, 12]


OWN_CHECKS = """
    from dataclasses import dataclass

    from shoal import CheckFailed

    @dataclass
    class Options:
        keys: int = 1

    gated = Scraper("gated", settings=Options)

    @gated.preflight
    def api_keys(options: Options):
        if not options.keys:
            raise CheckFailed("there is no API key", remedy="Put one into .env.")
        return f"{options.keys} there"

    @gated.preflight
    async def weather(): ...

    @gated.stage
    async def one(item: Item): ...

    gated.start(one.item(key=f"{part}-{n}", partition=part) for part in ("a", "b", "c") for n in range(10))
"""


def test_a_scraper_has_checks_of_its_own(project: Project) -> None:
    """S3.8: they are made before anything is stored, and one that fails starts nothing."""
    project.write(OWN_CHECKS, "gated.py")
    said = project.shoal("pool", "gated.py", "--dry-run", "--json").stdout
    checks = {record["check"]: record["text"] for line in said.splitlines() if "check" in (record := json.loads(line))}
    assert checks["api keys"] == "1 there"
    assert "weather" in checks
    (project.folder / "shoal.toml").write_text("[scrapers.gated.settings]\nkeys = 0\n")
    failed = project.shoal("pool", "gated.py", "--yes", code=2)
    assert "there is no API key" in failed.stdout + failed.stderr
    assert "Put one into .env." in failed.stdout + failed.stderr
    assert not (project.folder / "ledger.db").exists()
    project.write(OWN_CHECKS.replace('return f"', 'raise ValueError("x") or f"'), "gated.py")
    (project.folder / "shoal.toml").unlink()
    broken = project.shoal("pool", "gated.py", "--yes", code=2)
    assert "ValueError: x" in broken.stdout + broken.stderr


def test_assignment_and_log_names_are_settings(project: Project) -> None:
    """S3.11, S3.22"""
    project.write(GATED, "gated.py")
    (project.folder / "go").touch()
    (project.folder / "who.txt").write_text("[0] b\n[1] a, c\n")
    (project.folder / "shoal.toml").write_text(
        """
        [scrapers.gated]
        assign = "who.txt"
        worker_log = "state_worker_{worker}.log"
        pool_log = "state_worker_pool.log"
        """
    )
    said = project.shoal("pool", "gated.py", "--yes", "--stagger", "0", "--json").stdout
    planned = [record for line in said.splitlines() if "partitions" in (record := json.loads(line))]
    assert [worker["partitions"] for worker in planned] == [["b"], ["a", "c"]]
    names = sorted(file.name for file in (project.folder / "logs").iterdir())
    assert names == ["state_worker_0.log", "state_worker_1.log", "state_worker_pool.log"]
    (project.folder / "shoal.toml").write_text("[scrapers.gated]\nworker_log = '../{worker}.log'\n")
    assert "without a folder" in project.shoal("pool", "gated.py", "--yes", code=2).stdout
