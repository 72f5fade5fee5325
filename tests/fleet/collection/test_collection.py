"""Collections, as S2 describes them, with real processes and a site that logs what it saw."""

from __future__ import annotations

import itertools
import json
import re
import shlex
import signal
import time

import pytest

from tests.support.collections import add, by_member, reports, set_up, slow, span
from tests.support.pools import is_alive, until
from tests.support.project import Project
from tests.support.site import Site

SINGLES = [f"{country}/{paper}" for country in ("fiji", "samoa", "tonga") for paper in ("daily", "sun", "star", "post")]
SINGLES = [f"{key.split('/')[0]}/{key.replace('/', '_')}" for key in SINGLES] + ["nauru/bulletin"]
WEEKLY = [f"{country}/weekly" for country in ("fiji", "kiribati", "nauru", "palau", "samoa", "tonga", "tuvalu")]
ISLANDS = [f"{country}/islands" for country in ("fiji", "samoa", "tonga", "vanuatu")]


def test_twenty_four_newspapers(project: Project) -> None:
    """13 singles, groups of 7 and 4; one fails, one has a dead page, all are told.

    S2.2, S2.3, S2.4, S2.7, S2.8, S2.9, S2.10, S2.11, S2.12, S2.13, S2.14, S2.15, S2.17, S2.24
    """
    set_up(project)
    with Site() as site:
        for number, key in enumerate(SINGLES):
            add(project, key, *slow(site, key, 0.2 + 0.1 * (number % 3), pages=2))
        for key in (*WEEKLY, *ISLANDS):
            add(project, key, *slow(site, key, 0.2))
        add(project, "fiji/fiji_sun", f"{site.url}/status/404", *slow(site, "fiji/fiji_sun", 0.1))
        add(project, "samoa/islands", f"{site.url}/status/404", *slow(site, "samoa/islands", 0.1, pages=20))
        command = project.shoal("run", "configs/", "--all", "--json", "-j", "24", code=1, timeout=120)
        seen = by_member(site.visits())

    assert "24 configurations: 13 singles, 2 groups (4, 7 members); at most 24 at once." in command.stderr
    members, totals = reports(command)
    assert sorted(members) == sorted([*SINGLES, *WEEKLY, *ISLANDS])
    assert {key: members[key]["group"] for key in (*WEEKLY, *ISLANDS)} == {
        **dict.fromkeys(WEEKLY, "weekly"),
        **dict.fromkeys(ISLANDS, "islands"),
    }
    assert (totals["total"], totals["success"], totals["warnings"], totals["failed"]) == (24, 22, 1, 1)
    assert totals["success_rate"] == round(23 / 24, 4)
    # A failing single stops nobody, a member with a dead page does not stop its group.
    assert members["fiji/fiji_sun"]["status"] == "failed"
    assert members["fiji/fiji_sun"]["reason"] == "1 of 2 items dead: permanent, 404 Not Found"
    assert members["samoa/islands"]["status"] == "warning"
    assert (members["samoa/islands"]["done"], members["samoa/islands"]["dead"]) == (20, 1)

    # The site's own log: members of a group one after another, with a pause, in their order; groups beside each other.
    for group in (WEEKLY, ISLANDS):
        spans = [span(seen[key]) for key in group]
        assert all(later[0] >= earlier[1] + 0.9 for earlier, later in itertools.pairwise(spans)), spans
    weekly, islands = (span([v for key in group for v in seen[key]]) for group in (WEEKLY, ISLANDS))
    assert weekly[0] < islands[1]
    assert islands[0] < weekly[1]
    # ... and the groups blocked no single: those were done long before.
    assert max(span(seen[key])[1] for key in SINGLES) < max(weekly[1], islands[1])
    # Every page was fetched once.
    assert len([v for visits in seen.values() for v in visits]) == 12 * 2 + 1 + 7 + 3 + 20

    for key in members:
        (log,) = (project.folder / "logs" / key).iterdir()
        assert re.fullmatch(r"\d{8}_\d{6}\.log", log.name)
        assert f"of {key.replace('/', '.')} begins" in log.read_text()  # its stderr
        assert "done" in log.read_text()  # its stdout

    # Wall time is that of the longest single or group, whatever the machine's speed: all measured in this run.
    run = project.run(totals["run_id"])
    assert run.finished_at is not None
    wall = (run.finished_at - run.created_at).total_seconds()
    taken = {key: member["seconds"] for key, member in members.items()}
    groups = [sum(taken[key] for key in group) + len(group) - 1 for group in (WEEKLY, ISLANDS)]
    longest = max(*(taken[key] for key in SINGLES), *groups)
    assert longest <= wall + 1
    assert wall <= 1.5 * longest + 5
    assert wall < 0.8 * sum(taken.values())
    assert project.is_sound()


def test_a_plan_runs_nothing(project: Project) -> None:  # S2.5
    set_up(project)
    with Site() as site:
        for key in ("fiji/times", "fiji/islands", "tonga/islands"):
            add(project, key, *slow(site, key, 0.0))
        (project.folder / "configs/fiji/bad.yaml").write_text("timeout: soon\n")
        (project.folder / "configs/tonga/broken.py").write_text("from shoal import Scraper\nScraper(\n")
        said = project.shoal("run", "configs/", "--all", "--dry-run", code=1).stdout
        in_turn = project.shoal("run", "configs/", "--all", "--dry-run", "--sequential", code=1).stdout
        assert site.visits() == []
    assert "Singles, side by side (3)" in said
    assert "Singles, one after another (3)" in in_turn
    assert "5 configurations: 3 singles, 1 group (2 members)" in said
    assert "cannot be used: it is not valid Python: '(' was never closed" in said
    assert re.search(r"fiji/times +\S*shoal run configs/fiji/times.yaml --name fiji.times\n", said)
    assert re.search(r"Group islands.*\n  1\. fiji/islands .*\n  2\. tonga/islands ", said)
    assert "fiji/bad      cannot be used: configs/fiji/bad.yaml, line 1: timeout is 'soon'" in said
    assert not (project.folder / "logs").exists()
    assert not (project.folder / "ledger.db").exists()


def test_sequential_runs_members_in_the_foreground(project: Project) -> None:  # S2.6
    set_up(project)
    with Site() as site:
        keys = ["fiji/islands", "tonga/islands", "fiji/a", "fiji/b"]
        for key in keys:
            add(project, key, *slow(site, key, 0.1))
        command = project.shoal("run", "configs/", "--all", "--sequential")
        spans = [span(by_member(site.visits())[key]) for key in keys]
    assert all(later[0] >= earlier[1] for earlier, later in itertools.pairwise(spans))
    # What each says is seen here, in the order in which they ran.
    begun = re.findall(r"Run \S+ of (\S+) begins", command.stderr)
    assert begun == ["collection.configs", "fiji.islands", "tonga.islands", "fiji.a", "fiji.b"]
    assert "Total 4 | Success 4 | Warnings 0 | Failed 0" in command.stdout


def test_at_most_so_many_at_once(project: Project) -> None:  # S2.18
    set_up(project)
    with Site() as site:
        keys = [f"fiji/paper{number}" for number in range(5)]
        for key in keys:
            add(project, key, *slow(site, key, 0.4))
        project.shoal("run", "configs/", "--all", "-j", "2")
        spans = sorted(span(visits) for visits in by_member(site.visits()).values())
    assert len(spans) == 5
    assert max(sum(start <= other[0] < end for other in spans) for start, end in spans) <= 2


def test_a_broken_member_does_not_stop_the_others(project: Project) -> None:  # S2.11
    """Clashing names, YAML that is none, unknown keys, an import that fails: failed members with a reason and a log."""
    set_up(project)
    with Site() as site:
        for key in ("fiji/times", "fiji/good"):
            add(project, key, *slow(site, key, 0.0))
        add(project, "america/times", *slow(site, "america/times", 0.0), country="fiji")
        add(project, "tonga/unknown", *slow(site, "tonga/unknown", 0.0), urlz=["x"])
        (project.folder / "configs/tonga/bad.yaml").write_text("timeout: soon\n")
        project.write("import nothing_like_it\nx = Scraper('x')", "configs/tonga/imports.py")
        one = project.shoal("run", "configs/", "--include", "good", "--json")
        command = project.shoal("run", "configs/", "--all", "--json", code=1)
        visits = by_member(site.visits())
    assert list(reports(one)[0]) == ["fiji/good"]
    assert {key: len(found) for key, found in visits.items()} == {"fiji/times": 1, "fiji/good": 2}
    members, totals = reports(command)
    failed = {key: member for key, member in members.items() if member["status"] == "failed"}
    assert sorted(failed) == ["america/times.yaml", "tonga/bad", "tonga/imports", "tonga/unknown"]
    assert (totals["success"], totals["failed"]) == (2, 4)
    assert (
        "configs/america/times.yaml and configs/fiji/times.yaml are both fiji/times"
        in failed["america/times.yaml"]["reason"]
    )
    assert "timeout is 'soon'" in failed["tonga/bad"]["reason"]
    assert "nothing_like_it" in failed["tonga/imports"]["reason"]
    assert "urlz" in failed["tonga/unknown"]["reason"]
    for member in failed.values():
        said = (project.folder / member["log"]).read_text().strip()
        assert said.splitlines()[-1][-40:] in member["reason"]
        assert member["log"] in command.stderr


def test_groups_have_a_status_and_pause_after_a_failure(project: Project) -> None:  # S2.3, S2.9, S2.11, S2.17, S2.24
    """With one slot the group starts before the singles, and its failed head is followed by a pause."""
    set_up(project)
    with Site() as site:
        for key in ("fiji/a", "fiji/b", "tonga/islands"):
            add(project, key, *slow(site, key, 0.0))
        add(project, "fiji/islands", f"{site.url}/status/404")
        command = project.shoal("run", "configs/", "--all", "-j", "1", code=1)
        visits = site.visits()
    (failed, next_of_group, *singles) = visits
    assert [failed.path, next_of_group.path] == ["/status/404", "/slow/0/tonga/islands/0"]
    assert len(singles) == 2
    assert next_of_group.start - (failed.end or 0) >= 0.9
    lines = command.stdout.splitlines()
    (islands,) = [line for line in lines if "fiji/islands" in line]
    assert re.search(r"^x .* failed; .*; log logs/fiji/islands/\d{8}_\d{6}\.log$", islands)
    (group,) = [line for line in lines if "group islands" in line]
    assert re.search(r"^x .* failed; 2 members: 1 success, 1 failed; .*; exit code 1$", group)
    assert re.search(r"^Total 4 \| Success 3 \| Warnings 0 \| Failed 1 \| Success rate 75.0% \| ", lines[-1])

    planned = project.shoal("run", "configs/", "--failed", "--dry-run").stdout
    assert re.findall(r"shoal run configs/(\S+)", planned) == ["fiji/islands.yaml"]
    command = project.shoal("run", "configs/", "--failed", "--json", code=1)
    assert reports(command)[1]["groups"] == [
        {
            "group": "islands",
            "status": "failed",
            "exit_code": 1,
            "total": 2,
            "success": 1,
            "warnings": 0,
            "failed": 1,
            "not_run": 0,
            "success_rate": 0.5,
            "seconds": reports(command)[1]["groups"][0]["seconds"],
        }
    ]


def test_failed_needs_a_run(project: Project) -> None:
    set_up(project)
    add(project, "fiji/a", "http://127.0.0.1:1/")
    command = project.shoal("run", "configs/", "--failed", "--dry-run", code=5)
    assert "There is no run of collection.configs" in command.stderr
    assert not (project.folder / "ledger.db").exists()


def test_the_suggested_command_repeats_the_options(project: Project) -> None:
    """The commands that are suggested have the folder that records go to, so that the rest is exported too."""
    set_up(project)
    with Site() as site:
        add(project, "fiji/slow", *slow(site, "fiji/slow", 6.0))
        add(project, "fiji/bad", f"{site.url}/status/404")
        arguments = ("--all", "-o", "my data/", "-j", "3", "--set", "member_pause=0", "--timeout", "1")
        command = project.shoal("run", "configs/", *arguments, code=124)
        (suggested,) = re.findall(r"Continue with: \S*shoal (.*)", command.stderr)
        assert suggested == "run configs/ --resume -j 3 -o 'my data/' --set member_pause=0"
        command = project.shoal(*shlex.split(suggested), code=1)
    assert "run configs/ --failed -j 3 -o 'my data/' --set member_pause=0" in command.stderr
    assert len(list(project.folder.glob("my data/fiji/slow/*.jsonl"))) == 1


def test_failed_retries_the_members_that_failed(either: Project) -> None:  # S2.22
    set_up(either)
    with Site() as site:
        add(either, "fiji/good", *slow(site, "fiji/good", 0.0))
        add(either, "fiji/shaky", *slow(site, "fiji/shaky", 0.0), f"{site.url}/status/500/then-ok/1/x")
        add(either, "fiji/late", "not a url")
        command = either.shoal("run", "configs/", "--all", "--json", code=1)
        members, totals = reports(command)
        assert {key: member["status"] for key, member in members.items()} == {
            "fiji/good": "success",
            "fiji/shaky": "failed",
            "fiji/late": "failed",
        }
        assert "before its run began; its log ends with: Error:" in members["fiji/late"]["reason"]
        add(either, "fiji/late", *slow(site, "fiji/late", 0.0))
        command = either.shoal("run", "configs/", "--failed", "--json")
        again, totals_again = reports(command)
        visits = by_member(site.visits())
    assert totals_again["run_id"] == totals["run_id"]
    assert (totals_again["success"], totals_again["failed"]) == (3, 0)
    assert again["fiji/shaky"]["run_id"] == members["fiji/shaky"]["run_id"]
    assert (again["fiji/shaky"]["done"], again["fiji/shaky"]["records"]) == (2, 2)
    # What was done the first time was not fetched again.
    assert [len(visits[key]) for key in ("fiji/good", "fiji/shaky", "fiji/late")] == [1, 1, 1]
    assert either.is_sound()


def test_member_retries_repeat_a_failed_member(project: Project) -> None:  # S2.22
    set_up(project)
    with Site() as site:
        add(project, "fiji/shaky", f"{site.url}/status/500/then-ok/1/x")
        command = project.shoal("run", "configs/", "--all", "--json", "--set", "member_retries=1")
        assert len(site.visits()) == 2
    members, _ = reports(command)
    assert members["fiji/shaky"]["status"] == "success"
    assert len(list((project.folder / "logs/fiji/shaky").iterdir())) == 2


def test_group_retries_include_a_member_whose_process_could_not_start(project: Project) -> None:
    """But not one whose file is wrong: it would fail again."""
    set_up(project)
    with Site() as site:
        for country in ("fiji", "tonga"):
            add(project, f"{country}/islands", *slow(site, f"{country}/islands", 0.0))
        add(project, "samoa/islands", "not a url")
        folder = project.folder / "logs/fiji/islands"  # there cannot be a log file
        folder.parent.mkdir(parents=True)
        folder.write_text("")
        options = ("--set", "group_retries=1", "--set", "member_pause=0")
        command = project.shoal("run", "configs/", "--all", "--json", *options, code=1)
    members, _ = reports(command)
    assert "its process cannot be started" in members["fiji/islands"]["reason"]
    assert "Groups are tried again: 1 member failed." in command.stderr
    assert len(list((project.folder / "logs/samoa/islands").iterdir())) == 1


@pytest.mark.parametrize(
    ("setting", "code", "told"),
    [
        ("member_timeout=6", "await asyncio.sleep(60)", "timed out after 6 s"),
        ("member_stale=5", "await asyncio.sleep(60)", "made no progress for 5 s"),
        (
            "member_memory=200",
            "kept = bytearray(400 << 20); await asyncio.sleep(60)",
            "MB of memory, more than the 200",
        ),
        ("drain=0", "import os; os.kill(os.getpid(), 9)", "it was killed by signal 9"),
    ],
)
def test_limits_stop_one_member_and_not_the_others(
    project: Project, setting: str, code: str, told: str
) -> None:  # S2.11
    set_up(project)
    (project.folder / "configs/fiji").mkdir(parents=True)
    project.write(
        f"""
        stuck = Scraper("stuck")

        @stuck.stage(timeout=300)
        async def item(item: Item):
            {code}

        stuck.start(item.item(key="x"))
        """,
        "configs/fiji/stuck.py",
    )
    with Site() as site:
        add(project, "fiji/good", *slow(site, "fiji/good", 0.1), timeout=60, stale=60, memory=1024)
        began = time.monotonic()
        command = project.shoal("run", "configs/", "--all", "--json", "--set", setting, "--set", "drain=0.5", code=1)
    members, _ = reports(command)
    assert time.monotonic() - began < 55, "its handler sleeps for 60 s"
    assert members["fiji/good"]["status"] == "success"
    assert members["fiji/stuck"]["status"] == "failed"
    assert told in members["fiji/stuck"]["reason"]
    assert "unfinished, 1 item left" in members["fiji/stuck"]["reason"]


def test_the_limit_of_a_member_overrides_the_collections(project: Project) -> None:
    set_up(project)
    with Site() as site:
        add(project, "fiji/slow", *slow(site, "fiji/slow", 30.0), timeout=1)
        command = project.shoal("run", "configs/", "--all", "--json", "--set", "drain=0.5", code=1)
    assert "timed out after 1 s" in reports(command)[0]["fiji/slow"]["reason"]


def test_a_stopped_collection_is_resumed(either: Project) -> None:
    """Ctrl-C reaches the members, nobody is left behind, and the next call goes on where it was."""
    set_up(either)
    with Site() as site:
        # Seconds after the signal would have been sent on an idle machine the first of the group is still at work.
        add(either, "fiji/islands", *slow(site, "fiji/islands", 6.0, pages=3))
        add(either, "tonga/islands", *slow(site, "tonga/islands", 1.0, pages=3))
        add(either, "fiji/times", *slow(site, "fiji/times", 0.0))
        command = either.start("run", "configs/", "--all", "--json")
        site.wait_until(lambda visits: len(by_member(visits).get("fiji/islands", [])) == 3, timeout=30)
        command.wait_until_it_says("of collection.configs begins")
        (run_id,) = re.findall(r"Run (\S+) of collection.configs begins", command.stderr)
        until(lambda: either.counts(run_id).done, lambda done: done == 1, "the single is not done")
        command.tell(signal.SIGINT)
        assert command.wait(30) == 130
        members, totals = reports(command)
        assert totals["not_run"] == 2
        assert members["fiji/times"]["status"] == "success"
        assert "unfinished; " in command.stderr, "members that were interrupted have run"
        assert "| Not finished 2 |" in command.stderr
        seen = len(site.visits())
        command = either.shoal("run", "configs/", "--all", "--json")
        assert "was paused" not in command.stderr, "they are resumed at once"
        visits = by_member(site.visits())
    assert seen == 4  # the three under way were finished, nothing was begun after the order
    members, again = reports(command)
    assert (again["run_id"], again["success"], again["not_run"]) == (totals["run_id"], 3, 0)
    assert {key: len(found) for key, found in visits.items()} == {
        "fiji/islands": 3,
        "tonga/islands": 3,
        "fiji/times": 1,
    }
    assert either.is_sound()


def test_a_killed_collection_is_resumed(either: Project) -> None:
    """kill -9 of the parent: its members leave by themselves, and nothing is lost or stored twice."""
    set_up(either)
    with Site() as site:
        for number in range(3):
            add(either, f"fiji/paper{number}", *slow(site, f"fiji/paper{number}", 0.5, pages=8))
        command = either.start("run", "configs/", "--all", "--set", "lease=3")
        site.wait_until(lambda visits: len(by_member(visits)) == 3, timeout=30)
        command.kill()
        command = either.shoal("run", "configs/", "--all", "--json", "--set", "lease=3", timeout=60)
    members, totals = reports(command)
    assert totals["success"] == 3
    for key, member in members.items():
        records = either.export(member["run_id"])
        assert len(records) == len({record["url"] for record in records}) == 8, key
    assert either.is_sound()


def test_a_member_that_still_drains_is_waited_for(project: Project) -> None:
    """The parent is killed, its member still finishes a page: the next parent waits, and the page is fetched once."""
    set_up(project)
    with Site() as site:
        add(project, "fiji/slow", *slow(site, "fiji/slow", 4.0))
        command = project.start("run", "configs/", "--all")
        site.wait_until(lambda visits: len(visits) == 1, timeout=30)
        command.kill()
        command = project.shoal("run", "configs/", "--all", "--json")
        assert len(site.visits()) == 1
    assert reports(command)[0]["fiji/slow"]["status"] == "success"


def test_timeout_stops_the_collection(project: Project) -> None:
    set_up(project)
    with Site() as site:
        add(project, "fiji/slow", *slow(site, "fiji/slow", 6.0))
        command = project.shoal("run", "configs/", "--all", "--json", "--timeout", "1", code=124)
        assert reports(command)[1]["not_run"] == 1
        command = project.shoal("run", "configs/", "--resume", "--json")
        assert len(site.visits()) == 1
    assert reports(command)[1]["success"] == 1


def test_an_unfinished_run_with_other_members_is_not_resumed(project: Project) -> None:
    set_up(project)
    with Site() as site:
        add(project, "fiji/a", *slow(site, "fiji/a", 5.0))
        add(project, "fiji/b", *slow(site, "fiji/b", 0.0))
        command = project.start("run", "configs/", "--all")
        site.wait_until(lambda visits: "fiji/a" in by_member(visits), timeout=30)
        command.kill()
        said = project.shoal("run", "configs/", "--include", "b", code=2).stderr
        assert "is unfinished and has other members" in said
        command = project.shoal("run", "configs/", "--include", "b", "--fresh", "--json")
    assert set(reports(command)[0]) == {"fiji/b"}


def test_two_machines_share_a_collection(fleet: Project) -> None:  # S2.25
    """The same command a second time, while the first works: they share the members, no one is run by both."""
    set_up(fleet)
    with Site() as site:
        keys = [f"fiji/paper{number}" for number in range(6)]
        for key in keys:
            add(fleet, key, *slow(site, key, 0.5))
        one = fleet.start("run", "configs/", "--all", "--json", "-j", "1")
        site.wait_until(lambda visits: len(visits) >= 1, timeout=30)
        two = fleet.start("run", "configs/", "--all", "--json", "-j", "1")
        assert one.wait(60) == 0
        assert two.wait(60) == 0
        visits = by_member(site.visits())
    assert {key: len(found) for key, found in visits.items()} == dict.fromkeys(keys, 1)
    assert reports(one)[1]["run_id"] == reports(two)[1]["run_id"]
    assert reports(two)[1]["success"] == 6
    done = [int(found) for said in (one.stderr, two.stderr) for found in re.findall(r" done=(\d+) ", said)]
    assert sum(done) == 6
    assert all(done)


def test_two_processes_that_start_together_share_one_run(fleet: Project) -> None:
    set_up(fleet)
    with Site() as site:
        keys = [f"fiji/paper{number}" for number in range(4)]
        for key in keys:
            add(fleet, key, *slow(site, key, 0.3))
        commands = [fleet.start("run", "configs/", "--all", "--json", "-j", "2") for _ in range(2)]
        assert [command.wait(60) for command in commands] == [0, 0]
        visits = by_member(site.visits())
    assert len({reports(command)[1]["run_id"] for command in commands}) == 1
    assert {key: len(found) for key, found in visits.items()} == dict.fromkeys(keys, 1)


def test_a_second_signal_stops_members_at_once(project: Project) -> None:
    """A second Ctrl-C: members give back what runs, one that hangs is killed with its children, and all are told of."""
    set_up(project)
    (project.folder / "configs/fiji").mkdir(parents=True)
    project.write(
        """
        import subprocess
        from pathlib import Path
        hung = Scraper("hung")

        @hung.stage(timeout=300)
        async def item(item: Item):
            child = subprocess.Popen(["sleep", "300"])
            Path("hangs").write_text(str(child.pid))
            time.sleep(300)

        hung.start(item.item(key="x"))
        """,
        "configs/fiji/hung.py",
    )
    command = project.start("run", "configs/", "--all", "--json")
    until((project.folder / "hangs").exists, bool, "the member does not begin")
    command.tell(signal.SIGINT)
    command.wait_until_it_says("Waiting for 1 scraper")
    command.tell(signal.SIGINT)
    assert command.wait(30) == 130
    assert reports(command)[1]["not_run"] == 1
    pid = int((project.folder / "hangs").read_text())
    until(lambda: is_alive(pid), lambda alive: not alive, "the member's child lives on")


def test_a_hung_member_is_killed_after_its_parent(project: Project) -> None:
    set_up(project)
    (project.folder / "configs/fiji").mkdir(parents=True)
    project.write(
        """
        import os
        from pathlib import Path
        hung = Scraper("hung")

        @hung.stage(timeout=300)
        async def item(item: Item):
            Path("hangs.part").write_text(str(os.getpid()))
            Path("hangs.part").rename("hangs")
            time.sleep(300)

        hung.start(item.item(key="x"))
        """,
        "configs/fiji/hung.py",
    )
    command = project.start("run", "configs/", "--all", "--set", "drain=0")
    until((project.folder / "hangs").exists, bool, "the member does not begin")
    command.kill()
    pid = int((project.folder / "hangs").read_text())
    until(lambda: is_alive(pid), lambda alive: not alive, "the member lives on")


def test_a_collection_may_have_a_name(project: Project) -> None:
    set_up(project)
    (project.folder / "shoal.toml").write_text('[scrapers.pacific]\ntarget = "configs/"\nconcurrency = 1\n')
    with Site() as site:
        add(project, "fiji/a", *slow(site, "fiji/a", 0.0))
        said = project.shoal("run", "pacific")
    assert "at most 1 at once" in said.stderr
    assert "Total 1 | Success 1" in said.stdout
    assert project.run().scraper in ("collection.pacific", "fiji.a")


def test_the_records_of_every_member_go_to_a_folder(project: Project) -> None:
    set_up(project)
    with Site() as site:
        add(project, "fiji/a", *slow(site, "fiji/a", 0.0, pages=3))
        add(project, "tonga/b", *slow(site, "tonga/b", 0.0))
        add(project, "tonga/bad", f"{site.url}/status/404")
        command = project.shoal("run", "configs/", "--all", "--json", "-o", "data/", code=1)
    members, _ = reports(command)
    exported = {
        str(file.relative_to(project.folder / "data")): file for file in project.folder.rglob("data/*/*/*.jsonl")
    }
    assert sorted(exported) == [
        f"fiji/a/{members['fiji/a']['run_id']}.jsonl",
        f"tonga/b/{members['tonga/b']['run_id']}.jsonl",
    ]
    assert len(exported[f"fiji/a/{members['fiji/a']['run_id']}.jsonl"].read_text().splitlines()) == 3
    # Whoever looks sees the collection, not its members.
    said = project.shoal("status").stdout
    assert "collection.configs" in said
    assert "fiji.a" not in said
    assert "of collection.configs" in project.shoal("status", "latest").stdout


def test_a_collection_may_have_a_schedule(project: Project) -> None:
    set_up(project)
    (project.folder / "shoal.toml").write_text('[scrapers.pacific]\ntarget = "configs/"\nschedule = "0 2 * * *"\n')
    with Site() as site:
        for key in ("fiji/islands", "tonga/islands", "fiji/times"):
            add(project, key, *slow(site, key, 0.0))
        slot = json.loads(project.shoal("schedule", "now", "pacific", "--json").stdout)
        assert {key: len(visits) for key, visits in by_member(site.visits()).items()} == {
            "fiji/islands": 1,
            "tonga/islands": 1,
            "fiji/times": 1,
        }
    assert slot["state"] == "done"
    run = project.run(slot["run_id"])
    assert run.scraper == "collection.pacific"
    assert (run.idempotency_key or "").startswith("schedule pacific ")
    assert project.counts(run.id).done == 3


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("configs/",), "configs is a folder of scrapers. Add --all to run them all"),
        (("configs/", "--all", "--urls-file", "x"), "configs/ is a folder of scrapers."),
        (("configs/", "--all", "--country", "tonga"), "The options select no scraper of the folder."),
        (("configs/", "--where", "country=tonga"), "The options select no scraper of the folder."),
        (("configs/", "--where", "tonga"), "'tonga' is not LABEL=VALUE"),
        (("nowhere/", "--all"), "There is no folder nowhere."),
        (("template.py", "--all"), "template.py is no folder of scrapers."),
    ],
)
def test_options_that_do_not_fit_are_refused(project: Project, arguments: tuple[str, ...], told: str) -> None:
    set_up(project)
    add(project, "fiji/a", "http://127.0.0.1:1/")
    command = project.start("run", *arguments)
    assert command.wait() in (2, 5)
    assert told in command.stderr
