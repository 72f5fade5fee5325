"""Several workers as operators of the older systems start them: one command, any number of times, from any machine."""

from __future__ import annotations

import json
import subprocess
from urllib.parse import urlsplit

from tests.acceptance.project import COMMAND, Project, clean_environment

CHAIN = """
    chain = Scraper("chain")

    @chain.stage
    async def found(item: Item):
        yield profiled.item(item)

    @chain.stage
    async def profiled(item: Item, log: Log):
        log.info("looking", at=item.key)
        await asyncio.sleep(0.02)
        if item.key == "user-3":
            raise Permanent("No such user")
        yield {"user": item.key}

    chain.start(found.item(key=f"user-{n}", partition="even" if n % 2 == 0 else "odd") for n in range(40))
"""
ARGUMENTS = ("worker", "chain.py", "--set", "lease=5")


def test_the_same_command_many_times_over(fleet: Project) -> None:
    """S0.1, S0.10, S1.3, S1.8, S1.11, S1.14, S2.25, S3.23: nothing tells workers apart, nothing is done twice."""
    fleet.write(CHAIN, "chain.py")
    fleet.shoal("enqueue", "chain.py")
    workers = [fleet.start(*ARGUMENTS, "-j", "2", "--batch-size", "5", "--json") for _ in range(3)]
    assert [worker.wait() for worker in workers] == [0, 0, 0]
    reports = [json.loads(worker.stdout) for worker in workers]
    assert len({report["worker"] for report in reports}) == 3
    assert sum(report["attempts"] for report in reports) == 80
    assert sorted(record["user"] for record in fleet.export()) == sorted(f"user-{n}" for n in range(40) if n != 3)
    assert all(len(attempts) == 1 for attempts in fleet.attempts().values())


def test_the_database_by_its_parts(fleet: Project) -> None:
    """S1.7: host, port, name and user are flags of the worker; the password is not."""
    fleet.write(CHAIN, "chain.py")
    run_id = json.loads(fleet.shoal("enqueue", "chain.py").stdout)["run_id"]
    place = urlsplit(fleet.ledger)
    parts = ["--db-host", str(place.hostname), "--db-port", str(place.port), "--db-name", place.path[1:]]
    said = subprocess.run(
        [*COMMAND, *ARGUMENTS, "--run-id", run_id, "--batch-size", "10", *parts, "--db-user", str(place.username)],
        cwd=fleet.folder,
        env=clean_environment(fleet.folder, PGPASSWORD=str(place.password)),
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert fleet.counts().remaining == 0
    assert "No more records to claim." in said.stderr  # S0.22
    fleet.shoal(*ARGUMENTS, "--db-password", "secret", code=2)


def test_stages_scale_apart(project: Project) -> None:
    """S0.9: a worker of one stage leaves the other alone."""
    project.write(CHAIN, "chain.py")
    project.shoal("enqueue", "chain.py")
    project.shoal(*ARGUMENTS, "--stage", "found", "--drain")
    assert {item.stage: item.state for item in project.items()} == {"found": "done", "profiled": "ready"}
    project.shoal(*ARGUMENTS, "--stage", "profiled")
    assert project.counts().remaining == 0


def test_own_partitions_and_nothing_else(project: Project) -> None:
    """S3.1: a worker keeps to its partitions when it is told to, and any number of workers covers all of them."""
    project.write(CHAIN, "chain.py")
    project.shoal("enqueue", "chain.py")
    project.shoal(*ARGUMENTS, "--partition", "odd", "--only", "--drain")
    ended = {item.partition for item in project.items() if item.state in ("done", "dead")}
    assert ended == {"odd"}
    project.shoal(*ARGUMENTS, "--partition", "no such")
    assert project.counts().remaining == 0


def test_logs_are_json_with_their_context(project: Project) -> None:
    """S0.26, S4.19: on stderr and in the run's own file; errors say which item and why."""
    project.write(CHAIN, "chain.py")
    said = project.shoal("run", "chain.py", SHOAL_LOG_FORMAT="json")
    lines = [json.loads(line) for line in said.stderr.splitlines() if line.startswith("{")]
    (kept,) = (project.folder / ".shoal" / "logs").glob("*.log")
    in_file = [json.loads(line) for line in kept.read_text().splitlines()]
    assert [line | {"time": ""} for line in in_file] == [line | {"time": ""} for line in lines]
    looking = [line for line in lines if line["event"] == "looking"]
    assert {line["item"] for line in looking} == {f"user-{n}" for n in range(40)}
    assert all(line["level"] == "info" and line["stage"] == "profiled" and line["run"] == kept.stem for line in looking)
    (failed,) = [line for line in lines if line["event"] == "attempt failed"]
    assert (failed["outcome"], failed["error"]) == ("permanent", "No such user")


def test_one_after_another_for_debugging(project: Project) -> None:
    """S2.6: --sequential works on one item at a time, in this process."""
    project.write(
        """
        slow = Scraper("slow")
        busy = 0

        @slow.stage
        async def one(item: Item):
            global busy
            busy += 1
            await asyncio.sleep(0.01)
            yield {"at_once": busy}
            busy -= 1

        slow.start(one.item(key=str(n)) for n in range(10))
        """,
        "slow.py",
    )
    project.shoal("run", "slow.py", "--sequential")
    assert [record["at_once"] for record in project.export()] == [1] * 10
