"""Looking at runs and steering them, on a ledger with runs in several states.

What concerns the process (streams, terminals, signals) is tested on real ones; the rest calls the same entry in this
process, which takes a tenth of the time, on both ledgers.
"""

import asyncio
import json
import os
import pty
import re
import signal
import sqlite3
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from shoal import __version__
from shoal.cli.main import main
from shoal.config import Settings
from shoal.ledger.protocols import Ledger
from shoal.model.worker import WorkerSpec
from shoal.wiring import ledger_context
from tests.support.fork_server import COMMAND
from tests.support.live_run import HOST, WORKER, Scene, prepare
from tests.support.project import Finished, Shoal, clean_environment

T = TypeVar("T")


class Look:
    """`shoal` on a prepared ledger, and a way around it to see what came of it."""

    def __init__(self, shoal: Shoal, address: str) -> None:
        self._shoal = shoal
        self.address = address
        self.scene: Scene = self.ledger(lambda ledger: prepare(ledger, version=__version__), migrate=True)

    def ledger(self, work: Callable[[Ledger], Awaitable[T]], *, migrate: bool = False) -> T:
        async def do() -> T:
            async with ledger_context(Settings(ledger=self.address), migrate=migrate) as ledger:
                return await work(ledger)

        return asyncio.run(do())

    def run(self, *arguments: str, code: int = 0) -> Finished:
        said = self._shoal(*arguments, SHOAL_LEDGER=self.address)
        assert said.returncode == code, said.stdout + said.stderr
        assert "\x1b" not in said.stdout + said.stderr
        return said

    def text(self, *arguments: str) -> str:
        return self.run(*arguments).stdout

    def json(self, *arguments: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.text(*arguments, "--json").splitlines()]

    def states(self, run: str) -> dict[str, int]:
        (counts,) = self.json("stats", "shop", run)
        return {name: counts[name] for name in ("ready", "waiting", "delayed", "leased", "done", "dead", "cancelled")}


@pytest.fixture
def shoal_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shoal:
    """Like `shoal`, without a process of its own."""
    for name in os.environ:
        if name.startswith(("SHOAL_", "PG", "DB_")):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, **variables: str) -> Finished:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        capsys.readouterr()
        code = main(arguments)
        said = capsys.readouterr()
        return Finished(arguments, code, said.out, said.err)

    return run


@pytest.fixture
def real(shoal: Shoal, sqlite_path: Path) -> Look:
    return Look(shoal, str(sqlite_path))


@pytest.fixture
def look(shoal_here: Shoal, sqlite_path: Path) -> Look:
    return Look(shoal_here, str(sqlite_path))


@pytest.fixture(params=["sqlite", "postgres"])
def either(request: pytest.FixtureRequest, shoal_here: Shoal) -> Look:
    """On both ledgers, one after the other."""
    place = "sqlite_path" if request.param == "sqlite" else "postgres_url"
    return Look(shoal_here, str(request.getfixturevalue(place)))


def test_status_lists_the_newest_runs_with_what_they_wait_for(real: Look) -> None:
    scene = real.scene
    rows = {row["run_id"]: row for row in real.json("status")}
    assert list(rows) == [scene.paused, scene.active, scene.finished]
    assert rows[scene.paused]["waiting_for"] == "the run is paused"
    assert rows[scene.active]["waiting_for"] == "host limit 44%"
    text = real.text("status")
    assert text.splitlines()[0].split()[:4] == ["RUN", "SCRAPER", "STATE", "TOTAL"]
    assert "host limit 44%" in text


def test_status_of_one_run_is_one_screen(either: Look) -> None:
    run = either.scene.active
    text = either.text("status", run)
    assert "done 1 of 11 found" in text, "the run is not sealed, so more may come"
    assert f"The lane {HOST} is full: 2 of 2 places are taken." in text
    assert ["listing", "de", "0", "0", "1", "2", "1", "1", "0", "0", "0"] in [
        line.split() for line in text.splitlines()
    ]
    (failure,) = [line.split() for line in text.splitlines() if line.endswith("410 Gone")]
    assert (failure[:2], failure[3:]) == (["1", "permanent"], ["8", "410", "Gone"])
    of_group = either.json("items", "ls", run, "--failure", failure[2])
    assert [row["item_id"] for row in of_group] == [8]
    (facts,) = either.json("status", run)
    assert (facts["total"], facts["ok"], facts["growing"]) == (11, 0.5, False)
    assert [worker["worker"] for worker in facts["workers"]] == [WORKER]


def test_stats_in_both_vocabularies(real: Look) -> None:  # S1.9
    (counts,) = real.json("stats", "shop", real.scene.active)
    older = {"pending": 7, "claimed": 2, "completed": 1, "failed": 1, "remaining": 9, "total": 11}
    own = {"ready": 2, "waiting": 4, "delayed": 1, "leased": 2, "done": 1, "dead": 1, "cancelled": 0}
    assert counts.items() >= (older | own | {"scraper": "shop", "run_id": real.scene.active}).items()
    assert ["remaining", "9"] in [line.split() for line in real.text("stats", "shop", real.scene.active).splitlines()]
    assert real.json("stats", "books", "latest")[0]["run_id"] == real.scene.finished
    assert "of books" in real.run("stats", "shop", real.scene.finished, code=5).stderr


def test_the_newest_run_is_meant_when_none_is_named(look: Look) -> None:
    newest = look.scene.paused
    for arguments in (["runs", "show"], ["stats"], ["stats", "latest"], ["stats", newest], ["items", "ls"]):
        assert {row["run_id"] for row in look.json(*arguments)} == {newest}, arguments
    assert look.json("stats", "books")[0]["run_id"] == look.scene.finished
    assert look.json("stats", "latest:books")[0]["run_id"] == look.scene.finished
    assert f"Items of run {newest} of shop" in look.run("items", "ls").stderr
    (first, *_) = look.json("items", "ls")
    assert look.json("items", "show", str(first["item_id"]))[0]["item_id"] == first["item_id"]
    assert look.json("items", "why", "--key", first["url"])[0]["code"] == "run_paused"
    assert look.json("runs", "resume")[0] == {"run_id": newest, "scraper": "shop", "state": "active"}
    assert "There is no run 'nothing' and no run of a scraper 'nothing'" in look.run("stats", "nothing", code=5).stderr
    for arguments in (["runs", "rm", "-y"], ["runs", "cancel", "-y"], ["items", "cancel", "-y"]):
        look.run(*arguments, code=2)  # what ends work wants it named


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["status", "20260101_000000"], "`shoal runs ls`"),
        (["status", "latest:shopp"], "Did you mean shop?"),
        (["items", "show", "latest", "999"], "`shoal items ls"),
        (["items", "why", "latest", "--key", "nothing"], "`shoal items ls"),
        (["lanes", "show", "shop.exampel"], f"Did you mean {HOST}?"),
        (["workers", "stop", "node-1-fed"], f"Did you mean {WORKER}?"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_is_not_there_exits_5_and_says_how_to_find_it(look: Look, arguments: list[str], hint: str) -> None:
    said = look.run(*arguments, code=5)
    assert said.stdout == ""
    assert said.stderr.startswith("Error: ")
    assert len(said.stderr.splitlines()) == 1
    assert hint in said.stderr


def test_a_ledger_without_runs_says_how_to_get_one(shoal_here: Shoal) -> None:
    nothing = shoal_here("status")
    assert nothing.returncode == 3
    assert "Start a run with `shoal run`, or change to the project's folder." in nothing.stderr
    assert shoal_here("db", "migrate").returncode == 0
    for command in (["status"], ["runs", "ls"], ["workers", "ls"], ["lanes", "ls"]):
        said = shoal_here(*command)
        assert (said.returncode, said.stdout) == (0, "")
        assert said.stderr.strip()
    assert "shoal run" in shoal_here("watch").stderr


def test_runs_are_paused_resumed_cancelled_and_removed(either: Look) -> None:
    run = either.scene.active
    assert "is paused" in either.text("runs", "pause", run)
    assert either.json("runs", "resume", run)[0]["state"] == "active"
    refused = either.run("runs", "cancel", run, code=2)
    assert "9 open items" in refused.stderr
    assert "--yes" in refused.stderr
    assert either.json("runs", "ls", "--state", "active")[0]["leased"] == 2
    assert "9 items" in either.text("runs", "cancel", run, "--yes")
    assert either.states(run)["cancelled"] == 9
    events = either.json("runs", "show", run)[0]["events"]
    assert "@" in next(event["actor"] for event in events if event["action"] == "run.cancelled")
    assert "11 items and 0 records" in either.run("runs", "rm", run, code=2).stderr
    either.run("runs", "rm", run, "-y")
    assert [row["run_id"] for row in either.json("runs", "ls")] == [either.scene.paused, either.scene.finished]


def test_numbers_beyond_what_a_database_holds(look: Look) -> None:
    huge = "9" * 30
    look.run("items", "show", "latest", huge, code=5)
    look.run("items", "ls", "latest", "--cursor", huge, code=2)
    look.run("release", "--older-than", huge, code=2)


def test_a_wrong_order_is_refused_in_one_sentence(look: Look) -> None:
    assert "finished" in look.run("runs", "pause", look.scene.finished, code=2).stderr


def test_lists_go_on_at_their_cursor(look: Look) -> None:
    said = look.run("runs", "ls", "--limit", "2")
    cursor = said.stderr.split("--cursor ")[1].rstrip(".\n")
    rest = look.run("runs", "ls", "--limit", "2", "--cursor", cursor)
    assert (look.scene.finished in rest.stdout, rest.stderr) == (True, "")
    seen, cursor = [], "0"
    for _ in range(3):
        page = look.run("items", "ls", look.scene.active, "--limit", "4", "--json", "--cursor", cursor)
        seen += [json.loads(line)["item_id"] for line in page.stdout.splitlines()]
        cursor = page.stderr.split("--cursor ")[1].rstrip(".\n") if page.stderr else ""
    assert (seen, cursor) == (list(range(6, 17)), "")


def test_two_runs_side_by_side(look: Look) -> None:
    text = look.text("runs", "compare", "latest:books", look.scene.active).partition("\n\n")[0]
    rows = {" ".join(line.split()[:-3]): line.split()[-3:] for line in text.splitlines()[1:]}
    assert rows["done"] == ["3", "1", "-2"]
    assert rows["ok percent"] == ["60.0", "50.0", "-10.0"]
    assert rows["dead: permanent, 410 Gone"] == ["0", "1", "+1"]
    line, *_ = look.json("runs", "compare", "latest:books", look.scene.active)
    one, other = line["runs"]
    assert (one["deaths"], other["done"]) == ({"permanent, 404 Not Found at URL": 2}, 1)


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        (["--state", "leased"], [9, 10]),
        (["--state", "dead", "--state", "delayed"], [7, 8]),
        (["--partition", "de", "--outcome", "permanent"], [8]),
        (["--error", "timed out"], [7]),
        (["--stage", "product", "--state", "ready"], [11, 12]),
        (["--limit", "2"], [6, 7]),
    ],
    ids=lambda value: " ".join(map(str, value)),
)
def test_items_are_found_by_filters(look: Look, filters: list[str], expected: list[int]) -> None:
    assert [row["item_id"] for row in look.json("items", "ls", look.scene.active, *filters)] == expected


def test_why_is_a_sentence_with_its_times(look: Look) -> None:
    run = look.scene.active
    retrying = look.text("items", "why", run, "--key", "https://EXAMPLE.com/1")
    assert retrying.startswith("Try 2 of 4 is scheduled; the last one failed: read timed out. (since 20")
    assert ", until 20" in retrying
    waiting = [gate["code"] for gate in look.json("items", "why", run, "13")]
    assert waiting == ["lane_limit", "lane_rank"]
    assert "4 items are waiting for their lanes." in look.text("items", "why", run)
    shown = look.text("items", "show", run, "7")
    assert "read timed out" in shown
    assert "transient" in shown


def test_why_of_a_dead_item_ends_with_what_to_type(look: Look) -> None:
    run = look.scene.active
    said = look.run("items", "why", run, "8", "--ledger", look.address)
    assert "410 Gone" in said.stdout
    command = said.stderr.strip().rpartition(" with: ")[2]
    assert command.endswith(f" items retry {run} 8 --ledger {look.address}")
    look.run(*command.split()[command.split().index("items") :], "--yes")
    assert look.states(run)["dead"] == 0
    assert look.run("items", "why", run, "8").stderr == ""


def test_an_item_is_named_by_number_or_key(look: Look) -> None:
    for arguments in ([], ["7", "--key", "x"], ["nosuch"]):
        assert "--key" in look.run("items", "show", look.scene.active, *arguments, code=2).stderr
    assert "'nosuch' is no item's number" in look.run("items", "why", look.scene.active, "nosuch", code=2).stderr


@pytest.mark.parametrize(("typed", "hint"), [("ded", "did you mean dead?"), ("xyz", "choose one of ready, waiting")])
def test_a_state_that_is_none(look: Look, typed: str, hint: str) -> None:
    assert hint in " ".join(look.run("items", "ls", look.scene.active, "--state", typed, code=2).stderr.split())


def test_items_are_retried_and_cancelled_after_a_preview(either: Look) -> None:
    run = either.scene.active
    refused = either.run("items", "cancel", run, "--stage", "product", code=2)
    assert "6 items" in refused.stderr
    assert either.json("items", "cancel", run, "--stage", "product", "--limit", "1", "--yes")[0]["cancelled"] == 1
    assert either.json("items", "cancel", run, "--error", "timed out", "-y")[0]["cancelled"] == 1
    assert either.json("items", "cancel", run, "16", "-y")[0]["cancelled"] == 1
    assert either.states(run)["cancelled"] == 3
    assert "1 item of run" in either.run("items", "retry", run, code=2).stderr
    assert either.json("items", "retry", run, "--yes")[0]["retried"] == 1
    assert either.states(run)["dead"] == 0
    nothing = either.run("items", "retry", run, "--yes")
    assert "nothing was retried" in nothing.stderr


def test_lanes_change_while_it_runs(either: Look) -> None:
    assert either.json("lanes", "ls")[0]["waiting"] == 4
    assert "1-3s" in either.text("lanes", "set", HOST, "--limit", "3", "--delay", "1-3")
    (lane,) = either.json("lanes", "show", HOST)
    assert (lane["policy"]["limit"], lane["policy"]["delay_max"], lane["set_by_operator"]) == (3, 3.0, True)
    assert "paused" in either.text("lanes", "pause", HOST)
    assert f"The lane {HOST} is paused; `shoal lanes resume {HOST}` resumes it." in either.text(
        "items", "why", either.scene.active
    )
    assert "paused" not in either.text("lanes", "resume", HOST)
    either.ledger(lambda ledger: ledger.lanes.set_delay_floor("slow.example", 7.0, "robots.txt asks for it"))
    assert "7s: robots.txt asks for it" in either.text("lanes", "show", "slow.example")
    for wrong in (["--limit", "0"], ["--delay", "soon"], ["--delay", "3-1"], []):
        assert either.run("lanes", "set", HOST, *wrong, code=2).stdout == ""


def test_workers_are_listed_and_sent_home(either: Look) -> None:
    assert [(row["worker"], row["leased"]) for row in either.json("workers", "ls")] == [(WORKER, 2)]
    either.run("workers", "stop", code=2)
    assert "No worker" in either.run("workers", "stop", "--run", either.scene.paused).stderr
    assert either.json("workers", "stop", "--run", either.scene.active)[0]["worker"] == WORKER
    assert either.json("workers", "ls")[0]["state"] == "draining"
    assert "drains" in either.text("workers", "stop", WORKER)


def test_release_gives_old_claims_back(either: Look) -> None:
    run = either.scene.active
    assert either.json("release", "--run", run)[0]["released"] == 0
    assert either.text("release", "--run", run, "--older-than", "0") == "Released: 2 items.\n"
    assert either.states(run)["leased"] == 0


def test_doctor_finds_what_is_wrong(either: Look) -> None:
    checks = {row["check"]: row for row in either.json("doctor")}
    assert all(check["ok"] for check in checks.values())
    assert ("disk" in checks) == either.address.endswith("sqlite3")

    old = WorkerSpec(id="old", node="n", pid=1, version="0.0.1")
    either.ledger(lambda ledger: ledger.workers.register(old))
    said = either.run("doctor", code=1)
    assert "wrong  versions     some workers run 0.0.1" in said.stdout
    assert "shoal workers stop" in said.stdout


def test_doctor_on_a_ledger_that_is_not_there(shoal_here: Shoal) -> None:
    said = shoal_here("doctor")
    assert said.returncode == 1
    assert "Start a run with `shoal run`" in said.stdout
    gone = shoal_here("doctor", "--json", SHOAL_LEDGER="postgresql://me:s3cret@127.0.0.1:1/db", SHOAL_PATIENCE="0")
    assert gone.returncode == 1
    assert json.loads(gone.stdout)["ok"] is False
    assert "s3cret" not in gone.stdout + gone.stderr


def test_backup_is_a_whole_ledger_made_while_others_write(real: Look, shoal: Shoal, tmp_path: Path) -> None:
    with sqlite3.connect(real.address, isolation_level=None) as busy:
        busy.execute("begin immediate")
        busy.execute("update counter set value = value + 1")
        (said,) = real.json("db", "backup", "copy.db")
        busy.execute("rollback")
    busy.close()
    assert said["bytes"] == (tmp_path / "copy.db").stat().st_size
    assert shoal("db", "check", "--deep", "--ledger", "copy.db").returncode == 0
    assert shoal("runs", "ls", "--json", "--ledger", "copy.db").stdout == real.text("runs", "ls", "--json")
    assert "exists already" in real.run("db", "backup", "copy.db", code=2).stderr
    assert "no folder" in real.run("db", "backup", "gone/copy.db", code=2).stderr
    assert [path.name for path in tmp_path.glob("*copy*")] == ["copy.db"]


def test_backup_of_postgres_names_the_command(shoal_here: Shoal) -> None:
    said = shoal_here("db", "backup", "copy.dump", "--ledger", "postgresql://me:s3cret@db.example:5433/shoal")
    assert said.returncode == 2
    command = "pg_dump --schema=shoal --format=custom --file=copy.dump postgresql://me@db.example:5433/shoal"
    assert command in said.stderr


def test_completion_answers_the_shell(shoal: Shoal, tmp_path: Path) -> None:
    for name in ("bash", "zsh", "fish"):
        assert "_SHOAL_COMPLETE" in shoal("completion", name).stdout
    assert shoal("completion", "tcsh").returncode == 2
    (tmp_path / "completion.bash").write_text(shoal("completion", "bash").stdout)
    script = (
        "source completion.bash; COMP_WORDS=(shoal items re); COMP_CWORD=2; "
        '_shoal_completion shoal; echo "${COMPREPLY[*]}"'
    )
    path = f"{Path(COMMAND[0]).parent}:{os.environ['PATH']}"
    answer = subprocess.run(
        ["bash", "-c", script],
        cwd=tmp_path,
        env=clean_environment(tmp_path) | {"PATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert answer.stdout.split() == ["retry", "replay"]


def test_watch_off_a_terminal_says_lines_until_the_end(real: Look) -> None:
    with watching(real, "watch", real.scene.active) as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("Watching run")
        first = process.stderr.readline()
        real.run("runs", "cancel", real.scene.active, "-y")
        said = process.communicate(timeout=20)
        assert process.returncode == 0
    assert first.startswith("done 1 of 11 found -/min ok 50% waiting: host limit 44% dead 1")
    assert re.fullmatch(r"done 1/11 9% \S+ ok 50% dead 1, cancelled\n", said[1])
    assert said[0] == f"Run {real.scene.active} is cancelled: 1 done, 1 dead, 9 cancelled, 0 records.\n"


def test_watch_takes_the_newest_active_run_and_ends_with_ctrl_c(real: Look) -> None:
    with watching(real, "watch", "--json") as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["run_id"] == real.scene.active
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130


@contextmanager
def watching(look: Look, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    folder = Path(look.address).parent
    process = subprocess.Popen(
        [*COMMAND, *arguments],
        cwd=folder,
        env=clean_environment(folder, SHOAL_LEDGER=look.address),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()  # of a test that failed; else it has ended


@pytest.fixture
def terminal(look: Look) -> Iterator[Callable[..., tuple[subprocess.Popen[bytes], int]]]:
    """Start a command on a terminal of its own; gives the process and our end of the terminal."""
    ends: list[int] = []

    def start(*arguments: str, **variables: str) -> tuple[subprocess.Popen[bytes], int]:
        ours, theirs = pty.openpty()
        ends.append(ours)
        folder = Path(look.address).parent
        size = {"TERM": "xterm-256color", "COLUMNS": "100", "LINES": "30"}
        process = subprocess.Popen(
            [*COMMAND, *arguments],
            cwd=folder,
            env=clean_environment(folder, SHOAL_LEDGER=look.address, **size, **variables),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)
        return process, ours

    yield start
    for end in ends:
        os.close(end)


def read_until(end: int, wanted: str) -> str:
    """What the terminal shows until this appears; until the other end closes for an empty text."""
    said = b""
    try:
        while not (wanted and wanted in said.decode(errors="replace")):
            chunk = os.read(end, 65536)
            if not chunk:
                break
            said += chunk
    except OSError:
        pass  # how Linux says that the other end was closed
    return said.decode()


@pytest.mark.parametrize("no_color", [False, True])
def test_watch_on_a_terminal_draws_bars(
    look: Look, terminal: Callable[..., tuple[subprocess.Popen[bytes], int]], no_color: bool
) -> None:
    process, end = terminal("watch", look.scene.active, **({"NO_COLOR": "1"} if no_color else {}))
    seen = read_until(end, "taken.")
    assert "━" in seen
    assert "1/11" in seen
    assert "1 done of 11 found, still growing" in seen
    assert "410 Gone" in seen
    assert "listing de" in seen
    assert "product -" in seen
    assert "waiting: host limit 44%. The lane shop.example is full" in seen
    assert ("\x1b[31m" in seen) != no_color
    look.run("runs", "cancel", look.scene.active, "-y")
    rest = read_until(end, "")
    assert process.wait(20) == 0
    assert rest.rstrip().endswith("is cancelled: 1 done, 1 dead, 9 cancelled, 0 records.")


@pytest.mark.parametrize(("answer", "code", "gone"), [("y", 0, True), ("n", 1, False)])
def test_on_a_terminal_it_asks(
    look: Look, terminal: Callable[..., tuple[subprocess.Popen[bytes], int]], answer: str, code: int, gone: bool
) -> None:
    process, end = terminal("runs", "rm", look.scene.finished)
    asked = read_until(end, "Continue? [y/N] ")
    assert "5 items and 3 records" in asked
    os.write(end, f"{answer}\n".encode())
    said = read_until(end, "")
    assert process.wait(20) == code, said
    assert (len(look.json("runs", "ls", "--scraper", "books")) == 0) == gone


def test_what_a_site_said_is_redacted_and_cannot_steer_the_terminal(look: Look) -> None:
    async def block(ledger: Ledger) -> None:
        await ledger.lanes.block(HOST, 600, "see http://me:s3cret@proxy.example \x1b[2J")

    look.ledger(block)
    run = look.scene.active
    for command in (["lanes", "ls"], ["lanes", "show", HOST], ["items", "why", run], ["status", run]):
        said = look.text(*command)
        assert "http://me:***@proxy.example" in said
        assert "\x1b" not in said


def test_without_input_it_refuses_even_on_a_terminal(
    look: Look, terminal: Callable[..., tuple[subprocess.Popen[bytes], int]]
) -> None:
    process, end = terminal("runs", "rm", look.scene.finished, "--no-input")
    said = read_until(end, "")
    assert process.wait(20) == 2
    assert "--yes" in said
