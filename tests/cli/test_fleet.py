"""Several workers as operators of the older systems start them: one command, any number of times, from any machine."""

from __future__ import annotations

import json
import subprocess
from urllib.parse import urlsplit

import pytest

from tests.support.fork_server import COMMAND
from tests.support.project import Project, clean_environment

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
    refused = fleet.shoal(*ARGUMENTS, "--db-password", "hunter22", code=2)
    assert "PGPASSWORD" in refused.stderr
    assert "hunter22" not in refused.stderr
    fleet.shoal("enqueue", "chain.py")
    fleet.shoal("worker", "--scraper", "chain.py", "--limit", "1")
    assert "give it once" in fleet.shoal("worker", "chain.py", "--scraper", "chain.py", code=2).stderr


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
    everything = [json.loads(line) for line in said.stderr.splitlines()]
    notes = [line["event"] for line in everything if len(line) == 3]
    assert notes[0].endswith("of chain begins.")
    assert any(note.startswith(("done ", "no items yet")) for note in notes)  # progress
    assert "shoal items retry" in notes[-1]  # what to do next
    lines = [line for line in everything if len(line) > 3]
    (kept,) = (project.folder / ".shoal" / "logs").glob("*.log")
    in_file = [json.loads(line) for line in kept.read_text().splitlines()]
    assert [line | {"time": ""} for line in in_file] == [line | {"time": ""} for line in lines]
    looking = [line for line in lines if line["event"] == "looking"]
    assert {line["item"] for line in looking} == {f"user-{n}" for n in range(40)}
    assert all(line["level"] == "info" and line["stage"] == "profiled" and line["run"] == kept.stem for line in looking)
    (failed,) = [line for line in lines if line["event"] == "attempt failed"]
    assert (failed["outcome"], failed["error"]) == ("permanent", "No such user")


NOISY = """
    import logging, warnings
    noisy = Scraper("noisy")

    @noisy.stage(retries=0)
    async def one(item: Item):
        print("a line", "and a half", file=sys.stderr)
        print('{"level": "info", "event": "my own"}', file=sys.stderr)
        warnings.warn("an old call", stacklevel=1)
        logging.getLogger("library").error("a library's error")
        raise ValueError("broken\\nin two lines")

    noisy.start(one.item(key="x"))
"""


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (
            ("run", "noisy.py"),
            1,
            ["a line and a half", "my own", "an old call", "a library's error", "of noisy begins."],
        ),
        (("run", "noisy.py", "-q", "--fresh"), 1, ["a line and a half", "Too many items are dead"]),
        (("run", "noisy.py", "-v", "--set", "lease=0"), 2, ["lease is '0'", "Traceback"]),
        (("run", "noisy.py", "-q", "--nope"), 2, ["No such option: --nope", "Usage: shoal run"]),
        (("run", "nowhere.py", "-q"), 5, ["There is no file"]),
        (("worker", "noisy.py", "--run-id", "nope"), 5, ["nope"]),
        (("enqueue", "noisy.py", "--db-password", "x"), 2, ["PGPASSWORD"]),
    ],
)
def test_with_json_logs_every_line_on_stderr_is_json(
    project: Project, arguments: tuple[str, ...], code: int, told: list[str]
) -> None:
    """S0.26: notes, progress, errors, hints and usage too, with -q, and whatever the author's code prints."""
    project.write(NOISY, "noisy.py")
    (project.folder / "shoal.toml").write_text("log_format = 'json'\n")
    said = project.shoal(*arguments, code=code)
    lines = [json.loads(line) for line in said.stderr.splitlines()]
    assert all(line["level"] in ("info", "warning", "error") for line in lines)
    for text in told:
        assert any(text in line["event"] for line in lines), text


def test_json_logs_are_asked_for_by_a_flag_or_in_a_file_that_is_broken(project: Project) -> None:
    said = project.shoal("enqueue", "--set", "log_format=json", "-q", code=2)
    assert json.loads(said.stderr.splitlines()[-1])["event"] == "Missing argument 'SCRAPER'."
    (project.folder / ".env").write_text("SHOAL_LOG_FORMAT='json'\nSHOAL_LEASE 5\n")
    (line,) = project.shoal("status", code=2).stderr.splitlines()
    assert "of .env cannot be parsed" in json.loads(line)["event"]
    (project.folder / ".env").unlink()
    (project.folder / "pyproject.toml").write_text("[tool.other]\nlog_format = 'json'\n")
    assert project.shoal("run", "nowhere.py", code=5).stderr.startswith("Error: ")


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
